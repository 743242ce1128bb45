"""The rows of a record as a tree: where they go on, end, or are missing."""

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline, dropped, failed
from ledger.batch.records.trace import Fate, trace
from ledger.cli.base import app
from ledger.errors import InputError, LostFileError
from ledger.storage.manifest import DataFile
from ledger.store.queries import runs
from tests.support.ledgers import pipeline
from tests.support.reasons import bare
from tests.support.without_java import commands

NUMBERS = ["0", "1", "2", "three", "4", "5"]


def numbers(tmp_path, stay=()):
    """numbers -> halves (two rows of each) -> sifted -> out. What is sifted is lost of 1, dropped
    of 2, failed of 4, of the second half each; none of ``stay``.
    """
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in NUMBERS))
    flow = Pipeline("numbers", max_replays=3)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def halves(frame):
        return frame.withColumn("half", F.explode(F.array(F.lit(0), F.lit(1))))

    @flow.stage(reads="halves", filters="lost")
    def sifted(frame):
        ends = (F.col("half") == 1) & F.col("n").isin(*({1, 2, 4} - set(stay)))
        return (
            frame.where(~ends),
            dropped(frame.where(ends & (F.col("n") == 2)), "even"),
            failed(frame.where(ends & (F.col("n") == 4)), "too much"),
        )

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def shape(branch):
    """A tree as nested tuples: step, fate, reason, branches."""
    return (branch.step, str(branch.fate), branch.reason, *map(shape, branch.branches))


def tree_of(database, root, **options):
    return shape(trace(database, root, **options).tree)


def went(reason):
    """A row of sifted that reached the sink."""
    return ("sifted", "passed on", None, ("out", "acked", reason))


@pytest.fixture
def batch(runner, tmp_path):
    """A settled batch of the numbers, and the root of the first."""
    run = runner(numbers(tmp_path))
    original = run.open()
    run.settled(original)
    return run, original, run.ledger.row("SELECT first_root FROM batch_source").first_root


def test_each_row_is_shown_where_it_ends(batch):
    """Passed on, lost, dropped, failed, malformed: each at the step where it happened, beside the
    rows that went on, with the fields of each row; of a record that does not parse with its text,
    of a mark with nothing. Where a stage's files are gone, the tree says so; where the source's are
    gone, trace can show nothing.
    """
    run, _, first = batch
    check_fates(run.job.database, first)
    check_contents(run.job.database, first)
    check_files_that_are_gone(run, first)


def check_fates(database, first):
    def halves(published, *second):
        rows = [(went(published),), second]
        return ("numbers", "passed on", None, *(("halves", "passed on", None, *r) for r in rows))

    withheld = "withheld, for the record failed elsewhere"
    lost, wrong = ("sifted", "lost", None), ("sifted", "failed", "too much")
    assert tree_of(database, first) == halves("published", went("published"))
    assert tree_of(database, first + 1) == halves(withheld, lost)
    assert tree_of(database, first + 2) == halves("published", ("sifted", "dropped", "even"))
    assert tree_of(database, first + 4) == halves(withheld, wrong)
    step, fate, reason = tree_of(database, first + 3)
    assert (step, fate) == ("numbers", "failed")
    assert "three" in reason or "INT" in reason.upper()


def check_contents(database, first):
    traced = trace(database, first + 4).tree
    assert json.loads(traced.content) == {"n": 4}
    assert [json.loads(row.content) for row in traced.branches] == [
        {"n": 4, "half": 0},
        {"n": 4, "half": 1},
    ]
    assert traced.branches[1].branches[0].content is None
    assert trace(database, first + 3).tree.content == "three"


def test_each_attempt_has_its_own_tree(runner, batch, tmp_path):
    """The last attempt unless another is asked for, by its number or by its root."""
    run, original, first = batch
    fixed = runner(numbers(tmp_path, stay=(1, 4)))
    fixed.settled(fixed.open_replay(original.batch_id))
    database, record = run.job.database, first + 1
    last = trace(database, record)
    assert (last.attempt, last.attempts, last.verdict) == (2, 2, "recovered")
    assert last.batch_id != original.batch_id
    assert went("published") in shape(last.tree)[4]
    earlier = trace(database, record, attempt=1)
    assert earlier.root == record
    assert ("sifted", "lost", None) in shape(earlier.tree)[4]
    assert trace(database, last.root) == last
    with pytest.raises(InputError, match="has 2 decided attempts: expected --attempt 1 to 2"):
        trace(database, record, attempt=3)


def test_a_row_that_an_operation_drops(runner, tmp_path):
    """It ends at the stage, with the operation that left it out."""
    (tmp_path / "in.csv").write_text("n\n7\n8\n")
    flow = Pipeline("sifted")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def sifted(frame):
        return frame.where("n = 7")

    flow.sink("out", ParquetSink("out"), reads="sifted")
    run = runner(flow)
    run.settled(run.open())
    root = run.ledger.row("SELECT first_root FROM batch_source").first_root
    tree = trace(run.job.database, root + 1).tree
    (end,) = tree.branches
    assert (end.step, end.fate, end.content) == ("sifted", Fate.DROPPED, None)
    assert bare(end.reason) == "filter: condition false: n = 7"


def test_a_row_of_several_is_shown_once(runner, tmp_path):
    """What came of it follows at the first row that it comes from; the others refer to it."""
    (tmp_path / "in.csv").write_text("n\n7\n")
    flow = Pipeline("merged")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def copies(frame):
        return frame.withColumn("copy", F.explode(F.array(F.lit(0), F.lit(1))))

    @flow.stage(reads="copies")
    def summed(frame):
        return frame.groupBy("n").agg(F.count("*").alias("copies"))

    flow.sink("out", ParquetSink("out"), reads="summed")
    run = runner(flow)
    run.settled(run.open())
    tree = trace(run.job.database, run.ledger.row("SELECT first_root FROM batch_source")[0])
    first, second = (row.branches[0] for row in tree.tree.branches)
    assert first.content == second.content == '{"n": 7, "copies": 2}'
    assert (first.repeated, len(first.branches)) == (False, 1)
    assert (second.repeated, second.branches) == (True, ())


def test_a_step_that_has_not_committed_is_named(runner, tmp_path):
    """An open batch is traced as far as it is."""
    run = runner(numbers(tmp_path))
    batch = run.open()
    for name in ("numbers", "halves"):
        run.step(batch, name)
    database = run.job.database
    root = run.ledger.row("SELECT first_root FROM batch_source").first_root
    row = ("halves", "passed on", None, ("sifted", "not committed", None))
    assert tree_of(database, root) == ("numbers", "passed on", None, row, row)
    assert trace(database, root).verdict == "pending"


def test_a_source_without_files_is_named(ledger):
    """Where the run that emitted a record has no files any more, there is an answer, too."""
    lost, roots = ledger.whole_batch(pipeline(), 4, lose_sink=[0])
    ledger.settle(lost.batch_id)
    with pytest.raises(InputError, match="its source has no committed run in batch 1 now"):
        trace(ledger.database, roots[0])


def check_files_that_are_gone(run, first):
    database = run.job.database

    def remove(step):
        ran = run.ledger.row(f"SELECT step_run_id FROM step_run WHERE step = '{step}'").step_run_id
        files: tuple[DataFile, ...] = run.ledger.transact(runs.files, ran)
        for file in files:
            Path(file.path).unlink()

    remove("sifted")
    gone = trace(database, first).tree.branches[0].branches[0]
    assert gone.fate is Fate.UNREADABLE
    assert "it is gone" in gone.reason
    remove("numbers")
    with pytest.raises(LostFileError, match="what came of the record"):
        trace(database, first)


def test_trace_on_the_command_line(batch, migrated, tmp_path):
    """As a tree for people, as JSON for programs, without Java; explain names the command."""
    _, _, first = batch
    ask = commands(migrated, tmp_path, refused=("pyspark", "py4j"))
    text = ask("trace", first + 1)
    assert "sifted  lost" in text
    assert f"ackledger explain {first + 1}" in text
    data = json.loads(ask("trace", first + 1, "--json"))
    assert data["tree"]["branches"][1]["branches"][0]["fate"] == "lost"
    assert f"ackledger trace {first + 1}" in ask("explain", first + 1)


def test_many_rows_of_one_step_are_counted(environment, runner, tmp_path):
    """A terminal shows the first of many, and says how many there are."""
    (tmp_path / "in.csv").write_text("n\n7\n")
    flow = Pipeline("wide")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def copies(frame):
        return frame.withColumn("copy", F.explode(F.sequence(F.lit(1), F.lit(25))))

    flow.sink("out", ParquetSink("out"), reads="copies")
    run = runner(flow)
    run.settled(run.open())
    root = run.ledger.row("SELECT first_root FROM batch_source").first_root
    result = CliRunner().invoke(app, ["trace", str(root)])
    assert result.exit_code == 0, result.output
    assert result.output.count("copies  passed on") == 10
    assert "15 more rows of copies: --json has them" in result.output
