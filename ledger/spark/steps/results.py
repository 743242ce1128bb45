"""Results of a combine or a state for a whole batch: stored as a run's output, and staged by the
sinks that read it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame

from ledger.batch.publishing import delivery_of
from ledger.batch.step_runs import OpenedRun
from ledger.pipeline.steps import SinkStep, Step
from ledger.spark.frames.inputs import user_columns
from ledger.spark.frames.misplaced import counting_misplaced, misplaced_rows
from ledger.spark.frames.refused import find_refused, plan_of
from ledger.spark.frames.staging import require_unique_keys, stage_rows
from ledger.spark.job import STORED, Job, Witness, require_equal, write_files
from ledger.spark.steps.stage import check_frame
from ledger.storage.manifest import Manifest, take_manifest
from ledger.store.queries import publications


def result_of(
    step: Step,
    function: Callable[..., Any],
    frames: Sequence[DataFrame | None],
    arguments: Mapping[str, Any],
) -> DataFrame:
    """Call the function of a combine or a state, and return its result. Raises StageError if it is
    not a frame.
    """
    rows = function(*frames, **arguments)
    check_frame(step, rows)
    assert isinstance(rows, DataFrame)
    return rows


def store_result(job: Job, run: OpenedRun, rows: DataFrame) -> Manifest:
    """Write the user's columns of the rows to the run's own files."""
    wrote, folder = Witness(), job.folder(run)
    write_files(wrote.watch(rows.select(*user_columns(rows))), folder, STORED)
    manifest = take_manifest(folder)
    require_equal(f"rows of {run.step} in {folder}", wrote.rows, manifest.rows)
    return manifest


def stage_result(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    rows: DataFrame,
    of: Literal["family", "pipeline"],
) -> Manifest:
    """Stage all rows of a result for a sink.

    ``of``: ``family`` or ``pipeline``, whose earlier result these rows replace.

    Raises StageError if the sink does not take the columns or one of the rows, or if two rows have
    the same key.
    """
    publisher = job.publisher(step)
    plan_of(step, publisher, rows)
    require_unique_keys(step, rows)
    wrote = Witness(counting=counting_misplaced(step))
    folder = publisher.staging(run.batch.batch_id, run.run_id)
    manifest = stage_rows(rows, step, folder, wrote)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    delivery = job.database.transact(
        lambda c: delivery_of(
            c,
            publisher,
            run.batch,
            step.name,
            run.run_id,
            manifest.files,
            publications.replaced_results(c, run.run_id, of),
        )
    )
    plan, misplaced = plan_of(step, publisher, rows, delivery), misplaced_rows(wrote, rows, step)
    find_refused(job, run, step, plan, delivery, rows.schema, misplaced)
    return manifest
