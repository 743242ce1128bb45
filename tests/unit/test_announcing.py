"""The assets that get an event when a batch is complete, and the partitions of such an event."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset

from ledger.airflow import sensors
from ledger.airflow.intervals import intervals_over
from ledger.airflow.sensors import COMPLETED, announce
from ledger.batch.outcome import completeness, readings
from ledger.errors import UnavailableError

DAYS = Asset("days")
START = datetime(2013, 1, 1, tzinfo=UTC)


def at(hours):
    """So many hours after the first of January."""
    return START + timedelta(hours=hours)


@pytest.fixture
def announced(monkeypatch):
    """Announces a batch over some hours, and returns the answer, the number of events of complete
    intervals, and the partitions. ``lacks``: hours in which something is not complete.
    """

    def announced(start, end, schedule=None, lacks=(), partitions=DAYS):
        batch = SimpleNamespace(pipeline="p", interval_start=at(start), interval_end=at(end))

        def waits_for(database, pipeline, interval):
            lack = [hour for hour in lacks if interval.start <= at(hour) < interval.end]
            return f"hour {lack[0]} is missing" if lack else None

        monkeypatch.setattr(sensors, "connected", lambda conn_id: None)
        monkeypatch.setattr(readings, "get_batch", lambda database, number: batch)
        monkeypatch.setattr(completeness, "waits_for", waits_for)
        complete, keys = [], []
        outlets = {
            COMPLETED: SimpleNamespace(add=lambda asset, extra: complete.append(asset)),
            DAYS: SimpleNamespace(extra=None, add_partitions=keys.extend),
        }
        answer = announce(1, outlets, None, partitions, schedule)
        return answer, len(complete), keys

    return announced


def test_a_batch_is_one_partition(announced):
    """Its interval, if the DAG has no schedule, or this is one of the schedule's."""
    first = "2013-01-01T00:00:00"
    assert announced(0, 24) == announced(0, 24, "@daily") == (True, 1, [first])
    assert announced(0, 48) == (True, 1, [first])
    assert announced(0, 24, partitions=None) == (True, 1, [])


def test_a_batch_over_several_intervals_completes_each(announced):
    """A backfill over a week, or a run whose conf names an interval, has such a span."""
    three = [f"2013-01-0{day}T00:00:00" for day in (1, 2, 3)]
    assert announced(0, 72, "@daily") == (True, 1, three)
    assert announced(0, 2, "@hourly")[2] == ["2013-01-01T00:00:00", "2013-01-01T01:00:00"]


def test_an_interval_in_part_is_announced_once_others_complete_it(announced):
    """Until then no partition is; what is whole within the batch is in any case."""
    assert announced(0, 12, "@daily", lacks=[13]) == (False, 1, [])
    assert announced(12, 24, "@daily") == (True, 1, ["2013-01-01T00:00:00"])
    assert announced(12, 60, "@daily", lacks=[1, 70]) == (True, 1, ["2013-01-02T00:00:00"])


def test_nothing_is_announced_of_what_is_not_complete(announced, monkeypatch):
    """Nor if the ledger does not answer."""
    assert announced(0, 24, "@daily", lacks=[3]) == (False, 0, [])

    def away(conn_id):
        raise UnavailableError("no answer")

    monkeypatch.setattr(sensors, "connected", away)
    assert announce(1, {}) is False


def test_the_intervals_over_a_span():
    """A span has the intervals that it overlaps, in order; an empty one at a border has none."""
    starts = [start for start, _ in intervals_over("@daily", at(23), at(25))]
    assert starts == [at(0), at(24)]
    assert list(intervals_over("0 6 * * *", at(6), at(30))) == [(at(6), at(30))]
    assert list(intervals_over("@daily", at(24), at(24))) == []
