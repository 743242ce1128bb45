"""Which batches a window of deduplication, or a claim, keeps from gc."""

from datetime import timedelta

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import Need
from ledger.settings import Settings
from ledger.store.queries import dedup
from tests.support.ledgers import START
from tests.support.retention import DAY


def deduplicating(window):
    pipeline = Pipeline("chain", keep="1d")
    pipeline.source("source", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="source")
    def middle(rows):
        return rows

    dedup = Bloom(capacity=100, key="n", window_batches=window)
    pipeline.sink("sink", ParquetSink("out", dedup=dedup), reads="middle")
    return pipeline


def test_a_dedup_window_keeps_its_batches_and_one_more(archive):
    """A batch that replaces the newest is compared with as many batches before that one."""
    pipeline = deduplicating(2)
    numbers = [
        archive.settled(pipeline, run_id=f"day{day}", day=day)[0].batch_id for day in range(5)
    ]
    collected = archive.collect()
    assert collected.expired == tuple(numbers[:2])
    assert {family.need for family in collected.needed} == {Need.DEDUP_WINDOW}


def test_a_reprocess_brings_no_expired_batch_into_the_window(archive):
    """Whatever is replaced, all that a sink compares with has its files."""
    pipeline = deduplicating(1)
    for day in range(4):
        archive.settled(pipeline, run_id=f"day{day}", day=day)
    archive.collect()
    again = archive.reprocess(pipeline)  # of the first day, which has expired

    def window(batch_id):
        result = archive.transact(dedup.pipeline_deliveries, "sink", batch_id, again.pipeline_id, 1)
        return [row.batch_id for row in result]

    newest = reprocess_of(archive, pipeline, day=3)
    assert window(newest.batch_id) == [3]
    there = archive.runs()
    for run in archive.rows("SELECT step_run_id FROM step_run WHERE batch_id = 3"):
        assert run.step_run_id in there


def reprocess_of(archive, pipeline, day):
    interval = Interval(START + timedelta(days=day), START + timedelta(days=day + 1))
    key = RunKey("dag", f"reprocess{day}")
    return open_batch(
        archive.database, Settings(data="/data"), pipeline, key, interval, reprocess=True
    )


def test_a_window_that_an_open_batch_was_opened_with_holds(archive):
    """A sink that is yet to run compares as it did when its batch was opened, whatever a later
    batch of the pipeline says.
    """
    wide = deduplicating(3)
    for day in range(5):
        archive.settled(wide, run_id=f"day{day}", day=day)
    archive.open(wide, "wide", day=5)
    archive.open(deduplicating(1), "narrow", day=6)
    assert archive.collect().expired == (1,)


def test_a_settlement_that_a_running_sink_did_not_see_moves_no_window(archive):
    """A batch whose settlement began before a sink did, and was committed after it had looked, is
    newer than none that the sink compares with. Once that has ended, the window is the last."""
    pipeline = deduplicating(1)
    for day in range(4):
        archive.settled(pipeline, run_id=f"day{day}", day=day)
    batch = archive.open(pipeline, "runs", day=4)
    archive.run_middle(batch, archive.emit(batch, 1))
    run = archive.start(batch.batch_id, "sink")
    assert archive.collect().expired == ()
    archive.fail(run, "a test")
    assert archive.collect().expired == (1, 2)


def test_what_was_replaced_rests_as_long_as_the_rest(archive):
    """A sink that has begun may still compare its rows with a batch that another has replaced."""
    pipeline = deduplicating(1)
    for day in range(4):
        archive.settled(pipeline, run_id=f"day{day}", day=day, publish=False)
    archive.publish()
    archive.age_all(9 * DAY)
    again = reprocess_of(archive, pipeline, day=3)
    archive.run_all(again)
    archive.change(
        "UPDATE publication SET published_at = now() - interval '9 days', replaced_at = NULL"
    )
    assert 4 not in archive.collect(days=0.5).expired
    assert 4 in archive.collect(days=3).expired


def test_without_a_window_every_batch_is_kept(archive):
    """A sink that compares with all batches needs the files of all."""
    archive.settled(deduplicating(None))
    assert archive.need() is Need.DEDUP_WINDOW
