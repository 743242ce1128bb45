"""Units: the records that a replay downstream of a whole stage takes together, and whose rows it
replaces.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import ERROR, UNIT
from ledger.core.states import BatchKind
from ledger.errors import InputError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep, SourceStep
from ledger.spark.frames.acked import (
    NOTHING_WITHHELD,
    Withheld,
    emitted_in_units,
    emitted_units,
    latest_rows,
    not_acked,
    withheld,
)
from ledger.spark.frames.anchors import carries_unit
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.job import Job
from ledger.store.queries import checkpoints, dedup
from ledger.store.queries.dedup import EarlierDelivery

STATE = "_ackledger_state"


def with_unit(pipeline: Pipeline, step: SourceStep, records: DataFrame) -> DataFrame:
    """Records with the number of their unit, where the pipeline has units: equal columns, equal
    number; null of what did not parse, which is of no unit. A stored record keeps the one it has.
    """
    if not carries_unit(pipeline, step.name):
        return records
    columns = pipeline.graph.unit or ()
    for name in columns:
        if name not in records.columns:
            raise InputError(
                f"source {step.name!r} has no column {name!r}, which makes its"
                f" unit{suggestion(name, user_columns(records))}"
            )
    # As text, so that 1 of an INT and 1 of a BIGINT are equal; as JSON, so that no two texts run
    # together.
    texts = F.struct(*(F.col(f"`{name}`").cast("string").alias(name) for name in columns))
    number = F.xxhash64(F.to_json(texts, {"ignoreNullFields": "false"}))
    unit = F.when(F.col(ERROR).isNull(), number)
    return records.withColumn(UNIT, F.coalesce(UNIT, unit) if UNIT in records.columns else unit)


def included(job: Job, original_id: int) -> DataFrame | None:
    """The units, ``UNIT``, of which a state over batches takes the rows from the settled batches of
    a family, each with the name of one, ``STATE``; None if there are none.
    """
    states = [step.name for step in job.pipeline.states() if carries_unit(job.pipeline, step.name)]
    included_in = job.database.transact(lambda c: checkpoints.of_family(c, original_id, states))
    if not included_in:
        return None
    units = (
        not_acked(job, batch_id, state)
        .keep_units(emitted_units(job, batch_id))
        .select(UNIT, F.lit(state).alias(STATE))
        for batch_id, state in included_in
    )
    return reduce(DataFrame.unionByName, units).groupBy(UNIT).agg(F.min(STATE).alias(STATE))


class Replacement:
    """Rows of earlier batches that a sink in units delivers again in a replay, beside the replay's
    own. The replay's delivery replaces those of the earlier ``batches``.

    The rows of a unit are those of the latest batch that delivered it. A replay of the whole batch
    replaces everything; a replay of some units carries the others over, from the kept inputs of the
    earlier deliveries.

    With ``exactly_once``, units that failed were never published, so a replay has nothing to
    replace. An exception is a unit that was published without a quarantined record, and that the
    replay takes again.
    """

    def __init__(self, job: Job, run: OpenedRun, step: SinkStep):
        self._job, self._run, self._step = job, run, step
        replay = run.batch.kind is BatchKind.REPLAY and job.pipeline.graph.in_units(step.name)
        # A replay of records of other sources replaces nothing.
        applies = replay and emitted_in_units(job, run.batch.batch_id) > 0
        self._earlier = self._deliveries() if applies else []

    @property
    def batches(self) -> list[int]:
        """Earlier batches of the family, whose rows this one delivers again."""
        return [row.batch_id for row, _ in self._earlier]

    def carried(self, own: Withheld = NOTHING_WITHHELD) -> DataFrame | None:
        """The rows of other units that earlier batches delivered; None if there are none.

        ``own``: what is withheld of the batch itself, once it is settled. Units that failed again,
        in it or in one before, were not delivered: what was published of them stays.
        """
        if not self._earlier or not carries_unit(self._job.pipeline, self._step.name):
            return None
        deliveries = (
            (
                hidden.keep(delivered_rows(self._job, self._job.run(row.input_run_id))),
                hidden.keep_units(emitted_units(self._job, row.batch_id)),
            )
            for row, hidden in reversed(self._earlier)
        )
        units = own.keep_units(emitted_units(self._job, self._run.batch.batch_id))
        return latest_rows(deliveries, self._step.name, units.distinct())

    def _deliveries(self) -> list[tuple[EarlierDelivery, Withheld]]:
        """Earlier deliveries of the family, each with what was withheld of it."""
        batch, sink = self._run.batch, self._step.name
        deliveries = self._job.database.transact(
            lambda c: dedup.family_deliveries(c, sink, batch.batch_id, batch.original_id)
        )
        earlier = [
            (row, withheld(self._job, row.batch_id, sink))
            for row in deliveries
            if row.step_run_id < self._run.run_id
        ]
        if batch.exactly_once and not any(
            self._overlaps(row.batch_id, hidden) for row, hidden in earlier
        ):
            return []
        return earlier

    def _overlaps(self, batch_id: int, hidden: Withheld) -> bool:
        """Whether a sink has published of an earlier batch a unit that this one delivers."""
        if hidden.everything or not carries_unit(self._job.pipeline, self._step.name):
            return not hidden.everything
        published = hidden.keep(emitted_units(self._job, batch_id).distinct())
        own = emitted_units(self._job, self._run.batch.batch_id)
        return not published.join(own, UNIT, "left_semi").isEmpty()
