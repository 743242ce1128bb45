"""The declaration of a source of files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ledger.core import path_templates
from ledger.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json", "parquet")
COLUMNS = ("in_order", "by_name")

_MOMENTS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
# Options of Spark's readers that neither lose records nor change values.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "csv": ("sep", "quote", "escape", "emptyValue", *_MOMENTS),
    "json": (
        "allowBackslashEscapingAnyCharacter",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        *_MOMENTS,
    ),
    "parquet": (),
}
_UTF8 = "files are read as UTF-8, so convert others, for example with iconv"
_INSTEAD = {
    "multiline": "declare the source with multiline=True",
    "header": "declare the source with header=True or header=False",
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


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    format: str = "csv"
    schema: "StructType | str"
    header: bool = True
    null_value: str | None = None
    allow_missing: bool = False
    incremental: bool = False
    columns: str = "in_order"
    multiline: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSource(_FileOptions):
    """Files of one format, read by interval or, with ``incremental``, each once.

    ``path``: glob, a template over ``interval_start``, ``interval_end`` and ``params``; relative
    paths start from ``ACKLEDGER_DATA``. ``format``: ``csv``, ``json`` (one object a line) or
    ``parquet``. ``schema``: a StructType or a DDL string; a record that does not fit fails, it
    is never dropped. ``header``: csv files begin with names. ``columns``: these are the
    schema's, ``in_order``, or are looked up ``by_name``: others are noted and ignored, and a
    column that a file lacks is null if it may be. ``multiline``: values of csv in quotes may
    hold line breaks; a file is then read by one task. ``null_value``: text that means null, for
    example ``NA``. ``allow_missing``: no matching file means no records instead of an error.
    ``incremental``: a batch takes the files that no batch has taken yet, whatever its interval;
    a file is another one once its size or modification time differ, but for a small one that has
    the same content. ``options``: further options of the reader, for example ``sep``: those in
    ``OPTIONS``.

    Raises DeclarationError on an unknown format or option, or a path that is no template.
    """

    path: str

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DeclarationError(
                f"format {self.format!r} of {self.path!r}: expected one of {', '.join(FORMATS)}"
            )
        if self.columns not in COLUMNS:
            raise DeclarationError(
                f"columns={self.columns!r} of {self.path!r}: expected one of {', '.join(COLUMNS)}"
            )
        if self.columns == "by_name" and not (self.format == "csv" and self.header):
            option = "header=False" if self.format == "csv" else f"format {self.format}"
            raise DeclarationError(
                f"columns='by_name' of {self.path!r}: expected csv with a header, found {option}; "
                "leave it out: columns of json and parquet always go by name"
            )
        if self.multiline and self.format != "csv":
            raise DeclarationError(
                f"multiline of {self.path!r}: expected format csv, found {self.format}, whose "
                "records have no line breaks"
            )
        _check_options(self.path, self.format, self.options)
        path_templates.check(self.path)


def _check_options(path: str, format: str, options: Mapping[str, str]) -> None:
    """Raise DeclarationError for an option that is not supported: some of Spark's lose records."""
    names = OPTIONS[format]
    for name, value in options.items():
        if name not in names:
            instead = _INSTEAD.get(name.lower())
            close = get_close_matches(name, names, n=1)
            hint = instead or (f"did you mean {close[0]!r}?" if close else "leave it out")
            listed = f"the options of {format} are {', '.join(names)}" if names else "it has none"
            raise DeclarationError(
                f"option {name!r} of {path!r} is not supported with {format}: {hint}; {listed}"
            )
        if not isinstance(value, str):
            raise DeclarationError(f"option {name!r} of {path!r}: expected a text, found {value!r}")
        # Java counts a character beyond the first 65,536 as two.
        if name in _ONE_CHARACTER and (len(value) > 1 or value > "\uffff" or value in ("\r", "\n")):
            raise DeclarationError(
                f"option {name!r} of {path!r}: expected one character and no line break, found "
                f"{value!r}"
            )
    if options.get("sep") == "":
        raise DeclarationError(f"option 'sep' of {path!r}: expected one character, found ''")
    separator = options.get("sep", ",")
    for name, default in (("quote", '"'), ("escape", None)):
        if format == "csv" and options.get(name, default) == separator:
            raise DeclarationError(
                f"options 'sep' and {name!r} of {path!r}: expected two characters, found "
                f"{separator!r} for both"
            )
