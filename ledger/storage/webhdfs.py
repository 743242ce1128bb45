"""Checks that fsspec's WebHDFS lacks: an end to each request, and a look at every answer."""

from functools import partial
from http import HTTPStatus
from typing import Any

TIMEOUT_SECONDS = (10, 60)  # of a request: to connect, and to wait for the next bytes
# Others may pass.
_REMOTE = {
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
    "FileNotFoundException": FileNotFoundError,
    "IllegalArgumentException": ValueError,
    "UnsupportedOperationException": ValueError,
}


def watch(session: Any) -> None:
    """Add a timeout, and a check of each answer, to the requests of fsspec's WebHDFS."""
    session.hooks["response"] = [_require_answer]
    if not isinstance(session.request, partial):
        session.request = partial(session.request, timeout=TIMEOUT_SECONDS)


def _require_answer(response: Any, *args: Any, **kwargs: Any) -> None:
    """Raise the error that an answer of WebHDFS means, in cases that fsspec ignores: a status above
    500, and any failed read, whose answer fsspec takes for the file's content.
    """
    if response.status_code > HTTPStatus.INTERNAL_SERVER_ERROR:
        response.raise_for_status()
    if "op=OPEN" in response.url and response.status_code >= HTTPStatus.BAD_REQUEST:
        # Most have status 403, also of a block that no node has at that time.
        try:
            error = response.json()["RemoteException"]
            name, words = error["exception"], error["message"]
        except (LookupError, TypeError, ValueError):
            name, words = "", response.text[:200]
        raise _REMOTE.get(name, OSError)(f"{response.status_code} {name}: {words}")
