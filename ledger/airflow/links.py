"""Links that Airflow shows beside the logs of tasks."""

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink

from ledger.airflow.versions import configuration

SWEEPER_DAG, REPLAY_DAG = "ledger_sweeper", "ledger_replay"  # of all pipelines of a ledger


class InLedger(BaseOperatorLink):
    """Links to the page of the run's batch: ``batch_id`` of the operator, once it has run."""

    name = "Batch in the ledger"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL. Airflow calls this in the task's process, after the task has ended."""
        batch_id = getattr(operator, "batch_id", None)
        conn_id = getattr(operator, "conn_id", None)
        return page_of(batch_id, conn_id) if batch_id is not None else ""


class NextStep(BaseOperatorLink):
    """Links to the DAG that replays or accepts the lost records: ``next_dag`` of the operator."""

    name = "Next step"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL. Airflow calls this in the task's process, after the task has ended."""
        dag_id = getattr(operator, "next_dag", None)
        return _address(f"/dags/{quote(dag_id, safe='')}") if dag_id else ""


def page_of(batch_id: int, conn_id: str | None = None) -> str:
    """Return the URL of a batch's page in Airflow, in the ledger of a connection."""
    ledger = "" if conn_id is None else f"&conn_id={quote(conn_id, safe='')}"
    return _address(f"/plugin/ledger?batch={batch_id}{ledger}")


def dag_of(name: str, conn_id: str | None) -> str:
    """Return the id of the DAG that sweeps, replays or accepts in the ledger of a connection. Each
    ledger has DAGs of its own, because all ledgers count batches from 1.
    """
    return name if conn_id is None else f"{name}.{conn_id}"


def _address(path: str) -> str:
    base: str = configuration().get("api", "base_url", fallback="/")
    return base.rstrip("/") + path
