"""Statements about step runs: one attempt of one step of one batch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from ledger.core.states import RunState
from ledger.deltas.spans import RootRange
from ledger.storage.manifest import DataFile
from ledger.store.queries.rows import all_of, one_of


@dataclass(frozen=True)
class Run:
    """One row of ``step_run``. Times are in UTC.

    ``emitted``: the roots of a source's run, while it is the run that counts.
    ``one_plan_id``: the plan that it is part of, if any.
    ``begins_with``, ``written_by``: the first and the last step of that plan. Only the last wrote
    its rows. ``written_by`` is None if the run wrote its own.
    """

    step_run_id: int
    batch_id: int
    step: str
    state: RunState
    attempt_id: UUID
    attempt_number: int
    try_number: int | None
    opened_at: datetime
    lease_until: datetime
    closed_at: datetime | None
    output_rows: int | None
    emitted_edges: int | None
    emitted: RootRange | None
    one_plan_id: int | None = None
    begins_with: str | None = None
    written_by: str | None = None

    def holds_its_step(self, now: datetime) -> bool:
        """Return whether an older attempt must not run the step, because this run has done it, or
        its driver is alive.
        """
        if self.state is RunState.RUNNING:
            return self.lease_until > now
        return self.state in (RunState.COMMITTED, RunState.SUPERSEDED)


@dataclass(frozen=True, kw_only=True)
class Emit(RootRange):
    """The roots of a source of a batch, as the run that counts has emitted them."""

    batch_id: int
    source: str
    emit_run_id: int
    notified_at: datetime | None


EMITS = """
SELECT s.batch_id, s.source, s.emit_run_id, s.first_root, s.roots, s.span, s.notified_at
FROM batch_source s JOIN batch b USING (batch_id) WHERE s.emit_run_id IS NOT NULL
"""

_RUN = """
SELECT r.step_run_id, r.batch_id, r.step, r.state, r.attempt_id, r.attempt_number, r.try_number,
       r.opened_at, r.lease_until, r.closed_at, r.output_rows, r.emitted_edges,
       s.first_root, s.roots, s.span,
       r.one_plan_id, p.steps[1] AS begins_with,
       nullif(p.steps[array_upper(p.steps, 1)], r.step) AS written_by
FROM step_run r
LEFT JOIN batch_source s
  ON s.batch_id = r.batch_id AND s.source = r.step AND s.emit_run_id = r.step_run_id
LEFT JOIN one_plan p USING (one_plan_id)
"""


def _run(
    state: str, first_root: int | None, roots: int | None, span: int | None, **others: Any
) -> Run:
    emitted = None
    if first_root is not None and roots is not None and span is not None:
        emitted = RootRange(first_root, roots, span)
    return Run(state=RunState(state), emitted=emitted, **others)


def get_run(connection: Connection, run_id: int) -> Run:
    """Return the run of that number."""
    statement = text(_RUN + "WHERE r.step_run_id = :id")
    return one_of(_run, connection.execute(statement, {"id": run_id}))


def runs_of(connection: Connection, batch_id: int) -> list[Run]:
    """Return all runs of a batch, oldest first."""
    statement = text(_RUN + "WHERE r.batch_id = :id ORDER BY r.step_run_id")
    return all_of(_run, connection.execute(statement, {"id": batch_id}))


def draw_number(connection: Connection) -> int:
    """Draw the number of an attempt that begins now, greater than those of all earlier ones."""
    return int(connection.execute(text("SELECT nextval('attempt_number')")).scalar_one())


def insert_run(
    connection: Connection,
    batch_id: int,
    step: str,
    attempt: Mapping[str, Any],
    lease_seconds: float,
) -> int:
    """Insert a new running run of an attempt (attempt_id, number, try_number), and return its
    number.
    """
    statement = text("""
        INSERT INTO step_run
          (batch_id, step, state, attempt_id, attempt_number, try_number, lease_until)
        VALUES (:batch_id, :step, 'running', :attempt_id,
                coalesce(:number, nextval('attempt_number')), :try_number,
                clock_timestamp() + make_interval(secs => :lease))
        RETURNING step_run_id
    """)
    values = {**attempt, "batch_id": batch_id, "step": step, "lease": lease_seconds}
    return int(connection.execute(statement, values).scalar_one())


def lock_run(connection: Connection, run_id: int) -> RunState:
    """Return a run's state, which no other transaction changes before this one ends."""
    statement = text("SELECT state FROM step_run WHERE step_run_id = :id FOR SHARE")
    return RunState(connection.execute(statement, {"id": run_id}).scalar_one())


def fence_running(connection: Connection, batch_id: int, step: str | None = None) -> None:
    """End every running run of the batch, or of one of its steps. Their drivers notice it at their
    next heartbeat.
    """
    statement = text("""
        UPDATE step_run SET state = 'fenced', closed_at = clock_timestamp()
        WHERE batch_id = :batch_id AND step = coalesce(:step, step) AND state = 'running'
    """)
    connection.execute(statement, {"batch_id": batch_id, "step": step})


def end_run(
    connection: Connection, run_id: int, state: RunState, failure: str | None, unread: Sequence[int]
) -> None:
    """End one run in this state, if it is running. ``failure``: what failed or interrupted it.
    ``unread``: runs of which it could not read a file.
    """
    statement = text("""
        UPDATE step_run SET state = :state, closed_at = clock_timestamp(), failure = :failure,
          unread_run_ids = nullif(cast(:unread AS bigint[]), '{}')
        WHERE step_run_id = :id AND state = 'running'
    """)
    connection.execute(
        statement, {"id": run_id, "state": state, "failure": failure, "unread": list(unread)}
    )


def renew_lease(connection: Connection, run_id: int, lease_seconds: float) -> RunState:
    """Push the lease forward if the run is running. Return the run's state."""
    statement = text("""
        UPDATE step_run SET lease_until = clock_timestamp() + make_interval(secs => :lease)
        WHERE step_run_id = :id AND state = 'running'
    """)
    connection.execute(statement, {"id": run_id, "lease": lease_seconds})
    return get_run(connection, run_id).state


def set_folder(connection: Connection, run_id: int, folder: str) -> None:
    """Note the folder to which only this run writes, before it does."""
    statement = text("UPDATE step_run SET folder = :folder WHERE step_run_id = :id")
    connection.execute(statement, {"id": run_id, "folder": folder})


def set_root_files(connection: Connection, run_id: int, folder: str) -> None:
    """Note the folder of a run's changes to each root, before it writes there."""
    statement = text("UPDATE step_run SET root_files = :folder WHERE step_run_id = :id")
    connection.execute(statement, {"id": run_id, "folder": folder})


def set_files_removed(connection: Connection, run_ids: Sequence[int]) -> None:
    """Note that the files of these runs are gone, or belong to the table that they are part of."""
    statement = text("""
        UPDATE step_run SET files_removed_at = now()
        WHERE step_run_id = ANY (cast(:ids AS bigint[])) AND files_removed_at IS NULL
    """)
    connection.execute(statement, {"ids": list(run_ids)})


def insert_inputs(connection: Connection, run_id: int, input_run_ids: Sequence[int]) -> None:
    """Note the runs whose output this run reads."""
    statement = text("INSERT INTO step_run_input (step_run_id, input_run_id) VALUES (:run, :input)")
    for input_run_id in input_run_ids:
        connection.execute(statement, {"run": run_id, "input": input_run_id})


def stale_inputs(connection: Connection, run_id: int) -> list[int]:
    """Return runs that this run read and that are not committed any more."""
    statement = text("""
        SELECT i.input_run_id FROM step_run_input i
        JOIN step_run r ON r.step_run_id = i.input_run_id
        WHERE i.step_run_id = :id AND r.state <> 'committed'
    """)
    return list(connection.execute(statement, {"id": run_id}).scalars())


def supersede(connection: Connection, batch_id: int, step: str) -> None:
    """Supersede the committed run of a step and, at any depth, the committed runs that read it."""
    statement = text("""
        WITH RECURSIVE old AS (
          SELECT step_run_id FROM step_run
          WHERE batch_id = :batch_id AND step = :step AND state = 'committed'
          UNION
          SELECT r.step_run_id FROM old JOIN step_run_input i ON i.input_run_id = old.step_run_id
          JOIN step_run r ON r.step_run_id = i.step_run_id AND r.state = 'committed'
        )
        UPDATE step_run SET state = 'superseded' WHERE step_run_id IN (SELECT step_run_id FROM old)
    """)
    connection.execute(statement, {"batch_id": batch_id, "step": step})


def supersede_all(connection: Connection, batch_id: int) -> None:
    """Supersede every committed run of a batch that is abandoned or restarted: all of it reruns."""
    statement = text("""
        UPDATE step_run SET state = 'superseded' WHERE batch_id = :id AND state = 'committed'
    """)
    connection.execute(statement, {"id": batch_id})
    statement = text("""
        UPDATE batch_source
        SET emit_run_id = NULL, first_root = NULL, roots = NULL, span = NULL
        WHERE batch_id = :id
    """)
    connection.execute(statement, {"id": batch_id})


def commit_run(
    connection: Connection,
    run_id: int,
    record: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
) -> bool:
    """Mark a running run committed with what it did, and the manifest of its output; False if it
    was not running any more.
    """
    statement = text("""
        UPDATE step_run SET state = 'committed', closed_at = clock_timestamp(),
          input_rows = :input_rows, output_rows = :output_rows, failed_rows = :failed_rows,
          duplicate_rows = :duplicate_rows, null_columns = :null_columns,
          delta_rows = :rows, delta_xor = :delta_xor,
          emitted_edges = :emitted_edges, acked_edges = :acked_edges, acks_proved = :acks_proved,
          files = (
            SELECT jsonb_agg(
              CASE WHEN starts_with(path, folder || '/')
                THEN jsonb_build_object('name', substr(path, length(folder) + 2))
                ELSE jsonb_build_object('path', path) END
              || jsonb_build_object('bytes', bytes, 'rows', rows)
              ORDER BY first_position, rows, path)
            FROM jsonb_to_recordset(cast(:files AS jsonb))
              AS (path text, bytes bigint, rows bigint, first_position bigint))
        WHERE step_run_id = :id AND state = 'running'
    """)
    values = {**record, **record["posted"], "id": run_id, "files": json.dumps(files)}
    return connection.execute(statement, values).rowcount == 1


def insert_drops(
    connection: Connection,
    run_id: int,
    drops: Mapping[str, int],
    dropped_at: Mapping[str, Mapping[str, Any]],
) -> None:
    """Insert how many inputs the run acked without an output, by reason.

    ``dropped_at``: the ``operation`` and ``place`` of the reasons that come from an operation of a
    stage.
    """
    if drops:
        statement = text("""
            INSERT INTO step_run_drop (step_run_id, reason, records, operation, place)
            SELECT :id, d.key, d.value::bigint, o.value->>'operation', o.value->>'place'
            FROM jsonb_each_text(cast(:drops AS jsonb)) d
            LEFT JOIN jsonb_each(cast(:at AS jsonb)) o USING (key)
        """)
        keys = {"id": run_id, "drops": json.dumps(drops), "at": json.dumps(dropped_at)}
        connection.execute(statement, keys)


def insert_losses(connection: Connection, run_id: int, losses: Sequence[Mapping[str, Any]]) -> None:
    """Insert what the operations of a stage lost: ``text``, ``operation``, ``place``, ``records``.
    They are numbered from 1.
    """
    if losses:
        statement = text("""
            INSERT INTO step_run_loss (step_run_id, number, operation, place, reason, records)
            SELECT :id, n.number, l.operation, l.place, l.text, l.records
            FROM jsonb_array_elements(cast(:losses AS jsonb)) WITH ORDINALITY n (loss, number),
              jsonb_to_record(n.loss) l (text text, operation text, place text, records bigint)
        """)
        connection.execute(statement, {"id": run_id, "losses": json.dumps(losses)})


def files(connection: Connection, run_id: int) -> tuple[DataFile, ...]:
    """Return the files of a run's manifest, by position."""
    statement = text("""
        SELECT path, bytes, rows, first_position FROM step_run_file
        WHERE step_run_id = :id ORDER BY first_position, rows, path
    """)
    return tuple(all_of(DataFile, connection.execute(statement, {"id": run_id})))


def damaged_steps(connection: Connection, batch_id: int) -> list[str]:
    """Return the steps of a batch whose committed run wrote a file that a later run failed to
    read.
    """
    statement = text("""
        SELECT DISTINCT r.step FROM step_run r JOIN step_run reader USING (batch_id)
        WHERE batch_id = :id AND r.state = 'committed' AND reader.state = 'failed'
          AND reader.step_run_id > r.step_run_id
          AND r.step_run_id = ANY (reader.unread_run_ids)
    """)
    return list(connection.execute(statement, {"id": batch_id}).scalars())


def set_emitted(
    connection: Connection, batch_id: int, source: str, run_id: int, emitted: RootRange
) -> None:
    """Set the emit run that counts for a source of a batch, and its range of roots."""
    statement = text("""
        UPDATE batch_source
        SET emit_run_id = :run, first_root = :first_root, roots = :roots, span = :span
        WHERE batch_id = :batch_id AND source = :source
    """)
    connection.execute(
        statement, {"batch_id": batch_id, "source": source, "run": run_id, **asdict(emitted)}
    )


def emits(connection: Connection, batch_id: int) -> list[Emit]:
    """Return the roots that a batch has read of each of its sources, by source."""
    statement = text(f"{EMITS} AND s.batch_id = :id ORDER BY s.source")
    return all_of(Emit, connection.execute(statement, {"id": batch_id}))


def posted_deltas(connection: Connection, batch_id: int, run_id: int) -> tuple[int, ...]:
    """Return the deltas that a run has posted, as ``DeltaTotals.sums``."""
    statement = text("""
        SELECT count(*), coalesce(bit_xor(delta), 0), coalesce(sum(emitted_edges), 0),
          coalesce(sum(acked_edges), 0)
        FROM ledger_delta WHERE batch_id = :batch_id AND step_run_id = :id
    """)
    row = connection.execute(statement, {"batch_id": batch_id, "id": run_id}).one()
    return tuple(map(int, row))


def committed_outputs(
    connection: Connection, original_id: int, step: str
) -> list[tuple[int, int | None]]:
    """Return the settled batches of a family, latest first, each with the committed run of a step,
    or null if the step was added later. Batches that expired without the step are left out, and
    of a family that is replayed as a whole all but the last.
    """
    statement = text("""
        SELECT b.batch_id, r.step_run_id FROM batch b
        LEFT JOIN step_run r ON r.batch_id = b.batch_id AND r.step = :step
          AND r.state = 'committed'
        WHERE b.status = 'settled' AND b.family_id = :original AND NOT is_outdated(b.batch_id)
          AND (r.step_run_id IS NOT NULL
               OR NOT EXISTS (
                 SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.name = :step))
        ORDER BY b.settled_at DESC, b.batch_id DESC
    """)
    rows = connection.execute(statement, {"original": original_id, "step": step})
    return [(row.batch_id, row.step_run_id) for row in rows]


def duplicate_rows(connection: Connection, run_id: int) -> int:
    """Return how many rows a sink's run omitted because they had been delivered before."""
    statement = text("SELECT coalesce(duplicate_rows, 0) FROM step_run WHERE step_run_id = :id")
    return int(connection.execute(statement, {"id": run_id}).scalar_one())


def refused_roots(connection: Connection, batch_id: int, sink: str) -> list[int]:
    """Return roots of which a sink omitted all rows because it refused some, in a batch with the
    guarantee at least once.
    """
    statement = text("""
        SELECT DISTINCT f.root_id FROM root_fail f JOIN step_run r USING (step_run_id)
        WHERE f.batch_id = :id AND r.batch_id = :id AND r.step = :sink AND r.state = 'committed'
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"id": batch_id, "sink": sink}).scalars())


def roots_missed_by(connection: Connection, batch_id: int, sink: str) -> list[int]:
    """Return failed roots of a settled batch, with the guarantee at least once, of which a sink may
    lack rows or have them twice, wherever the roots failed.
    """
    statement = text("""
        SELECT root_id FROM failed_root WHERE batch_id = :id AND :sink = ANY (missed_by) ORDER BY 1
    """)
    return list(connection.execute(statement, {"id": batch_id, "sink": sink}).scalars())


def forget_fails(connection: Connection, batch_id: int) -> None:
    """Remove the explicit fails of a decided batch, as failed_root has them. With the guarantee at
    least once those of its sinks stay, because they show which rows a sink has omitted.
    """
    connection.execute(text("SELECT forget_fails(:id)"), {"id": batch_id})
