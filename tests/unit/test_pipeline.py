"""A pipeline is checked when it is declared; every refusal names its culprit."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.errors import DeclarationError
from ledger.pipeline.load import load_pipeline
from ledger.pipeline.pipeline import seconds

SOURCE = FileSource("in.csv", schema="n INT")
SINK = ParquetSink("out")


def declared():
    """source -> stage -> sink, with a reference."""
    made = Pipeline("chain")
    made.source("source", SOURCE)
    made.reference("side", SOURCE)

    @made.stage(reads="source")
    def stage(rows, *, side):
        return rows

    made.sink("sink", SINK, reads="stage")
    return made


def test_order_and_consumers():
    """Steps come behind their inputs; a reference is no step."""
    made = declared()
    assert [step.name for step in made.steps()] == ["source", "stage", "sink"]
    assert made.consumers("source") == ("stage",)
    assert made.topology()[1] == {
        "name": "stage", "kind": "stage", "reads": ["source"], "acks": "on_emit", "joins": True,
    }  # fmt: skip
    assert list(made.references(made.step("stage"))) == ["side"]


def test_what_follows_the_settlement_is_marked():
    """Of each step the ledger keeps whether it follows the settlement: combines, states, and the
    sinks that read them, no other.
    """
    made = declared()

    @made.combine(reads="stage")
    def total(rows):
        return rows

    @made.stateful_stage(reads="stage")
    def state(before, rows):
        return rows

    made.sink("totals", ParquetSink("totals"), reads="total")
    made.sink("states", ParquetSink("states"), reads="state")
    after = {step["name"] for step in made.topology() if step.get("after")}
    assert after == {"total", "totals", "state", "states"}


def test_the_graph_is_made_once():
    """Whoever asks gets the same graph, and another one after a step or a reference is
    declared.
    """
    made = declared()
    before = made.graph
    made.steps()
    assert made.graph is before
    made.sink("copy", ParquetSink("copy"), reads="stage")
    with_copy = made.graph
    assert with_copy is not before
    assert made.graph is with_copy
    assert (set(with_copy.steps) - set(before.steps), "copy" in before.steps) == ({"copy"}, False)
    made.reference("more", SOURCE)
    assert set(made.graph.references) == {"side", "more"}


def test_a_copy_has_other_steps():
    """A pipeline with steps replaced, left out, and other references is a pipeline of its own:
    the first one keeps what it has.
    """
    made = declared()
    graph = made.graph
    moved = replace(made.step("sink"), sink=ParquetSink("elsewhere"))
    copied = made.with_steps({**graph.steps, "sink": moved}.values())
    assert copied.step("sink") is moved
    assert copied.references(copied.step("stage")) == made.references(made.step("stage"))
    assert made.graph is graph
    assert made.step("sink").sink == SINK
    fewer = copied.with_steps([made.step("source"), replace(moved, reads="source")], {})
    assert [step.name for step in fewer.steps()] == ["source", "sink"]
    assert fewer.graph.references == {}
    fewer.sink("more", ParquetSink("more"), reads="source")
    assert "more" not in copied.graph.steps
    with pytest.raises(DeclarationError, match="reads 'stage', which is not declared"):
        made.with_steps([made.step("source"), moved]).steps()


def test_a_decorated_stage_stays_callable():
    """The decorator hands the function back, so a stage can be tested as a plain function."""
    made = Pipeline("chain")

    @made.stage(reads="source")
    def stage(rows):
        return rows * 2

    assert stage(21) == 42


def unknown_input(made):
    made.sink("other", SINK, reads="stages")


def sink_as_input(made):
    made.sink("other", SINK, reads="sink")


def reference_as_input(made):
    made.sink("other", SINK, reads="side")


def unread_stage(made):
    @made.stage(reads="source")
    def lonely(rows):
        return rows


def unread_source(made):
    made.source("second", SOURCE)


def limited(incremental):
    """A pipeline with ``max_pending``, a whole stage, a combine, and untracked records beside."""
    made = Pipeline("limited", max_pending=10)
    source = FileSource("in.csv", schema="n INT", incremental=incremental)
    made.source("source", source)
    made.source("clicks", source, track="n > 0")
    made.stage(reads="source", whole=True)(whole)
    made.combine(reads="clicks")(total)
    made.sink("out", ParquetSink("out"), reads="whole")
    made.sink("totals", ParquetSink("totals"), reads="total")
    return made


def whole(source):
    return source


def total(clicks):
    return clicks


def test_max_pending_cuts_no_interval():
    """What needs all records of an interval goes with ``max_pending``. A batch that reads what is
    new would take less of a unit than there is.
    """
    assert len(limited(incremental=False).steps()) == 4
    with pytest.raises(DeclarationError, match=r"'source' .* would have a batch take less"):
        limited(incremental=True).steps()


def unknown_reference(made):
    @made.stage(reads="source")
    def other(rows, *, sides):
        return rows

    made.sink("more", SINK, reads="other")


def cycle(made):
    @made.stage(reads="two")
    def one(rows):
        return rows

    @made.stage(reads="one")
    def two(rows):
        return rows


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            unknown_input,
            "sink 'other' reads 'stages', which is not declared; did you mean 'stage'?",
        ),
        (sink_as_input, "sink 'other' reads 'sink', a sink"),
        (reference_as_input, "reads 'side', a reference: .* keyword-only parameter"),
        (unread_stage, "nothing reads stage 'lonely'"),
        (unread_source, "nothing reads source 'second'"),
        (
            unknown_reference,
            "asks for reference 'sides', which is not declared; did you mean 'side'",
        ),
        (cycle, "pipeline 'chain' has a cycle: (one -> two -> one|two -> one -> two)"),
    ],
)
def test_graphs_that_cannot_work(spoil, message):
    """Each graph that cannot work is refused by a message that names the culprit."""
    made = declared()
    spoil(made)
    with pytest.raises(DeclarationError, match=message):
        made.steps()


def several_inputs(made):
    made.sink("joined", SINK, reads=["stage", "source"])


def same_input_twice(made):
    made.stage(reads=["source", "source"])(lambda_stage)


def too_few_frames(made):
    made.stage(reads=["stage", "source"])(lambda_stage)


def duplicate(made):
    made.sink("stage", SINK, reads="source")


def duplicate_of_reference(made):
    made.source("side", SOURCE)


def bad_acks(made):
    made.stage(reads="source", acks="on_emitt")(lambda_stage)


def lambda_stage(rows):
    return rows


def two_frames(made):
    @made.stage(reads="source")
    def stage2(rows, more):
        return rows


def bad_name(made):
    made.source("My Source", SOURCE)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (several_inputs, r"sink 'joined' reads stage, source: expected one input"),
        (same_input_twice, r"stage 'lambda_stage' reads source, source: .* none twice"),
        (
            too_few_frames,
            r"'lambda_stage': expected 2 positional parameters, a frame for each input",
        ),
        (duplicate, "declares 'stage' twice"),
        (duplicate_of_reference, "declares 'side' twice"),
        (bad_acks, "acks='on_emitt'; did you mean 'on_emit'"),
        (two_frames, r"expected one positional parameter.*found \(rows, more\)"),
        (bad_name, "source name 'My Source'"),
        (
            lambda made: Pipeline("x", guarantee="exactly_one"),
            "pipeline 'x': guarantee='exactly_one'; did you mean 'exactly_once'",
        ),
        (lambda made: Pipeline("x", settle="later"), "pipeline 'x': settle='later'; known: hold"),
        (
            lambda made: Pipeline("x", message_timeout="soon"),
            "duration 'soon': expected for example 30s",
        ),
        (
            lambda made: FileSource("in", schema="n INT", format="xls"),
            "format 'xls' of 'in': expected one of csv",
        ),
        (
            lambda made: ParquetSink("out", dedup="bloom"),
            'dedup of \'out\': expected "none", "exact" or Bloom',
        ),
        (lambda made: Bloom(capacity=0), "capacity >= 1 and 0 < error_rate < 1, found 0"),
        (
            lambda made: Bloom(capacity=1, window_batches=3),
            "window_batches is at least 1 and needs a key",
        ),
        (lambda made: Pipeline("empty").steps(), "pipeline 'empty' is empty"),
    ],
)
def test_declarations_that_cannot_work(spoil, message):
    """What cannot work is refused in the line that declares it."""
    with pytest.raises(DeclarationError, match=message):
        spoil(declared())


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_replays", -1, "0 or more"),
        ("ackers", -1, "0 or more"),
        ("max_failed_ratio", 1.5, "0 to 1, or None"),
        ("tolerate", 1, "a share of the records, from 0 to less than 1"),
        ("max_anchors", 0, "1 or more"),
        ("max_pending", 0, "1 or more, or None"),
        ("replay_limit", 0, "1 or more, or None"),
    ],
)
def test_options_out_of_their_limits(option, value, expected):
    """An option that is out of its limits is named, with what is expected."""
    message = f"pipeline 'x': {option}={value}: expected {expected}"
    with pytest.raises(DeclarationError, match=re.escape(message)):
        Pipeline("x", **{option: value})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (90, 90),
        ("90", None),
        ("30s", 30),
        ("1.5m", 90),
        ("1h", 3600),
        ("2d", 172800),
        (timedelta(hours=2), 7200),
    ],
)
def test_durations(given, expected):
    """Durations are seconds, text with a unit, or a timedelta; text without a unit is refused."""
    if expected is None:
        with pytest.raises(DeclarationError):
            seconds(given)
    else:
        assert seconds(given) == expected


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("jobs.flights", "expected MODULE:NAME"),
        ("jobs.flight:pipeline", "no module 'jobs.flight'; looked in"),
        ("jobs.flights:pipelin", "has no pipeline 'pipelin'; did you mean 'pipeline'?"),
    ],
)
def test_unknown_pipeline(target, message):
    """A pipeline that does not exist is refused with what was looked for, and where."""
    with pytest.raises(DeclarationError, match=message):
        load_pipeline(target)


def test_shipped_pipelines_load():
    """The example pipelines are found by name and form a pipeline."""
    assert [step.name for step in load_pipeline("jobs.flights:pipeline").steps()] == [
        "departures", "parse", "with_plane", "with_weather", "warehouse",
    ]  # fmt: skip
    assert load_pipeline("jobs.wordcount:pipeline").ackers == 2


def test_two_sinks_of_one_path():
    """Each batch has one folder below a sink's path, so two sinks may not share it."""
    made = Pipeline("twice")
    made.source("lines", FileSource("in.csv", schema="n INT"))
    made.sink("one", ParquetSink("out"), reads="lines")
    made.sink("other", ParquetSink("out"), reads="lines")
    with pytest.raises(
        DeclarationError, match="'one' and 'other' of pipeline 'twice' write to the same path 'out'"
    ):
        made.steps()


@pytest.mark.parametrize("partial", [False, True])
def test_the_ledger_knows_a_partial_combine(partial):
    """It is kept with the step, for those who see what is due without the pipeline at hand."""
    made = declared()

    @made.combine(reads="stage", partial=partial)
    def total(rows):
        return rows

    made.sink("totals", ParquetSink("totals"), reads="total")
    (kept,) = (step for step in made.topology() if step["name"] == "total")
    assert kept.get("partial", False) is partial


@pytest.mark.parametrize(("incremental", "rereads"), [(False, True), (True, False)])
def test_what_is_taken_once_is_not_read_again(incremental, rereads):
    """The ledger keeps how a source's text is cut, and whether its records can be read again by
    key: not those of an incremental source, which takes a file that was fixed as a new one.
    """
    made = Pipeline("keyed")
    files = FileSource("in/*.csv", schema="n INT", incremental=incremental, multiline=True)
    made.source("src", files, key="n")
    made.sink("out", ParquetSink("out"), reads="src")
    kept = made.topology()[0]
    assert (kept["key"], kept["rereads"]) == (["n"], rereads)
    assert (kept["format"], kept["sep"], kept["multiline"]) == ("csv", ",", True)
