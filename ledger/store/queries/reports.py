"""Statements behind the command line's tables; they read the documented views."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.store.queries.causes import (
    ACCEPTED_BY,
    JOINS,
    OF_BATCH,
    REASON,
    REREADS,
    STATE,
    STEPS,
)
from ledger.store.queries.rows import T, all_of, one_of


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
class FailureSummary:
    """Failed records of an original by step, reason and status of their last attempt, and by the
    person who accepted them.

    ``example_record``: the number of one of them.
    """

    batch_id: int
    pipeline: str
    step: str
    reason: str
    status: str
    accepted_by: str | None
    records: int
    example_record: int | None


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
class Failure:
    """One record that failed in the batch.

    ``status``: its status by now.
    ``key``: values of the source's key columns; None without a key.
    ``content``: its fields, or its text if it did not parse.
    """

    message_id: int
    source: str
    step: str
    reason: str
    detail: str | None
    status: str
    key: Mapping[str, Any] | None
    content: Mapping[str, Any] | str | None


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


# Of failed messages m, with r their last failure, those of the selection.
_FILTER = f"""
    (cast(:pipeline AS text) IS NULL OR m.original_batch_id IN (
       SELECT o.batch_id FROM batch o JOIN pipeline n ON n.pipeline_id = o.pipeline_id
       WHERE n.name = :pipeline))
    AND (cast(:batch_id AS bigint) IS NULL OR {OF_BATCH})
    AND (cast(:step AS text) IS NULL OR r.step = :step)
    AND (cast(:reason AS text) IS NULL OR {REASON} LIKE :reason)
    AND (cast(:since AS timestamptz) IS NULL OR r.failed_at >= cast(:since AS timestamptz))
"""
_ANY = dict.fromkeys(("pipeline", "batch_id", "step", "reason", "since"))


def failures(connection: Connection, selection: Mapping[str, Any]) -> list[FailureSummary]:
    """Return failed messages by original batch, most records first.

    ``selection``: pipeline, batch_id, step, reason (a SQL pattern), since (time of the last
    failure); a key that is null or omitted matches any. ``recovered``: instead messages that a
    replay has processed.

    A batch that another one replaced is included only if its number is given, because the other one
    has reread its records.
    """
    statement = text(f"""
        SELECT g.original_batch_id AS batch_id, p.name AS pipeline, g.step, g.reason, g.status,
               g.accepted_by, g.records, g.example_record
        FROM (
          SELECT m.original_batch_id, r.step, {REASON} AS reason, m.status,
                 {ACCEPTED_BY} AS accepted_by, count(*) AS records,
                 min(m.message_id) AS example_record
          FROM failed_message m JOIN failed_root r ON r.root_id = m.root_id
          WHERE (m.status = 'recovered') = cast(:recovered AS boolean) AND {_FILTER}
          GROUP BY 1, 2, 3, 4, 5
        ) g
        JOIN batch b ON b.batch_id = g.original_batch_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        WHERE g.status <> 'superseded' AND b.status <> 'superseded'
           OR cast(:batch_id AS bigint) IS NOT NULL
        ORDER BY 1, 7 DESC, 3, 4, 6
    """)
    keys = {**_ANY, "recovered": False, **selection}
    return all_of(FailureSummary, connection.execute(statement, keys))


def failed_cases(
    connection: Connection, selection: Mapping[str, Any], case_of: Callable[..., T]
) -> list[T]:
    """Return messages that are neither recovered nor accepted by a person, by original batch, step,
    cause and state, most first; ``case_of`` makes a case of a row's columns.

    ``selection``: as for ``failures``. Whether a key could be read is known once content is kept.
    """
    statement = text(f"""
        SELECT p.target, b.batch_id, b.interval_start, b.interval_end, b.params, b.dag_id,
               b.files_expired_at AS expired_at, r.step,
               r.cause::text AS cause, {STATE} AS state,
               CASE WHEN min({REASON}) = max({REASON}) THEN min({REASON}) END AS reason,
               min(m.not_before) AS due_at,
               max(m.replay_batch_id) AS replay_batch_id,
               EXISTS (
                 SELECT FROM failed_message n JOIN failed_root q ON q.root_id = n.root_id
                 WHERE n.original_batch_id = b.batch_id AND q.step <> r.step
                   AND n.status IN ('failed', 'quarantined')) AS others,
               {JOINS} AS joins, bool_and({REREADS}) AS rereads,
               bool_or(any_step.merges) AS whole,
               bool_and(NOT any_step.incremental) AS reprocesses, count(*) AS records
        FROM failed_message m
        JOIN failed_root r ON r.root_id = m.root_id
        JOIN batch b ON b.batch_id = m.original_batch_id AND b.status <> 'superseded'
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        {STEPS}
        LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE m.status IN ('failed', 'replaying', 'quarantined') AND {STATE} <> 'accepted'
          AND {_FILTER}
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ORDER BY records DESC, b.batch_id, r.step, cause, state
    """)
    return all_of(case_of, connection.execute(statement, {**_ANY, **selection}))


def failed_records(connection: Connection, batch_id: int) -> list[Failure]:
    """Return records that failed in a batch."""
    statement = text("""
        SELECT f.message_id, f.source, f.step, f.reason, f.detail, f.status, p.key,
               CASE WHEN p.parsed THEN p.content::jsonb ELSE to_jsonb(p.content) END AS content
        FROM failed_root_detail f LEFT JOIN failed_payload p USING (message_id)
        WHERE f.batch_id = :id ORDER BY f.message_id
    """)
    return all_of(Failure, connection.execute(statement, {"id": batch_id}))


def family(connection: Connection, batch_id: int, limit: int | None = None) -> list[int]:
    """Return the original that a batch belongs to and its replays, latest first, at most so many in
    all.
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
