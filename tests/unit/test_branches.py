"""Losses in one branch of a pipeline: ``check`` and ``init --from`` say what they withhold."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.upkeep.checks import look_at_source
from ledger.settings import Settings
from tests.support.ported_jobs import ported_in

SOURCE = FileSource("orders.csv", schema="id INT")


def flights(expected=(), guarantee=None, **options):
    """A source, a stage before all sinks, and two branches of which one has two stages."""
    pipeline = Pipeline("flights", guarantee=guarantee)
    pipeline.source("flights", SOURCE)
    pipeline.source("planes", SOURCE)

    @pipeline.stage(reads="flights")
    def clean(rows):
        return rows

    @pipeline.stage(reads="clean", expected=dict(expected), **options)
    def with_known_plane(rows):
        return rows

    @pipeline.stage(reads=["with_known_plane", "planes"], acks="on_read")
    def joined(rows, planes):
        return rows

    pipeline.sink("late", ParquetSink("late"), reads="clean")
    pipeline.sink("with_plane", ParquetSink("with_plane"), reads="joined")
    return pipeline


def test_stages_of_one_branch_are_named():
    """Stages that all sinks of a source read behind are left out, and those whose losses nobody
    notices.
    """
    assert flights().graph.loss_in_a_branch("flights") == (
        "Records that are lost at stage with_known_plane are withheld from all sinks of flights"
        " (late, with_plane): name intended losses in expected= of the stage"
    )
    assert flights().graph.loss_in_a_branch("planes") == ""
    both = flights()

    @both.stage(reads="clean")
    def few(rows):
        return rows

    both.sink("few_out", ParquetSink("few"), reads="few")
    note = both.graph.loss_in_a_branch("flights")
    assert note.startswith(
        "Records that are lost at one of with_known_plane, few are withheld from all"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"expected": {"inner join: no partner for plane": "not ours"}},
        {"acks": "on_read"},
        {"acks": "untracked"},
        {"anchors": "by_hand"},
    ],
)
def test_a_stage_with_nothing_to_declare_is_not_named(options):
    """A stage says nothing if it declares expected losses, or cannot have any."""
    assert flights(**options).graph.loss_in_a_branch("flights") == ""


@pytest.mark.parametrize(
    ("guarantee", "tracking"),
    [("exactly_once", True), ("at_least_once", True), ("exactly_once", False)],
)
def test_a_check_of_the_source_says_it(tmp_path, monkeypatch, guarantee, tracking):
    """At least once, sinks publish rows as they arrive, and without tracking no record is lost, so
    a check says nothing of branches.
    """
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path))
    (tmp_path / "orders.csv").write_text("id\n1\n")
    pipeline = flights(guarantee=guarantee)
    pipeline.tracking = tracking
    step = pipeline.step("flights")
    summary = look_at_source(Settings(), pipeline, step, None)
    says = ". Records that are lost at stage with_known_plane are withheld" in summary
    assert says is (tracking and guarantee == "exactly_once")


JOB = """\
orders = spark.read.schema("id INT, shop INT").csv("orders.csv")
shops = spark.read.schema("shop INT").csv("shops.csv")
clean = orders.where("id > 0")
clean.write.parquet("out/clean")
placed = clean.join(shops, "shop")
placed.write.parquet("out/placed")
"""


def test_a_port_lists_it(tmp_path):
    """List the note with the line of the read. A job with one output has no branches."""
    note = (
        "my_job.py:1: Records that are lost at stage placed are withheld from all sinks of orders"
        " (clean_out, placed_out): name intended losses in expected= of the stage"
    )
    assert note in ported_in(tmp_path, JOB).todo
    single = JOB.replace('clean.write.parquet("out/clean")\n', "")
    assert "withheld" not in "".join(ported_in(tmp_path, single).todo)
