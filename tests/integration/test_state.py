"""States over batches: taken on from batch to batch in order, shown whole, never from what
failed.
"""

import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, StatefulStage, testing
from ledger.batch import state_runs
from ledger.batch.state_runs import HeldByAnotherDriver, commit_state
from ledger.batch.step_runs import Attempt, Record, StepOutput
from ledger.core.states import Outcome
from ledger.errors import DeclarationError, FencedError, InputError, LedgerError, StageError
from ledger.execution import advance_states, settle_and_follow
from ledger.spark.job import Job
from ledger.spark.steps.state import run_state
from tests.support.dying import Died, dies_at
from tests.support.ledgers import Ledger
from tests.support.publishing import publish_settled
from tests.support.runner import START, Runner

FLIGHTS = "flight INT, carrier STRING, delay INT"
WORDS = {1: ["the spout emits", "the bolt acks"], 2: ["the acker counts"], 3: ["a bolt fails"]}


def flown(day, count=6):
    """Flights of a day: numbers, carriers and delays of their own."""
    return [(100 * day + n, "AA" if n % 3 else "UA", day * n) for n in range(count)]


def totals(lose=(), fail=(), during=None, sink=None, schema=FLIGHTS, **options) -> Pipeline:
    """flights -> checked, which may lose or fail some -> the flights, and running totals per
    carrier.
    """
    pipeline = Pipeline("running", **{"guarantee": "exactly_once", "max_replays": 2, **options})
    pipeline.source(
        "flights", FileSource("{{ interval_start | ds }}.csv", schema=schema, allow_missing=True)
    )

    @pipeline.stage(reads="flights", filters="lost")
    def checked(flights):
        bad = F.col("flight").isin([-1, *fail])
        rest = flights.where(~F.col("flight").isin([-1, *lose]))
        rest = rest.withColumn("delay", F.col("delay").cast("bigint"))
        return rest.withColumn("_failed", F.when(bad, "implausible"))

    @pipeline.stateful_stage(reads="checked")
    def balance(state, batch):
        if during is not None:
            during()
        rows = batch.select("carrier", F.lit(1).alias("n"), "delay")
        if state is not None:
            rows = rows.unionByName(state)
        return rows.groupBy("carrier").agg(
            F.sum("n").cast("int").alias("n"), F.sum("delay").alias("delay")
        )

    pipeline.sink("departures", ParquetSink("departures"), reads="checked")
    pipeline.sink("balances", sink or ParquetSink("balances"), reads="balance")
    return pipeline


def oracle(*days, without=()):
    """What the totals are once these days are taken in."""
    totals = Counter()
    for day in days:
        for flight, carrier, delay in flown(day):
            if flight not in without:
                totals[carrier, "n"] += 1
                totals[carrier, "delay"] += delay
    return sorted(
        (carrier, totals[carrier, "n"], totals[carrier, "delay"])
        for carrier in {key[0] for key in totals}
    )


@pytest.fixture
def days(tmp_path):
    """Three days of flights, one file each."""
    for day in (1, 2, 3):
        lines = [",".join(map(str, row)) for row in flown(day)]
        name = (START + timedelta(days=day)).strftime("%Y-%m-%d")
        (tmp_path / f"{name}.csv").write_text("flight,carrier,delay\n" + "\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def balances(sink_rows):
    """What the sink of the state shows."""

    def read():
        try:
            return sink_rows("balances", "carrier", "n", "delay")
        except FileNotFoundError:
            return []

    return read


def queue(ledger):
    """The batches of the view by state, and what the waiting ones wait for."""
    rows = ledger.rows(
        "SELECT batch_id, state, waits_for_batch_id FROM state_progress ORDER BY batch_id",
    )
    return [tuple(row) for row in rows]


def history(ledger):
    """The batches in the order in which the state has taken them in."""
    return [
        row.batch_id for row in ledger.rows("SELECT batch_id FROM checkpoint ORDER BY step_run_id")
    ]


def test_running_totals_over_batches_and_a_replay(runner, days, balances):
    """Each batch adds its acked rows, a replay the ones that had failed: in the end the oracle's
    totals.
    """
    run = runner(totals(lose=[104], fail=[201]))
    first = run.open_day(1)
    run.settled(first)
    assert balances() == oracle(1, without=[104])
    run.settled(run.open_day(2))
    assert balances() == oracle(1, 2, without=[104, 201])
    fixed = runner(totals())
    fixed.settled(fixed.open_replay(first.batch_id))
    assert balances() == oracle(1, 2, without=[201])
    fixed.settled(fixed.open_day(3))
    assert balances() == oracle(1, 2, 3, without=[201])
    assert len(list((days / "balances").glob("ackledger_batch=*"))) == 1
    assert (
        run.ledger.row(
            "SELECT count(*) AS n FROM sink_publication WHERE sink = 'balances' AND state ="
            " 'published'",
        ).n
        == 1
    )


def test_a_later_batch_waits_for_an_earlier_one(runner, days, balances, sink_rows):
    """Batch 2 settles first: its rows are published, its state waits, and batch 1 brings both,
    in order.
    """
    run = runner(totals())
    ledger = run.ledger
    first, second = run.open_day(1), run.open_day(2)
    run.settled(second)
    assert len(sink_rows("departures", "flight")) == 6
    assert balances() == []
    assert queue(ledger) == [(1, "waiting", 1), (2, "waiting", 1)]
    (wait,) = ledger.summary(second.batch_id).waits
    assert wait.startswith("the state 'balance' of batch 2 waits for batch 1: it is open (interval")
    assert "Its step 'flights' has not run. To go on: ackledger run MODULE:PIPELINE" in wait
    assert ledger.summary(second.batch_id).outcome is Outcome.COMPLETE
    run.settled(first)
    assert history(ledger) == [1, 2]
    assert balances() == oracle(1, 2)
    assert queue(ledger) == [(1, "committed", None), (2, "committed", None)]


def test_a_held_batch_blocks_states_and_no_sinks(runner, days, balances, sink_rows):
    """Too many failed in batch 1: batch 2 is published, its state waits until a person lets
    batch 1 settle.
    """
    run = runner(totals(lose=[100, 101, 102], hold_above=0.1))
    ledger = run.ledger
    assert run.settled(run.open_day(1)).status == "held"
    run.settled(run.open_day(2))
    assert len(sink_rows("departures", "flight")) == 6
    assert balances() == []
    (wait,) = ledger.summary(2).waits
    assert "waits for batch 1: it is on hold" in wait
    assert wait.endswith(". Or publish the rest anyway: ackledger release 1")
    ledger.release(1)
    advance_states(run.job, 2)
    assert history(ledger) == [1, 2]
    assert balances() == oracle(1, 2, without=[100, 101, 102])


def test_an_abandoned_batch_is_skipped(runner, days, balances):
    """A batch that was abandoned before it emitted keeps no batch waiting; opened again, it comes
    when it comes.
    """
    run = runner(totals(message_timeout="10s"))
    ledger = run.ledger
    run.abandoned_day(1, "flights")
    run.settled(run.open_day(2))
    assert balances() == oracle(2)
    run.settled(run.open_day(1))
    assert history(ledger) == [2, 1]
    assert balances() == oracle(1, 2)


def settled(run: Runner, day: int):
    """Run a day's batch up to its settlement, and show its record-wise sinks."""
    batch = run.open_day(day)
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    publish_settled(run.job, batch.batch_id)
    return batch


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("files written", 1),
        ("files written", 2),
        ("before state's commit", 1),
        ("deciding publication", 1),
        ("recording publication", 1),
        ("recording ack", 1),
        ("state removed", 1),
    ],
)
def test_a_crash_between_the_arrows(runner, days, balances, place, nth):
    """Where a driver dies after the function, before or in the commit, or while the state is
    published, the next one ends as if nothing had happened, and until then the sink has published
    one whole state.
    """
    run = runner(totals())
    ledger = run.ledger
    run.settled(run.open_day(1))
    settled(run, 2)
    with dies_at(place, nth=nth), pytest.raises(Died):
        advance_states(run.job, 2)
    assert balances() in (oracle(1), oracle(1, 2))
    advance_states(run.job, 2)
    assert balances() == oracle(1, 2)
    assert history(ledger) == [1, 2]
    assert not state_runs.is_due(ledger.database, run.job.pipeline)


def test_a_state_that_cannot_be_published_keeps_no_later_one_waiting(
    runner, days, balances, monkeypatch
):
    """A sink that refuses is raised at the end; the next state is made all the same, and
    published in its place.
    """
    run = runner(totals())
    settled(run, 1)
    settled(run, 2)

    refused = StageError("the target refuses it")
    with dies_at("publishing", raises=refused), pytest.raises(StageError, match="refuses it"):
        advance_states(run.job)
    assert history(run.ledger) == [1, 2]
    assert balances() == []
    advance_states(run.job)
    assert balances() == oracle(1, 2)


def test_a_state_that_was_published_and_not_noted_gives_way(runner, days, balances, monkeypatch):
    """The publisher of 1 dies before it notes what the sink has published, and 2 is never
    published: 3 takes the place of both.
    """
    run = runner(totals())
    for day in (1, 2, 3):
        settled(run, day)
    with dies_at("recording publication"), pytest.raises(Died):
        advance_states(run.job)
    assert balances() == oracle(1)

    refused = StageError("the target refuses it")
    with dies_at("publishing", raises=refused), pytest.raises(StageError, match="refuses it"):
        advance_states(run.job)
    assert history(run.ledger) == [1, 2, 3]
    advance_states(run.job)
    assert balances() == oracle(1, 2, 3)


def test_a_driver_that_falls_silent_is_fenced(runner, days, balances):
    """A killed driver says nothing; once its lease has lapsed another begins again at the
    committed state.
    """
    run = runner(totals())
    ledger = run.ledger
    run.settled(run.open_day(1))
    settled(run, 2)
    step = run.job.pipeline.step("balance")
    dead = state_runs.open_next(ledger.database, run.job.pipeline, step, Attempt())
    assert state_runs.open_next(
        ledger.database, run.job.pipeline, step, Attempt()
    ) == HeldByAnotherDriver(2, dead.run.run_id)
    ledger.age(2, 120)
    advance_states(run.job, 2)
    assert balances() == oracle(1, 2)
    with pytest.raises(LedgerError):  # what it began with is gone
        run_state(run.job, dead, step)
    nothing = StepOutput(Record())
    with pytest.raises(FencedError):
        commit_state(ledger.database, dead, nothing, {"balances": nothing}, None)
    assert balances() == oracle(1, 2)
    assert history(ledger) == [1, 2]


def test_two_drivers_at_once_make_one_state_a_batch(runner, days, balances):
    """Two state tasks over three settled batches: one waits for the other, no batch is taken in
    twice.
    """
    arrived = threading.Barrier(2, timeout=60)
    calls = []
    run = runner(totals(during=lambda: calls.append(1)))
    for day in (1, 2, 3):
        settled(run, day)
    errors = []

    def drive():
        try:
            arrived.wait()
            advance_states(run.job, 3)
        except BaseException as exc:
            errors.append(exc)

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert errors == []
    assert history(run.ledger) == [1, 2, 3]
    assert len(calls) == 3
    assert balances() == oracle(1, 2, 3)


def test_a_state_whose_turn_is_over_is_not_kept(runner, days, balances):
    """An earlier batch that was abandoned opens again while the state is computed: it would come
    out of order.
    """
    run = runner(totals(message_timeout="10s"))
    ledger = run.ledger
    run.abandoned_day(1, "flights")
    settled(run, 2)
    again = runner(totals(message_timeout="10s", during=lambda: run.open_day(1)))
    with pytest.raises(FencedError, match=r"batch 2 is not kept: .* waits for batch 1: it is open"):
        advance_states(again.job, 2)
    assert balances() == []
    ended = ledger.rows("SELECT state FROM step_run WHERE failure LIKE '%is not kept%'")
    assert {row.state for row in ended} == {"fenced"}
    run.settled(run.open_day(1))
    assert history(ledger) == [1, 2]
    assert balances() == oracle(1, 2)


class Tally(StatefulStage):
    """Counts flights; keeps what it did in files beside its snapshot, as one would keep a large
    state.
    """

    def __init__(self, folder: Path, broken=()):
        self.folder, self.broken, self.calls = folder, set(broken), []
        folder.mkdir(exist_ok=True)

    def init_state(self, snapshot):
        self.calls.append(("init_state", snapshot))
        self.count = 0 if snapshot is None else snapshot["flights"]

    def finish_batch(self, batch_id, batch):
        self.count += batch.count()
        if "finish_batch" in self.broken:
            raise RuntimeError("no")
        return self.count

    def rows(self, state):
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession().createDataFrame([(state,)], "flights INT")

    def commit(self, batch_id, state):
        (self.folder / str(batch_id)).write_text(str(state))
        if "commit" in self.broken:
            raise RuntimeError("no")
        return {"flights": state, "key": str(batch_id)}

    def roll_back(self, snapshot):
        self.calls.append(("roll_back", snapshot))
        for path in self.folder.iterdir():
            if snapshot is None or int(path.name) > int(snapshot["key"]):
                path.unlink()

    def ack_commit(self, batch_id):
        self.calls.append(("ack_commit", batch_id))
        if "ack_commit" in self.broken:
            raise RuntimeError("no")
        for path in self.folder.iterdir():
            if int(path.name) < batch_id:
                path.unlink()

    @property
    def states(self):
        return sorted(path.name for path in self.folder.iterdir())


def counted(tally, sink=True) -> Pipeline:
    """flights -> a count over batches that an object keeps, with a sink or without."""
    pipeline = Pipeline("counted", guarantee="exactly_once")
    pipeline.source("flights", FileSource("{{ interval_start | ds }}.csv", schema=FLIGHTS))
    pipeline.stateful("tally", tally, reads="flights")
    if sink:
        pipeline.sink("shown", ParquetSink("shown"), reads="tally")
    pipeline.sink("departures", ParquetSink("departures"), reads="flights")
    return pipeline


def test_an_object_keeps_its_state(runner, days, sink_rows):
    """Every hook in order: start, batch, snapshot in the ledger, clean-up once all is published."""
    tally = Tally(days / "tally")
    run = runner(counted(tally))
    run.settled(run.open_day(1))
    run.settled(run.open_day(2))
    assert tally.calls == [
        ("init_state", None),
        ("ack_commit", 1),
        ("init_state", {"flights": 6, "key": "1"}),
        ("ack_commit", 2),
    ]
    assert sink_rows("shown", "flights") == [(12,)]
    rows = run.ledger.rows("SELECT snapshot FROM state_progress ORDER BY batch_id")
    assert [row.snapshot for row in rows] == [
        {"flights": 6, "key": "1"},
        {"flights": 12, "key": "2"},
    ]
    assert tally.states == ["2"]


@pytest.mark.parametrize("hook", ["finish_batch", "commit"])
@pytest.mark.parametrize("sink", [True, False])
def test_an_object_is_rolled_back(runner, days, hook, sink):
    """An attempt that raises is rolled back to the last committed snapshot by the next one, in
    another process.
    """
    run = runner(counted(Tally(days / "tally"), sink))
    run.settled(run.open_day(1))
    broken = runner(counted(Tally(days / "tally", [hook]), sink))
    with pytest.raises(RuntimeError):
        broken.settled(broken.open_day(2))
    tally = Tally(days / "tally")
    fixed = runner(counted(tally, sink))
    advance_states(fixed.job, 2)
    committed = {"flights": 6, "key": "1"}
    assert tally.calls == [("roll_back", committed), ("init_state", committed), ("ack_commit", 2)]
    assert tally.count == 12
    assert tally.states == ["2"]


def test_a_first_attempt_is_rolled_back_to_nothing(runner, days):
    """Where no state is committed yet there is no snapshot to go back to."""
    broken = runner(counted(Tally(days / "tally", ["commit"])))
    with pytest.raises(RuntimeError):
        broken.settled(broken.open_day(1))
    tally = Tally(days / "tally")
    fixed = runner(counted(tally))
    advance_states(fixed.job, 1)
    assert tally.calls == [("roll_back", None), ("init_state", None), ("ack_commit", 1)]


def test_ack_commit_waits_for_all_sinks_and_may_come_twice(runner, days, monkeypatch):
    """Notified late, twice or in vain: the state that counts is never let go, and an older one only
    after it.
    """
    tally = Tally(days / "tally", ["ack_commit"])
    run = runner(counted(tally))
    run.settled(run.open_day(1))  # what it raises fails nothing
    assert tally.calls[-1] == ("ack_commit", 1)
    tally.broken.clear()
    with dies_at("recording publication"), pytest.raises(Died):
        run.settled(run.open_day(2))  # dies in publish: the state is not due yet
    assert tally.states == ["1"]
    with dies_at("recording publication"), pytest.raises(Died):
        advance_states(run.job, 2)
    assert tally.states == ["1", "2"]
    advance_states(run.job, 2)
    assert tally.states == ["1", "2"]  # a record-wise sink of batch 2 is yet to be published
    publish_settled(run.job, 2)
    with dies_at("recording ack"), pytest.raises(Died):
        advance_states(run.job, 2)
    advance_states(run.job, 2)
    assert tally.calls[-2:] == [("ack_commit", 2), ("ack_commit", 2)]
    assert tally.states == ["2"]
    advance_states(run.job, 2)
    assert tally.states == ["2"]


def whole(tally, lose=(), broken=()) -> Pipeline:
    """flights -> checked, which may lose some -> a count that an object keeps, a second state,
    and a total.
    """
    pipeline = Pipeline("counted", guarantee="exactly_once")
    pipeline.source("flights", FileSource("{{ interval_start | ds }}.csv", schema=FLIGHTS))

    @pipeline.stage(reads="flights", filters="lost")
    def checked(flights):
        return flights.where(~F.col("flight").isin([-1, *lose]))

    pipeline.stateful("tally", tally, reads="checked")
    pipeline.sink("shown", ParquetSink("shown"), reads="tally")

    @pipeline.stateful_stage(reads="checked")
    def latest(state, batch):
        return None if "latest" in broken else batch

    @pipeline.combine(reads="checked")
    def total(checked):
        return None if "total" in broken else checked

    pipeline.sink("latest_sink", ParquetSink("latest"), reads="latest")
    pipeline.sink("total_sink", ParquetSink("totals"), reads="total")
    return pipeline


@pytest.mark.parametrize("broken", ["latest", "total"])
def test_ack_commit_waits_for_states_and_combines(runner, days, broken):
    """As long as another state of the batch, or its total, is yet to be made, the batch is not
    committed as a whole.
    """
    tally = Tally(days / "tally")
    run = runner(whole(tally, broken=[broken]))
    with pytest.raises(StageError, match="expected a DataFrame"):
        run.settled(run.open_day(1))
    assert [name for name, _ in tally.calls] == ["init_state"]
    fixed = runner(whole(tally))
    settle_and_follow(fixed.job, 1)
    assert tally.calls[1:] == [("ack_commit", 1)]


def test_ack_commit_comes_in_order_for_families_that_are_finished(runner, days, settings):
    """A batch with a failed record, and those behind it, are committed as a whole when its
    replay is. Files of older states do not wait for that.
    """
    tally = Tally(days / "tally")
    run = runner(whole(tally, lose=[104]))
    first = run.open_day(1)
    run.settled(first)
    run.settled(run.open_day(2))
    assert {name for name, _ in tally.calls} == {"init_state"}
    folders = sorted(Path(settings.storage).glob("counted/latest/batch=*/run=*"))
    assert [path.parent.name for path in folders] == ["batch=2"]
    fixed = runner(whole(tally))
    fixed.settled(fixed.open_replay(first.batch_id))
    acked = [batch_id for name, batch_id in tally.calls if name == "ack_commit"]
    assert acked == [1, 2, 3]


def test_a_snapshot_must_be_json(runner, days):
    """A frame or a set is no snapshot: the message says what is expected."""
    tally = Tally(days / "tally")
    tally.commit = lambda batch_id, state: {1, 2}
    run = runner(counted(tally))
    with pytest.raises(StageError, match="commit of stateful 'tally' returned what is no JSON"):
        run.settled(run.open_day(1))


def folders(settings):
    """The batches of which files of the state are kept."""
    return sorted(
        path.parent.name for path in Path(settings.storage).glob("running/balance/batch=*/run=*")
    )


def test_files_of_older_states_go(runner, days, balances, settings, monkeypatch):
    """Once a state is published the files of those before it go; the last committed one stays,
    whatever is asked.
    """
    run = runner(totals())
    run.settled(run.open_day(1))
    assert folders(settings) == ["batch=1"]
    settled(run, 2)
    with dies_at("recording publication"), pytest.raises(Died):
        advance_states(run.job, 2)
    assert folders(settings) == ["batch=1", "batch=2"]  # 2 is committed and not published
    advance_states(run.job, 2)
    assert folders(settings) == ["batch=2"]
    step = run.job.pipeline.step("balance")
    state_runs.acknowledge(run.job.database, run.job.pipeline, step)
    assert folders(settings) == ["batch=2"]
    run.settled(run.open_day(3))
    assert folders(settings) == ["batch=3"]
    assert balances() == oracle(1, 2, 3)


def test_uncommitted_files_never_count(runner, days, balances, settings):
    """What a dead attempt wrote is no state: the next starts from the committed one, not from
    that.
    """

    class Once:
        done = False

        def __call__(self):
            if not self.done:
                self.done = True
                raise RuntimeError("no")

    run = runner(totals())
    run.settled(run.open_day(1))
    settled(run, 2)
    with dies_at("before state's commit"), pytest.raises(Died):
        advance_states(run.job, 2)
    assert folders(settings) == ["batch=1", "batch=2"]
    hurt = runner(totals(during=Once()))
    with pytest.raises(RuntimeError):
        advance_states(hurt.job, 2)
    advance_states(hurt.job, 2)
    assert balances() == oracle(1, 2)


def test_a_reader_sees_one_whole_state_at_any_time(runner, days):
    """A reader that looks all the time finds the totals after one batch or another, never
    between them.
    """
    from deltalake import DeltaTable

    run = runner(totals(sink=DeltaSink("balances")))
    run.settled(run.open_day(1))
    stop, seen = threading.Event(), set()

    def look():
        while not stop.is_set():
            rows = DeltaTable(str(days / "balances")).to_pyarrow_table().to_pylist()
            seen.add(tuple(sorted((r["carrier"], r["n"], r["delay"]) for r in rows)))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for day in (2, 3):
            run.settled(run.open_day(day))
    finally:
        stop.set()
        reader.join()
    whole = {tuple(oracle(1)), tuple(oracle(1, 2)), tuple(oracle(1, 2, 3))}
    assert seen <= whole
    assert tuple(oracle(1)) in seen
    final = DeltaTable(str(days / "balances")).to_pyarrow_table().to_pylist()
    assert sorted((r["carrier"], r["n"], r["delay"]) for r in final) == oracle(1, 2, 3)


def test_hold_takes_a_family_in_whole(runner, days, balances):
    """With publish="complete" batch 1 waits for its replay, batch 2 behind both: the state sees
    days in order.
    """
    run = runner(totals(lose=[104], publish="complete"))
    ledger = run.ledger
    first = run.open_day(1)
    run.settled(first)
    run.settled(run.open_day(2))
    assert balances() == []
    assert queue(ledger) == [(1, "waiting", 1), (2, "waiting", 1)]
    fixed = runner(totals(publish="complete"))
    fixed.settled(fixed.open_replay(first.batch_id))
    assert history(ledger) == [1, 3, 2]
    assert balances() == oracle(1, 2)


def test_a_whole_batch_is_included_once(runner, days, balances):
    """A replay takes the whole batch, so the state includes a batch once none of its records is
    failed, as its last replay has made it, and before the next batch.
    """
    run = runner(ranked(fail=[104]))
    ledger = run.ledger
    first = run.open_day(1, dag_id="dag")
    run.steps(first)
    assert ledger.settle(first.batch_id).failed == 1
    second = run.open_day(2)
    run.steps(second)
    ledger.settle(second.batch_id)
    advance_states(run.job, second.batch_id)
    assert history(ledger) == []
    assert "records of it are failed" in ledger.summary(2).waits[0]
    run.settled(run.open_replay(first.batch_id))
    assert history(ledger) == [3, 2]
    assert balances() == oracle(1, 2, without=[104])


def test_hold_takes_up_no_quarantined_record_after_a_later_batch(runner, days, balances):
    """With publish="complete" it would come at its original's place, where the state has gone past;
    before that it may.
    """
    run = runner(totals(fail=[104], max_replays=0, publish="complete"))
    ledger = run.ledger
    first = run.open_day(1)
    run.settled(first)
    fixed = runner(totals(max_replays=0, publish="complete"))
    fixed.settled(fixed.open_replay(first.batch_id, "in time", quarantined=True))
    lossy = run.open_day(2)
    bad = runner(totals(fail=[201], max_replays=0, publish="complete"))
    bad.settled(lossy)
    run.settled(run.open_day(3))
    assert history(ledger) == [1, 2, 3, 4]
    with pytest.raises(
        InputError, match=r"record of batch 3 .* belongs before batch 4, which the state 'balance'"
    ):
        fixed.open_replay(lossy.batch_id, "too late", quarantined=True)
    assert balances() == oracle(1, 2, 3, without=[201])


def test_hold_opens_no_abandoned_batch_after_a_later_one(runner, days, balances):
    """With publish="complete" it would be taken in out of order: its interval comes as a batch of
    its own, at the end.
    """
    run = runner(totals(message_timeout="10s", publish="complete"))
    ledger = run.ledger
    run.abandoned_day(1, "flights")
    run.settled(run.open_day(2))
    with pytest.raises(
        InputError, match=r"batch 1 .* was abandoned, and the state 'balance' includes batch 2"
    ):
        run.open_day(1)
    run.settled(run.open_day(1, "later"))
    assert history(ledger) == [2, 3]
    assert balances() == oracle(1, 2)


def test_a_batch_that_a_state_includes_is_not_reprocessed(runner, days, balances):
    """Its rows would count twice; a batch that the state has not taken in yet may be replaced,
    and gives way.
    """
    run = runner(totals())
    run.settled(run.open_day(1))
    with pytest.raises(
        InputError,
        match=r"'balance' .* includes batch 1.*give the stage and its sinks new names",
    ):
        run.open_day(1, "again1", reprocess=True)
    settled(run, 2)
    again = run.open_day(2, "again2", reprocess=True)
    advance_states(run.job, 2)
    assert queue(run.ledger)[1:] == [(2, "waiting", 2), (3, "waiting", 2)]
    run.settled(again)
    assert history(run.ledger) == [1, 3]
    assert balances() == oracle(1, 2)


def test_a_state_is_rebuilt_under_a_new_name(runner, days, sink_rows):
    """The way out of the refusal: new names, the intervals reprocessed in order."""
    run = runner(totals(lose=[104]))
    for day in (1, 2):
        run.settled(run.open_day(day))
    pipeline = totals()
    steps = pipeline._steps
    steps["balance2"] = replace(steps.pop("balance"), name="balance2")
    steps["new"] = replace(
        steps.pop("balances"), name="new", reads="balance2", sink=ParquetSink("new")
    )
    job = Job(run.job.spark, run.job.database, run.job.settings, pipeline)
    for day in (1, 2):
        again = Runner(job)
        again.settled(again.open_day(day, f"again{day}", reprocess=True))
    assert sink_rows("new", "carrier", "n", "delay") == oracle(1, 2)


def test_the_sweeper_sends_for_a_state_that_is_overdue(runner, days, balances):
    """A batch that settled behind its run's back leaves a state pending: the sweep names it until
    it is done.
    """
    run = runner(totals())
    job = run.job
    batch = run.settled_by_others()
    later = run.ledger.row("SELECT now() + interval '1 hour' AS later").later
    assert run.ledger.sweep().overdue == ()
    assert [batch.batch_id for batch in run.ledger.sweep(now=later).overdue] == [1]
    advance_states(job, batch.batch_id)
    assert run.ledger.sweep(now=later).overdue == ()
    assert balances() == oracle(1)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_word_count_over_batches(spark, guarantee):
    """The classic over three batches and a replay: words are counted once each, by a pipeline of
    the library.
    """

    def words(lose="") -> Pipeline:
        pipeline = Pipeline("words", guarantee=guarantee)
        pipeline.source("sentences", FileSource("in", schema="sentence STRING"))

        @pipeline.stage(reads="sentences", anchors="by_hand")
        def split(sentences):
            rest = sentences.where(F.col("sentence") != F.lit(lose))
            return rest.select(F.explode(F.split("sentence", " ")).alias("word"), "_anchor")

        @pipeline.stateful_stage(reads="split")
        def counts(state, batch):
            new = batch.select("word", F.lit(1).cast("bigint").alias("n"))
            before = new if state is None else new.unionByName(state)
            return before.groupBy("word").agg(F.sum("n").alias("n"))

        pipeline.sink("totals", ParquetSink("totals"), reads="counts")
        return pipeline

    result, expected, failed = None, Counter(), None
    for day, sentences in WORDS.items():
        data_of = {"sentences": [{"sentence": sentence} for sentence in sentences]}
        result = testing.run_batch(words("the bolt acks"), data_of, spark=spark, after=result)
        failed = failed or result
        expected.update(
            " ".join(sentence for sentence in sentences if sentence != "the bolt acks").split()
        )
        assert {row["word"]: row["n"] for row in result.rows["totals"]} == expected, day
    expected.update(["the", "bolt", "acks"])
    again = testing.replay(failed, words())
    assert {row["word"]: row["n"] for row in again.rows["totals"]} == expected


def ranked(lose=(), fail=(), **options) -> Pipeline:
    """flights -> a rank within the carrier -> delays by carrier over batches."""
    options = {"max_replays": 0 if fail else 2, "publish": "complete", **options}
    pipeline = totals(lose=lose, fail=fail, **options)
    del pipeline._steps["balance"], pipeline._steps["balances"], pipeline._steps["departures"]

    @pipeline.stage(reads="checked", anchors="merged_by_hand")
    def places(checked):
        from pyspark.sql import Window

        place = F.row_number().over(Window.partitionBy("carrier").orderBy("flight"))
        return checked.withColumn("place", place)

    @pipeline.stateful_stage(reads="places")
    def balance(state, batch):
        new = batch.groupBy("carrier").agg(
            F.count("*").cast("int").alias("n"), F.sum("delay").alias("delay")
        )
        both = new if state is None else new.unionByName(state)
        return both.groupBy("carrier").agg(
            F.sum("n").cast("int").alias("n"), F.sum("delay").alias("delay")
        )

    pipeline.sink("balances", ParquetSink("balances"), reads="balance")
    pipeline.sink("out", ParquetSink("out"), reads="places")
    return pipeline


def test_a_quarantined_record_of_a_whole_batch_is_not_taken_up(runner, days, balances):
    """The batch would come again, the rest of which the state has: refused, with the way out."""
    run = runner(ranked(fail=[104]))
    first = run.open_day(1)
    run.settled(first)
    again = run.open_replay(first.batch_id, "without")
    run.settled(again)
    assert balances() == oracle(1, without=[104])
    with pytest.raises(InputError, match="would replay its whole batch, and the state 'balance'"):
        run.open_replay(first.batch_id, quarantined=True)


def refused(match, declare):
    pipeline = totals()
    with pytest.raises(DeclarationError, match=match):
        declared(pipeline, declare)


def declared(pipeline_, declare):
    declare(pipeline_)
    pipeline_.followers()


def test_what_cannot_be_declared():
    """Stages and combines behind a state, states of what is not tracked, dedup, odd signatures
    and names.
    """

    def behind(pipeline):
        pipeline.stage(reads="balance")(lambda_named("more"))
        pipeline.sink("more_sink", ParquetSink("more"), reads="more")

    def combined(pipeline):
        pipeline.combine(reads="balance")(lambda_named("more"))
        pipeline.sink("more_sink", ParquetSink("more"), reads="more")

    def untracked(pipeline):
        pipeline.stage(reads="checked", acks="untracked")(lambda_named("loose"))
        pipeline.stateful("tally", Tally.__new__(Tally), reads="loose")

    def doubled(pipeline):
        pipeline.sink("more", ParquetSink("more", dedup="exact"), reads="balance")

    def unread(pipeline):
        pipeline.stateful_stage(reads="checked")(two_named("unused"))

    refused("reads 'balance', a state over batches.*only sinks", behind)
    refused("reads 'balance', a state over batches.*only sinks", combined)
    refused("stateful 'tally' .*not tracked any more", untracked)
    refused("gets all rows of a combine, of a state, or", doubled)
    refused("nothing reads stateful 'unused'", unread)
    refused(
        "the state so far, checked",
        lambda pipeline: pipeline.stateful_stage(reads="checked")(lambda_named("one")),
    )
    refused(
        "expected one input",
        lambda pipeline: pipeline.stateful_stage(reads=["checked", "flights"])(two_named("two")),
    )
    refused(
        "subclass of StatefulStage, found str",
        lambda result: result.stateful("x", "y", reads="checked"),
    )
    refused(
        "stateful name 'X'",
        lambda result: result.stateful("X", Tally.__new__(Tally), reads="checked"),
    )
    refused(
        "declares 'balance' twice",
        lambda pipeline: pipeline.stateful_stage(reads="checked")(two_named("balance")),
    )


def lambda_named(name):
    def build(rows):
        return rows

    build.__name__ = name
    return build


def two_named(name):
    def build(state, rows):
        return rows

    build.__name__ = name
    return build


def test_two_states_and_a_combine_side_by_side(spark):
    """Each state has its own checkpoints; references and a batch that is read twice are fine; a
    combine keeps to its family.
    """

    def build(lose=-1) -> Pipeline:
        two = Pipeline("two", guarantee="exactly_once")
        two.source("flights", FileSource("in", schema=FLIGHTS))
        two.reference("names", FileSource("names.csv", schema="carrier STRING, name STRING"))

        @two.stage(reads="flights", filters="lost")
        def checked(flights):
            return flights.where(F.col("flight") != lose)

        @two.stateful_stage(reads="checked")
        def latest(state, batch, *, names):
            last = batch.groupBy("carrier").agg(F.max("flight").alias("flight"))
            new = batch.join(last, ["carrier", "flight"], "left_semi").join(
                names, "carrier", "left"
            )
            before = [] if state is None else [state.join(last, "carrier", "left_anti")]
            return reduce(lambda state, other: state.unionByName(other), before, new)

        @two.stateful_stage(reads="checked")
        def batches(state, batch):
            return (
                batch.sparkSession.range(1) if state is None else state.select(F.col("id") + 1)
            ).toDF("id")

        @two.combine(reads="checked")
        def total(flights):
            return flights.agg(F.count("*").alias("n"))

        for name in ("latest", "batches", "total"):
            two.sink(f"{name}_sink", ParquetSink(name), reads=name)
        return two

    def data_of(day):
        columns = ("flight", "carrier", "delay")
        return {"flights": [dict(zip(columns, row, strict=True)) for row in flown(day)]}

    names = {"names": [{"carrier": "AA", "name": "American"}]}
    first = testing.run_batch(build(104), data_of(1), references=names, spark=spark)
    assert first.rows["total_sink"] == []
    second = testing.run_batch(build(), data_of(2), references=names, spark=spark, after=first)
    assert second.rows["total_sink"] == [{"n": 6}]
    latest = {row["carrier"]: (row["flight"], row["name"]) for row in second.rows["latest_sink"]}
    assert latest == {"AA": (205, "American"), "UA": (203, None)}
    again = testing.replay(first, build())
    assert again.rows["total_sink"] == [{"n": 6}]
    assert again.rows["batches_sink"] == [{"id": 2}]
    later = Ledger(first.lab.database).row("SELECT now() + interval '1 hour' AS later").later
    assert Ledger(first.lab.database).sweep(now=later).overdue == ()
