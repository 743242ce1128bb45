"""Keyword arguments of a function of frames: references, and the parameters of the run."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR
from ledger.core.run_request import Interval
from ledger.pipeline.steps import CombineStep, StageStep, StateStep
from ledger.pipeline.steps.base import PARAMS
from ledger.settings import Settings
from ledger.sources.base import Claim
from ledger.sources.references import Reference
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch

WithFunction = CombineStep | StageStep | StateStep


def side_inputs(job: Job, batch: Batch, step: WithFunction) -> dict[str, Any]:
    """Return the keyword arguments of the step's function: references, and the run's parameters.
    Raises InputError for an empty reference that must have rows.
    """
    references = {
        name: read_reference(job.spark, job.settings, batch.interval, name, reference)
        for name, reference in job.pipeline.references(step).items()
    }
    return keyword_arguments(step, references, batch.params)


def keyword_arguments(
    step: WithFunction, references: Mapping[str, DataFrame], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return these references and, if the step's function asks for them, the run's parameters."""
    return {**references, **({PARAMS: dict(params)} if asks_for_params(step) else {})}


def asks_for_params(step: WithFunction) -> bool:
    """Return whether the step's function has a keyword-only parameter ``params``."""
    if step.function is None:
        return False
    asked = signature(step.function).parameters.get(PARAMS)
    return asked is not None and asked.kind is Parameter.KEYWORD_ONLY


def read_reference(
    spark: SparkSession, settings: Settings, interval: Interval, name: str, reference: Reference
) -> DataFrame:
    """Read a side input. A record that does not parse fails the stage that reads it, without its
    text: every reader of the ledger sees the failure. Raises InputError if it has no rows and must
    have some."""
    source = reference.source
    reference.require_rows(name, settings, interval)
    reader = source.reader(spark)
    claim = Claim(name, source.path(settings, interval))
    reader.describe(claim)
    records = reader.records(claim)
    reader.null_columns()
    if not reference.allow_empty and records.isEmpty():
        raise reference.no_rows(name)
    message = F.concat(F.lit(f"reference {name!r} ({source.place}): "), ERROR)
    parsed = F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(
        F.raise_error(message).cast("boolean")
    )
    return records.where(parsed).select(*(f"`{column}`" for column in reader.schema.names))
