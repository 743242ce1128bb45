"""Tasks after the steps that need no Spark: settle and follow-ups."""

import logging
import time
from typing import Any

from airflow.sdk import BaseOperator, task

from ledger.airflow import metrics
from ledger.airflow.links import InLedger
from ledger.airflow.submitting import InTask, about_batch, check_due, decided_batch
from ledger.batch import follow_ups
from ledger.batch.following.base import SETTLE, WithoutSpark
from ledger.batch.following.content import Keep
from ledger.errors import LedgerError, LostFileError

_log = logging.getLogger(__name__)


class Settle(BaseOperator):
    """Decides every record of the run's batch, or logs what was decided before: acked, or failed
    with its step and reason.
    """

    operator_extra_links = (InLedger(),)

    def __init__(self, *, target: str, **options: Any):
        super().__init__(task_id=SETTLE, doc_md=self.__doc__, **options)
        self.target = target
        self.batch_id: int | None = None

    def execute(self, context: Any) -> None:
        """Settle, and do what belongs to it. Raises LedgerError while nothing can be decided."""
        from ledger.batch.holds import preview_of
        from ledger.batch.settlement import settle_once

        at = InTask(self.target)
        batch_id = context["ti"].xcom_pull(task_ids="open")
        with about_batch(at.database, batch_id) as pipeline:
            started = time.monotonic()
            done = settle_once(at.database, batch_id)
            assert done is not None
            self.batch_id = done.batch_id
            if not done.status.decided:
                Keep().run(at, done.batch_id)
                for line in preview_of(at.database, done.batch_id):
                    _log.error("%s", line)
                raise LedgerError(f"batch {done.batch_id} is {done.status.words}: {done.reason}")
            if done.decided:
                metrics.of_settlement(pipeline, time.monotonic() - started)
            _log.info("%s", done)
            for each in follow_ups.of_settle():
                try:
                    each.run(at, done.batch_id)
                except LostFileError as exc:  # it stays pending, and `complete` reports it
                    _log.error("%s is pending: %s", each.name, exc)


def follow_up_task(follow_up: WithoutSpark, target: str, **options: Any) -> Any:
    """Does a follow-up without Spark, in the task's own process."""

    @task(task_id=follow_up.name, doc_md=follow_up.does, **options)
    def follow(**context: Any) -> None:
        at = InTask(target)
        batch_id = decided_batch(context, at.database)
        with about_batch(at.database, batch_id):
            check_due(follow_up, at, batch_id)
            Keep().run(at, batch_id)  # the sweeper may have settled it, far from the storage
            for done in follow_up.run(at, batch_id):
                _log.info("%s", done)

    return follow()
