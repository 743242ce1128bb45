"""The declaration of a source of files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from ledger.core import path_templates
from ledger.core.declarations import Fault, check
from ledger.sources.parsing import patterns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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


@dataclass(frozen=True)
class FileSource:
    """Files of one format, read by interval or, with ``incremental``, each once.

    ``path``: a glob, and a template over ``interval_start``, ``interval_end`` and ``params``.
    Relative paths start from ``ACKLEDGER_DATA``.
    ``format``: ``csv``, ``json`` (one object a line) or ``parquet``.
    ``schema``: a StructType or a DDL string. A record that does not fit fails; it is never dropped.
    ``header``: for csv. True: files begin with the schema's names, in order. ``by_name``: they
    begin with names in any order. Other names are ignored, and counted in the log. A column that a
    file lacks is null if it may be.
    ``optional``: columns that all records of a batch may lack, for json and ``by_name``. A field of
    a STRUCT is written as ``item.price``.
    ``multiline``: for csv: whether values in quotes may hold line breaks. From the first such value
    on, a single task reads the rest of its file.
    ``null_value``: a text that means null, for example ``NA``.
    ``allow_missing``: if no file matches, there are no records, instead of an error.
    ``incremental``: a batch takes the files that no batch has taken yet, whatever its interval. A
    file counts as another one once its size or modification time differs, unless it is small and
    has the same content.
    ``copy``: for parquet. False: the batch and its replays read the files where they are. No
    writer may change or remove a file while they run; a step fails if one did. If a record may not
    fit the schema, the batch is copied all the same.
    ``options``: further options of the reader, for example ``sep``: those in ``OPTIONS``.

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
    copy: bool = True
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, _FAULTS)
        path_templates.check(self.path)

    @property
    def by_name(self) -> bool:
        """Whether columns are looked up in the header of each file."""
        return self.format == "csv" and self.header == "by_name"


def _unsupported(source: FileSource) -> tuple[str, str] | None:
    """Return the first option that the format does not have, and what to do; None: it has all of
    them. Some options of Spark lose records.
    """
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
    """Return the first option that is wrong, and its value; None: all are right."""
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
    """Return the first format of dates that does not make exact values, and the reason; None: all
    do.
    """
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
        lambda it: not it.copy and it.format != "parquet",
        "copy=False of {it.path!r}: expected format parquet, found {it.format}, whose records are"
        " parsed once, into a copy. Remove it",
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
