"""Permanent failures of tasks, where another attempt would only fail again: one line of the log
says why.
"""

import logging
from typing import Any, NoReturn

from airflow.sdk import BaseOperator

from ledger.airflow.versions import HAS_POLICIES, Permanent, RetryDecision, RetryPolicy

_log = logging.getLogger(__name__)


class PermanentFailure(Permanent):  # type: ignore[misc]
    """Ends a task, and no other attempt is made."""


class PermanentFailurePolicy(RetryPolicy):
    """Retries no permanent failure; of the others ``otherwise`` decides, by default the task's
    ``retries``.
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
    """The task, which ``fail_permanently`` then fails at once; it keeps a retry policy of its own
    beside.
    """
    if HAS_POLICIES:
        task.retry_policy = PermanentFailurePolicy(task.retry_policy)
    return task


def fail_permanently(because: str) -> NoReturn:
    """Log why in one line and fail the task, whatever retries it has left; for a task
    ``without_retry``.
    """
    _log.error("%s", because)
    raise PermanentFailure(because)
