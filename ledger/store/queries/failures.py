"""Statements about failures: records that failed, by step, cause and reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from ledger.store.queries.pipelines import BATCHES
from ledger.store.queries.rows import T, all_of

GROUPS = 500  # failures of a batch by step and reason
_MOST = 100  # reasons that a name is compared with

# Parts of statements about a failed message m, and r, its last attempt.
# Them, with the original b and its pipeline p.
FAILURES = """
    FROM failed_message m
    JOIN failed_root r ON r.root_id = m.root_id
    JOIN batch b ON b.batch_id = m.original_batch_id
    JOIN pipeline p ON p.pipeline_id = b.pipeline_id
"""
# Why the attempt failed, in words.
REASON = "failure_reason(r.cause, r.step, r.reason)"
# Whether that is like a SQL pattern, or the cause is the pattern.
MATCHES_REASON = f"({REASON} LIKE :reason OR r.cause::text = :reason)"
# The message's state by now.
STATE = """
    CASE WHEN m.status = 'quarantined' THEN
           CASE WHEN EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
                THEN 'accepted' ELSE 'quarantined' END
         WHEN m.status = 'failed' AND m.not_before > now() THEN 'waiting'
         WHEN m.status = 'failed' AND m.given_up THEN 'given_up'
         ELSE m.status::text END
"""
# Its source s, and what any step does, in its original b.
STEPS = """
    JOIN batch_step s ON s.batch_id = b.batch_id AND s.name = m.source
    CROSS JOIN LATERAL (
      SELECT bool_or(merges) AS merges, bool_or(incremental) AS incremental
      FROM batch_step t WHERE t.batch_id = b.batch_id) AS any_step
"""
# Whether the step where it failed joins.
JOINS = """
    EXISTS (SELECT FROM batch_step j WHERE j.batch_id = b.batch_id AND j.name = r.step
            AND j.declaration ->> 'joins' = 'true')
"""
# Whether its source finds it by its key: f is its content, if that is kept.
REREADS = """
    (s.rereads AND NOT any_step.merges AND CASE
      WHEN f.message_id IS NULL THEN true WHEN f.key IS NULL THEN false
      ELSE NOT jsonb_path_exists(f.key, '$.* ? (@ == null)') END)
"""
# Whether it is of a batch: it began in it, failed in it, or is being replayed by it, wherever else
# it has failed since.
OF_BATCH = """
    (m.original_batch_id = cast(:batch_id AS bigint)
     OR m.replay_batch_id = cast(:batch_id AS bigint) AND m.status = 'replaying'
     OR EXISTS (SELECT FROM failed_root q
                WHERE q.message_id = m.message_id AND q.batch_id = cast(:batch_id AS bigint)))
    AND m.original_batch_id = (SELECT o.family_id FROM batch o WHERE o.batch_id = :batch_id)
"""
# Who has given it up.
ACCEPTED_BY = """
    CASE WHEN m.status = 'quarantined' THEN (
      SELECT c.accepted_by FROM accepted_root a JOIN acceptance c USING (acceptance_id)
      WHERE a.root_id = m.root_id) END
"""


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
class FailureGroup:
    """Records that failed in a batch at a step.

    ``reason``: None: the group is all failed records of its source.
    ``failed``: number of records that are still failed, or being replayed.
    ``accepted``: number of the quarantined records that are accepted.
    ``groups``: number of groups without the limit.
    """

    step: str
    source: str
    reason: str | None
    records: int
    failed: int
    quarantined: int
    accepted: int
    recovered: int
    groups: int

    @property
    def missing(self) -> int:
        """Number of the records that are missing now."""
        return self.failed + self.quarantined - self.accepted


# Of failed messages m, with r their last failure, those of the selection.
SELECTION = f"""
    (cast(:pipeline AS text) IS NULL OR m.original_batch_id IN (
       SELECT o.batch_id FROM batch o JOIN pipeline n ON n.pipeline_id = o.pipeline_id
       WHERE n.name = :pipeline))
    AND (cast(:batch_id AS bigint) IS NULL OR {OF_BATCH})
    AND (cast(:step AS text) IS NULL OR r.step = :step)
    AND (cast(:reason AS text) IS NULL OR {MATCHES_REASON})
    AND (cast(:since AS timestamptz) IS NULL OR r.failed_at >= cast(:since AS timestamptz))
"""
ANY = dict.fromkeys(("pipeline", "batch_id", "step", "reason", "since"))


def summaries(connection: Connection, selection: Mapping[str, Any]) -> list[FailureSummary]:
    """Return failed messages by original batch, most records first.

    ``selection``: pipeline, batch_id, step, reason (a SQL pattern, or a cause), since (time
    of the last failure); a key that is null or omitted matches any. ``recovered``: instead messages
    that a replay has processed.

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
          WHERE (m.status = 'recovered') = cast(:recovered AS boolean) AND {SELECTION}
          GROUP BY 1, 2, 3, 4, 5
        ) g
        JOIN batch b ON b.batch_id = g.original_batch_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        WHERE g.status <> 'superseded' AND b.status <> 'superseded'
           OR cast(:batch_id AS bigint) IS NOT NULL
        ORDER BY 1, 7 DESC, 3, 4, 6
    """)
    keys = {**ANY, "recovered": False, **selection}
    return all_of(FailureSummary, connection.execute(statement, keys))


def cases(
    connection: Connection, selection: Mapping[str, Any], case_of: Callable[..., T]
) -> list[T]:
    """Return messages that are neither recovered nor accepted by a person, by original batch, step,
    cause and state, most first; ``case_of`` makes a case of a row's columns.

    ``selection``: as for ``summaries``. Whether a key could be read is known once content is kept.
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
        {FAILURES} {STEPS}
        LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE b.status <> 'superseded' AND m.status IN ('failed', 'replaying', 'quarantined')
          AND {STATE} <> 'accepted' AND {SELECTION}
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ORDER BY records DESC, b.batch_id, r.step, cause, state
    """)
    return all_of(case_of, connection.execute(statement, {**ANY, **selection}))


def groups(connection: Connection, batch_id: int) -> list[FailureGroup]:
    """Return the failed records of a batch by step and reason, most first, and, without limit,
    their number by step and source.

    One statement does both, because it reads all failures of the batch.
    """
    statement = text(f"""
        WITH counted AS MATERIALIZED (
          SELECT r.step, m.source, {REASON} AS reason,
                 count(*) AS records,
                 count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
                 count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
                 count(*) FILTER (WHERE m.status = 'quarantined' AND EXISTS (
                   SELECT FROM accepted_root a WHERE a.root_id = m.root_id)) AS accepted,
                 count(*) FILTER (WHERE m.status = 'recovered') AS recovered
          FROM failed_root r JOIN failed_message m USING (message_id)
          WHERE r.batch_id = :id GROUP BY 1, 2, 3
        )
        SELECT step, source, NULL AS reason, sum(records)::bigint AS records,
               sum(failed)::bigint AS failed, sum(quarantined)::bigint AS quarantined,
               sum(accepted)::bigint AS accepted, sum(recovered)::bigint AS recovered,
               count(*) AS groups
        FROM counted GROUP BY 1, 2
        UNION ALL (
          SELECT *, count(*) OVER () AS groups FROM counted
          ORDER BY records DESC, step, source, reason LIMIT :limit
        )
    """)
    return all_of(FailureGroup, connection.execute(statement, {"id": batch_id, "limit": GROUPS}))


def has_reason(connection: Connection, scope: Mapping[str, Any], pattern: str) -> bool:
    """Return whether a record of ``scope`` has ever failed for a reason like this SQL pattern, or
    with it as the cause.
    """
    statement = text(f"""
        SELECT EXISTS (SELECT FROM failed_root r
          WHERE {MATCHES_REASON} AND r.batch_id IN (SELECT b.batch_id {BATCHES}))
    """)
    return bool(connection.execute(statement, {**scope, "reason": pattern}).scalar_one())


def reasons(connection: Connection, scope: Mapping[str, Any]) -> list[str]:
    """Return the most frequent reasons for which records of ``scope`` have failed, most first."""
    statement = text(f"""
        SELECT {REASON} FROM failed_root r WHERE r.batch_id IN (SELECT b.batch_id {BATCHES})
        GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT :most
    """)
    return list(connection.execute(statement, {**scope, "most": _MOST}).scalars())
