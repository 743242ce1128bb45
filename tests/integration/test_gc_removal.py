"""How gc removes files: after a death, beside others, and where a storage fails."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, text

from ledger.batch.step_runs import note_folder
from ledger.batch.upkeep import retention
from ledger.batch.upkeep.retention import gc_once
from ledger.core.probes import listening
from ledger.errors import ConfigurationError
from ledger.store.queries import batches
from tests.support.dying import Died, dies_at
from tests.support.retention import expiring


@pytest.mark.parametrize("place", ["expiring files", "files expired", "folder removed"])
def test_the_next_gc_finishes_what_one_began(archive, place):
    """Where a gc dies while files expire or go, the next one removes all of them, and says so."""
    archive.settled(expiring())
    with dies_at(place), pytest.raises(Died):
        archive.collect()
    marked = archive.row("SELECT files_expired_at FROM batch").files_expired_at
    assert (marked is None) == (place == "expiring files")
    assert archive.row("SELECT files_removed_at FROM batch").files_removed_at is None
    archive.collect()
    assert archive.runs() == set()
    assert archive.row("SELECT files_removed_at FROM batch").files_removed_at is not None
    assert archive.collect().total.files == 0


def test_what_changes_after_the_look_is_looked_at_again(archive):
    """A replay that opens between the look and the mark keeps the files: both take the pipeline's
    lock, and the second look is under it."""
    pipeline = expiring(max_replays=0)
    batch, _ = archive.settled(pipeline, lose_sink=[0])
    archive.accept(batch.batch_id)
    replayed_by = []

    def between(what, done, of):
        if what == "expiring batches" and not replayed_by:
            replayed_by.append(
                archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True)
            )

    collected = gc_once(archive.database, now=archive.later(), on_progress=between)
    assert collected.expired == ()
    assert replayed_by
    assert len(archive.runs()) == 3


def test_gc_waits_for_a_replay_that_opens(archive):
    """No other transaction sees a replay that is not committed: the lock that both take makes gc
    wait for it, look again, and keep what it reads."""
    pipeline = expiring(max_replays=0)
    batch, _ = archive.settled(pipeline, lose_sink=[0])
    archive.accept(batch.batch_id)
    claimed, on = threading.Event(), threading.Event()

    def stand_still(place, of):
        if place == "claiming messages":
            claimed.set()
            assert on.wait(60)

    with listening(stand_still), ThreadPoolExecutor(2) as pool:
        try:
            again = pool.submit(
                archive.replay, pipeline, batch.batch_id, quarantined=True, accepted=True
            )
            assert claimed.wait(60)
            collected = pool.submit(archive.collect)
            until = time.monotonic() + 60
            while not collected.done() and not waiting(archive):
                assert time.monotonic() < until
                time.sleep(0.01)
            assert not collected.done()
        finally:
            on.set()
        assert again.result(60).files_expired_at is None
        assert collected.result(60).expired == ()
    assert len(archive.runs()) == 3


def waiting(archive):
    """Whether a session of this ledger waits for a lock that another one holds."""
    with archive.database.plain.connect() as connection:
        return connection.exec_driver_sql(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock')"
        ).scalar_one()


def test_a_batch_that_is_locked_stays_pending(archive):
    """A family under another's lock waits for no one, and no one for it: the next gc takes it."""
    batch, _ = archive.settled(expiring())
    with archive.database.writer.begin() as connection:
        batches.lock_batch(connection, batch.batch_id)
        assert archive.collect().expired == ()
    assert archive.collect().expired == (batch.batch_id,)


def test_a_folder_that_cannot_be_removed_is_reported(archive, monkeypatch):
    """It keeps no other waiting, is named, and is tried again."""
    archive.settled(expiring())
    archive.settled(expiring(), run_id="second", day=1)
    removed = retention.remove_run_folder

    def refuse(folder, run_id):
        if "source/batch=1" in folder:
            raise PermissionError(13, "Permission denied", folder)
        removed(folder, run_id)

    monkeypatch.setattr(retention, "remove_run_folder", refuse)
    collected = archive.collect()
    assert list(collected.errors) == [1]
    assert "source/batch=1" in collected.errors[1]
    assert len(archive.runs()) == 1
    monkeypatch.undo()
    assert archive.collect().total.files == 1
    assert archive.runs() == set()


def test_a_storage_out_of_reach_is_not_taken_for_empty(archive):
    """Where this machine does not see the storage nothing is noted as removed, and gc says so."""
    archive.settled(expiring())
    away = archive.folder.rename(archive.folder.with_name("unmounted"))
    collected = archive.collect()
    assert "where the storage can be reached" in collected.errors[1]
    assert archive.row("SELECT files_removed_at FROM batch").files_removed_at is None
    away.rename(archive.folder)
    assert archive.collect().total.files == 3
    assert archive.runs() == set()


def test_a_dead_sink_is_not_taken_for_removed_where_its_storage_is_not(archive):
    """What an attempt that never committed has staged is there when the storage is mounted again,
    and goes then; its batch may have expired meanwhile."""
    batch = archive.open(expiring())
    roots = archive.emit(batch, 3)
    archive.run_middle(batch, roots)
    dead = archive.start(batch.batch_id, "sink").run_id
    archive.run_sink(batch, roots)
    archive.write_files()
    with archive.database.plain.begin() as connection:
        manifest = text("UPDATE step_run SET files = NULL WHERE step_run_id = :r")
        connection.execute(manifest, {"r": dead})
    removed = "SELECT files_removed_at FROM step_run WHERE step_run_id = :r"
    away = archive.folder.rename(archive.folder.with_name("unmounted"))
    assert archive.collect().total.files == 0
    assert archive.row(removed, r=dead).files_removed_at is None
    away.rename(archive.folder)
    assert archive.collect().removed["dead attempts"].files == 1
    assert archive.row(removed, r=dead).files_removed_at is not None
    assert dead not in archive.runs()


def test_where_a_run_writes_is_noted_once(archive):
    """Only the owner can have another folder removed in the place of the noted one."""
    archive.settled(expiring())
    for other in ("'/data/run=1'", "NULL"):
        change = text(f"UPDATE step_run SET folder = {other} WHERE step_run_id = 1")
        with pytest.raises(ConfigurationError, match="step_run is history"):
            archive.database.transact(lambda c, change=change: c.execute(change))
    with archive.database.writer.begin() as connection:  # the same again, as after a lost answer
        connection.execute(text("UPDATE step_run SET folder = folder WHERE step_run_id = 1"))


def test_a_folder_of_another_name_is_not_removed(archive, tmp_path):
    """What a sink of one's own calls its staging folder has to name the run: else nothing goes."""
    batch = archive.open(expiring())
    run = archive.start(batch.batch_id, "source")
    note_folder(archive.database, run, str(tmp_path))
    archive.start(batch.batch_id, "source")
    collected = archive.collect()
    assert "expected a folder whose name ends in" in collected.errors[batch.batch_id]
    assert tmp_path.exists()


def test_gc_asks_nothing_of_what_has_expired(archive):
    """Over years it costs as much as there is to remove: no statement reads a row of a batch whose
    files are gone."""
    for day in range(3):
        archive.settled(expiring(), run_id=f"day{day}", day=day)
    archive.collect()
    asked = []

    def listen(connection, cursor, statement, parameters, context, many):
        if not statement.startswith("SET TRANSACTION"):  # each transaction begins so
            asked.append(statement)

    event.listen(archive.database.writer, "before_cursor_execute", listen)
    try:
        archive.collect()
    finally:
        event.remove(archive.database.writer, "before_cursor_execute", listen)
    assert len(asked) == 5  # the clock, candidates, what was begun, dead runs, root files
