"""What follows the settlement of a batch: one tuple, in order.

The DAG, the command line, the step program, the sweeper and the summary iterate it. A new
follow-up is an entry of ``FOLLOW_UPS`` and a module of its own; if it runs on Spark,
``ledger.execution`` names its function. DAG files import this module: what takes long to load is
imported when it is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection, Row

from ledger.errors import Failures
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.queries import batches, checkpoints, claims, combines, publications

SETTLE = "settle"  # the DAG's task


class Surroundings(Protocol):
    """Where a follow-up runs: a driver's job, or a task of Airflow."""

    @property
    def database(self) -> Database: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def pipeline(self) -> Pipeline: ...


@dataclass(frozen=True)
class Undone:
    """What of a follow-up is yet to be done for a batch: how many of what it counts, and sentences.

    ``incomplete``: the batch is, as long as this is undone. ``by_publish``: ``ackledger publish``
    does it.
    """

    follow_up: str
    count: int
    sentences: tuple[str, ...]
    incomplete: bool = True
    by_publish: bool = True


@dataclass(frozen=True)
class NextRun:
    """A run of a DAG to be triggered."""

    dag_id: str
    run_id: str
    conf: dict[str, Any]
    note: str


def _settle(_: Pipeline) -> str:
    return SETTLE


def _always(_: Pipeline) -> bool:
    return True


@dataclass(frozen=True)
class Task:
    """A task of a DAG. ``after``: the task that it follows; whatever becomes of that one it runs,
    unless that is ``settle``. ``awaited``: ``complete`` waits for it, and answers for it."""

    after: Callable[[Pipeline], str] = _settle
    awaited: bool = True


@dataclass(frozen=True)
class FollowUp:
    """One thing that follows the settlement of a batch.

    ``name``: also of its task. ``does``: in a sentence. ``task``: None: the task ``settle`` does
    it. ``wanted``: whether a pipeline has it at all.

    How it is done: ``here``, without Spark; or by ``next_run`` of the DAG; or else on Spark, see
    ``ledger.execution``. ``part_of``: the follow-up within which a driver does it.

    When: ``not_due``: why there is nothing to do for a batch, None if there is; it keeps what it
    cannot look at in the Failures. Without it the follow-up is always run. ``left``: for
    ``ackledger publish``, the batches of a pipeline, or the one, for which there is something to
    do. ``is_due``: the same of what is done for all batches of a pipeline at once.

    Who notices: ``overdue``: batches of a DAG, settled before a moment, whose run left it undone:
    batch_id, dag_id. ``undone``: what of it is yet to be done for a batch.
    """

    name: str
    does: str
    task: Task | None = None
    wanted: Callable[[Pipeline], bool] = _always
    here: Callable[[Surroundings, int], Sequence[object]] | None = None
    next_run: Callable[[Database, int], NextRun] | None = None
    part_of: str | None = None
    not_due: Callable[[Surroundings, int, Failures], str | None] | None = None
    left: Callable[[Connection, str, int | None], Sequence[int]] | None = None
    is_due: Callable[[Database, Pipeline], bool] | None = None
    overdue: Callable[[Connection, datetime], Sequence[Row[Any]]] | None = None
    undone: Callable[[Connection, int], Undone | None] | None = None

    @property
    def on_spark(self) -> bool:
        """Whether its task starts a driver."""
        return self.here is None and self.next_run is None


def _keep(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.payloads import try_to_keep

    try_to_keep(at.database, batch_id)
    return ()


KEEP = FollowUp(
    "keep", "Copy what failed records contain into the ledger, for explain and replays.", here=_keep
)


def _nothing_to_withhold(at: Surroundings, batch_id: int, failures: Failures) -> str | None:
    from ledger.batch.publishing import lost, needs_withholding

    if needs_withholding(at.database, batch_id):
        return None
    missing = lost(at.database, at.settings, at.pipeline, batch_id, failures)
    return None if missing else "nothing is to be withheld"


WITHHOLD = FollowUp(
    "withhold",
    "Leave the rows of failed records out of what sinks are to publish; stage lost files anew.",
    task=Task(),
    part_of="publish",
    not_due=_nothing_to_withhold,
)


def _publish(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.publishing import publish

    return publish(at.database, at.settings, at.pipeline, batch_id)


def _unpublished(connection: Connection, batch_id: int) -> Undone | None:
    count = publications.unpublished(connection, batch_id)
    sentence = f"{count} sinks are yet to publish what is acked of it"
    return Undone(PUBLISH.name, count, (sentence,)) if count else None


PUBLISH = FollowUp(
    "publish",
    "Publish what is acked; of a batch that ran at least once it is visible already.",
    task=Task(after=lambda _: WITHHOLD.name),
    here=_publish,
    left=publications.waiting,
    overdue=publications.overdue,
    undone=_unpublished,
)


def _nothing_to_combine(at: Surroundings, batch_id: int, _: Failures) -> str | None:
    from ledger.batch.combine_runs import combines_due

    due = combines_due(at.database, at.pipeline, batch_id)
    return None if due else "nothing is to be combined: it has been, or records are failed"


def _uncombined(connection: Connection, batch_id: int) -> Undone | None:
    if not combines.combine_is_due(connection, batch_id):
        return None
    return Undone(COMBINE.name, 1, ("combines are yet to publish what is acked of it",))


COMBINE = FollowUp(
    "combine",
    "Run the combines, once all records of a batch are acked or quarantined, and their sinks.",
    task=Task(after=lambda _: WITHHOLD.name),
    wanted=lambda pipeline: bool(pipeline.combined()),
    not_due=_nothing_to_combine,
    left=combines.waiting,
    overdue=combines.combine_overdue,
    undone=_uncombined,
)


def _remove(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.folder_cleanup import remove_replaced

    return remove_replaced(at.database, batch_id)


REMOVE = FollowUp(
    "remove", "Remove the folders of sinks that the batch has replaced.", here=_remove
)


def _after_settle_or_publish(pipeline: Pipeline) -> str:
    """A source that keeps its position is told what its sinks have published."""
    keeping = any(step.hooks is not None for step in pipeline.sources())
    return PUBLISH.name if keeping else SETTLE


NOTIFY = FollowUp(
    "notify",
    "Tell the sources what became of their messages.",
    task=Task(after=_after_settle_or_publish, awaited=False),
    wanted=lambda pipeline: pipeline.wants_notice,
    overdue=batches.unnotified,
)


def _no_state_due(at: Surroundings, batch_id: int, _: Failures) -> str | None:
    from ledger.batch.recovery import waits_for

    if _is_state_due(at.database, at.pipeline):
        return None
    waits = at.database.transact(lambda c: waits_for(c, batch_id))
    return "; ".join(waits) or "the states include this batch"


def _is_state_due(database: Database, pipeline: Pipeline) -> bool:
    from ledger.batch.state_runs import is_due

    return is_due(database, pipeline)


def _waiting_states(connection: Connection, batch_id: int) -> Undone | None:
    from ledger.batch.recovery import waits_for

    waits = tuple(waits_for(connection, batch_id))
    return Undone(STATE.name, len(waits), waits, incomplete=False) if waits else None


STATE = FollowUp(
    "state",
    "Carry the states over batches forward, in the batches' order, and publish them.",
    task=Task(after=lambda _: WITHHOLD.name),
    wanted=lambda pipeline: bool(pipeline.states()),
    not_due=_no_state_due,
    is_due=_is_state_due,
    overdue=checkpoints.overdue,
    undone=_waiting_states,
)


def _nothing_to_read(at: Surroundings, batch_id: int, _: Failures) -> str | None:
    unread = at.database.transact(lambda c: claims.unread(c, batch_id))
    return None if unread else "the interval is read to its end"


def _next_part(database: Database, batch_id: int) -> NextRun:
    unread = database.transact(lambda c: claims.unread(c, batch_id))
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    run_id = f"part__{batch_id}"
    tried = database.transact(lambda c: claims.given_up(c, batch.dag_id, run_id))
    interval = {
        "interval_start": batch.interval_start.isoformat(),
        "interval_end": batch.interval_end.isoformat(),
    }
    return NextRun(
        batch.dag_id,
        f"{run_id}__{tried}" if tried else run_id,
        {**interval, "guarantee": batch.guarantee.value, **batch.params},
        f"reads on in the interval of batch {batch_id}: {unread:,} records are left",
    )


def _unread(connection: Connection, batch_id: int) -> Undone | None:
    count = claims.unread(connection, batch_id)
    sentence = (
        f"{count:,} records of its interval wait for further batches (max_pending): run the same "
        "interval again, under another run id, until none is left"
    )
    return Undone(NEXT_PART.name, count, (sentence,), by_publish=False) if count else None


NEXT_PART = FollowUp(
    "next_part",
    "Trigger another run of the DAG for what is left of the interval, whatever the sinks publish.",
    task=Task(after=lambda _: PUBLISH.name, awaited=False),
    wanted=lambda pipeline: pipeline.reads_in_parts,
    next_run=_next_part,
    not_due=_nothing_to_read,
    overdue=claims.unread_intervals,
    undone=_unread,
)

# In the order in which a driver does them; a task's is behind the one that it follows.
FOLLOW_UPS = (KEEP, WITHHOLD, PUBLISH, COMBINE, REMOVE, NOTIFY, STATE, NEXT_PART)


def with_tasks() -> tuple[FollowUp, ...]:
    """Those that have a task of their own in a DAG."""
    return tuple(one for one in FOLLOW_UPS if one.task is not None)


def tasks_of(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that have a task in the DAG of a pipeline."""
    return tuple(one for one in with_tasks() if one.wanted(pipeline))


def of_settle() -> tuple[FollowUp, ...]:
    """Those that the task ``settle`` does."""
    return tuple(one for one in FOLLOW_UPS if one.task is None)


def of_driver(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that a driver which settles a batch of a pipeline does."""
    return tuple(
        one
        for one in FOLLOW_UPS
        if one.next_run is None and one.part_of is None and one.wanted(pipeline)
    )


def submitted() -> dict[str, FollowUp]:
    """Those whose task starts a driver, by name."""
    return {one.name: one for one in with_tasks() if one.on_spark}


def overdue(connection: Connection, before: datetime) -> list[Row[Any]]:
    """Batches of a DAG, settled before a moment, whose runs left something undone: batch_id, dag_id."""
    return [
        row
        for one in FOLLOW_UPS
        if one.overdue is not None
        for row in one.overdue(connection, before)
    ]


def undone(connection: Connection, batch_id: int) -> tuple[Undone, ...]:
    """What is yet to be done for a batch, in order."""
    found = (one.undone(connection, batch_id) for one in FOLLOW_UPS if one.undone is not None)
    return tuple(one for one in found if one is not None)


def awaited(found: Sequence[Undone]) -> tuple[Undone, ...]:
    """Of what is yet to be done, that for which a DAG's task ``complete`` answers."""
    others = {one.name for one in FOLLOW_UPS if one.task is not None and not one.task.awaited}
    return tuple(one for one in found if one.follow_up not in others)


def by_publish(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that ``ackledger publish`` does for a batch."""
    return tuple(one for one in of_driver(pipeline) if one.left is not None)


def of_pipeline(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that are done for all batches of a pipeline at once."""
    return tuple(one for one in of_driver(pipeline) if one.is_due is not None)


def left(database: Database, pipeline: Pipeline, batch_id: int | None) -> list[int]:
    """Batches of a pipeline, or the one, for which ``ackledger publish`` has something to do."""

    def ask(connection: Connection) -> list[int]:
        asked = [one.left for one in by_publish(pipeline) if one.left is not None]
        return sorted({one for ask in asked for one in ask(connection, pipeline.name, batch_id)})

    return database.transact(ask)


def is_due(database: Database, pipeline: Pipeline) -> bool:
    """Whether something is to be done for all batches of a pipeline at once."""
    asked = [one.is_due for one in of_pipeline(pipeline) if one.is_due is not None]
    return any(ask(database, pipeline) for ask in asked)
