"""Show in a test that a pipeline loses nothing: run it over given rows with faults, and look at
the ledger.

::

    from ledger import testing

    def test_orders_survive_a_bad_join(spark):
        result = testing.run_batch(pipeline, {"orders": [{"id": "1", "cents": 5}]}, spark=spark,
                                   faults=[testing.lose_rows("with_country", fraction=0.5, seed=1)])
        again = testing.replay(result)
        assert result.roots.failed == again.roots.acked

Each ``run_batch`` has a ledger of its own in an embedded PostgreSQL that all tests of a process
share, real Spark, and temporary folders that are removed when the process ends. Variables
``ACKLEDGER_*`` of the environment have no effect on it.
"""

import atexit
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.outcome.summary import RootCounts, summarize
from ledger.batch.records.payloads import keep_all
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.core.paths import literal
from ledger.core.probes import listening
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import BatchStatus
from ledger.errors import DeclarationError, suggestion
from ledger.execution import run_steps, settle_and_follow
from ledger.lineage.spark_faults import avoid_known_faults
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step
from ledger.settings import Settings
from ledger.sinks.folder import BATCH_FOLDER
from ledger.sinks.parquet.sink import ParquetSink
from ledger.sources.base import Source
from ledger.sources.files.source import FileSource
from ledger.sources.parsing.typed import struct
from ledger.sources.registry import source_of
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.queries import records, reports
from ledger.store.queries.batches import Batch, get_batch
from ledger.store.queries.records import Failure
from ledger.store.upgrade import upgrade
from ledger.testing.faults import Crash, Fault
from ledger.types.fitting import yielded

Rows = Sequence[Mapping[str, Any]] | DataFrame
START = datetime(2000, 1, 1, tzinfo=UTC)
_numbers = count(1)


@dataclass(frozen=True)
class BatchResult:
    """Result of a batch. ``rows``: by sink, its rows of the batch's original and its replays; of a
    state all rows.

    ``crashed``: a fault ended the run; ``resume`` continues it as Airflow's retry would. ``error``:
    the error that the ledger reported, None if the process died.
    """

    batch_id: int
    status: BatchStatus
    reason: str | None
    roots: RootCounts
    failed: list[Failure]
    rows: dict[str, list[dict[str, Any]]]
    crashed: bool
    error: Exception | None
    pipeline: Pipeline = field(repr=False)
    lab: "_Lab" = field(repr=False)


def run_batch(
    pipeline: Pipeline,
    sources: Mapping[str, Rows],
    *,
    references: Mapping[str, Rows] | None = None,
    spark: SparkSession | None = None,
    now: datetime | None = None,
    faults: Sequence[Fault] = (),
    after: BatchResult | None = None,
    params: Mapping[str, Any] | None = None,
) -> BatchResult:
    """Run one batch over given rows and settle it at ``now`` (default: the database's clock).

    ``sources``, ``references``: rows by name, as dicts or a DataFrame of the declared columns. A
    name without rows is empty, which fails a stage that reads the reference unless it is declared
    with ``allow_empty``. Timestamps without a zone are UTC. ``after``: continue in the ledger of an
    earlier result, with the next interval, for state that several batches share. ``params``: the
    run's parameters. Raises DeclarationError for an unknown name, and for a row that does not fit
    its source's schema.
    """
    lab = (
        after.lab
        if after is not None
        else _Lab(spark or build_session("ledger.testing", "local[2]"))
    )
    moved = lab.pipeline(pipeline, sources, references)
    number = next(_numbers)
    start = START + timedelta(days=number)
    interval = Interval(start, start + timedelta(days=1), params or {})
    key = RunKey("", f"run-{number}")
    return lab.run(
        moved,
        lambda job: open_batch(job.database, job.settings, job.pipeline, key, interval),
        faults,
        now,
    )


def replay(
    result: BatchResult,
    pipeline: Pipeline | None = None,
    *,
    references: Mapping[str, Rows] | None = None,
    now: datetime | None = None,
    faults: Sequence[Fault] = (),
    **selection: Any,
) -> BatchResult:
    """Replay the failed records of a batch and its replays, with the fixed ``pipeline`` if one is
    given.

    ``references``: by default those of the batch. ``selection``: as for
    ``ledger.core.run_request.Selection``. Raises NotReadyError if nothing is due.
    """
    lab = result.lab
    moved = result.pipeline
    if pipeline is not None or references is not None:
        moved = lab.pipeline(pipeline or result.pipeline, {}, references, result.pipeline)
    key = RunKey("", f"replay-{next(_numbers)}")
    choice = Selection(**selection)
    original, *_ = lab.database.transact(lambda c: reports.family(c, result.batch_id))
    return lab.run(
        moved,
        lambda job: open_replay(
            job.database, job.settings, job.pipeline, key, original, choice, now=now
        ),
        faults,
        now,
    )


def sweep(result: BatchResult, *, now: datetime | None = None) -> BatchResult:
    """Run the sweeper at ``now``, and return the batch's result: the sweeper settles what can be
    decided, and expires or abandons what took too long. ``resume`` then publishes what is acked,
    as the run does that the sweeper asks for.
    """
    sweep_once(result.lab.database, now=now)
    return result.lab.result(result.pipeline, result.batch_id)


def resume(result: BatchResult, *, now: datetime | None = None) -> BatchResult:
    """Continue a batch that crashed or waits at its first step that is not committed, and settle
    it.
    """
    lab = result.lab
    again = lambda job: job.database.transact(lambda c: get_batch(c, result.batch_id))  # noqa: E731
    return lab.run(result.pipeline, again, (), now)


class _LabSettings(Settings):
    """Settings of a test, without those of the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@cache
def _server() -> str:
    """Return the URL of a server that lives as long as the process."""
    home = Path(tempfile.mkdtemp(prefix="ackledger-testing-"))
    home.chmod(0o755)
    url = embedded.start(home)

    def end() -> None:
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)

    atexit.register(end)
    return url


class _Lab:
    """A ledger, a storage and a data folder for one batch and those after it."""

    def __init__(self, spark: SparkSession):
        avoid_known_faults(spark)
        self.spark = spark
        self._folder = Path(tempfile.mkdtemp(prefix="ackledger-lab-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        url = embedded.ensure_database(_server(), f"lab_{os.getpid()}_{next(_numbers)}")
        self.database = Database(url)
        upgrade(self.database)
        self.settings = _LabSettings(
            home=self._folder, storage=str(self._folder / "storage"), data=str(self._folder)
        )

    def pipeline(
        self,
        declared: Pipeline,
        sources: Mapping[str, Rows],
        references: Mapping[str, Rows] | None,
        before: Pipeline | None = None,
    ) -> Pipeline:
        """Return the pipeline with its sources, references and sinks in this lab's folders, every
        sink as Parquet. Without ``references`` it has those of the pipeline ``before``.
        """
        declared.steps()  # refuses what is no pipeline
        _check_names("source", sources, [step.name for step in declared.sources()])
        _check_names("reference", references or {}, declared.graph.references)
        moved: dict[str, Step] = {}
        for step in declared.sources():
            files = self._files(step.name, step.source, sources.get(step.name, ()))
            moved[step.name] = replace(step, source=files)
        for sink in declared.sinks():
            own = ParquetSink(
                f"sinks/{sink.name}",
                partition_by=sink.sink.partition_by,
                rebalance=getattr(sink.sink, "rebalance", True),
                dedup=sink.sink.dedup,
            )
            moved[sink.name] = replace(sink, sink=own)
        steps = [moved.get(name, step) for name, step in declared.graph.steps.items()]
        earlier = before.graph.references if before is not None and references is None else {}
        moved_references = {}
        for name, reference in declared.graph.references.items():
            if name in earlier:
                moved_references[name] = earlier[name]
                continue
            files = self._files(name, reference.source, (references or {}).get(name, ()))
            moved_references[name] = replace(reference, source=files)
        return declared.with_steps(steps, moved_references)

    def _files(self, name: str, source: Source, rows: Rows) -> Source:
        """Write rows to Parquet files, and return the source that reads them. Dicts are in two
        files, fewer than two in one; of a DataFrame there are as many files as Spark writes. Raises
        DeclarationError as ``_table`` does.
        """
        schema = _columns(name, source, rows)
        folder = self._folder / "sources" / f"{name}-{next(_numbers)}"
        if isinstance(rows, DataFrame):
            columns = (F.col(f"`{f.name}`").cast(f.dataType) for f in schema.fields)
            rows.select(*columns).write.parquet(str(folder))
        else:
            folder.mkdir(parents=True)
            table, half = _table(name, schema, rows), len(rows) // 2
            for number, part in enumerate((table[:half], table[half:])):
                if part.num_rows or number:
                    pq.write_table(part, folder / f"{number}.parquet")
        files = FileSource(f"{glob.escape(str(folder))}/*.parquet", schema=schema, format="parquet")
        return source_of(f"source {name!r}", files)

    def run(
        self,
        pipeline: Pipeline,
        opening: Callable[[Job], Batch],
        faults: Sequence[Fault],
        now: datetime | None,
    ) -> BatchResult:
        """Open, run and settle a batch among faults, and return its result."""
        batch, crashed, error = None, False, None
        expected = tuple(kind for fault in faults for kind in fault.ends_with)
        with ExitStack() as stack:
            job = Job(self.spark, self.database, self.settings, pipeline)
            for fault in faults:
                job = fault.change(replace(job, pipeline=fault.wrap(job.pipeline)))
                stack.enter_context(listening(fault.at))
            batch = opening(job)
            try:
                run_steps(job, batch.batch_id, lambda name, result: None)
                settle_and_follow(job, batch.batch_id, now=now)
            except Crash:
                crashed = True
            except expected as exc:
                crashed, error = True, exc
        return self.result(pipeline, batch.batch_id, crashed, error)

    def result(
        self,
        pipeline: Pipeline,
        batch_id: int,
        crashed: bool = False,
        error: Exception | None = None,
    ) -> BatchResult:
        """Return the result of a batch as it is now."""
        keep_all(self.database, None)
        summary = summarize(self.database, batch_id)
        failed = self.database.transact(
            lambda c: records.failed_in(c, batch_id), engine=self.database.payload_reader
        )
        return BatchResult(
            batch_id,
            summary.status,
            summary.held_reason,
            summary.roots,
            failed,
            {
                step.name: self._sink_rows(pipeline, step.name, batch_id)
                for step in pipeline.sinks()
            },
            crashed,
            error,
            pipeline,
            self,
        )

    def _sink_rows(self, pipeline: Pipeline, name: str, batch_id: int) -> list[dict[str, Any]]:
        """Return the rows of the sink: of the batch's original and its replays, or of a state."""
        folder = self._folder / "sinks" / name
        family = self.database.transact(lambda c: reports.family(c, batch_id))
        shown = [str(folder / f"{BATCH_FOLDER}={member}") for member in family]
        if pipeline.graph.is_stateful(name):
            shown = [str(path) for path in folder.glob(f"{BATCH_FOLDER}=*")]
        shown = [path for path in shown if any(Path(path).rglob("*.parquet"))]
        if not shown:
            return []
        frame = (
            self.spark.read.option("basePath", str(folder))
            .parquet(*literal(shown))
            .drop(BATCH_FOLDER)
        )
        return [row.asDict(recursive=True) for row in frame.collect()]


def _columns(name: str, source: Source, rows: Rows) -> StructType:
    """Return the columns of a source: those that it declares, or else those of its rows. Raises
    DeclarationError if neither has types.
    """
    if source.schema is not None:
        return struct(source.schema)
    if isinstance(rows, DataFrame):
        return rows.schema
    raise DeclarationError(
        f"source {name!r} takes its columns from a table, which a test does not read: give its rows"
        " as a DataFrame, which has columns with types"
    )


def _table(name: str, schema: StructType, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows in the types of the schema. Nulls are kept, whatever the schema declares.

    Raises DeclarationError for a column that the schema does not have, and for a value of another
    type.
    """
    for number, row in enumerate(rows, start=1):
        for column in row:
            if column not in schema.names:
                hint = suggestion(column, schema.names)
                raise DeclarationError(f"row {number} of {name!r} has a column {column!r}{hint}")
    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    values = [[row.get(column) for column in schema.names] for row in rows]
    columns, misfits = yielded(StructType(fields)).fit(values)
    for number, misfit in enumerate(misfits, start=1):
        if misfit is not None:
            reason = misfit.removeprefix("yielded ")
            raise DeclarationError(f"row {number} of {name!r}: {reason}")
    return pa.table(columns, names=schema.names)


def _check_names(kind: str, names: Mapping[str, Rows], declared: Any) -> None:
    for name in names:
        if name not in declared:
            raise DeclarationError(f"no {kind} {name!r}{suggestion(name, declared)}")
