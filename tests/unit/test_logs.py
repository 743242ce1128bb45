"""What the lines of a log are about, and how a driver writes them."""

import io
import json
import logging
import sys
import threading

import pytest
import structlog

from ledger import run_step
from ledger.batch.step_runs import heartbeat
from ledger.core import logs
from ledger.core.logs import AboutFilter, JsonLines, LogFormat, about, about_failure, last_error
from ledger.errors import InputError, UnavailableError
from ledger.settings import Settings, log_format
from ledger.spark.failures import translated


@pytest.fixture
def log():
    """A logger that writes JSON; its lines by ``lines()``."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(AboutFilter())
    handler.setFormatter(JsonLines())
    logger = logging.Logger("ackledger")
    logger.addHandler(handler)
    logger.lines = lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    return logger


def keys(line):
    """Those of a line that say what it is about."""
    return {key: line[key] for key in logs.KEYS if key in line}


def test_a_line_says_what_it_is_about(log):
    """It has the keys of the blocks around it, and loses them at their end."""
    with about(pipeline="orders", batch_id=7):
        with about(step="parse", step_run_id=12):
            log.info("%s rows", 3)
        log.info("settled")
    log.warning("done")
    inner, outer, outside = log.lines()
    fields = {"level": "info", "logger": "ackledger", "event": "3 rows"}
    assert fields.items() <= inner.items()
    assert inner["timestamp"].endswith("+00:00")
    assert keys(inner) == {"pipeline": "orders", "batch_id": 7, "step": "parse", "step_run_id": 12}
    assert keys(outer) == {"pipeline": "orders", "batch_id": 7}
    assert keys(outside) == {}


def test_a_failure_remembers_what_it_was_about(log):
    """A failure that is logged at the end of a driver has the keys of the place where it was
    raised, also if another error was made of it; its traceback is of the same line.
    """

    def fails():
        with about(batch_id=7):
            try:
                with about(step="parse", step_run_id=12):
                    raise ValueError("bad")
            except ValueError as exc:
                raise InputError("row 3") from exc

    with pytest.raises(InputError) as caught:
        fails()
    with about_failure(caught.value):
        log.error("failed", exc_info=caught.value)
    with about_failure(caught.value.__cause__):
        log.error("failed", exc_info=caught.value.__cause__)
    outer, inner = log.lines()
    assert keys(outer) == {"batch_id": 7}
    assert keys(inner) == {"batch_id": 7, "step": "parse", "step_run_id": 12}
    assert "ValueError: bad" in inner["exception"]


class Away:
    """A ledger that does not answer."""

    def transact(self, work):
        raise UnavailableError("no answer")


def test_a_lease_that_is_not_renewed_is_logged_as_its_run():
    """By the thread that renews it, which knows what the one that started it is about."""
    result, heard = [], threading.Event()

    def take(record):
        result.append(record)
        heard.set()

    handler = logging.Handler()
    handler.addFilter(AboutFilter())
    handler.emit = take
    logger = logging.getLogger("ledger.batch.step_runs")
    logger.addHandler(handler)
    try:
        with about(batch_id=7, step_run_id=12), heartbeat(Away(), 12, print, every=0.01):
            assert heard.wait(30)
    finally:
        logger.removeHandler(handler)
    assert result[0].getMessage() == "lease of run 12 not renewed: no answer"
    assert keys(vars(result[0])) == {"batch_id": 7, "step_run_id": 12}


def test_structlog_has_the_keys():
    """Airflow's logs, which merge what is bound to the context, have them without configuration."""
    with about(pipeline="orders", batch_id=7):
        assert (
            structlog.contextvars.get_contextvars().items()
            >= {
                "pipeline": "orders",
                "batch_id": 7,
            }.items()
        )
    assert "batch_id" not in structlog.contextvars.get_contextvars()


def test_a_failure_that_causes_itself():
    """It is looked through once, and has no keys."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    with about_failure(first):
        assert logs.current() == {}


@pytest.mark.parametrize("log_format_", LogFormat)
def test_a_drivers_last_error_is_found_in_either_format(log_format_):
    """A task of Airflow repeats it as the reason of its failure; other loggers and levels are none
    of its business.
    """
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonLines() if log_format_ is LogFormat.JSON else logging.Formatter(logs._TEXT)
    )
    for name, level, message in (
        ("ackledger", logging.ERROR, "first"),
        ("ackledger", logging.ERROR, 'no file "x": ackledger ERROR'),
        ("ackledger", logging.INFO, "a line"),
        ("py4j", logging.ERROR, "another"),
    ):
        handler.handle(logging.LogRecord(name, level, "", 0, message, (), None))
    output = f"Last spark-submit output:\n  {stream.getvalue()}26/01/01 WARN Utils: x\n[1, 2]\n"
    assert last_error(output, "ackledger") == 'no file "x": ackledger ERROR'
    assert last_error("nothing", "ackledger") is None


@pytest.mark.parametrize(
    ("variable", "format_"), [(None, "text"), ("text", "text"), ("json", "json"), ("xml", "text")]
)
def test_the_format_is_a_variable(monkeypatch, variable, format_):
    """``ACKLEDGER_LOG_FORMAT``; an invalid value means text, and the settings report it."""
    monkeypatch.delenv("ACKLEDGER_LOG_FORMAT", raising=False)
    if variable is not None:
        monkeypatch.setenv("ACKLEDGER_LOG_FORMAT", variable)
    assert log_format() == format_
    if variable != "xml":
        assert Settings().log_format == format_
        return
    with pytest.raises(ValueError) as caught:
        Settings()
    assert str(translated(caught.value)).startswith("ACKLEDGER_LOG_FORMAT=xml: Input should be")


@pytest.mark.parametrize(("options", "step"), [(["--step", "parse"], {"step": "parse"}), ([], {})])
def test_the_last_line_of_a_driver_is_json(monkeypatch, capfd, options, step):
    """It has the batch, and the step of a driver that runs one."""

    def fails(arguments):
        raise InputError("no file matches x")

    arguments = ["--pipeline", "m:p", "--batch", "7", *options]
    arguments += ["--attempt", "00000000-0000-7000-8000-000000000000"]
    monkeypatch.setattr(sys, "argv", ["run_step", *arguments])
    monkeypatch.setattr(run_step, "run_task", fails)
    monkeypatch.setenv("ACKLEDGER_LOG_FORMAT", "json")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as a driver finds it
    run_step.main()
    line = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert line["event"].endswith("of batch 7: no file matches x")
    assert keys(line) == {"batch_id": 7, **step}
