"""The ledger stays as large as what is in it, and a sweep looks at what is left to do alone."""

import pytest
from sqlalchemy import text

from benchmarks.history_pipelines import pipeline
from benchmarks.lives import dead_share, live, live_again, wait_for_counts
from ledger import ParquetSink, Pipeline
from ledger.batch.quarantine import quarantine
from ledger.batch.settlement import settle_once
from ledger.batch.sweeper import sweep_once
from ledger.settings import Settings
from ledger.store.queries import batches, following, publications
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
    sweep_once(database)
    assert dead_share(database) < 0.01


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


def combined() -> Pipeline:
    """The chain, whose middle is combined."""
    made = chain()

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
    assert (asked.batch_id, asked.messages) == (batch.batch_id, 1)
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
