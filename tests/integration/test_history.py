"""The history that is written for measurements is one that a ledger could have."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from benchmarks.history import write_history
from benchmarks.history_pipelines import name_of, pipeline
from benchmarks.lives import live, live_again, wait_for_counts
from ledger.core.states import Outcome
from ledger.errors import InputError
from ledger.settings import Settings

BATCHES, FAILED, PIPELINES = 96, 600, 8  # twelve batches of each pipeline, two of each shape


@pytest.fixture
def history(ledger):
    """A small history in an empty ledger."""
    write_history(ledger.database, batches=BATCHES, failed=FAILED, pipelines=PIPELINES)
    return ledger


def test_it_has_as_many_batches_and_failures_as_it_was_asked_for(history):
    """Batches are decided, records that failed are as many, in each state that lasts."""
    rows = history.rows("SELECT status, kind, count(*) AS n FROM batch GROUP BY 1, 2")
    counts = {(row.status, row.kind): row.n for row in rows}
    assert sum(counts.values()) == BATCHES
    assert set(counts) == {
        ("settled", "original"), ("settled", "replay"), ("superseded", "original"),
    }  # fmt: skip
    messages = history.rows("SELECT status, count(*) AS n FROM failed_message GROUP BY 1")
    states = {row.status: row.n for row in messages}
    assert sum(states.values()) == FAILED
    assert set(states) == {"failed", "recovered", "quarantined", "superseded"}
    assert history.row("SELECT count(*) AS n FROM pipeline").n == PIPELINES
    assert history.row("SELECT count(*) AS n FROM accepted_record").n > 0


def test_its_counts_agree(history):
    """The records of each batch are acked, failed, quarantined or superseded, each in one state,
    and root by root there are as many.
    """
    by_root = {
        (row.batch_id, row.status): row.n
        for row in history.rows(
            "SELECT batch_id, status, count(*) AS n FROM root_status GROUP BY 1, 2"
        )
    }
    for batch in history.rows("SELECT * FROM batch_status"):
        states = {
            name: by_root.get((batch.batch_id, name), 0)
            for name in ("acked", "recovered", "failed", "quarantined", "superseded")
        }
        assert batch.total == sum(states.values())
        assert batch.total == batch.acked + batch.failed + batch.quarantined + batch.superseded
        assert batch.acked == states["acked"] + states["recovered"]
        assert (batch.failed, batch.quarantined) == (states["failed"], states["quarantined"])
    query = "SELECT batch_id, count(*) AS n FROM failed_root GROUP BY 1"
    failed = {row.batch_id: row.n for row in history.rows(query)}
    for row in history.rows("SELECT batch_id, failed_roots FROM batch"):
        assert failed.get(row.batch_id, 0) == row.failed_roots


def test_rows_are_handed_on_from_step_to_step(history):
    """What a step read is what the one before it wrote, and a sink published what it read."""
    handed = history.rows(
        """
        SELECT r.step, r.input_rows, i.output_rows FROM step_run r
        JOIN step_run_input x USING (step_run_id)
        JOIN step_run i ON i.step_run_id = x.input_run_id
        """,
    )
    assert len(handed) > 3 * BATCHES
    assert [row for row in handed if row.input_rows != row.output_rows] == []
    lost = history.rows(
        """
        SELECT b.batch_id FROM batch b JOIN step_run s ON s.batch_id = b.batch_id
        LEFT JOIN step_drops d ON d.batch_id = b.batch_id
        WHERE s.step = 'warehouse'
          AND b.roots <> s.output_rows + b.failed_roots + coalesce(d.records, 0)
        """,
    )
    assert lost == []


def test_nothing_of_it_is_pending(history):
    """Were nothing noted, the views of what is pending are empty, the sweeper has nothing to do and
    notes every batch; every source has a position, and every state is committed.
    """
    history.change("UPDATE batch SET followed_at = NULL")
    for view in ("pending_publication", "pending_root", "pending_follow_up"):
        assert history.rows(f"SELECT * FROM {view}") == []
    swept = history.sweep(now=datetime(2100, 1, 1, tzinfo=UTC))
    assert (swept.settlements, swept.replays, swept.overdue) == ((), (), ())
    assert history.rows("SELECT batch_id FROM batch WHERE followed_at IS NULL") == []
    states = history.rows("SELECT DISTINCT state FROM state_progress")
    assert [row.state for row in states] == ["committed"]
    assert history.row("SELECT count(*) AS n FROM source_position").n == PIPELINES
    shown = history.rows("SELECT DISTINCT state FROM sink_publication")
    assert {row.state for row in shown} == {"published", "replaced"}
    assert history.row("SELECT sum(records) AS n FROM step_drops").n > 0


def test_each_batch_has_an_outcome_that_fits_its_records(history):
    """Complete, incomplete or quarantined, as a run of it would have ended."""
    for row in history.rows("SELECT * FROM batch_status WHERE kind = 'original'"):
        summary = history.summary(row.batch_id)
        if row.status == "superseded":
            continue
        if row.failed:
            assert summary.outcome is Outcome.INCOMPLETE
        elif row.quarantined > row.accepted:
            assert summary.outcome is Outcome.QUARANTINED
        else:
            assert summary.outcome is Outcome.COMPLETE
            assert summary.pending == ()


@pytest.mark.parametrize("status", ["failed", "recovered", "quarantined", "superseded"])
def test_a_record_can_be_explained(history, status):
    """In each state, with its content and its attempts."""
    rows = history.rows(
        f"SELECT message_id, attempts FROM failed_message WHERE status = '{status}'"
    )
    explained = history.explain(rows[0].message_id)
    assert explained.verdict.startswith(status)
    assert len(explained.attempts) == rows[0].attempts + (status == "recovered")
    assert explained.content is not None
    assert explained.key is not None


def test_what_failed_in_it_can_be_replayed(history):
    """A replay opens and claims every record of a batch that is failed and not kept back."""
    row = history.row(
        """
        SELECT b.pipeline, b.batch_id, b.failed FROM batch_status b JOIN pipeline p
          ON p.name = b.pipeline
        WHERE b.failed > 0 AND NOT p.auto_replay ORDER BY 2 LIMIT 1
        """,
    )
    result = next(pipeline(n) for n in range(1, PIPELINES + 1) if name_of(n) == row.pipeline)
    history.replay(result, row.batch_id)
    now = history.row(f"SELECT replaying FROM batch_status WHERE batch_id = {row.batch_id}")
    assert now.replaying == row.failed


READ = """
SELECT relname, seq_tup_read FROM pg_stat_user_tables
WHERE relname IN ('failed_message', 'failed_root', 'failed_payload', 'step_run', 'step_run_input',
                  'ledger_delta', 'root_fail', 'lost_root', 'step_run_loss', 'replay_root', 'batch',
                  'batch_source', 'publication', 'checkpoint')
"""


def test_a_batch_reads_nothing_of_those_before_it(ledger):
    """Opened, run, settled, replayed and swept beside a long history, it scans no table for its own
    rows.
    """
    write_history(ledger.database, batches=2_000, failed=20_000, pipelines=PIPELINES)
    undecided = "SELECT 0, n % 4, n, n, n, 1, 1 FROM generate_series(1, 50000) AS n"
    ledger.change(f"INSERT INTO ledger_delta {undecided}")
    wait_for_counts(ledger.database)
    before = {row.relname: row.seq_tup_read for row in ledger.rows(READ)}
    flow, settings = pipeline(4), Settings(data="/data")
    batch = live(ledger.database, settings, flow, 0)
    live_again(ledger.database, settings, flow, batch)
    assert ledger.sweep().errors == {}
    wait_for_counts(ledger.database)
    scanned = {row.relname: row.seq_tup_read - before[row.relname] for row in ledger.rows(READ)}
    assert max(scanned.values()) < 100, scanned  # an EXISTS may look at the first row it meets


def test_the_same_arguments_make_the_same_history(ledger):
    """To the row; another seed makes another one."""
    results = []
    for seed in (1, 1, 2):
        ledger.empty()
        write_history(ledger.database, batches=12, failed=60, pipelines=4, seed=seed)
        with ledger.database.plain.connect() as connection:
            results.append(
                [
                    connection.execute(text(f"SELECT md5({table}::text) FROM {table} ORDER BY 1"))
                    .scalars()
                    .all()
                    for table in ("batch", "batch_source", "failed_message", "failed_payload")
                ]
            )
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_numbers_that_make_no_history_are_refused(history):
    """Too few failures, or a second history."""
    with pytest.raises(InputError, match="batches=5"):
        write_history(history.database, batches=5, failed=1, pipelines=1)
    with pytest.raises(InputError, match="has a history already"):
        write_history(history.database, batches=8, failed=8, pipelines=1)
