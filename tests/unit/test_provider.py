"""What Airflow's list of providers shows of the package, and what a connection to a ledger says."""

import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module, metadata, resources

import jsonschema
import pytest
from airflow.sdk import BaseHook, BaseNotifier, BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.triggers.base import BaseTrigger

from ledger.airflow import hooks
from ledger.airflow.hooks import LedgerHook, driver_environment, settings_of
from ledger.airflow.provider import get_provider_info
from ledger.errors import ConfigurationError, LedgerError
from ledger.store.connection import Database
from tests.support.places import ROOT
from tests.support.wheels import build_wheel

PACKAGE = ROOT / "ledger" / "airflow"
INFO = get_provider_info()
BEFORE_3_2 = metadata.version("apache-airflow").startswith("3.1.")
FORM = {"storage": "Storage", "sslmode": "TLS mode", "sslrootcert": "TLS root certificate"}


class Server:
    """Airflow's API server as a task reaches it. It knows no connection."""

    def send(self, message):
        return ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)

    async def asend(self, message):
        return self.send(message)


@pytest.fixture(autouse=True)
def server(monkeypatch):
    """Lets Airflow look for connections as in a task: in the environment, then at its server."""
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Server(), raising=False)


def classes(base):
    """The public classes of the package that are of a kind, by path; those of Airflow's OpenLineage
    provider, which may be missing, are none.
    """
    names = [path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "lineage")]
    modules = [import_module(f"ledger.airflow.{name}") for name in names]
    return {
        f"{module.__name__}.{name}"
        for module in modules
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, base)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
    }


def modules(base):
    """The modules of these classes."""
    return {path.rpartition(".")[0] for path in classes(base)}


def listed(kind):
    """The modules that the provider lists of a kind."""
    return {module for entry in INFO[kind] for module in entry["python-modules"]}


def test_the_description_fits_airflows_schema():
    """Airflow refuses to start with a provider that does not."""
    schema = json.loads((resources.files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(INFO)
    assert set(INFO) <= set(schema["properties"])


def test_what_is_listed_is_there_and_the_reverse():
    """Each class is in the list of its kind, and the lists have no other."""
    assert set(INFO["notifications"]) == classes(BaseNotifier)
    assert set(INFO["extra-links"]) == classes(BaseOperatorLink)
    assert listed("hooks") == modules(BaseHook)
    assert listed("sensors") == modules(BaseSensorOperator)
    assert listed("operators") == modules(BaseOperator)
    assert listed("triggers") == modules(BaseTrigger)
    (connection,) = INFO["connection-types"]
    assert {connection["hook-class-name"]} == classes(BaseHook)
    assert connection["connection-type"] == LedgerHook.conn_type
    assert connection["hook-name"] == LedgerHook.hook_name


_SEEN = """
import json, logging
logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s")
from airflow import plugins_manager
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager

if hasattr(plugins_manager, "_get_plugins"):
    errors = plugins_manager._get_plugins()[1]
else:  # before 3.2
    plugins_manager.ensure_plugins_loaded()
    errors = plugins_manager.import_errors
manager = ProvidersManager()
manager.initialize_providers_configuration()
hook = manager.hooks["ackledger"]
fields = {
    name.removeprefix("extra__ackledger__"): widget.field["schema"].get("title")
    for name, widget in manager.connection_form_widgets.items()
    if name.startswith("extra__ackledger__")
}
seen = {
    "version": manager.providers["ackledger"].version,
    "hook": [hook.hook_class_name, hook.connection_id_attribute_name, hook.connection_testable],
    "fields": fields,
    "labels": manager.field_behaviours.get("ackledger", {}).get("relabeling"),
    "notifications": [name for name in manager.notification if name.startswith("ledger.")],
    "links": [name for name in manager.extra_links_class_names if name.startswith("ledger.")],
    "triggers": [each.trigger_class_name for each in manager.trigger if "ledger" in str(each)],
    "conn_ids": conf.get("ackledger", "conn_ids"),
    "errors": errors,
}
print("found", json.dumps(seen))
"""


def test_airflow_registers_the_provider(tmp_path):
    """Airflow's own manager finds it by the wheel's metadata, without a warning, even if it loads
    the plugins of all providers. Before Airflow 3.2 the form has Airflow's own labels.
    """
    build_wheel(tmp_path)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS": "False",
        "AIRFLOW__ACKLEDGER__CONN_IDS": "one,two",
        "PYTHONPATH": str(tmp_path / "sources"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SEEN],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ackledger" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    seen = json.loads(line.removeprefix("found "))
    assert seen.pop("version") == "1.0.0"
    assert seen == {
        "hook": ["ledger.airflow.hooks.LedgerHook", "conn_id", True],
        "fields": {} if BEFORE_3_2 else FORM,
        "labels": None if BEFORE_3_2 else {"schema": "Database", "extra": "Options of libpq"},
        "notifications": INFO["notifications"],
        "links": INFO["extra-links"],
        "triggers": ["ledger.airflow.sensors"],
        "conn_ids": "one,two",
        "errors": {},
    }


@pytest.fixture
def connection(monkeypatch):
    """Makes the connection ``sales`` of a text, as a user sets it."""
    return lambda text: monkeypatch.setenv("AIRFLOW_CONN_SALES", text)


def as_json(**fields):
    """A connection as JSON, to a ledger unless the fields say otherwise."""
    return json.dumps({"conn_type": "ackledger", "host": "db", "schema": "ledger", **fields})


@pytest.mark.parametrize(
    "text",
    [
        "ackledger://etl:p%40ss%2F1@db.example:6432/ledger?storage=s3%3A%2F%2Fb%2Fl&sslmode=require",
        as_json(
            host="db.example",
            port=6432,
            login="etl",
            password="p@ss/1",
            extra={"storage": "s3://b/l", "sslmode": "require", "sslrootcert": ""},
        ),
    ],
)
def test_a_connection_names_a_ledger(connection, monkeypatch, text):
    """Its fields are the address, the rest of its extra are options of libpq, and its storage goes
    before that of the environment.
    """
    connection(text)
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", "postgresql://other/ledger")
    monkeypatch.setenv("ACKLEDGER_STORAGE", "/of/another")
    settings = settings_of("sales")
    url = Database.from_settings(settings).url
    assert (url.host, url.port, url.database, url.username) == (
        "db.example",
        6432,
        "ledger",
        "etl",
    )
    assert (url.password, dict(url.query)) == ("p@ss/1", {"sslmode": "require"})
    assert settings.storage_root() == "s3://b/l"
    assert asyncio.run(LedgerHook("sales").asettings()) == settings
    assert settings_of(None).storage_root() == "/of/another"


@pytest.mark.parametrize(("value", "text"), [(True, "1"), (False, "0"), (5, "5")])
def test_an_option_is_as_libpq_reads_it(connection, value, text):
    """Which knows no ``True``."""
    connection(as_json(extra={"keepalives": value}))
    assert dict(Database.from_settings(settings_of("sales")).url.query) == {"keepalives": text}


def test_the_reader_of_the_environment_is_of_another_ledger(connection, monkeypatch):
    """A ledger of a connection has its own."""
    connection(as_json())
    monkeypatch.setenv("ACKLEDGER_READER_URL", "postgresql://ledger_sql@other/ledger")
    hook = LedgerHook("sales")
    for settings in (hook.settings(), asyncio.run(hook.asettings())):
        assert settings.reader_url is None
    assert "reader_url" not in hook.overrides()
    assert settings_of(None).reader_url is not None


def test_what_a_connection_leaves_out_is_of_the_environment(connection, monkeypatch):
    """Such as the storage; a host that is a folder is that of a socket."""
    connection(as_json(host="/run/postgres"))
    monkeypatch.setenv("ACKLEDGER_STORAGE", "/shared")
    settings = LedgerHook("sales").settings()
    assert settings.storage_root() == "/shared"
    url = Database.from_settings(settings).url
    assert (url.host, dict(url.query)) == (None, {"host": "/run/postgres"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postgres://db/ledger", "'sales' is of type 'postgres': expected 'ackledger'"),
        (as_json(host=None), "'sales' has no host: expected"),
        (as_json(host="", schema=None), "'sales' has no host and no database: expected"),
        (as_json(password="hush"), "'sales' has no login: expected"),
        *(
            (as_json(extra={name: "hush"}), f"'sales' has '{name}': expected .* the field {field}")
            for name, field in (("user", "Login"), ("password", "Password"), ("dbname", "Database"))
        ),
        (as_json(extra={"sslmode": ["a"]}), "the extra of connection 'sales': expected a JSON"),
        *(
            pytest.param(
                as_json(extra=text),
                "the extra of connection 'sales': expected a JSON",
                marks=pytest.mark.skipif(BEFORE_3_2, reason="Airflow 3.1 refuses it itself"),
            )
            for text in ("none", "[1]")
        ),
    ],
)
def test_a_connection_that_names_no_ledger_is_refused(connection, text, message):
    """With what it lacks, and no part of it that may be secret; the button says the same."""
    connection(text)
    with pytest.raises(ConfigurationError, match=message):
        settings_of("sales")
    ok, answer = LedgerHook("sales").test_connection()
    assert not ok
    assert re.search(message, answer)
    assert "hush" not in answer


def test_an_unknown_connection_may_be_known_to_a_retry():
    """Because Airflow gives the same answer if its server was away."""
    message = "knows no connection 'nowhere': .*set AIRFLOW_CONN_NOWHERE"
    with pytest.raises(LedgerError, match=message) as caught:
        settings_of("nowhere")
    assert not caught.value.permanent
    with pytest.raises(LedgerError, match=message):
        asyncio.run(LedgerHook("nowhere").asettings())


def test_the_button_does_not_show_the_password(connection):
    """Nor does it wait for long where no server answers."""
    connection(as_json(host="127.0.0.1", port=9, login="etl", password="hush-hush"))
    ok, answer = LedgerHook("sales").test_connection()
    assert not ok
    assert "127.0.0.1:9" in answer
    assert "hush" not in answer


def test_a_driver_starts_with_the_ledger_of_its_connection(connection, monkeypatch):
    """By its environment, which is as before afterwards, and unchanged without a connection."""
    connection(as_json(login="etl", password="hush", extra={"storage": "/of/sales"}))
    names = ("ACKLEDGER_DATABASE_URL", "ACKLEDGER_STORAGE", "ACKLEDGER_CONN_ID")
    monkeypatch.setenv("ACKLEDGER_STORAGE", "/shared")
    for name in ("ACKLEDGER_DATABASE_URL", "ACKLEDGER_CONN_ID"):
        monkeypatch.delenv(name, raising=False)
    before = [os.environ.get(name) for name in names]
    with driver_environment(None):
        assert [os.environ.get(name) for name in names] == before == [None, "/shared", None]
    with driver_environment("sales"):
        within = [os.environ[name] for name in names]
    assert within == ["postgresql+psycopg2://etl:hush@db/ledger", "/of/sales", "sales"]
    assert [os.environ.get(name) for name in names] == before


@pytest.mark.parametrize(
    ("password", "masked"),
    [
        (None, []),
        ("hush", ["postgresql+psycopg2://etl:hush@db/ledger", "hush"]),
        ("p@s:/1", ["postgresql+psycopg2://etl:p%40s%3A%2F1@db/ledger", "p%40s%3A%2F1"]),
    ],
)
def test_the_address_of_a_driver_is_masked(connection, monkeypatch, password, masked):
    """With the password as the address has it, escapes and all."""
    secrets = []
    monkeypatch.setattr(hooks, "mask_secret", secrets.append)
    connection(as_json(login="etl", password=password))
    with driver_environment("sales"):
        assert secrets == masked
        if masked:
            assert os.environ["ACKLEDGER_DATABASE_URL"] in secrets
