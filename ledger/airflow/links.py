"""Links that Airflow shows beside the logs of tasks."""

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink

from ledger.airflow.versions import configuration

REPLAY_DAG, ACCEPT_DAG = "ledger_replay", "ledger_accept"  # forms of all pipelines


class InLedger(BaseOperatorLink):
    """Links to the page of the run's batch: ``batch_id`` of the operator, once it has run."""

    name = "Batch in the ledger"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL. Airflow calls this in the task's process, after the task has ended."""
        batch_id = getattr(operator, "batch_id", None)
        return page_of(batch_id) if batch_id is not None else ""


class NextStep(BaseOperatorLink):
    """Links to the DAG that replays or accepts the lost records: ``next_dag`` of the operator."""

    name = "Next step"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL. Airflow calls this in the task's process, after the task has ended."""
        dag_id = getattr(operator, "next_dag", None)
        return _address(f"/dags/{quote(dag_id, safe='')}") if dag_id else ""


def page_of(batch_id: int) -> str:
    """Return the URL of a batch's page in Airflow."""
    return _address(f"/plugin/ledger?batch={batch_id}")


def _address(path: str) -> str:
    base: str = configuration().get("api", "base_url", fallback="/")
    return base.rstrip("/") + path
