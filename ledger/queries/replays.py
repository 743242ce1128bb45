"""Statements about failed messages and their replays."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, text


def claim_messages(
    connection: Connection, batch_id: int, original_batch_id: int, selection: Mapping[str, Any]
) -> int:
    """Claim the failed messages that ``selection`` names for an open replay; how many.

    Guarded by their status: of two replays at once each message goes to one.
    """
    statement = text("""
        UPDATE failed_message m SET status = 'replaying', replay_batch_id = :batch_id, updated_at = now()
        FROM failed_root r
        WHERE r.root_id = m.root_id AND m.original_batch_id = :original AND m.status = 'failed'
          AND (cast(:reason AS text) IS NULL OR r.reason = :reason)
          AND (cast(:stage AS text) IS NULL OR r.stage = :stage)
          AND (cast(:root AS bigint) IS NULL
               OR m.message_id IN (SELECT f.message_id FROM failed_root f WHERE f.root_id = cast(:root AS bigint)))
    """)
    keys = {"reason": None, "stage": None, "root": None, **selection}
    return connection.execute(
        statement, {**keys, "batch_id": batch_id, "original": original_batch_id}
    ).rowcount


def claimed_messages(connection: Connection, batch_id: int, source: str) -> list[int]:
    """Message ids that a replay batch has claimed of one source, in order."""
    statement = text("""
        SELECT message_id FROM failed_message
        WHERE replay_batch_id = :id AND source = :source AND status = 'replaying' ORDER BY message_id
    """)
    return [
        row.message_id for row in connection.execute(statement, {"id": batch_id, "source": source})
    ]


def claimed_count(connection: Connection, batch_id: int) -> int:
    """How many messages a replay batch has claimed."""
    statement = text(
        "SELECT count(*) FROM failed_message WHERE replay_batch_id = :id AND status = 'replaying'"
    )
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def claimed_sources(connection: Connection, batch_id: int) -> list[str]:
    """Sources of the messages that a replay batch has claimed."""
    statement = text("""
        SELECT DISTINCT source FROM failed_message
        WHERE replay_batch_id = :id AND status = 'replaying' ORDER BY source
    """)
    return [row.source for row in connection.execute(statement, {"id": batch_id})]


def unfinished_replays(connection: Connection, pipeline: str, run_id: str) -> list[int]:
    """Originals whose replay by this run, named ``<run_id>-<original>``, is not settled."""
    statement = text("""
        SELECT b.original_batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND b.kind = 'replay' AND b.dag_id = '' AND b.status <> 'settled'
          AND b.run_id = :run_id || '-' || b.original_batch_id
        ORDER BY 1
    """)
    found = connection.execute(statement, {"pipeline": pipeline, "run_id": run_id})
    return [row.original_batch_id for row in found]


def batches_to_replay(
    connection: Connection, pipeline: str | None, batch_id: int | None, selection: Mapping[str, Any]
) -> Sequence[Row[Any]]:
    """Settled originals with failed messages that match: batch_id, pipeline, messages."""
    statement = text("""
        SELECT b.batch_id, p.name AS pipeline, count(*) AS messages
        FROM failed_message m
        JOIN failed_root r ON r.root_id = m.root_id
        JOIN batch b ON b.batch_id = m.original_batch_id AND b.status = 'settled'
        JOIN pipeline p USING (pipeline_id)
        WHERE m.status = 'failed'
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
          AND (cast(:batch_id AS bigint) IS NULL OR b.batch_id = :batch_id)
          AND (cast(:reason AS text) IS NULL OR r.reason = :reason)
          AND (cast(:stage AS text) IS NULL OR r.stage = :stage)
          AND (cast(:root AS bigint) IS NULL
               OR m.message_id IN (SELECT f.message_id FROM failed_root f WHERE f.root_id = cast(:root AS bigint)))
        GROUP BY b.batch_id, p.name ORDER BY b.batch_id
    """)
    keys = {"reason": None, "stage": None, "root": None, **selection}
    return connection.execute(statement, {**keys, "pipeline": pipeline, "batch_id": batch_id}).all()


def automatic_replays(connection: Connection) -> Sequence[Row[Any]]:
    """Batches of pipelines with ``auto_replay`` that have failed messages: batch_id, pipeline, messages."""
    statement = text("""
        SELECT m.original_batch_id AS batch_id, p.name AS pipeline, count(*) AS messages
        FROM failed_message m
        JOIN batch b ON b.batch_id = m.original_batch_id
        JOIN pipeline p USING (pipeline_id)
        WHERE m.status = 'failed' AND p.auto_replay
        GROUP BY 1, 2 ORDER BY 1
    """)
    return connection.execute(statement).all()


def original_emit(connection: Connection, original_batch_id: int, source: str) -> Row[Any]:
    """The committed emit of an original batch's source: emit_run_id, first_root, roots."""
    statement = text("""
        SELECT emit_run_id, first_root, roots FROM batch_source WHERE batch_id = :id AND source = :source
    """)
    return connection.execute(statement, {"id": original_batch_id, "source": source}).one()
