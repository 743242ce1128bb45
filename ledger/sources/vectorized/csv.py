"""Read CSV by columns: each field as a text, by Arrow's reader, then as a value of its type.

Arrow's reader accepts records that the exact reader refuses, and its conversions fail for a whole
column. So it gets only records whose fields are certain, and a text is converted only if both
readers make the same value of it. The exact reader reads all other records.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import types as T

from ledger.sources.files.format import Format
from ledger.sources.parsing.scalars import FORMATS
from ledger.sources.vectorized import texts
from ledger.sources.vectorized.lines import Lines, Read, is_utf8, mask
from ledger.types.spark import to_arrow_type

# The exact reader fails a record that has one of these, or begins with the mark.
_DOUBTFUL = "\ufeff\0\uffff"
_OPTIONS = {"sep", "quote", "escape"}  # not emptyValue, which is another null
_MOST_BYTES = 1 << 30  # Arrow counts those of a block, and of a column, with 32 bits


def reads(form: Format) -> bool:
    """Return whether records of a form can be read by columns, by its types and options."""
    dialect, kinds = form.dialect, [field.dataType for field in form.schema.fields]
    return (
        form.format == "csv"
        and not form.multiline
        and all(map(texts.converts, kinds))
        and all(_is_read(option, kinds) for option in form.options)
        and all(map(_is_plain, (dialect.separator, dialect.quote, dialect.escape)))
        and dialect.separator not in ("", dialect.quote, dialect.escape)
        and (form.null_value is None or is_utf8(form.null_value.encode(errors="surrogatepass")))
        and len(set(form.names)) == len(form.names)
        and not set(form.names).isdisjoint(form.schema.names)
    )


def read(records: Lines, form: Format) -> Read:
    """Read records by columns. ``form``: one that ``reads`` accepts."""
    records = records.trimmed()
    rows = _fields(records, _certain(records, form), form)
    if rows is None:
        none = [pa.nulls(len(records), to_arrow_type(field.dataType)) for field in form.schema]
        row = pa.RecordBatch.from_arrays(none, form.schema.names)
        return Read(row, np.zeros(len(records), bool))
    fields, places = rows
    fit = np.ones(len(fields), bool)
    columns = []
    for field in form.schema.fields:
        if field.name not in form.names:
            column = pa.nulls(len(fields), to_arrow_type(field.dataType))
        else:
            text = _nulled(fields.column(field.name).combine_chunks(), form)
            column = texts.converted(text, field.dataType)
            fit &= _valid(column) | ~_valid(text)
        if not field.nullable:
            fit &= _valid(column)
        columns.append(column)
    return Read.placed(len(records), places, fit, columns, form.schema.names)


def _is_read(option: str, kinds: list[T.DataType]) -> bool:
    if option in FORMATS.values():
        return not any(FORMATS.get(type(kind)) == option for kind in kinds)
    return option in _OPTIONS


def _is_plain(character: str) -> bool:
    """Return whether Arrow accepts a character: none, or one byte."""
    return len(character) <= 1 and character.isascii() and not {*character} & {*"\0\r\n"}


def _certain(records: Lines, form: Format) -> np.ndarray:
    """Return a flag for each record, whether both readers split it into the same fields."""
    data, starts, ends, dialect = records.data, records.starts, records.ends, form.dialect
    between = len(data) - int((ends - starts).sum())
    # A record with a line break would be two to Arrow.
    if len(data) > _MOST_BYTES or data.count(b"\n") + data.count(b"\r") != between:
        return np.zeros(len(records), bool)
    lines = _lines(records)
    certain = records.are_utf8()
    certain &= ends > starts
    for character in _DOUBTFUL:
        certain &= ~_holds(lines, data, character)
    if dialect.escape != dialect.quote:
        # Where the two readers differ, as in an escape that stands before any other character.
        for character in (dialect.quote, dialect.escape):
            certain &= ~_holds(lines, data, character)
    elif dialect.quote and dialect.quote.encode() in data:
        certain &= _has_whole_quotes(lines, form) | ~_holds(lines, data, dialect.quote)
    return certain


def _lines(records: Lines) -> pa.LargeBinaryArray:
    """Return the records with their line breaks, without copying them."""
    offsets = np.append(records.starts, len(records.data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(records), buffers)


def _holds(lines: pa.LargeBinaryArray, data: bytes, character: str) -> np.ndarray:
    """Return a flag for each line, whether it contains a character."""
    if not character or character.encode() not in data:
        return np.zeros(len(lines), bool)
    return mask(pc.match_substring(lines, character))


def _has_whole_quotes(lines: pa.LargeBinaryArray, form: Format) -> np.ndarray:
    """Return a flag for each line, whether its quotes enclose whole fields.

    Arrow's reader accepts other lines too, and looks for the end of an open quote in the lines that
    follow.
    """
    pattern, _ = form.dialect.patterns
    field = pattern.replace("*+", "*")  # it has no possessive quantifiers, and needs none
    separator = re.escape(form.dialect.separator)
    return mask(pc.match_substring_regex(lines, rf"\A{field}(?:{separator}{field})*[\r\n]*\z"))


def _fields(
    records: Lines, certain: np.ndarray, form: Format
) -> tuple[pa.Table, np.ndarray] | None:
    """Return the fields of certain records as texts, by name, and the numbers of these records.

    Records without as many fields as names are left out. None if no record is certain, or if Arrow
    counts other records.
    """
    if not certain.any():
        return None
    places = np.flatnonzero(certain)
    data: bytes | pa.Buffer = records.data
    if not certain.all():  # the bytes of the other lines, one after the other
        lines = _lines(records).filter(pa.array(certain))
        _, offsets, joined = lines.buffers()
        ends = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
        data = joined.slice(int(ends[0]), int(ends[-1] - ends[0]))
    misfits: list[int] = []

    def skip(row: csv.InvalidRow) -> str:
        misfits.append(row.number - 1)
        return "skip"

    names = {f"c{number}": name for number, name in enumerate(form.names)}
    included = [short for short, name in names.items() if name in form.schema.names]
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=list(names)
        ),
        parse_options=csv.ParseOptions(
            delimiter=form.dialect.separator,
            quote_char=form.dialect.quote or False,
            invalid_row_handler=skip,
        ),
        convert_options=csv.ConvertOptions(
            include_columns=included,
            column_types=dict.fromkeys(included, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            # Spark compares a field with what means null, which is nothing if nothing is declared,
            # whether it was in quotes or not.
            quoted_strings_can_be_null=not form.null_value,
            check_utf8=False,  # they are
        ),
    )
    if len(table) + len(misfits) != len(places):
        return None
    return table.rename_columns([names[short] for short in included]), np.delete(places, misfits)


def _nulled(texts: pa.StringArray, form: Format) -> pa.StringArray:
    """Replace texts that mean null by null."""
    if not form.null_value:
        return texts
    is_null = pc.equal(texts, form.null_value)
    return pc.if_else(is_null, None, texts) if pc.any(is_null).as_py() else texts


def _valid(column: pa.Array) -> np.ndarray:
    return mask(pc.is_valid(column))
