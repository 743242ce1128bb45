"""Statements about pipelines, batches and what they claim."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from ledger.core.declared_steps import DeclaredStep
from ledger.core.run_request import Interval
from ledger.core.states import (
    BATCH_TRANSITIONS,
    BatchKind,
    BatchStatus,
    Guarantee,
    HoldCause,
    PublishPolicy,
)
from ledger.errors import InputError, NotReadyError
from ledger.store.queries.rows import first_of

# A reason why the family of an original f is kept: a batch of it is not decided.
UNDECIDED = """
  EXISTS (SELECT FROM batch m WHERE m.family_id = f.batch_id AND m.status IN ('open', 'held'))
"""


@dataclass(frozen=True)
class Batch:
    """One row of ``batch`` with its pipeline's name and policy. Instants are UTC.

    ``pipeline_since``: time at which the ledger first saw the pipeline.
    ``first_attempt``: the smallest number of an attempt that may run the batch's steps.
    ``target``: MODULE:PIPELINE where the pipeline is declared; None: it is no global of a module.
    """

    batch_id: int
    pipeline: str
    pipeline_id: int
    pipeline_since: datetime
    kind: BatchKind
    original_batch_id: int | None
    dag_id: str
    run_id: str
    status: BatchStatus
    opened_at: datetime
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    selection: Mapping[str, Any] | None
    topology: tuple[DeclaredStep, ...]
    held_for: HoldCause | None
    held_reason: str | None
    message_timeout: timedelta
    max_batch_age: timedelta
    max_replays: int
    hold_above: float | None
    replay_limit: int | None
    replay_backoff: timedelta
    replay_backoff_cap: timedelta
    tracking: bool
    released: bool
    replaces_batch_id: int | None
    guarantee: Guarantee
    publish: PublishPolicy
    allow_failed: float
    settled_at: datetime | None
    roots: int | None
    failed_roots: int | None
    files_expired_at: datetime | None
    first_attempt: int
    target: str | None

    @property
    def interval(self) -> Interval:
        """The interval that it reads, with the run's parameters."""
        return Interval(self.interval_start, self.interval_end, self.params)

    @property
    def steps(self) -> list[DeclaredStep]:
        """Its steps up to the settlement."""
        return [step for step in self.topology if not step.after]

    @property
    def is_whole(self) -> bool:
        """Whether it is replayed as a whole: rows of it may be anchored to several records."""
        return any(step.merges for step in self.topology)

    @property
    def exactly_once(self) -> bool:
        """Whether its sinks publish what is acked, and only that."""
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def original_id(self) -> int:
        """The batch that its messages were first seen in."""
        return self.original_batch_id or self.batch_id

    @property
    def replay_dag(self) -> str:
        """The DAG whose runs replay an original; the pipeline's for one of the command line."""
        return self.dag_id or self.pipeline


_BATCH = """
SELECT b.batch_id, p.name AS pipeline, b.pipeline_id, p.created_at AS pipeline_since,
       b.kind, b.original_batch_id, b.dag_id, b.run_id, b.status, b.opened_at, b.interval_start,
       b.interval_end, b.params, b.selection, b.held_for, b.held_reason,
       (SELECT jsonb_agg(s.declaration ORDER BY s.number) FROM batch_step s
        WHERE s.batch_id = b.batch_id) AS topology,
       b.tracking, b.released, b.replaces_batch_id, b.guarantee, b.publish, b.settled_at, b.roots,
       b.failed_roots, b.files_expired_at, b.first_attempt, p.allow_failed, p.target,
       p.message_timeout, p.max_batch_age, p.max_replays, p.hold_above, p.replay_limit,
       p.replay_backoff, p.replay_backoff_cap
FROM batch b JOIN pipeline p USING (pipeline_id)
"""


_ENUMS = {"kind": BatchKind, "status": BatchStatus, "held_for": HoldCause}
_ENUMS |= {"guarantee": Guarantee, "publish": PublishPolicy}


def _batch(topology: Sequence[Mapping[str, Any]], **columns: Any) -> Batch:
    enums = {name: columns[name] and kind(columns[name]) for name, kind in _ENUMS.items()}
    return Batch(topology=tuple(map(DeclaredStep.of, topology)), **{**columns, **enums})


def find_run(connection: Connection, pipeline: str, dag_id: str, run_id: str) -> Batch | None:
    """Return the batch of a run, if it was opened before."""
    statement = text(
        _BATCH + "WHERE p.name = :pipeline AND b.dag_id = :dag_id AND b.run_id = :run_id"
    )
    keys = {"pipeline": pipeline, "dag_id": dag_id, "run_id": run_id}
    return first_of(_batch, connection.execute(statement, keys))


def get_batch(connection: Connection, batch_id: int) -> Batch:
    """Return the batch of that number. Raises InputError if there is none."""
    statement = text(_BATCH + "WHERE b.batch_id = :id")
    batch = first_of(_batch, connection.execute(statement, {"id": batch_id}))
    if batch is None:
        last = newest_batch(connection)
        latest = "which has none yet" if last is None else f"whose latest is {last}"
        raise InputError(f"batch {batch_id} is not in the ledger, {latest}: see 'ackledger status'")
    return batch


def lock_batch(connection: Connection, batch_id: int, *, skip_locked: bool = False) -> Batch | None:
    """Lock the batch's row for the transaction, then read it; None if another holds it."""
    clause = "FOR NO KEY UPDATE" + (" SKIP LOCKED" if skip_locked else "")
    locked = connection.execute(
        text(f"SELECT batch_id FROM batch WHERE batch_id = :id {clause}"), {"id": batch_id}
    ).first()
    if locked is None and skip_locked:
        return None
    return get_batch(connection, batch_id)


def lock_family(
    connection: Connection, batch_id: int, *, skip_locked: bool = False
) -> Batch | None:
    """Lock a batch after its original, and return it; None if another transaction holds one of
    them.

    Without this, two settlements of a family would not see each other, and neither would decide
    what is then pending of both.
    """
    clause = "FOR NO KEY UPDATE" + (" SKIP LOCKED" if skip_locked else "")
    statement = text(f"""
        SELECT batch_id, coalesce(original_batch_id, batch_id) FROM batch
        WHERE batch_id IN (:id, (SELECT original_batch_id FROM batch WHERE batch_id = :id))
        ORDER BY batch_id {clause}
    """)
    locked = {row[0]: row[1] for row in connection.execute(statement, {"id": batch_id})}
    if skip_locked and locked.get(batch_id) not in locked:
        return None
    return get_batch(connection, batch_id)


def insert_batch(connection: Connection, values: Mapping[str, Any]) -> int:
    """Insert a new open batch with its steps, and return its number."""
    statement = text("""
        INSERT INTO batch (pipeline_id, steps_version, kind, original_batch_id, dag_id, run_id,
                           status, interval_start, interval_end, params, selection, tracking,
                           replaces_batch_id, guarantee, publish)
        VALUES (:pipeline_id, :steps_version, :kind, :original_batch_id, :dag_id, :run_id, 'open',
                :interval_start, :interval_end, cast(:params AS jsonb), cast(:selection AS jsonb),
                :tracking, :replaces_batch_id, :guarantee, :publish)
        RETURNING batch_id
    """)
    version = declare_steps(connection, values["pipeline_id"], values["topology"])
    as_json = {
        key: None if values[key] is None else json.dumps(values[key])
        for key in ("params", "selection")
    }
    keys = {**values, **as_json, "steps_version": version}
    return int(connection.execute(statement, keys).scalar_one())


def declare_steps(
    connection: Connection, pipeline_id: int, topology: Sequence[DeclaredStep]
) -> int:
    """Return the version of a pipeline's steps with exactly these steps, which is made if there is
    none. The pipeline's row has to be locked, as ``pipelines.save`` leaves it.
    """
    statement = text("""
        WITH same AS (
          SELECT version FROM declared_step WHERE pipeline_id = :id
          GROUP BY version HAVING jsonb_agg(declaration ORDER BY number) = cast(:steps AS jsonb)
        ), added AS (
          INSERT INTO declared_step (pipeline_id, version, number, declaration)
          SELECT :id, 1 + (SELECT coalesce(max(version), 0) FROM declared_step
                           WHERE pipeline_id = :id), step.number, step.declaration
          FROM jsonb_array_elements(cast(:steps AS jsonb))
            WITH ORDINALITY AS step (declaration, number)
          WHERE NOT EXISTS (SELECT FROM same)
          RETURNING version
        )
        SELECT version FROM same UNION SELECT version FROM added
    """)
    keys = {"id": pipeline_id, "steps": json.dumps([step.as_json() for step in topology])}
    return int(connection.execute(statement, keys).scalar_one())


def set_steps(connection: Connection, batch_id: int, version: int) -> None:
    """Give a batch another version of its pipeline's steps."""
    statement = text("UPDATE batch SET steps_version = :version WHERE batch_id = :id")
    connection.execute(statement, {"id": batch_id, "version": version})


def latest_steps(connection: Connection, pipeline: str) -> list[DeclaredStep]:
    """Return the steps of the batch of a pipeline that was opened last, in order; none if it has no
    batch.
    """
    statement = text("""
        SELECT d.declaration FROM (
          SELECT b.pipeline_id, b.steps_version FROM batch b
          WHERE b.pipeline_id = (SELECT pipeline_id FROM pipeline WHERE name = :pipeline)
          ORDER BY b.batch_id DESC LIMIT 1
        ) latest
        JOIN declared_step d
          ON d.pipeline_id = latest.pipeline_id AND d.version = latest.steps_version
        ORDER BY d.number
    """)
    rows = connection.execute(statement, {"pipeline": pipeline})
    return [DeclaredStep.of(row.declaration) for row in rows]


def save_source(connection: Connection, values: Mapping[str, Any]) -> None:
    """Insert what a batch reads of one source, or update it if a reopened batch claims again. The
    unique claim is checked by ``claiming_batch`` before.
    """
    as_json = {
        key: None if values[key] is None else json.dumps(values[key])
        for key in ("claim_start", "claim_end")
    }
    statement = text("""
        INSERT INTO batch_source (batch_id, source, pipeline_id, path, interval_start, interval_end,
                                  claimed, claim_number, claim_start, claim_end, claim_records)
        VALUES (:batch_id, :source, :pipeline_id, :path, :interval_start, :interval_end, :claimed,
                :claim_number, cast(:claim_start AS jsonb), cast(:claim_end AS jsonb),
                :claim_records)
        ON CONFLICT (batch_id, source) DO UPDATE
        SET claimed = excluded.claimed, claim_number = excluded.claim_number,
            claim_start = excluded.claim_start, claim_end = excluded.claim_end,
            claim_records = excluded.claim_records
    """)
    connection.execute(statement, {**values, **as_json})


def claiming_batch(
    connection: Connection, pipeline_id: int | None, source: str, start: datetime, end: datetime
) -> Batch | None:
    """Return the batch that has claimed this interval of this source."""
    statement = text(f"""
        {_BATCH} JOIN batch_source s USING (batch_id)
        WHERE s.pipeline_id = :pipeline_id AND s.source = :source AND s.claimed
          AND s.interval_start = :start AND s.interval_end = :end
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "start": start, "end": end}
    return first_of(_batch, connection.execute(statement, keys))


def set_notified(connection: Connection, batch_id: int, source: str) -> None:
    """Note that a source was notified of the results of its messages in a batch."""
    connection.execute(
        text(
            "UPDATE batch_source SET notified_at = now() WHERE batch_id = :id AND source = :source"
        ),
        {"id": batch_id, "source": source},
    )


def any_to_follow(connection: Connection) -> bool:
    """Return whether any batch has follow-ups that sweeps must look at. Planning the full query
    takes PostgreSQL longer than this check.
    """
    statement = text(
        "SELECT EXISTS (SELECT FROM batch WHERE followed_at IS NULL AND status <> 'abandoned')"
    )
    return bool(connection.execute(statement).scalar_one())


def undecided_of(
    connection: Connection, original_id: int, excluding_batch_id: int | None = None
) -> dict[int, BatchKind]:
    """Return undecided replays of an original, and then batches that were opened to replace it,
    each with its kind; without ``excluding_batch_id``.
    """
    statement = text("""
        SELECT batch_id, kind FROM batch
        WHERE (family_id = :id AND kind = 'replay' OR replaces_batch_id = :id)
          AND status IN ('open', 'held') AND batch_id IS DISTINCT FROM :excluding_batch_id
        ORDER BY kind = 'replay' DESC, batch_id
    """)
    keys = {"id": original_id, "excluding_batch_id": excluding_batch_id}
    return {row.batch_id: BatchKind(row.kind) for row in connection.execute(statement, keys)}


def is_last(connection: Connection, batch_id: int) -> bool:
    """Return whether a batch is the one of its family that was settled last, and no batch of it is
    undecided.
    """
    statement = text("""
        SELECT NOT EXISTS (
          SELECT FROM batch b JOIN batch f USING (family_id)
          WHERE b.batch_id = :id AND f.status = 'settled'
            AND (f.settled_at, f.batch_id) > (b.settled_at, b.batch_id))
    """)
    return bool(connection.execute(statement, {"id": batch_id}).scalar_one())


def supersede_family(connection: Connection, original_id: int, successor_id: int) -> int:
    """Mark a settled original and its replays as superseded by the batch opened to replace them,
    and return how many batches these are. That batch takes over the claims; failed messages of the
    family end as superseded.
    """
    keys = {"id": original_id, "successor": successor_id}
    connection.execute(text("UPDATE batch_source SET claimed = false WHERE batch_id = :id"), keys)
    connection.execute(
        text("UPDATE batch_source SET claimed = true WHERE batch_id = :successor"), keys
    )
    statement = text("""
        UPDATE failed_message SET status = 'superseded', updated_at = now()
        WHERE original_batch_id = :id AND status = 'failed'
    """)
    connection.execute(statement, keys)
    statement = text("""
        UPDATE batch SET status = 'superseded' WHERE family_id = :id AND status = 'settled'
    """)
    return connection.execute(statement, keys).rowcount


def move_batch(
    connection: Connection,
    batch_id: int,
    before: BatchStatus,
    after: BatchStatus,
) -> None:
    """Change the status of a batch from ``before`` to ``after``. Raises NotReadyError if its status
    is no longer ``before``.
    """
    assert after in BATCH_TRANSITIONS[before], (before, after)
    statement = text("""
        UPDATE batch SET status = :after, held_for = NULL, held_reason = NULL,
               opened_at = CASE WHEN :after = 'open' THEN now() ELSE opened_at END
        WHERE batch_id = :id AND status = :before
    """)
    keys = {"id": batch_id, "before": before.value, "after": after.value}
    if connection.execute(statement, keys).rowcount == 0:
        raise NotReadyError(f"batch {batch_id} is no longer {before}: it cannot become {after}")


def hold(connection: Connection, batch_id: int, cause: HoldCause, reason: str) -> None:
    """Put an open batch on hold. ``reason``: the cause in words."""
    move_batch(connection, batch_id, BatchStatus.OPEN, BatchStatus.HELD)
    statement = text(
        "UPDATE batch SET held_for = :cause, held_reason = :reason WHERE batch_id = :id"
    )
    connection.execute(statement, {"id": batch_id, "cause": cause, "reason": reason})


def release_batch(connection: Connection, batch_id: int) -> bool:
    """Let a held batch settle whatever its share of failures is; return False if it is not held."""
    statement = text("""
        UPDATE batch SET status = 'open', held_for = NULL, held_reason = NULL, released = true
        WHERE batch_id = :id AND status = 'held'
    """)
    return connection.execute(statement, {"id": batch_id}).rowcount == 1


def withdraw_release(connection: Connection, batch_id: int) -> None:
    """Let ``hold_above`` hold a batch again that a person had released."""
    statement = text("UPDATE batch SET released = false WHERE batch_id = :id")
    connection.execute(statement, {"id": batch_id})


def set_first_attempt(connection: Connection, batch_id: int, number: int) -> None:
    """Keep attempts with a smaller number from running steps of a batch."""
    statement = text("UPDATE batch SET first_attempt = :number WHERE batch_id = :id")
    connection.execute(statement, {"id": batch_id, "number": number})


def open_batches(connection: Connection) -> list[int]:
    """Return numbers of all open batches, oldest first."""
    statement = text("SELECT batch_id FROM batch WHERE status = 'open' ORDER BY batch_id")
    return list(connection.execute(statement).scalars())


def newest_batch(connection: Connection) -> int | None:
    """Return the greatest number of a batch; None: there is none."""
    return connection.execute(text("SELECT max(batch_id) FROM batch")).scalar()


def undecided_batches(connection: Connection) -> list[int]:
    """Return batches that are open or on hold."""
    statement = text("""
        SELECT batch_id FROM batch WHERE status IN ('open', 'held') ORDER BY batch_id
    """)
    return list(connection.execute(statement).scalars())


def reserve_roots(connection: Connection, count: int, span: int = 1) -> int:
    """Reserve ``count`` root ids, rounded up to 4,096 and to whole spans, and return the first of
    them. It is a multiple of ``span``, so that no span has roots of two sources.
    """
    step = max(4096, span)
    rounded = max(1, -(-count // step)) * step
    statement = text("SELECT reserve_roots(:n, :span)")
    return int(connection.execute(statement, {"n": rounded, "span": span}).scalar_one())


def database_now(connection: Connection) -> datetime:
    """Return the database's clock."""
    now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now
