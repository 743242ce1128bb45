"""Parts that Airflow's plugin registers: the application, made once a user opens it, and pages."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from importlib import metadata
from typing import Any

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]

PREFIX = "/ledger"
NAME = "Ledger"
_log = logging.getLogger(__name__)


class Application:
    """The ASGI application of the pages. Every process of Airflow loads the plugin, and only the
    API server serves them: what they need is imported with the first request.
    """

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        await _application()(scope, receive, send)


@cache
def _application() -> Any:
    try:
        from ledger.airflow.pages.application import application
    except ImportError as exc:  # parts of Airflow that it does not declare as its interface
        _log.exception("the ledger's pages do not work with this Airflow")
        return _refusal(str(exc))
    return application()


def _refusal(reason: str) -> Any:
    """Answers nothing, for no user's rights can be asked."""
    from fastapi.responses import JSONResponse

    detail = f"ackledger {_version()} cannot ask this Airflow who may see the ledger: {reason}"
    return JSONResponse({"detail": detail}, status_code=503)


def _version() -> str:
    return metadata.version("ackledger")


def apps() -> list[dict[str, Any]]:
    """Return the value of ``fastapi_apps`` of the plugin."""
    return [{"app": Application(), "url_prefix": PREFIX, "name": NAME}]


def pages() -> list[dict[str, Any]]:
    """Return the value of ``react_apps`` of the plugin: a page in the navigation, on a DAG and on a
    run of it. The address is relative, because Airflow may be behind a prefix; the version in it
    keeps a browser from running an older release's code.
    """
    files = f"{PREFIX.lstrip('/')}/static/{_version()}"
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
