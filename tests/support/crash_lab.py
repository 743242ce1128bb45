"""Life of a batch of ``tests.support.orders``, stop by stop, kept so that every crash begins at its own."""

import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from ledger.database.connection import Database
from ledger.database.embedded import ensure_database
from ledger.database.upgrade import upgrade
from ledger.running import (
    combine,
    notify,
    publish_settled,
    run_step,
    withhold,
)
from ledger.settlement import settle_once
from ledger.spark.job import Job
from ledger.stage_runs import Attempt
from tests.support import orders
from tests.support.crashing import Order, opened, run_open_steps, settings_of

# Their numbers, where no crash has used up one; a batch in the original's place has the second, too.
ORIGINAL, REPLAY = 1, 2
STEPS = ("orders", "boxes", "priced", "lake", "report", "table")
_LIFE = ("opened", *STEPS, "settled", "withheld", "published")
# Where a crash can begin: what was done before it, of a batch and of its replay.
STOPS = ("nothing", *_LIFE, "told", *(f"replay {stop}" for stop in _LIFE), "replay combined")
# And of a batch that reprocesses the interval.
ANEW = "anew withheld"


class Lab:
    """A ledger, a target database and a folder that can be put back to any stop."""

    def __init__(
        self,
        spark: "SparkSession",  # noqa: F821
        url: str,
        home: Path,
        folder: Path,
        base: orders.Variant | None = None,
    ):
        self.spark = spark
        self.base = base or orders.Variant()
        self.home, self.folder = home, folder
        self._kept_folders = folder.parent / f"{folder.name}-kept"
        self._server = url
        self.ledger = Database(self._named("crash_ledger"))
        self.warehouse = self._named("crash_target")
        self._target = create_engine(self.warehouse, poolclass=NullPool)
        self._kept: set[str] = set()
        self._at = ""
        self._begin()

    def job(self, variant: orders.Variant) -> Job:
        """The surroundings of the pipeline in this process."""
        made = orders.pipeline(str(self.folder), self.warehouse, variant)
        return Job(self.spark, self.ledger, settings_of(str(self.home), str(self.folder)), made)

    def leave(self) -> None:
        """From here on things change: the next stop is put back."""
        self._at = ""

    def wait_for_rollback(self) -> None:
        """Until the server has noticed that a killed process is gone: no transaction is open."""
        for _ in range(200):
            if not self._do(
                "SELECT 1 FROM pg_stat_activity WHERE datname IN ('crash_ledger', 'crash_target') "
                "AND backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()"
            ):
                return
            time.sleep(0.05)
        raise AssertionError("a transaction outlives the process that began it")

    def order(self, target: str, **more: object) -> Order:
        """An order to die in this lab."""
        return Order(
            database=self._named("crash_ledger"),
            home=str(self.home),
            folder=str(self.folder),
            warehouse=self.warehouse,
            target=target,
            marker=str(self.folder / "died"),
            **more,  # type: ignore[arg-type]
        )

    def go_to(self, stop: str) -> None:
        """Put everything back to what it was there; the first time the batch gets there step by step."""
        if stop not in self._kept:
            before = "told" if stop == ANEW else STOPS[STOPS.index(stop) - 1]
            if before not in self._kept or self._at != before:
                self.go_to(before)
            self._advance(stop)
            self._keep(stop)
        if self._at != stop:
            self._put_back(stop)

    def dispose(self) -> None:
        """Remove databases and folders."""
        self.ledger.dispose()
        for stop in self._kept:
            self._drop(stop)
        for name in ("crash_ledger", "crash_target"):
            self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for folder in (self.folder, self._kept_folders):
            shutil.rmtree(folder, ignore_errors=True)

    def shown(self, sink: str) -> orders.Rows:
        """What a reader of the sink sees."""
        if sink == "report":
            return self._report()
        if sink == "table":
            try:
                found = DeltaTable(str(self.folder / "table")).to_pyarrow_table()
            except TableNotFoundError:
                return Counter()
        elif (self.folder / sink).exists():
            place = self.folder / sink
            found = ds.dataset(place, partitioning="hive", format="parquet").to_table()
        else:
            return Counter()
        if found.num_rows == 0:
            return Counter()
        columns = ("shop", "boxes", "cents") if sink == "daily" else ("id", "shop", "box", "cents")
        return Counter(tuple(row[name] for name in columns) for row in found.to_pylist())

    def notices(self) -> dict[tuple[int, str], list[list[int]]]:
        """What the source was told, by batch and kind, each time."""
        path = self.folder / "notices.txt"
        found: dict[tuple[int, str], list[list[int]]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            batch, kind, *ids = line.split()
            found.setdefault((int(batch), kind), []).append([int(one) for one in ids])
        return found

    def _begin(self) -> None:
        for name in ("crash_ledger", "crash_target"):
            self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            ensure_database(self._server, name)
        upgrade(self.ledger)
        self.folder.mkdir()
        orders.write(self.folder)
        self._keep("nothing")

    def _advance(self, stop: str) -> None:
        """From the stop before to this one, warm and without a crash."""
        *of, done = stop.split(" ")
        if of:
            orders.write(self.folder, mended=True)
        job = self.job(replace(self.base, mended=bool(of)))
        batch_id = REPLAY if of else ORIGINAL
        if stop == ANEW:
            run_open_steps(job, opened(job, reprocess=True))
            self._do_stage(job, batch_id, "settled")
        if done == "opened":
            opened(job, replay_of=ORIGINAL if of else None)
        else:
            self._do_stage(job, batch_id, done)

    def _do_stage(self, job: Job, batch_id: int, done: str) -> None:
        if done in STEPS:
            run_step(job, batch_id, done, Attempt())
        elif done == "settled":
            settle_once(job.database, batch_id)
        elif done == "withheld":
            # What the replay gives up did not parse, so no sink has a row of it.
            assert len(withhold(job, batch_id)) == (3 if batch_id == ORIGINAL else 0)
        elif done == "published":
            publish_settled(job, batch_id)
        elif done == "combined":
            combine(job, batch_id)
        else:
            notify(job, batch_id)

    def _keep(self, stop: str) -> None:
        self.ledger.dispose()
        self._copy("crash_ledger", _name("ledger", stop))
        self._copy("crash_target", _name("target", stop))
        shutil.copytree(self.folder, self._kept_folders / stop, copy_function=shutil.copy2)
        self._kept.add(stop)
        self._at = stop

    def _put_back(self, stop: str) -> None:
        self.ledger.dispose()
        self._copy(_name("ledger", stop), "crash_ledger")
        self._copy(_name("target", stop), "crash_target")
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._kept_folders / stop, self.folder, copy_function=shutil.copy2)
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

    def _report(self) -> orders.Rows:
        with self._target.connect() as connection:
            if not connection.execute(text("SELECT to_regclass('report') IS NOT NULL")).scalar():
                return Counter()
            found = connection.execute(text("SELECT id, shop, box, cents FROM report"))
            return Counter(tuple(row) for row in found)


def _name(kind: str, stop: str) -> str:
    return f"crash_{kind}_{stop.replace(' ', '_')}"
