"""Keys of each line of a log beside its text: pipeline, batch, step and step run.

The keys are context variables with structlog's names, which Airflow's logs contain by themselves.
``AboutFilter`` adds them to the records of the standard library.
"""

import json
import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

KEYS = ("pipeline", "batch_id", "step", "step_run_id")  # as in the ledger's views
_TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"
# structlog merges all variables of this prefix: its contextvars.STRUCTLOG_KEY_PREFIX.
_VARIABLES: dict[str, ContextVar[Any]] = {key: ContextVar(f"structlog_{key}") for key in KEYS}
_NOTED = "_ackledger_about"  # attribute of an exception: the keys where it was raised


class LogFormat(StrEnum):
    """Format of a driver's log: a line of text, or one of JSON, for each event."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def about(**keys: Any) -> Iterator[None]:
    """Add these keys to log lines in the block, beside the keys of outer blocks. An exception that
    leaves the block keeps all keys, for ``about_failure``.
    """
    with ExitStack() as stack:
        for key, value in keys.items():
            variable = _VARIABLES[key]
            stack.callback(variable.reset, variable.set(value))
        try:
            yield
        except BaseException as exc:
            if not hasattr(exc, _NOTED):
                setattr(exc, _NOTED, current())
            raise


def current() -> dict[str, Any]:
    """Return the keys that a line has if it is logged now."""
    pairs = ((key, variable.get(None)) for key, variable in _VARIABLES.items())
    return {key: value for key, value in pairs if value is not None}


@contextmanager
def about_failure(exc: BaseException) -> Iterator[None]:
    """Add the keys under which ``exc``, or its cause, was raised to log lines in the block."""
    cause: BaseException | None = exc
    seen: set[int] = set()  # nothing keeps an exception from being a cause of itself
    while cause is not None and not hasattr(cause, _NOTED) and id(cause) not in seen:
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    with about(**getattr(cause, _NOTED, {})):
        yield


class AboutFilter(logging.Filter):
    """Adds the keys to every record as attributes, which a formatter may name."""

    def filter(self, record: logging.LogRecord) -> bool:
        for key, value in current().items():
            record.__dict__.setdefault(key, value)
        return True


class JsonLines(logging.Formatter):
    """Formats each log record as a line of JSON: timestamp (UTC), level, logger and event, named as
    in Airflow's logs, the keys of ``KEYS``, and the traceback if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {key: record.__dict__[key] for key in KEYS if key in record.__dict__}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, default=str)


def last_error(log: str, logger: str) -> str | None:
    """Return the message of the last error in a driver's log of either format; None if there is
    none.
    """
    for line in map(str.strip, reversed(log.splitlines())):
        if not line.startswith("{"):
            text = re.search(rf" {re.escape(logger)} ERROR (.+)", line)
            if text is not None:
                return text[1]
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("logger") == logger and entry.get("level") == "error":
            return str(entry["event"])
    return None


def configure(log_format: LogFormat) -> None:
    """Send what a driver logs to standard error, in this format."""
    handler = logging.StreamHandler()
    handler.addFilter(AboutFilter())
    as_json = log_format is LogFormat.JSON
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for talkative in ("alembic", "py4j"):  # py4j: each connection that Spark closes at the end
        logging.getLogger(talkative).setLevel(logging.WARNING)
