"""The last task of a pipeline's DAG: what the run has come to, and what to do about it."""

import logging
from typing import Any

from airflow.sdk import BaseOperator

from ledger.airflow import describing, metrics
from ledger.airflow.links import ACCEPT_DAG, REPLAY_DAG, InLedger, NextStep
from ledger.airflow.notes import REPORT
from ledger.airflow.submitting import about_batch, connected
from ledger.airflow.versions import AirflowSkipException
from ledger.airflow.waiting import COMPLETED, announce

_log = logging.getLogger(__name__)


class Complete(BaseOperator):
    """Fails while records of the batch are failed, or quarantined and not accepted, beyond what
    their pipeline tolerates. Reports where they broke and what to type, as log, XCom and link. Once
    its interval is complete, be it by a replay, the asset ``interval_complete`` has an event."""

    operator_extra_links = (InLedger(), NextStep())

    def __init__(self, *, target: str, **options: Any):
        super().__init__(outlets=[COMPLETED], doc_md=describing.COMPLETE, **options)
        self.target = target
        self.batch_id: int | None = None
        self.next_dag: str | None = None

    def execute(self, context: Any) -> None:
        """Report the run's batch; red without a traceback, unless its pipeline
        tolerates what failed.
        """
        batch_id = context["ti"].xcom_pull(task_ids="open")
        if batch_id is None:
            raise AirflowSkipException("the run has no batch")
        self.batch_id = int(batch_id)
        database = connected()
        with about_batch(database, self.batch_id):
            because = self._report(database, self.batch_id, context["ti"])
            metrics.of_batch(database, self.batch_id)
            if because is not None:
                # Airflow logs an exit in one line; for an exception it adds a traceback of its own
                # frames.
                raise SystemExit(because)
            announce(self.batch_id, context["outlet_events"])

    def _report(self, database: Any, batch_id: int, task: Any) -> str | None:
        """Log and push the report; return why the run fails, or None."""
        from ledger.batch.outcome.report import advise, report
        from ledger.batch.outcome.summary import summarize
        from ledger.batch.records.failures import failures
        from ledger.core.states import Outcome

        summary = summarize(database, batch_id)
        succeeds = summary.outcome is Outcome.COMPLETE
        advice = advise(summary, self.target)
        level = logging.ERROR if not succeeds else logging.WARNING if advice else logging.INFO
        lines = report(summary, failures(database, {"batch_id": batch_id}), self.target)
        for line in lines:
            _log.log(level, "%s", line)
        task.xcom_push(key=REPORT, value="\n".join(lines))
        self.next_dag = REPLAY_DAG if summary.roots.failed else None
        if not summary.roots.failed and summary.unaccepted:
            self.next_dag = ACCEPT_DAG
        if succeeds:
            return None
        return str(summary.outcome) if advice is None else advice.because
