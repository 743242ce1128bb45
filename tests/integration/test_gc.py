"""Which files gc removes on the real PostgreSQL, which stay, and for whom."""

from pathlib import Path

import pytest
from sqlalchemy import text

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.batch.acceptance import accept
from ledger.batch.settlement import settle_once
from ledger.core.states import Need
from ledger.errors import DeclarationError
from ledger.execution.steps import living
from ledger.spark.job import Job
from ledger.storage.folders import Size
from ledger.store.queries import batches, checkpoints
from tests.support.ledgers import (
    emit,
    emit_replay,
    finish,
    one,
    opened,
    pipeline,
    replayed,
    rows,
    run_middle,
    run_sink,
    started,
)
from tests.support.posting import Delta
from tests.support.retention import DAY, collect, kept, need, published, settled


def test_files_go_once_nothing_needs_them(database, storage):
    """Of a batch that is acked and published all runs' folders go after keep, by kind, and the
    batch's own folder with them; before that none does."""
    batch, _ = settled(database, kept(), storage)
    assert collect(database, days=0.5).total.files == 0
    collected = collect(database)
    sizes = {kind: (size.files, size.bytes) for kind, size in collected.removed.items()}
    assert collected.expired == (batch.batch_id,)
    assert {kind: sizes[kind] for kind in ("snapshots", "outputs", "staged")} == dict.fromkeys(
        ("snapshots", "outputs", "staged"), (1, 10)
    )
    assert not list(storage.folder.glob("*/batch=*"))
    found = one(database, "SELECT files_expired_at, files_removed_at FROM batch")
    assert None not in found
    assert one(database, "SELECT files_expired_at FROM batch_status").files_expired_at is not None


def test_a_dry_run_changes_nothing(database, storage):
    """It counts what would go, and all of it is there afterwards."""
    batch, _ = settled(database, kept(), storage)
    before = storage.there()
    collected = collect(database, dry_run=True)
    assert (collected.expired, collected.total.files) == ((batch.batch_id,), 3)
    assert storage.there() == before
    assert one(database, "SELECT files_expired_at FROM batch").files_expired_at is None
    assert collect(database).total == collected.total


def test_without_keep_nothing_goes(database, storage):
    """A pipeline that declares none keeps its files, dead attempts and all, unless it is told."""
    started(database, opened(database, pipeline()).batch_id, "source")
    settled(database, pipeline(), storage, run_id="second", day=1)
    assert collect(database).total.files == 0
    assert collect(database, keep_seconds=DAY, pipeline="other").total.files == 0
    assert collect(database, keep_seconds=DAY, pipeline="chain").total.files == 3


@pytest.mark.parametrize("keep", ["1h", 0, "3 weeks", float("inf")])
def test_a_keep_that_cannot_be_is_refused(keep):
    """Shorter than a day, for good under another name, or no duration: the declaration says so."""
    with pytest.raises(DeclarationError, match=r"pipeline 'chain'.*keep.*expected"):
        pipeline(keep=keep)


def test_the_last_batch_opened_sets_keep(database, storage):
    """The policy is stored as the others are: with each batch that opens."""
    settled(database, kept(), storage)
    opened(database, pipeline(), "again", day=1)
    assert collect(database).total.files == 0
    assert one(database, "SELECT keep_seconds FROM pipeline").keep_seconds is None


def test_dead_attempts_go_a_day_after_their_batch_rested(database, storage):
    """A run that was fenced keeps its files while its driver may still write; those that count
    stay as long as their batch is open."""
    batch = opened(database, kept())
    dead, alive = (started(database, batch.batch_id, "source").run_id for _ in range(2))
    storage(database)
    assert collect(database, days=0.9).total.files == 0
    collected = collect(database)
    assert collected.removed["dead attempts"].files == 1
    assert storage.there() == {alive}
    assert collect(database).total.files == 0
    assert dead not in storage.there()


def test_what_was_staged_beside_goes_too(database, storage):
    """Files from which failed rows were withheld lie beside the run's own: they go with them, and
    nothing else that lies there, for a sink of one's own may stage all batches in one folder.
    """
    settled(database, kept(), storage)
    (staged,) = storage.folder.glob("sink/batch=*")
    (run,) = (int(one.name.removeprefix("run=")) for one in staged.iterdir())
    for name in (f"kept-{run}-0a", f"kept-{run}0-0a", "kept-reports"):
        (staged / name).mkdir()
        (staged / name / "part.parquet").write_text("12345")
    assert collect(database).removed["staged"].bytes == 15
    assert {one.name for one in staged.iterdir()} == {f"kept-{run}0-0a", "kept-reports"}


def test_files_of_a_table_are_never_removed(database, storage):
    """Where readers read what was staged, only attempts that were never to be published go."""
    batch = opened(database, kept())
    with database.plain.begin() as connection:
        connection.execute(
            text("""
            UPDATE batch_step SET declaration = declaration || '{"in_place": true}'
            WHERE kind = 'sink'
            """)
        )
    roots = emit(database, batch, 3)
    run_middle(database, batch, roots)
    dead = started(database, batch.batch_id, "sink").run_id
    run_sink(database, batch, roots)
    settle_once(database, batch.batch_id)
    storage(database)
    published(database)
    collect(database)
    table = one(database, "SELECT step_run_id AS id FROM publication").id
    assert storage.there() == {table}
    assert dead != table
    assert collect(database).total.files == 0


@pytest.mark.parametrize("first", [ParquetSink, DeltaSink])
def test_a_sink_whose_kind_changed_keeps_what_its_table_has(database, settings, first):
    """Opened as one kind and run as the other: what readers of a table read is not noted as a
    run's, or is known to be a table's, and is there after gc; what was only staged may go."""

    def chain(kind):
        made = Pipeline("chain", keep="1d")
        made.source("source", FileSource("in.csv", schema="n INT"))

        @made.stage(reads="source")
        def middle(rows):
            return rows

        made.sink("sink", kind("out"), reads="middle")
        return made

    then = DeltaSink if first is ParquetSink else ParquetSink
    batch = opened(database, chain(first))
    roots = emit(database, batch, 1)
    run_middle(database, batch, roots)
    job = Job(None, database, settings, chain(then))
    run = started(database, batch.batch_id, "sink")
    folder = job.publisher(job.pipeline.step("sink")).staging(batch.batch_id, run.run_id)
    with living(job, run):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "part.parquet").write_text("0123456789")
    noted = one(database, "SELECT folder FROM step_run WHERE step = 'sink'").folder
    assert noted == (None if then is DeltaSink else folder)
    finish(database, run, [Delta(root, root + 2000, 0, 1, 0) for root in roots])
    settle_once(database, batch.batch_id)
    published(database)
    assert collect(database).expired == (batch.batch_id,)
    assert Path(folder, "part.parquet").exists()


def test_filters_go_with_their_batch(database, storage):
    """The Bloom filter of a sink's run is removed once its batch has expired, and of no other."""
    settled(database, kept(), storage)
    with database.plain.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO dedup_filter (step_run_id, key, capacity, error_rate, entries, filter)
            SELECT step_run_id, '{n}', 1, 0.1, 1, '\\x00112233' FROM step_run WHERE step = 'sink'
            """)
        )
    with database.writer.begin() as connection:
        assert connection.execute(text("SELECT remove_filters(1)")).scalar() == 0
    assert collect(database).removed["filters"].bytes == 4
    assert not rows(database, "SELECT * FROM dedup_filter")


def test_an_undecided_family_keeps_its_files(database, storage):
    """While a replay is open the files of its original stay."""
    made = kept()
    batch, _ = settled(database, made, storage, lose_sink=[0])
    before = storage.there()
    replayed(database, made, batch.batch_id)
    assert need(database) is Need.UNDECIDED
    assert storage.there() == before


def test_failed_records_keep_their_files_until_they_are_replayed(database, storage):
    """A failed record's batch keeps its files however old; once it is recovered they go."""
    made = kept()
    batch, _ = settled(database, made, storage, lose_sink=[0])
    assert need(database) is Need.RECORDS_FAILED
    replay = replayed(database, made, batch.batch_id)
    roots = emit_replay(database, replay)
    run_middle(database, replay, roots)
    run_sink(database, replay, roots)
    settle_once(database, replay.batch_id)
    storage(database)
    assert need(database) is Need.UNPUBLISHED
    published(database)
    assert collect(database).expired == (batch.batch_id,)
    assert storage.there() == set()


def test_quarantined_records_keep_their_files_until_they_are_accepted(database, storage):
    """Somebody may take them up again; an acceptance says that nobody will."""
    batch, _ = settled(database, kept(max_replays=0), storage, lose_sink=[0])
    assert need(database) is Need.RECORDS_QUARANTINED
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)


def test_content_that_is_not_copied_keeps_the_files(database, storage):
    """A failed record's content is read from the snapshot: it stays until it was."""
    batch, _ = settled(database, kept(max_replays=0), storage, publish=False, lose_sink=[0])
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert need(database) is Need.CONTENT_MISSING


def test_a_source_that_was_not_told_keeps_the_files(database, storage):
    """on_ack and on_fail are handed the records, from the snapshot."""
    made = Pipeline("chain", keep="1d")
    made.source("source", FileSource("in.csv", schema="n INT"), on_ack=lambda number, rows: None)

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out"), reads="middle")
    batch, _ = settled(database, made, storage)
    assert need(database) is Need.SOURCE_UNTOLD
    database.transact(lambda c: batches.set_notified(c, batch.batch_id, "source"))
    assert collect(database).expired == (batch.batch_id,)


def test_the_current_state_is_never_removed(database, storage):
    """A state waits for each batch, the next starts from the newest, and older ones go."""
    made = Pipeline("chain", keep="1d")
    made.source("source", FileSource("in.csv", schema="n INT"))

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out"), reads="middle")

    @made.stateful_stage(reads="middle")
    def total(state, rows):
        return rows

    made.sink("shown", ParquetSink("totals"), reads="total")
    first, _ = settled(database, made, storage)
    second, _ = settled(database, made, storage, run_id="second", day=1)
    assert [one.need for one in collect(database).needed] == [Need.STATE_DUE] * 2
    for batch in (first, second):
        with database.plain.begin() as connection:
            run = connection.execute(
                text("""
                INSERT INTO step_run (batch_id, step, state, attempt_id, lease_until, closed_at)
                VALUES (:b, 'total', 'committed', gen_random_uuid(), now(), now())
                RETURNING step_run_id
                """),
                {"b": batch.batch_id},
            ).scalar_one()
        database.transact(
            lambda c, b=batch, r=run: checkpoints.insert(
                c, b.pipeline_id, "total", b.batch_id, r, None
            )
        )
    storage(database)
    collected = collect(database)
    assert collected.expired == (first.batch_id,)
    assert collected.removed["states"] == Size(1, 10)
    assert run in storage.there()
    assert [(one.batch_id, one.need) for one in collected.needed] == [
        (second.batch_id, Need.CURRENT_STATE)
    ]


def test_a_combine_that_is_due_keeps_the_files(database, storage):
    """It reads all batches of a family, once nothing is failed."""
    made = kept()

    @made.combine(reads="middle")
    def totals(rows):
        return rows

    made.sink("shown", ParquetSink("totals"), reads="totals")
    settled(database, made, storage)
    assert need(database) is Need.COMBINE_DUE
