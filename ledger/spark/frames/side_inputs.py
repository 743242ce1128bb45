"""Keyword arguments of a function of frames: references, and the parameters of the run."""

from inspect import signature
from typing import Any

from ledger.pipeline.steps import CombineStep, StageStep, StateStep
from ledger.pipeline.steps.base import PARAMS
from ledger.sources.references import read_reference
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch


def side_inputs(
    job: Job, batch: Batch, step: CombineStep | StageStep | StateStep
) -> dict[str, Any]:
    """Return what the step's function asks for beside its inputs, by the name of its parameter."""
    arguments: dict[str, Any] = {
        name: read_reference(job.spark, job.settings, batch, name, source)
        for name, source in job.pipeline.references(step).items()
    }
    if step.function is not None and PARAMS in signature(step.function).parameters:
        arguments[PARAMS] = dict(batch.params)
    return arguments
