"""The kind of source that is files, read by interval or each file once."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ledger.core import path_templates
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import DeclarationError, suggestion
from ledger.sources import listing
from ledger.sources.base import Claim, Scope, Sought, Source, SourceReader
from ledger.sources.files.format import Dialect
from ledger.sources.files.source import FileSource
from ledger.types.ddl import columns, field_paths, parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from ledger.settings import Settings

_log = logging.getLogger(__name__)
_FIXED_IS_NEW = "a file that was fixed is a new one, which its next batch takes as a whole"
_AS_TEXT = "declare STRING, and parse it in a stage"
# Types of which Spark cannot write a snapshot, and those that Arrow does not hand to Spark.
_NOWHERE = r"interval|decimal\(0(,0)?\)"
_NOT_IN_TEXT = rf"{_NOWHERE}|void|geo(metry|graphy)\(.*\)|interval (year|month)( to month)?"
_REFUSED = {"csv": rf"{_NOT_IN_TEXT}|array|map|struct", "json": _NOT_IN_TEXT, "parquet": _NOWHERE}


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
        dialect = Dialect({**declared.options, "null_value": declared.null_value})
        layout: dict[str, Any] = {"format": declared.format, **dialect.layout}
        if declared.format != "json" and not declared.by_name:
            layout["closed"] = True
        self.layout = layout | ({"multiline": True} if declared.multiline else {})

    def path(self, settings: "Settings", interval: Interval) -> str:
        """Return the glob of the interval's files."""
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
        """Claim new files, or the interval.

        ``records`` of the claim are the lines of its text files, or the rows that its Parquet
        footers state.
        """
        count = partial(listing.most_records, format=self._declared.format, limit=room)
        if self.incremental:
            return listing.new_files(scope, room, count)
        if room is None:
            return scope.claim()
        return scope.claim(
            records=listing.count_records(listing.list_files(scope.path), count, room)
        )

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of the files."""
        from ledger.sources.files.reader import Reader

        return Reader(spark, self._declared)

    @classmethod
    def lines_of(
        cls, path: str, sought: Sequence[Sought], layout: Mapping[str, Any]
    ) -> Mapping[int, int]:
        """Return the lines of CSV and JSON records that are still in the file; see
        ``Source.lines_of``.
        """
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


def check_types(path: str, format: str, schema: "StructType | str") -> None:
    """Raise DeclarationError for a type that the records of a format cannot hold, at any depth, or
    that would change a value."""
    kinds: Iterable[tuple[str, DataType | str]]
    if isinstance(schema, str):
        kinds = (columns(schema) or {}).items()
    else:
        kinds = [(field.name, field.dataType) for field in schema.fields]
    for name, kind in kinds:
        for wrong in _faults(format, kind):
            raise DeclarationError(f"column {name!r} of {path!r}: {wrong}")


def _faults(format: str, kind: "DataType | str") -> Iterator[str]:
    name, parts = parts_of(kind)
    if format != "parquet" and name == "variant":
        yield (
            f"expected no VARIANT in {format}, which would round numbers: declare STRING, which"
            " keeps them as they are written, and call try_parse_json in a stage"
        )
    if re.fullmatch(_REFUSED[format], re.sub(r" ?([(,)]) ?", r"\1", name)):
        yield f"expected a type that {format} can hold, found {name.upper()}: {_AS_TEXT}"
    if format == "json" and " collate " in name:
        yield (
            f"expected no collation in json, found {name.upper()}: declare STRING, and collate it"
            " in a stage"
        )
    if format == "json" and name == "map":
        key, _ = parts_of(parts[0][1])
        if key != "string":
            yield (
                f"expected keys of type STRING in a MAP of json, found {key.upper()}: declare"
                " MAP<STRING, ...>, and cast its keys in a stage"
            )
    if name == "struct" and not parts:
        yield "expected a STRUCT with fields, found none"
    for _, part in parts:
        yield from _faults(format, part)
