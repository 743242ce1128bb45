"""OpenLineage's datasets of what steps have read and written. This module is imported when
Airflow's provider asks a task for them, and needs that provider.
"""

from collections.abc import Collection
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
)

from ledger.airflow.datasets import NAMESPACE, dataset
from ledger.batch.outcome.readings import Batch, StepRows, get_batch, rows_of_steps
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.store.connection import Database

SCHEMA = "x-ledger://openlineage/AckledgerRunFacet.json"  # docs/alerting.md has it


@attr.define
class AckledgerRunFacet(RunFacet):  # type: ignore[misc]
    """The batch of a run, and the rows of each of its steps by the schema's names."""

    pipeline: str
    batchId: int  # noqa: N815
    kind: str
    intervalStart: str  # noqa: N815
    intervalEnd: str  # noqa: N815
    steps: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA


def of_steps(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    batch_id: int,
    steps: Collection[str] | None = None,
) -> OperatorLineage[Any, Any]:
    """Return the datasets that steps of a batch have read and written, and the row counts of each
    step as a facet. The lineage is empty if none of the steps has run.

    ``steps``: None is the whole batch, of which only the datasets of sources and sinks count.
    """
    batch = get_batch(database, batch_id)
    rows = rows_of_steps(database, batch_id)
    step_rows = [row for row in rows if steps is None or row.step in steps]
    if not step_rows:
        return OperatorLineage()
    graph, whole = _Datasets(settings, pipeline, batch), steps is None
    facet = AckledgerRunFacet(
        pipeline=batch.pipeline,
        batchId=batch.batch_id,
        kind=batch.kind.value,
        intervalStart=batch.interval_start.isoformat(),
        intervalEnd=batch.interval_end.isoformat(),
        steps=[
            {
                "step": row.step,
                "kind": row.kind,
                "stepRunId": row.step_run_id,
                "rowsIn": row.input_rows,
                "rowsOut": row.output_rows,
                "rowsDropped": row.dropped_rows,
                "rowsFailed": row.failed_rows,
            }
            for row in step_rows
        ],
    )
    return OperatorLineage(
        inputs=[entry for row in step_rows for entry in graph.read_by(row, whole=whole)],
        outputs=[entry for row in step_rows for entry in graph.written_by(row, whole=whole)],
        run_facets={NAMESPACE: facet},
    )


class _Datasets:
    """The datasets of a batch: of its sources and sinks, and one for each step between them."""

    def __init__(self, settings: Settings, pipeline: Pipeline, batch: Batch):
        self._settings, self._pipeline = settings, pipeline
        self._reads = {step.name: step.reads for step in batch.topology}

    def read_by(self, row: StepRows, *, whole: bool) -> list[InputDataset]:
        """Return the dataset that a source has read, or those of the steps that another step reads.
        ``whole``: one driver ran all steps, so only sources have read any.
        """
        if row.path is not None:
            return [_input(*dataset(row.path), row.input_rows)]
        if whole:
            return []
        reads = self._reads[row.step]
        rows = row.input_rows if len(reads) == 1 else None  # which of them had how many is not kept
        return [_input(NAMESPACE, self._between(name), rows) for name in reads]

    def written_by(self, row: StepRows, *, whole: bool) -> list[OutputDataset]:
        """Return the place to which a sink has written, or the dataset of another step.
        ``whole``: one driver ran all steps, so only sinks have written any.
        """
        step = next((sink for sink in self._pipeline.sinks() if sink.name == row.step), None)
        if step is not None:
            located = getattr(step.sink, "location", None)
            place = step.sink.place if located is None else located(self._settings)
            return [_output(*dataset(place), row.output_rows)]
        return [] if whole else [_output(NAMESPACE, self._between(row.step), row.output_rows)]

    def _between(self, step: str) -> str:
        return f"{self._pipeline.name}.{step}"


def _input(namespace: str, name: str, rows: int | None) -> InputDataset:
    statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
    return InputDataset(
        namespace, name, inputFacets={} if rows is None else {"inputStatistics": statistics}
    )


def _output(namespace: str, name: str, rows: int | None) -> OutputDataset:
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(
        namespace, name, outputFacets={} if rows is None else {"outputStatistics": statistics}
    )
