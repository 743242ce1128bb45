"""Files as a source, read by interval or each once: their declaration, and the kind of source."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ledger.core import path_templates
from ledger.core.declarations import Fault, check
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import DeclarationError, suggestion
from ledger.sources import listing
from ledger.sources.base import Claim, Scope, Sought, Source, SourceReader
from ledger.sources.files.format import Dialect
from ledger.sources.parsing import patterns
from ledger.types.ddl import columns, field_paths, parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from ledger.settings import Settings

_log = logging.getLogger(__name__)

FORMATS = ("csv", "json", "parquet")
HEADERS = (True, False, "by_name")

_TIME_FORMATS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
# Options of Spark's readers that neither lose records nor change values.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "csv": ("sep", "quote", "escape", "emptyValue", *_TIME_FORMATS),
    "json": (
        "allowBackslashEscapingAnyCharacter",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        *_TIME_FORMATS,
    ),
    "parquet": (),
}
_UTF8 = "files are read as UTF-8, so convert others, for example with iconv"
_INSTEAD = {
    "multiline": "declare the source with multiline=True",
    "header": "declare the source with header=True, header=False or header='by_name'",
    "nullvalue": "declare the source with null_value=...",
    "delimiter": "it is called 'sep'",
    "encoding": _UTF8,
    "charset": _UTF8,
    "linesep": "records end with a line break",
    "comment": "a comment is a record: drop it in a stage, with dropped(frame, reason)",
    "maxcolumns": "a record of more fields than the schema has fails by name",
    "maxcharspercolumn": "values are read whole",
    "mode": "what does not parse fails by name",
}
_ONE_CHARACTER = ("sep", "quote", "escape")
_FIXED_IS_NEW = "a file that was fixed is a new one, which its next batch takes as a whole"
_AS_TEXT = "declare STRING, and parse it in a stage"
# Types of which Spark cannot write a snapshot, and those that Arrow does not hand to Spark.
_NOWHERE = r"interval|decimal\(0(,0)?\)"
_NOT_IN_TEXT = rf"{_NOWHERE}|void|geo(metry|graphy)\(.*\)|interval (year|month)( to month)?"
_REFUSED = {"csv": rf"{_NOT_IN_TEXT}|array|map|struct", "json": _NOT_IN_TEXT, "parquet": _NOWHERE}


@dataclass(frozen=True)
class FileSource:
    """Files of one format, read by interval or, with ``incremental``, each once.

    ``path``: glob, a template over ``interval_start``, ``interval_end`` and ``params``; relative
    paths start from ``ACKLEDGER_DATA``. ``format``: ``csv``, ``json`` (one object a line) or
    ``parquet``. ``schema``: a StructType or a DDL string; a record that does not fit fails, it
    is never dropped. ``header``: csv files begin with the schema's names, in order;
    ``by_name``: with names in any order, of which others are noted and ignored, and a column that
    a file lacks is null if it may be. ``optional``: columns that all records of a batch may lack,
    of json and by name: a field of a STRUCT as ``item.price``. ``multiline``: values of csv in
    quotes may hold line breaks; from the first on one task reads its file. ``null_value``: text
    that means null, for example ``NA``. ``allow_missing``: no matching file means no
    records instead of an error.
    ``incremental``: a batch takes the files that no batch has taken yet, whatever its interval;
    a file is another one once its size or modification time differ, but for a small one that has
    the same content. ``options``: further options of the reader, for example ``sep``: those in
    ``OPTIONS``.

    Raises DeclarationError on an unknown format or option, or a path that is no template or ends in
    ``/``.
    """

    path: str
    _: KW_ONLY
    format: str = "csv"
    schema: "StructType | str"
    header: bool | Literal["by_name"] = True
    null_value: str | None = None
    optional: Sequence[str] = ()
    allow_missing: bool = False
    incremental: bool = False
    multiline: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, _FAULTS)
        path_templates.check(self.path)

    @property
    def by_name(self) -> bool:
        """Whether columns are looked up in the header of each file."""
        return self.format == "csv" and self.header == "by_name"


def _unsupported(source: FileSource) -> tuple[str, str] | None:
    """An option that is not supported, and what to do: some of Spark's lose records."""
    names = OPTIONS[source.format]
    name = next((name for name in source.options if name not in names), None)
    if name is None:
        return None
    close = get_close_matches(name, names, n=1)
    hint = _INSTEAD.get(name.lower()) or (
        f"did you mean {close[0]!r}?" if close else "leave it out"
    )
    listed = f"the options of {source.format} are {', '.join(names)}" if names else "it has none"
    return name, f"{hint}; {listed}"


def _option(source: FileSource, is_wrong: Callable[[str, Any], bool]) -> tuple[str, Any] | None:
    """The first option that is wrong, and its value."""
    return next((option for option in source.options.items() if is_wrong(*option)), None)


def _is_no_character(name: str, value: str) -> bool:
    if name == "sep" and not value:
        return True
    # Java counts a character beyond the first 65,536 as two.
    wrong = len(value) > 1 or value > "\uffff" or value in ("\r", "\n")
    return name in _ONE_CHARACTER and wrong


def _separator_again(source: FileSource) -> tuple[str, str] | None:
    if source.format != "csv":
        return None
    values = {"quote": '"', "sep": ",", **source.options}
    names = (name for name in ("quote", "escape") if values.get(name) == values["sep"])
    return next(((name, values["sep"]) for name in names), None)


def _inexact(source: FileSource) -> tuple[str, str, str] | None:
    """The first format of dates that does not make exact values, and why."""
    reasons = [
        (name, pattern, patterns.fault(name, pattern))
        for name, pattern in source.options.items()
        if name in _TIME_FORMATS
    ]
    return next(((name, text, why) for name, text, why in reasons if why), None)


_FAULTS: tuple[Fault, ...] = (
    (
        lambda it: str(it.path).endswith("/"),
        "path {it.path!r}: expected a file or a pattern of files, found a folder, which matches"
        " none: for all that lies in it write {it.path}*",
    ),
    (
        lambda it: it.format not in FORMATS,
        f"format {{it.format!r}} of {{it.path!r}}: expected one of {', '.join(FORMATS)}",
    ),
    (
        lambda it: it.header not in HEADERS,
        f"header={{it.header!r}} of {{it.path!r}}: expected one of {', '.join(map(repr, HEADERS))}",
    ),
    (
        lambda it: it.multiline and it.format != "csv",
        "multiline of {it.path!r}: expected format csv, found {it.format}, whose records have no"
        " line breaks",
    ),
    (
        lambda it: it.optional and it.format != "json" and not it.by_name,
        "optional={it.optional!r} of {it.path!r} has no effect: expected format json, or csv with"
        " header='by_name', whose records may lack a column. Remove it",
    ),
    (
        lambda it: isinstance(it.optional, str),
        "optional={it.optional!r} of {it.path!r}: expected a list of columns, found a text",
    ),
    (
        _unsupported,
        "option {culprit[0]!r} of {it.path!r} is not supported with {it.format}: {culprit[1]}",
    ),
    (
        lambda it: _option(it, lambda name, value: not isinstance(value, str)),
        "option {culprit[0]!r} of {it.path!r}: expected a text, found {culprit[1]!r}",
    ),
    (
        _inexact,
        "option {culprit[0]!r} of {it.path!r} is {culprit[1]!r}: {culprit[2]}",
    ),
    (
        lambda it: _option(it, _is_no_character),
        "option {culprit[0]!r} of {it.path!r}: expected one character and no line break, found"
        " {culprit[1]!r}",
    ),
    (
        _separator_again,
        "options 'sep' and {culprit[0]!r} of {it.path!r}: expected two characters, found"
        " {culprit[1]!r} for both",
    ),
)


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
