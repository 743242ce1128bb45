"""Airflow's plugin: the ledger's pages, and a note on each run of a pipeline's DAG. Every process
of Airflow imports it.
"""

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from importlib import metadata
from itertools import count
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

PREFIX, NAME = "/ledger", "Ledger"  # of the pages
REPORTING, REPORT = "complete", "report"  # the task, and its XCom that has what its log says
_MOST = 1000  # characters of a note
_BEGINNING = "ackledger: "
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]
_log = logging.getLogger(__name__)


class Application:
    """The ASGI application of the pages. Only the API server serves them, so the first request
    imports what they need.
    """

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        await serving_application()(scope, receive, send)


@cache
def serving_application() -> Any:
    """Return the application. If it does not work with this version of Airflow, return a response
    with status 503 that says why.
    """
    try:
        from ledger.airflow.pages.application import application
    except ImportError as exc:  # parts of Airflow that it does not declare as its interface
        from fastapi.responses import JSONResponse

        _log.exception("the ledger's pages do not work with this Airflow")
        version = metadata.version("ackledger")
        detail = f"ackledger {version} cannot ask this Airflow who may see the ledger: {exc}"
        return JSONResponse({"detail": detail}, status_code=503)
    return application()


def pages() -> list[dict[str, Any]]:
    """Return ``react_apps`` of the plugin: a page in the navigation, on a DAG and on a run of a
    DAG. Its address is relative, because Airflow may be behind a prefix. The version in it keeps
    browsers from running the code of an older release.
    """
    files = f"{PREFIX.lstrip('/')}/static/{metadata.version('ackledger')}"
    places = {"nav": "ledger", "dag": "ledger-dag", "dag_run": "ledger-run"}
    return [
        {
            "name": NAME,
            "bundle_url": f"{files}/pages.js",
            "icon": f"{files}/icon.svg",
            "icon_dark_mode": f"{files}/icon-dark.svg",
            "destination": destination,
            "url_route": route,
        }
        for destination, route in places.items()
    ]


class RunNotes:
    """Sets the notes of runs that have ended, in the scheduler: a task cannot set the note of its
    run.
    """

    @hookimpl
    def on_dag_run_success(self, dag_run: Any, msg: str) -> None:
        append_report(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        append_report(dag_run)


def append_report(dag_run: Any) -> None:
    """Append the report of a run's last task to the run's note, in place of an earlier report. A
    no-op without a report.

    In the scheduler ``dag_run`` belongs to a session, which commits the note with the run's state.
    In ``dag.test`` it belongs to no session, and gets no note.
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
    fastapi_apps = [{"app": Application(), "url_prefix": PREFIX, "name": NAME}]  # noqa: RUF012
    react_apps = pages()


_loads = count()


def __getattr__(name: str) -> Any:
    """Return ``AckledgerPlugin``, the entry point. Airflow loads it once for each distribution of
    ackledger on the path, and reports the second as an import error: an installed package and
    what a build has left in a clone are two. The first load gets the plugin, the others None,
    which Airflow skips.
    """
    if name != "AckledgerPlugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    distributions = sum(1 for _ in metadata.distributions(name="ackledger"))
    return _Plugin if next(_loads) % max(1, distributions) == 0 else None
