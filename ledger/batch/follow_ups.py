"""Follow-ups of a settlement: when each is due, how it is done, and its pending work.

The DAG, the command line, the step program and the summary iterate ``FOLLOW_UPS``. A new follow-up
is a class here and a line in that tuple; if it needs Spark, also a line with its function in
``ledger.execution.follow_ups``.

DAG files import this module, so a module that takes long to load is imported inside a function.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection

from ledger.batch.context import Context
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step
from ledger.store.queries import following

if TYPE_CHECKING:
    from ledger.store.connection import Database

SETTLE = "settle"  # the DAG's task


@dataclass(frozen=True)
class Pending:
    """Pending work of a follow-up for a batch.

    ``count``: number of pending things, of the kind that the follow-up counts.
    ``sentences``: the pending work in words.
    ``incomplete``: whether the batch is incomplete until ``ackledger publish`` has done the work.
    """

    follow_up: str
    count: int
    sentences: tuple[str, ...]
    incomplete: bool = True


class FollowUp:
    """Work that follows the settlement of a batch. A subclass overrides what differs.

    It needs a driver, which does it through ``ledger.execution.follow_ups``, unless it is a
    ``WithoutSpark``.
    """

    name: ClassVar[str]
    """Name of the follow-up, and of its task."""
    does: ClassVar[str]
    """Its work, in a sentence."""
    has_task: ClassVar[bool] = True
    """Whether it has a task in a DAG; if not, the task ``settle`` does it."""
    is_awaited: ClassVar[bool] = True
    """Whether the task ``complete`` waits for its task."""
    of_batch: ClassVar[bool] = False
    """Whether ``ackledger publish`` does it for each batch that has it pending."""
    of_pipeline: ClassVar[bool] = False
    """Whether it is done for all batches of a pipeline at once, if it ``is_due``."""

    def after(self, pipeline: Pipeline) -> str:
        """Return the task after which this follow-up's task runs. That task may fail, unless it is
        ``settle``.
        """
        return SETTLE

    def is_wanted(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline has this follow-up at all."""
        return True

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        """Return the steps that this follow-up's driver runs."""
        return ()

    def skip_reason(self, at: Context, batch_id: int) -> str | None:
        """Return why there is nothing to do for a batch; None if there is, or if the follow-up
        always runs.
        """
        return None

    def is_due(self, database: "Database", pipeline: Pipeline) -> bool:
        """Return whether there is something to do for all batches of a pipeline at once."""
        return False

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        """Return the pending work of this follow-up for a batch; None if there is none.

        ``steps``: the number of steps with pending work in the view ``pending_follow_up``, for a
        follow-up that is done batch by batch (``of_batch``).
        """
        return None


class WithoutSpark(FollowUp, ABC):
    """A follow-up that any process can do."""

    @abstractmethod
    def run(self, at: Context, batch_id: int) -> Sequence[object]:
        """Do the follow-up for a batch, and return what was done."""


class Keep(WithoutSpark):
    """See ``ledger.batch.records.payloads``."""

    name = "keep"
    does = "Copy what failed records contain into the ledger, for explain and replays."
    has_task = False

    def run(self, at: Context, batch_id: int) -> Sequence[object]:
        from ledger.batch.records.payloads import try_to_keep

        try_to_keep(at.database, batch_id)
        return ()


class Withhold(FollowUp):
    """See ``ledger.spark.steps.withhold``."""

    name = "withhold"
    does = "Leave the rows of failed records out of what sinks are to publish."
    of_batch = True

    def skip_reason(self, at: Context, batch_id: int) -> str | None:
        from ledger.batch.publishing import needs_withholding

        return None if needs_withholding(at.database, batch_id) else "nothing is to be withheld"


class Publish(WithoutSpark):
    """See ``ledger.batch.publishing``."""

    name = "publish"
    does = "Publish what is acked; at least once, what no sink has published by itself."
    of_batch = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def run(self, at: Context, batch_id: int) -> Sequence[object]:
        from ledger.batch.publishing import publish

        return publish(at, batch_id)

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        sinks = "1 sink is" if steps == 1 else f"{steps} sinks are"
        sentence = f"{sinks} yet to publish what is acked of it"
        return Pending(self.name, steps, (sentence,)) if steps else None


class Combine(FollowUp):
    """Run the combines of a batch, and their sinks, once all its records are acked or quarantined.
    It comes after Withhold.
    """

    name = "combine"
    does = (
        "Run the combines, once all records of a batch are acked or quarantined, and their sinks."
    )
    of_batch = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return bool(pipeline.combined())

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        return pipeline.combined()

    def skip_reason(self, at: Context, batch_id: int) -> str | None:
        from ledger.batch.combine_runs import combines_due

        due = combines_due(at.database, at.pipeline, batch_id)
        return None if due else "nothing is to be combined: it has been, or records are failed"

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        sentence = "combines are yet to publish what is acked of it"
        return Pending(self.name, 1, (sentence,)) if steps else None


class Notify(FollowUp):
    """See ``ledger.spark.steps.notify``."""

    name = "notify"
    does = "Notify the sources of what became of their records."
    is_awaited = False

    def after(self, pipeline: Pipeline) -> str:
        """Return the task that publishes if a source takes notice of commits, otherwise ``settle``:
        a source is notified of a commit once its sinks have published.
        """
        commits = any(step.source.commits for step in pipeline.sources())
        return Publish.name if commits else SETTLE

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return pipeline.wants_notice


class State(FollowUp):
    """See ``ledger.execution.states``."""

    name = "state"
    does = "Carry the states over batches forward, in the batches' order, and publish them."
    of_pipeline = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return bool(pipeline.states())

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        return [step for step in pipeline.followers() if pipeline.graph.is_stateful(step.name)]

    def skip_reason(self, at: Context, batch_id: int) -> str | None:
        from ledger.batch.recovery import waits_for

        if self.is_due(at.database, at.pipeline):
            return None
        waits = at.database.transact(lambda c: waits_for(c, batch_id))
        return "; ".join(waits) or "the states include this batch"

    def is_due(self, database: "Database", pipeline: Pipeline) -> bool:
        from ledger.batch.state_runs import is_due

        return is_due(database, pipeline)

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        from ledger.batch.recovery import waits_for

        waits = tuple(waits_for(connection, batch_id))
        return Pending(self.name, len(waits), waits, incomplete=False) if waits else None


# In the order in which a driver does them; a task's is after the one that it follows.
FOLLOW_UPS: tuple[FollowUp, ...] = (
    Keep(),
    Withhold(),
    Publish(),
    Combine(),
    Notify(),
    State(),
)


def with_tasks() -> list[FollowUp]:
    """Return the follow-ups that have a task of their own in a DAG."""
    return [each for each in FOLLOW_UPS if each.has_task]


def tasks_of(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that have a task in the DAG of a pipeline."""
    return [each for each in with_tasks() if each.is_wanted(pipeline)]


def of_settle() -> list[WithoutSpark]:
    """Return the follow-ups that the task ``settle`` does."""
    return [each for each in FOLLOW_UPS if isinstance(each, WithoutSpark) and not each.has_task]


def of_driver(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that a driver does after it has settled a batch of a pipeline."""
    return [each for each in FOLLOW_UPS if each.is_wanted(pipeline)]


def submitted() -> dict[str, FollowUp]:
    """Return the follow-ups whose task starts a driver, each by its name."""
    return {each.name: each for each in with_tasks() if not isinstance(each, WithoutSpark)}


def by_publish(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that ``ackledger publish`` does for a batch."""
    return [each for each in of_driver(pipeline) if each.of_batch]


def of_pipeline(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that are done for all batches of a pipeline at once."""
    return [each for each in of_driver(pipeline) if each.of_pipeline]


def pending(connection: Connection, batch_id: int) -> tuple[Pending, ...]:
    """Return the pending work of a batch's follow-ups, in their order."""
    steps = following.pending(connection, batch_id, _of_batch(FOLLOW_UPS))
    pendings = (each.pending(connection, batch_id, steps.get(each.name, 0)) for each in FOLLOW_UPS)
    return tuple(work for work in pendings if work is not None)


def waiting(
    connection: Connection,
    pipeline: str,
    batch_id: int | None = None,
    follow_ups: Sequence[FollowUp] | None = None,
) -> list[int]:
    """Return the batches of a pipeline with a pending follow-up.

    ``batch_id``: only batches of its family.
    ``follow_ups``: only these; None: all that ``ackledger publish`` does for a batch.
    """
    names = _of_batch(FOLLOW_UPS if follow_ups is None else follow_ups)
    return following.waiting(connection, pipeline, names, batch_id=batch_id)


def _of_batch(follow_ups: Sequence[FollowUp]) -> list[str]:
    return [each.name for each in follow_ups if each.of_batch]


def is_due(database: "Database", pipeline: Pipeline) -> bool:
    """Return whether a follow-up is due that is done for all batches of a pipeline at once."""
    return any(each.is_due(database, pipeline) for each in of_pipeline(pipeline))
