"""Which batches a window of deduplication, or a claim, keeps from gc."""

from datetime import timedelta

from sqlalchemy import text

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.batch.opening import open_batch
from ledger.batch.settlement import settle_once
from ledger.batch.step_runs import fail
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import Need
from ledger.settings import Settings
from ledger.store.queries import checkpoints, dedup
from tests.support.ledgers import (
    START,
    age_ledger,
    emit,
    one,
    opened,
    reprocessed,
    rows,
    run_all,
    run_middle,
    run_sink,
    started,
)
from tests.support.retention import DAY, collect, kept, need, published, settled


def deduplicating(window):
    made = Pipeline("chain", keep="1d")
    made.source("source", FileSource("in.csv", schema="n INT"))

    @made.stage(reads="source")
    def middle(rows):
        return rows

    dedup = Bloom(capacity=100, key="n", window_batches=window)
    made.sink("sink", ParquetSink("out", dedup=dedup), reads="middle")
    return made


def test_a_dedup_window_keeps_its_batches_and_one_more(database, storage):
    """A batch that replaces the newest is compared with as many batches before that one."""
    made = deduplicating(2)
    numbers = [
        settled(database, made, storage, run_id=f"day{day}", day=day)[0].batch_id
        for day in range(5)
    ]
    collected = collect(database)
    assert collected.expired == tuple(numbers[:2])
    assert {one.need for one in collected.needed} == {Need.DEDUP_WINDOW}


def test_a_reprocess_brings_no_expired_batch_into_the_window(database, storage):
    """Whatever is replaced, all that a sink compares with has its files."""
    made = deduplicating(1)
    for day in range(4):
        settled(database, made, storage, run_id=f"day{day}", day=day)
    collect(database)
    again = reprocessed(database, made)  # of the first day, which has expired

    def window(batch_id):
        found = database.transact(
            lambda c: dedup.pipeline_deliveries(c, "sink", batch_id, again.pipeline_id, 1)
        )
        return [row.batch_id for row in found]

    newest = reprocess_of(database, made, day=3)
    assert window(newest.batch_id) == [3]
    there = storage.there()
    for run in rows(database, "SELECT step_run_id FROM step_run WHERE batch_id = 3"):
        assert run.step_run_id in there


def reprocess_of(database, made, day):
    interval = Interval(START + timedelta(days=day), START + timedelta(days=day + 1))
    key = RunKey("dag", f"reprocess{day}")
    return open_batch(database, Settings(data="/data"), made, key, interval, reprocess=True)


def test_a_window_that_an_open_batch_was_opened_with_holds(database, storage):
    """A sink that is yet to run compares as it did when its batch was opened, whatever a later
    batch of the pipeline says.
    """
    wide = deduplicating(3)
    for day in range(5):
        settled(database, wide, storage, run_id=f"day{day}", day=day)
    opened(database, wide, "wide", day=5)
    opened(database, deduplicating(1), "narrow", day=6)
    assert collect(database).expired == (1,)


def test_a_settlement_that_a_running_sink_did_not_see_moves_no_window(database, storage):
    """A batch whose settlement began before a sink did, and was committed after it had looked, is
    newer than none that the sink compares with. Once that has ended, the window is the last."""
    made = deduplicating(1)
    for day in range(4):
        settled(database, made, storage, run_id=f"day{day}", day=day)
    batch = opened(database, made, "runs", day=4)
    run_middle(database, batch, emit(database, batch, 1))
    run = started(database, batch.batch_id, "sink")
    assert collect(database).expired == ()
    fail(database, run, "a test")
    assert collect(database).expired == (1, 2)


def test_what_was_replaced_rests_as_long_as_the_rest(database, storage):
    """A sink that has begun may still compare its rows with a batch that another has replaced."""
    made = deduplicating(1)
    for day in range(4):
        settled(database, made, storage, run_id=f"day{day}", day=day, publish=False)
    published(database)
    age_ledger(database, 9 * DAY)
    again = reprocess_of(database, made, day=3)
    run_all(database, again)
    with database.plain.begin() as connection:
        connection.execute(
            text(
                "UPDATE publication SET published_at = now() - interval '9 days',"
                " replaced_at = NULL"
            )
        )
    assert 4 not in collect(database, days=0.5).expired
    assert 4 in collect(database, days=3).expired


def test_without_a_window_every_batch_is_kept(database, storage):
    """A sink that compares with all batches needs the files of all."""
    settled(database, deduplicating(None), storage)
    assert need(database) is Need.DEDUP_WINDOW


def test_what_a_source_has_read_for_an_open_batch_is_kept(database, storage):
    """A source that keeps its position reads nothing twice: its dead run has the records from
    which the next one emits them, until its batch is decided."""
    batch = opened(database, kept())
    emit(database, batch, 3)
    first = one(database, "SELECT step_run_id AS id FROM step_run").id
    database.transact(
        lambda c: checkpoints.insert(c, batch.pipeline_id, "source", batch.batch_id, first, 1)
    )
    roots = emit(database, batch, 3)
    storage(database)
    assert collect(database).total.files == 0
    run_middle(database, batch, roots)
    run_sink(database, batch, roots)
    settle_once(database, batch.batch_id)
    assert collect(database).removed["dead attempts"].files == 1
    assert first not in storage.there()
