"""Run a stage: call its function, write its output, and fold the deltas from the files."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.batch.outcome.unusual import unusual_drops
from ledger.batch.step_runs import OpenedRun, OperationLoss, Record, StepOutput, commit
from ledger.batch.whole import note_whole
from ledger.core.column_names import ANCHOR, DROPPED, FAILED, PREFIX, check_names
from ledger.core.outcomes import Mark
from ledger.errors import CarryError, StageError
from ledger.lineage.anchors import Form, RowLists
from ledger.lineage.carrier import Operation
from ledger.lineage.carry import Following
from ledger.lineage.sql_functions import in_sql, register_functions
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StageStep, Step
from ledger.sources.parsing.typed import quote_of, struct
from ledger.spark.folding.fold import fold
from ledger.spark.frames.anchor_use import Plan
from ledger.spark.frames.anchors import anchor_type, stored_anchor
from ledger.spark.frames.inputs import anchored, has_lists, input_frames, user_columns
from ledger.spark.frames.side_inputs import side_inputs
from ledger.spark.job import Job
from ledger.spark.steps.anchor_errors import explained_anchors, how_to_keep
from ledger.spark.steps.losses import Followed, StageLosses
from ledger.spark.steps.record_task import Taking, transform
from ledger.spark.tracking import ack_plan_of_stage, posted, write_output
from ledger.storage.manifest import Manifest
from ledger.types.fitting import yielded
from ledger.types.spark import walk, without_lengths

_log = logging.getLogger(__name__)
_MARKS = [T.StructField(FAILED, T.StringType()), T.StructField(DROPPED, T.StringType())]


def run_stage(job: Job, run: OpenedRun, step: StageStep) -> Record:
    """Run one stage of one batch, and commit the run. Return the run's record."""
    frames = input_frames(job, run)
    arguments = side_inputs(job, run.batch, step)
    output = stage_output(job.pipeline, step, frames, arguments)
    if step.carries:
        note_whole(job.database, job.pipeline, run, [*map(str, output.gathering)])
    written = [write_output(job, step, output.rows, job.folder(run))]
    (first,) = written
    record = Record(
        input_rows=sum(read.output_rows or 0 for read in run.inputs.values()),
        output_rows=first.manifest.rows - first.failed - first.dropped,
        failed_rows=first.failed,
    )
    plan = ack_plan_of_stage(job, run, step, written)
    stage_losses = StageLosses(job, run, step, output.rows.schema, output.followed, written)
    outcome = fold(job, run, plan.portions, plan.check, more=stage_losses.drops_of)
    record = posted(record, outcome)
    files = sum((each.manifest for each in written), Manifest(())).files
    losses = stage_losses.record()
    drops = plan.drops(outcome)
    job.require_inputs(run)
    commit(job.database, run, StepOutput(record, files, outcome.post, drops, losses=losses))
    warn_of_unusual_drops(job, run, losses)
    return record


def warn_of_unusual_drops(job: Job, run: OpenedRun, losses: Sequence[OperationLoss]) -> None:
    """Log which operations of a stage drop a much greater share of the rows than before."""
    if any(each.is_drop for each in losses):
        number = run.batch.batch_id
        for sentence in job.database.transact(lambda c: unusual_drops(c, number, run.step)):
            _log.warning("batch %s: %s", number, sentence)


@dataclass(frozen=True)
class StageOutput:
    """The output of a stage, with the anchor in columns as they are stored.

    ``gathering``: operations of the plan whose rows depend on which other rows there are.
    ``followed``: the plan through which anchors were carried. None: the function returned its
    anchors by hand.
    """

    rows: DataFrame
    gathering: Sequence[Operation] = ()
    followed: Followed | None = None


def stage_output(
    pipeline: Pipeline,
    step: StageStep,
    frames: Mapping[str, DataFrame],
    arguments: Mapping[str, Any],
    form: Form | None = None,
) -> StageOutput:
    """Call a stage's function, and return its output.

    ``frames``: the inputs, from ``input_frames``.
    ``arguments``: the keyword arguments, from ``side_inputs``.
    ``form``: the columns of a row of several records, if anchors are carried. None: a list.

    Frames of a Spark Connect server have no plan here, so functions return their anchors by hand.
    Raises StageError if the output cannot be tracked.
    """
    if not pipeline.graph.tracks(step.name):
        inputs = [rows.select(*user_columns(rows)) for rows in frames.values()]
        with explained_anchors(step, inputs[0], "untracked"):
            result = step.function(*inputs, **arguments)
            return StageOutput(_unanchored(step, *_output_and_marks(step, result)))
    if step.carries and all(isinstance(rows, ClassicDataFrame) for rows in frames.values()):
        return _carried(step, frames, arguments, form or RowLists(anchor_type(step)))
    as_list = step.anchors == "merged_by_hand" or has_lists(frames)
    inputs = [anchored(rows, as_list=as_list) for rows in frames.values()]
    if step.by_record:
        return StageOutput(_stored(step, _run_records(step, *inputs), [], []))
    register_functions(inputs[0])
    with explained_anchors(step, inputs[0], "lists" if as_list else "one"):
        frame, marks = _output_and_marks(step, step.function(*inputs, **arguments))
        check_output(step, frame, as_list=as_list)
    for mark in marks:
        check_anchor(step, f"{mark.kind}(...)", mark.frame, as_list=as_list)
    return StageOutput(_stored(step, frame, marks, [mark.frame for mark in marks]))


def _carried(
    step: StageStep, frames: Mapping[str, DataFrame], arguments: Mapping[str, Any], form: Form
) -> StageOutput:
    """Return the output of an ordinary function, to which anchors are carried."""
    try:
        inputs = {f"input {name!r}": anchored(rows) for name, rows in frames.items()}
        following = Following(f"stage {step.name!r}", inputs, form)
        with following.watching(), explained_anchors(step, following.bare[0], "carried"):
            frame, marks = _output_and_marks(step, step.function(*following.bare, **arguments))
        check_frame(step, frame)
        assert isinstance(frame, DataFrame)
        following.require_inputs([frame, *(mark.frame for mark in marks)])
        marks += _consulted(following, [frame, *(mark.frame for mark in marks)])
        carried = [
            following.carried(each, [ANCHOR], id_alone=True)
            for each in (frame, *(mark.frame for mark in marks))
        ]
    except CarryError as exc:
        if not exc.anchors:
            raise StageError(str(exc)) from exc
        raise StageError(
            f'{exc}. Or declare stage {step.name!r} with anchors="{exc.anchors}", and return'
            f" {ANCHOR!r}"
        ) from exc
    if any(isinstance(each.schema[ANCHOR].dataType, T.ArrayType) for each in carried):
        carried = [*map(_as_lists, carried)]
    output, *marked = carried
    stored = _stored(step, output, marks, marked)
    if DROPPED not in stored.columns:  # what an operation drops is added to it
        stored = stored.withColumn(DROPPED, F.lit(None).cast("string"))
    followed = Followed(following, (frame, *(mark.frame for mark in marks if not mark.is_own)))
    return StageOutput(stored, tuple(following.carrier.gathering), followed)


def _as_lists(frame: DataFrame) -> DataFrame:
    if isinstance(frame.schema[ANCHOR].dataType, T.ArrayType):
        return frame
    return frame.withColumn(ANCHOR, F.when(F.col(ANCHOR).isNotNull(), F.array(ANCHOR)))


def _consulted(following: Following, frames: Sequence[DataFrame]) -> list[Mark]:
    """Return marks that ack the rows of inputs that only decide which rows of others are kept."""
    return [
        Mark("dropped", following.bare[number], f"consulted by {operation}", is_own=True)
        for number, operation in following.only_consulted(frames).items()
    ]


def _stored(
    step: StageStep, frame: DataFrame, marks: Sequence[Mark], marked: Sequence[DataFrame]
) -> DataFrame:
    """Return rows with ``_anchor``, and after them the marked ones, as they are stored. ``marked``:
    the frames of the marks, with ``_anchor``.
    """
    reasons = [
        (F.col(name) if step.by_record else _reason(F.col(name))).alias(name)
        for name in (FAILED, DROPPED)
        if name in frame.columns
    ]
    output = frame.select(*user_columns(frame), *stored_anchor(frame), *reasons)
    # Stored with anchor and reason, and no columns of the user's.
    for mark, rows in zip(marks, marked, strict=True):
        column = FAILED if mark.kind == "failed" else DROPPED
        reason = F.lit(mark.reason) if mark.is_own else _reason(F.lit(mark.reason))
        own = rows.select(*stored_anchor(rows), reason.alias(column))
        output = output.unionByName(own, allowMissingColumns=True)
    return output


def _run_records(step: StageStep, frame: DataFrame) -> DataFrame:
    """Return the output of a record stage over an anchored frame, with ``_failed`` and
    ``_dropped``.
    """
    assert step.schema is not None
    declared = struct(step.schema)
    check_names(f"record stage {step.name!r} declares", declared.names)
    # A row that only has a reason why there is none has nulls in every column.
    nullable = [T.StructField(f.name, without_lengths(f.dataType)) for f in declared.fields]
    # Fields of an anchor travel to Python and back faster than the struct that they make.
    anchor = frame.schema[ANCHOR].dataType
    own, apart, together = [T.StructField(ANCHOR, anchor)], [F.col(ANCHOR)], F.col(ANCHOR)
    if isinstance(anchor, T.StructType):
        own = [T.StructField(f"{PREFIX}{f.name}", f.dataType, f.nullable) for f in anchor.fields]
        apart = [F.col(ANCHOR)[f.name].alias(f"{PREFIX}{f.name}") for f in anchor.fields]
        fields = [F.col(f"{PREFIX}{f.name}").alias(f.name) for f in anchor.fields]
        together = F.struct(*fields).alias(ANCHOR)
    rows = frame.select(*user_columns(frame), *apart)
    task = partial(
        transform,
        step.function,
        Taking(declared),
        yielded(declared),
        rows.columns,
        [f.name for f in own],
    )
    # By number: mapInArrow looks columns up by name, and takes one with a dot for a field.
    numbered = rows.toDF(*(f"_{number}" for number in range(len(rows.columns))))
    output = numbered.mapInArrow(task, T.StructType([*nullable, *own, *_MARKS]))
    return output.select(*user_columns(output), together, FAILED, DROPPED)


def _unanchored(step: StageStep, frame: object, marks: list[Mark]) -> DataFrame:
    """Return the output of a stage after which nothing is tracked: the user's columns."""
    if marks:
        raise StageError(
            f"stage {step.name!r} marks records, but tracking ends there or before: return the"
            " output alone"
        )
    check_frame(step, frame)
    assert isinstance(frame, DataFrame)
    if FAILED in frame.columns:
        raise StageError(
            f"stage {step.name!r} returned {FAILED!r}, but tracking ends there or before: no record"
            " can fail"
        )
    return frame.select(*user_columns(frame))


def _output_and_marks(step: StageStep, result: object) -> tuple[DataFrame, list[Mark]]:
    """Split the result of a stage into its output, which is checked later, and its marks. Raises
    StageError for marks that are not allowed.
    """
    if not isinstance(result, tuple):
        return result, []  # type: ignore[return-value]
    output, *marks = result
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


def _reason(reason: Column) -> Column:
    """Return a reason from a stage's author as it is stored: marked as a quote, because it may
    contain any value. An empty reason, of acked rows, is unchanged.
    """
    return F.when(reason != "", quote_of(reason)).otherwise(reason)


def check_frame(step: Step, frame: object) -> None:
    """Raise StageError unless a step's function returned a frame, each column with its own name."""
    what = f"{step.kind} {step.name!r}"
    if not isinstance(frame, DataFrame):
        raise StageError(f"{what} returned {type(frame).__name__}, expected a DataFrame")
    repeated = sorted({name for name in frame.columns if frame.columns.count(name) > 1})
    if repeated:
        raise StageError(
            f"{what} returned column {repeated[0]!r} twice: drop or rename one"
            + (", by merge_anchors(...)" if repeated[0] == ANCHOR else "")
        )
    own = frozenset[str]() if step.ends_tracking else frozenset({ANCHOR, FAILED})
    check_names(f"{what} returned", frame.columns, own=own)
    if FAILED in frame.columns and not isinstance(frame.schema[FAILED].dataType, T.StringType):
        raise StageError(f"{what}: {FAILED!r} is the reason of a failure, so it must be a string")
    for column in frame.schema:
        if column.name != ANCHOR and f'"name":"{ANCHOR}"' in column.dataType.json():
            raise StageError(
                f"{what} returned column {column.name!r} with {ANCHOR!r} in it, as struct('*')"
                " makes it: name the columns that belong there"
            )
        for name, kind in walk(column.dataType, column.name):
            if isinstance(kind, T.CalendarIntervalType):
                raise StageError(
                    f"{what} returned column {name!r} of type interval, which Spark does not store:"
                    " cast it to INTERVAL DAY TO SECOND, INTERVAL YEAR TO MONTH or STRING"
                )


def check_output(step: StageStep, frame: object, *, as_list: bool) -> None:
    """Raise StageError unless a stage returned a frame that keeps its anchor."""
    check_frame(step, frame)
    assert isinstance(frame, DataFrame)
    check_anchor(step, "a frame", frame, as_list=as_list)


def check_anchor(step: StageStep, what: str, frame: DataFrame, *, as_list: bool) -> None:
    """Raise StageError unless a frame that a stage returned keeps its anchor as it came."""
    stage = step.name
    plan = Plan.of(frame)
    if ANCHOR not in frame.columns:
        raise StageError(
            f"stage {stage!r} returned {what} without {ANCHOR!r}, so its rows cannot be tracked:"
            f" {how_to_keep(frame, plan.loss(), as_list=as_list)}"
        )
    collect = f"collect_anchors(), or in SQL {in_sql('collect_anchors', frame)}"
    comparison = plan.comparison(collect)
    if comparison:
        raise StageError(f"stage {stage!r}: {comparison}")
    actual = frame.schema[ANCHOR].dataType.simpleString()
    expected = f"array<{anchor_type(step)}>" if as_list else anchor_type(step)
    if actual == f"array<{expected}>":
        raise StageError(
            f'stage {stage!r} merges anchors: declare it with anchors="merged_by_hand"'
        )
    if actual != expected:
        raise StageError(
            f"stage {stage!r} changed {ANCHOR!r} to {actual}, expected {expected}: hand it on as it"
            " came"
        )
