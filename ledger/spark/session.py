"""The Spark session that steps run in."""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from ledger.core.connect_server import is_remote, require_server
from ledger.core.requirements import require_java
from ledger.errors import ConfigurationError, UnavailableError
from ledger.lineage.spark_faults import avoid_known_faults
from ledger.settings import verbose
from ledger.spark.failures import one_line

# What an action raises: Spark's own errors, and those of the bridge that it did not translate.
SPARK_ERRORS = (PySparkException, Py4JError)

# What correctness rests on: a file that is missing or damaged is an error, and time is UTC.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",  # of pages that have one, as Spark's have
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


# Status codes with which a server refuses a client, or its request, permanently.
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT")
# Whether each column expression notes where in Python it was made.
_TRACE_COLUMNS = "spark.python.sql.dataFrameDebugging.enabled"
# Written by the JVM itself, before any logging of Spark's is set up.
_NOISE = (
    b"WARNING: Using incubator modules",
    b"Picked up JAVA_TOOL_OPTIONS",
    b"Picked up JDK_JAVA_",
)


def build_session(
    app_name: str, master: str | None = None, *, silent: bool = False
) -> SparkSession:
    """Return the running session, or a new one on ``master`` (default: as of spark-submit).
    ``master`` may be a Spark Connect server: ``sc://host:port``.

    ``silent``: a new local session logs nothing. Spark would log the error of a failed task, which
    may quote a record.

    Raises ConfigurationError if Java is missing or has another version, or if the server refuses
    the session. Raises UnavailableError if the server does not answer, or cannot open a session
    now.
    """
    if not verbose():
        # Spark's Python writes each error to the terminal as JSON with its Java stack; its caller
        # reports it.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL + 1)
    if master is not None and is_remote(master):
        return _connected(app_name, master)
    return _with_required(_started(app_name, master, silent))


def _with_required(session: SparkSession) -> SparkSession:
    """Set the options that correctness requires, and return the session."""
    for name, value in REQUIRED.items():
        session.conf.set(name, value)
    avoid_known_faults(session)
    return session


def _connected(app_name: str, remote: str) -> SparkSession:
    """Return a session of a Spark Connect server. The server has its own Java and Python; nothing
    is started here.
    """
    require_server(remote)  # Spark's client would ask for ten minutes
    os.environ.setdefault("SPARK_CONNECT_RELEASE_SESSION_ON_EXIT", "true")
    # A process that is started beside the client, as the embedded server is, would abort in gRPC's
    # handlers of forks before it becomes another program.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    builder = SparkSession.builder.remote(remote).appName(app_name).config(_TRACE_COLUMNS, "false")
    try:
        return _with_required(builder.getOrCreate())
    except PySparkException as exc:
        # A refusal of the client, or of its request, is permanent; other errors may pass.
        status = getattr(exc, "getGrpcStatusCode", lambda: None)()  # of errors of a server
        message = one_line(exc).rstrip(". ")
        if isinstance(exc, ValueError) or getattr(status, "name", None) in _REFUSALS:
            raise ConfigurationError(
                f"Spark Connect server {remote} refused a session: {message}"
            ) from exc
        raise UnavailableError(
            f"Spark Connect server {remote} gave no session: {message}. Check that it is well, then"
            " run this again"
        ) from exc


def _started(app_name: str, master: str | None, silent: bool) -> SparkSession:
    """Return a session of a local Spark, which is started if necessary."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
        require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).config(_TRACE_COLUMNS, "false")
    if silent:
        builder = builder.config("spark.log.level", "OFF")
    if master is not None:
        quiet = Path(__file__).with_name("log4j2.properties").as_uri()
        options: dict[str, Any] = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={quiet} "
                f"-Dackledger.spark.log={'error' if verbose() else 'fatal'}"
            ),
        }
        builder = builder.master(master).config(map=options)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with quiet_start() if master is not None else nullcontext():
        return builder.getOrCreate()


@contextmanager
def quiet_start() -> Iterator[None]:
    """Filter the JVM's warnings out of stderr of a process that is started in the block, for its
    lifetime.
    """
    terminal, ours = os.dup(2), os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)

    def pass_on() -> None:
        with open(read, "rb", buffering=0) as stream, open(terminal, "wb", buffering=0) as shown:
            left = b""
            while chunk := stream.read(65536):
                *lines, left = (left + chunk).split(b"\n")
                shown.write(b"".join(line + b"\n" for line in lines if not line.startswith(_NOISE)))
            shown.write(left)

    threading.Thread(target=pass_on, name="stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


@contextmanager
def session_conf(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set runtime options for the block, and put back what was there."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
