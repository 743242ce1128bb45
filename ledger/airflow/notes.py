"""Airflow's plugin: the ledger's pages; and a run of a pipeline's DAG has a note of what it has
come to.
"""

import re
from importlib import metadata
from itertools import count
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from ledger.airflow.pages import serving

REPORTING, REPORT = "complete", "report"  # the task, and its XCom that has what its log says
_MOST = 1000  # characters of a note
_BEGINNING = "ackledger: "


class RunNotes:
    """Hears of runs that have ended, in the scheduler: a task has no means to set the note of
    its run.
    """

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        noted(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        noted(dag_run)


def noted(dag_run: Any) -> None:
    """Put the report of the run's last task, if it has one, after what its note says so far. In
    the scheduler ``dag_run`` is of a session, which commits the note with the run's state; in
    ``dag.test`` it is of none.
    """
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    last = dag_run.get_task_instance(REPORTING, session=session)
    if last is None or last.state not in ("success", "failed"):
        return
    asked = XComModel.get_many(
        run_id=dag_run.run_id, key=REPORT, task_ids=REPORTING, dag_ids=dag_run.dag_id
    )
    xcom = session.scalars(asked.limit(1)).first()
    if xcom is None:
        return
    report = str(XComModel.deserialize_value(xcom))
    before = re.split(f"^{_BEGINNING}", dag_run.note or "", flags=re.MULTILINE)[0].rstrip()
    dag_run.note = f"{before}\n\n{_BEGINNING}{report}".lstrip()[:_MOST]


class _Plugin(AirflowPlugin):
    name = "ackledger"
    listeners = [RunNotes()]  # noqa: RUF012
    fastapi_apps = serving.apps()
    react_apps = serving.pages()


_loads = count()


def __getattr__(name: str) -> Any:
    """``AckledgerPlugin``, the entry point. Airflow loads it once for each distribution of
    ackledger on the path, and reports the second as an import error: an installed package and
    what a build has left in a clone are two. The first load gets the plugin, the others None,
    which Airflow skips.
    """
    if name != "AckledgerPlugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    distributions = sum(1 for _ in metadata.distributions(name="ackledger"))
    return _Plugin if next(_loads) % max(1, distributions) == 0 else None
