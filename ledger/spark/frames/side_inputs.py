"""Keyword arguments of a function of frames: references, and the parameters of the run."""

from inspect import signature
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR
from ledger.core.run_request import Interval
from ledger.pipeline.steps import CombineStep, StageStep, StateStep
from ledger.pipeline.steps.base import PARAMS
from ledger.sources.base import Claim
from ledger.sources.parsing.typed import with_quotes
from ledger.sources.references import Reference
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch


def side_inputs(
    job: Job, batch: Batch, step: CombineStep | StageStep | StateStep
) -> dict[str, Any]:
    """Return what the step's function asks for beside its inputs, by the name of its parameter.
    Raises InputError for a reference without rows that must have some."""
    arguments: dict[str, Any] = {
        name: _read(job, batch, name, reference)
        for name, reference in job.pipeline.references(step).items()
    }
    if step.function is not None and PARAMS in signature(step.function).parameters:
        arguments[PARAMS] = dict(batch.params)
    return arguments


def _read(job: Job, batch: Batch, name: str, reference: Reference) -> DataFrame:
    """Read a side input. A record that does not parse fails the stage that reads it, without its
    text: every reader of the ledger sees the failure."""
    interval = Interval(batch.interval_start, batch.interval_end, batch.params)
    source = reference.source
    reader = source.reader(job.spark)
    records = with_quotes(reader.records(Claim(name, source.path(job.settings, interval))))
    if not reference.allow_empty and records.isEmpty():
        raise reference.no_rows(name)
    message = F.concat(F.lit(f"reference {name!r} ({source.place}): "), ERROR)
    parsed = F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(
        F.raise_error(message).cast("boolean")
    )
    return records.where(parsed).select(*(f"`{column}`" for column in reader.schema.names))
