"""Addresses of Spark Connect servers: what is none, and what does not answer."""

import socket
import threading
import time

import pytest
from typer.testing import CliRunner

from ledger.cli.base import LOCAL, app
from ledger.cli.runs import CommandTarget
from ledger.core import connect_server as remote
from ledger.core import requirements
from ledger.core.connect_server import briefly, checked_address, checked_place, require_server
from ledger.errors import ConfigurationError, UnavailableError
from tests.support.ports import free_port


@pytest.mark.parametrize(
    "address", ["local[2]", "sc://", "sc://h:port", "sc://h;use_ssl=true", "spark://h:7077"]
)
def test_what_is_no_address(address):
    """It is named, with the form of one."""
    with pytest.raises(ConfigurationError, match="expected a Spark Connect server, sc://HOST:PORT"):
        require_server(address)


@pytest.mark.parametrize(
    "address", ["sc://h:15002/;use_ssl=true;token=hush", "sc://h;Token=hush", "sc://h:a;token=hush"]
)
def test_a_token_is_not_given_in_the_address(address):
    """It would stand in logs and arguments; the message has the variable, and not the token."""
    with pytest.raises(ConfigurationError, match="set SPARK_CONNECT_AUTHENTICATE_TOKEN") as caught:
        require_server(address)
    assert "hush" not in str(caught.value)


def test_an_address_is_checked_without_asking():
    """Host and port, by default Spark's own, of a server that need not be there."""
    assert checked_address("sc://h:1/;use_ssl=true") == ("h", 1)
    assert checked_address("sc://H") == ("h", 15002)


def test_without_the_client(monkeypatch):
    """What is to be installed is named."""
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ackledger\[connect\]'"):
        require_server("sc://h:1")


def test_whether_a_server_answers():
    """One that listens does; where none does, the error may pass."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert require_server(f"sc://127.0.0.1:{port}") == f"127.0.0.1:{port} answers"
    with pytest.raises(UnavailableError, match="does not answer"):
        require_server(f"sc://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "spark",
    [
        LOCAL,
        "local",
        "local[2, 3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://h:1",
        "k8s://https://h:1",
        "sc://h:1",
    ],
)
def test_a_run_has_one_place(spark):
    """--spark takes a master or a server, and only a server is connected to."""
    at = CommandTarget("etl:shop", None, None, None, checked_place(spark))
    assert at.remote == (spark if spark == "sc://h:1" else None)


@pytest.mark.parametrize(
    "spark",
    ["sc:h", "sc//h:1", "SC://h", "h:7077", "sc:/h;token=t", "sc:/h?token=t", "https://t@h",
     "local[x]", ""],
)  # fmt: skip
def test_a_place_that_is_none(spark):
    """What is neither a master nor a server is refused before anything starts."""
    with pytest.raises(ConfigurationError, match="expected a master") as raised:
        checked_place(spark)
    assert "token" not in str(raised.value)
    assert "t@h" not in str(raised.value)


@pytest.mark.parametrize("command", ["check etl:shop", "check", "publish etl:shop"])
def test_commands_check_the_place(command):
    """Before they load a pipeline, or ask the ledger."""
    result = CliRunner().invoke(app, [*command.split(), "--spark", "sc:h"])
    assert isinstance(result.exception, ConfigurationError)


def test_leaving_waits_briefly(monkeypatch, caplog):
    """A server that is gone keeps no driver that leaves; what cannot be sent to it is logged."""
    monkeypatch.setattr(remote, "PATIENCE", 0.05)
    over = threading.Event()
    began = time.monotonic()
    briefly(over.wait)
    assert time.monotonic() - began < 5
    over.set()

    def broken():
        raise OSError("no way there")

    briefly(broken)
    assert "no way there" in caplog.text
