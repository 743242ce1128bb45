"""Read JSON lines by columns, with Arrow's reader of JSON.

Arrow accepts more than the exact reader, and reads some records differently. Such records are found
by their bytes before, or by their values after, and left unread.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyspark.sql import types as T

from ledger.sources.files.format import Format
from ledger.sources.parsing.json_text import MOST_NESTED
from ledger.sources.parsing.keys import folded
from ledger.sources.parsing.scalars import FORMATS
from ledger.sources.vectorized.lines import Lines, Read, mask
from ledger.sources.vectorized.texts import TIMES, converted, converts
from ledger.types.spark import to_arrow_type

# What the exact reader refuses, and Arrow's takes in a field that is no column.
_REFUSED = (
    (b"NaN", re.compile(rb"NaN(?<=[:\[,\s-]NaN)\s*+[,\]}]")),
    (b"Inf", re.compile(rb"Inf(?<=[:\[,\s-]Inf)(?:inity)?+\s*+[,\]}]")),
)

# A name that JSON writes in one way, and that stands nowhere but in quotes.
_SIMPLE = re.compile(r"[\w.$@/#*+-][\w .$@/#*+-]*", re.ASCII)
_FOLDS = bytes(range(256)).upper()
_UNSEEN = b" \x7f"  # that a key of JSON may have without an escape
# The last escape of a key, or its last character beyond ASCII: such a key may be any name.
_ESCAPED_KEY = re.compile(rb'\\.[^"\\\n]*+"\s*+:')
_FOREIGN_KEY = re.compile(rb'[\x80-\xff][^"\\\x80-\xff\n]*+"\s*+:')

_PART = 1 << 20  # bytes that are read in one go
_UNEXPECTED = "unexpected field"  # Arrow's words for a key that is no column
_ROW = re.compile(r" in row (\d+)\Z")
_FEWEST = 64  # records that are not halved again if they cannot be read
_TRIALS, _PAY = 16, 32  # of a part: once more for so many of its records that were read


def reads(form: Format) -> bool:
    """Return whether records of a form can be read by columns: its types and options."""
    kinds = [field.dataType for field in form.schema.fields]
    return (
        form.format == "json"
        and bool(kinds)
        and list(form.names) == form.schema.names
        and all(converts(kind) and not isinstance(kind, T.DecimalType) for kind in kinds)
        and all(name in FORMATS.values() for name in form.options)
        and not (form.options and any(isinstance(kind, TIMES) for kind in kinds))
    )


def read(records: Lines, form: Format) -> Read:
    """Read the records of which it is certain that the exact reader would read the same."""
    candidates = np.flatnonzero(_candidates(records))
    text = _only(records, candidates)
    fields = form.schema.fields
    schema = pa.schema(
        (
            field.name,
            pa.string() if isinstance(field.dataType, TIMES) else to_arrow_type(field.dataType),
        )
        for field in fields
    )
    parts = list(_parts(text, schema))
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    table = pa.concat_tables([schema.empty_table(), *(part.table for part in parts)])
    good = np.ones(len(rows), bool)
    columns = []
    for field, chunks in zip(fields, table.columns, strict=True):
        column, is_exact = _converted(chunks.combine_chunks(), field.dataType)
        good &= is_exact
        if not field.nullable:
            good &= mask(column.is_valid())
        columns.append(column)
    if not all(part.has_no_other_keys for part in parts):
        good &= ~_refused(text)[rows]
        good &= ~_may_lack(text, rows, dict(zip(schema.names, columns, strict=True)))
    return Read.placed(len(records), candidates[rows], good, columns, form.schema.names)


def _candidates(records: Lines) -> np.ndarray:
    """Return a flag for each record, whether Arrow may read it: it begins and ends with a brace.

    Then no object continues in the next line, because that would need a comma or a closing brace
    there. So each record is one row or more. If there are as many rows as records, each record is
    one row. Arrow would crash on a record that is null, so the opening brace is required as well.
    """
    lengths = records.ends - records.starts
    fit: np.ndarray = lengths > 1
    codes = np.frombuffer(records.data, np.uint8)
    fit[fit] &= codes[records.starts[fit]] == ord("{")
    fit[fit] &= codes[records.ends[fit] - 1] == ord("}")
    if b"}{" in records.data:  # two objects, whose line Arrow does not name
        fit &= ~_holders(records, re.compile(rb"}{"))
    for number in np.flatnonzero(fit & (lengths > 2 * MOST_NESTED)).tolist():
        record = records.data[records.starts[number] : records.ends[number]]
        fit[number] = record.count(b"{") + record.count(b"[") <= MOST_NESTED
    fit &= records.are_utf8()
    return fit


def _holders(records: Lines, pattern: re.Pattern[bytes]) -> np.ndarray:
    """Return which records have a match of a pattern."""
    places = np.array([match.end() - 1 for match in pattern.finditer(records.data)], np.int64)
    numbers = np.searchsorted(records.starts, places, side="right") - 1
    holders: np.ndarray = np.zeros(len(records), bool)
    holders[numbers[numbers >= 0]] = True
    return holders


def _refused(records: Lines) -> np.ndarray:
    """Return a flag for each record, whether it may have a value that the exact reader refuses."""
    refused = np.zeros(len(records), bool)
    for word, pattern in _REFUSED:
        if word in records.data:
            refused |= _holders(records, pattern)
    return refused


def _only(records: Lines, numbers: np.ndarray) -> Lines:
    """Return some of the records, and blank the others, which Arrow skips.

    A line break follows the last record; without it Arrow would count its rows separately.
    """
    if len(numbers) == len(records) and len(records.data) > records.ends[-1:].sum():
        return records
    data = bytearray(records.data) + b"\n"
    others = np.ones(len(records), bool)
    others[numbers] = False
    for start, end in zip(
        records.starts[others].tolist(), records.ends[others].tolist(), strict=True
    ):
        data[start:end] = b" " * (end - start)
    return Lines(bytes(data), records.starts[numbers], records.ends[numbers])


@dataclass(frozen=True)
class _Parsed:
    """Records that were read.

    ``rows``: their numbers.
    ``has_no_other_keys``: whether each of their keys is a column's name.
    """

    rows: np.ndarray
    table: pa.Table
    has_no_other_keys: bool


def _parts(text: Lines, schema: pa.Schema) -> Iterator[_Parsed]:
    """Yield the ranges of records that could be read.

    Arrow raises for the whole range if one record does not fit. Then that record is left out, or
    the range is halved, as long as that pays.
    """
    places = np.arange(_PART, len(text.data), _PART)
    bounds = [0, *np.searchsorted(text.starts, places).tolist(), len(text)]
    behavior = "error"
    for bound in pairwise(bounds):
        pending, trials, count = [bound], 0, 0
        while pending and trials < _TRIALS + count // _PAY:
            first, last = pending.pop()
            if first == last:
                continue
            trials += 1
            try:
                table = _table(text, first, last, schema, behavior)
            except pa.ArrowInvalid as problem:
                if behavior == "error" and _UNEXPECTED in str(problem):
                    behavior = "ignore"
                    pending.append((first, last))
                else:
                    pending += _without(first, last, str(problem))
                continue
            count += last - first
            yield _Parsed(np.arange(first, last), table, behavior == "error")


def _without(first: int, last: int, problem: str) -> list[tuple[int, int]]:
    """Return the ranges to be tried of records that could not be read, the last range first."""
    row = _ROW.search(problem)
    if row and int(row[1]) < last - first:
        wrong = first + int(row[1])
        return [(wrong + 1, last), (first, wrong)]
    middle = (first + last) // 2
    return [(middle, last), (first, middle)] if last - first > _FEWEST else []


def _table(text: Lines, first: int, last: int, schema: pa.Schema, behavior: str) -> pa.Table:
    """Read records by columns. Raises ArrowInvalid unless each of them is one object and could be
    read.
    """
    start, end = int(text.starts[first]), int(text.ends[last - 1]) + 1
    table = json.read_json(
        pa.BufferReader(pa.py_buffer(text.data).slice(start, end - start)),
        json.ReadOptions(use_threads=False, block_size=end - start + 1),
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior),
    )
    if table.num_rows != last - first:
        raise pa.ArrowInvalid(f"expected {last - first} objects, read {table.num_rows}")
    return table.select(schema.names)


def _converted(column: pa.Array, kind: T.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return a column in its own type, and in which rows it is exact."""
    if isinstance(kind, TIMES):
        times = converted(column, kind)
        return times, mask(pc.equal(times.is_null(), column.is_null()))
    if isinstance(kind, T.DoubleType):
        return column, np.isfinite(column.fill_null(0).to_numpy())
    return column, np.ones(len(column), bool)


def _may_lack(text: Lines, rows: np.ndarray, columns: Mapping[str, pa.Array]) -> np.ndarray:
    """Return which rows lack a column and may have a misspelt key for it. The exact reader fails
    these.
    """
    lacking = {name: ~mask(column.is_valid()) for name, column in columns.items()}
    lacking = {name: lacks for name, lacks in lacking.items() if lacks.any()}
    wrong = np.zeros(len(rows), bool)
    if not lacking:
        return wrong
    lacks_any = np.logical_or.reduce(list(lacking.values()))
    if b"\\" in text.data:
        wrong |= lacks_any & _holders(text, _ESCAPED_KEY)[rows]
    if not text.data.isascii():
        wrong |= lacks_any & _holders(text, _FOREIGN_KEY)[rows]
    loose = _loose(text.data)
    for name, lacks in lacking.items():
        if not _SIMPLE.fullmatch(name):
            wrong |= lacks
        elif _has_nearly(name, text.data, loose):
            for row in np.flatnonzero(lacks & ~wrong).tolist():
                record = text.data[text.starts[rows[row]] : text.ends[rows[row]]]
                wrong[row] = _has_nearly(name, record, _loose(record))
    return wrong


def _loose(data: bytes) -> bytes:
    return data.translate(_FOLDS, _UNSEEN)


def _has_nearly(name: str, data: bytes, loose: bytes) -> bool:
    """Return whether a text of JSON may have a misspelt key for a name.

    It may if the name is found more often when case and invisible characters do not count.
    """
    return loose.count(f'"{folded(name)}"'.encode()) > data.count(f'"{name}"'.encode())
