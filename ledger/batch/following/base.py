"""What a follow-up is: when it is wanted and due, how it is done, and who notices that it is not.

DAG files import the follow-ups: what takes long to load is imported when it is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Row

from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings

if TYPE_CHECKING:
    from ledger.store.connection import Database

SETTLE = "settle"  # the DAG's task


class Surroundings(Protocol):
    """Where a follow-up runs: a driver's job, or a task of Airflow."""

    @property
    def database(self) -> "Database": ...

    @property
    def settings(self) -> Settings: ...

    @property
    def pipeline(self) -> Pipeline: ...


@dataclass(frozen=True)
class Undone:
    """What of a follow-up is yet to be done for a batch: how many of what it counts, and sentences.

    ``incomplete``: the batch is, as long as this is undone; ``ackledger publish`` does it.
    """

    follow_up: str
    count: int
    sentences: tuple[str, ...]
    incomplete: bool = True


def _settle(_: Pipeline) -> str:
    return SETTLE


def _always(_: Pipeline) -> bool:
    return True


@dataclass(frozen=True)
class Task:
    """A task of a DAG. ``after``: the task that it follows; whatever becomes of that one it runs,
    unless that is ``settle``. ``awaited``: ``complete`` waits for it."""

    after: Callable[[Pipeline], str] = _settle
    awaited: bool = True


@dataclass(frozen=True)
class FollowUp:
    """One thing that follows the settlement of a batch.

    ``name``: also of its task. ``does``: in a sentence. ``task``: None: the task ``settle`` does
    it. ``wanted``: whether a pipeline has it at all.

    How it is done: ``here``, without Spark; or else on Spark, see ``ledger.execution``.
    ``part_of``: the follow-up within which a driver does it.

    When: ``not_due``: why there is nothing to do for a batch, None if there is. Without it the
    follow-up is always run. ``left``: for ``ackledger publish``, the batches of a pipeline, or the
    one, for which there is something to do. ``is_due``: the same of what is done for all batches of
    a pipeline at once.

    Who notices: ``overdue``: batches of a DAG, settled before a moment, whose run left it undone:
    batch_id, dag_id. ``undone``: what of it is yet to be done for a batch.
    """

    name: str
    does: str
    task: Task | None = None
    wanted: Callable[[Pipeline], bool] = _always
    here: Callable[[Surroundings, int], Sequence[object]] | None = None
    part_of: str | None = None
    not_due: Callable[[Surroundings, int], str | None] | None = None
    left: Callable[[Connection, str, int | None], Sequence[int]] | None = None
    is_due: Callable[["Database", Pipeline], bool] | None = None
    overdue: Callable[[Connection, datetime], Sequence[Row[Any]]] | None = None
    undone: Callable[[Connection, int], Undone | None] | None = None

    @property
    def on_spark(self) -> bool:
        """Whether its task starts a driver."""
        return self.here is None
