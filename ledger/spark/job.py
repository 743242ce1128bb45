"""Common parts of all Spark steps: folders, inputs, and the witness of the rows that they wrote."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from threading import Thread
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import DROPPED, FAILED, PARENT, ROOT
from ledger.deltas.stored import LOW_BITS, Checksum
from ledger.errors import IntegrityError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep
from ledger.settings import Settings
from ledger.sinks.base import Publisher
from ledger.spark.failures import is_spark_gone
from ledger.spark.session import SPARK_ERRORS
from ledger.storage.manifest import Manifest, check_files, version_file
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.queries.runs import Run

# How files are written. In a stage's output root and parent are runs of sorted integers: without a
# dictionary the v2 writer stores them as deltas, 10 MB where Spark's defaults take 38 (16 million
# rows). A snapshot has neither. Hadoop's committer renames files, not folders, which a store may
# refuse or copy: no reader opens the folder until the manifest says what is in it.
SNAPSHOT = {
    "compression": "zstd",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
STORED = {
    **SNAPSHOT,
    "parquet.writer.version": "v2",
    f"parquet.enable.dictionary#{ROOT}": "false",
    f"parquet.enable.dictionary#{PARENT}": "false",
}


FEW_ROWS = 100_000  # deltas for a source that are posted with the commit: all of its spans
# Of the ledger's columns and deltas in memory: as much is folded in the driver. 16 million rows of
# a stage, eight to a root, have 320 MiB, and lie in 10 MB of files.
DRIVER_BYTES = 1 << 29


def _unchanged(step: str, rows: DataFrame) -> DataFrame:
    return rows


@dataclass(frozen=True)
class Job:
    """The session, ledger, settings and pipeline of a step.

    ``on_fenced``: called in another thread once a newer attempt owns a step of the driver; None:
    the session's jobs are cancelled.

    The others are for tests.

    ``few_rows``: number of deltas for each source of the batch that are posted with the commit, and
    not before it.
    ``driver_bytes``: bytes of the ledger's columns and deltas up to which these are folded in the
    driver, and not in the executors.
    ``on_read``: changes the rows that a step reads.
    ``on_write``: changes the rows that a sink hands to its writer.
    """

    spark: SparkSession
    database: Database
    settings: Settings
    pipeline: Pipeline
    on_fenced: Callable[[], None] | None = None
    few_rows: int = FEW_ROWS
    driver_bytes: int = DRIVER_BYTES
    on_read: Callable[[str, DataFrame], DataFrame] = _unchanged
    on_write: Callable[[str, DataFrame], DataFrame] = _unchanged

    @property
    def sees_plans(self) -> bool:
        """Whether the plans of its frames are in this process: those of Spark Connect are not."""
        return isinstance(self.spark, SparkSession)

    def folder(self, run: OpenedRun) -> str:
        """Return the folder that a run writes to, and no other run."""
        return (
            f"{self.settings.storage_root()}/{self.pipeline.name}/{run.step}"
            f"/batch={run.batch.batch_id}/run={run.run_id}"
        )

    def root_files(self, run: OpenedRun) -> str:
        """Return the folder for a run's files of deltas by root, and for the files of its fold's
        tasks.
        """
        return (
            f"{self.settings.storage_root()}/{self.pipeline.name}/_roots"
            f"/batch={run.batch.batch_id}/run={run.run_id}"
        )

    def written_to(self, run: OpenedRun) -> str | None:
        """Return the folder that a run writes to; for a sink, the folder in which it stages.

        None: the sink stages in the folder of a table that the batch does not know, because the
        sink was of another kind when the batch was opened.
        """
        if not self.pipeline.step(run.step).is_published:
            return self.folder(run)
        step = self.pipeline.sink_named(run.step)
        declared = next(each for each in run.batch.topology if each.name == run.step)
        if step.sink.in_place and not declared.in_place:
            return None
        return self.publisher(step).staging(run.batch.batch_id, run.run_id)

    def publisher(self, step: SinkStep) -> Publisher:
        """Return the publisher of a sink, without connecting to anything."""
        return step.sink.publisher(self.settings, self.pipeline.name, step.name)

    def run(self, run_id: int) -> Run:
        """Return the run with this number."""
        return self.database.transact(lambda c: runs.get_run(c, run_id))

    def manifest(self, run_id: int) -> Manifest:
        """Return the files of a committed run. Raises LostFileError unless all are there."""
        manifest = Manifest(self.database.transact(lambda c: runs.files(c, run_id)))
        check_files(manifest)
        return manifest

    def require_unchanged(self, run_ids: Iterable[int]) -> None:
        """Raise LostFileError unless the files of each version that one of these runs describes are
        there, and as they were. Called once rows have been read, because Spark opens the files
        later than ``manifest`` looks at them. Files that a run itself wrote do not change.
        """
        for run_id in run_ids:
            manifest = Manifest(self.database.transact(partial(runs.files, run_id=run_id)))
            if version_file(manifest) is not None:
                check_files(manifest)

    def require_inputs(self, run: OpenedRun) -> None:
        """Call ``require_unchanged`` for the sources that a run has read."""
        read = run.inputs.items()
        self.require_unchanged(
            each.step_run_id for name, each in read if self.pipeline.step(name).is_source
        )


def write_files(
    rows: DataFrame, folder: str, options: Mapping[str, str] = SNAPSHOT, by: Sequence[str] = ()
) -> None:
    """Append rows to a run's own folder as Parquet files, partitioned by the columns ``by``."""
    writer = rows.write.mode("append").options(**options)
    (writer.partitionBy(*by) if by else writer).parquet(folder)


_COUNTS = ("rows", "xor", "sum", "failed", "dropped")


class Witness:
    """Counts rows, and XORs and sums hashes of chosen columns, where a frame passes by.

    Two witnesses of the same rows are equal, whatever the order: what a job meant to write is
    witnessed where it is written, before it is read back. Each count costs every row.

    ``failed``: the column that holds the reason of a row that fails, if the frame has it.
    ``mixing``: returns the columns that replace XOR and sum of the hashes of a frame's rows.
    ``counting``: further counts of a frame's rows, by name.
    """

    def __init__(
        self,
        *columns: str,
        failed: str = FAILED,
        mixing: Callable[[DataFrame], tuple[Column, Column]] | None = None,
        counting: Mapping[str, Callable[[DataFrame], Column]] | None = None,
    ):
        self._columns = columns
        self._failed = failed
        self._mixing = mixing
        self._counting = counting or {}
        self._name = str(uuid4())
        self._observation = Observation(self._name)

    def watch(self, frame: DataFrame) -> DataFrame:
        """Return the same frame, whose next execution is observed."""
        mixed, summed = F.lit(0), F.lit(0)
        if self._columns:
            hashed = F.xxhash64(*self._columns)
            mixed, summed = F.bit_xor(hashed), F.sum(hashed.bitwiseAND(F.lit(LOW_BITS)))
        if self._mixing is not None:
            mixed, summed = self._mixing(frame)
        return frame.observe(
            self._observation,
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(mixed, F.lit(0)).alias("xor"),
            F.coalesce(summed, F.lit(0)).alias("sum"),
            _non_null(frame, self._failed).alias("failed"),
            _non_null(frame, DROPPED).alias("dropped"),
            *(count(frame).alias(name) for name, count in self._counting.items()),
        )

    def within(self, frame: DataFrame) -> bool:
        """Whether ``frame`` is made of what this witness watches: else it would wait for ever."""
        return self.occurrences(frame) > 0

    def occurrences(self, frame: DataFrame) -> int:
        """Return how often the plan of ``frame`` has what this witness watches. Where Spark reads
        it again instead of computing it again, it counts once.
        """
        with redirect_stdout(StringIO()) as plan:
            frame.explain()
        return plan.getvalue().count(self._name)

    def answers(self, seconds: float) -> bool:
        """Return whether its counts are there within so many seconds after the action has ended.

        Adaptive execution may leave out what is watched: Spark 4.0 then never answers
        (SPARK-54620).
        """
        waiting = Thread(target=self._metrics, name=f"observing-{self._name}", daemon=True)
        waiting.start()
        waiting.join(seconds)
        return not waiting.is_alive()

    @property
    def rows(self) -> int:
        """Number of observed rows. Waits for the action."""
        return self.checksum.rows

    @property
    def failed(self) -> int:
        """Number of observed rows that fail with a reason. Waits for the action."""
        return self._metrics()["failed"]

    @property
    def dropped(self) -> int:
        """Number of observed rows that stand for an input acked without an output. Waits for the
        action.
        """
        return self._metrics()["dropped"]

    @property
    def counted(self) -> dict[str, int]:
        """Observed counts of ``counting``, by name. Waits for the action."""
        metrics = self._metrics()
        return {name: metrics[name] for name in self._counting}

    @property
    def checksum(self) -> Checksum:
        """Checksum of the observed rows: number, XOR and sum. Waits for the action."""
        metrics = self._metrics()
        return Checksum(metrics["rows"], metrics["xor"], metrics["sum"])

    def _metrics(self) -> dict[str, int]:
        """Wait for the action, and return the counts. Raises Spark's error if Spark has ended.

        Adaptive execution may remove an empty frame from the plan, and its observation with it.
        Then all counts are 0. If a frame with rows were removed, they would differ from others.
        """
        nothing = dict.fromkeys((*_COUNTS, *self._counting), 0)
        try:
            counts = dict(self._observation.get) or nothing  # Spark Connect then has none
        except SPARK_ERRORS as exc:
            if is_spark_gone(exc):
                raise
            counts = nothing
        return {name: int(value) for name, value in counts.items()}


def _non_null(frame: DataFrame, column: str) -> Column:
    return F.count(F.col(column) if column in frame.columns else F.lit(None))


def require_equal(what: str, wrote: object, actual: object) -> None:
    """Raise IntegrityError unless the two checksums are equal. ``what``: the rows, for the
    message.
    """
    if wrote != actual:
        raise IntegrityError(
            f"{what}: wrote {wrote}, found {actual}. A file was lost or changed under the run: run"
            " the step again"
        )
