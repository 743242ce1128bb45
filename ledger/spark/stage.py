"""Run a stage: call its function, write the output, derive the deltas from what is on storage."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ledger.errors import StageError
from ledger.manifest import Manifest, take_manifest
from ledger.marks import Mark
from ledger.spark import fold
from ledger.spark.anchors import AnchorWitness, expected_type, stored_anchor
from ledger.spark.carried import CarryOver, carry_over, fresh_rows
from ledger.spark.inputs import anchored, input_frames, read_stored, root_rows, user_columns
from ledger.spark.job import (
    ANCHOR,
    ANCHORS,
    CARRIED,
    DROPPED,
    FAILED,
    POSITION,
    ROOT,
    STORED,
    Job,
    Witness,
    file_rows,
    require_equal,
)
from ledger.spark.manifest import with_position
from ledger.spark.names import check_names
from ledger.spark.reading import read_reference
from ledger.spark.records import run_records
from ledger.stage_runs import OpenedRun, Record, commit
from ledger.steps import CombineStep, StageStep, StateStep

SWALLOWED = "read"  # the reason of what an on_read stage read and did not emit


def run_stage(job: Job, run: OpenedRun, step: StageStep) -> Record:
    """Run one stage of one batch and commit it; what it recorded."""
    frames = input_frames(job, run)
    carried = carry_over(job, run, step, frames)
    if carried:
        frames = carried.fresh
    came = None if carried else _watched(job, run, step, frames)
    output = _output(job, run, step, frames)
    if carried:
        output = carried.united(output)
    folder = job.folder(run)
    anchors = AnchorWitness() if ANCHORS in output.columns else None
    untracked = job.pipeline.graph.may_be_untracked(step.name)
    wrote = Witness(*_stored_identity(run, output.columns), roots=True, passed=untracked)
    watched = wrote.watch(anchors.watch(output) if anchors else output)
    watched.write.options(**STORED).parquet(folder)
    manifest = take_manifest(folder)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    _check_anchors(job, step, wrote, anchors)
    # As many rows, of the same anchors: each input has just one, and nothing is to be folded.
    one_each = came is not None and came.within(output) and came.seen == wrote.seen
    record, drops = _post(job, run, step, manifest, wrote, frames, anchors, one_each, carried)
    commit(job.database, run, record, files=file_rows(manifest), drops=drops)
    return record


def _check_anchors(
    job: Job, step: StageStep, wrote: Witness, anchors: AnchorWitness | None
) -> None:
    """Raise StageError if a written row has an anchor that cannot be."""
    graph = job.pipeline.graph
    if anchors:
        anchors.check(step, job.pipeline.max_anchors, graph.unit)
    elif graph.tracks(step.name) and not graph.may_be_untracked(step.name):
        bare = wrote.rows - wrote.rooted
        if bare:
            raise StageError(
                f"stage {step.name!r} returned {bare} rows whose {ANCHOR!r} is null, so they come from no record: an "
                "outer join keeps rows of the other side; drop those, or declare the stage with whole=True"
            )


def _watched(
    job: Job, run: OpenedRun, step: StageStep, frames: dict[str, DataFrame]
) -> Witness | None:
    """A witness of the input, put into ``frames``, where the output may have one row for each of it."""
    if len(frames) > 1 or step.acks == "on_read" or not job.pipeline.tracks(step.name):
        return None
    if job.pipeline.graph.merges(step.name) or not run.input_run.one_row_a_root:
        return None
    came = Witness(ROOT, POSITION)
    for name, frame in frames.items():
        frames[name] = came.watch(frame)
    return came


def _identity(run: OpenedRun) -> list[str]:
    """The columns that say which input row an output row comes from."""
    return fold.parent_key({name: read.stage_run_id for name, read in run.inputs.items()})


def _stored_identity(run: OpenedRun, columns: list[str]) -> list[str]:
    """The same as it is stored: a list where a row may come from several input rows; nothing if the
    output is not tracked."""
    if ANCHORS in columns:
        return [ANCHORS]
    return _identity(run) if ROOT in columns else []


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


def _post(
    job: Job,
    run: OpenedRun,
    step: StageStep,
    manifest: Manifest,
    wrote: Witness,
    frames: Mapping[str, DataFrame],
    anchors: AnchorWitness | None,
    one_each: bool,
    carried: CarryOver | None,
) -> tuple[Record, dict[str, int]]:
    """Derive the deltas by reading the written files back, and post them; the record, and drops by reason."""
    written = with_position(read_stored(job, manifest), manifest, POSITION)
    if not job.pipeline.tracks(step.name):
        return _ack_read(job, run, step, manifest, frames), {}
    passed = manifest.rows - wrote.failed - wrote.dropped
    input_count = sum(read.output_rows or 0 for read in run.inputs.values())
    if run.batch.ackers == 0:
        return Record(input_rows=input_count, output_rows=passed, failed_rows=wrote.failed), {}
    stored = _stored_identity(run, written.columns)
    found = Witness(*stored)
    marks = [name for name, rows in ((FAILED, wrote.failed), (DROPPED, wrote.dropped)) if rows]
    plain = written.select(*stored, POSITION, *marks, *([CARRIED] if carried else []))
    fresh = fresh_rows(plain) if carried else plain
    folded = _folded(job, run, step, fresh, found, frames, one_each)
    if carried:
        folded = folded.unionByName(carried.fold(plain, stored), allowMissingColumns=True)
    posted = job.post(run, folded)
    read_back = carried.found_with(found) if carried else found.seen
    require_equal(f"rows and XOR of {step.name} in run {run.run_id}", wrote.seen, read_back)
    consumers = job.pipeline.consumers(step.name)
    rooted = wrote.passed if job.pipeline.graph.may_be_untracked(step.name) else passed
    require_equal(
        f"edges of {step.name} in run {run.run_id}",
        (anchors.edges if anchors else rooted) * len(consumers),
        posted.emitted_edges,
    )
    rows, identity = _anchor_rows(job, step, fresh), _identity(run)
    drops = _drops(rows, identity) if wrote.dropped else {}
    if step.acks == "on_read":
        # Where each root has one input row and no row says why there is none, they are counted already.
        counted = consumers and _one_parent(job, run) and not marks and not carried
        with_output = posted.emitted_roots if counted else rows.select(*identity).distinct().count()
        swallowed = posted.acked_edges - (carried.acked if carried else 0) - with_output
        drops |= {SWALLOWED: swallowed} if swallowed else {}
    record = Record(
        input_rows=input_count,
        output_rows=passed,
        failed_rows=wrote.failed,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        emitted_edges=posted.emitted_edges,
        emitted_roots=posted.emitted_roots,
        acked_edges=posted.acked_edges,
    )
    return record, drops


def _folded(
    job: Job,
    run: OpenedRun,
    step: StageStep,
    plain: DataFrame,
    found: Witness,
    frames: Mapping[str, DataFrame],
    one_each: bool,
) -> DataFrame:
    """The deltas of what was written (``plain``: anchors, position, marks), witnessed as it is read."""
    output = _anchor_rows(job, step, found.watch(plain))
    failed = None
    if FAILED in plain.columns:
        rows = _anchor_rows(job, step, plain)
        failed = rows.select(*(name for name in (ROOT, FAILED, "_shared") if name in rows.columns))
    inputs = {name: read.stage_run_id for name, read in run.inputs.items()}
    consumers = job.pipeline.consumers(step.name)
    if step.acks == "on_read":
        rows = _all_rows(job, step, frames)
        return fold.fold_on_read(rows, output, failed, inputs, run.run_id, step.name, consumers)
    return fold.fold_emitted(
        output,
        failed,
        inputs,
        run.run_id,
        step.name,
        consumers,
        one_parent=_one_parent(job, run),
        one_each=one_each,
        emits_one=step.emits == "one",
    )


def _anchor_rows(job: Job, step: StageStep, rows: DataFrame) -> DataFrame:
    """One row for each anchor of a row, where it has a list of them; none for untracked rows."""
    if ANCHORS in rows.columns:
        return fold.by_anchor(rows)
    untracked = job.pipeline.graph.may_be_untracked(step.name)
    return rows.where(F.col(ROOT).isNotNull()) if untracked else rows


def _one_parent(job: Job, run: OpenedRun) -> bool:
    """Whether the input has a single row of each root."""
    names = list(run.inputs)
    return (
        len(names) == 1 and not job.pipeline.graph.merges(names[0]) and run.input_run.one_row_a_root
    )


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
    posted = job.post(run, fold.fold_read(_all_rows(job, step, frames), inputs, step.name))
    return replace(
        record,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        acked_edges=posted.acked_edges,
    )


def _all_rows(job: Job, step: StageStep, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Which tracked rows there are in all inputs: _root, _parent and, of several inputs, _input."""
    rows = reduce(DataFrame.unionByName, map(root_rows, frames.values()))
    untracked = job.pipeline.graph.may_be_untracked(step.name)
    return rows.where(F.col(ROOT).isNotNull()) if untracked else rows


def _drops(output: DataFrame, identity: list[str]) -> dict[str, int]:
    """Inputs acked without an output, by reason; of several reasons for one the first by name."""
    inputs = output.groupBy(*identity).agg(
        F.bool_or(F.col(DROPPED).isNull()).alias("emitted"), F.min(DROPPED).alias("reason")
    )
    silent = inputs.where(~F.col("emitted") & (F.col("reason") != ""))
    return {row["reason"]: row["count"] for row in silent.groupBy("reason").count().collect()}
