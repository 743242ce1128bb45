"""The ledger stays as large as what is in it, and a sweep looks at pending work alone."""

import pytest
from sqlalchemy import text

from benchmarks.history_pipelines import pipeline
from benchmarks.lives import dead_share, live, live_again, wait_for_counts
from ledger import ParquetSink, Pipeline
from ledger.batch.upkeep import sweeper
from ledger.settings import Settings
from ledger.store.queries import following, publications, upkeep
from tests.support.ledgers import pipeline as chain


@pytest.mark.parametrize("count", [60, 1000])
def test_dead_rows_stay_below_one_per_cent(ledger, count):
    """After so many batches, of which every tenth is replayed, with a sweep now and then."""
    flow, settings = pipeline(4), Settings(data="/data")
    wait_for_counts(ledger.database)  # of what was emptied before
    for day in range(count):
        batch = live(ledger.database, settings, flow, day)
        if day % 10 == 9:
            live_again(ledger.database, settings, flow, batch)
        if day % 50 == 49:
            assert ledger.sweep().errors == {}
    ledger.sweep()  # it leaves the last batches behind, which makes rows dead
    wait_for_counts(ledger.database)
    ledger.sweep(vacuum_after_seconds=0)
    assert dead_share(ledger.database) < 0.01


DEAD = ("step_run_drop", "step_run_input")  # a sweep reads neither


@pytest.fixture
def with_dead_rows(ledger):
    """A settled batch, and tables with dead rows that no vacuum has removed: fewer than the 50 that
    wake autovacuum, whose lock a sweep would skip.
    """
    batch, _ = ledger.whole_batch(chain())
    ledger.settle(batch.batch_id)
    ledger.change("INSERT INTO step_run_drop SELECT 1, n, 1 FROM generate_series(1, 5) AS n")
    ledger.change("SELECT pg_stat_reset()")
    for table in DEAD * 5:
        with ledger.database.plain.begin() as connection:
            key = "records" if table == "step_run_drop" else "input_run_id"
            connection.exec_driver_sql(f"UPDATE {table} SET {key} = {key}")
    wait_for_counts(ledger.database)
    return batch


def vacuumed(ledger):
    """Which of these tables were vacuumed."""
    rows = ledger.rows(
        """
        SELECT name FROM unnest(cast(:names AS text[])) AS name
        WHERE pg_stat_get_last_vacuum_time(name::regclass) IS NOT NULL ORDER BY 1
        """,
        names=list(DEAD),
    )
    return tuple(row.name for row in rows)


@pytest.fixture
def impatient(ledger):
    """The server lets the ledger's user wait for no lock, where a statement does not say more."""
    url = ledger.database.url
    for setting in ("SET lock_timeout = '10ms'", "RESET lock_timeout"):
        with ledger.database.plain.begin() as connection:
            connection.exec_driver_sql(
                f"ALTER ROLE {url.username} IN DATABASE {url.database} {setting}"
            )
        ledger.database.dispose()
        if setting.startswith("SET"):
            yield


@pytest.mark.usefixtures("impatient")
def test_a_table_that_cannot_be_vacuumed_stays_pending(ledger, with_dead_rows, caplog):
    """An index of it is locked: it is named, the sweep does all the rest, and the next one
    vacuums it.
    """
    with ledger.database.plain.begin() as other:
        other.exec_driver_sql("ALTER INDEX step_run_drop_pkey SET TABLESPACE pg_default")
        swept = ledger.sweep()
        assert swept.errors == {}
        assert ledger.transact(upkeep.last_sweep).swept_at is not None
        assert "table ackledger.step_run_drop is left for the next sweep to vacuum" in caplog.text
        assert vacuumed(ledger) == ("step_run_input",)
    ledger.sweep()
    assert vacuumed(ledger) == DEAD


def test_a_table_is_vacuumed_once_in_a_while(ledger, with_dead_rows):
    """Dead rows that another transaction may still see stay: no sweep tries again at once."""
    with ledger.database.plain.connect() as other:
        other.execution_options(isolation_level="REPEATABLE READ")
        other.exec_driver_sql("SELECT count(*) FROM step_run_drop")  # it sees what is there now
        for _ in range(3):
            ledger.change("UPDATE step_run_drop SET records = records + 1")
        ledger.sweep()
        assert vacuumed(ledger) == DEAD
        left = ledger.transact(upkeep.tables_with_dead_rows, 600)
        assert set(left).isdisjoint(f"ackledger.{name}" for name in DEAD)
        tried = ledger.transact(upkeep.tables_with_dead_rows, 0)
        assert "ackledger.step_run_drop" in tried


def test_a_policy_is_written_only_where_it_changed(ledger):
    """Opening another batch locks the pipeline's row and leaves it as it is."""
    version = "SELECT ctid::text AS place, max_replays FROM pipeline"
    ledger.open(chain())
    before = ledger.row(version)
    ledger.open(chain(), "second", 1)
    assert ledger.row(version) == before
    ledger.open(chain(max_replays=7), "third", 2)
    assert ledger.row(version).max_replays == 7


def followed(ledger):
    """Batches that sweeps have left behind, by number."""
    rows = ledger.rows("SELECT batch_id FROM batch WHERE followed_at IS NOT NULL ORDER BY 1")
    return [row.batch_id for row in rows]


def done(ledger, batch):
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

    ledger.transact(work)


def test_a_sweep_leaves_behind_what_is_done(ledger):
    """Once its sinks have published, and not before; an open batch never."""
    batch, _ = ledger.whole_batch(chain())
    ledger.open(chain(), "open", 1)
    ledger.settle(batch.batch_id)
    ledger.sweep()
    assert followed(ledger) == []
    done(ledger, batch)
    ledger.sweep()
    assert followed(ledger) == [batch.batch_id]


def test_batches_are_left_behind_in_lots(ledger, monkeypatch):
    """Each in a transaction of its own: opens wait for the locks of one lot at most."""
    monkeypatch.setattr(sweeper, "NOTED_AT_ONCE", 2)
    for day in range(3):
        batch, _ = ledger.whole_batch(chain(), run_id=f"run {day}", day=day)
        ledger.settle(batch.batch_id)
        done(ledger, batch)
    ledger.sweep()
    lots = ledger.rows("SELECT count(*) AS n FROM batch GROUP BY followed_at ORDER BY 1")
    assert [row.n for row in lots] == [1, 2]
    assert len(followed(ledger)) == 3


def test_content_that_is_not_kept_stays_pending(ledger):
    """A batch whose failed records have no content yet is looked at, and named by the view."""
    batch, _ = ledger.whole_batch(chain(), lose_middle=[0])
    ledger.settle(batch.batch_id)
    ledger.database.transact(
        lambda c: [
            publications.set_published(c, row.step_run_id)
            for row in publications.pending(c, batch.batch_id)
        ]
    )
    ledger.sweep()
    assert followed(ledger) == []
    rows = ledger.rows("SELECT batch_id, follow_up FROM pending_follow_up")
    assert rows == [(batch.batch_id, "keep")]


def test_a_replay_brings_its_family_back(ledger):
    """Until what follows the replay is done, too."""
    flow = chain()
    batch, _ = ledger.whole_batch(flow, lose_middle=[0, 1])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    ledger.sweep()
    assert followed(ledger) == [batch.batch_id]
    again = ledger.replay(flow, batch.batch_id)
    ledger.run_replay(again)
    ledger.settle(again.batch_id)
    assert followed(ledger) == []
    done(ledger, again)
    ledger.sweep()
    assert followed(ledger) == [batch.batch_id, again.batch_id]


def test_quarantine_by_hand_brings_a_batch_back(ledger):
    """Its combine, which waited for its failed record, is due and overdue from then on."""
    flow = combined()
    batch, roots = ledger.whole_batch(flow, lose_middle=[0])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    ledger.sweep()
    assert followed(ledger) == [batch.batch_id]
    ledger.quarantine("a test order", "me", record=roots[0])
    assert followed(ledger) == []
    late = ledger.now().replace(year=2100)
    assert [batch.batch_id for batch in ledger.sweep(now=late).overdue] == [batch.batch_id]
    assert followed(ledger) == []


def combined(**options) -> Pipeline:
    """The chain, whose middle is combined."""
    flow = chain(**options)

    @flow.combine(reads="middle")
    def total(rows):
        return rows

    flow.sink("totals", ParquetSink("totals"), reads="total")
    return flow


def test_failures_come_back_once_the_sweeper_is_to_replay_them(ledger):
    """A batch with failed records is left behind until its pipeline is given auto_replay."""
    batch, _ = ledger.whole_batch(chain(), lose_middle=[0])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    assert ledger.sweep().replays == ()
    assert followed(ledger) == [batch.batch_id]
    ledger.open(chain(auto_replay=True), "next", 1)
    (asked,) = ledger.sweep().replays
    assert (asked.batch_id, asked.records) == (batch.batch_id, 1)
    assert followed(ledger) == []


@pytest.mark.parametrize("table", ["batch", "pipeline"])
def test_what_another_process_changes_is_not_left_behind(ledger, table):
    """A sweep that meets a settlement of the family, or another policy, takes no note of it."""
    flow = chain()
    batch, _ = ledger.whole_batch(flow, lose_middle=[0])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    with ledger.database.writer.begin() as other:
        other.execute(text(f"SELECT FROM {table} FOR NO KEY UPDATE"))
        seen = ledger.transact(following.done)
        assert seen == [batch.batch_id]
        assert ledger.transact(following.lock, seen) == []
        ledger.sweep()
    assert followed(ledger) == []


def by_hand(ledger, batch):
    """A person quarantines the failed records of a batch."""
    ledger.quarantine("a test order", "me", batch_id=batch.batch_id)


def by_policy(ledger, batch):
    """The pipeline's next batch opens with ``auto_replay``."""
    ledger.open(combined(auto_replay=True), "next", 1)


@pytest.mark.parametrize("change", [by_hand, by_policy])
def test_what_has_changed_before_the_lock_is_seen(ledger, change):
    """A batch that has pending work again once it is locked is not noted."""
    batch, _ = ledger.whole_batch(combined(), lose_middle=[0])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    seen = ledger.transact(following.done)
    assert seen == [batch.batch_id]
    change(ledger, batch)

    def note(connection):
        locked = following.lock(connection, seen)
        following.note(connection, locked)
        return locked

    assert ledger.transact(note) == seen
    assert followed(ledger) == []


def test_an_abandoned_replay_brings_its_family_back(ledger):
    """One of quarantined records, which gives back what it claimed."""
    flow = chain(max_replays=0)
    batch, _ = ledger.whole_batch(flow, lose_middle=[0])
    ledger.settle(batch.batch_id)
    done(ledger, batch)
    ledger.sweep()
    assert followed(ledger) == [batch.batch_id]
    again = ledger.replay(flow, batch.batch_id, quarantined=True)
    assert ledger.abandon(again.batch_id, "a test")
    assert followed(ledger) == []


def test_a_policy_that_had_auto_replay_brings_nothing_back(ledger):
    """Changed otherwise, it has no batch looked at again."""
    batch, _ = ledger.whole_batch(chain(auto_replay=True), lose_middle=[0])
    ledger.settle(batch.batch_id)
    with ledger.database.writer.begin() as connection:
        connection.execute(text("UPDATE batch SET followed_at = now()"))
    ledger.open(chain(auto_replay=True, max_replays=7), "next", 1)
    assert followed(ledger) == [batch.batch_id]
