"""Statements about states of sources: how far each has read, and what abandoned batches leave
of it.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from ledger.store.queries.checkpoints import RunInProgress

# Runs that read the source: of a batch that has its state already, and of a replay, they read the
# ledger's snapshot.
_READING = """
FROM step_run r JOIN batch b USING (batch_id)
WHERE b.pipeline_id = :pipeline_id AND r.step = :source AND b.kind = 'original'
  AND NOT EXISTS (SELECT FROM checkpoint c
                  WHERE c.pipeline_id = b.pipeline_id AND c.step = r.step
                    AND c.batch_id = b.batch_id)
"""


def emitted_by(connection: Connection, pipeline_id: int, source: str, batch_id: int) -> int | None:
    """The run with which a batch has read the source; None if it has not."""
    statement = text("""
        SELECT step_run_id FROM checkpoint
        WHERE pipeline_id = :pipeline_id AND step = :source AND batch_id = :id
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "id": batch_id}
    run_id = connection.execute(statement, keys).scalar()
    return None if run_id is None else int(run_id)


def reading_before(
    connection: Connection, pipeline_id: int, source: str, run_id: int
) -> RunInProgress | None:
    """The oldest run that began to read the source earlier than this one and has not ended."""
    statement = text(f"""
        SELECT r.step_run_id, r.batch_id, r.attempt_id, r.lease_until > clock_timestamp() AS alive
        {_READING} AND r.state = 'running' AND r.step_run_id < :run ORDER BY 1 LIMIT 1
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "run": run_id}
    row = connection.execute(statement, keys).first()
    return None if row is None else RunInProgress(**row._mapping)


def failed_since(connection: Connection, pipeline_id: int, source: str, run_id: int) -> bool:
    """Whether a run that read the source, later than this one, was rolled back."""
    statement = text(f"""
        SELECT EXISTS (SELECT {_READING} AND r.step_run_id > :run
          AND r.state IN ('failed', 'fenced'))
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "run": run_id}
    return bool(connection.execute(statement, keys).scalar_one())


def left_by_abandoned(connection: Connection, pipeline_id: int, source: str) -> list[int]:
    """Runs that read the source for batches which were abandoned later, in their order."""
    statement = text("""
        SELECT c.step_run_id FROM checkpoint c JOIN batch b USING (batch_id)
        WHERE c.pipeline_id = :pipeline_id AND c.step = :source AND b.status = 'abandoned'
        ORDER BY 1
    """)
    rows = connection.execute(statement, {"pipeline_id": pipeline_id, "source": source})
    return [row.step_run_id for row in rows]


def take_over(connection: Connection, run_ids: Sequence[int]) -> int:
    """What these runs read for abandoned batches is another batch's now; of how many that was
    so.
    """
    statement = text("SELECT take_over_states(cast(:runs AS bigint[]))")
    return int(connection.execute(statement, {"runs": list(run_ids)}).scalar_one())


def unacked(connection: Connection, pipeline: str, source: str) -> list[int]:
    """Batches of which a source was not notified, and which are committed as a whole, with all that
    read it before them: settled, and published by the sinks. In the order of reading.
    """
    statement = text("""
        WITH read AS (
          SELECT c.batch_id, c.step_run_id, c.acked_at, b.status IN ('settled', 'superseded')
            AND NOT EXISTS (SELECT FROM pending_publication x WHERE x.batch_id = c.batch_id)
            AND NOT (b.settle = 'hold' AND EXISTS (
                            SELECT FROM open_failure m
                            WHERE m.original_batch_id = c.batch_id)) AS done
          FROM checkpoint c JOIN pipeline p USING (pipeline_id) JOIN batch b USING (batch_id)
          WHERE p.name = :pipeline AND c.step = :source
        ), followed AS (
          SELECT read.*, bool_and(done) OVER (ORDER BY step_run_id) AS all_done FROM read
        )
        SELECT batch_id FROM followed WHERE all_done AND acked_at IS NULL ORDER BY step_run_id
    """)
    rows = connection.execute(statement, {"pipeline": pipeline, "source": source})
    return [row.batch_id for row in rows]
