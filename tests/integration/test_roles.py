"""Roles of the ledger: each may do what its statements do, and no more."""

import re

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus
from ledger.errors import ConfigurationError, InputError
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.queries import (
    batches,
    checkpoints,
    claims,
    dedup,
    pipelines,
    publications,
    retention,
    runs,
    upkeep,
)
from tests.support.ledgers import END, START, pipeline
from tests.support.schema import TABLES, columns
from tests.support.statements import source, updated

# Columns that the writer may update. It may update no other, delete from one table, truncate none.
UPDATED = {
    "pipeline": {
        "message_timeout",
        "max_batch_age",
        "max_replays",
        "hold_above",
        "allow_failed",
        "replay_limit",
        "replay_backoff",
        "replay_backoff_cap",
        "auto_replay",
        "keep",
        "target",
        "redact",
    },
    "failed_payload": {"root_id", "content", "parsed", "key"},
    "hold_sample": {"key", "content", "parsed", "source_file", "source_row"},
    "batch": {
        "status",
        "steps_version",
        "held_for",
        "held_reason",
        "opened_at",
        "settled_at",
        "roots",
        "failed_roots",
        "released",
        "first_attempt",
        "followed_at",
        "files_expired_at",
        "files_removed_at",
    },
    "batch_source": {
        "claimed",
        "claim_number",
        "claim_start",
        "claim_end",
        "claim_records",
        "committed_at",
        "emit_run_id",
        "first_root",
        "roots",
        "span",
        "notified_at",
    },
    "one_plan": {"accepted", "rejected"},
    "step_run": {
        "one_plan_id",
        "state",
        "lease_until",
        "closed_at",
        "failure",
        "unread_run_ids",
        "input_rows",
        "output_rows",
        "failed_rows",
        "duplicate_rows",
        "null_columns",
        "delta_rows",
        "delta_xor",
        "emitted_edges",
        "acked_edges",
        "acks_proved",
        "folder",
        "files",
        "root_files",
        "files_removed_at",
    },
    "failed_message": {
        "status",
        "root_id",
        "attempts",
        "failed_replays",
        "given_up",
        "replay_batch_id",
        "not_before",
        "updated_at",
    },
    "message_claim": {"status", "not_before", "failed_replays", "given_up"},
    "publication": {"published_at", "replaced_at"},
    "pending_publication": {"ready", "folder", "files", "rows"},
    "checkpoint": {"acked_at"},
    "last_sweep": {"swept_at"},
}
INSUFFICIENT_PRIVILEGE = "42501"
DELIVERED = """
    INSERT INTO publication (batch_id, sink, step_run_id, ready, rows, published_at, replaced_at)
    SELECT batch_id, step, step_run_id, true, 9, now(), now() FROM step_run WHERE step = 'sink'
    ON CONFLICT (step_run_id) DO UPDATE SET published_at = now(), replaced_at = now()
"""
CLAIMED = """
    UPDATE batch_source SET claim_number = 1, claim_start = '3', claim_end = '5', claim_records = 2
"""
COMMITTED = """
    INSERT INTO checkpoint (pipeline_id, step, batch_id, step_run_id, acked_at)
    SELECT pipeline_id, 'middle', batch_id, step_run_id, now()
    FROM step_run JOIN batch USING (batch_id) WHERE step = 'middle'
"""


def denied(engine, statement):
    """Whether a role may not run a statement, which is rolled back if it may."""
    with engine.connect() as connection:
        try:
            connection.execute(text(statement))
        except DBAPIError as exc:
            if exc.orig.pgcode != INSUFFICIENT_PRIVILEGE:
                raise
            return True
    return False


@pytest.mark.parametrize("table", [*TABLES, "pending_publication"])
def test_the_writer_rewrites_nothing(database, table):
    """DELETE, TRUNCATE, and UPDATE of every column: refused, but for what our statements do."""
    updated = {
        name for name in columns(database, table)
        if not denied(database.writer, f"UPDATE {table} SET {name} = DEFAULT WHERE false")
    }  # fmt: skip
    assert updated == UPDATED.get(table, set())
    assert table not in TABLES or denied(database.writer, f"TRUNCATE {table}")
    assert denied(database.writer, f"DELETE FROM {table} WHERE false")


def test_grants_are_what_the_statements_need():
    """The columns that the query modules set are just these, and they delete from no table."""
    assert updated() == UPDATED
    assert not re.findall(r"DELETE FROM (\w+)", source("ledger/store/queries"))


def test_history_in_full(ledger):
    """Of a settled batch with a failure, the writer can undo no failure, verdict or attempt."""
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
    ledger.settle(batch.batch_id)
    for statement in (
        "DELETE FROM batch",
        "DELETE FROM failed_root",
        "DELETE FROM failed_message",
        "DELETE FROM step_run",
        "DELETE FROM publication",
        "DELETE FROM checkpoint",
        "DELETE FROM claimed_file",
        "UPDATE failed_root SET reason = 'none'",
        "UPDATE failed_message SET message_id = 7",
        "UPDATE batch SET params = '{}'",
        "UPDATE step_run SET step = 'other'",
        "UPDATE root_counter SET next_root = 1",
        "DROP VIEW failed_root_detail",
        "DROP TABLE ledger_delta",
        "TRUNCATE ledger_delta",
        "DELETE FROM ledger_delta",
    ):
        with (
            ledger.database.writer.connect() as connection,
            pytest.raises(DBAPIError, match=r"permission denied|must be owner"),
        ):
            connection.execute(text(statement))


@pytest.fixture
def member(database):
    """A login that has the writer's role, and has not taken it on."""
    address = database.url.set(username="ledger_test_job")
    path = {"options": "-c search_path=ackledger"}
    engine = create_engine(address, poolclass=NullPool, connect_args=path)
    with database.plain.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE ledger_test_job LOGIN IN ROLE ledger_writer")
    yield engine
    with database.plain.begin() as connection:
        connection.exec_driver_sql("DROP ROLE ledger_test_job")


def test_a_verdict_stays(ledger, member):
    """What the writer updates of an open batch and a running run, it may not once that ended, nor
    may a login that only is a member of its role."""
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
    with ledger.database.writer.begin() as connection:
        connection.execute(text("UPDATE batch SET held_reason = NULL, released = false"))
        connection.execute(text(CLAIMED))
    ledger.settle(batch.batch_id)
    with ledger.database.plain.begin() as connection:  # as a publisher and a state would have
        connection.execute(text(DELIVERED))
        connection.execute(text(COMMITTED))
    for change in (
        "batch SET status = 'open'",
        "batch SET failed_roots = 0",
        "batch SET settled_at = now()",
        "batch SET status = 'superseded', roots = 0",
        "step_run SET state = 'running'",
        "step_run SET output_rows = 77",
        "step_run SET files = '[]'",
        "step_run SET state = 'superseded', failure = 'none'",
        "step_run SET state = 'failed'",
        "publication SET published_at = NULL",
        "publication SET files = '[]'",
        "publication SET rows = 7",
        "publication SET replaced_at = NULL",
        "checkpoint SET acked_at = NULL",
        "batch_source SET roots = 1",
        "batch_source SET first_root = 7",
        "batch_source SET emit_run_id = NULL",
        "batch_source SET claim_number = 7",
        "batch_source SET claim_start = '1'",
        "batch_source SET claim_end = '9'",
        "batch_source SET claim_records = 7",
        "failed_message SET status = 'recovered'",
        "failed_message SET attempts = 0",
        "failed_message SET root_id = 7",
    ):
        for engine in (ledger.database.writer, member):
            assert denied(engine, f"UPDATE {change}"), change
    added = """
        INSERT INTO declared_step (pipeline_id, version, number, declaration)
        SELECT pipeline_id, steps_version, 9, '{"name": "more", "kind": "stage"}' FROM batch
    """
    for engine in (ledger.database.writer, member):
        assert denied(engine, added)
        assert not denied(engine, added.replace("steps_version", "steps_version + 1"))
    for change in (
        "batch SET followed_at = now(), status = 'superseded'",
        "step_run SET state = 'superseded'",
        "step_run SET files_removed_at = now()",
        "batch_source SET notified_at = now(), claimed = false, committed_at = now()",
    ):
        for engine in (ledger.database.writer, member):
            assert not denied(engine, f"UPDATE {change}"), change
    assert not denied(ledger.database.plain, "UPDATE batch SET failed_roots = 0")


MESSAGE = ("failed", "replaying", "recovered", "quarantined", "superseded")
FAILED, REPLAYING, RECOVERED, QUARANTINED, SUPERSEDED = MESSAGE
MOVES = {
    FAILED: {REPLAYING, QUARANTINED, SUPERSEDED},
    REPLAYING: {FAILED, RECOVERED, QUARANTINED},
    RECOVERED: {FAILED, QUARANTINED},
    QUARANTINED: {REPLAYING},
    SUPERSEDED: set(),
}


@pytest.mark.parametrize("status", MESSAGE)
def test_what_becomes_of_a_message(ledger, status):
    """The writer moves a failed message as replays do, counts its attempts up where one fails, and
    moves it no other way."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, lose_sink=[0])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id).batch_id
    ledger.change(
        "UPDATE failed_message SET status = :status, replay_batch_id = :batch",
        status=status,
        batch=replay,
    )
    by = lambda change: denied(ledger.database.writer, f"UPDATE failed_message SET {change}")  # noqa: E731
    lawful = {other for other in MESSAGE if not by(f"status = '{other}'")}
    assert lawful - {status} == MOVES[status]
    assert by("attempts = attempts - 1")
    assert by("attempts = attempts + 1")
    assert by("status = 'recovered', replay_batch_id = NULL") == (status != RECOVERED)
    for other in (FAILED, QUARANTINED):
        again = f"status = '{other}', root_id = 7, attempts = attempts"
        assert by(f"{again} + 1") == (status not in (REPLAYING, RECOVERED))
        assert by(f"{again} + 2")
        assert by(again)


def test_a_refusal_of_the_writer_asks_for_no_role(ledger):
    """The error asks for the writer's role where the user lacks it, and only there."""
    batch, _ = ledger.whole_batch(pipeline())
    ledger.settle(batch.batch_id)
    with pytest.raises(ConfigurationError) as error:
        ledger.database.transact(lambda c: c.execute(text("UPDATE batch SET roots = 7")))
    assert str(error.value).endswith("batch is history: ledger_writer may not change it")
    ledger.change("CREATE ROLE ledger_test_stranger LOGIN")
    address = ledger.database.url.set(username="ledger_test_stranger")
    stranger = Database(address.render_as_string(hide_password=False))
    try:
        with pytest.raises(ConfigurationError, match=r"Grant it the role ledger_writer$"):
            stranger.revision()
    finally:
        stranger.dispose()
        ledger.change("DROP ROLE ledger_test_stranger")


def test_the_services_may_do_their_work(ledger):
    """What follows a settlement, from staging to an ack and back, is granted to the writer."""
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
    number = batch.batch_id
    ledger.settle(number)
    run = ledger.row("SELECT max(step_run_id) AS id FROM step_run WHERE step = 'sink'").id
    files = [{"path": "out/one.parquet", "bytes": 1, "rows": 9, "first_position": 0}]
    values = {"run": run, "key": ["n"], "capacity": 1, "error_rate": 0.1, "entries": 1}
    ledger.change(  # as if the sink had rows of what failed
        "UPDATE publication SET ready = false, rows = NULL"
    )
    with ledger.database.writer.begin() as connection:
        assert publications.lock_pending(connection, run) is not None
        assert publications.set_ready(connection, run, "out", files)
        publications.set_published(connection, run)
        publications.set_replaced(connection, [number], "sink")
        batches.set_notified(connection, number, "source")
        pipelines.lock(connection, "chain")
        checkpoints.fence(connection, batch.pipeline_id, ["middle"])
        checkpoints.insert(connection, batch.pipeline_id, "middle", number, run, {"n": 1})
        checkpoints.set_acked(connection, "chain", "middle", number)
        checkpoints.set_acked(connection, "chain", "middle", number)
        runs.set_folder(connection, run, "out/run=1")
        runs.set_root_files(connection, run, "roots/run=1")
        runs.set_files_removed(connection, [run])
        dedup.insert_filter(connection, {**values, "filter": b"x"})
        claims.set_committed(connection, number, "source")
        retention.expire(connection, number)
        retention.set_removed(connection, number)
    assert not ledger.rows("SELECT * FROM dedup_filter")
    states = ledger.row("SELECT published_at, replaced_at, rows FROM publication")
    assert None not in states
    assert states.rows == 9


def test_what_an_abandoned_batch_had_goes(ledger):
    """The claims of files of an abandoned batch go, by the owner's functions; its range stays until
    another batch takes it."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 3)
    with ledger.database.writer.begin() as connection:
        claims.insert_files(connection, [_file(batch)])
        batches.save_source(connection, _claimed(batch))
        batches.move_batch(connection, batch.batch_id, BatchStatus.OPEN, BatchStatus.ABANDONED)
        claims.release(connection, batch.batch_id)
        runs.forget_fails(connection, batch.batch_id)
        assert claims.next_range(connection, batch.pipeline_id, "source", None).number == 1
        assert claims.clear_range(connection, batch.batch_id, "source", 1)
        assert claims.next_range(connection, batch.pipeline_id, "source", None).end is None
    assert ledger.rows("SELECT * FROM claimed_file") == []


def test_the_owners_functions_keep_what_is_undecided(ledger):
    """What the writer may have removed goes of decided or abandoned batches only."""
    flow = pipeline()
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 3)
    ledger.run_middle(batch, roots, fail={roots.start: "bad"})
    with ledger.database.writer.begin() as connection:
        claims.insert_files(connection, [_file(batch)])
        runs.forget_fails(connection, batch.batch_id)
        upkeep.remove_deltas(connection, batch.batch_id)
        connection.execute(text("SELECT release_files(:id)"), {"id": batch.batch_id})
    assert len(ledger.rows("SELECT * FROM ledger_delta")) == 6
    assert len(ledger.rows("SELECT * FROM root_fail")) == 1
    assert len(ledger.rows("SELECT * FROM claimed_file")) == 1


def _file(batch):
    return {
        "pipeline_id": batch.pipeline_id, "source": "source", "path": "in.csv", "bytes": 1,
        "modified_at": START, "digest": None, "batch_id": batch.batch_id,
    }  # fmt: skip


def _claimed(batch):
    return {
        "batch_id": batch.batch_id, "source": "source", "pipeline_id": batch.pipeline_id,
        "path": "in", "interval_start": START, "interval_end": START, "claimed": False,
        "claim_number": 1, "claim_start": None, "claim_end": {"0": 5}, "claim_records": 5,
    }  # fmt: skip


def test_the_counter_of_roots_only_goes_up(database):
    """No reservation gives out a root twice, whatever is asked for."""
    first = database.transact(lambda c: batches.reserve_roots(c, 1))
    count, span = "a positive number of roots", "a power of two as the span of roots"
    wrong = {"0, 1": count, "-4096, 1": count, "NULL, 1": count, "4096, 3": span, "4096, 0": span}
    for values, expected in wrong.items():
        with (
            database.writer.connect() as connection,
            pytest.raises(DBAPIError, match=f"expected {expected}"),
        ):
            connection.execute(text(f"SELECT reserve_roots({values})"))
    assert database.transact(lambda c: batches.reserve_roots(c, 1)) == first + 4096


PAYLOAD = (
    "SELECT detail FROM failed_root",
    "SELECT detail FROM root_fail",
    "SELECT filter FROM dedup_filter",
    "SELECT detail FROM failed_root_detail",
)
REASONS = (
    "quarantine",
    "hold_preview",
    "root_status",
    "root_state(1)",
    "replay_history",
)


def test_raw_text_is_for_the_payload_reader(database):
    """The reader sees steps, reasons and ids; raw text is for a role of its own."""
    for statement in PAYLOAD:
        assert denied(database.reader, statement)
        assert not denied(database.payload_reader, statement)
    for name in REASONS:
        for engine in (database.reader, database.payload_reader):
            assert not denied(engine, f"SELECT * FROM {name}")
            with pytest.raises(DBAPIError, match='column "detail" does not exist'):
                denied(engine, f"SELECT detail FROM {name}")


def test_the_payload_reader_reads_only(database):
    """Every transaction of the payload reader is read-only."""
    with database.payload_reader.connect() as connection:
        assert connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on"


@pytest.mark.parametrize("value", ["../secrets", "/etc", "*", "s3://bucket"])
def test_a_parameter_that_leads_elsewhere_opens_nothing(ledger, value):
    """A run whose parameter could leave the pipeline's folders is refused before it has a batch."""
    flow = pipeline(path="in/{{ params.region }}.csv")
    with pytest.raises(InputError, match=r"params\.region is .*give a name only"):
        open_batch(
            ledger.database, Settings(data="/data"), flow, RunKey("", "run"),
            Interval(START, END, {"region": value}),
        )  # fmt: skip
    assert ledger.rows("SELECT batch_id FROM batch") == []
