"""Metrics that Airflow's own statistics send, to where its configuration points: StatsD, Datadog or
OpenTelemetry. Every metric is a gauge, so that a task which is cleared counts nothing twice.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.airflow.versions import configuration, send_gauge
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from ledger.store.connection import Database

PREFIX = "ackledger"
_KINDS = ("statsd_on", "statsd_datadog_enabled", "otel_on")  # what [metrics] can turn on
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """One metric.

    ``tags``: names of the tags. For backends without tags, their values in this order end a second
    name. ``sent_by``: the task that sends it.
    """

    name: str
    tags: tuple[str, ...]
    meaning: str
    sent_by: str

    @property
    def full_name(self) -> str:
        """The name under which it is sent, without Airflow's own prefix."""
        return f"{PREFIX}.{self.name}"


_BATCH = "complete"
_LEDGER = "sweep"
ROOTS = Metric(
    "roots",
    ("pipeline", "state"),
    "records of the run's interval: acked, failed, quarantined or pending; those that replays have"
    " recovered are acked",
    _BATCH,
)
ROWS = Metric(
    "rows",
    ("pipeline", "step", "rows"),
    "rows of each step of the run's batch: input, output or failed",
    _BATCH,
)
BATCH_SECONDS = Metric(
    "batch_seconds", ("pipeline",), "from the opening of the run's batch to its settlement", _BATCH
)
SETTLE_SECONDS = Metric(
    "settle_seconds", ("pipeline",), "how long the settlement took that decided a batch", "settle"
)
_BY_PIPELINE = tuple(
    Metric(name, ("pipeline",), meaning, _LEDGER)
    for name, meaning in {
        "open_batches": "batches that are not decided",
        "held_batches": "batches on hold",
        "pending_records": "records of batches that are open or on hold",
        "oldest_pending_seconds": "age of the oldest batch that is open or on hold",
        "age_ratio": "age of the oldest open batch as a share of `max_batch_age`: at 1 it is"
        " decided, whatever runs or waits",
        "failed_records": "records that are failed or being replayed",
        "quarantined_records": "records that are quarantined and not accepted",
        "overdue_batches": "settled batches with a publish, combine, state or notification overdue",
    }.items()
)
METRICS = (ROOTS, ROWS, BATCH_SECONDS, SETTLE_SECONDS, *_BY_PIPELINE)
_STATES = ("acked", "failed", "quarantined", "pending")
_ROWS = ("input", "output", "failed")


def of_batch(database: "Database", batch_id: int) -> None:
    """Send the metrics of a decided batch: its records, rows and seconds."""
    from ledger.batch.outcome.readings import get_batch
    from ledger.batch.outcome.summary import summarize

    with _metrics_enabled() as wanted:
        if not wanted:
            return
        batch = get_batch(database, batch_id)
        interval = summarize(database, batch.original_id).roots
        for state in _STATES:
            _send(ROOTS, getattr(interval, state), batch.pipeline, state)
        for step in summarize(database, batch_id).steps:
            for rows in _ROWS:
                _send(ROWS, step[rows] or 0, batch.pipeline, step["name"], rows)
        if batch.settled_at is not None:
            seconds = (batch.settled_at - batch.opened_at).total_seconds()
            _send(BATCH_SECONDS, seconds, batch.pipeline)


def of_settlement(pipeline: str, seconds: float) -> None:
    """Send the duration of a settlement, in seconds."""
    _send(SETTLE_SECONDS, seconds, pipeline)


def of_ledger(database: "Database", overdue: Sequence[int]) -> None:
    """Send the metrics of each pipeline: open, lost and pending batches and records.

    ``overdue``: the overdue batches that a sweep has found.
    """
    from ledger.batch.outcome.readings import measure

    with _metrics_enabled() as wanted:
        if not wanted:
            return
        for measures in measure(database, overdue):
            for metric in _BY_PIPELINE:
                _send(metric, getattr(measures, metric.name), measures.pipeline)


@contextmanager
def _metrics_enabled() -> Iterator[bool]:
    """Yield whether Airflow sends metrics anywhere; if not, the caller need not query the ledger.
    Errors of the ledger in this block are logged, because the task itself has succeeded.
    """
    try:
        yield any(configuration().getboolean("metrics", kind, fallback=False) for kind in _KINDS)
    except LedgerError as exc:
        _log.warning("no metrics are sent of the ledger: %s", exc)


def _send(metric: Metric, value: float, *values: str) -> None:
    """Send one value with its tags. If Airflow's ``legacy_names_on`` is set, also send it under a
    name that includes the tags, because plain StatsD drops tags. Errors of the backend are logged.
    """
    tags: dict[str, Any] = dict(zip(metric.tags, values, strict=True))
    try:
        send_gauge(metric.full_name, value, tags)
        if configuration().getboolean("metrics", "legacy_names_on", fallback=True):
            send_gauge(".".join([metric.full_name, *values]), value)
    except Exception as exc:
        _log.warning("metric %s is not sent: %s", metric.full_name, exc)
