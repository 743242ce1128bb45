"""Statements behind the pages. What grows with the history, or with the failures of a batch, is
limited.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

RECENT = 60  # batches of a timeline
INTERVALS = 400  # batches of a calendar: a year of days
WAITING = 50  # batches that wait for a person
PAGE = 50  # records of a page
REASONS = 500  # failures, or drops, of a batch by step and reason
FAMILY = 100  # replays of a batch
LONGEST = "20s"  # of a search

# A batch as ``batch_status`` has it, with its pipeline's policy, what it has left to publish, how
# many of its records failed at its own settlement, and the batch that reads its interval instead.
_BATCHES = """
    SELECT s.*, p.tolerate,
           s.opened_at + make_interval(secs => p.max_batch_age_seconds) AS deadline,
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
    """End a statement of this transaction that takes too long."""
    connection.execute(text(f"SET LOCAL statement_timeout = '{LONGEST}'"))


def names(connection: Connection) -> list[str]:
    """All pipelines."""
    return list(connection.execute(text("SELECT name FROM pipeline ORDER BY name")).scalars())


def batches(connection: Connection, ids: Sequence[int]) -> Sequence[Row[Any]]:
    """These batches, newest first: the columns of ``batch_status``, tolerate, deadline,
    unpublished, failed_at_settlement, replaced_by.
    """
    return connection.execute(text(_BATCHES), {"ids": list(ids)}).all()


def latest(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """The latest original of each pipeline that has one."""
    statement = text("""
        SELECT b.batch_id FROM pipeline p CROSS JOIN LATERAL (
          SELECT batch_id FROM batch o
          WHERE o.pipeline_id = p.pipeline_id AND o.kind = 'original'
          ORDER BY batch_id DESC LIMIT 1
        ) b WHERE p.name = ANY (cast(:pipelines AS text[]))
    """)
    return list(connection.execute(statement, {"pipelines": list(pipelines)}).scalars())


def recent(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """The latest batches of these pipelines, at most ``RECENT``."""
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE p.name = ANY (cast(:pipelines AS text[])) ORDER BY b.batch_id DESC LIMIT :limit
    """)
    keys = {"pipelines": list(pipelines), "limit": RECENT}
    return list(connection.execute(statement, keys).scalars())


def originals(connection: Connection, pipeline: str) -> list[int]:
    """The latest originals of a pipeline that nothing has replaced, at most ``INTERVALS``."""
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND b.kind = 'original' AND b.status <> 'superseded'
        ORDER BY b.batch_id DESC LIMIT :limit
    """)
    keys = {"pipeline": pipeline, "limit": INTERVALS}
    return list(connection.execute(statement, keys).scalars())


def open_batches(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """The batches of these pipelines that are under way, latest first, at most ``WAITING``."""
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE b.status = 'open' AND p.name = ANY (cast(:pipelines AS text[]))
        ORDER BY b.batch_id DESC LIMIT :limit
    """)
    keys = {"pipelines": list(pipelines), "limit": WAITING}
    return list(connection.execute(statement, keys).scalars())


def waiting(connection: Connection, pipelines: Sequence[str]) -> list[int]:
    """The batches of these pipelines that wait for a person, latest first, at most ``WAITING``:
    held ones; abandoned originals whose interval no later one reads; originals with more failed
    and quarantined records than are tolerated, of which some are failed, or not accepted.
    """
    found = " UNION ".join(f"({_LATEST.format(condition)})" for condition in _WAITING)
    statement = text(f"SELECT batch_id FROM ({found}) w ORDER BY batch_id DESC LIMIT :limit")
    keys = {"pipelines": list(pipelines), "limit": WAITING}
    return list(connection.execute(statement, keys).scalars())


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
    ) one
    CROSS JOIN LATERAL (
      SELECT FROM failed_message m WHERE m.original_batch_id = b.batch_id
        AND m.status IN ('failed', 'replaying', 'quarantined')
      OFFSET floor(p.tolerate::numeric * b.roots) LIMIT 1
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


def progress(connection: Connection, ids: Sequence[int]) -> Sequence[Row[Any]]:
    """How many steps of each batch are committed: batch_id, committed, steps; but for those that
    follow the settlement.
    """
    statement = text("""
        SELECT s.batch_id, count(r.step_run_id) AS committed, count(*) AS steps
        FROM batch_step s
        LEFT JOIN step_run r
          ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        WHERE s.batch_id = ANY (cast(:ids AS bigint[])) AND NOT s.after GROUP BY s.batch_id
    """)
    return connection.execute(statement, {"ids": list(ids)}).all()


def of_run(connection: Connection, dag_id: str, run_ids: Sequence[str]) -> list[int]:
    """The batches that a run of a DAG has opened, latest first."""
    statement = text("""
        SELECT batch_id FROM batch
        WHERE dag_id = :dag_id AND run_id = ANY (cast(:run_ids AS text[])) ORDER BY batch_id DESC
    """)
    return list(
        connection.execute(statement, {"dag_id": dag_id, "run_ids": list(run_ids)}).scalars()
    )


def place(connection: Connection, batch_id: int) -> Row[Any] | None:
    """Whose a batch is: pipeline, dag_id, of its original; None: there is no such batch."""
    statement = text("""
        SELECT p.name AS pipeline, o.dag_id FROM batch b
        JOIN batch o ON o.batch_id = b.family_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id WHERE b.batch_id = :id
    """)
    return connection.execute(statement, {"id": batch_id}).first()


def pipeline_of_record(connection: Connection, number: int) -> str | None:
    """The pipeline of a record, by its number or by a root of it; None: there is none."""
    statement = text("""
        SELECT p.name FROM batch_source s JOIN pipeline p USING (pipeline_id)
        WHERE s.first_root <= :id AND s.first_root + s.roots > :id
        ORDER BY s.first_root DESC LIMIT 1
    """)
    return connection.execute(statement, {"id": number}).scalar()


def family(connection: Connection, batch_id: int) -> list[int]:
    """The original that a batch belongs to, and its latest replays, at most ``FAMILY``."""
    statement = text("""
        SELECT f.batch_id FROM batch b JOIN batch f USING (family_id) WHERE b.batch_id = :id
        ORDER BY f.kind = 'original' DESC, f.batch_id DESC LIMIT :limit
    """)
    return list(connection.execute(statement, {"id": batch_id, "limit": FAMILY + 1}).scalars())


def followed(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """The steps after the settlement that have run in other batches of a batch's family, each as of
    the latest: step, batch_id, state, output_rows.
    """
    statement = text("""
        SELECT DISTINCT ON (s.name) s.name AS step, r.batch_id, r.state, r.output_rows
        FROM batch b
        JOIN batch f ON f.family_id = b.family_id AND f.batch_id <> b.batch_id
        JOIN batch_step s ON s.batch_id = f.batch_id AND s.after
        JOIN step_run r ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        WHERE b.batch_id = :id ORDER BY s.name, r.step_run_id DESC
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def drops(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """What the steps of a batch dropped on purpose, most first: step, reason, records."""
    statement = text("""
        SELECT step, reason, records FROM step_drops WHERE batch_id = :id
        ORDER BY records DESC, step, reason LIMIT :limit
    """)
    return connection.execute(statement, {"id": batch_id, "limit": REASONS}).all()


def published(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """What the sinks have published of a batch, as ``sink_publication`` has it."""
    statement = text("SELECT * FROM sink_publication WHERE batch_id = :id ORDER BY step_run_id")
    return connection.execute(statement, {"id": batch_id}).all()


def failures(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """Where and why records failed in a batch, most first: step, source, reason, records, failed
    (still, or being replayed), quarantined, accepted (of these), recovered, groups (how many rows
    there are without the limit).
    And, without limit, how many records of each source failed at each step: of these rows the
    reason is None. One statement, for it reads all failures of the batch.
    """
    statement = text("""
        WITH counted AS MATERIALIZED (
          SELECT f.step, m.source, f.reason, count(*) AS records,
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
    return connection.execute(statement, {"id": batch_id, "limit": REASONS}).all()


def not_due(connection: Connection, original_batch_id: int) -> Row[Any]:
    """Failed records of an original that a replay does not take now: replaying (another one has
    them), kept_back (with their unit), later (they wait), not_before (until when, the first).
    """
    statement = text("""
        SELECT count(*) FILTER (WHERE status = 'replaying') AS replaying,
               count(*) FILTER (WHERE status = 'failed' AND not_before = 'infinity') AS kept_back,
               count(*) FILTER (WHERE status = 'failed' AND not_before > now()
                 AND not_before < 'infinity') AS later,
               min(not_before) FILTER (WHERE status = 'failed' AND not_before > now()
                 AND not_before < 'infinity') AS not_before
        FROM failed_message WHERE original_batch_id = :id AND status IN ('failed', 'replaying')
    """)
    return connection.execute(statement, {"id": original_batch_id}).one()


def records(
    connection: Connection,
    batch_id: int,
    *,
    step: str | None = None,
    reason: str | None = None,
    status: str | None = None,
    search: str | None = None,
    after: int = 0,
) -> Sequence[Row[Any]]:
    """Records that failed in a batch, in order of their roots after ``after``; one more than a
    page, if there are more: root_id, message_id, source, step, reason, status, attempts, key
    (as text), beginning (of its content).

    ``search``: a number of the record, or text in reason or content.
    """
    statement = text("""
        SELECT f.root_id, f.message_id, m.source, f.step, f.reason, m.status::text AS status,
               m.attempts, c.key::text AS key, left(c.content, 200) AS beginning
        FROM failed_root f
        JOIN failed_message m USING (message_id)
        LEFT JOIN failed_payload c USING (message_id)
        WHERE f.batch_id = :batch_id AND f.root_id > :after
          AND (cast(:step AS text) IS NULL OR f.step = :step)
          AND (cast(:reason AS text) IS NULL OR f.reason = :reason)
          AND (cast(:status AS text) IS NULL OR m.status::text = :status)
          AND (cast(:search AS text) IS NULL
               OR cast(:search AS text) IN (f.root_id::text, f.message_id::text)
               OR strpos(lower(f.reason), lower(:search)) > 0
               OR strpos(lower(c.content), lower(:search)) > 0)
        ORDER BY f.root_id LIMIT :limit
    """)
    keys = {"batch_id": batch_id, "after": after, "limit": PAGE + 1}
    given = {"step": step, "reason": reason, "status": status, "search": search or None}
    return connection.execute(statement, {**keys, **given}).all()
