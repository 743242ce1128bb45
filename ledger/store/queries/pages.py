"""Statements behind the pages. Results that grow with the history, or with the failures of a batch,
are limited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.reports import Counts
from ledger.store.queries.rows import all_of

RECENT = 60  # batches of a timeline
INTERVALS = 400  # batches of a calendar: a year of days
WAITING = 50  # batches that wait for a person
DROPS = 500  # of a batch by step and reason
LONGEST = "20s"  # of a search


@dataclass(frozen=True)
class ListedBatch(Counts):
    """A batch with its pipeline's policy.

    ``unpublished``: whether some of its rows are not published yet.
    ``failed_at_settlement``: the number of records.
    ``replaced_by``: the batch that has read its interval instead.
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


def followed(connection: Connection, batch_id: int) -> dict[str, int]:
    """Return the steps after the settlement that have run in other batches of a batch's family,
    each with the latest of these.
    """
    statement = text("""
        SELECT DISTINCT ON (s.name) s.name, r.batch_id
        FROM batch b
        JOIN batch f ON f.family_id = b.family_id AND f.batch_id <> b.batch_id
        JOIN batch_step s ON s.batch_id = f.batch_id AND s.after
        JOIN step_run r ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        WHERE b.batch_id = :id ORDER BY s.name, r.step_run_id DESC
    """)
    return {row.name: row.batch_id for row in connection.execute(statement, {"id": batch_id})}


def drops(connection: Connection, batch_id: int) -> list[Dropped]:
    """Return the number of records that steps of a batch dropped on purpose, by step and reason,
    most first.
    """
    statement = text("""
        SELECT step, reason, records FROM step_drops WHERE batch_id = :id
        ORDER BY records DESC, step, reason LIMIT :limit
    """)
    return all_of(Dropped, connection.execute(statement, {"id": batch_id, "limit": DROPS}))


def published(connection: Connection, batch_id: int) -> list[Publication]:
    """Return the publications of a batch's sinks."""
    statement = text("SELECT * FROM sink_publication WHERE batch_id = :id ORDER BY step_run_id")
    return all_of(Publication, connection.execute(statement, {"id": batch_id}))
