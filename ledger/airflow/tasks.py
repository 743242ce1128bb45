"""Shared by the tasks of all DAGs: the ledger, the run's batch, and failures without a retry."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from airflow.sdk import BaseOperator

from ledger.airflow.hooks import settings_of
from ledger.airflow.versions import (
    HAS_POLICIES,
    AirflowSkipException,
    Permanent,
    RetryDecision,
    RetryPolicy,
)
from ledger.batch.follow_ups import FollowUp
from ledger.core.logs import about
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings

_log = logging.getLogger(__name__)


class PermanentFailure(Permanent):  # type: ignore[misc]
    """Ends a task without another attempt."""


class PermanentFailurePolicy(RetryPolicy):
    """Retry policy that never retries a permanent failure. Other failures are left to the policy
    ``otherwise``, by default to the task's ``retries``.
    """

    def __init__(self, otherwise: RetryPolicy | None = None) -> None:
        self.otherwise = otherwise

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        if isinstance(exception, PermanentFailure):
            return RetryDecision.fail()
        if self.otherwise is None:
            return RetryDecision.default()
        return self.otherwise.evaluate(exception, try_number, max_tries, context)


def without_retry(task: BaseOperator) -> BaseOperator:
    """Make ``fail_permanently`` end a task at once, whatever the task's own retry policy is. Return
    the task.
    """
    if HAS_POLICIES:
        task.retry_policy = PermanentFailurePolicy(task.retry_policy)
    return task


def fail_permanently(because: str) -> NoReturn:
    """Log the reason in one line, and fail the task without a retry. Only for tasks that
    ``without_retry`` has prepared.
    """
    _log.error("%s", because)
    raise PermanentFailure(because)


def connected(conn_id: str | None = None) -> Any:
    """Return a connection to the ledger of a connection of Airflow's, or of the environment if none
    is named. Retries while the ledger is unavailable.
    """
    return connected_by(settings_of(conn_id))


def connected_by(settings: Settings) -> Any:
    """Return a connection to the ledger of these settings. Retries while it is unavailable."""
    from ledger.databases.driver_errors import persist
    from ledger.store.upgrade import connect

    return persist(lambda: connect(settings))


@dataclass(frozen=True)
class InTask:
    """Context in which a task does a follow-up: the ledger of ``conn_id``, the worker's settings,
    and the pipeline at ``target``. Each is loaded on first use.
    """

    target: str
    conn_id: str | None = None

    @cached_property
    def database(self) -> Any:
        """The ledger."""
        return connected_by(self.settings)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the worker, with the ledger of the connection."""
        return settings_of(self.conn_id)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline as it is declared now."""
        from ledger.pipeline.load import load_pipeline

        return load_pipeline(self.target)


def decided_batch(context: Any, database: Any) -> int:
    """Return the run's batch. Skips the task if the run has no batch, or the batch is not
    decided.
    """
    from ledger.batch.outcome.readings import get_batch

    batch_id = context["ti"].xcom_pull(task_ids="open")
    if batch_id is None:
        raise AirflowSkipException("the run has no batch")
    batch = get_batch(database, batch_id)
    if not batch.status.decided:
        raise AirflowSkipException(f"batch {batch_id} is {batch.status.words}: nothing follows yet")
    return int(batch_id)


@contextmanager
def about_batch(database: Any, batch_id: int) -> Iterator[str]:
    """Add the batch to the task's log lines in the block. Yields the name of its pipeline."""
    from ledger.batch.outcome.readings import get_batch

    batch = get_batch(database, batch_id)
    with about(pipeline=batch.pipeline, batch_id=batch_id):
        yield batch.pipeline


def check_due(follow_up: FollowUp, at: InTask, batch_id: int) -> None:
    """Skip the task if the follow-up has nothing to do for a decided batch."""
    reason = follow_up.skip_reason(at, batch_id)
    if reason is not None:
        raise AirflowSkipException(reason)


def skip_unless_due(follow_up: FollowUp, conn_id: str | None, target: str, context: Any) -> None:
    """Skip the task unless the run's batch is decided and the follow-up has something to do."""
    at = InTask(target, conn_id)
    check_due(follow_up, at, decided_batch(context, at.database))
