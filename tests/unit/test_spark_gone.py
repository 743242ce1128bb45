"""A Spark that has ended while a step ran: its JVM was killed, or its Connect server went away."""

import socket
import threading
from contextlib import contextmanager, suppress

import grpc
import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkAssertionError, PySparkException

from ledger.deltas.stored import Checksum
from ledger.errors import StageError, UnavailableError
from ledger.spark.failures import is_spark_gone, recorded, translated
from ledger.spark.job import Witness
from tests.support.ports import free_port
from tests.support.spark_errors import server_error

STARTED = "An error occurred while calling o133.parquet"
SHUT = (
    f"{STARTED}.\n: org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut"
    " down\n\tat x"
)
SESSION = (
    "Received incorrect server side session identifier for request. Please create a new Spark"
    " Session"
)


@contextmanager
def a_gateway(port):
    """What PySpark has of a JVM that listens, or listened, at a port."""
    result = ClientServer(
        java_parameters=JavaParameters(port=port, enable_memory_management=False),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    try:
        yield result._gateway_client
    finally:
        with suppress(Exception):
            result.shutdown()


def called(client):
    """Call a method of a Java object."""
    JavaObject("o133", client).parquet("file:/out")


def refused():
    """Raise as a call does once the JVM has ended."""
    with a_gateway(free_port()) as client:
        called(client)


def cut_off():
    """Raise as a call does whose JVM ends before it answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=answer, daemon=True).start()
        try:
            with a_gateway(server.getsockname()[1]) as client:
                called(client)
        finally:
            server.shutdown(socket.SHUT_RDWR)


def unpinned():
    """Raise as a call of an older gateway does."""
    called(
        JavaGateway(
            gateway_parameters=GatewayParameters(port=free_port(), enable_memory_management=False)
        )._gateway_client
    )


def wordless():
    """Raise an exception of Java whose words cannot be asked for any more."""
    with a_gateway(free_port()) as client:
        raise Py4JJavaError(f"{STARTED}.\n", JavaObject("o134", client))


def raised(exc):
    """The exception that a function raises, or the one that is given."""
    if isinstance(exc, Exception):
        return exc
    with pytest.raises(Exception) as caught:
        exc()
    return caught.value


GONE = {
    "refused": refused,
    "cut off": cut_off,
    "unpinned": unpinned,
    "wordless": wordless,
    "shut down": Py4JError(SHUT),
    "server away": server_error(grpc.StatusCode.UNAVAILABLE),
    "another server": server_error(
        grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.SESSION_CHANGED] The handle"
    ),
    "another session": PySparkAssertionError(SESSION),
}


@pytest.mark.parametrize("name", GONE)
def test_a_spark_that_has_ended(name):
    """Whatever is raised then, also by code that raises something else because of it, is that
    Spark does not answer: nothing is wrong with the step, so another attempt is worth it.
    """
    exc = raised(GONE[name])
    assert is_spark_gone(exc)
    error = translated(exc)
    assert type(error) is UnavailableError
    assert str(error).startswith(f"Spark does not answer any more ({type(exc).__name__}")
    assert "run this again" in str(error)
    assert recorded(exc) == f"UnavailableError: {error}"
    after = RuntimeError("no rows")
    after.__cause__ = exc
    assert is_spark_gone(after)


@pytest.mark.parametrize(
    "exc",
    [
        server_error(grpc.StatusCode.INTERNAL, "[DIVIDE_BY_ZERO] Division by zero"),
        PySparkException("[DIVIDE_BY_ZERO] Division by zero"),
        Py4JError(f"{STARTED}.\n: java.lang.IllegalStateException: no\n"),
        lambda: socket.create_connection(("127.0.0.1", free_port())),
    ],
    ids=["server", "spark", "java", "own code"],
)
def test_a_spark_that_answers(exc):
    """What Spark says is wrong with a step, and what a step's own code cannot connect to, fails
    the step.
    """
    error = raised(exc)
    assert not is_spark_gone(error)
    assert type(translated(error)) is StageError


class Observed:
    """An observation that cannot be got."""

    def __init__(self, exc):
        self._exc = exc

    @property
    def get(self):
        raise self._exc


def test_what_a_spark_that_has_ended_observed():
    """An observation that was cut out of the plan saw nothing; that of a Spark which has ended
    is not known.
    """
    witness = Witness()
    witness._observation = Observed(PySparkException("no such observation"))
    assert witness.checksum == Checksum()
    for name in ("cut off", "server away"):
        exc = raised(GONE[name])
        witness._observation = Observed(exc)
        with pytest.raises(type(exc)):
            _ = witness.rows
