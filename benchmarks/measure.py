"""Stopwatch, memory, and the batches that are measured."""

import logging
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from pathlib import Path
from types import TracebackType

import psutil
from rich.console import Console
from rich.progress import track
from sqlalchemy import text

from ledger import Pipeline
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.publishing import publish
from ledger.batch.settlement import settle_once
from ledger.batch.step_runs import Attempt
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.execution import StepResult, combine, run_step, run_steps, withhold
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.queries import settlement as queries
from ledger.store.queries.batches import Batch

START = datetime(2013, 1, 1, tzinfo=UTC)
_days = count(1)


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turn(
    variants: Mapping[str, Callable[[], object]], rounds: int, title: str
) -> dict[str, list[float]]:
    """Seconds of each variant in each round but the first."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for number in track(range(rounds + 1), title, console=Console()):
        for name, run in variants.items():
            spent = seconds(run)
            if number > 0:
                taken[name].append(spent)
    return taken


def data_bytes(folder: Path) -> int:
    """Bytes of the Parquet files in a folder and in those below it."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


@dataclass(frozen=True)
class Times:
    """Seconds of a batch: its steps with opening, its settlement, and until its sinks publish
    it.
    """

    steps: float
    settle: float
    publish: float

    @property
    def total(self) -> float:
        """Seconds from start to published rows: what a user waits for."""
        return self.steps + self.settle + self.publish


@dataclass(frozen=True)
class Fold:
    """A fold as a run has logged it: how many rows it read, how long that took, and how it went."""

    rows: int
    seconds: float
    way: str


class FoldLog(logging.Handler):
    """Collects the folds that runs log, until they are taken."""

    def __init__(self, logger: str = "ledger.spark.folding.fold") -> None:
        super().__init__(logging.INFO)
        self._folds: list[Fold] = []
        log = logging.getLogger(logger)
        log.addHandler(self)
        log.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record with ``fold_rows``, ``fold_seconds`` and ``fold_way``; no other."""
        if (rows := getattr(record, "fold_rows", None)) is not None:
            seconds_, way = record.__dict__["fold_seconds"], record.__dict__["fold_way"]
            self._folds.append(Fold(int(rows), float(seconds_), str(way)))

    def take(self) -> list[Fold]:
        """Return what was collected since the last call."""
        taken, self._folds = self._folds, []
        return taken


def fold_rows_per_second(
    rounds: Iterable[Mapping[str, Iterable[Fold]]],
) -> dict[str, dict[str, float]]:
    """By step and way the median over ``rounds``, each of which has the folds of its steps."""
    rates: dict[str, dict[str, list[float]]] = {}
    for by_step in rounds:
        for step, folds in by_step.items():
            spent: dict[str, tuple[int, float]] = {}
            for fold in folds:
                rows, taken = spent.get(fold.way, (0, 0.0))
                spent[fold.way] = rows + fold.rows, taken + fold.seconds
            for way, (rows, taken) in spent.items():
                if rows and taken:
                    rates.setdefault(step, {}).setdefault(way, []).append(rows / taken)
    return {
        step: {way: statistics.median(values) for way, values in ways.items()}
        for step, ways in rates.items()
    }


class Bench:
    """Runs batches of pipelines in one session and removes what they wrote."""

    def __init__(self, job: Callable[[Pipeline], Job], settings: Settings, database: Database):
        self._job = job
        self._settings = settings
        self.database = database
        self.written: dict[str, int] = {}
        self.snapshot_bytes = 0  # of the last batch
        self.storage_bytes = 0  # of it, decided: all files of its sources and stages
        self.ledger_rows: dict[str, int] = {}  # that its runs have posted, by step
        self.step_seconds: dict[str, float] = {}  # of the last batch
        self.folds: dict[str, list[Fold]] = {}  # of its steps, as far as they were logged
        self._fold_log = FoldLog()

    def batch(
        self, pipeline: Pipeline, before_settling: Callable[[Batch], object] = lambda batch: None
    ) -> tuple[Batch, Times]:
        """Run one batch of a pipeline, over an interval of its own, to its settlement."""
        end = START + timedelta(days=next(_days))
        key = RunKey("", f"until {end:%Y-%m-%d}")
        return self._run(
            pipeline,
            lambda: open_batch(self.database, self._settings, pipeline, key, Interval(START, end)),
            before_settling,
        )

    def bare(self, pipeline: Pipeline) -> float:
        """Seconds of the bare aggregate over a batch of its own: who reads deltas first pays
        more.
        """
        taken: list[float] = []
        self.batch(
            pipeline, lambda batch: taken.append(seconds(lambda: self._bare(batch.batch_id)))
        )
        return taken[0]

    def step(self, pipeline: Pipeline, name: str) -> tuple[float, list[str]]:
        """Seconds of one step with its commit, and the files that it read."""
        batch = self.batch_before(pipeline, name)
        taken = self.step_of(batch, pipeline, name)
        (emit,) = self.database.transact(lambda c: runs.emits(c, batch.batch_id))
        return taken, self._job(pipeline).manifest(emit.emit_run_id).paths

    def batch_before(self, pipeline: Pipeline, name: str) -> Batch:
        """A batch whose steps before ``name`` have run."""
        end = START + timedelta(days=next(_days))
        key = RunKey("", f"until {end:%Y-%m-%d}")
        batch = open_batch(self.database, self._settings, pipeline, key, Interval(START, end))
        for step in takewhile(lambda step: step.name != name, pipeline.steps()):
            run_step(self._job(pipeline), batch.batch_id, step.name, Attempt())
        return batch

    def step_of(self, batch: Batch, pipeline: Pipeline, name: str) -> float:
        """Seconds of one step with its commit; it may run any number of times."""
        job = self._job(pipeline)
        return seconds(lambda: run_step(job, batch.batch_id, name, Attempt()))

    def replay(self, pipeline: Pipeline, original: Batch) -> tuple[Batch, Times]:
        """Replay what failed in a batch."""
        key = RunKey("", f"replay of {original.batch_id}")
        return self._run(
            pipeline,
            lambda: open_replay(
                self.database, self._settings, pipeline, key, original.batch_id, Selection()
            ),
            lambda batch: None,
        )

    def _run(
        self,
        pipeline: Pipeline,
        opening: Callable[[], Batch],
        before_settling: Callable[[Batch], object],
    ) -> tuple[Batch, Times]:
        opened: list[Batch] = []
        self.folds = {}
        self._fold_log.take()

        def note(name: str, result: StepResult | None) -> None:
            if result is not None:
                self.folds[name] = self._fold_log.take()

        def steps() -> None:
            opened.append(opening())
            done = run_steps(self._job(pipeline), opened[0].batch_id, note)
            self.step_seconds = {step.name: step.seconds for step in done}

        steps_seconds = seconds(steps)
        batch = opened[0]
        before_settling(batch)
        settle = seconds(lambda: settle_once(self.database, batch.batch_id))
        published = seconds(lambda: self._publish(self._job(pipeline), batch.batch_id))
        if pipeline.combined():
            combined = seconds(lambda: combine(self._job(pipeline), batch.batch_id))
            self.step_seconds["combine"] = combined
            published += combined
        self._note_sizes(pipeline, batch.batch_id)
        self._clean(pipeline)
        return batch, Times(steps_seconds, settle, published)

    def _note_sizes(self, pipeline: Pipeline, batch_id: int) -> None:
        storage = Path(self._settings.storage_root()) / pipeline.name
        self.snapshot_bytes = sum(
            data_bytes(storage / step.name / f"batch={batch_id}") for step in pipeline.sources()
        )
        self.storage_bytes = sum(
            file.stat().st_size
            for step in pipeline.steps()
            if step.kind != "sink"
            for file in (storage / step.name / f"batch={batch_id}").rglob("*")
            if file.is_file()
        )
        query = "SELECT step, delta_rows FROM step_run WHERE batch_id = :id AND state = 'committed'"
        with self.database.owner.begin() as connection:
            rows = connection.execute(text(query), {"id": batch_id}).all()
        self.ledger_rows = {row.step: int(row.delta_rows or 0) for row in rows}

    def _publish(self, job: Job, batch_id: int) -> None:
        withhold(job, batch_id)
        publish(job, batch_id)

    def _bare(self, batch_id: int) -> None:
        """The query that a settlement cannot do without, tuned as the settlement is."""
        query = (
            "SELECT root_id, bit_xor(delta) FROM ledger_delta WHERE batch_id = :id GROUP BY root_id"
            " HAVING bit_xor(delta) <> 0"
        )
        with self.database.writer.begin() as connection:
            queries.tune(connection)
            connection.execute(text(query), {"id": batch_id}).all()

    def _clean(self, pipeline: Pipeline) -> None:
        """Remove outputs, not snapshots: a replay reads them. ``written`` keeps their bytes, by
        step.
        """
        sources = {step.name for step in pipeline.steps() if step.kind == "source"}
        for folder in (Path(self._settings.storage_root()) / pipeline.name).iterdir():
            if folder.name not in sources:
                self.written[folder.name] = data_bytes(folder)
                shutil.rmtree(folder)
        shutil.rmtree(Path(self._settings.data) / "warehouse", ignore_errors=True)


class PeakMemory:
    """Samples this process and its children; ``mb``: peak resident memory by kind. What Python
    workers share with the process that they are forked from counts once.
    """

    def __init__(self) -> None:
        self.mb = {"driver": 0, "executors": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.5):
            # In local mode the JVM is driver and executor in one; Python workers are the
            # executors'.
            bytes_ = {"driver": own.memory_info().rss, "executors": 0}
            for child in own.children(recursive=True):
                try:
                    # A JVM that starts a process is briefly there twice, under another name.
                    name = child.name()
                    if name == "java":
                        bytes_["driver"] += child.memory_info().rss
                    elif name.startswith("python"):
                        bytes_["executors"] += child.memory_full_info().pss
                except psutil.NoSuchProcess:
                    continue
            for kind, size in bytes_.items():
                self.mb[kind] = max(self.mb[kind], size >> 20)
