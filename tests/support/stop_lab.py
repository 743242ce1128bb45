"""What a crash is done to: a ledger, a target database and a folder that can be put back to any
stop.
"""

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg2
from sqlalchemy.engine import make_url

from ledger import Pipeline
from ledger.spark.job import Job
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.support.crashing import Order, settings_of
from tests.support.ledgers import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING = "nothing"


@dataclass(frozen=True)
class Site:
    """Where a lab stands: on the PostgreSQL server at ``url``, whose files lie in ``home``."""

    spark: "SparkSession"
    url: str
    home: Path
    folder: Path


class StopLab(ABC):
    """A batch's life, kept at every stop that was asked for, so that each crash begins at its
    own.
    """

    def __init__(self, site: Site):
        self.spark = site.spark
        self.home, self.folder = site.home, site.folder
        self._stop_folders = site.folder.parent / f"{site.folder.name}-kept"
        self._server = site.url
        self.ledger = Ledger(Database(self._named("crash_ledger")))
        self.warehouse = self._named("crash_target")
        self._stops: set[str] = set()
        self._at = ""
        for name in ("crash_ledger", "crash_target"):
            self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            embedded.ensure_database(self._server, name)
        upgrade(self.ledger.database)
        self.folder.mkdir()
        self.write()
        self._keep(NOTHING)

    @abstractmethod
    def write(self) -> None:
        """Write the files that the pipeline reads."""

    @abstractmethod
    def before(self, stop: str) -> str:
        """The stop that comes before another."""

    @abstractmethod
    def advance(self, stop: str) -> None:
        """From the stop before to this one, warm and without a crash."""

    def job_of(self, pipeline: Pipeline) -> Job:
        """The surroundings of a pipeline in this process."""
        settings = settings_of(str(self.home), str(self.folder))
        return Job(self.spark, self.ledger.database, settings, pipeline)

    def leave(self) -> None:
        """From here on things change: the next stop is put back."""
        self._at = ""

    def wait_for_rollback(self) -> None:
        """Until the server has noticed that a killed process is gone: no transaction is open."""
        for _ in range(200):
            if not self._do(
                "SELECT 1 FROM pg_stat_activity WHERE datname IN ('crash_ledger', 'crash_target')"
                " AND backend_type = 'client backend' AND state <> 'idle' AND pid <>"
                " pg_backend_pid()"
            ):
                return
            time.sleep(0.05)
        raise AssertionError("a transaction outlives the process that began it")

    def order(self, place: str, **more: object) -> Order:
        """An order to die in this lab."""
        return Order(
            database=self._named("crash_ledger"),
            home=str(self.home),
            folder=str(self.folder),
            warehouse=self.warehouse,
            place=place,
            marker=str(self.folder / "died"),
            **more,  # type: ignore[arg-type]
        )

    def go_to(self, stop: str) -> None:
        """Put everything back to what it was there; the first time the batch gets there step by
        step.
        """
        if stop not in self._stops:
            before = self.before(stop)
            if before not in self._stops or self._at != before:
                self.go_to(before)
            self.advance(stop)
            self._keep(stop)
        if self._at != stop:
            self._put_back(stop)

    def dispose(self) -> None:
        """Remove databases and folders."""
        self.ledger.database.dispose()
        for stop in self._stops:
            self._drop(stop)
        for name in ("crash_ledger", "crash_target"):
            self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for folder in (self.folder, self._stop_folders):
            shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, stop: str) -> None:
        self.ledger.database.dispose()
        self._copy("crash_ledger", _name("ledger", stop))
        self._copy("crash_target", _name("target", stop))
        shutil.copytree(self.folder, self._stop_folders / stop, copy_function=shutil.copy2)
        self._stops.add(stop)
        self._at = stop

    def _put_back(self, stop: str) -> None:
        self.ledger.database.dispose()
        self._copy(_name("ledger", stop), "crash_ledger")
        self._copy(_name("target", stop), "crash_target")
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._stop_folders / stop, self.folder, copy_function=shutil.copy2)
        self._at = stop

    def _drop(self, stop: str) -> None:
        for kind in ("ledger", "target"):
            self._do(f"DROP DATABASE IF EXISTS {_name(kind, stop)} WITH (FORCE)")

    def _copy(self, template: str, name: str) -> None:
        self._do(
            f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {template}",
        )

    def _do(self, *statements: str) -> int:
        """Run statements as the server's own user; how many rows the last one found."""
        plain = make_url(self._server).set(drivername="postgresql", database="postgres")
        connection = psycopg2.connect(plain.render_as_string(hide_password=False))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return int(cursor.rowcount)
        finally:
            connection.close()

    def _named(self, name: str) -> str:
        return make_url(self._server).set(database=name).render_as_string(hide_password=False)


AnyLab = TypeVar("AnyLab", bound=StopLab)


@contextmanager
def standing(
    lab_at: Callable[[Site], AnyLab],
    spark: "SparkSession",
    home: Path,
) -> Iterator[AnyLab]:
    """A lab in a folder of its own, on the server of ``home``, which is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ackledger-crash-"))
    try:
        lab = lab_at(Site(spark, embedded.start(home), home, folder / "lab"))
        yield lab
        lab.dispose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _name(kind: str, stop: str) -> str:
    return f"crash_{kind}_{stop.replace(' ', '_')}"
