"""A pipeline is checked when it is declared; every refusal names its culprit."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.core.declared_steps import DeclaredStep
from ledger.errors import DeclarationError
from ledger.pipeline.load import load_pipeline
from ledger.pipeline.pipeline import seconds

SOURCE = FileSource("in.csv", schema="n INT")
SINK = ParquetSink("out")


def declared():
    """source -> stage -> sink, with a reference."""
    pipeline = Pipeline("chain")
    pipeline.source("source", SOURCE)
    pipeline.reference("side", SOURCE)

    @pipeline.stage(reads="source")
    def stage(rows, *, side):
        return rows

    pipeline.sink("sink", SINK, reads="stage")
    return pipeline


def test_order_and_consumers():
    """Steps come behind their inputs; a reference is no step."""
    pipeline = declared()
    assert [step.name for step in pipeline.steps()] == ["source", "stage", "sink"]
    assert pipeline.consumers("source") == ("stage",)
    stage = DeclaredStep("stage", "stage", ("source",), acks="on_emit", joins=True)
    assert pipeline.topology()[1] == stage
    assert list(pipeline.references(pipeline.step("stage"))) == ["side"]


def test_the_ledger_gives_back_the_steps_that_it_was_given():
    """Each step as JSON and back is the same, and its JSON has no option that does not hold."""
    pipeline = declared()
    files = FileSource("in/*.csv", schema="n INT", incremental=True)
    pipeline.source("keyed", files, key="n")
    bloom = Bloom(key="n", window_batches=3, capacity=10)
    pipeline.sink("keyed_out", ParquetSink("keyed", dedup=bloom), reads="keyed")
    for step in pipeline.topology():
        stored = json.loads(json.dumps(step.as_json()))
        assert DeclaredStep.of(stored) == step
        assert not [value for value in stored.values() if value is None or value is False]


def test_what_follows_the_settlement_is_marked():
    """Of each step the ledger keeps whether it follows the settlement: combines, states, and the
    sinks that read them, no other.
    """
    pipeline = declared()

    @pipeline.combine(reads="stage")
    def total(rows):
        return rows

    @pipeline.stateful_stage(reads="stage")
    def state(before, rows):
        return rows

    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    pipeline.sink("states", ParquetSink("states"), reads="state")
    after = {step.name for step in pipeline.topology() if step.after}
    assert after == {"total", "totals", "state", "states"}


def test_the_graph_is_made_once():
    """Every caller gets the same graph, and another one after a step or a reference is declared."""
    pipeline = declared()
    before = pipeline.graph
    pipeline.steps()
    assert pipeline.graph is before
    pipeline.sink("copy", ParquetSink("copy"), reads="stage")
    with_copy = pipeline.graph
    assert with_copy is not before
    assert pipeline.graph is with_copy
    assert (set(with_copy.steps) - set(before.steps), "copy" in before.steps) == ({"copy"}, False)
    pipeline.reference("more", SOURCE)
    assert set(pipeline.graph.references) == {"side", "more"}


def test_a_copy_has_other_steps():
    """A pipeline with steps replaced, left out, and other references is a pipeline of its own:
    the first one keeps what it has.
    """
    pipeline = declared()
    graph = pipeline.graph
    moved = replace(pipeline.step("sink"), sink=ParquetSink("elsewhere"))
    copied = pipeline.with_steps({**graph.steps, "sink": moved}.values())
    assert copied.step("sink") is moved
    assert copied.references(copied.step("stage")) == pipeline.references(pipeline.step("stage"))
    assert pipeline.graph is graph
    assert pipeline.step("sink").sink == SINK
    fewer = copied.with_steps([pipeline.step("source"), replace(moved, reads="source")], {})
    assert [step.name for step in fewer.steps()] == ["source", "sink"]
    assert fewer.graph.references == {}
    fewer.sink("more", ParquetSink("more"), reads="source")
    assert "more" not in copied.graph.steps
    with pytest.raises(DeclarationError, match="reads 'stage', which is not declared"):
        pipeline.with_steps([pipeline.step("source"), moved]).steps()


def test_a_decorated_stage_stays_callable():
    """The decorator hands the function back, so a stage can be tested as a plain function."""
    pipeline = Pipeline("chain")

    @pipeline.stage(reads="source")
    def stage(rows):
        return rows * 2

    assert stage(21) == 42


def unknown_input(pipeline):
    pipeline.sink("other", SINK, reads="stages")


def sink_as_input(pipeline):
    pipeline.sink("other", SINK, reads="sink")


def reference_as_input(pipeline):
    pipeline.sink("other", SINK, reads="side")


def unread_stage(pipeline):
    @pipeline.stage(reads="source")
    def lonely(rows):
        return rows


def unread_source(pipeline):
    pipeline.source("second", SOURCE)


def whole(source):
    return source


def total(clicks):
    return clicks


@pytest.mark.parametrize("incremental", [False, True])
def test_max_pending_goes_with_what_needs_all(incremental):
    """A whole stage, and a combine."""
    pipeline = Pipeline("limited", max_pending=10)
    source = FileSource("in.csv", schema="n INT", incremental=incremental)
    pipeline.source("source", source)
    pipeline.source("clicks", source)
    pipeline.stage(reads="source", anchors="merged_by_hand")(whole)
    pipeline.combine(reads="clicks")(total)
    pipeline.sink("out", ParquetSink("out"), reads="whole")
    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    assert len(pipeline.steps()) == 4


def unknown_reference(pipeline):
    @pipeline.stage(reads="source")
    def other(rows, *, sides):
        return rows

    pipeline.sink("more", SINK, reads="other")


def cycle(pipeline):
    @pipeline.stage(reads="two")
    def first(rows):
        return rows

    @pipeline.stage(reads="first")
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
        (cycle, "pipeline 'chain' has a cycle: (first -> two -> first|two -> first -> two)"),
    ],
)
def test_graphs_that_cannot_work(spoil, message):
    """Each graph that cannot work is refused by a message that names the culprit."""
    pipeline = declared()
    spoil(pipeline)
    with pytest.raises(DeclarationError, match=message):
        pipeline.steps()


def test_params_are_no_reference():
    """A stage may ask for the run's parameters, and no reference has their name."""
    pipeline = declared()

    @pipeline.stage(reads="source")
    def monthly(rows, *, side, params):
        return rows

    assert pipeline.graph.steps["monthly"].references == ("side",)
    with pytest.raises(DeclarationError, match=r"'params' .* the parameters of the run\. Rename"):
        pipeline.reference("params", SOURCE)


def several_inputs(pipeline):
    pipeline.sink("joined", SINK, reads=["stage", "source"])


def same_input_twice(pipeline):
    pipeline.stage(reads=["source", "source"])(lambda_stage)


def too_few_frames(pipeline):
    pipeline.stage(reads=["stage", "source"])(lambda_stage)


def duplicate(pipeline):
    pipeline.sink("stage", SINK, reads="source")


def duplicate_of_reference(pipeline):
    pipeline.source("side", SOURCE)


def bad_acks(pipeline):
    pipeline.stage(reads="source", acks="on_emitt")(lambda_stage)


def lambda_stage(rows):
    return rows


def two_frames(pipeline):
    @pipeline.stage(reads="source")
    def stage2(rows, more):
        return rows


def bad_name(pipeline):
    pipeline.source("My Source", SOURCE)


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
            lambda pipeline: Pipeline("x", guarantee="exactly_one"),
            "pipeline 'x': guarantee='exactly_one'; did you mean 'exactly_once'",
        ),
        (
            lambda pipeline: Pipeline("x", publish="later"),
            "pipeline 'x': publish='later'; known: complete",
        ),
        (
            lambda pipeline: Pipeline("x", message_timeout="soon"),
            "duration 'soon': expected for example 30s",
        ),
        (
            lambda pipeline: Pipeline("x", max_batch_age=float("inf")),
            "duration inf: expected for example 30s, 90m, 1h or 2d, at most 36500d",
        ),
        (
            lambda pipeline: FileSource("in", schema="n INT", format="xls"),
            "format 'xls' of 'in': expected one of csv",
        ),
        (
            lambda pipeline: ParquetSink("out", dedup="bloom"),
            'dedup of \'out\': expected "none", "exact" or Bloom',
        ),
        (lambda pipeline: Bloom(capacity=0), "capacity >= 1 and 0 < error_rate < 1, found 0"),
        (
            lambda pipeline: Bloom(capacity=1, window_batches=3),
            "window_batches is at least 1 and needs a key",
        ),
        (lambda pipeline: Pipeline("empty").steps(), "pipeline 'empty' is empty"),
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
        ("tracking", 2, "True or False"),
        ("tracking", 0, "True or False"),
        ("hold_above", 1.5, "0 to 1, or None"),
        ("allow_failed", 1, "a share of the records, from 0 to less than 1"),
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
    ("duration", "expected"),
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
def test_durations(duration, expected):
    """Durations are seconds, text with a unit, or a timedelta; text without a unit is refused."""
    if expected is None:
        with pytest.raises(DeclarationError):
            seconds(duration)
    else:
        assert seconds(duration) == expected


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
    assert load_pipeline("jobs.wordcount:pipeline").tracking is True


def test_two_sinks_of_one_path():
    """Each batch has one folder below a sink's path, so two sinks may not share it."""
    pipeline = Pipeline("twice")
    pipeline.source("lines", FileSource("in.csv", schema="n INT"))
    pipeline.sink("one", ParquetSink("out"), reads="lines")
    pipeline.sink("other", ParquetSink("out"), reads="lines")
    with pytest.raises(
        DeclarationError, match="'one' and 'other' of pipeline 'twice' write to the same path 'out'"
    ):
        pipeline.steps()


@pytest.mark.parametrize("partial", [False, True])
def test_the_ledger_knows_a_partial_combine(partial):
    """It is kept with the step, for those who see what is due without the pipeline at hand."""
    pipeline = declared()

    @pipeline.combine(reads="stage", partial=partial)
    def total(rows):
        return rows

    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    (declaration,) = (step for step in pipeline.topology() if step.name == "total")
    assert declaration.partial is partial


@pytest.mark.parametrize(("whole", "awaited"), [(False, ("src",)), (True, None)])
def test_a_combine_awaits_the_sources_that_it_reads(whole, awaited):
    """It waits for failed records of no other source, unless a replay takes the whole batch."""
    pipeline = declared()
    pipeline.source("src", SOURCE)
    pipeline.source("other", SOURCE)

    @pipeline.stage(reads=["src", "other"], anchors="merged_by_hand" if whole else "carried")
    def both(src, other):
        return src

    @pipeline.combine(reads="src")
    def total(src):
        return src

    pipeline.sink("rows", ParquetSink("rows"), reads="both")
    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    awaits = {step.name: step.awaits for step in pipeline.topology() if step.after}
    assert awaits == {"total": awaited, "totals": awaited}


@pytest.mark.parametrize(("incremental", "rereads"), [(False, True), (True, False)])
def test_what_is_taken_once_is_not_read_again(incremental, rereads):
    """The ledger keeps how a source's text is cut, and whether its records can be read again by
    key: not those of an incremental source, which takes a file that was fixed as a new one.
    """
    pipeline = Pipeline("keyed")
    files = FileSource("in/*.csv", schema="n INT", incremental=incremental, multiline=True)
    pipeline.source("src", files, key="n")
    pipeline.sink("out", ParquetSink("out"), reads="src")
    step = pipeline.topology()[0]
    assert (step.key, step.rereads) == (("n",), rereads)
    layout = step.layout
    assert (layout["format"], layout["sep"], layout["multiline"]) == ("csv", ",", True)
