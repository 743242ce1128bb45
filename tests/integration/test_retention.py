"""Retention on the real PostgreSQL: which files go, which stay and for whom, and what a death in
between leaves."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import event, text
from typer.testing import CliRunner

from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.airflow import sweeper_dag
from ledger.batch import retention
from ledger.batch.acceptance import accept
from ledger.batch.forgetting import forget, holding, matching, named
from ledger.batch.interventions import abandon
from ledger.batch.opening import open_batch
from ledger.batch.payloads import claimed_keys
from ledger.batch.quarantine import quarantine
from ledger.batch.retention import GcOptions, gc_once
from ledger.batch.settlement import settle_once
from ledger.batch.step_runs import fail, note_folder
from ledger.cli import app, retaining
from ledger.core import conditions
from ledger.core.probes import listening
from ledger.core.redaction import Redaction
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import Need
from ledger.errors import (
    ConfigurationError,
    DeclarationError,
    InputError,
    LedgerError,
    NotReadyError,
    UnavailableError,
)
from ledger.execution.steps import living
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.storage.folders import Size
from ledger.store.queries import batches, checkpoints, dedup, forgetting, payloads, replays
from tests.support.dying import Died, dies_at
from tests.support.ledgers import (
    START,
    age_ledger,
    deliver,
    emit,
    emit_replay,
    finish,
    one,
    opened,
    pipeline,
    replayed,
    reprocessed,
    rows,
    run_all,
    run_middle,
    run_sink,
    started,
    whole_batch,
)
from tests.support.posting import Delta

DAY = 86400.0
OTHER = '{"n": 12, "email": "c@d.org"}'


def kept(**options):
    """The chain, of which files are kept for a day."""
    return pipeline(keep="1d", **options)


@pytest.fixture
def storage(database, tmp_path):
    """Has every run write a file where it notes it, as drivers do."""
    folder = tmp_path / "storage"

    def write(database_):
        for run in rows(database_, "SELECT * FROM step_run WHERE folder IS NULL"):
            place = folder / run.step / f"batch={run.batch_id}" / f"run={run.step_run_id}"
            place.mkdir(parents=True)
            (place / "part.parquet").write_text("0123456789")
            with database.writer.begin() as connection:
                connection.execute(
                    text("UPDATE step_run SET folder = :f WHERE step_run_id = :r"),
                    {"f": str(place), "r": run.step_run_id},
                )
                connection.execute(
                    text("INSERT INTO step_run_file VALUES (:r, 0, :f || '/part.parquet', 10, 1)"),
                    {"f": str(place), "r": run.step_run_id},
                )

    write.folder = folder
    write.there = lambda: {
        int(path.name.removeprefix("run=")) for path in folder.glob("*/batch=*/run=*")
    }
    return write


def settled(database, made, write, publish=True, **options):
    """A batch that is settled, published and whose content is kept."""
    batch, roots = whole_batch(database, made, **options)
    settle_once(database, batch.batch_id)
    write(database)
    if publish:
        published(database)
    return batch, roots


def published(database):
    """Every sink publishes, and the content of failed records is kept."""
    deliver(database)
    with database.plain.begin() as connection:
        connection.execute(
            text("""
            INSERT INTO failed_payload (message_id, batch_id, root_id, key, content, parsed)
            SELECT message_id, original_batch_id, message_id, '{"n": 4711}',
                   '{"n": 4711, "email": "a@b.org"}', true
            FROM failed_message ON CONFLICT DO NOTHING
            """)
        )


def later(database, days=3.0):
    return database.transact(batches.database_now) + timedelta(days=days)


def collect(database, days=3.0, **options):
    return gc_once(database, GcOptions(**options), now=later(database, days))


def need(database):
    """What keeps the files of the only old family."""
    (found,) = collect(database).kept
    return found.need


# -- what goes ---------------------------------------------------------------------------------


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
    with living(job, run, lambda: None):
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


# -- what stays, and for whom ------------------------------------------------------------------


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
    assert [one.need for one in collect(database).kept] == [Need.STATE_DUE] * 2
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
    assert [(one.batch_id, one.need) for one in collected.kept] == [
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
    assert {one.need for one in collected.kept} == {Need.DEDUP_WINDOW}


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


# -- replays of what is gone -------------------------------------------------------------------


def expired(database, storage, made):
    """A batch whose only quarantined record is accepted, and whose files are gone."""
    batch, roots = settled(database, made, storage, lose_sink=[0])
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    return batch, roots


def test_a_replay_of_what_is_gone_is_refused(database, storage):
    """It says since when, and both ways to process the records again; a selection of all leaves the
    batch out."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)
    told = r"batch 1 .* removed by retention on \d{4}-.*--from-source.*--reprocess"
    with pytest.raises(InputError, match=told):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True)
    everything = (None, None, {"quarantined": True}, later(database))
    assert not database.transact(lambda c: replays.batches_to_replay(c, *everything))
    again = replayed(
        database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    assert again.files_expired_at is None


def test_a_replay_from_the_source_expires_by_itself(database, storage):
    """Its files are kept like any other's, and go when it is old."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)
    again = replayed(
        database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    roots = emit_replay(database, again)
    run_middle(database, again, roots)
    run_sink(database, again, roots)
    settle_once(database, again.batch_id)
    storage(database)
    assert need(database) is Need.UNPUBLISHED
    published(database)
    assert collect(database).expired == (batch.batch_id,)
    assert storage.there() == set()


def test_totals_need_the_whole_family(database, storage):
    """Where a combine reads all batches of a family, even a replay from the source is refused."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)

    @made.combine(reads="middle")
    def totals(rows):
        return rows

    made.sink("shown", ParquetSink("totals"), reads="totals")
    with pytest.raises(InputError, match=r"'totals' would read them.*--reprocess"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True)


@pytest.mark.parametrize("now", ["n", ()])
def test_a_masked_key_finds_nothing_without_the_snapshot(database, storage, now):
    """A key that was kept as a pseudonym is refused before the replay opens, and one that was kept
    as it is finds its record, whatever the pipeline redacts by now."""
    batch, _ = expired(database, storage, kept(max_replays=0, key=("n",)))
    redacting = kept(max_replays=0, key=("n",), redact=now)
    kept_as = "UPDATE failed_payload SET parsed = true, key = jsonb_build_object('n', :k)"
    secret = Redaction.of(["n"], b"secret")
    changed(database, kept_as.replace(":k", "cast(:k AS text)"), k=secret.pseudonym("n", "7"))
    with pytest.raises(InputError, match=r"the ledger has pseudonyms of their keys.*--reprocess"):
        replayed(
            database, redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True
        )
    assert rows(database, "SELECT status, attempts FROM failed_message") == [("quarantined", 1)]
    assert len(rows(database, "SELECT FROM batch")) == 1
    changed(database, kept_as.replace(":k", "cast(:k AS text)"), k="7")
    again = replayed(
        database, redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    assert [key for _, key, _ in claimed_keys(database, again, "source", ["n"])] == [["7"]]


def test_a_sink_that_compares_with_its_family_needs_it(database, storage):
    """At least once, dedup reads what earlier batches of a family delivered: so is that."""
    made = Pipeline("chain", keep="1d", guarantee="at_least_once", max_replays=0)
    made.source("source", FileSource("in.csv", schema="n INT"), key="n")

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out", dedup="exact"), reads="middle")
    batch, _ = expired(database, storage, made)
    with pytest.raises(InputError, match=r"'sink' would read them.*--reprocess"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True)


def test_what_no_interval_brings_again_is_delivered_anew(database, storage):
    """Of an incremental source neither way out exists: the refusal names the third."""
    made = Pipeline("chain", keep="1d", max_replays=0)
    made.source("source", FileSource("in*.csv", schema="n INT", incremental=True))

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out"), reads="middle")
    batch, _ = expired(database, storage, made)
    with pytest.raises(InputError, match="deliver the records again, corrected"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True)


def test_an_abandoned_replay_is_not_opened_again(database, storage):
    """Its run would read what is gone, and its own files go with the family's."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = settled(database, made, storage, lose_sink=[0])
    replay = replayed(
        database, made, batch.batch_id, "late", quarantined=True, accepted=True, from_source=True
    )
    assert abandon(database, replay.batch_id, "its source never came")
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    with pytest.raises(InputError, match="removed by retention"):
        replayed(
            database,
            made,
            batch.batch_id,
            "late",
            quarantined=True,
            accepted=True,
            from_source=True,
        )


# -- deaths and others at it -------------------------------------------------------------------


@pytest.mark.parametrize("place", ["expiring files", "files expired", "folder removed"])
def test_the_next_gc_finishes_what_one_began(database, storage, place):
    """Whoever dies while files expire or go, the next one removes all of them, and says so."""
    settled(database, kept(), storage)
    with dies_at(place), pytest.raises(Died):
        collect(database)
    marked = one(database, "SELECT files_expired_at FROM batch").files_expired_at
    assert (marked is None) == (place == "expiring files")
    assert one(database, "SELECT files_removed_at FROM batch").files_removed_at is None
    collect(database)
    assert storage.there() == set()
    assert one(database, "SELECT files_removed_at FROM batch").files_removed_at is not None
    assert collect(database).total.files == 0


def test_what_changes_after_the_look_is_looked_at_again(database, storage):
    """A replay that opens between the look and the mark keeps the files: both take the pipeline's
    lock, and the second look is under it."""
    made = kept(max_replays=0)
    batch, _ = settled(database, made, storage, lose_sink=[0])
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    replayed_by = []

    def between(what, done, of):
        if what == "expiring batches" and not replayed_by:
            replayed_by.append(
                replayed(database, made, batch.batch_id, quarantined=True, accepted=True)
            )

    collected = gc_once(database, now=later(database), on_progress=between)
    assert collected.expired == ()
    assert replayed_by
    assert len(storage.there()) == 3


def test_gc_waits_for_a_replay_that_opens(database, storage):
    """A replay that is not committed is seen by nobody: the lock that both take makes gc wait for
    it, look again, and keep what it reads."""
    made = kept(max_replays=0)
    batch, _ = settled(database, made, storage, lose_sink=[0])
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    claimed, on = threading.Event(), threading.Event()

    def stand_still(place, of):
        if place == "claiming messages":
            claimed.set()
            assert on.wait(60)

    with listening(stand_still), ThreadPoolExecutor(2) as pool:
        try:
            again = pool.submit(
                replayed, database, made, batch.batch_id, quarantined=True, accepted=True
            )
            assert claimed.wait(60)
            collected = pool.submit(collect, database)
            until = time.monotonic() + 60
            while not collected.done() and not waiting(database):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert not collected.done()
        finally:
            on.set()
        assert again.result(60).files_expired_at is None
        assert collected.result(60).expired == ()
    assert len(storage.there()) == 3


def waiting(database):
    """Whether a session of this ledger waits for a lock that another one holds."""
    with database.plain.connect() as connection:
        return connection.exec_driver_sql(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock')"
        ).scalar_one()


def test_a_batch_that_somebody_holds_is_left(database, storage):
    """A family under another's lock waits for no one, and no one for it: the next gc takes it."""
    batch, _ = settled(database, kept(), storage)
    with database.writer.begin() as connection:
        batches.lock_batch(connection, batch.batch_id)
        assert collect(database).expired == ()
    assert collect(database).expired == (batch.batch_id,)


def test_a_folder_that_cannot_be_removed_is_told(database, storage, monkeypatch):
    """It keeps no other waiting, is named, and is tried again."""
    settled(database, kept(), storage)
    settled(database, kept(), storage, run_id="second", day=1)
    removed = retention.remove_run_folder

    def refuse(folder, run_id):
        if "source/batch=1" in folder:
            raise PermissionError(13, "Permission denied", folder)
        removed(folder, run_id)

    monkeypatch.setattr(retention, "remove_run_folder", refuse)
    collected = collect(database)
    assert list(collected.errors) == [1]
    assert "source/batch=1" in collected.errors[1]
    assert len(storage.there()) == 1
    monkeypatch.undo()
    assert collect(database).total.files == 1
    assert storage.there() == set()


def test_a_storage_out_of_reach_is_not_taken_for_empty(database, storage):
    """Where this machine does not see the storage nothing is noted as removed, and gc says so."""
    settled(database, kept(), storage)
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    collected = collect(database)
    assert "where the storage can be reached" in collected.errors[1]
    assert one(database, "SELECT files_removed_at FROM batch").files_removed_at is None
    away.rename(storage.folder)
    assert collect(database).total.files == 3
    assert storage.there() == set()


def test_a_dead_sink_is_not_taken_for_removed_where_its_storage_is_not(database, storage):
    """What an attempt that never committed has staged is there when the storage is mounted again,
    and goes then; its batch may have expired meanwhile."""
    batch = opened(database, kept())
    roots = emit(database, batch, 3)
    run_middle(database, batch, roots)
    dead = started(database, batch.batch_id, "sink").run_id
    run_sink(database, batch, roots)
    storage(database)
    with database.plain.begin() as connection:
        manifest = text("DELETE FROM step_run_file WHERE step_run_id = :r")
        connection.execute(manifest, {"r": dead})
    removed = "SELECT files_removed_at FROM step_run WHERE step_run_id = :r"
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    assert collect(database).total.files == 0
    assert one(database, removed, r=dead).files_removed_at is None
    away.rename(storage.folder)
    assert collect(database).removed["dead attempts"].files == 1
    assert one(database, removed, r=dead).files_removed_at is not None
    assert dead not in storage.there()


def test_where_a_run_writes_is_noted_once(database, storage):
    """Whoever is not the owner cannot have another folder removed in the place of the noted one."""
    settled(database, kept(), storage)
    for other in ("'/data/run=1'", "NULL"):
        change = text(f"UPDATE step_run SET folder = {other} WHERE step_run_id = 1")
        with pytest.raises(ConfigurationError, match="step_run is history"):
            database.transact(lambda c, change=change: c.execute(change))
    with database.writer.begin() as connection:  # the same again, as after a lost answer
        connection.execute(text("UPDATE step_run SET folder = folder WHERE step_run_id = 1"))


def test_a_folder_of_another_name_is_not_removed(database, storage, tmp_path):
    """What a sink of one's own calls its staging folder has to name the run: else nothing goes."""
    batch = opened(database, kept())
    run = started(database, batch.batch_id, "source")
    note_folder(database, run, str(tmp_path))
    started(database, batch.batch_id, "source")
    collected = collect(database)
    assert "expected a folder whose name ends in" in collected.errors[batch.batch_id]
    assert tmp_path.exists()


def test_gc_asks_nothing_of_what_has_expired(database, storage):
    """Over years it costs as much as there is to remove: no statement reads a row of a batch whose
    files are gone."""
    for day in range(3):
        settled(database, kept(), storage, run_id=f"day{day}", day=day)
    collect(database)
    asked = []

    def listen(connection, cursor, statement, parameters, context, many):
        asked.append(statement)

    event.listen(database.writer, "before_cursor_execute", listen)
    try:
        collect(database)
    finally:
        event.remove(database.writer, "before_cursor_execute", listen)
    assert len(asked) == 4  # the clock, candidates, what was begun, dead runs


# -- forget ------------------------------------------------------------------------------------


def recorded(database, step_run_id, contents):
    """As if a source's run had read these records, of number and address."""
    table = pa.table({"n": [n for n, _ in contents], "email": [email for _, email in contents]})
    with database.plain.begin() as connection:
        keys = {"r": step_run_id}
        find = text("SELECT path FROM step_run_file WHERE step_run_id = :r")
        path = connection.execute(find, keys).scalar_one()
        pq.write_table(table, path)
        connection.execute(
            text("UPDATE step_run_file SET bytes = :b, rows = :n WHERE step_run_id = :r"),
            {**keys, "b": Path(path).stat().st_size, "n": len(contents)},
        )


def changed(database, statement, **values):
    """Change a row as nobody but the owner may."""
    with database.plain.begin() as connection:
        assert connection.execute(text(statement), values).rowcount == 1


@pytest.fixture
def forgettable(database, storage):
    """A batch with a quarantined record whose content and reason name an address."""
    batch, roots = settled(database, kept(max_replays=0), storage, lose_sink=[0, 1])
    recorded(database, 1, [(4711, "a@b.org"), (12, "c@d.org"), *((n, "e@f.org") for n in range(8))])
    changed(
        database,
        "UPDATE failed_root SET reason = 'no such customer: a@b.org', detail = '4711,a@b.org'"
        " WHERE root_id = :r",
        r=roots[0],
    )
    changed(
        database,
        "UPDATE failed_payload SET content = :c, key = NULL WHERE message_id = :r",
        r=roots[1],
        c=OTHER,
    )
    return batch, roots


def everything(database):
    """Every row of every table as text."""
    tables = rows(
        database,
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'pipeline'",
    )
    with database.plain.connect() as connection:
        found = [
            connection.execute(text(f"SELECT coalesce(string_agg(t::text, ' '), '') FROM {name} t"))
            for (name,) in tables
        ]
        return " ".join(one.scalar() for one in found)


def test_a_forgotten_record_leaves_no_content(database, forgettable):
    """Its key, content, raw text, and what its reason quotes are gone; counts and verdicts stay."""
    batch, roots = forgettable
    before = rows(database, "SELECT * FROM batch_status")
    assert "a@b.org" in everything(database)
    found = matching(database, "chain", conditions.parse("email = 'a@b.org'"))
    assert [one.record for one in found] == [roots[0]]
    forgotten = forget(database, found)
    assert "a@b.org" not in everything(database)
    assert rows(database, "SELECT * FROM batch_status") == before
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "no such customer: ***"
    other = one(database, "SELECT content FROM failed_payload WHERE message_id = :r", r=roots[1])
    assert other.content == OTHER
    assert [one.batch_id for one in forgotten.holding] == [batch.batch_id]


def test_what_is_masked_is_read_where_no_copy_was_made(database, forgettable):
    """By its number, too, a record is forgotten with what its reason quotes, though the ledger
    never had its content."""
    _, roots = forgettable
    changed(database, "DELETE FROM failed_payload WHERE message_id = :r", r=roots[0])
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "no such customer: ***"


def test_what_each_attempt_has_read_is_masked(database, storage):
    """A record that was corrected and read again is quoted by the reasons of both attempts, each
    with what it contained then; the ledger has the later content alone."""
    made = kept(max_replays=1, key=("n",))
    batch, roots = settled(database, made, storage, lose_sink=[0])
    recorded(database, 1, [(n, "first@b.org") for n in range(10)])
    again = replayed(database, made, batch.batch_id, from_source=True)
    (second,) = emit_replay(database, again)
    run_middle(database, again, [second], fail={second: "no such customer: Second@b.org"})
    run_sink(database, again, [])
    settle_once(database, again.batch_id)
    storage(database)
    emitted = one(database, "SELECT max(emit_run_id) AS id FROM batch_source").id
    recorded(database, emitted, [(4711, "second@b.org")])
    quoting = "UPDATE failed_root SET reason = 'not first@b.org' WHERE root_id = :r"
    changed(database, quoting, r=roots[0])
    changed(
        database,
        "UPDATE failed_payload SET root_id = :s, content = :c WHERE message_id = :r",
        s=second,
        r=roots[0],
        c='{"n": 4711, "email": "second@b.org"}',
    )
    forget(database, named(database, roots[0]))
    assert "@b.org" not in everything(database)
    reasons = [row.reason for row in rows(database, "SELECT reason FROM failed_root ORDER BY 1")]
    assert reasons == ["no such customer: ***", "not ***"]


def test_no_text_of_its_family_quotes_a_forgotten_record(database, forgettable):
    """Failures of runs, why a batch was held, what a person gave as a reason or chose by, what was
    dropped, failures that it shares: all are masked, and what was counted is."""
    batch, roots = forgettable
    replay = replayed(
        database, kept(max_replays=0), batch.batch_id, quarantined=True, accepted=True
    )
    abandon(database, replay.batch_id, "a test")
    told = "of a@b.org, "
    for table, column, row in (
        ("step_run", "failure", "step_run_id = 3"),
        ("batch", "held_reason", "batch_id = 1"),
        ("failed_root", "shared = true, reason", f"root_id = {roots[1]}"),
    ):
        changed(database, f"UPDATE {table} SET {column} = :t WHERE {row}", t=told + table)
    chosen = '{"quarantined": true, "reason": "%a@b.org"}'
    changed(database, "UPDATE batch SET selection = :s WHERE batch_id = 2", s=chosen)
    for statement in (
        "INSERT INTO step_run_drop VALUES (2, :t || 'dropped', 5)",
        "INSERT INTO step_run_drop VALUES (2, 'of ***, dropped', 7)",
        "INSERT INTO root_fail VALUES (1, 2, :r + 1, :t || 'root', 'c@d.org', true)",
        "INSERT INTO acceptance (batch_id, accepted_by, reason) VALUES (1, 'me', :t || 'accepted')",
        "INSERT INTO manual_quarantine VALUES (:r, :t || 'quarantined', 'me')",
    ):
        changed(database, statement, t=told, r=roots[0])
    counted = (
        "SELECT to_jsonb(s) - 'failure' FROM step_progress s",
        "SELECT to_jsonb(b) - 'held_reason' FROM batch_status b",
        "SELECT status, count(*) FROM root_status GROUP BY 1 ORDER BY 1",
        "SELECT sum(records) FROM step_drops",
    )
    before = [rows(database, query) for query in counted]
    forget(database, named(database, roots[0]))
    found = everything(database)
    assert "a@b.org" not in found
    for end in ("step_run", "batch", "failed_root", "root", "accepted", "quarantined"):
        assert f"of ***, {end}" in found
    assert rows(database, "SELECT reason, records FROM step_run_drop") == [("of ***, dropped", 12)]
    assert [rows(database, query) for query in counted] == before
    assert one(database, "SELECT detail FROM root_fail").detail == "c@d.org"
    selection = one(database, "SELECT selection FROM batch WHERE batch_id = 2").selection
    assert selection == {"quarantined": True, "reason": "%***"}


def test_a_text_that_several_steps_gave_is_masked(database, forgettable):
    """Two sinks refuse a record in the same words, one of them in a row of several records: the
    text is masked wherever it stands."""
    _, roots = forgettable
    changed(
        database,
        "INSERT INTO root_fail VALUES (1, 3, :r, 'no such customer: a@b.org', NULL, true)",
        r=roots[0],
    )
    forget(database, named(database, roots[0]))
    assert "a@b.org" not in everything(database)
    query = "SELECT reason FROM failed_root WHERE root_id = 1 UNION SELECT reason FROM root_fail"
    assert rows(database, query) == [("no such customer: ***",)]


@pytest.mark.parametrize(
    ("told", "masked"),
    [
        ("no customer *a@b.org*", "no customer *****"),
        ("of **a@b.org", "of *****"),
        ("a@b.orga@b.org", "******"),
        ("100% of a_b\\ is a@b.org", "100% of a_b\\ is ***"),
    ],
)
def test_stars_beside_a_value_keep_no_text_from_being_masked(database, forgettable, told, masked):
    """What a text emphasizes runs together with its mask, and is masked all the same."""
    _, roots = forgettable
    changed(database, "UPDATE failed_root SET reason = :t WHERE root_id = :r", t=told, r=roots[0])
    forget(database, named(database, roots[0]))
    found = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0])
    assert found.reason == masked


def test_short_values_are_masked_as_whole_words(database, forgettable):
    """A number of two digits does not mask half of every text, as with redacted columns."""
    _, roots = forgettable
    told = "customer 12 of 2012 at C@D.ORG"
    changed(database, "UPDATE failed_root SET reason = :t WHERE root_id = :r", t=told, r=roots[1])
    forget(database, named(database, roots[1]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[1]).reason
    assert reason == "customer *** of 2012 at ***"


def test_where_the_values_are_lost_the_whole_text_is_masked(database, forgettable):
    """Without the snapshot, and without a copy, nobody can tell what a reason quotes."""
    _, roots = forgettable
    changed(database, "DELETE FROM failed_payload WHERE message_id = :r", r=roots[0])
    Path(one(database, "SELECT path FROM step_run_file WHERE step_run_id = 1").path).unlink()
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "***"


def test_the_copy_says_what_to_mask_once_the_files_are_gone(database, forgettable):
    """Retention has removed the snapshot: the ledger's own copy names the values."""
    batch, roots = forgettable
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "no such customer: ***"


def test_nothing_is_forgotten_where_the_storage_is_out_of_reach(database, forgettable, storage):
    """What texts quote is not known there: it is done where it is."""
    _, roots = forgettable
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    with pytest.raises(UnavailableError, match="expected the folder below which runs write"):
        forget(database, named(database, roots[0]))
    assert "a@b.org" in everything(database)
    away.rename(storage.folder)
    forget(database, named(database, roots[0]))
    assert "a@b.org" not in everything(database)


def test_a_text_of_a_record_changes_by_being_masked_alone(database, forgettable):
    """The writer may have parts of history masked, and does not rewrite it so."""
    _, roots = forgettable
    given = {"family_id": 1, "root_id": roots[0], "told": "no such customer: a@b.org"}
    for masked in ("all was well", "no such customer: ***, who paid", None):
        with pytest.raises(LedgerError, match="they may not change otherwise"):
            database.transact(
                lambda c, to=masked: forgetting.forget(c, [roots[0]], [{**given, "masked": to}])
            )
    assert "a@b.org" in everything(database)


def test_no_copy_brings_forgotten_content_back(database, forgettable):
    """Not one that began before, nor one of what a replay read again."""
    _, roots = forgettable
    forget(database, named(database, roots[0]))
    stale = (roots[0], 1, roots[0], None, '{"email": "a@b.org"}', "true", None, None)
    again = (roots[0], 1, roots[0] + 99, None, '{"email": "a@b.org"}', "true", None, None)
    assert database.transact(lambda c: payloads.insert(c, [stale])) == 0
    assert database.transact(lambda c: payloads.replace(c, [again])) == 0
    assert not database.transact(lambda c: payloads.missing(c, 1))
    assert "a@b.org" not in everything(database)


def test_a_forgotten_record_is_not_replayed(database, forgettable):
    """Nothing takes it up again from the files that still hold it; the others are."""
    batch, roots = forgettable
    made = kept(max_replays=0)
    forget(database, named(database, roots[0]))
    again = replayed(database, made, batch.batch_id, quarantined=True, accepted=True)
    taken = database.transact(lambda c: replays.claimed_messages(c, again.batch_id, "source"))
    assert taken == [roots[1]]


def test_a_forgotten_record_that_fails_again_is_not_quoted(database, storage):
    """One that had recovered comes along when its unit is replayed, and fails: that it failed is
    kept, and counted, but not why, for that may quote it. The others' reasons are."""
    made = kept(max_failed_ratio=1.0)
    batch, roots = settled(database, made, storage, lose_sink=[0, 1])
    first = replayed(database, made, batch.batch_id)
    one_of, other = emit_replay(database, first)
    run_middle(database, first, [one_of, other])
    run_sink(database, first, [one_of, other], lose=[other])
    settle_once(database, first.batch_id)
    storage(database)
    for run in rows(database, "SELECT emit_run_id AS id FROM batch_source ORDER BY 1"):
        recorded(database, run.id, [(4711, "a@b.org"), *((n, "e@f.org") for n in range(9))])
    published(database)
    forget(database, named(database, roots[0]))
    second = replayed(database, made, batch.batch_id, "unit")
    changed(  # as if the stage merged records, of which units come along
        database,
        "UPDATE batch_step SET declaration = declaration || '{\"merges\": true}'"
        " WHERE batch_id = 3 AND name = 'middle'",
    )
    again, along = emit_replay(database, second, companions=[roots[0]])
    fails = {again: "no such customer: e@f.org", along: "no such customer: a@b.org"}
    run_middle(database, second, [again, along], fail=fails)
    run_sink(database, second, [])
    settle_once(database, second.batch_id)
    followed = "SELECT root_id, reason, detail FROM failed_root WHERE batch_id = :b ORDER BY 1"
    assert rows(database, followed, b=second.batch_id) == [
        (again, "no such customer: e@f.org", None),
        (along, "***", None),
    ]
    found = one(database, "SELECT * FROM failed_message WHERE message_id = :m", m=roots[0])
    assert (found.status, found.root_id, found.attempts) == ("failed", along, 2)
    assert one(database, "SELECT failed_roots FROM batch WHERE batch_id = 3").failed_roots == 2
    assert everything(database).count("a@b.org") == 1  # what the other contains


def test_what_a_sink_says_of_a_forgotten_record_is_not_kept(database, storage):
    """At least once the rows that a sink has left out stay in the ledger after the settlement: of
    a forgotten record that its unit has taken along without why, of the others with it."""
    made = kept(max_failed_ratio=1.0, guarantee="at_least_once")
    batch, roots = settled(database, made, storage, lose_sink=[0, 1])
    first = replayed(database, made, batch.batch_id)
    one_of, other = emit_replay(database, first)
    run_middle(database, first, [one_of, other])
    run_sink(database, first, [one_of, other], lose=[other])
    settle_once(database, first.batch_id)
    storage(database)
    for run in rows(database, "SELECT emit_run_id AS id FROM batch_source ORDER BY 1"):
        recorded(database, run.id, [(4711, "a@b.org"), *((n, "e@f.org") for n in range(9))])
    published(database)
    forget(database, named(database, roots[0]))
    second = replayed(database, made, batch.batch_id, "unit")
    changed(  # as if the stage merged records, of which units come along
        database,
        "UPDATE batch_step SET declaration = declaration || '{\"merges\": true}'"
        " WHERE batch_id = 3 AND name = 'middle'",
    )
    again, along = emit_replay(database, second, companions=[roots[0]])
    run_middle(database, second, [again, along])
    refused = {again: "too long: e@f.org", along: "too long: a@b.org"}
    deltas = [Delta(root, root + 2000, 0, 1, 0, why) for root, why in refused.items()]
    finish(database, started(database, second.batch_id, "sink"), deltas)
    settle_once(database, second.batch_id)
    left_out = rows(database, "SELECT root_id, reason FROM root_fail ORDER BY 1")
    assert left_out == [(again, "too long: e@f.org"), (along, "***")]


def test_a_record_that_is_needed_is_not_forgotten(database, storage):
    """A failed one is replayed or quarantined first, and then it is: nothing is forgotten with
    it."""
    _, roots = settled(database, kept(), storage, lose_sink=[0, 1])
    quarantine(database, "a test", "somebody", record=roots[1])
    both = [*named(database, roots[1]), *named(database, roots[0])]
    with pytest.raises(NotReadyError, match=rf"record {roots[0]} .*ackledger quarantine"):
        forget(database, both)
    assert everything(database).count("a@b.org") == 2
    forget(database, named(database, roots[1]))
    assert everything(database).count("a@b.org") == 1


def test_a_record_that_never_failed_is_not_in_the_ledger(database, storage):
    """There is nothing to forget of it, and the files may hold it."""
    _, roots = settled(database, kept(), storage)
    with pytest.raises(InputError, match="the ledger holds no content of it"):
        named(database, roots[0])


def test_the_files_of_forgotten_records_go_at_once_if_they_may(database, forgettable, storage):
    """Asked for, they go as soon as a day has passed, whatever keep says; what is needed stays."""
    batch, roots = forgettable
    chosen = named(database, roots[0])
    left = forget(database, chosen, files=True, now=later(database)).collected
    assert [one.need for one in left.kept] == [Need.RECORDS_QUARANTINED]  # of the other one
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    done = forget(database, chosen, files=True, now=later(database))
    assert done.collected.expired == (batch.batch_id,)
    assert storage.there() == set()
    assert not [one for one in holding(database, [roots[0]]) if one.files]


# -- the command, and the sweeper's task -------------------------------------------------------


def command(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_goes_and_what_stays(database, storage):
    """gc lists files and sizes by kind, and why old batches are kept; --dry-run changes nothing."""
    settled(database, kept(), storage)
    settled(database, kept(), storage, run_id="second", day=1, lose_sink=[0])
    age_ledger(database, 3 * DAY)
    said = command("gc", "--dry-run")
    assert said.exit_code == 0
    assert "3 files, 30 bytes, would be removed; batches that expired: 1" in said.stdout
    why = "chain: 1 batch kept, from batch 2 on: records are failed: replay or quarantine them"
    assert why in said.stdout
    assert len(storage.there()) == 6
    done = json.loads(command("gc", "--json").stdout)
    assert done["total"] == {"files": 3, "bytes": 30}
    assert [one["need"] for one in done["kept"]] == ["records_failed"]
    assert len(storage.there()) == 3
    assert "0 files, 0 bytes, removed; batches that expired: 0" in command("gc").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_takes_another_keep(database, storage):
    """--keep is of pipelines that declare none, too, and at least a day."""
    settled(database, pipeline(), storage)
    age_ledger(database, 3 * DAY)
    assert "0 files" in command("gc", "--keep", "7d").stdout
    assert command("gc", "--keep", "1h").exit_code == 1
    assert "3 files" in command("gc", "--keep", "2d", "--pipeline", "chain").stdout


@pytest.mark.usefixtures("environment")
def test_the_command_says_what_it_could_not_remove(database, storage, tmp_path):
    """Its exit code is 1 then, and it names the folder."""
    settled(database, kept(), storage)
    with database.plain.begin() as connection:
        other = text("UPDATE step_run SET folder = :f WHERE step = 'sink'")
        connection.execute(other, {"f": str(tmp_path)})
    age_ledger(database, 3 * DAY)
    said = command("gc")
    assert said.exit_code == 1
    assert f"{tmp_path}: expected a folder whose name ends in 3" in said.stdout


@pytest.mark.usefixtures("environment")
def test_the_command_forgets(database, forgettable):
    """forget lists the records and what may still hold them; what it forgot, others show so."""
    _, roots = forgettable
    where = ("--where", "email = 'a@b.org'")
    listed = command("forget", *where, "--dry-run")
    assert "1 record would be forgotten" in listed.stdout
    assert "a@b.org" in everything(database)
    unasked = command("forget", *where)
    assert "add --yes" in str(unasked.exception)
    assert "a@b.org" in everything(database)
    said = command("forget", *where, "--yes")
    assert said.exit_code == 0, said.output
    assert "1 record forgotten: the ledger has no content of it" in said.stdout
    assert "batch 1 of chain may hold them:" in said.stdout
    assert "rows in its sinks, which are yours to delete" in said.stdout
    assert "(forgotten)" in command("failed", "--records").stdout
    explained = command("explain", str(roots[0])).stdout
    assert "its content was removed on request, and it is never replayed" in explained
    assert "no record that failed matches" in command("forget", *where).stdout
    assert command("forget").exit_code == 1
    misspelt = command("forget", "--where", "emial = 'a@b.org'")
    told = "--where names 'emial', a field of no failed record: source has email"
    assert told in str(misspelt.exception)


@pytest.mark.usefixtures("environment")
def test_forget_lists_every_file_that_has_the_values(database, storage):
    """Of acked records, too, whatever the column is called there: those that a search of the whole
    storage finds, and when they go; a script gets the same list."""
    settled(database, kept(max_replays=0), storage, lose_sink=[0])
    settled(database, pipeline(), storage, run_id="second", day=1)
    folders = [
        row.folder for row in rows(database, "SELECT folder FROM step_run WHERE folder <> ''")
    ]
    everywhere = [path for folder in folders for path in Path(folder).rglob("*.parquet")]
    assert len(everywhere) == 6
    for number, path in enumerate(everywhere):
        mail = "EVE@Straße.org" if number % 2 else "eva@x.org"
        pq.write_table(pa.table({"n": [1, 2], f"mail{number}": [mail, "b"]}), path)
    where = ("--where", "n = 'eve@strasse.org'", "--dry-run")
    data = json.loads(command("forget", *where, "--json").stdout)
    searched = [str(path) for path in everywhere if "EVE" in str(pq.read_table(path).to_pylist())]
    assert len(searched) == 3
    assert sorted(one["path"] for one in data["files"]) == sorted(searched)
    shown = command("forget", *where).stdout.replace("\n", "")
    assert all(path in shown for path in searched)
    assert "files that have n = 'eve@strasse.org', in any column: 3" in shown


@pytest.mark.usefixtures("environment")
def test_forget_tells_what_it_searched_from_what_may_be(database, forgettable, storage):
    """Of a record's batches it says in how many files the search found the values, if in none, too;
    of batches of acked records, that their sinks may have rows; of a record's number, that the
    search was for its key.
    """
    _, roots = forgettable
    settled(database, kept(), storage, run_id="second", day=1)
    published(database)
    folders = rows(database, "SELECT batch_id, folder FROM step_run WHERE folder <> '' ORDER BY 1")
    for number, row in enumerate(folders):
        mail = "a@b.org" if row.batch_id == 2 and number == len(folders) - 1 else "x@y.org"
        for path in Path(row.folder).rglob("*.parquet"):
            pq.write_table(pa.table({"mail": [mail]}), path)
    shown = command("forget", "--where", "email = 'a@b.org'", "--dry-run").stdout
    first, second = [text for text in shown.splitlines() if text.startswith("batch ")]
    assert "searched for email = 'a@b.org': none has it; rows in its sinks" in first
    assert second == "batch 2 of chain may have rows in its sinks, which are yours to delete"
    assert "for good" not in shown
    changed(
        database,
        "UPDATE failed_payload SET key = cast(:k AS jsonb) WHERE message_id = :r",
        k=json.dumps({"id": 4711}),
        r=roots[0],
    )
    by_number = command("forget", str(roots[0]), "--dry-run").stdout
    assert "files that have id = '4711', in any column: 0" in by_number
    assert "a file without the key is not among them" in by_number


@pytest.mark.usefixtures("environment")
def test_forget_asks_a_person(database, forgettable, monkeypatch):
    """In a terminal it shows what it will do and asks: no leaves everything, yes goes on."""
    _, roots = forgettable
    monkeypatch.setattr(
        retaining, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    refused = CliRunner().invoke(app, ["forget", str(roots[0])], input="n\n")
    assert refused.exit_code == 1
    assert "1 record would be forgotten" in refused.output
    assert "a@b.org" in everything(database)
    agreed = CliRunner().invoke(app, ["forget", str(roots[0])], input="y\n")
    assert agreed.exit_code == 0, agreed.output
    assert "a@b.org" not in everything(database)


@pytest.mark.usefixtures("environment")
def test_the_sweeper_has_a_task_that_removes(database, storage):
    """The task gc runs whatever became of the sweep, and returns what it has removed."""
    settled(database, kept(), storage)
    age_ledger(database, 3 * DAY)
    task = sweeper_dag(schedule=None).get_task("gc")
    assert (task.trigger_rule, task.upstream_task_ids) == ("all_done", {"sweep"})
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    with pytest.raises(AirflowFailException, match=r"batch 1: .*storage can be reached"):
        task.python_callable()
    away.rename(storage.folder)
    assert task.python_callable()["snapshots"] == {"files": 1, "bytes": 10}
    assert storage.there() == set()


def test_one_call_may_be_bounded(database, storage):
    """The sweeper's task lets so many batches expire at most, the oldest first; the next goes
    on."""
    for day in range(3):
        settled(database, kept(), storage, run_id=f"day{day}", day=day)
    assert collect(database, most=2).expired == (1, 2)
    assert collect(database, most=2).expired == (3,)


def test_a_sweep_looks_at_so_many_old_batches_at_most(database, storage):
    """What failed records keep for years is not looked at by each sweep, but each has its turn."""
    for day in range(3):
        settled(database, kept(), storage, run_id=f"day{day}", day=day, lose_sink=[0])
    seen = set()
    for _ in range(60):
        (found,) = collect(database, looks=1).kept
        seen.add(found.batch_id)
    assert seen == {1, 2, 3}
    assert len(collect(database, looks=3).kept) == 3
