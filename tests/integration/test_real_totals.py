"""Exactly once over the real flights: joins, totals by unit and combines against an oracle in
plain Python.
"""

import csv
from collections import Counter

import pytest
from pyspark.sql import functions as F

from jobs.flights import FLIGHT, PLANE
from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.states import BatchStatus
from ledger.errors import LedgerError
from ledger.execution import combine
from tests.support.flights import write_slice

pytestmark = pytest.mark.compiled

DAY = ["carrier", "year", "month", "day"]
# The first two departures of the year: the first is the poison, the second gets lost.
POISON, LOST = {"carrier": "UA", "flight": 1545}, {"carrier": "UA", "flight": 1714}


@pytest.fixture
def flown(tmp_path):
    """The first departures of January, written where the pipelines read them, as dicts of text."""
    write_slice(tmp_path, (1,), 2_000)
    with (tmp_path / "flights" / "2013-01-01.csv").open() as stream:
        return list(csv.DictReader(stream))


def departures(**options):
    pipeline = Pipeline("real", guarantee="exactly_once", **{"max_replays": 1, **options})
    path = "flights/{{ interval_start | ds }}.csv"
    pipeline.source("departures", FileSource(path, schema=FLIGHT, null_value="NA"))
    return pipeline


def is_flight(flight):
    """Whether a row is that flight of the first of January."""
    day = (F.col("month") == 1) & (F.col("day") == 1)
    return day & (F.col("carrier") == flight["carrier"]) & (F.col("flight") == flight["flight"])


def oracle(flown, without=()):
    """Flights and minutes of delay by carrier and day."""
    flights, delay = Counter(), Counter()
    gone = {(flight["carrier"], str(flight["flight"]), "1") for flight in without}
    for row in flown:
        if (row["carrier"], row["flight"], row["day"]) not in gone:
            key = (row["carrier"], int(row["day"]))
            flights[key] += 1
            delay[key] += 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
    return sorted((*key, flights[key], delay[key]) for key in flights)


def measures():
    delay = F.sum(F.coalesce("dep_delay", F.lit(0))).alias("delay")
    return F.count(F.lit(1)).alias("flights"), delay


def totals(poison=None, refused=None):
    """Flights -> a total per carrier and day; ``poison``: a flight refused before it,
    ``refused``: one whose total is refused behind it.
    """
    pipeline = departures()

    @pipeline.stage(reads="departures")
    def checked(flights):
        bad = is_flight(poison) if poison else F.lit(False)
        return flights.withColumn("_failed", F.when(bad, "implausible"))

    @pipeline.stage(reads="checked")
    def per_day(flights):
        return flights.groupBy(*DAY).agg(*measures())

    @pipeline.stage(reads="per_day")
    def released(days):
        bad = (
            (F.col("carrier") == refused["carrier"]) & (F.col("day") == 1)
            if refused
            else F.lit(False)
        )
        return days.withColumn("_failed", F.when(bad, "refused"))

    pipeline.sink("out", ParquetSink("out"), reads="released")
    return pipeline


def shown(sink_rows, folder="out"):
    return sink_rows(folder, "carrier", "day", "flights", "delay")


def test_a_poison_before_the_total_of_its_day(runner, flown, sink_rows):
    """All totals are published at once, without it, and once more by the replay that leaves it
    out; taken from quarantine, it is in its total.
    """
    run = runner(totals(poison=POISON))
    batch = run.open()
    assert run.settled(batch).failed == 1
    everything = oracle(flown)
    assert shown(sink_rows) == oracle(flown, [POISON])
    run.settled(run.open_replay(batch.batch_id, "first"))
    run.settled(run.open_replay(batch.batch_id, "second"))
    assert shown(sink_rows) == oracle(flown, [POISON])
    reasons = run.ledger.rows("SELECT step, reason FROM quarantine")
    assert reasons == [("checked", "implausible")]
    fixed = runner(totals())
    fixed.settled(fixed.open_replay(batch.batch_id, "third", quarantined=True))
    assert shown(sink_rows) == everything


def test_a_poison_after_the_total_of_its_day(runner, flown, sink_rows):
    """A total that is refused shows nothing of its day and gives no record up; fixed, all of them
    are the oracle's.
    """
    run = runner(totals(refused=POISON))
    batch = run.open()
    of_day = sum(row["carrier"] == "UA" and row["day"] == "1" for row in flown)
    assert run.settled(batch).failed == of_day > 100
    assert shown(sink_rows) == [total for total in oracle(flown) if total[:2] != ("UA", 1)]
    run.settled(run.open_replay(batch.batch_id, "first"))
    assert run.ledger.row("SELECT count(*) FROM quarantine")[0] == 0
    fixed = runner(totals())
    fixed.settled(fixed.open_replay(batch.batch_id, "second"))
    assert shown(sink_rows) == oracle(flown)


def test_flights_joined_with_their_planes(runner, tmp_path, flown, sink_rows):
    """Both tracked; one in fifty flights is lost before the join: the others are published at
    once, and these by the replay. Flights without a plane stay failed, and so do planes without a
    flight.
    """

    def joined(lossy):
        pipeline = departures()
        pipeline.source("planes", FileSource("planes.csv", schema=PLANE, null_value="NA"))

        @pipeline.stage(reads="departures", filters="lost")
        def seen(flights):
            return flights.where(~F.lit(lossy) | (F.col("flight") % 50 != 0))

        @pipeline.stage(reads=["seen", "planes"])
        def with_plane(flights, planes):
            plane = planes.select("tailnum", "seats").alias("p")
            both = flights.alias("f").join(plane, "tailnum", "inner")
            return both.select("tailnum", "day", "carrier", "flight", "seats")

        pipeline.sink("out", ParquetSink("out"), reads="with_plane")
        return pipeline

    with (tmp_path / "planes.csv").open() as stream:
        seats = {row["tailnum"]: int(row["seats"]) for row in csv.DictReader(stream)}
    matched = [row for row in flown if row["tailnum"] in seats]

    def expected(planes):
        whole = (
            (r["tailnum"], int(r["day"]), r["carrier"], int(r["flight"]), seats[r["tailnum"]])
            for r in planes
        )
        return sorted(whole, key=repr)

    columns = ("tailnum", "day", "carrier", "flight", "seats")
    run = runner(joined(True))
    batch = run.open()
    run.settled(batch)
    first = [row for row in matched if int(row["flight"]) % 50 != 0]
    assert 0 < len(first) < len(matched)
    assert sink_rows("out", *columns) == expected(first)
    fixed = runner(joined(False))
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert sink_rows("out", *columns) == expected(matched)
    failed = run.ledger.rows(
        "SELECT source, count(DISTINCT message_id) FROM failed_root_detail WHERE status = 'failed'"
        " GROUP BY 1 ORDER BY 1",
    )
    unflown = set(seats) - {row["tailnum"] for row in flown}
    assert failed == [("departures", len(flown) - len(matched)), ("planes", len(unflown))]


def test_a_combine_with_a_flight_lost_before_it_and_one_it_fails_at(
    runner, tmp_path, flown, sink_rows
):
    """No total while a flight is missing; one at which the combine itself breaks keeps all of
    them back until it is fixed; then the totals are the oracle's, shown once.
    """

    def daily(lost=None, broken=None):
        pipeline = departures()

        @pipeline.stage(reads="departures", filters="lost")
        def seen(flights):
            return flights.where(~is_flight(lost)) if lost else flights

        @pipeline.combine(reads="seen")
        def per_day(flights):
            if broken:
                bad = F.when(is_flight(broken), F.raise_error(F.lit("no such flight")))
                flights = flights.withColumn("dep_delay", F.coalesce(bad.cast("int"), "dep_delay"))
            return flights.groupBy(*DAY).agg(*measures())

        pipeline.sink("daily", ParquetSink("daily"), reads="per_day")
        pipeline.sink("out", ParquetSink("out"), reads="seen")
        return pipeline

    run = runner(daily(lost=LOST, broken=POISON))
    batch = run.open()
    assert run.settled(batch).failed == 1
    assert not (tmp_path / "daily").exists()
    replay = runner(daily(broken=POISON))
    again = replay.open_replay(batch.batch_id)
    with pytest.raises(Exception, match="no such flight") as raised:
        replay.settled(again)
    assert not isinstance(raised.value, LedgerError)
    assert len(sink_rows("out", "flight")) == len(flown)
    fixed = runner(daily())
    combine(fixed.job, again.batch_id)
    assert shown(sink_rows, "daily") == oracle(flown)
    rows = run.ledger.rows("SELECT DISTINCT status, failed FROM batch_status")
    assert [tuple(row) for row in rows] == [(BatchStatus.SETTLED, 0)]
