"""Which files gc removes on the real PostgreSQL, which stay, and for whom."""

from pathlib import Path

import pytest
from sqlalchemy import text

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.core.states import Need
from ledger.errors import DeclarationError
from ledger.execution.steps import holding_lease
from ledger.spark.job import Job
from ledger.storage.folders import Size
from ledger.store.queries import batches, checkpoints
from tests.support.ledgers import pipeline
from tests.support.posting import Delta
from tests.support.retention import DAY, expiring


def test_files_go_once_nothing_needs_them(archive):
    """Of a batch that is acked and published all runs' folders go after keep, by kind, and the
    batch's own folder with them; before that none does."""
    batch, _ = archive.settled(expiring())
    assert archive.collect(days=0.5).total.files == 0
    collected = archive.collect()
    sizes = {kind: (size.files, size.bytes) for kind, size in collected.removed.items()}
    assert collected.expired == (batch.batch_id,)
    assert {kind: sizes[kind] for kind in ("snapshots", "outputs", "staged")} == dict.fromkeys(
        ("snapshots", "outputs", "staged"), (1, 10)
    )
    assert not list(archive.folder.glob("*/batch=*"))
    row = archive.row("SELECT files_expired_at, files_removed_at FROM batch")
    assert None not in row
    assert archive.row("SELECT files_expired_at FROM batch_status").files_expired_at is not None


def test_a_dry_run_changes_nothing(archive):
    """It counts what would go, and all of it is there afterwards."""
    batch, _ = archive.settled(expiring())
    before = archive.runs()
    collected = archive.collect(dry_run=True)
    assert (collected.expired, collected.total.files) == ((batch.batch_id,), 3)
    assert archive.runs() == before
    assert archive.row("SELECT files_expired_at FROM batch").files_expired_at is None
    assert archive.collect().total == collected.total


def test_without_keep_nothing_goes(archive):
    """A pipeline that declares none keeps its files, dead attempts and all, unless gc names one."""
    archive.start(archive.open(pipeline()).batch_id, "source")
    archive.settled(pipeline(), run_id="second", day=1)
    assert archive.collect().total.files == 0
    assert archive.collect(keep_seconds=DAY, pipeline="other").total.files == 0
    assert archive.collect(keep_seconds=DAY, pipeline="chain").total.files == 3


@pytest.mark.parametrize("keep", ["1h", 0, "3 weeks", float("inf")])
def test_a_keep_that_cannot_be_is_refused(keep):
    """Shorter than a day, unlimited under another name, or no duration: the declaration says so."""
    with pytest.raises(DeclarationError, match=r"pipeline 'chain'.*keep.*expected"):
        pipeline(keep=keep)


def test_the_last_batch_opened_sets_keep(archive):
    """The policy is stored as the others are: with each batch that opens."""
    archive.settled(expiring())
    archive.open(pipeline(), "again", day=1)
    assert archive.collect().total.files == 0
    assert archive.row("SELECT keep FROM pipeline").keep is None


def test_dead_attempts_go_a_day_after_their_batch_rested(archive):
    """A run that was fenced keeps its files while its driver may still write; those that count
    stay as long as their batch is open."""
    batch = archive.open(expiring())
    dead, alive = (archive.start(batch.batch_id, "source").run_id for _ in range(2))
    archive.write_files()
    assert archive.collect(days=0.9).total.files == 0
    collected = archive.collect()
    assert collected.removed["dead attempts"].files == 1
    assert archive.runs() == {alive}
    assert archive.collect().total.files == 0
    assert dead not in archive.runs()


def test_what_was_staged_beside_goes_too(archive):
    """Files from which failed rows were withheld lie beside the run's own: they go with them, and
    nothing else that lies there, for a sink of one's own may stage all batches in one folder.
    """
    archive.settled(expiring())
    (staged,) = archive.folder.glob("sink/batch=*")
    (run,) = (int(path.name.removeprefix("run=")) for path in staged.iterdir())
    for name in (f"kept-{run}-0a", f"kept-{run}0-0a", "kept-reports"):
        (staged / name).mkdir()
        (staged / name / "part.parquet").write_text("12345")
    assert archive.collect().removed["staged"].bytes == 15
    assert {path.name for path in staged.iterdir()} == {f"kept-{run}0-0a", "kept-reports"}


def test_files_of_a_table_are_never_removed(archive):
    """Where readers read what was staged, only attempts that were never to be published go."""
    batch = archive.open(expiring())
    archive.declare(batch.batch_id, "sink", in_place=True)
    roots = archive.emit(batch, 3)
    archive.run_middle(batch, roots)
    dead = archive.start(batch.batch_id, "sink").run_id
    archive.run_sink(batch, roots)
    archive.settle(batch.batch_id)
    archive.write_files()
    archive.publish()
    archive.collect()
    table = archive.row("SELECT step_run_id AS id FROM publication").id
    assert archive.runs() == {table}
    assert dead != table
    assert archive.collect().total.files == 0


@pytest.mark.parametrize("first", [ParquetSink, DeltaSink])
def test_a_sink_whose_kind_changed_keeps_what_its_table_has(archive, settings, first):
    """Opened as one kind and run as the other: what readers of a table read is not noted as a
    run's, or is known to be a table's, and is there after gc; what was only staged may go."""

    def chain(kind):
        flow = Pipeline("chain", keep="1d")
        flow.source("source", FileSource("in.csv", schema="n INT"))

        @flow.stage(reads="source")
        def middle(rows):
            return rows

        flow.sink("sink", kind("out"), reads="middle")
        return flow

    then = DeltaSink if first is ParquetSink else ParquetSink
    batch = archive.open(chain(first))
    roots = archive.emit(batch, 1)
    archive.run_middle(batch, roots)
    job = Job(None, archive.database, settings, chain(then))
    run = archive.start(batch.batch_id, "sink")
    folder = job.publisher(job.pipeline.step("sink")).staging(batch.batch_id, run.run_id)
    with holding_lease(job, run):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "part.parquet").write_text("0123456789")
    noted = archive.row("SELECT folder FROM step_run WHERE step = 'sink'").folder
    assert noted == (None if then is DeltaSink else folder)
    archive.finish(run, [Delta(root, root + 2000, 0, 1, 0) for root in roots])
    archive.settle(batch.batch_id)
    archive.publish()
    assert archive.collect().expired == (batch.batch_id,)
    assert Path(folder, "part.parquet").exists()


def test_filters_go_with_their_batch(archive):
    """The Bloom filter of a sink's run is removed once its batch has expired, and of no other."""
    archive.settled(expiring())
    archive.change(
        """
        INSERT INTO dedup_filter (step_run_id, key, capacity, error_rate, entries, filter)
        SELECT step_run_id, '{n}', 1, 0.1, 1, '\\x00112233' FROM step_run WHERE step = 'sink'
        """,
    )
    with archive.database.writer.begin() as connection:
        assert connection.execute(text("SELECT remove_filters(1)")).scalar() == 0
    assert archive.collect().removed["filters"].bytes == 4
    assert not archive.rows("SELECT * FROM dedup_filter")


def test_an_undecided_family_keeps_its_files(archive):
    """While a replay is open the files of its original stay."""
    flow = expiring()
    batch, _ = archive.settled(flow, lose_sink=[0])
    before = archive.runs()
    archive.replay(flow, batch.batch_id)
    assert archive.need() is Need.UNDECIDED
    assert archive.runs() == before


def test_failed_records_keep_their_files_until_they_are_replayed(archive):
    """A failed record's batch keeps its files however old; once it is recovered they go."""
    flow = expiring()
    batch, _ = archive.settled(flow, lose_sink=[0])
    assert archive.need() is Need.RECORDS_FAILED
    replay = archive.replay(flow, batch.batch_id)
    archive.settle_replay(replay)
    assert archive.need() is Need.UNPUBLISHED
    archive.publish()
    assert archive.collect().expired == (batch.batch_id,)
    assert archive.runs() == set()


def test_quarantined_records_keep_their_files_until_they_are_accepted(archive):
    """A user may replay them; an acceptance says that no user will."""
    batch, _ = archive.settled(expiring(max_replays=0), lose_sink=[0])
    assert archive.need() is Need.RECORDS_QUARANTINED
    archive.accept(batch.batch_id)
    assert archive.collect().expired == (batch.batch_id,)


def test_content_that_is_not_copied_keeps_the_files(archive):
    """A failed record's content is read from the snapshot: it stays until it was."""
    batch, _ = archive.settled(expiring(max_replays=0), publish=False, lose_sink=[0])
    archive.accept(batch.batch_id)
    assert archive.need() is Need.CONTENT_MISSING


def test_a_source_that_was_not_notified_keeps_the_files(archive):
    """on_ack and on_fail are handed the records, from the snapshot."""
    flow = Pipeline("chain", keep="1d")
    flow.source("source", FileSource("in.csv", schema="n INT"), on_ack=lambda number, rows: None)

    @flow.stage(reads="source")
    def middle(rows):
        return rows

    flow.sink("sink", ParquetSink("out"), reads="middle")
    batch, _ = archive.settled(flow)
    assert archive.need() is Need.NOTICE_PENDING
    archive.transact(batches.set_notified, batch.batch_id, "source")
    assert archive.collect().expired == (batch.batch_id,)


def test_the_current_state_is_never_removed(archive):
    """A state waits for each batch, the next starts from the newest, and older ones go."""
    flow = Pipeline("chain", keep="1d")
    flow.source("source", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="source")
    def middle(rows):
        return rows

    flow.sink("sink", ParquetSink("out"), reads="middle")

    @flow.stateful_stage(reads="middle")
    def total(state, rows):
        return rows

    flow.sink("shown", ParquetSink("totals"), reads="total")
    first, _ = archive.settled(flow)
    second, _ = archive.settled(flow, run_id="second", day=1)
    assert [family.need for family in archive.collect().needed] == [Need.STATE_DUE] * 2
    for batch in (first, second):
        with archive.database.plain.begin() as connection:
            run = connection.execute(
                text("""
                INSERT INTO step_run (batch_id, step, state, attempt_id, lease_until, closed_at)
                VALUES (:b, 'total', 'committed', gen_random_uuid(), now(), now())
                RETURNING step_run_id
                """),
                {"b": batch.batch_id},
            ).scalar_one()
        archive.transact(checkpoints.insert, batch.pipeline_id, "total", batch.batch_id, run, None)
    archive.write_files()
    collected = archive.collect()
    assert collected.expired == (first.batch_id,)
    assert collected.removed["states"] == Size(1, 10)
    assert run in archive.runs()
    assert [(row.batch_id, row.need) for row in collected.needed] == [
        (second.batch_id, Need.CURRENT_STATE)
    ]


def test_a_combine_that_is_due_keeps_the_files(archive):
    """It reads all batches of a family, once nothing is failed."""
    flow = expiring()

    @flow.combine(reads="middle")
    def totals(rows):
        return rows

    flow.sink("shown", ParquetSink("totals"), reads="totals")
    archive.settled(flow)
    assert archive.need() is Need.COMBINE_DUE
