"""The kind of source that is a Delta table, read by versions."""

from typing import TYPE_CHECKING, Any

from ledger.core import path_templates
from ledger.core.requirements import require_package
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import InputError
from ledger.sources.base import Claim, Scope, Source, SourceReader
from ledger.sources.delta.source import DeltaSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ledger.settings import Settings
    from ledger.sources.delta.log import TableLog


class DeltaVersions(Source):
    """The ``Source`` of a DeltaSource."""

    schema = None
    describes_itself = True

    def __init__(self, declared: DeltaSource):
        self._declared = declared
        self.place = declared.path
        self.incremental = self.by_offset = declared.incremental
        if declared.incremental:
            self.not_reread = "a corrected record is a change, which an incremental source refuses"
        elif declared.version is not None:
            self.not_reread = f"it reads version {declared.version}, which does not change"

    def path(self, settings: "Settings", interval: Interval) -> str:
        """Return the folder of the interval's table."""
        path = path_templates.render(self.place, interval.start, interval.end, interval.params)
        return settings.table_path(path).rstrip("/")

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Return the version that is read, and the number of its files. Raises InputError unless
        the table is there and can be read.

        If the path depends on an interval that is not given, no table is looked for.
        """
        if interval is None and not path_templates.is_fixed(self.place):
            return f"{self.place} depends on the run: give --from and --to to look for its table"
        log = self._log(settings, interval)
        files = quantity(len(log.files().paths), "file", "files")
        if self.incremental:
            files += "; what was appended is looked at when a batch opens"
        return f"{log.name} has {files}"

    def is_empty(self, settings: "Settings", interval: Interval | None) -> bool:
        """Return whether the version is certain to have no rows."""
        if interval is None and not path_templates.is_fixed(self.place):
            return False
        return self._log(settings, interval).rows() == 0

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """Claim a version: the declared one, or the newest; of an incremental source the newest
        that has room for the rows appended since ``start``.
        """
        log = self._opened(scope.path)
        if start is None:
            return scope.claim(end=log.offset, records=None if room is None else log.rows())
        from ledger.sources.delta.log import require_offset

        require_offset(scope.source, start)
        if start["table"] != log.table_id or start["version"] > log.version:
            raise InputError(
                f"source {scope.source!r}: Delta table {log.path} is not the table that earlier"
                f" batches have read up to version {start['version']}: expected the id"
                f" {start['table']}, found {log.table_id} at version {log.version}. If the table"
                " was made again, declare it under a new name, whose first batch reads all of it"
            )
        if room is None:
            return scope.claim(end=log.offset)
        end, records = start, 0
        for commit in log.commits(start["version"]):
            rows = room + 1 if commit.rows is None else commit.rows
            if records and records + rows > room:
                break
            records += rows
            end = {**start, "version": commit.version}
        return scope.claim(end=end, records=records)

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of the table."""
        from ledger.sources.delta.reader import DeltaReader

        self._require_package()
        return DeltaReader(spark, self._declared)

    def _log(self, settings: "Settings", interval: Interval | None) -> "TableLog":
        if interval is None:
            return self._opened(settings.table_path(self.place))
        return self._opened(self.path(settings, interval))

    def _opened(self, path: str) -> "TableLog":
        from ledger.sources.delta.log import TableLog

        self._require_package()
        return TableLog(path, self._declared.version)

    def _require_package(self) -> None:
        require_package("deltalake", f"a DeltaSource, {self.place},")
