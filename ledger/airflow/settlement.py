"""Tasks after the steps that need no Spark: settle, follow-ups, and the report."""

import logging
import time
from typing import Any

from airflow.sdk import Asset, BaseOperator, task

from ledger.airflow import metrics, task_docs
from ledger.airflow.links import REPLAY_DAG, InLedger, NextStep, dag_of
from ledger.airflow.plugin import REPORT
from ledger.airflow.sensors import COMPLETED, announce
from ledger.airflow.tasks import InTask, about_batch, check_due, connected, decided_batch
from ledger.airflow.versions import AirflowSkipException
from ledger.batch import follow_ups
from ledger.batch.follow_ups import SETTLE, Keep, WithoutSpark
from ledger.core.commands import ACCEPT_DAG
from ledger.errors import LedgerError, LostFileError

_log = logging.getLogger(__name__)


class Settle(BaseOperator):
    """Decides every record of the run's batch, or logs what was decided before: acked, or failed
    with its step and reason.
    """

    operator_extra_links = (InLedger(),)

    def __init__(self, *, target: str, conn_id: str | None = None, **options: Any):
        super().__init__(task_id=SETTLE, doc_md=self.__doc__, **options)
        self.target, self.conn_id = target, conn_id
        self.batch_id: int | None = None

    def execute(self, context: Any) -> None:
        """Settle the batch, and do the follow-ups that belong to this task. Raises LedgerError if
        the batch cannot be decided yet.
        """
        from ledger.batch.holds import preview_of
        from ledger.batch.settlement import settle_once

        at = InTask(self.target, self.conn_id)
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


def follow_up_task(
    follow_up: WithoutSpark, target: str, conn_id: str | None, **options: Any
) -> Any:
    """Return a task that does a follow-up in Airflow's worker, without Spark."""

    @task(task_id=follow_up.name, doc_md=follow_up.does, **options)
    def follow(**context: Any) -> None:
        at = InTask(target, conn_id)
        batch_id = decided_batch(context, at.database)
        with about_batch(at.database, batch_id):
            check_due(follow_up, at, batch_id)
            Keep().run(at, batch_id)  # the sweeper may have settled it, far from the storage
            for done in follow_up.run(at, batch_id):
                _log.info("%s", done)

    return follow()


class Complete(BaseOperator):
    """Fails if more records of the batch are failed, or quarantined and not accepted, than the
    pipeline tolerates. Reports where records failed and which commands help, as log, XCom and link.
    When the interval is complete, also after a replay, the asset ``interval_complete`` gets an
    event, and the asset ``partitions`` a partition for each complete interval of ``schedule`` that
    the batch overlaps.
    """

    operator_extra_links = (InLedger(), NextStep())

    def __init__(
        self,
        *,
        target: str,
        conn_id: str | None = None,
        partitions: Asset | None = None,
        schedule: str | None = None,
        **options: Any,
    ):
        outlets = [COMPLETED, *([] if partitions is None else [partitions])]
        super().__init__(outlets=outlets, doc_md=task_docs.COMPLETE, **options)
        self.target, self.conn_id = target, conn_id
        self.partitions, self.schedule = partitions, schedule
        self.batch_id: int | None = None
        self.next_dag: str | None = None

    def execute(self, context: Any) -> None:
        """Log and push the report of the run's batch. Raises SystemExit unless its pipeline
        tolerates what failed.
        """
        from ledger.batch.outcome.report import advise, report
        from ledger.batch.outcome.summary import summarize
        from ledger.batch.records.failures import failures
        from ledger.core.states import Outcome

        batch_id = context["ti"].xcom_pull(task_ids="open")
        if batch_id is None:
            raise AirflowSkipException("the run has no batch")
        self.batch_id = int(batch_id)
        database = connected(self.conn_id)
        with about_batch(database, self.batch_id):
            summary = summarize(database, self.batch_id)
            succeeds = summary.outcome is Outcome.COMPLETE
            form = dag_of(ACCEPT_DAG, self.conn_id)
            advice = advise(summary, self.target, form)
            level = logging.ERROR if not succeeds else logging.WARNING if advice else logging.INFO
            failed = failures(database, {"batch_id": self.batch_id})
            lines = report(summary, failed, self.target, form)
            if self.conn_id is not None:
                lines.append(f"commands need ACKLEDGER_DATABASE_URL of connection {self.conn_id}")
            for line in lines:
                _log.log(level, "%s", line)
            context["ti"].xcom_push(key=REPORT, value="\n".join(lines))
            if summary.roots.failed:
                self.next_dag = dag_of(REPLAY_DAG, self.conn_id)
            else:
                self.next_dag = form if summary.unaccepted else None
            metrics.of_batch(database, self.batch_id)
            if not succeeds:
                # Airflow logs an exit in one line, and an exception with a traceback of its frames.
                raise SystemExit(str(summary.outcome) if advice is None else advice.because)
            if not announce(
                self.batch_id,
                context["outlet_events"],
                self.conn_id,
                self.partitions,
                self.schedule,
            ):
                self.outlets = [COMPLETED]
