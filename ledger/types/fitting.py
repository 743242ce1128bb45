"""Fit Python values into columns of declared types. A value that does not fit fails its record."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from ledger.errors import DeclarationError, quote
from ledger.types.python import SCALARS, Row, converted, converter_of
from ledger.types.raw_rows import as_json, is_bytes
from ledger.types.spark import to_arrow_type, without_lengths

_MOST_SHOWN = 200  # characters of a value in a message; the raw record has all of it


class Fitting:
    """Fits rows into a schema. It can be sent to executors; ``of_table`` and ``yielded`` make it.

    ``strict``: whether ``Scalar.takes`` decides which values are accepted.
    ``what``: the beginning of the reason of a row that does not fit.
    """

    def __init__(self, schema: StructType, what: str, *, strict: bool):
        self.names = schema.names
        self._fields = schema.fields
        self._what = what
        kinds = [field.dataType for field in schema.fields]
        self._converters = [converter_of(kind, strict=strict) for kind in kinds]
        self._types = [to_arrow_type(without_lengths(kind)) for kind in kinds]

    def fit(self, rows: Sequence[Row]) -> tuple[list[pa.Array], list[str | None]]:
        """Return the columns of ``rows``, whose values are in the schema's order, and for each row
        why it does not fit, or None. A row that does not fit is null in every column.
        """
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._fields)
        arrays, misfits = self.fit_columns(columns)
        return arrays, [misfits.get(number) for number in range(len(rows))]

    def fit_columns(self, columns: Sequence[Row]) -> tuple[list[pa.Array], dict[int, str]]:
        """Fit columns as ``fit`` fits rows. Return the Arrow columns, and why rows do not fit, by
        row index. Such a row is null in every column.
        """
        misfits = dict[int, str]()
        arrays = [
            pa.concat_arrays(self._parts(number, values, 0, misfits))
            for number, values in enumerate(columns)
        ]
        if misfits:
            good = np.ones(len(arrays[0]), bool)
            good[list(misfits)] = False
            numbers = pa.array(np.arange(len(good)), mask=~good)
            arrays = [column.take(numbers) for column in arrays]
        return arrays, misfits

    def _parts(
        self, number: int, values: Row, start: int, misfits: dict[int, str]
    ) -> list[pa.Array]:
        """Return all values as columns: at once, or, while one of them does not fit, by halves down
        to that one. Notes the first column of a row that does not fit. ``start``: the row of the
        first value.
        """
        column = self._column(number, values)
        if column is not None:
            return [column]
        if len(values) == 1:
            misfits.setdefault(start, _misfit(self._what, self._fields[number], values[0]))
            return [pa.nulls(1, self._types[number])]
        half = len(values) // 2
        return [
            *self._parts(number, values[:half], start, misfits),
            *self._parts(number, values[half:], start + half, misfits),
        ]

    def _column(self, number: int, values: Row) -> pa.Array | None:
        """Return all values as a column, converted only if one of them has to be. None if one of
        them does not fit.
        """
        scalar = SCALARS.get(type(self._fields[number].dataType))
        column = None
        try:
            if scalar and {scalar.plain, type(None)}.issuperset(map(type, values)):
                column = pa.array(values, self._types[number])
                if scalar.check is not None and not scalar.check(column):
                    column = None
            if column is None:
                column = pa.array(converted(self._converters[number], values), self._types[number])
        except Exception:  # pyarrow's errors, and Python's own of a conversion
            return None
        return column if self._fields[number].nullable or not column.null_count else None


def of_table(schema: StructType) -> Fitting:
    """Return a Fitting for rows of a database's driver. Raises DeclarationError when a column has a
    type that no table's column has.
    """
    for field in schema.fields:
        if type(field.dataType) not in SCALARS:
            raise DeclarationError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}: expected a "
                "plain type in the schema of a table: declare string, and parse it in a stage"
            )
    return Fitting(schema, "malformed row:", strict=False)


def yielded(schema: StructType) -> Fitting:
    """Return a Fitting for rows of a record stage, in which each value has its column's type."""
    return Fitting(schema, "yielded", strict=True)


def _misfit(what: str, field: StructField, value: object) -> str:
    """Return the reason why a value does not fit the column of ``field``."""
    expected = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
    reason = f"{what} {field.name}: expected {expected}, found "
    if value is None:
        return f"{reason}NULL"
    try:
        text = str(as_json(value) if is_bytes(value) else value)
    except Exception:  # a number of more digits than Python writes, or a user's own __str__
        text = f"a value of type {type(value).__name__}"
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return reason + quote(shown.encode("utf-8", "backslashreplace").decode())
