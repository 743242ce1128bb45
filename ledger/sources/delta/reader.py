"""The reader of a Delta table that a DeltaSource declares."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ledger.core.column_names import ERROR, FILE, RAW
from ledger.errors import InputError
from ledger.sources.base import Claim, SourceReader
from ledger.sources.delta.log import TableLog, bare, require_offset
from ledger.sources.delta.source import DeltaSource
from ledger.sources.parsing.typed import check_schema, checked, no_rows, parsed_again
from ledger.sources.version_files import ListedFile, TakenVersion, take_version
from ledger.sources.version_rows import version_rows
from ledger.storage.versions import Version

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _ClaimedRows:
    """The claimed rows. ``deleted``: by path, the indexes of rows that are deleted."""

    files: TakenVersion
    deleted: Mapping[str, Sequence[int]]

    @property
    def rows(self) -> int:
        """Number of rows that are not deleted."""
        return self.files.version.rows - sum(map(len, self.deleted.values()))


class DeltaReader(SourceReader):
    """Reader of one Delta table."""

    def __init__(self, spark: SparkSession, source: DeltaSource):
        self._spark = spark
        self._source = source
        self._taken: _ClaimedRows | None = None  # by ``version`` or ``records``

    def describe(self, claim: Claim, stored: StructType | None = None) -> None:
        """Learn the schema of the claimed version, or of the newest. If the table is gone, it is
        that of ``stored`` records.
        """
        try:
            log = self._log(claim)
            schema = StructType.fromJson(json.loads(log.schema_json))
            self.named_in_paths = log.partition_by
        except InputError as exc:
            if stored is None:
                raise
            _log.warning("%s. Records are read again with the columns that are stored", exc)
            schema = stored
        check_schema(schema)
        self.schema = schema

    def version(self, claim: Claim) -> Version | None:
        """Return the claimed files. Return None, and log why, if rows of them are deleted or may
        not fit the table's schema.
        """
        taken = self._take(claim)
        why = taken.files.misfit
        if taken.deleted:
            why = f"{len(taken.deleted)} of its files have deletion vectors"
        if why is None:
            self._taken = taken
            return taken.files.version
        _log.warning("%s is copied: %s", taken.files.version.about.name, why)
        return None

    def records(self, claim: Claim) -> DataFrame:
        """Return the claimed rows: the table's columns, ``RAW``, ``ERROR`` and ``FILE``. If rows
        are deleted, there is no ``FILE``, because the number of a row in its file is not known.
        """
        self._taken = self._take(claim)
        version = self._taken.files.version
        if not version.files:
            return checked(no_rows(self._spark, self.schema), self.schema)
        deleted = self._taken.deleted
        rows = version_rows(self._spark, version, deleted=deleted, with_file=not deleted)
        names = [f"`{name}`" for name in self.schema.names]
        return checked(rows, self.schema).select(*names, RAW, ERROR, *([] if deleted else [FILE]))

    def check(self, claim: Claim) -> None:
        """Read the footers of the files. Raises InputError as ``records`` does."""
        if claim.end is not None or not self._source.incremental:
            self._take(claim)
        else:
            self._log(claim)

    def check_read(self, source: str, rows: int, stored: Callable[[], DataFrame]) -> None:
        """Raise InputError if Spark read another number of rows than the footers and the deletion
        vectors state.
        """
        if self._taken is not None and rows != self._taken.rows:
            raise InputError(
                f"source {source!r}: {self._taken.files.version.about.name}: expected"
                f" {self._taken.rows} rows by the footers of its files, and Spark read {rows}."
                " Run this again. If it repeats, write the table again"
            )

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Return stored rows in the schema. A value that does not fit fails its record."""
        return parsed_again(stored, self.schema)

    def _log(self, claim: Claim) -> TableLog:
        """Return the claimed version; without one the declared version, or the newest."""
        for offset in (claim.start, claim.end):
            if offset is not None:
                require_offset(claim.source, offset)
        version = self._source.version if claim.end is None else claim.end["version"]
        log = TableLog(claim.path, version)
        if claim.end is not None and claim.end["table"] != log.table_id:
            raise InputError(
                f"source {claim.source!r}: Delta table {log.path} was made again since its version"
                f" {version} was claimed: expected the id {claim.end['table']}, found"
                f" {log.table_id}. Once the batch is abandoned, clear its run: it claims the new"
                " table then"
            )
        return log

    def _take(self, claim: Claim) -> _ClaimedRows:
        """Look at the claimed files."""
        log = self._log(claim)
        about = log.about(self._source)
        if self._source.incremental and claim.end is None:
            return _ClaimedRows(take_version(about, self.schema, []), {})
        added = log.files() if claim.start is None else log.appended(claim.start["version"])
        listed = [ListedFile(*each) for each in zip(added.paths, added.sizes, strict=True)]
        taken = take_version(about, self.schema, listed, added.values)
        deleted = log.deleted()
        paths = {bare(path): path for path in added.paths}
        if claim.start is None and not deleted.keys() <= paths.keys():
            raise InputError(
                f"{log.name}: expected deletion vectors of its files, found one of"
                f" {min(deleted.keys() - paths.keys())}, which is not one of them. Write the"
                " table's rows to another table, and read that one"
            )
        own = {paths[path]: rows for path, rows in deleted.items() if path in paths}
        return _ClaimedRows(taken, own)
