"""Statements about plans of several steps, and about what their steps did in earlier batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of


@dataclass(frozen=True)
class StageHistory:
    """Counts of a stage or sink in the last settled batch of its pipeline.

    ``multiplies``: whether an input row had several output rows, marked ones included.
    ``rows_ended``, ``input_rows``: how many of its input rows had no output row that went on. From
    a whole stage on, a row may go on within another: there ``rows_ended`` is how many records
    failed or were dropped.
    ``failed_rows``: how many rows it marked as failed; how many records a sink refused.
    """

    step: str
    multiplies: bool
    rows_ended: int
    input_rows: int
    failed_rows: int = 0


def stage_history(connection: Connection, pipeline_id: int, before: int) -> list[StageHistory]:
    """Return what each tracked step did in the last original batch of a pipeline that settled.

    ``before``: a later batch, with the same steps; without them the answer is empty.
    """
    statement = text("""
        WITH earlier AS (
          SELECT b.batch_id FROM batch b JOIN batch n
            ON n.batch_id = :before AND n.steps_version = b.steps_version
          WHERE b.pipeline_id = :pipeline AND b.batch_id < :before AND b.kind = 'original'
            AND b.status = 'settled' AND b.tracking
          ORDER BY b.batch_id DESC LIMIT 1
        )
        SELECT r.step,
               r.output_rows + r.failed_rows + coalesce(d.records, 0) > r.acked_edges AS multiplies,
               CASE WHEN s.merges THEN coalesce(d.records, 0) + (
                   SELECT count(*) FROM failed_root f
                   WHERE f.batch_id = r.batch_id AND f.step = r.step)
                 ELSE greatest(r.input_rows - r.output_rows, 0) END AS rows_ended,
               r.input_rows, r.failed_rows
        FROM earlier JOIN step_run r USING (batch_id)
        JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.step
        LEFT JOIN LATERAL (
          SELECT sum(records) AS records FROM step_run_drop WHERE step_run_id = r.step_run_id
        ) d ON true
        WHERE r.state = 'committed' AND r.input_rows > 0
    """)
    keys = {"pipeline": pipeline_id, "before": before}
    return all_of(StageHistory, connection.execute(statement, keys))


def last_rejections(
    connection: Connection, batch_id: int, steps: Sequence[str], most: int
) -> list[int]:
    """Return the batches whose plans of these steps were rejected, newest first, up to the last
    plan that was accepted. Plans that did not end count as rejected, of this batch and of those
    that are decided: their driver died, or its disk was full.
    """
    statement = text("""
        SELECT p.batch_id, coalesce(p.accepted, false) AS accepted
        FROM one_plan p JOIN batch b USING (pipeline_id) JOIN batch o ON o.batch_id = p.batch_id
        WHERE b.batch_id = :id AND p.steps = cast(:steps AS text[])
          AND (p.accepted IS NOT NULL OR p.batch_id = :id OR o.status <> 'open')
        ORDER BY p.one_plan_id DESC LIMIT :most
    """)
    keys = {"id": batch_id, "steps": list(steps), "most": most}
    rows = connection.execute(statement, keys)
    return [row.batch_id for row in takewhile(lambda row: not row.accepted, rows)]


def originals_after(connection: Connection, pipeline_id: int, batch_id: int, most: int) -> int:
    """Return how many original batches of a pipeline were opened after another: at most so many."""
    statement = text("""
        SELECT count(*) FROM (
          SELECT FROM batch
          WHERE pipeline_id = :pipeline AND kind = 'original' AND batch_id > :batch LIMIT :most
        ) opened
    """)
    keys = {"pipeline": pipeline_id, "batch": batch_id, "most": most}
    return int(connection.execute(statement, keys).scalar_one())


@dataclass(frozen=True)
class TriedPlan:
    """Steps of a batch that ran as one plan. ``rejected``: why its rows do not count; None: they
    do.
    """

    steps: Sequence[str]
    rejected: str | None


def tried_plans(connection: Connection, batch_id: int) -> list[TriedPlan]:
    """Return the last plan of each sequence of steps of a batch that was rejected, or counts."""
    statement = text("""
        SELECT DISTINCT ON (p.steps) p.steps, p.rejected FROM one_plan p
        WHERE p.batch_id = :id AND (NOT p.accepted OR EXISTS (
          SELECT FROM step_run r WHERE r.batch_id = p.batch_id AND r.state = 'committed'
            AND r.one_plan_id = p.one_plan_id))
        ORDER BY p.steps, p.one_plan_id DESC
    """)
    return all_of(TriedPlan, connection.execute(statement, {"id": batch_id}))


def insert_plan(connection: Connection, batch_id: int, steps: Sequence[str]) -> int:
    """Insert a plan of these steps, and return its number."""
    statement = text("""
        INSERT INTO one_plan (pipeline_id, batch_id, steps)
        SELECT pipeline_id, batch_id, cast(:steps AS text[]) FROM batch WHERE batch_id = :batch_id
        RETURNING one_plan_id
    """)
    keys = {"batch_id": batch_id, "steps": list(steps)}
    return int(connection.execute(statement, keys).scalar_one())


def set_plan(connection: Connection, run_ids: Sequence[int], one_plan_id: int) -> None:
    """Note the plan that these runs are part of."""
    statement = text("""
        UPDATE step_run SET one_plan_id = :plan
        WHERE step_run_id = ANY (cast(:runs AS bigint[]))
    """)
    connection.execute(statement, {"plan": one_plan_id, "runs": list(run_ids)})


def end_plan(connection: Connection, one_plan_id: int, rejected: str | None = None) -> None:
    """Note that the rows of a plan count. ``rejected``: why they do not."""
    statement = text("""
        UPDATE one_plan SET rejected = :why, accepted = cast(:why AS text) IS NULL
        WHERE one_plan_id = :id
    """)
    connection.execute(statement, {"id": one_plan_id, "why": rejected})
