"""What every Spark step shares: where it writes, what it reads, and the witness of what it wrote."""

from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ledger.database.connection import Database
from ledger.errors import IntegrityError
from ledger.manifest import DataFile, Manifest
from ledger.pipeline import Pipeline
from ledger.queries import runs
from ledger.settings import Settings
from ledger.spark.failures import is_spark_gone
from ledger.spark.session import SPARK_ERRORS
from ledger.stage_runs import OpenedRun

ANCHOR = "_anchor"
ANCHORS = "_anchors"
ROOT = "_root"
ROOTS = "_roots"
UNIT = "_unit"
PARENT = "_parent"
INPUT = "_input"
FAILED = "_failed"
DROPPED = "_dropped"
ERROR = "_error"
RAW = "_raw"
NAMES = "_names"  # the columns of the record's file, where they are read by name
MESSAGE = "_message"
FILE = "_file"  # of a source's snapshot: where the record was read
POSITION = "_position"
IDENTITY = "_identity"
DELIVERED = "_delivered_message"
CARRIED = (
    "_carried"  # the root of an earlier batch that a replayed record's rows are taken over from
)
RESERVED = frozenset(
    {
        ANCHOR,
        ANCHORS,
        ROOT,
        ROOTS,
        UNIT,
        PARENT,
        INPUT,
        FAILED,
        DROPPED,
        ERROR,
        RAW,
        NAMES,
        MESSAGE,
        FILE,
        POSITION,
        IDENTITY,
        DELIVERED,
        CARRIED,
    }
)

# How files are written. In a stage's output root and parent are runs of sorted integers: without a
# dictionary the v2 writer stores them as deltas, 10 MB where Spark's defaults take 38 (16 million
# rows). A snapshot has neither.
SNAPSHOT = {
    "compression": "zstd",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
STORED = {
    **SNAPSHOT,
    "parquet.writer.version": "v2",
    f"parquet.enable.dictionary#{ROOT}": "false",
    f"parquet.enable.dictionary#{PARENT}": "false",
}


@dataclass(frozen=True)
class Job:
    """The surroundings of a step: session, ledger, settings and pipeline."""

    spark: SparkSession
    database: Database
    settings: Settings
    pipeline: Pipeline

    def folder(self, run: OpenedRun) -> str:
        """Where a run writes: nobody else ever does."""
        return (
            f"{self.settings.storage_root()}/{self.pipeline.name}/{run.stage}"
            f"/batch={run.batch.batch_id}/run={run.run_id}"
        )

    def manifest(self, run_id: int) -> Manifest:
        """The files of a committed run."""
        rows = self.database.transact(lambda c: runs.files(c, run_id))
        return Manifest(
            tuple(DataFile(row.path, row.bytes, row.rows, row.first_position) for row in rows)
        )


def file_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """The manifest as rows for the ledger."""
    return [asdict(file) for file in manifest.files]


def observed(observation: Observation, nothing: dict[str, Any]) -> dict[str, Any]:
    """What an action observed; waits for it. ``nothing``: what there is to an empty frame, which adaptive execution
    cuts out of the plan, its observation with it. Were it cut out for any other reason, that would
    differ from what else is counted. Raises what Spark raises if it is gone."""
    try:
        return dict(observation.get) or nothing  # of Spark Connect there is nothing to get then
    except SPARK_ERRORS as exc:
        if is_spark_gone(exc):
            raise
        return nothing


_COUNTS = ("rows", "xor", "failed", "dropped", "rooted", "passed")


class Witness:
    """Counts rows, and XORs hashes of chosen columns, where a frame passes by.

    ``failed``: the column that holds the reason of a row that fails, if the frame has it. ``roots``: count
    the rows that have a root, too; ``passed``: and those of them that go on. Each count costs every row.

    Two witnesses of the same rows are equal, whatever the order; see ARCHITECTURE's commit
    protocol: what a job meant to write is witnessed where it is written.
    """

    def __init__(
        self, *columns: str, failed: str = FAILED, roots: bool = False, passed: bool = False
    ):
        self._columns = columns
        self._failed = failed
        self._roots = roots
        self._passed = passed
        self._name = str(uuid4())
        self._observation = Observation(self._name)

    def watch(self, frame: DataFrame) -> DataFrame:
        """The same frame, observed when it is next executed."""
        mixed = F.bit_xor(F.xxhash64(*self._columns)) if self._columns else F.lit(0)
        return frame.observe(
            self._observation,
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(mixed, F.lit(0)).alias("xor"),
            _non_null(frame, self._failed).alias("failed"),
            _non_null(frame, DROPPED).alias("dropped"),
            *self._rooted(frame),
        )

    def within(self, frame: DataFrame) -> bool:
        """Whether ``frame`` is made of what this witness watches: else it would wait for ever."""
        with redirect_stdout(StringIO()) as plan:
            frame.explain()
        return self._name in plan.getvalue()

    @property
    def rows(self) -> int:
        """Rows seen; waits for the action."""
        return self.seen[0]

    @property
    def failed(self) -> int:
        """Rows seen that fail with a reason; waits for the action."""
        return self._metrics()["failed"]

    @property
    def dropped(self) -> int:
        """Rows seen that stand for an input which is acked without an output; waits for the action."""
        return self._metrics()["dropped"]

    @property
    def rooted(self) -> int:
        """Rows seen that have a root; waits for the action."""
        return self._metrics()["rooted"]

    @property
    def passed(self) -> int:
        """Rows seen that have a root, and neither fail nor are dropped; waits for the action."""
        return self._metrics()["passed"]

    @property
    def seen(self) -> tuple[int, int]:
        """Rows and XOR seen; waits for the action."""
        metrics = self._metrics()
        return metrics["rows"], metrics["xor"]

    def _rooted(self, frame: DataFrame) -> list[Column]:
        """Counts of the rows that have a root, where a frame has the column."""
        if ROOT not in frame.columns:
            return []
        passes = F.col(ROOT).isNotNull()
        for mark in (FAILED, DROPPED):
            if mark in frame.columns:
                passes &= F.col(mark).isNull()
        counted = [F.count(ROOT).alias("rooted")] if self._roots else []
        return [*counted, *([F.count_if(passes).alias("passed")] if self._passed else [])]

    def _metrics(self) -> dict[str, int]:
        seen = observed(self._observation, dict.fromkeys(_COUNTS, 0))
        return {name: int(value) for name, value in seen.items()}


def _non_null(frame: DataFrame, column: str) -> Column:
    return F.count(F.col(column) if column in frame.columns else F.lit(None))


def require_equal(what: str, wrote: object, found: object) -> None:
    """Raise IntegrityError unless what was written is what is found."""
    if wrote != found:
        raise IntegrityError(
            f"{what}: wrote {wrote}, found {found}. A file was lost or changed under the run: run the step again"
        )
