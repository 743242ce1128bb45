"""Run a stage: call its function, write the output, derive the deltas from what is on storage."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ledger.batch.step_runs import OpenedRun, Record, commit
from ledger.core.column_names import (
    ANCHOR,
    ANCHORS,
    DROPPED,
    FAILED,
    INPUT,
    PARENT,
    ROOT,
    check_names,
)
from ledger.core.outcomes import Mark
from ledger.errors import StageError
from ledger.pipeline.steps import CombineStep, StageStep, StateStep
from ledger.sources.references import read_reference
from ledger.spark.frames.anchors import AnchorWitness, expected_type, stored_anchor
from ledger.spark.frames.inputs import anchored, input_frames, user_columns
from ledger.spark.job import STORED, Job, Witness, file_rows, require_equal
from ledger.spark.post import fold
from ledger.spark.steps.records import run_records
from ledger.spark.tracking import posted, stage_tracking
from ledger.spark.units.carried import carry_over
from ledger.storage.manifest import take_manifest


def run_stage(job: Job, run: OpenedRun, step: StageStep) -> Record:
    """Run one stage of one batch and commit it; what it recorded."""
    frames = input_frames(job, run)
    carried = carry_over(job, run, step, frames)
    output = _output(job, run, step, carried.fresh if carried else frames)
    if carried:
        output = carried.united(output)
    folder = job.folder(run)
    anchors = AnchorWitness() if ANCHORS in output.columns else None
    untracked = job.pipeline.graph.root_is_optional(step.name)
    wrote = Witness(*_stored_identity(run, output.columns), roots=True, passed=untracked)
    watched = wrote.watch(anchors.watch(output) if anchors else output)
    watched.write.options(**STORED).parquet(folder)
    manifest = take_manifest(folder)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    _check_anchors(job, step, wrote, anchors)
    record = Record(
        input_rows=sum(read.output_rows or 0 for read in run.inputs.values()),
        output_rows=manifest.rows - wrote.failed - wrote.dropped,
        failed_rows=wrote.failed,
    )
    tracking = stage_tracking(job, run, step)
    carries = carried is not None
    outcome = fold(job, run, tracking.portions(manifest, frames, anchors, carries=carries))
    tracking.check(outcome, wrote, anchors)
    record = posted(record, outcome)
    commit(
        job.database,
        run,
        record,
        files=file_rows(manifest),
        drops=tracking.drops(outcome, carries=carries),
        post=outcome.post,
    )
    return record


def _check_anchors(
    job: Job, step: StageStep, wrote: Witness, anchors: AnchorWitness | None
) -> None:
    """Raise StageError if a written row has an anchor that cannot be."""
    graph = job.pipeline.graph
    if anchors:
        anchors.check(step, job.pipeline.max_anchors, graph.unit)
    elif graph.tracks(step.name) and not graph.root_is_optional(step.name):
        bare = wrote.rows - wrote.rooted
        if bare:
            raise StageError(
                f"stage {step.name!r} returned {bare} rows whose {ANCHOR!r} is null, so they come from no record: an "
                "outer join keeps rows of the other side; drop those, or declare the stage with whole=True"
            )


def _stored_identity(run: OpenedRun, columns: list[str]) -> list[str]:
    """What says which input row a row comes from, as it is stored: a list where there may be several; nothing if
    the output is not tracked."""
    if ANCHORS in columns:
        return [ANCHORS]
    return [ROOT, PARENT, *([INPUT] if len(run.inputs) > 1 else [])] if ROOT in columns else []


def _output(
    job: Job, run: OpenedRun, step: StageStep, frames: Mapping[str, DataFrame]
) -> DataFrame:
    """What the stage's function makes, with the anchor as columns that store well."""
    references = {
        name: read_reference(job.spark, job.settings, run.batch, name, source)
        for name, source in job.pipeline.references(step).items()
    }
    as_list = job.pipeline.graph.merges(step.name)
    given = [anchored(rows, as_list=as_list) for rows in frames.values()]
    marks: list[Mark] = []
    if step.by_record:
        made = run_records(step, *given)
    else:
        made, marks = _parts(step, step.function(*given, **references))
        if not job.pipeline.tracks(step.name):
            return _unanchored(step, made, marks)
        check_output(job, step, made)
    kept = [F.col(name) for name in (FAILED, DROPPED) if name in made.columns]
    output = made.select(*user_columns(made), *stored_anchor(job.pipeline, step), *kept)
    for mark in marks:
        output = output.unionByName(_marked(job, step, mark), allowMissingColumns=True)
    return output


def _unanchored(step: StageStep, made: object, marks: list[Mark]) -> DataFrame:
    """The output of a stage behind which nothing is tracked: the user's columns alone."""
    if marks:
        raise StageError(
            f"stage {step.name!r} marks records, but tracking ends there or before: return the output alone"
        )
    check_frame(step, made)
    assert isinstance(made, DataFrame)
    if FAILED in made.columns:
        raise StageError(
            f"stage {step.name!r} returned {FAILED!r}, but tracking ends there or before: no record can fail"
        )
    return made.select(*user_columns(made))


def _parts(step: StageStep, made: object) -> tuple[DataFrame, list[Mark]]:
    """The output of a stage and the marks beside it; what the output is, is checked later."""
    if not isinstance(made, tuple):
        return made, []  # type: ignore[return-value]
    output, *marks = made
    for mark in marks:
        if not isinstance(mark, Mark):
            raise StageError(
                f"stage {step.name!r} returned {type(mark).__name__} beside its output: expected "
                "dropped(frame, reason), failed(frame, reason) or acked(frame)"
            )
        if mark.kind == "acked" and step.acks != "explicit":
            raise StageError(
                f'stage {step.name!r} returned acked(...), which needs acks="explicit"; '
                "with on_emit say why there is no output: dropped(frame, reason)"
            )
    return output, marks


def _marked(job: Job, step: StageStep, mark: Mark) -> DataFrame:
    """A mark's rows as they are stored: anchor and reason, no columns of the user's."""
    check_anchor(job, step, f"{mark.kind}(...)", mark.frame)
    column = FAILED if mark.kind == "failed" else DROPPED
    anchor = stored_anchor(job.pipeline, step)
    return mark.frame.select(*anchor, F.lit(mark.reason).alias(column))


def check_frame(step: StageStep | CombineStep | StateStep, made: object) -> None:
    """Raise StageError unless a stage returned a frame whose columns have names of their own."""
    stage = step.name
    if not isinstance(made, DataFrame):
        raise StageError(
            f"{step.kind} {stage!r} returned {type(made).__name__}, expected a DataFrame"
        )
    repeated = sorted({name for name in made.columns if made.columns.count(name) > 1})
    if repeated:
        raise StageError(
            f"{step.kind} {stage!r} returned column {repeated[0]!r} twice: drop or rename one"
            + (", in a whole stage by merge_anchors(...)" if repeated[0] == ANCHOR else "")
        )
    own = frozenset({ANCHOR, FAILED}) if isinstance(step, StageStep) else frozenset[str]()
    check_names(f"{step.kind} {stage!r} returned", made.columns, own=own)


def check_output(job: Job, step: StageStep, made: object) -> None:
    """Raise StageError unless a stage returned a frame that keeps its anchor."""
    check_frame(step, made)
    assert isinstance(made, DataFrame)
    stage = step.name
    check_anchor(job, step, "a frame", made)
    if FAILED in made.columns and not isinstance(made.schema[FAILED].dataType, StringType):
        raise StageError(
            f"stage {stage!r}: {FAILED!r} is the reason of a failure, so it must be a string"
        )


def check_anchor(job: Job, step: StageStep, what: str, frame: DataFrame) -> None:
    """Raise StageError unless a frame that a stage returned keeps its anchor as it came."""
    stage = step.name
    if ANCHOR not in frame.columns:
        raise StageError(
            f"stage {stage!r} returned {what} without {ANCHOR!r}, so its rows cannot be tracked. "
            f"Keep it, for example .select({', '.join(map(repr, [*frame.columns[:3], ANCHOR]))})"
        )
    found = frame.schema[ANCHOR].dataType.simpleString()
    expected = expected_type(job.pipeline, step)
    if found == f"array<{expected}>":
        raise StageError(
            f"stage {stage!r} merges anchors: a row of several records makes a stage whole, so declare it "
            "with whole=True"
        )
    if found != expected:
        raise StageError(
            f"stage {stage!r} changed {ANCHOR!r} to {found}, expected {expected}: hand it on as it came"
        )
