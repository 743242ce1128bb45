"""Snapshots: how a batch can read its records again, which is a copy or a version."""

from abc import ABC, abstractmethod

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR
from ledger.core.paths import literal
from ledger.sources.base import Claim, SourceReader, WrittenFiles
from ledger.sources.version_rows import version_rows
from ledger.spark.job import SNAPSHOT, Witness, write_files
from ledger.storage import stores
from ledger.storage.folders import private_output
from ledger.storage.manifest import Manifest, take_manifest
from ledger.storage.versions import Version

# Untracked records lie in a folder of their own, whose files come last: roots are dense over the
# others.
UNTRACKED_COLUMN = "_ackledger_untracked"
UNTRACKED = f"/{UNTRACKED_COLUMN}=true/"
_WHOLE = {**SNAPSHOT, "maxRecordsPerFile": "0"}  # a block's records lie in one file


class Snapshot(ABC):
    """The records of one run, as its batch can read them again. ``folder``: the run's own."""

    def __init__(self, folder: str):
        self.folder = folder

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of records."""

    @property
    @abstractmethod
    def failed(self) -> int:
        """Number of records that did not parse."""

    @abstractmethod
    def manifest(self) -> Manifest:
        """Return the files that hold the records."""

    @abstractmethod
    def stored(self, spark: SparkSession) -> DataFrame:
        """Return the records with ``FILE``, if they are from files."""


class ClaimedVersion(Snapshot):
    """Records in files that do not change. Each fits the schema.

    ``rows``: their number, as Spark has counted them.
    """

    rows = 0
    failed = 0

    def __init__(self, folder: str, version: Version, rows: int):
        super().__init__(folder)
        self._version = version
        self.rows = rows

    def manifest(self) -> Manifest:
        """Describe the version in the run's folder, and return its files."""
        with private_output(self.folder):
            return self._version.describe(self.folder)

    def stored(self, spark: SparkSession) -> DataFrame:
        """Return the rows of the version's files."""
        return version_rows(spark, self._version, with_file=True)


class Copy(Snapshot):
    """Records that are written to the folder of one run. ``track``: SQL expression that selects the
    tracked records; None: all records.
    """

    def __init__(self, folder: str, track: str | None):
        super().__init__(folder)
        self._track = track
        self._witness = Witness(failed=ERROR)
        self._written: WrittenFiles | None = None

    def written_by(self, reader: SourceReader, claim: Claim) -> bool:
        """Let the source's reader write its records itself. Return whether it did."""
        self._written = reader.write(claim, self.folder)
        return self._written is not None

    def write(self, records: DataFrame) -> None:
        """Write the records. Untracked records come last."""
        watched = self._witness.watch(records)
        if self._track is None:
            write_files(watched, self.folder, _WHOLE)
            return
        marked = watched.withColumn(UNTRACKED_COLUMN, ~is_tracked(self._track))
        write_files(marked, self.folder, by=[UNTRACKED_COLUMN])
        # A task writes both kinds under one name: those of untracked records get their own.
        untracked = f"{self.folder}{UNTRACKED}".rstrip("/")
        for file in stores.entries(untracked):
            if file.name.startswith("part-"):
                stores.move(file.path, f"{untracked}/untracked-{file.name}")
        if self._witness.rows == 0:
            # Partitioned, nothing writes no file, and a snapshot has its schema from one.
            nothing = watched.sparkSession.createDataFrame([], watched.schema)
            write_files(nothing, self.folder)

    @property
    def rows(self) -> int:
        """Number of records that were handed to the writer."""
        return self._witness.rows if self._written is None else self._written.rows

    @property
    def failed(self) -> int:
        """Number of these records that did not parse."""
        return self._witness.failed if self._written is None else self._written.failed

    def manifest(self) -> Manifest:
        """Return the files of the copy. If a reader wrote them, only its reported files
        count.
        """
        names = None if self._written is None else frozenset(self._written.names)
        return take_manifest(self.folder, names)

    def stored(self, spark: SparkSession) -> DataFrame:
        """Return the records of the copy."""
        return spark.read.parquet(*literal([self.folder]))


def is_tracked(track: str) -> Column:
    """Return whether a record is tracked: it did not parse, or the expression ``track`` is not
    false for it.
    """
    return F.col(ERROR).isNotNull() | F.coalesce(F.expr(track), F.lit(True))
