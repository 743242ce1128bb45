"""Run a stage: call its function, write the output, derive the deltas from what is on storage."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ledger.errors import StageError
from ledger.marks import Mark
from ledger.spark import fold
from ledger.spark.inputs import anchored, input_frames, read_stored, user_columns
from ledger.spark.job import (
    ANCHOR,
    DROPPED,
    FAILED,
    INPUT,
    PARENT,
    POSITION,
    RESERVED,
    ROOT,
    STORED,
    Job,
    Witness,
    file_rows,
    require_equal,
)
from ledger.spark.manifest import Manifest, take_manifest, with_position
from ledger.spark.reading import read_reference
from ledger.spark.records import run_records
from ledger.stage_runs import OpenedRun, Record, commit
from ledger.steps import StageStep

SWALLOWED = "read"  # the reason of what an on_read stage read and did not emit


def run_stage(job: Job, run: OpenedRun, step: StageStep) -> Record:
    """Run one stage of one batch and commit it; what it recorded."""
    frames = input_frames(job, run)
    came = _watched(job, run, step, frames)
    output = _output(job, run, step, frames)
    folder = job.folder(run)
    wrote = Witness(*(_identity(run) if job.pipeline.tracks(step.name) else []))
    wrote.watch(output).write.options(**STORED).parquet(folder)
    manifest = take_manifest(folder)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    # As many rows, of the same anchors: each input has just one, and nothing is to be folded.
    one_each = came is not None and came.within(output) and came.seen == wrote.seen
    record, drops = _post(job, run, step, manifest, wrote, frames, one_each)
    commit(job.database, run, record, files=file_rows(manifest), drops=drops)
    return record


def _watched(
    job: Job, run: OpenedRun, step: StageStep, frames: dict[str, DataFrame]
) -> Witness | None:
    """A witness of the input, put into ``frames``, where the output may have one row for each of it."""
    if len(frames) > 1 or step.acks == "on_read" or not job.pipeline.tracks(step.name):
        return None
    if not run.input_run.one_row_a_root:
        return None
    came = Witness(ROOT, POSITION)
    for name, frame in frames.items():
        frames[name] = came.watch(frame)
    return came


def _identity(run: OpenedRun) -> list[str]:
    """The columns that say which input row an output row comes from."""
    return fold.parent_key({name: read.stage_run_id for name, read in run.inputs.items()})


def _output(
    job: Job, run: OpenedRun, step: StageStep, frames: Mapping[str, DataFrame]
) -> DataFrame:
    """What the stage's function makes, with the anchor as columns that store well."""
    references = {
        name: read_reference(job.spark, job.settings, run.batch, name, source)
        for name, source in job.pipeline.references(step).items()
    }
    marks: list[Mark] = []
    if step.by_record:
        (rows,) = frames.values()
        made = run_records(step, anchored(rows))
    else:
        made, marks = _parts(step, step.function(*map(anchored, frames.values()), **references))
        if not job.pipeline.tracks(step.name):
            return _unanchored(step, made, marks)
        check_output(step, made)
    kept = [F.col(name) for name in (FAILED, DROPPED) if name in made.columns]
    output = made.select(*user_columns(made), *_stored_anchor(step), *kept)
    for mark in marks:
        output = output.unionByName(_marked(step, mark), allowMissingColumns=True)
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


def _stored_anchor(step: StageStep) -> list[Column]:
    names = ("root", "parent", "input")[: 3 if len(step.inputs) > 1 else 2]
    return [F.col(f"{ANCHOR}.{name}").alias(f"_{name}") for name in names]


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


def _marked(step: StageStep, mark: Mark) -> DataFrame:
    """A mark's rows as they are stored: anchor and reason, no columns of the user's."""
    check_anchor(step, f"{mark.kind}(...)", mark.frame)
    column = FAILED if mark.kind == "failed" else DROPPED
    return mark.frame.select(*_stored_anchor(step), F.lit(mark.reason).alias(column))


def check_frame(step: StageStep, made: object) -> None:
    """Raise StageError unless a stage returned a frame whose columns have different names."""
    stage = step.name
    if not isinstance(made, DataFrame):
        raise StageError(f"stage {stage!r} returned {type(made).__name__}, expected a DataFrame")
    repeated = sorted({name for name in made.columns if made.columns.count(name) > 1})
    if repeated:
        raise StageError(
            f"stage {stage!r} returned column {repeated[0]!r} twice: drop or rename one"
            + (" (merging anchors is not supported yet)" if repeated[0] == ANCHOR else "")
        )


def check_output(step: StageStep, made: object) -> None:
    """Raise StageError unless a stage returned a frame that keeps its anchor."""
    check_frame(step, made)
    assert isinstance(made, DataFrame)
    stage = step.name
    check_anchor(step, "a frame", made)
    taken = sorted((RESERVED - {ANCHOR, FAILED}) & set(made.columns))
    if taken:
        raise StageError(
            f"stage {stage!r} returned column {taken[0]!r}, a name of the ledger: rename it"
        )
    if FAILED in made.columns and not isinstance(made.schema[FAILED].dataType, StringType):
        raise StageError(
            f"stage {stage!r}: {FAILED!r} is the reason of a failure, so it must be a string"
        )


def check_anchor(step: StageStep, what: str, frame: DataFrame) -> None:
    """Raise StageError unless a frame that a stage returned keeps its anchor as it came."""
    stage = step.name
    if ANCHOR not in frame.columns:
        raise StageError(
            f"stage {stage!r} returned {what} without {ANCHOR!r}, so its rows cannot be tracked. "
            f"Keep it, for example .select({', '.join(map(repr, [*frame.columns[:3], ANCHOR]))})"
        )
    anchor = frame.schema[ANCHOR].dataType.simpleString()
    expected = "root:bigint,parent:bigint" + (",input:string" if len(step.inputs) > 1 else "")
    if anchor != f"struct<{expected}>":
        raise StageError(f"stage {stage!r} changed {ANCHOR!r} to {anchor}: hand it on as it came")


def _post(
    job: Job,
    run: OpenedRun,
    step: StageStep,
    manifest: Manifest,
    wrote: Witness,
    frames: Mapping[str, DataFrame],
    one_each: bool,
) -> tuple[Record, dict[str, int]]:
    """Derive the deltas by reading the written files back, and post them; the record, and drops by reason."""
    written = with_position(read_stored(job, manifest), manifest, POSITION)
    if not job.pipeline.tracks(step.name):
        return _ack_read(job, run, step, manifest, frames), {}
    identity = _identity(run)
    found = Witness(*identity)
    failed = written.select(ROOT, FAILED) if wrote.failed else None
    marks = [name for name, rows in ((FAILED, wrote.failed), (DROPPED, wrote.dropped)) if rows]
    plain = written.select(*identity, POSITION, *marks)
    output = found.watch(plain)
    input_count = sum(read.output_rows or 0 for read in run.inputs.values())
    if run.batch.ackers == 0:
        passed = manifest.rows - wrote.failed - wrote.dropped
        return Record(input_rows=input_count, output_rows=passed, failed_rows=wrote.failed), {}
    consumers = job.pipeline.consumers(step.name)
    inputs = {name: read.stage_run_id for name, read in run.inputs.items()}
    if step.acks == "on_read":
        rows = _all_rows(frames)
        folded = fold.fold_on_read(rows, output, failed, inputs, run.run_id, step.name, consumers)
    else:
        folded = fold.fold_emitted(
            output,
            failed,
            inputs,
            run.run_id,
            step.name,
            consumers,
            one_parent=len(inputs) == 1 and run.input_run.one_row_a_root,
            one_each=one_each,
            emits_one=step.emits == "one",
        )
    posted = job.post(run, folded)
    require_equal(f"rows and XOR of {step.name} in run {run.run_id}", wrote.seen, found.seen)
    require_equal(
        f"edges of {step.name} in run {run.run_id}",
        (manifest.rows - wrote.failed - wrote.dropped) * len(consumers),
        posted.emitted_edges,
    )
    drops = _drops(plain, identity) if wrote.dropped else {}
    if step.acks == "on_read":
        swallowed = posted.acked_edges - plain.select(*identity).distinct().count()
        drops |= {SWALLOWED: swallowed} if swallowed else {}
    record = Record(
        input_rows=input_count,
        output_rows=posted.emitted_edges // len(consumers),
        failed_rows=wrote.failed,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        emitted_edges=posted.emitted_edges,
        emitted_roots=posted.emitted_roots,
        acked_edges=posted.acked_edges,
    )
    return record, drops


def _ack_read(
    job: Job,
    run: OpenedRun,
    step: StageStep,
    manifest: Manifest,
    frames: Mapping[str, DataFrame],
) -> Record:
    """Ack what the last tracked stage has read; a stage behind it has nothing to ack."""
    record = Record(
        input_rows=sum(read.output_rows or 0 for read in run.inputs.values()),
        output_rows=manifest.rows,
    )
    if run.batch.ackers == 0 or not all(map(job.pipeline.tracks, step.inputs)):
        return record
    inputs = {name: read.stage_run_id for name, read in run.inputs.items()}
    posted = job.post(run, fold.fold_read(_all_rows(frames), inputs, step.name))
    return replace(
        record,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        acked_edges=posted.acked_edges,
    )


def _all_rows(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Which rows there are in all inputs: _root, _parent and, of several inputs, _input."""
    kept = [
        frame.withColumnRenamed(POSITION, PARENT).select(
            ROOT, PARENT, *([INPUT] if INPUT in frame.columns else [])
        )
        for frame in frames.values()
    ]
    return reduce(DataFrame.unionByName, kept)


def _drops(output: DataFrame, identity: list[str]) -> dict[str, int]:
    """Inputs acked without an output, by reason; of several reasons for one the first by name."""
    inputs = output.groupBy(*identity).agg(
        F.bool_or(F.col(DROPPED).isNull()).alias("emitted"), F.min(DROPPED).alias("reason")
    )
    silent = inputs.where(~F.col("emitted") & (F.col("reason") != ""))
    return {row["reason"]: row["count"] for row in silent.groupBy("reason").count().collect()}
