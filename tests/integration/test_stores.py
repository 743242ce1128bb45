"""A whole pipeline whose files lie on a store behind HTTP, which fails now and then."""

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from ledger.batch.step_runs import Attempt
from ledger.batch.upkeep.retention import GcOptions, gc_once
from ledger.deltas import spans
from ledger.errors import ConfigurationError, UnavailableError
from ledger.execution import run_step, settle_and_follow
from ledger.settings import Settings
from ledger.sources.files import text as text_files
from ledger.spark.failures import translated
from ledger.spark.job import Job
from ledger.spark.session import session_conf
from ledger.storage import stores
from tests.support import orders
from tests.support.crashing import opened
from tests.support.ledgers import Ledger
from tests.support.webhdfs import Store, serving

# What a user sets for Hadoop's client of this store; here it waits less.
RETRIES = {
    "dfs.http.client.retry.policy.enabled": "true",
    "dfs.http.client.retry.policy.spec": "50,6",
}
TRIES = 6  # of a task in Airflow, with its retries
SINKS = ("lake", "report")
VARIANT = orders.Variant(sinks=SINKS)


@pytest.fixture
def store(tmp_path, spark, monkeypatch):
    """A store that renames no folder but below ``sinks``, and fails nothing yet."""
    monkeypatch.setattr(stores, "PAUSE_SECONDS", 0.01)
    root = tmp_path / "store"
    root.mkdir()
    with serving(Store(root, movable=("sinks",))) as store, session_conf(spark, RETRIES):
        yield store


@pytest.fixture(autouse=True)
def few_spans(monkeypatch):
    """Records of the orders share rows."""
    monkeypatch.setattr(spans, "MOST_SPANS", orders.MOST_SPANS)


@dataclass
class Life:
    """A batch of orders and its replay. ``root``: the folder that holds, or is behind, all of its
    files; ``url``: what the pipeline calls it; ``in_tasks``: whether executors fold what it wrote.
    """

    spark: object
    ledger: Ledger
    home: Path
    warehouse: str
    root: Path
    url: str
    in_tasks: bool = False

    def job(self, variant: orders.Variant) -> Job:
        """The surroundings of its pipeline."""
        settings = Settings(
            home=self.home,
            storage=f"{self.url}/storage",
            data=f"{self.url}/data",
            output=f"{self.url}/sinks",
        )
        notices = self.root.parent / f"notices-{self.root.name}"
        notices.mkdir(exist_ok=True)
        flow = orders.pipeline(str(notices), self.warehouse, variant)
        job = Job(self.spark, self.ledger.database, settings, flow)
        return replace(job, few_rows=-1, driver_bytes=-1) if self.in_tasks else job

    def write(self, *, fixed: bool = False) -> None:
        """The source's file and the reference."""
        (self.root / "data").mkdir(parents=True, exist_ok=True)
        orders.write(self.root / "data", fixed=fixed)

    def again(self, call):
        """Try as a task of Airflow does: until it succeeds, or fails permanently."""
        trying = Retrying(
            retry=retry_if_exception(lambda exc: not translated(exc).permanent),
            stop=stop_after_attempt(TRIES),
            reraise=True,
        )
        return trying(call)

    def run(self, variant: orders.Variant, replay_of: int | None = None) -> int:
        """A batch, its settlement and what follows; its number."""
        job = self.job(variant)
        batch = self.again(lambda: opened(job, replay_of=replay_of))
        for step in job.pipeline.steps():
            self.again(lambda name=step.name: run_step(job, batch.batch_id, name, Attempt()))
        self.again(lambda: settle_and_follow(job, batch.batch_id))
        return batch.batch_id

    def verdict(self) -> dict[str, object]:
        """What the ledger says of it: batches, failed records, and the rows of each step."""
        return {
            "batches": self.ledger.rows(
                "SELECT kind, status, total, acked, failed, quarantined, pending"
                " FROM batch_status ORDER BY batch_id"
            ),
            "failed": self.ledger.rows(
                "SELECT kind, step, reason, status, attempt, own_failure, count(*)"
                " FROM failed_root_detail GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6"
            ),
            "steps": self.ledger.rows(
                "SELECT batch_id, step, output_rows, input_rows, failed_rows"
                " FROM step_run WHERE state = 'committed' ORDER BY 1, 2"
            ),
        }

    def shown(self) -> dict[str, orders.Rows]:
        """What readers of each sink see."""
        return {
            "lake": self._folder("lake", "id", "shop", "box", "cents"),
            "daily": self._folder("daily", "shop", "boxes", "cents"),
            "report": self._report(),
        }

    def _folder(self, name: str, *columns: str) -> orders.Rows:
        place = self.root / "sinks" / name
        if not place.exists():
            return Counter()
        table = ds.dataset(place, partitioning="hive", format="parquet").to_table()
        rows = table.to_pylist() if table.num_rows else []
        return Counter(tuple(row[column] for column in columns) for row in rows)

    def _report(self) -> orders.Rows:
        engine = create_engine(self.warehouse, poolclass=NullPool)
        with engine.connect() as connection:
            result = connection.execute(text("SELECT id, shop, box, cents FROM report"))
            return Counter(tuple(row) for row in result)

    def lived(self) -> list[object]:
        """Verdict and rows after a batch that loses records, and after its replay."""
        self.write()
        original = self.run(VARIANT)
        outcomes = [self.verdict(), self.shown()]
        self.write(fixed=True)
        self.run(replace(VARIANT, fixed=True), replay_of=original)
        return [*outcomes, self.verdict(), self.shown()]


@pytest.fixture
def life(spark, database, server_home, warehouse):
    """Lives of batches, each on an empty ledger and target."""

    def begin(root: Path, url: str, *, in_tasks: bool = False) -> Life:
        Ledger(database).empty()
        warehouse.do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return Life(spark, Ledger(database), server_home, warehouse.url, root, url, in_tasks)

    return begin


def empty(store):
    """Make a store as if nothing had been asked of it."""
    for folder in store.root.iterdir():
        shutil.rmtree(folder)
    store.events.clear()


def test_a_pipeline_on_a_store_that_fails_ends_as_on_a_local_folder(
    store, life, tmp_path, monkeypatch
):
    """Verdict, reasons and rows of a batch with losses and of its replay are the same, though
    requests are answered 503, connections end half-way, and no folder can be renamed, whether the
    driver reads sources and folds, or its tasks do; gc then leaves no file of a run."""
    local = life(tmp_path / "local", str(tmp_path / "local")).lived()
    first, last = local[1], local[3]
    assert first["lake"] == first["report"] == orders.expected(fixed=False)
    assert last["lake"] == last["report"] == orders.expected(fixed=True)
    assert last["daily"] == orders.totals(orders.expected(fixed=True))

    store.unavailable, store.cut, store.broken = 67, 53, 11
    for in_tasks in (False, True):
        if in_tasks:
            monkeypatch.setattr(text_files, "HERE", 0)
            monkeypatch.setattr(text_files, "CUT_HERE", 0)
        empty(store)
        remote = life(store.root, store.url(), in_tasks=in_tasks)
        outcome = remote.lived()
        failed = "SELECT step, failure FROM step_run WHERE state = 'failed'"
        assert remote.ledger.rows(failed) == []  # but interrupted, to go on at the step
        assert outcome == local
        faults = [store.events[fault] for fault in ("unavailable", "cut", "broken")]
        assert min(faults) >= 2, store.events
        assert store.events["RENAME"] > 0

        remote.ledger.accept(1)  # the quarantined records, which would keep the files
        now = remote.ledger.now() + timedelta(days=9)
        collected = gc_once(remote.ledger.database, GcOptions(keep_seconds=86400.0), now=now)
        assert collected.errors == {}
        assert collected.total.files > 0
        assert [path for path in (store.root / "storage").rglob("*") if path.is_file()] == []
        assert remote.shown() == local[3]


def test_a_store_that_is_down_interrupts_a_step(store, life):
    """A source, a stage and a sink say that the store does not answer, and are interrupted, not
    failed; once it answers they go on, and nothing is lost."""
    remote = life(store.root, store.url())
    remote.write()
    job = remote.job(VARIANT)
    batch = opened(job)
    for step in job.pipeline.steps():
        if step.name in ("orders", "boxes", "lake"):
            store.down = True
            with pytest.raises(Exception, match=r"store did not answer|store does not answer") as e:
                run_step(job, batch.batch_id, step.name, Attempt())
            assert isinstance(translated(e.value), UnavailableError)
            states = remote.ledger.rows("SELECT state FROM step_run WHERE step = :s", s=step.name)
            assert [row.state for row in states] == ["fenced"]
            store.down = False
        run_step(job, batch.batch_id, step.name, Attempt())
    settle_and_follow(job, batch.batch_id)
    assert remote.shown()["lake"] == orders.expected(fixed=False)


def test_a_parquet_folder_is_refused_where_no_folder_is_renamed(store, life):
    """The run of its sink says so before it stages a row, and what to use instead."""
    store.movable = ()
    remote = life(store.root, store.url())
    remote.write()
    job = remote.job(VARIANT)
    batch = opened(job)
    for step in ("orders", "boxes", "priced"):
        run_step(job, batch.batch_id, step, Attempt())
    with pytest.raises(ConfigurationError, match=r"this one does not.*Use DeltaSink there"):
        run_step(job, batch.batch_id, "lake", Attempt())
    files = [path for path in (store.root / "sinks").rglob("*") if path.is_file()]
    assert files == []
