"""The ledger stays as large as what is in it, and a sweep looks at what is left to do alone."""

import pytest
from sqlalchemy import text

from benchmarks.history_pipelines import pipeline
from benchmarks.lives import dead_share, live, live_again, wait_for_counts
from ledger import ParquetSink, Pipeline
from ledger.batch.interventions import abandon
from ledger.batch.quarantine import quarantine
from ledger.batch.rebuilds import request
from ledger.batch.settlement import settle_once
from ledger.batch.upkeep import sweeper
from ledger.batch.upkeep.sweeper import SweepOptions, sweep_once
from ledger.settings import Settings
from ledger.store.queries import batches, following, health, publications, upkeep
from tests.support.ledgers import (
    emit_replay,
    one,
    opened,
    replayed,
    rows,
    run_middle,
    run_sink,
    whole_batch,
)
from tests.support.ledgers import pipeline as chain


@pytest.mark.parametrize("count", [60, 1000])
def test_dead_rows_stay_below_one_per_cent(database, count):
    """After so many batches, of which every tenth is replayed, with a sweep now and then."""
    made, settings = pipeline(4), Settings(data="/data")
    wait_for_counts(database)  # of what was emptied before
    for day in range(count):
        batch = live(database, settings, made, day)
        if day % 10 == 9:
            live_again(database, settings, made, batch)
        if day % 50 == 49:
            assert sweep_once(database).errors == {}
    wait_for_counts(database)
    sweep_once(database, SweepOptions(vacuum_after_seconds=0))
    assert dead_share(database) < 0.01


DEAD = ("step_run_bucket", "step_run_input")  # a sweep reads neither


@pytest.fixture
def with_dead_rows(database):
    """A settled batch, and tables with dead rows that nobody has vacuumed."""
    batch, _ = whole_batch(database, chain())
    settle_once(database, batch.batch_id)
    with database.plain.begin() as connection:
        connection.exec_driver_sql("SELECT pg_stat_reset()")
    for table in DEAD * 5:
        with database.plain.begin() as connection:
            key = "bucket" if table == "step_run_bucket" else "input_run_id"
            connection.exec_driver_sql(f"UPDATE {table} SET {key} = {key}")
    wait_for_counts(database)
    return batch


def vacuumed(database):
    """Which of these tables were vacuumed."""
    found = rows(
        database,
        """
        SELECT name FROM unnest(cast(:names AS text[])) AS name
        WHERE pg_stat_get_last_vacuum_time(name::regclass) IS NOT NULL ORDER BY 1
        """,
        names=list(DEAD),
    )
    return tuple(row.name for row in found)


def test_a_table_that_cannot_be_vacuumed_is_left(database, with_dead_rows, caplog):
    """An index of it is locked: it is named, the sweep does all the rest, and the next one
    vacuums it.
    """
    options = SweepOptions(drop_lock_timeout="10ms")
    with database.plain.begin() as other:
        other.exec_driver_sql("ALTER INDEX step_run_bucket_pkey SET TABLESPACE pg_default")
        swept = sweep_once(database, options)
        assert swept.dropped == (with_dead_rows.batch_id,)
        assert database.transact(health.last_sweep).swept_at is not None
        assert "table step_run_bucket is left for the next sweep to vacuum" in caplog.text
        assert vacuumed(database) == ("step_run_input",)
    sweep_once(database, options)
    assert vacuumed(database) == DEAD


def test_a_table_is_vacuumed_once_in_a_while(database, with_dead_rows):
    """Dead rows that another transaction may still see stay: no sweep tries again at once."""
    with database.plain.connect() as other:
        other.execution_options(isolation_level="REPEATABLE READ")
        other.exec_driver_sql("SELECT count(*) FROM step_run_bucket")  # it sees what is there now
        for _ in range(3):
            with database.plain.begin() as connection:
                connection.exec_driver_sql("UPDATE step_run_bucket SET rows = rows + 1")
        sweep_once(database)
        assert vacuumed(database) == DEAD
        left = database.transact(lambda c: upkeep.tables_with_dead_rows(c, 600))
        assert set(left).isdisjoint(DEAD)
        tried = database.transact(lambda c: upkeep.tables_with_dead_rows(c, 0))
        assert "step_run_bucket" in tried


def test_a_vacuum_takes_its_time(database):
    """Whatever the server stops statements after; it pauses between pages."""
    with database.owner.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = '1s'")
        upkeep.take_time(connection)
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
        assert connection.exec_driver_sql("SHOW vacuum_cost_delay").scalar_one() == "2ms"


def test_a_policy_is_written_only_where_it_changed(database):
    """Opening another batch locks the pipeline's row and leaves it as it is."""
    version = "SELECT ctid::text AS place, max_replays FROM pipeline"
    opened(database, chain())
    before = one(database, version)
    opened(database, chain(), "second", 1)
    assert one(database, version) == before
    opened(database, chain(max_replays=7), "third", 2)
    assert one(database, version).max_replays == 7


def followed(database):
    """Batches that sweeps have left behind, by number."""
    found = rows(database, "SELECT batch_id FROM batch WHERE followed_at IS NOT NULL ORDER BY 1")
    return [row.batch_id for row in found]


def done(database, batch):
    """What follows a settlement without a reader: its sinks have published, content is kept."""

    def work(connection):
        for row in publications.pending(connection, batch.batch_id):
            publications.set_published(connection, row.step_run_id)
        connection.execute(
            text("""
            INSERT INTO failed_payload (message_id, batch_id, root_id, content, parsed)
            SELECT message_id, original_batch_id, root_id, '{}', true FROM failed_message
            ON CONFLICT DO NOTHING
            """)
        )

    database.transact(work)


def test_a_sweep_leaves_behind_what_is_done(database):
    """Once its sinks have published, and not before; an open batch never."""
    batch, _ = whole_batch(database, chain())
    opened(database, chain(), "open", 1)
    settle_once(database, batch.batch_id)
    sweep_once(database)
    assert followed(database) == []
    done(database, batch)
    sweep_once(database)
    assert followed(database) == [batch.batch_id]


def test_batches_are_left_behind_in_lots(database, monkeypatch):
    """Each in a transaction of its own: opens wait for the locks of one lot at most."""
    monkeypatch.setattr(sweeper, "NOTED_AT_ONCE", 2)
    for day in range(3):
        batch, _ = whole_batch(database, chain(), run_id=f"run {day}", day=day)
        settle_once(database, batch.batch_id)
        done(database, batch)
    sweep_once(database)
    lots = rows(database, "SELECT count(*) AS n FROM batch GROUP BY followed_at ORDER BY 1")
    assert [row.n for row in lots] == [1, 2]
    assert len(followed(database)) == 3


def test_content_that_is_not_kept_is_left(database):
    """A batch whose failed records have no content yet is looked at, and named by the view."""
    batch, _ = whole_batch(database, chain(), lose_middle=[0])
    settle_once(database, batch.batch_id)
    database.transact(
        lambda c: [
            publications.set_published(c, row.step_run_id)
            for row in publications.pending(c, batch.batch_id)
        ]
    )
    sweep_once(database)
    assert followed(database) == []
    assert [row.batch_id for row in rows(database, "SELECT * FROM payload_missing")] == [
        batch.batch_id
    ]


def test_a_replay_brings_its_family_back(database):
    """Until what follows the replay is done, too."""
    made = chain()
    batch, _ = whole_batch(database, made, lose_middle=[0, 1])
    settle_once(database, batch.batch_id)
    done(database, batch)
    sweep_once(database)
    assert followed(database) == [batch.batch_id]
    again = replayed(database, made, batch.batch_id)
    roots = emit_replay(database, again)
    run_middle(database, again, roots)
    run_sink(database, again, roots)
    settle_once(database, again.batch_id)
    assert followed(database) == []
    done(database, again)
    sweep_once(database)
    assert followed(database) == [batch.batch_id, again.batch_id]


def test_quarantine_by_hand_brings_a_batch_back(database):
    """Its combine, which waited for its failed record, is due and overdue from then on."""
    made = combined()
    batch, roots = whole_batch(database, made, lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    sweep_once(database)
    assert followed(database) == [batch.batch_id]
    quarantine(database, "a test order", "me", record=roots[0])
    assert followed(database) == []
    late = database.transact(batches.database_now).replace(year=2100)
    assert [one.batch_id for one in sweep_once(database, now=late).overdue] == [batch.batch_id]
    assert followed(database) == []


def combined(**options) -> Pipeline:
    """The chain, whose middle is combined."""
    made = chain(**options)

    @made.combine(reads="middle")
    def total(rows):
        return rows

    made.sink("totals", ParquetSink("totals"), reads="total")
    return made


def test_failures_come_back_once_the_sweeper_is_to_replay_them(database):
    """A batch with failed records is left behind until its pipeline is given auto_replay."""
    batch, _ = whole_batch(database, chain(), lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    assert sweep_once(database).replays == ()
    assert followed(database) == [batch.batch_id]
    opened(database, chain(auto_replay=True), "next", 1)
    (asked,) = sweep_once(database).replays
    assert (asked.batch_id, asked.records) == (batch.batch_id, 1)
    assert followed(database) == []


@pytest.mark.parametrize("table", ["batch", "pipeline"])
def test_what_another_process_changes_is_not_left_behind(database, table):
    """A sweep that meets a settlement of the family, or another policy, takes no note of it."""
    made = chain()
    batch, _ = whole_batch(database, made, lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    with database.writer.begin() as other:
        other.execute(text(f"SELECT FROM {table} FOR NO KEY UPDATE"))
        seen = database.transact(following.done)
        assert seen == [batch.batch_id]
        assert database.transact(lambda c: following.lock(c, seen)) == []
        sweep_once(database)
    assert followed(database) == []


def by_hand(database, batch):
    """A person quarantines the failed records of a batch."""
    quarantine(database, "a test order", "me", batch_id=batch.batch_id)


def by_policy(database, batch):
    """The pipeline's next batch opens with ``auto_replay``."""
    opened(database, combined(auto_replay=True), "next", 1)


@pytest.mark.parametrize("change", [by_hand, by_policy])
def test_what_has_changed_before_the_lock_is_seen(database, change):
    """A batch of which something is left again once it is locked is not noted."""
    batch, _ = whole_batch(database, combined(), lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    seen = database.transact(following.done)
    assert seen == [batch.batch_id]
    change(database, batch)

    def note(connection):
        locked = following.lock(connection, seen)
        following.note(connection, locked)
        return locked

    assert database.transact(note) == seen
    assert followed(database) == []


def test_an_abandoned_replay_brings_its_family_back(database):
    """One of quarantined records, which gives back what it claimed."""
    made = chain(max_replays=0)
    batch, _ = whole_batch(database, made, lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    sweep_once(database)
    assert followed(database) == [batch.batch_id]
    again = replayed(database, made, batch.batch_id, quarantined=True)
    assert abandon(database, again.batch_id, "a test")
    assert followed(database) == []


def test_a_rebuild_brings_its_family_back(database):
    """Records that fail with their unit, after the batch was left behind."""
    batch, roots = whole_batch(database, chain())
    settle_once(database, batch.batch_id)
    done(database, batch)
    sweep_once(database)
    assert followed(database) == [batch.batch_id]
    database.transact(lambda c: request(c, batch.batch_id, [roots[1]], "sink"))
    assert followed(database) == []


def test_a_policy_that_had_auto_replay_brings_nothing_back(database):
    """Changed otherwise, it has no batch looked at again."""
    batch, _ = whole_batch(database, chain(auto_replay=True), lose_middle=[0])
    settle_once(database, batch.batch_id)
    with database.writer.begin() as connection:
        connection.execute(text("UPDATE batch SET followed_at = now()"))
    opened(database, chain(auto_replay=True, max_replays=7), "next", 1)
    assert followed(database) == [batch.batch_id]


def test_records_kept_back_bring_nothing_back(database):
    """A pipeline that is given auto_replay leaves them to the person."""
    batch, _ = whole_batch(database, chain(), lose_middle=[0])
    settle_once(database, batch.batch_id)
    done(database, batch)
    sweep_once(database)
    with database.writer.begin() as connection:
        connection.execute(text("UPDATE failed_message SET not_before = 'infinity'"))
    opened(database, chain(auto_replay=True), "next", 1)
    assert followed(database) == [batch.batch_id]
