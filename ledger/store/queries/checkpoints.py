"""Statements about states over batches: committed states, states that are due, and publications of
their sinks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of, first_of

# A reason why the family of an original f is kept: the next batch starts from its state.
CURRENT_STATE = """
  EXISTS (
    SELECT FROM checkpoint c JOIN batch m USING (batch_id)
    WHERE m.family_id = f.batch_id AND NOT EXISTS (
      SELECT FROM checkpoint l WHERE l.pipeline_id = c.pipeline_id AND l.step = c.step
        AND l.step_run_id > c.step_run_id))
"""


@dataclass(frozen=True)
class Checkpoint:
    """The committed state of a batch. ``snapshot``: None for the state of a function, which is the
    run's files.
    """

    batch_id: int
    step_run_id: int
    snapshot: Any


@dataclass(frozen=True)
class RunInProgress:
    """A run of a state that has not ended. ``alive``: whether its lease has not lapsed."""

    step_run_id: int
    batch_id: int
    attempt_id: UUID
    alive: bool


@dataclass(frozen=True)
class WaitingState:
    """A state of a batch that is not committed. ``batches``: number of batches that wait for it."""

    pipeline: str
    batch_id: int
    step: str
    state: str
    waits_for_batch_id: int | None
    waits_because: str | None
    batches: int


@dataclass(frozen=True)
class UnfinishedStep:
    """A step without a committed run, with its last run.

    ``after``: whether it follows the settlement.
    ``state``: None: it never ran.
    ``alive``: whether its lease has not lapsed.
    """

    name: str
    after: bool
    state: str | None
    failure: str | None
    alive: bool | None


def due_batch(connection: Connection, pipeline: str, states: Sequence[str]) -> int | None:
    """Return the batch for which one of these states has to be done next; None: there is nothing to
    do.
    """
    statement = text("""
        SELECT min(batch_id) FROM state_progress
        WHERE pipeline = :pipeline AND step = ANY(:states) AND state = 'due'
    """)
    batch_id = connection.execute(
        statement, {"pipeline": pipeline, "states": list(states)}
    ).scalar()
    return None if batch_id is None else int(batch_id)


def waiting(
    connection: Connection, *, batch_id: int | None = None, pipeline: str | None = None
) -> list[WaitingState]:
    """Return the states of a batch that are not committed. Without a batch, return for each state
    of one pipeline, or of all, the first batch that waits for it.
    """
    statement = text("""
        SELECT DISTINCT ON (s.pipeline, s.step) s.pipeline, s.batch_id, s.step, s.state,
               s.waits_for_batch_id, s.waits_because,
               count(*) OVER (PARTITION BY s.pipeline, s.step) AS batches
        FROM state_progress s
        WHERE CASE WHEN cast(:id AS bigint) IS NULL
                   THEN s.state = 'waiting'
                        AND (cast(:pipeline AS text) IS NULL OR s.pipeline = :pipeline)
                   ELSE s.state <> 'committed' AND s.batch_id = :id END
        ORDER BY s.pipeline, s.step, s.batch_id
    """)
    keys = {"id": batch_id, "pipeline": pipeline}
    return all_of(WaitingState, connection.execute(statement, keys))


def unfinished_step(connection: Connection, batch_id: int) -> UnfinishedStep | None:
    """Return the first step of a batch, in order, without a committed run; None if all have one."""
    statement = text("""
        SELECT s.name, s.after, last.state, last.failure, last.alive
        FROM batch_step s
        LEFT JOIN LATERAL (
          SELECT r.state, r.failure, r.lease_until > clock_timestamp() AS alive FROM step_run r
          WHERE r.batch_id = s.batch_id AND r.step = s.name
          ORDER BY r.state = 'committed' DESC, r.step_run_id DESC LIMIT 1) AS last ON true
        WHERE s.batch_id = :id AND last.state IS DISTINCT FROM 'committed'
        ORDER BY s.number LIMIT 1
    """)
    return first_of(UnfinishedStep, connection.execute(statement, {"id": batch_id}))


_RUNS = """
FROM step_run r JOIN batch b USING (batch_id)
WHERE b.pipeline_id = :pipeline_id AND r.step = :step
"""


def under_way(connection: Connection, pipeline_id: int, step: str) -> RunInProgress | None:
    """Return the run of a state, of whichever batch, that has not ended."""
    statement = text(f"""
        SELECT r.step_run_id, r.batch_id, r.attempt_id, r.lease_until > clock_timestamp() AS alive
        {_RUNS} AND r.state = 'running' ORDER BY 1 DESC LIMIT 1
    """)
    keys = {"pipeline_id": pipeline_id, "step": step}
    return first_of(RunInProgress, connection.execute(statement, keys))


def fence(connection: Connection, pipeline_id: int, steps: Sequence[str]) -> None:
    """End the running runs of these steps in all batches of a pipeline."""
    statement = text("""
        UPDATE step_run r SET state = 'fenced', closed_at = clock_timestamp() FROM batch b
        WHERE b.batch_id = r.batch_id AND b.pipeline_id = :pipeline_id AND r.step = ANY(:steps)
          AND r.state = 'running'
    """)
    connection.execute(statement, {"pipeline_id": pipeline_id, "steps": list(steps)})


def last(connection: Connection, pipeline_id: int, step: str) -> Checkpoint | None:
    """Return the state that a step committed last, with whichever batch; None before the first."""
    statement = text("""
        SELECT batch_id, step_run_id, snapshot FROM checkpoint
        WHERE pipeline_id = :pipeline_id AND step = :step ORDER BY step_run_id DESC LIMIT 1
    """)
    keys = {"pipeline_id": pipeline_id, "step": step}
    return first_of(Checkpoint, connection.execute(statement, keys))


def failed_since(connection: Connection, pipeline_id: int, step: str, run_id: int) -> bool:
    """Return whether a run of a state that began after this one failed or was fenced, in any
    batch.
    """
    statement = text(
        f"SELECT EXISTS (SELECT {_RUNS} AND r.step_run_id > :run AND r.state IN ('failed',"
        " 'fenced'))"
    )
    keys = {"pipeline_id": pipeline_id, "step": step, "run": run_id}
    return bool(connection.execute(statement, keys).scalar_one())


def insert(
    connection: Connection, pipeline_id: int, step: str, batch_id: int, run_id: int, snapshot: Any
) -> None:
    """Make the state that a run made with a batch the current one."""
    statement = text("""
        INSERT INTO checkpoint (pipeline_id, step, batch_id, step_run_id, snapshot)
        VALUES (:pipeline_id, :step, :batch_id, :run, cast(:snapshot AS jsonb))
    """)
    keys = {
        "pipeline_id": pipeline_id,
        "step": step,
        "batch_id": batch_id,
        "run": run_id,
        "snapshot": None if snapshot is None else json.dumps(snapshot),
    }
    connection.execute(statement, keys)


def unacked(
    connection: Connection, pipeline: str, step: str, states: Sequence[str], *, combines: bool
) -> list[int]:
    """Return batches that are committed as a whole and that a step was not notified of, in the
    order of their states, up to the first batch that is not committed as a whole.

    A batch is not committed as a whole while a record of its family is failed, a sink has yet to
    publish, or one of the ``states`` is missing, or one of the ``combines``, if the pipeline has
    them.
    """
    statement = text("""
        WITH pending AS MATERIALIZED (
          SELECT b.family_id FROM state_progress s JOIN batch b USING (batch_id)
          WHERE s.pipeline = :pipeline AND s.step = ANY(:states) AND s.state <> 'committed'
        ), unacked AS (
          SELECT c.batch_id, c.step_run_id, b.family_id
          FROM checkpoint c JOIN batch b USING (batch_id)
          JOIN pipeline p ON p.pipeline_id = c.pipeline_id
          WHERE p.name = :pipeline AND c.step = :step AND c.acked_at IS NULL
        )
        SELECT t.batch_id,
               NOT EXISTS (SELECT FROM pending u WHERE u.family_id = t.family_id)
               AND NOT EXISTS (SELECT FROM open_failure m
                               WHERE m.original_batch_id = t.family_id)
               AND NOT EXISTS (SELECT FROM pending_follow_up f WHERE f.family_id = t.family_id
                               AND f.follow_up = ANY(:follow_ups)) AS ready
        FROM unacked t ORDER BY t.step_run_id
    """)
    keys = {
        "pipeline": pipeline,
        "step": step,
        "states": list(states),
        "follow_ups": ["publish", *(["combine"] if combines else [])],
    }
    rows = connection.execute(statement, keys).all()
    return [row.batch_id for row in takewhile(lambda row: row.ready, rows)]


_OF_STEP = (
    "pipeline_id = (SELECT pipeline_id FROM pipeline WHERE name = :pipeline) AND step = :step"
)


def set_acked(connection: Connection, pipeline: str, step: str, batch_id: int) -> None:
    """Note that the step was notified that a batch is committed as a whole."""
    statement = text(f"""
        UPDATE checkpoint SET acked_at = now()
        WHERE {_OF_STEP} AND batch_id = :id AND acked_at IS NULL
    """)
    connection.execute(statement, {"pipeline": pipeline, "step": step, "id": batch_id})


def outlived(connection: Connection, pipeline: str, step: str) -> list[int]:
    """Return runs of a state to which nothing goes back, because a later one is committed and the
    sinks of its batch have published. The last committed run is never among them.
    """
    statement = text(f"""
        SELECT r.step_run_id FROM step_run r
        WHERE r.files_removed_at IS NULL AND r.step_run_id IN (
          SELECT step_run_id FROM checkpoint WHERE {_OF_STEP}
        ) AND r.step_run_id < (
          SELECT max(c.step_run_id) FROM checkpoint c WHERE {_OF_STEP} AND NOT EXISTS (
            SELECT FROM pending_publication x WHERE x.batch_id = c.batch_id))
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"pipeline": pipeline, "step": step}).scalars())


def committed_of(connection: Connection, batch_id: int, states: Sequence[str]) -> list[str]:
    """Return those of the states that include a batch or a replay of it."""
    statement = text("""
        SELECT DISTINCT c.step FROM checkpoint c JOIN batch b USING (batch_id)
        WHERE c.step = ANY(:states) AND b.family_id = :id
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"id": batch_id, "states": list(states)}).scalars())


def committed_after(
    connection: Connection, pipeline_id: int, states: Sequence[str], place: int
) -> tuple[str, int] | None:
    """Return one of the states, and a batch that it includes, if the place of that batch, or of the
    original that it replays, is after this one; None if there is none.
    """
    statement = text("""
        SELECT c.step, c.batch_id FROM checkpoint c JOIN batch b USING (batch_id)
        WHERE c.pipeline_id = :pipeline_id AND c.step = ANY(:states) AND b.family_id > :place
        ORDER BY c.step_run_id LIMIT 1
    """)
    keys = {"pipeline_id": pipeline_id, "states": list(states), "place": place}
    row = connection.execute(statement, keys).first()
    return None if row is None else (str(row.step), int(row.batch_id))
