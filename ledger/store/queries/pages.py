"""Statements behind the pages. Results that grow with the history, or with the failures of a batch,
are limited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.store.queries.reports import Counts
from ledger.store.queries.rows import all_of

RECENT = 60  # batches of a timeline
INTERVALS = 400  # batches of a calendar: a year of days
WAITING = 50  # batches that wait for a person
PAGE = 50  # records of a page
REASONS = 500  # failures, or drops, of a batch by step and reason
LONGEST = "20s"  # of a search


@dataclass(frozen=True)
class ListedBatch(Counts):
    """A batch with its pipeline's policy.

    ``unpublished``: whether something of it has yet to be published.
    ``failed_at_settlement``: number of records.
    ``replaced_by``: the batch that reads its interval instead.
    """

    allow_failed: float
    deadline: datetime
    unpublished: bool
    failed_at_settlement: int | None
    replaced_by: int | None


@dataclass(frozen=True)
class Committed:
    """Number of a batch's steps and of the committed ones, without steps that follow the
    settlement.
    """

    batch_id: int
    committed: int
    steps: int


@dataclass(frozen=True)
class FollowedStep:
    """A step after the settlement that has run in another batch of the family."""

    step: str
    batch_id: int
    state: str
    output_rows: int | None


@dataclass(frozen=True)
class Dropped:
    """Records that a step dropped on purpose."""

    step: str
    reason: str
    records: int


@dataclass(frozen=True)
class Publication:
    """A row of ``sink_publication``."""

    batch_id: int
    pipeline: str
    sink: str
    step_run_id: int
    state: str
    decided_at: datetime
    published_at: datetime | None
    replaced_at: datetime | None
    rows: int | None
    withheld_rows: int | None


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


@dataclass(frozen=True)
class ListedRecord:
    """A record that failed in a batch.

    ``key``: its key as text.
    ``beginning``: the beginning of its content.
    ``status``, ``attempts``: None for a record of a batch on hold.
    """

    root_id: int
    message_id: int
    source: str
    step: str
    reason: str
    key: str | None
    beginning: str | None
    status: str | None = None
    attempts: int | None = None


_BATCHES = """
    SELECT s.*, p.allow_failed,
           s.opened_at + p.max_batch_age AS deadline,
           EXISTS (SELECT FROM pending_publication x WHERE x.batch_id = s.batch_id) AS unpublished,
           b.failed_roots AS failed_at_settlement,
           (SELECT n.batch_id FROM batch n
            WHERE n.replaces_batch_id = b.family_id AND n.status <> 'abandoned'
            ORDER BY n.batch_id DESC LIMIT 1) AS replaced_by
    FROM (SELECT * FROM batch_status WHERE batch_id = ANY (cast(:ids AS bigint[]))) s
    JOIN batch b ON b.batch_id = s.batch_id
    JOIN pipeline p ON p.name = s.pipeline ORDER BY s.batch_id DESC
"""


def limit_time(connection: Connection) -> None:
    """Make a statement of this transaction fail that takes too long."""
    connection.execute(text(f"SET LOCAL statement_timeout = '{LONGEST}'"))


def batches(connection: Connection, ids: Sequence[int]) -> list[ListedBatch]:
    """Return these batches, newest first."""
    return all_of(ListedBatch, connection.execute(text(_BATCHES), {"ids": list(ids)}))


def latest(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """Return the latest original of each pipeline that has one."""
    statement = text("""
        SELECT b.batch_id FROM pipeline p CROSS JOIN LATERAL (
          SELECT batch_id FROM batch o
          WHERE o.pipeline_id = p.pipeline_id AND o.kind = 'original'
          ORDER BY batch_id DESC LIMIT 1
        ) b WHERE p.name = ANY (cast(:pipelines AS text[]))
    """)
    return list(connection.execute(statement, {"pipelines": list(pipelines)}).scalars())


def recent(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """Return the latest batches of these pipelines, at most ``RECENT``."""
    return _latest(connection, pipelines, "WHERE true", RECENT)


def originals(connection: Connection, pipeline: str) -> list[int]:
    """Return the latest originals of a pipeline that are not replaced, at most ``INTERVALS``."""
    condition = "WHERE b.kind = 'original' AND b.status <> 'superseded'"
    return _latest(connection, [pipeline], condition, INTERVALS)


def open_batches(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """Return the open batches of these pipelines, latest first, at most ``WAITING``."""
    return _latest(connection, pipelines, "WHERE b.status = 'open'", WAITING)


def waiting(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """Return the batches of these pipelines that wait for a person, latest first, at most
    ``WAITING``: batches on hold; abandoned originals whose interval no later one reads; and
    originals with more failed and quarantined records than are tolerated, if some of these are
    failed, or not accepted.
    """
    union = " UNION ".join(f"({_LATEST.format(condition)})" for condition in _WAITING)
    statement = text(f"SELECT batch_id FROM ({union}) w ORDER BY batch_id DESC LIMIT :limit")
    keys = {"pipelines": list(pipelines), "limit": WAITING}
    return list(connection.execute(statement, keys).scalars())


def _latest(
    connection: Connection, pipelines: Sequence[str], condition: str, limit: int
) -> list[int]:
    keys = {"pipelines": list(pipelines), "limit": limit}
    return list(connection.execute(text(_LATEST.format(condition)), keys).scalars())


# Each condition on its own, and each batch by itself, latest first: a batch is left as soon as one
# record of it is found, and the search ends after the first batches. As one EXISTS of two it would
# read the failed records of all years.
_LATEST = """
    SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id) {}
    AND p.name = ANY (cast(:pipelines AS text[])) ORDER BY b.batch_id DESC LIMIT :limit
"""
_OF_SETTLED = """
    CROSS JOIN LATERAL (
      SELECT FROM failed_message m WHERE m.original_batch_id = b.batch_id AND {} LIMIT 1
    ) failure
    CROSS JOIN LATERAL (
      SELECT FROM failed_message m WHERE m.original_batch_id = b.batch_id
        AND m.status IN ('failed', 'replaying', 'quarantined')
      OFFSET floor(p.allow_failed::numeric * b.roots) LIMIT 1
    ) beyond WHERE b.kind = 'original' AND b.status = 'settled'
"""
_WAITING = (
    "WHERE b.status = 'held'",
    """
    WHERE b.status = 'abandoned' AND b.kind = 'original' AND NOT EXISTS (
      SELECT FROM batch n
      WHERE n.pipeline_id = b.pipeline_id AND n.kind = 'original' AND n.batch_id > b.batch_id
        AND n.interval_start <= b.interval_start AND n.interval_end >= b.interval_end)
    """,
    _OF_SETTLED.format("m.status IN ('failed', 'replaying')"),
    _OF_SETTLED.format(
        "m.status = 'quarantined'"
        " AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)"
    ),
)


def progress(connection: Connection, ids: Sequence[int]) -> list[Committed]:
    """Return how many steps of each of these batches are committed."""
    statement = text("""
        SELECT s.batch_id, count(r.step_run_id) AS committed, count(*) AS steps
        FROM batch_step s
        LEFT JOIN step_run r
          ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        WHERE s.batch_id = ANY (cast(:ids AS bigint[])) AND NOT s.after GROUP BY s.batch_id
    """)
    return all_of(Committed, connection.execute(statement, {"ids": list(ids)}))


def of_run(connection: Connection, dag_id: str, run_ids: Sequence[str]) -> list[int]:
    """Return the batches that a run of a DAG has opened, latest first."""
    statement = text("""
        SELECT batch_id FROM batch
        WHERE dag_id = :dag_id AND run_id = ANY (cast(:run_ids AS text[])) ORDER BY batch_id DESC
    """)
    return list(
        connection.execute(statement, {"dag_id": dag_id, "run_ids": list(run_ids)}).scalars()
    )


def pipeline_of_record(connection: Connection, number: int) -> str | None:
    """Return the pipeline of a record, by its number or by a root of it; None: there is none."""
    statement = text("""
        SELECT p.name FROM batch_source s JOIN pipeline p USING (pipeline_id)
        WHERE s.first_root <= :id AND s.first_root + s.roots > :id
        ORDER BY s.first_root DESC LIMIT 1
    """)
    return connection.execute(statement, {"id": number}).scalar()


def followed(connection: Connection, batch_id: int) -> list[FollowedStep]:
    """Return the steps after the settlement that have run in other batches of a batch's family,
    each with the latest of these.
    """
    statement = text("""
        SELECT DISTINCT ON (s.name) s.name AS step, r.batch_id, r.state, r.output_rows
        FROM batch b
        JOIN batch f ON f.family_id = b.family_id AND f.batch_id <> b.batch_id
        JOIN batch_step s ON s.batch_id = f.batch_id AND s.after
        JOIN step_run r ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        WHERE b.batch_id = :id ORDER BY s.name, r.step_run_id DESC
    """)
    return all_of(FollowedStep, connection.execute(statement, {"id": batch_id}))


def drops(connection: Connection, batch_id: int) -> list[Dropped]:
    """Return the number of records that steps of a batch dropped on purpose, by step and reason,
    most first.
    """
    statement = text("""
        SELECT step, reason, records FROM step_drops WHERE batch_id = :id
        ORDER BY records DESC, step, reason LIMIT :limit
    """)
    return all_of(Dropped, connection.execute(statement, {"id": batch_id, "limit": REASONS}))


def published(connection: Connection, batch_id: int) -> list[Publication]:
    """Return the publications of a batch's sinks."""
    statement = text("SELECT * FROM sink_publication WHERE batch_id = :id ORDER BY step_run_id")
    return all_of(Publication, connection.execute(statement, {"id": batch_id}))


def failures(connection: Connection, batch_id: int) -> list[FailureGroup]:
    """Return the failed records of a batch by step and reason, most first, and, without limit,
    their number by step and source.

    One statement does both, because it reads all failures of the batch.
    """
    statement = text("""
        WITH counted AS MATERIALIZED (
          SELECT f.step, m.source, failure_reason(f.cause, f.step, f.reason) AS reason,
                 count(*) AS records,
                 count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
                 count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
                 count(*) FILTER (WHERE m.status = 'quarantined' AND EXISTS (
                   SELECT FROM accepted_root a WHERE a.root_id = m.root_id)) AS accepted,
                 count(*) FILTER (WHERE m.status = 'recovered') AS recovered
          FROM failed_root f JOIN failed_message m USING (message_id)
          WHERE f.batch_id = :id GROUP BY 1, 2, 3
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
    return all_of(FailureGroup, connection.execute(statement, {"id": batch_id, "limit": REASONS}))


_FAILED = """
    SELECT f.root_id, f.message_id, m.source, f.step,
           failure_reason(f.cause, f.step, f.reason) AS reason, m.status::text AS status,
           m.attempts, c.key, c.content
    FROM failed_root f JOIN failed_message m USING (message_id)
    LEFT JOIN failed_payload c USING (message_id) WHERE f.batch_id = :batch_id
"""
_SAMPLED = """
    SELECT f.root_id, f.message_id, h.source, h.step, h.reason, NULL::text AS status,
           NULL::int AS attempts, f.key, f.content
    FROM hold_sample f JOIN hold_failure h USING (batch_id, number) WHERE f.batch_id = :batch_id
"""
_FILTERS = dict.fromkeys(("step", "reason", "status", "search"))


def records(
    connection: Connection, batch_id: int, filters: Mapping[str, Any], *, on_hold: bool
) -> list[ListedRecord]:
    """Return records that failed in a batch, or, of a batch on hold, the sampled ones that would
    fail, in order of their roots. If there are more than a page, one more record is returned.

    ``filters``: step, reason, status (which those on hold do not have); search, a number of the
    record, or text in its reason or content; after, a root.
    """
    statement = text(f"""
        SELECT x.root_id, x.message_id, x.source, x.step, x.reason, x.key::text AS key,
               left(x.content, 200) AS beginning, x.status, x.attempts
        FROM ({_SAMPLED if on_hold else _FAILED}) x
        WHERE x.root_id > :after
          AND (cast(:step AS text) IS NULL OR x.step = :step)
          AND (cast(:reason AS text) IS NULL OR x.reason = :reason)
          AND (cast(:status AS text) IS NULL OR coalesce(x.status, :status) = :status)
          AND (cast(:search AS text) IS NULL
               OR cast(:search AS text) IN (x.root_id::text, x.message_id::text)
               OR strpos(lower(x.reason), lower(:search)) > 0
               OR strpos(lower(x.content), lower(:search)) > 0)
        ORDER BY x.root_id LIMIT :limit
    """)
    keys = {**_FILTERS, "batch_id": batch_id, "after": 0, "limit": PAGE + 1, **filters}
    return all_of(ListedRecord, connection.execute(statement, keys))
