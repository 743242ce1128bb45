"""The kind of source that is files, read by interval or each once."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ledger.core import path_templates
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import DeclarationError, suggestion
from ledger.sources import listing
from ledger.sources.base import Claim, Scope, Sought, Source, SourceReader
from ledger.sources.claims import count_records, new_files
from ledger.sources.files.accepted_types import check_types
from ledger.sources.files.dialect import Dialect
from ledger.sources.files.source import FileSource
from ledger.types.ddl import field_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ledger.settings import Settings

_log = logging.getLogger(__name__)
_FIXED_IS_NEW = "a file that was fixed is a new one, which its next batch takes as a whole"


class Files(Source):
    """The ``Source`` of a FileSource."""

    def __init__(self, declared: FileSource):
        check_types(declared.path, declared.format, declared.schema)
        _check_optional(declared)
        self._declared = declared
        self.schema = declared.schema
        self.place = declared.path
        self.incremental = declared.incremental
        self.not_reread = _FIXED_IS_NEW if declared.incremental else None
        self.layout = _layout(declared)

    def path(self, settings: "Settings", interval: Interval) -> str:
        """The glob of the interval's files."""
        pattern = path_templates.render(self.place, interval.start, interval.end, interval.params)
        return settings.data_path(pattern)

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Return how many files match, in words. Raises InputError if none matches and one is due.

        If the path depends on an interval that is not given, no file is looked for.
        """
        if interval is not None:
            path = self.path(settings, interval)
        elif path_templates.is_fixed(self.place):
            path = settings.data_path(self.place)
        else:
            return f"{self.place} depends on the run: give --from and --to to look for its files"
        none_due = self.incremental or self._declared.allow_missing
        count = len(listing.find_files(name, path, allow_missing=none_due))
        matching = quantity(count, "file matches", "files match")
        return f"{matching} {path}"

    def is_empty(self, settings: "Settings", interval: Interval | None) -> bool:
        """Return whether no file of the interval has a record. Log files of 0 bytes beside others,
        which some writers make and others cut off."""
        if interval is None and not path_templates.is_fixed(self.place):
            return False
        path = settings.data_path(self.place) if interval is None else self.path(settings, interval)
        declared = self._declared
        header = declared.format == "csv" and bool(declared.header)
        files = listing.list_files(path)
        if not any(listing.has_records(file, declared.format, header=header) for file in files):
            return True
        for file in files:
            if file.bytes == 0:
                _log.warning("%s: a file of 0 bytes, beside others with records", file.path)
        return False

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """New files, or the interval: its records are at most the lines of its text, or what the
        footers of its Parquet files state.
        """
        count = partial(listing.most_records, format=self._declared.format, limit=room)
        if self.incremental:
            return new_files(scope, room, count)
        if room is None:
            return scope.claim()
        return scope.claim(records=count_records(listing.list_files(scope.path), count, room))

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of the files."""
        from ledger.sources.files.reader import Reader

        return Reader(spark, self._declared)

    @classmethod
    def lines_of(
        cls, path: str, sought: Sequence[Sought], layout: Mapping[str, Any]
    ) -> Mapping[int, int]:
        """The lines of CSV and JSON, where a record is a line that still holds what it held."""
        from ledger.sources.files import origin

        return origin.lines_of(path, sought, layout)


def _check_optional(declared: FileSource) -> None:
    """Raise DeclarationError if an optional column is none of the schema's, and no field of one."""
    paths = field_paths(declared.schema)
    names = None if paths is None else [".".join(path) for path in paths]  # as ``absent.shown``
    for name in declared.optional:
        if names is not None and name not in names:
            raise DeclarationError(
                f"optional column {name!r} of {declared.path!r}: expected a column of the schema"
                f"{suggestion(name, names)}"
            )


def _layout(declared: FileSource) -> dict[str, Any]:
    """Return the layout of the files' text: how it is cut into records and fields."""
    dialect = Dialect({**declared.options, "null_value": declared.null_value})
    layout: dict[str, Any] = {"format": declared.format, **dialect.layout}
    named = declared.format == "json" or declared.by_name
    closed = {} if named else {"closed": True}
    return layout | closed | ({"multiline": True} if declared.multiline else {})
