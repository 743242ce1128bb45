"""The sensor and the gate of downstream DAGs, which wait until a pipeline has processed an interval
completely, or stop if too much of it is lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, BaseOperator, BaseSensorOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from ledger.airflow.hooks import LedgerHook, settings_of
from ledger.airflow.intervals import instant, intervals_over
from ledger.airflow.tasks import connected, connected_by, fail_permanently, without_retry
from ledger.airflow.versions import HAS_PARTITIONS
from ledger.core.run_request import Interval
from ledger.errors import DeclarationError, InputError, LedgerError
from ledger.settings import Settings

COMPLETED = AssetAlias("ledger_completed")  # outlet of tasks that may complete an interval
_PARTITION = "%Y-%m-%dT%H:%M:%S"  # what Airflow's mappers of dates read by default
_START = "{{ data_interval_start | default('', true) }}"
_END = "{{ data_interval_end | default('', true) }}"
_log = logging.getLogger(__name__)


def interval_complete(pipeline: str) -> Asset:
    """Return the asset with an event for each interval that a pipeline completes: a DAG with
    ``schedule=interval_complete("orders")`` starts then. The event's ``extra`` has batch,
    interval_start and interval_end. An interval may have several events.
    """
    return Asset(f"x-ledger://complete/{pipeline}")


def interval_partitions(pipeline: str) -> Asset:
    """Return the asset with a partition for each interval that a pipeline completes: for a DAG with
    ``PartitionedAssetTimetable``, which can wait until all days of a month are complete. The key is
    the start of an interval of the pipeline's schedule in UTC, ``2013-01-31T00:00:00``. Raises
    DeclarationError before Airflow 3.3.1.
    """
    if not HAS_PARTITIONS:
        raise DeclarationError(
            "interval_partitions: expected Airflow 3.3.1 or later, whose DAGs can wait for the"
            " partitions of an asset: use interval_complete, or update Airflow"
        )
    return Asset(f"x-ledger://partitions/{pipeline}")


class LedgerCompleteSensor(BaseSensorOperator):
    """Waits until an interval of ``pipeline`` is complete, not merely finished: every record is
    processed to every sink and published, but for those that are accepted or tolerated.

    ``conn_id``: the connection of the ledger; default: the settings of the environment.
    ``interval_start``, ``interval_end``: ISO dates, by default the run's own data interval; one
    batch or many have to cover it. ``deferrable`` (default): waits in Airflow's triggerer, without
    a worker's slot.
    """

    template_fields = ("pipeline", "interval_start", "interval_end")

    def __init__(
        self,
        *,
        pipeline: str,
        interval_start: str = _START,
        interval_end: str = _END,
        deferrable: bool = True,
        conn_id: str | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self.pipeline, self.conn_id = pipeline, conn_id
        self.interval_start, self.interval_end = interval_start, interval_end
        self.deferrable = deferrable

    def execute(self, context: Any) -> None:
        """Poll in this task, or defer to the triggerer."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            interval = _interval(self.interval_start, self.interval_end)
            trigger = IntervalComplete(
                self.pipeline,
                interval.start.isoformat(),
                interval.end.isoformat(),
                self.poke_interval,
                self.conn_id,
            )
            left = timedelta(seconds=self.timeout)
            self.defer(trigger=trigger, method_name="completed", timeout=left)

    def poke(self, context: Any) -> bool:
        """Return whether the interval is complete by now; log what it waits for."""
        interval = _interval(self.interval_start, self.interval_end)
        try:
            lack = _waits_for(settings_of(self.conn_id), self.pipeline, interval)
        except LedgerError as exc:
            lack = _passing(exc)
        if lack is not None:
            self.log.info("pipeline %s: %s", self.pipeline, lack)
        return lack is None

    def completed(self, context: Any, event: Any) -> None:
        """Log that the interval is complete. Airflow calls this when the trigger has fired."""
        self.log.info("%s to %s is complete", self.interval_start, self.interval_end)


class IntervalComplete(BaseTrigger):
    """Asks the ledger every ``poll_seconds`` until an interval is complete; logs what it waits for
    when that changes.
    """

    def __init__(
        self,
        pipeline: str,
        interval_start: str,
        interval_end: str,
        poll_seconds: float,
        conn_id: str | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = {
            "pipeline": pipeline,
            "interval_start": interval_start,
            "interval_end": interval_end,
            "poll_seconds": poll_seconds,
            "conn_id": conn_id,
        }
        interval = _interval(interval_start, interval_end)
        self._asked = (pipeline, interval)
        self._poll_seconds, self._conn_id = poll_seconds, conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class and arguments, for the triggerer."""
        return f"{__name__}.IntervalComplete", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, once the interval is complete."""
        previous = None
        while (lack := await self._lack()) is not None:
            if lack != previous:
                self.log.info("pipeline %s: %s", self._asked[0], lack)
            previous = lack
            await asyncio.sleep(self._poll_seconds)
        yield TriggerEvent({"complete": True})  # type: ignore[no-untyped-call]

    async def _lack(self) -> str | None:
        """Return what the interval waits for, None if it is complete."""
        hook = None if self._conn_id is None else LedgerHook(self._conn_id)
        try:
            settings = Settings() if hook is None else await hook.asettings()
            return await asyncio.to_thread(_waits_for, settings, *self._asked)
        except LedgerError as exc:
            return _passing(exc)


class LedgerGate(BaseOperator):
    """Fails, without a retry, unless an interval of ``pipeline`` is decided and at most
    ``max_lost_ratio`` (0 to 1) of its records are failed or quarantined. It keeps downstream tasks
    from running on too few records. ``conn_id``: as of ``LedgerCompleteSensor``.
    """

    template_fields = ("pipeline", "interval_start", "interval_end")

    def __init__(
        self,
        *,
        pipeline: str,
        max_lost_ratio: float,
        interval_start: str = _START,
        interval_end: str = _END,
        conn_id: str | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        if not 0 <= max_lost_ratio <= 1:
            raise InputError(f"max_lost_ratio={max_lost_ratio}: expected 0 to 1")
        self.pipeline, self.max_lost_ratio = pipeline, max_lost_ratio
        self.interval_start, self.interval_end = interval_start, interval_end
        self.conn_id = conn_id
        without_retry(self)

    def execute(self, context: Any) -> dict[str, int]:
        """Return the numbers of records and of lost records. Fails the task if the interval is not
        decided, or too many records are lost.
        """
        from ledger.batch.outcome.completeness import losses

        interval = _interval(self.interval_start, self.interval_end)
        summary = losses(connected(self.conn_id), self.pipeline, interval)
        if summary.undecided is not None:
            fail_permanently(f"pipeline {self.pipeline} is not ready: {summary.undecided}")
        if summary.lost_ratio > self.max_lost_ratio:
            fail_permanently(
                f"{summary.lost:,} of {summary.records:,} records of {self.pipeline} are failed or"
                f" quarantined ({summary.lost_ratio:.2%}): expected at most"
                f" {self.max_lost_ratio:.2%}. Batches: {', '.join(map(str, summary.batch_ids))}"
            )
        return {"records": summary.records, "lost": summary.lost}


def announce(
    batch_id: int,
    outlet_events: Any,
    conn_id: str | None = None,
    partitions: Asset | None = None,
    schedule: str | None = None,
) -> bool:
    """Add an event to the asset of a batch's pipeline if the batch's interval is complete now.
    Errors of the ledger are logged, because the task itself has succeeded.

    ``partitions``: an outlet of the task, whose event gets a partition for each complete interval
    that the batch overlaps.
    ``schedule``: the schedule of these intervals; None: the batch's own interval is the only one.

    Return whether each asset has an event. A task that succeeds with an outlet that has none
    publishes an event without a partition.
    """
    from ledger.batch.outcome.completeness import waits_for
    from ledger.batch.outcome.readings import get_batch

    try:
        database = connected(conn_id)
        batch = get_batch(database, batch_id)
        interval = Interval(batch.interval_start, batch.interval_end)
        lack = waits_for(database, batch.pipeline, interval)
        if lack is not None:
            _log.info("no event of a complete interval: %s", lack)
            return False
        keys = [] if partitions is None else _keys(database, batch.pipeline, interval, schedule)
    except LedgerError as exc:
        _log.error("no event of a complete interval, for the ledger did not answer: %s", exc)
        return False
    asset = interval_complete(batch.pipeline)
    start, end = interval.start.isoformat(), interval.end.isoformat()
    bounds = {"interval_start": start, "interval_end": end}
    extra = {"batch": batch_id, **bounds}
    outlet_events[COMPLETED].add(asset, extra=extra)
    if partitions is None:
        return True
    if not keys:
        return False
    event = outlet_events[partitions]
    event.extra = extra
    event.add_partitions(keys)
    return True


def _keys(database: Any, pipeline: str, interval: Interval, schedule: str | None) -> list[str]:
    """Return the partitions of a complete interval: the start, in UTC, of each complete interval of
    ``schedule`` that overlaps it, or its own if there is no schedule.
    """
    from ledger.batch.outcome.completeness import waits_for

    bounds = [(interval.start, interval.end)]
    if schedule is not None:
        bounds = list(intervals_over(schedule, interval.start, interval.end))
    return [
        start.astimezone(UTC).strftime(_PARTITION)
        for start, end in bounds
        if (interval.start <= start and end <= interval.end)
        or waits_for(database, pipeline, Interval(start, end)) is None
    ]


def _interval(start: str | datetime, end: str | datetime) -> Interval:
    if not start or not end or str(start) == str(end):
        raise InputError(
            "this run has no data interval: give interval_start and interval_end, or the DAG a"
            ' schedule with intervals, CronDataIntervalTimetable("@daily", timezone="UTC")'
        )
    return Interval(instant(str(start)), instant(str(end)))


def _passing(exc: LedgerError) -> str:
    """Return the text of an error that may pass, as the reason to wait. Raises any other error."""
    if exc.permanent:
        raise exc
    return str(exc)


def _waits_for(settings: Settings, pipeline: str, interval: Interval) -> str | None:
    """Return why an interval is not complete; None if it is complete."""
    from ledger.batch.outcome.completeness import waits_for

    database = connected_by(settings)
    try:
        return waits_for(database, pipeline, interval)
    finally:
        database.dispose()
