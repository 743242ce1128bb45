"""Interval that a run reads: the one in its conf, the one that its date is in, or its data
interval.
"""

from datetime import UTC, datetime
from typing import Any

from ledger.errors import InputError

# Runs whose date a person, or another DAG, has chosen. Airflow gives them the interval before it.
_DATED = ("manual", "operator_triggered")
_EXAMPLE = '{"interval_start": "2013-01-01", "interval_end": "2013-02-01"}'


def interval_of(
    conf: dict[str, Any], run: Any, schedule: str | None, now: datetime | None = None
) -> tuple[datetime, datetime]:
    """Start, and end, exclusive, of what a DAG run reads. A run id's date is never looked at.

    ``now``: what has not ended by then (default: the clock) is not read unless the conf names it.
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
    if run.run_type.value in _DATED:
        return _dated(run.logical_date, schedule, now or datetime.now(UTC))
    if run.data_interval_start is None or run.data_interval_end is None:
        raise InputError(
            f"this run has no data interval: trigger it with a date, or with conf {_EXAMPLE}"
        )
    return run.data_interval_start, run.data_interval_end


def _dated(date: datetime | None, schedule: str | None, now: datetime) -> tuple[datetime, datetime]:
    """The interval of the schedule that the date lies in: 2013-01-01 of a monthly DAG is
    January.
    """
    if schedule is None:
        raise InputError(
            "this run has no data interval, for its DAG has no schedule: trigger it with conf "
            f"{_EXAMPLE}"
        )
    ended, _ = _around(schedule, now)
    if date is None:
        raise InputError(
            "this run has no data interval: trigger it with a logical date that lies in one, or "
            f"with conf, for the last one that has ended {_conf(ended)}"
        )
    _, interval = _around(schedule, date)
    if interval[1] > now:
        raise InputError(
            f"the run's logical date {date.isoformat()} lies in an interval that has not ended: "
            f"{interval[0].isoformat()} to {interval[1].isoformat()}. Trigger it with an earlier "
            f"date, or with conf, for the last one that has ended {_conf(ended)}, for this one as"
            f" far as it is there {_conf(interval)}"
        )
    return interval


Interval = tuple[datetime, datetime]


def _around(schedule: str, at: datetime) -> tuple[Interval, Interval]:
    """The last interval that has ended at a time, and the one that the time lies in."""
    from airflow.sdk.timezone import coerce_datetime
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    ended = timetable.infer_manual_data_interval(run_after=coerce_datetime(at.astimezone(UTC)))
    following = timetable.next_dagrun_info(
        last_automated_data_interval=ended, restriction=TimeRestriction(None, None, catchup=True)
    )
    assert following is not None
    current = following.data_interval
    assert current is not None
    return (ended.start, ended.end), (current.start, current.end)


def _conf(interval: Interval) -> str:
    start, end = (instant.isoformat() for instant in interval)
    return f'{{"interval_start": "{start}", "interval_end": "{end}"}}'


def instant(value: str) -> datetime:
    """An instant from its text. Raises InputError unless it is an ISO date."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as exc:
        raise InputError(f"{value!r} is no ISO date: expected for example 2013-01-01") from exc
