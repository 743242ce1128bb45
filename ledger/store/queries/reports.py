"""Statements that report batches and their steps; they read the documented views."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of, one_of


@dataclass(frozen=True)
class Counts:
    """One batch's row of ``batch_status``, in the order of its columns."""

    batch_id: int
    pipeline: str
    kind: str
    original_batch_id: int | None
    status: str
    interval_start: datetime
    interval_end: datetime
    total: int
    acked: int
    recovered: int
    failed: int
    replaying: int
    quarantined: int
    pending: int
    opened_at: datetime
    settled_at: datetime | None
    dag_id: str
    run_id: str
    held_reason: str | None
    superseded: int
    replaces_batch_id: int | None
    accepted: int
    files_expired_at: datetime | None


@dataclass(frozen=True)
class StepRows:
    """The newest run of a step, as ``step_progress`` has it. ``path``: the path that a source has
    read.
    """

    step: str
    kind: str
    step_run_id: int
    state: str
    input_rows: int | None
    output_rows: int | None
    failed_rows: int | None
    duplicate_rows: int | None
    null_columns: Sequence[str] | None
    dropped_rows: int
    seconds: float
    path: str | None


@dataclass(frozen=True)
class OperationDrops:
    """Rows of a run's input that one of its operations dropped on purpose; ``reason``: None: it
    dropped none.
    """

    batch_id: int
    step: str
    input_rows: int
    reason: str | None
    records: int


def batch_counts(connection: Connection, batch_id: int) -> Counts:
    """Return one batch's row of ``batch_status``."""
    statement = text("SELECT * FROM batch_status WHERE batch_id = :id")
    return one_of(Counts, connection.execute(statement, {"id": batch_id}))


def recent_batches(connection: Connection, pipeline: str | None, limit: int) -> list[Counts]:
    """Return the latest batches of ``batch_status``, newest first."""
    statement = text("""
        SELECT * FROM batch_status WHERE cast(:pipeline AS text) IS NULL OR pipeline = :pipeline
        ORDER BY batch_id DESC LIMIT :limit
    """)
    return all_of(Counts, connection.execute(statement, {"pipeline": pipeline, "limit": limit}))


def family(connection: Connection, batch_id: int, limit: int | None = None) -> list[int]:
    """Return a batch's family: the original first, then its replays, latest first. ``limit``: the
    most batches to return, the original included; None: all.
    """
    statement = text("""
        SELECT f.batch_id FROM batch b JOIN batch f USING (family_id) WHERE b.batch_id = :id
        ORDER BY f.kind = 'original' DESC, f.batch_id DESC LIMIT :limit
    """)
    return list(connection.execute(statement, {"id": batch_id, "limit": limit}).scalars())


def step_table(connection: Connection, batch_id: int) -> list[StepRows]:
    """Return the steps of a batch that have run, in order."""
    statement = text("""
        SELECT p.step, p.kind, p.step_run_id, p.state, p.input_rows, p.output_rows, p.failed_rows,
               p.duplicate_rows, p.null_columns, p.seconds, s.path,
               (SELECT coalesce(sum(records), 0)::bigint FROM step_run_drop d
                WHERE d.step_run_id = p.step_run_id) AS dropped_rows
        FROM step_progress p
        LEFT JOIN batch_source s ON s.batch_id = p.batch_id AND s.source = p.step
        WHERE p.batch_id = :id ORDER BY p.number
    """)
    return all_of(StepRows, connection.execute(statement, {"id": batch_id}))


def operation_drops(connection: Connection, batch_id: int, batches: int) -> list[OperationDrops]:
    """Return what operations of each stage of a batch dropped on purpose, and in the settled
    originals of the pipeline before it, the latest first. ``batches``: at most so many of these.
    """
    statement = text("""
        WITH earlier AS (
          SELECT o.batch_id FROM batch b JOIN batch o USING (pipeline_id)
          WHERE b.batch_id = :id AND o.batch_id < b.batch_id AND o.kind = 'original'
            AND o.status = 'settled'
          ORDER BY o.batch_id DESC LIMIT :batches
        )
        SELECT r.batch_id, r.step, r.input_rows, d.reason, coalesce(d.records, 0) AS records
        FROM step_run r
        LEFT JOIN step_run_drop d
          ON d.step_run_id = r.step_run_id AND d.operation IS NOT NULL
        WHERE r.state = 'committed'
          AND (r.batch_id IN (SELECT batch_id FROM earlier)
               OR r.batch_id = (SELECT batch_id FROM batch
                                WHERE batch_id = :id AND kind = 'original'))
    """)
    return all_of(
        OperationDrops, connection.execute(statement, {"id": batch_id, "batches": batches})
    )


def over(connection: Connection, pipeline: str, start: datetime, end: datetime) -> list[Counts]:
    """Return the originals of a pipeline that count and read a part of an interval, by start."""
    statement = text("""
        SELECT * FROM batch_status
        WHERE pipeline = :pipeline AND kind = 'original'
          AND status NOT IN ('abandoned', 'superseded')
          AND interval_start < :end AND interval_end > :start
        ORDER BY interval_start, batch_id
    """)
    keys = {"pipeline": pipeline, "start": start, "end": end}
    return all_of(Counts, connection.execute(statement, keys))
