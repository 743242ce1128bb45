"""The interval that a run of a DAG reads."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ledger.errors import InputError

# Types of runs with a date that a person, or another DAG, has chosen. Airflow gives them the data
# interval before that date.
_DATED = ("manual", "operator_triggered")
_Bounds = tuple[datetime, datetime]
_EXAMPLE = '{"interval_start": "2013-01-01", "interval_end": "2013-02-01"}'


def interval_of(
    conf: dict[str, Any], run: Any, schedule: str | None, now: datetime | None = None
) -> _Bounds:
    """Return the start and the exclusive end of the interval that a DAG run reads: of its conf, the
    interval of ``schedule`` that contains the date of a run by hand, or the run's data interval.

    ``now``: an interval that ends later is read only if the conf names it (default: the clock).
    Raises InputError, which names the conf to pass, if the run names no interval.
    """
    start, end = conf.get("interval_start"), conf.get("interval_end")
    if start and end:
        return instant(start), instant(end)
    if start or end:
        raise InputError(
            "the run's conf has only one of interval_start and interval_end: expected both, or"
            " neither"
        )
    if run.run_type.value not in _DATED:
        if run.data_interval_start is None or run.data_interval_end is None:
            raise InputError(
                f"this run has no data interval: trigger it with a date, or with conf {_EXAMPLE}"
            )
        return run.data_interval_start, run.data_interval_end
    if schedule is None:
        raise InputError(
            "this run has no data interval, for its DAG has no schedule: trigger it with conf "
            f"{_EXAMPLE}"
        )
    now = now or datetime.now(UTC)
    ended, _ = _around(schedule, now)
    if run.logical_date is None:
        raise InputError(
            "this run has no data interval: trigger it with a logical date that lies in one, or "
            f"with conf, for the last one that has ended {_conf(ended)}"
        )
    _, interval = _around(schedule, run.logical_date)
    if interval[1] > now:
        raise InputError(
            f"the run's logical date {run.logical_date.isoformat()} lies in an interval that has"
            f" not ended: {interval[0].isoformat()} to {interval[1].isoformat()}. Trigger it with"
            f" an earlier date, or with conf, for the last one that has ended {_conf(ended)}, for"
            f" this one as far as it is there {_conf(interval)}"
        )
    return interval


def _around(schedule: str, at: datetime) -> tuple[_Bounds, _Bounds]:
    """Return two intervals of a schedule: the last one that ended by ``at``, and the one that
    contains ``at``.
    """
    from airflow.sdk.timezone import coerce_datetime

    timetable = _timetable(schedule)
    ended = timetable.infer_manual_data_interval(run_after=coerce_datetime(at.astimezone(UTC)))
    current = _following(timetable, ended)
    return (ended.start, ended.end), (current.start, current.end)


def intervals_over(schedule: str, start: datetime, end: datetime) -> Iterator[_Bounds]:
    """Yield the intervals of a schedule that overlap a span, in order. ``end`` is exclusive."""
    from airflow.sdk.timezone import coerce_datetime

    timetable = _timetable(schedule)
    current = timetable.infer_manual_data_interval(run_after=coerce_datetime(start.astimezone(UTC)))
    while (current := _following(timetable, current)).start < end:
        yield current.start, current.end


def _timetable(schedule: str) -> Any:
    from airflow.timetables.interval import CronDataIntervalTimetable

    return CronDataIntervalTimetable(schedule, timezone="UTC")


def _following(timetable: Any, interval: Any) -> Any:
    """Return the interval of a timetable after another one."""
    from airflow.timetables.base import TimeRestriction

    following = timetable.next_dagrun_info(
        last_automated_data_interval=interval, restriction=TimeRestriction(None, None, catchup=True)
    )
    assert following is not None
    return following.data_interval


def _conf(interval: _Bounds) -> str:
    start, end = (instant.isoformat() for instant in interval)
    return f'{{"interval_start": "{start}", "interval_end": "{end}"}}'


def instant(value: str) -> datetime:
    """Parse an instant. Raises InputError unless it is an ISO date."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as exc:
        raise InputError(f"{value!r} is no ISO date: expected for example 2013-01-01") from exc
