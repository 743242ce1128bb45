"""Frames that stages and sinks get: the committed output of a step, anchored."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import (
    ANCHOR,
    ANCHORS,
    DROPPED,
    ERROR,
    FAILED,
    FILE,
    INPUT,
    MESSAGE,
    NUMBERS,
    PARENT,
    POSITION,
    PREFIX,
    RAW,
    ROOT,
    ROOTS,
    is_own,
)
from ledger.errors import FencedError, InputError
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Job
from ledger.store.queries.runs import Run


def input_rows(job: Job, run: OpenedRun) -> DataFrame:
    """Return the rows that the run's input passes on; failed and dropped rows are left out.

    Columns: the user's, ``ROOT`` (downstream of a whole stage the list ``ROOTS``) and
    ``POSITION``.
    """
    return job.on_read(run.step, delivered_rows(job, run.input_run))


def input_frames(job: Job, run: OpenedRun) -> Mapping[str, DataFrame]:
    """Return the rows of each of the run's inputs, as ``input_rows``. If there are several inputs,
    the rows also have ``INPUT``.
    """
    return named_inputs(
        {
            name: job.on_read(run.step, delivered_rows(job, read))
            for name, read in run.inputs.items()
        }
    )


def named_inputs(frames: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Return the rows of a stage's inputs, by name. If there are several inputs, the rows also have
    ``INPUT``.
    """
    if len(frames) == 1:
        return frames
    return {name: frame.withColumn(INPUT, F.lit(name)) for name, frame in frames.items()}


def delivered_rows(job: Job, run: Run) -> DataFrame:
    """Return the rows that a committed run passed on to its consumers, with columns as
    ``input_rows``. Raises FencedError if the run of a source was superseded, InputError if the run
    wrote no rows, as part of a plan.

    There is no ``ROOT`` if the rows are not tracked any more.
    """
    if run.written_by is not None:
        raise InputError(
            f"the rows of {run.step} in batch {run.batch_id} were only written by {run.written_by},"
            " in one plan with it: nothing else can read them. Reprocess the interval"
        )
    manifest = job.manifest(run.step_run_id)
    rows = positioned(job.spark, manifest, POSITION)
    if job.pipeline.step(run.step).is_source:
        if run.emitted is None:
            raise FencedError(
                f"run {run.step_run_id} of {run.step} in batch {run.batch_id} was superseded"
                " meanwhile: run this step again"
            )
        # Roots are dense over the first positions; untracked records come after these.
        first_root, roots = run.emitted.first_root, run.emitted.roots
        if ERROR in rows.columns:  # of a copy
            rows = rows.where(F.col(ERROR).isNull())
        rows = rows.withColumn(ROOT, F.col(POSITION) + F.lit(first_root))
        if roots < manifest.rows:
            rows = rows.withColumn(ROOT, F.when(F.col(POSITION) < roots, F.col(ROOT)))
    return passed_on(rows)


def passed_on(rows: DataFrame) -> DataFrame:
    """Return the stored rows of a step that its consumers read, with the columns that these get.

    ``rows``: with ``POSITION``; those of a source also with ``ROOT``.
    """
    for mark in (FAILED, DROPPED):
        if mark in rows.columns:
            rows = rows.where(F.col(mark).isNull())
    if ANCHORS in rows.columns:
        roots = F.array_distinct(F.transform(ANCHORS, lambda anchor: anchor["root"]))
        rows = rows.withColumn(ROOTS, roots)
    return rows.drop(ANCHORS, ERROR, RAW, FILE, MESSAGE, FAILED, DROPPED, PARENT, INPUT)


def anchored(rows: DataFrame, *, as_list: bool = False) -> DataFrame:
    """Return tracked input rows as a stage gets them: user columns and ``_anchor`` (root, parent
    position), in a stage of several inputs with the input's name; ``as_list`` as a list of these,
    as in whole stages and downstream of them. Within a plan, a row may have ``NUMBERS`` instead.
    """
    if NUMBERS[0] in rows.columns:
        numbers = (F.col(name).alias(name.removeprefix(PREFIX)) for name in NUMBERS)
        return rows.select(*user_columns(rows), F.struct(*numbers).alias(ANCHOR))
    others = [F.col(POSITION).alias("parent")]
    others += [F.col(INPUT).alias("input")] if INPUT in rows.columns else []
    if ROOTS in rows.columns:
        anchor = F.transform(ROOTS, lambda root: F.struct(root.alias("root"), *others))
    else:
        struct = F.struct(F.col(ROOT).alias("root"), *others)
        anchor = F.array(struct) if as_list else struct
    return rows.select(*user_columns(rows), anchor.alias(ANCHOR))


def has_lists(frames: Mapping[str, DataFrame]) -> bool:
    """Return whether a row of these inputs may have several roots."""
    return any(ROOTS in rows.columns for rows in frames.values())


def root_rows(rows: DataFrame) -> DataFrame:
    """Return tracked input rows as ``ROOT`` and ``PARENT``: one for each root of a row."""
    root = F.explode(ROOTS).alias(ROOT) if ROOTS in rows.columns else F.col(ROOT)
    anchors = rows.select(root, F.col(POSITION).alias(PARENT))
    return anchors.where(F.col(ROOT).isNotNull())


def user_columns(frame: DataFrame) -> list[str]:
    """Return the columns that are not the ledger's own, quoted for ``select``."""
    return [f"`{name}`" for name in frame.columns if not is_own(name)]


def stored_rows(job: Job, run_id: int, position: str, first: int = 0) -> DataFrame:
    """Return the stored rows of a source's committed run as a copy has them, with the number of
    each, from ``first`` on, as ``position``. Raises LostFileError unless all its files are there.
    """
    return as_copied(positioned(job.spark, job.manifest(run_id), position, first))


def as_copied(rows: DataFrame) -> DataFrame:
    """Return rows of a source's snapshot with the columns of records that do not fit. A version has
    no such record.
    """
    kinds = {RAW: "binary", ERROR: "string"}
    missing = {
        name: F.lit(None).cast(kind) for name, kind in kinds.items() if name not in rows.columns
    }
    return rows.withColumns(missing) if missing else rows
