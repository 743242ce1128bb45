"""A session of a Spark Connect server that gives none."""

from types import SimpleNamespace

import grpc
import pytest
from pyspark.errors import PySparkException, PySparkValueError

from ledger.errors import ConfigurationError, UnavailableError
from ledger.spark import session
from ledger.spark.session import REQUIRED, build_session
from tests.support.spark_errors import server_error

SERVER = "sc://h:1"
COLUMNAR_UDFS = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


class Builder:
    """Connects to the address that it is given."""

    def __init__(self, connect):
        self.getOrCreate = connect

    def remote(self, _address):
        return self

    def appName(self, _name):  # noqa: N802
        return self

    def config(self, _name, _value):
        return self


@pytest.fixture
def server(monkeypatch):
    """A server that listens; the function sets what becomes of a session."""
    monkeypatch.setattr(session, "require_server", lambda remote: "h:1 answers")
    monkeypatch.setenv("SPARK_CONNECT_RELEASE_SESSION_ON_EXIT", "true")

    def answers(connect):
        monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder(connect)))

    return answers


def session_of(version, options):
    """A session of that version of Spark, which keeps these options."""
    conf = SimpleNamespace(set=options.__setitem__, get=options.get)
    return SimpleNamespace(version=version, conf=conf)


def raising(exc):
    """A call that fails."""

    def call(*_):
        raise exc

    return call


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, ConfigurationError),
        (grpc.StatusCode.PERMISSION_DENIED, ConfigurationError),
        (grpc.StatusCode.INVALID_ARGUMENT, ConfigurationError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, UnavailableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, UnavailableError),
        (grpc.StatusCode.INTERNAL, UnavailableError),
        (grpc.StatusCode.UNKNOWN, UnavailableError),
    ],
)
def test_a_session_that_is_not_given(server, code, kind):
    """A refusal is permanent, all else is tried again; both say which server it was, and its own
    words.
    """
    server(raising(server_error(code, "the server is tired\nat Server.scala")))
    with pytest.raises(kind) as caught:
        build_session("test", SERVER)
    assert f"server {SERVER} " in str(caught.value)
    assert "the server is tired" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_ends_while_the_session_is_set_up(server):
    """It may pass, too: the settings that each session needs are part of its start."""
    failing = SimpleNamespace(set=raising(server_error(grpc.StatusCode.UNAVAILABLE)))
    server(lambda: SimpleNamespace(conf=failing))
    with pytest.raises(UnavailableError, match="gave no session"):
        build_session("test", SERVER)
    data = {}
    server(lambda: session_of("4.3.0", data))
    build_session("test", SERVER)
    assert data == REQUIRED


@pytest.mark.parametrize(
    ("version", "before", "expected"),
    [
        ("4.0.2", {}, {}),
        ("4.2.0", {}, {COLUMNAR_UDFS: "false"}),
        ("4.2.0-vendor-1", {}, {COLUMNAR_UDFS: "false"}),
        ("4.2.0", {COLUMNAR_UDFS: "true"}, {COLUMNAR_UDFS: "true"}),
        ("4.2.1", {}, {}),
        ("4.3.0", {}, {}),
    ],
)
def test_a_version_that_hangs(server, version, before, expected):
    """Only the version that needs the option gets it, and a user's own value stays."""
    data = dict(before)
    server(lambda: session_of(version, data))
    build_session("test", SERVER)
    assert data == {**REQUIRED, **expected}


def test_an_error_without_words(server):
    """Neither an empty message nor an error of another kind is an error of ours."""
    for empty in (server_error(grpc.StatusCode.UNKNOWN, ""), PySparkException("")):
        server(raising(empty))
        with pytest.raises(UnavailableError, match="without a message"):
            build_session("test", SERVER)
    server(raising(PySparkValueError("no such option")))
    with pytest.raises(ConfigurationError, match="no such option"):
        build_session("test", SERVER)
