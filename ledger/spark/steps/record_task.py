"""The task of a record stage in Spark's Python workers. Each of them imports this module, so it
needs nothing that takes long to import, such as the driver of a database.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import date
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from ledger.core.column_names import DROPPED, FAILED
from ledger.core.outcomes import Drop, FailedRecord
from ledger.errors import MASK, quote
from ledger.spark.steps.record_rows import RecordOutput
from ledger.types.fitting import Fitting
from ledger.types.spark import NESTED

NOTHING = "emitted nothing"

_AT_ONCE = 256  # records of which there are dicts
_MUTABLE = (*NESTED, T.BinaryType, T.VariantType)
_ATOMS = frozenset({type(None), bool, int, float, str, bytes, date, Decimal})  # never change

Record = dict[str, Any]
Row = tuple[Any, ...]


class Taking:
    """Copies a yielded item into ``width`` values in the schema's order, so that later changes by
    the generator have no effect.

    ``row``: takes the values of a dict with as many columns as the schema. Raises KeyError for
    other columns.
    """

    def __init__(self, schema: T.StructType):
        self.names = schema.names
        self._name_set = frozenset(schema.names)
        # An itemgetter of one name gives no tuple: it gets the name twice.
        self._columns = self.names if len(self.names) > 1 else self.names * 2
        self.width = len(self._columns)
        self._values = itemgetter(*self._columns)
        self._mutable = [
            place
            for place, field in enumerate(schema.fields)
            if isinstance(field.dataType, _MUTABLE)
        ]
        self.row: Callable[[Record], Row] = self._copies if self._mutable else self._values

    def row_of(self, item: object) -> Row:
        """Return the row of a yielded item. Raises TypeError if it is no dict of known columns."""
        if not isinstance(item, dict):
            raise TypeError(f"yielded {type(item).__name__}, expected a dict or dropped(reason)")
        if not self._name_set.issuperset(item):
            name = next(name for name in item if name not in self._name_set)
            raise TypeError(f"yielded column {name!r}, the schema has {', '.join(self.names)}")
        if len(item) == len(self.names) > 1:
            row = self._values(item)
        else:
            row = tuple(map(item.get, self._columns))
        return self._copied(row) if self._mutable else row

    def _copies(self, item: Record) -> Row:
        return self._copied(self._values(item))

    def _copied(self, row: Row) -> Row:
        """Return a row with copies of its mutable values. Lists and dicts of plain values need no
        deep copy.
        """
        values = list(row)
        for place in self._mutable:
            value = values[place]
            kind = type(value)
            if kind in _ATOMS:
                continue
            plain = (kind is list and _ATOMS.issuperset(map(type, value))) or (
                kind is dict and _ATOMS.issuperset(map(type, (*value, *value.values())))
            )
            values[place] = value.copy() if plain else deepcopy(value)
        return tuple(values)


def transform(
    function: Callable[[Record], Iterator[Any]],
    take: Taking,
    fitting: Fitting,
    input_names: list[str],
    own: list[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    names = [*fitting.names, *own, FAILED, DROPPED]
    for numbered in batches:
        batch = pa.RecordBatch.from_arrays(numbered.columns, input_names)
        output = _run(function, take, batch.drop_columns(own), batch.num_rows)
        columns, misfits = fitting.fit_columns(output.columns(len(fitting.names)))
        layout = output.layout(misfits)
        anchors = layout.of_records(batch.select(own).columns)
        marks = [layout.reasons(failed=True), layout.reasons(failed=False)]
        yield pa.RecordBatch.from_arrays([*layout.of_rows(columns), *anchors, *marks], names)


def _run(
    function: Callable[[Record], Iterator[Any]],
    take: Taking,
    batch: pa.RecordBatch,
    count: int,
) -> RecordOutput:
    """Call a record stage's function for each of ``count`` records, and return their rows and
    marks. Whether values fit is checked later, for the whole batch.

    Each operation of the inner loop costs some percent of a short function's throughput: a dict of
    all columns, which is what most functions yield, is taken with the fewest.
    """
    output = RecordOutput(take.width)
    values, ends = output.values, output.ends
    row, width, columns = take.row, take.width, len(take.names)
    end = 0
    for record in _records(batch, count):
        start = end
        try:
            for item in function(record):
                if type(item) is dict and len(item) == columns:
                    try:
                        values += row(item)
                    except KeyError:
                        values += take.row_of(item)
                elif isinstance(item, Drop):
                    output.drop(quote(item.reason) if item.reason else "")
                else:
                    values += take.row_of(item)
            end = len(values)
            if end != start + width:
                output.one_each = False
                if end == start and not output.has_drop():
                    output.fail(NOTHING)
        except Exception as exc:  # a record's own failure is data, not the job's
            output.fail(_failure(exc))
        ends.append(end)
    return output


def _records(batch: pa.RecordBatch, count: int) -> Iterator[Record]:
    """Return the records of a batch. They are made column by column, which costs half of a dict of
    a zip for each row, and a few at a time, which fit into a processor's cache.
    """
    names = batch.schema.names
    if not names:
        return ({} for _ in range(count))
    columns = [column.to_pylist() for column in batch.columns]
    return chain.from_iterable(
        _dicts(names, [column[start : start + _AT_ONCE] for column in columns])
        for start in range(0, count, _AT_ONCE)
    )


def _dicts(names: list[str], columns: list[list[Any]]) -> list[Record]:
    first, *others = names
    records = [{first: value} for value in columns[0]]
    for name, column in zip(others, columns[1:], strict=True):
        for record, value in zip(records, column, strict=True):
            record[name] = value
    return records


def _failure(exc: Exception) -> str:
    """Return the reason of a record's failure: the text of FailedRecord, or class and text of
    another error.
    """
    try:
        text = str(exc)
    except Exception:  # a user's own __str__
        text = ""
    name = type(exc).__name__
    if isinstance(exc, FailedRecord):
        return quote(text or FailedRecord.__name__, f"{name}: {MASK}")
    return f"{name}: {quote(text)}"
