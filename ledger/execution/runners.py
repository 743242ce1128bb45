"""Table of the functions with which a driver runs each kind of step."""

from collections.abc import Callable
from typing import Any

from ledger.batch.step_runs import OpenedRun, Record
from ledger.pipeline.steps import CombineStep, SinkStep, SourceStep, StageStep, Step
from ledger.spark.job import Job
from ledger.spark.steps.combine import run_combine, run_combined_sink
from ledger.spark.steps.sink import run_sink
from ledger.spark.steps.source import run_source
from ledger.spark.steps.stage import run_stage


def _run_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    after = job.pipeline.graph.follows(step.name)
    return run_combined_sink(job, run, step) if after else run_sink(job, run, step)


# States run in the order of the batches instead, by ``ledger.execution.states``.
RUNNERS: dict[type[Step], Callable[[Job, OpenedRun, Any], Record]] = {
    SourceStep: run_source,
    StageStep: run_stage,
    SinkStep: _run_sink,
    CombineStep: run_combine,
}
