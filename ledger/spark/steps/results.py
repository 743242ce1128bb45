"""Results of a combine or a state for a whole batch: stored as a run's output, and staged by the
sinks that read it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from ledger.batch.step_runs import OpenedRun
from ledger.pipeline.steps import SinkStep, Step
from ledger.spark.frames.inputs import user_columns
from ledger.spark.frames.placing import counting_misplaced, require_placed
from ledger.spark.frames.staging import require_unique_keys, stage_rows
from ledger.spark.job import STORED, Job, Witness, require_equal, write_files
from ledger.spark.steps.stage import check_frame
from ledger.storage.manifest import Manifest, take_manifest
from ledger.types.spark_arrow import to_arrow_schema


def result_of(
    step: Step,
    function: Callable[..., Any],
    frames: Sequence[DataFrame | None],
    arguments: Mapping[str, Any],
) -> DataFrame:
    """Call the function of a combine or a state. Raises StageError if it returns no frame."""
    rows = function(*frames, **arguments)
    check_frame(step, rows)
    assert isinstance(rows, DataFrame)
    return rows


def store_result(job: Job, run: OpenedRun, rows: DataFrame) -> Manifest:
    """Write the user's columns of the rows as the run's own files."""
    wrote, folder = Witness(), job.folder(run)
    write_files(wrote.watch(rows.select(*user_columns(rows))), folder, STORED)
    manifest = take_manifest(folder)
    require_equal(f"rows of {run.step} in {folder}", wrote.rows, manifest.rows)
    return manifest


def stage_result(job: Job, run: OpenedRun, step: SinkStep, rows: DataFrame) -> Manifest:
    """Stage the rows as a sink is to publish them, all of them. Raises StageError if its place does
    not take their columns, or one of the rows, or if two have a key of it.
    """
    publisher = job.publisher(step)
    publisher.check(to_arrow_schema(rows.schema))
    require_unique_keys(step, rows)
    wrote = Witness(counting=counting_misplaced(step))
    folder = publisher.staging(run.batch.batch_id, run.run_id)
    manifest = stage_rows(rows, step, folder, wrote)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    require_placed(wrote, rows, step)
    return manifest
