"""Addresses of Spark Connect servers, on which steps may run instead of in a local Spark."""

import logging
import re
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from ledger.core.requirements import require_package
from ledger.errors import ConfigurationError, UnavailableError

_PORT = 15002  # of Spark, where the address names none
_MASTERS = re.compile(
    r"local(\[[0-9*][0-9, ]*\])?|local-cluster\[.+\]|yarn|(?!https?:)[a-z0-9]+://.+"
)
PATIENCE = 5.0  # seconds

_log = logging.getLogger(__name__)


def is_remote(spark: str) -> bool:
    """Return whether ``spark`` is the address of a Spark Connect server, and not a master."""
    return spark.startswith("sc://")


def checked_place(spark: str) -> str:
    """Return ``spark`` if it is a master or the address of a Spark Connect server. Raises
    ConfigurationError for anything else, and as ``checked_address``.
    """
    if is_remote(spark):
        checked_address(spark)
    elif not _MASTERS.fullmatch(spark):
        raise ConfigurationError(
            f"Spark at {re.split('[;?@]', spark)[0]!r}: expected a master (local[*],"
            " spark://HOST:PORT, yarn, k8s://...) or a Spark Connect server, sc://HOST:PORT"
        )
    return spark


def checked_address(remote: str) -> tuple[str, int]:
    """Return the host and port of the Spark Connect server at ``remote``. Raises ConfigurationError
    for any other address, and for one with a token. Opens no connection.
    """
    shown = remote.partition(";")[0]  # parameters may be confidential
    if "token=" in remote.lower():
        raise ConfigurationError(
            f"{shown} is given with a token, which would be seen in logs and arguments: set "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN instead"
        )
    try:
        address = urlsplit(remote)
        host, port = address.hostname, address.port or _PORT
    except ValueError:
        host, port = None, _PORT
    if not is_remote(remote) or not host or ";" in host:
        raise ConfigurationError(f"{shown!r}: expected a Spark Connect server, sc://HOST:PORT")
    return host, port


def require_server(remote: str) -> str:
    """Return a sentence that a server listens at ``remote``. Raises ConfigurationError as
    ``checked_address`` does, and UnavailableError if no server listens.
    """
    host, port = checked_address(remote)
    require_package("grpc", f"the client of the Spark Connect server {remote}")
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as exc:
        raise UnavailableError(
            f"Spark Connect server {remote} does not answer: {exc}. Check the address, and that the"
            " server runs"
        ) from exc
    return f"{host}:{port} answers"


def briefly(act: Callable[[], object]) -> None:
    """Call ``act`` in a thread, and wait at most 5 s, because the client of an unreachable server
    retries for ten minutes. Errors of ``act`` are logged.
    """

    def acting() -> None:
        try:
            act()
        except Exception as exc:  # the caller reports its own error
            _log.warning("Spark was not notified: %s", exc)

    thread = threading.Thread(target=acting, daemon=True)
    thread.start()
    thread.join(PATIENCE)
