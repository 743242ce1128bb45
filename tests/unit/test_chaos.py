"""What `make chaos` judges by: its verdict can fail, and its schedule follows from the seed."""

import subprocess
from collections import Counter
from dataclasses import replace

import psutil
import pytest

from tests.chaos import data
from tests.chaos.campaign import LONG, SHORT
from tests.chaos.killer import GAP_SECONDS, Killer
from tests.chaos.schedule import Kind, Strike, schedule
from tests.chaos.verdict import Evidence, Look, Total, Update, judge

ORDERS = data.make_orders(seed=7, records=1_000, day_count=2)
GOOD = [order for order in ORDERS if not order.poison]
DIRTY, CLEAN = data.days(2)
SINKS = ("folder", "table")
COUNTS = {Kind.EXECUTOR: 5, Kind.SWEEPER: 3, Kind.SCHEDULER: 1}


def rows_of(batch):
    """Batch 1: the second day, a clean one; 2: the first without its late region; 3: the replay
    that brings that.
    """
    selection = {
        1: lambda order: order.day == CLEAN,
        2: lambda order: order.day == DIRTY and order.region != data.LATE_REGION,
        3: lambda order: order.day == DIRTY and order.region == data.LATE_REGION,
    }[batch]
    return [row for order in GOOD if selection(order) for row in order.rows()]


def evidence():
    """Of a run in which nothing went wrong."""
    totals = {batch: Total.of(rows_of(batch)) for batch in (1, 2, 3)}
    by_batch = {1: (CLEAN, totals[1]), 2: (DIRTY, totals[2]), 3: (DIRTY, totals[3])}
    history = [
        Update(1, totals[1], 0),
        Update(2, totals[2], totals[1].rows),
        Update(3, totals[3], totals[1].rows + totals[2].rows),
    ]
    looks = [
        Look("folder", {CLEAN: totals[1]}),
        Look("table", {DIRTY: totals[2]}),
        Look("table", {CLEAN: totals[1], DIRTY: totals[2] + totals[3]}),
    ]
    return Evidence(
        shown={sink: [row for order in GOOD for row in order.rows()] for sink in SINKS},
        quarantined=[order.id for order in ORDERS if order.poison],
        batches=dict.fromkeys(SINKS, by_batch),
        settled=[1, 2, 3],
        looks=looks,
        histories=[history[:1], history],
        history=history,
    )


def failed(rows):
    """The assertions that do not hold."""
    return [name.split()[-1] for name, wrong in judge(ORDERS, rows).items() if wrong]


def test_a_good_run_passes():
    """Nothing is wrong where nothing is wrong, and the data have what they are to have."""
    assert failed(evidence()) == []
    assert 0 < len(ORDERS) - len(GOOD) < 30
    assert any(order.region == data.LATE_REGION for order in GOOD)
    assert all(order.day == DIRTY for order in ORDERS if order.poison)
    assert len({order.lines for order in ORDERS}) == data.MOST_LINES


def test_a_duplicate_is_found():
    """One line of one order twice in one sink."""
    good = evidence()
    shown = {**good.shown, "table": [*good.shown["table"], good.shown["table"][0]]}
    assert failed(replace(good, shown=shown)) == ["sink"]


def test_a_duplicate_with_other_contents_is_found():
    """The same line of an order twice, with another amount."""
    good = evidence()
    number, line, cents = good.shown["table"][0]
    shown = {**good.shown, "table": [*good.shown["table"], (number, line, cents + 1)]}
    assert failed(replace(good, shown=shown)) == ["sink", "quarantined"]


def test_a_lost_record_is_found():
    """One order that is in no sink and in no quarantine, and one line of an order that a sink
    lacks.
    """
    good = evidence()
    lost = GOOD[3].id
    without = [row for row in good.shown["table"] if row[0] != lost]
    assert failed(replace(good, shown={**good.shown, "table": without})) == ["quarantined"]
    assert failed(replace(good, shown={**good.shown, "table": good.shown["table"][1:]})) == [
        "quarantined"
    ]


def test_a_wrong_quarantine_is_found():
    """A poison order that is not in quarantine, and a good one that is."""
    good = evidence()
    assert failed(replace(good, quarantined=good.quarantined[1:])) == ["quarantined"]
    more = [*good.quarantined, GOOD[0].id]
    assert failed(replace(good, quarantined=more)) == ["quarantined"]


def test_rows_of_a_poison_order_are_found():
    """A line of an order that was quarantined, in a sink."""
    good = evidence()
    poison = next(order for order in ORDERS if order.poison)
    shown = {**good.shown, "folder": [*good.shown["folder"], poison.rows()[0]]}
    assert failed(replace(good, shown=shown)) == ["quarantined"]


def test_a_part_of_a_batch_is_found():
    """A look in which a batch lacks one row, and one in which a row is there twice."""
    good = evidence()
    rows = rows_of(2)
    for part in (rows[1:], [*rows, rows[0]]):
        look = Look("table", {DIRTY: Total.of(part)})
        assert failed(replace(good, looks=[*good.looks, look])) == ["batches"]
    assert failed(replace(good, looks=[])) == ["batches"]


def test_a_batch_that_vanishes_is_found():
    """A look that shows less of a day than one before: a batch less, or the whole day."""
    good = evidence()
    for days in ({CLEAN: Total.of(rows_of(1)), DIRTY: Total.of(rows_of(2))}, {}):
        looks = [*good.looks, Look("table", days)]
        assert failed(replace(good, looks=looks)) == ["batches"]


def test_sinks_that_disagree_about_a_batch_are_found():
    """A batch that has other rows in one sink than in another."""
    good = evidence()
    other = {**good.batches["table"], 3: (DIRTY, Total.of(rows_of(3)[1:]))}
    assert failed(replace(good, batches={**good.batches, "table": other})) == ["batches"]


def test_disorder_is_found():
    """Two updates in the wrong order, one twice, one missing, a look that saw another past."""
    good = evidence()
    first, second, third = good.history
    for wrong in ([second, first, third], [first, second, second, third], [first, third], []):
        assert failed(replace(good, history=wrong)) == ["order"]
    assert failed(replace(good, histories=[[first], [second]])) == ["order"]
    assert failed(replace(good, histories=[[first, second], [first]])) == ["order"]


def test_the_checksum_is_that_of_the_sql():
    """The expression for Spark and PostgreSQL computes what Python does."""
    number, line, cents = row = (99_999, 4, 90_003)
    expression = data.checksum_sql(str(number), str(line), str(cents))
    assert eval(expression) == data.checksum(row)


def test_the_seed_repeats_schedule_and_data():
    """The same seed gives the same strikes and orders, another one others; each kind has its
    number.
    """
    deck = schedule(7, COUNTS, 600)
    assert deck == schedule(7, COUNTS, 600)
    assert deck != schedule(8, COUNTS, 600)
    assert Counter(strike.kind for strike in deck) == Counter(COUNTS)
    assert [strike.second for strike in deck] == sorted(strike.second for strike in deck)
    assert deck[-1].second <= 600
    assert data.make_orders(7, 1_000, 2) == ORDERS
    assert data.make_orders(8, 1_000, 2) != ORDERS


@pytest.mark.parametrize("plan", [LONG, SHORT])
def test_the_last_kill_finds_a_batch(plan):
    """The last batch begins with the last kill, so that a fast machine has something to hurt."""
    for seed in range(20):
        seeded = replace(plan, seed=seed)
        instants = seeded.instants()
        assert len(instants) == plan.batches > 2
        assert instants == sorted(instants)
        assert instants[:2] == [0, 0]
        assert instants[-1] == seeded.deck()[-1].second


@pytest.fixture
def sleeper():
    """A process that waits to be killed."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_only_the_living_are_killed(sleeper):
    """A strike waits for a victim, counts once it is dead, and the next keeps its distance."""
    there = []
    deck = [Strike(1.0, Kind.DRIVER, 0.5), Strike(1.5, Kind.DRIVER, 0.5)]
    killer = Killer(deck, lambda kind: list(there))
    assert killer.tick(0.5) is None
    assert killer.tick(2.0) is None
    there.append(psutil.Process(sleeper.pid))
    killed = killer.tick(3.0)
    assert (killed.kind, killed.pid, killed.second) == (Kind.DRIVER, sleeper.pid, 3.0)
    assert sleeper.wait() == -9
    assert killer.tick(3.0 + GAP_SECONDS - 1) is None
    assert killer.tick(3.0 + GAP_SECONDS) is None
    assert killer.counts() == {Kind.DRIVER: 1}
    assert not killer.finished
