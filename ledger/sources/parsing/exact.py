"""Parse records exactly: each becomes a row of its schema, or keeps its bytes and a reason."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from ledger.core.column_names import ERROR, RAW
from ledger.errors import quote
from ledger.sources.files.format import Format
from ledger.sources.parsing import csv_text, json_text
from ledger.sources.parsing.columns import misfits_of_doubled, of_json, of_texts
from ledger.sources.parsing.json_text import text_of
from ledger.sources.parsing.keys import misspelt
from ledger.types.spark import nullable, to_arrow_schema, without_lengths

NOT_UTF8 = "not UTF-8"
_MOST_SHOWN = 200  # characters of a value in a reason; the raw record has all of it
_ROWS = 32_768  # records whose values are in memory
OF_FAILED = (T.StructField(RAW, T.BinaryType()), T.StructField(ERROR, T.StringType()))


def stored_schema(schema: T.StructType) -> T.StructType:
    """Return the columns of parsed records: those of the schema, nullable, and ``RAW`` and
    ``ERROR``.

    The last two are set for records that did not parse.
    """
    own = nullable(without_lengths(schema))
    assert isinstance(own, T.StructType)
    return T.StructType([*own.fields, *OF_FAILED])


class Parser:
    """Parser of records of one form."""

    def __init__(self, form: Format):
        self._form = form
        self._is_json = form.format == "json"
        self._malformed = f"malformed {form.format}: "
        self._arrow = to_arrow_schema(stored_schema(form.schema))
        of = of_json if self._is_json else of_texts
        fields = form.schema.fields
        self._fits = {
            field.name: of(field.dataType, form.options)
            for field in fields
            if self._is_json or field.name in form.names
        }
        self._misspelt = misspelt(form.schema) if self._is_json else None
        self._parse = (
            json_text.parser_of(form.options) if self._is_json else csv_text.parser_of(form)
        )

    def __reduce__(self) -> tuple[type["Parser"], tuple[Format]]:
        """Travel to a task as the form: Python's scanner of JSON cannot be pickled."""
        return Parser, (self._form,)

    def parse(self, records: Sequence[bytes], failed: Mapping[int, str] | None = None) -> pa.Table:
        """Return a row for each record, in order, as ``stored_schema`` has it.

        ``failed``: records that fail whatever they are, each with its reason.
        """
        parts = []
        with _without_collector():
            for first in range(0, len(records), _ROWS):
                some = records[first : first + _ROWS]
                early = {n - first: why for n, why in (failed or {}).items() if n >= first}
                parts.append(self._part(some, early))
        return pa.concat_tables(parts) if parts else self._arrow.empty_table()

    def _part(self, records: Sequence[bytes], failed: Mapping[int, str]) -> pa.Table:
        reasons: dict[int, str] = {}
        rows = list(self._rows(records, reasons))
        reasons.update((n, why) for n, why in failed.items() if n < len(records))
        columns = [self._column(field, rows, reasons) for field in self._form.schema.fields]
        for number, why in enumerate(map(self._misspelt, rows) if self._misspelt else ()):
            if why:
                reasons.setdefault(number, f"{self._malformed}{why}")
        for field, column in zip(self._form.schema.fields, columns, strict=True):
            if not field.nullable and column.null_count:
                for number in np.flatnonzero(np.asarray(column.is_null())).tolist():
                    reasons.setdefault(number, f"{self._malformed}{field.name} is null")
        return self._table(records, columns, reasons)

    def _rows(self, records: Sequence[bytes], reasons: dict[int, str]) -> Iterator[Any]:
        """Yield the values of each record, by name (JSON) or in the order of the names (CSV).

        A record that fails has no values.
        """
        parse, nothing = self._parse, {} if self._is_json else [None] * len(self._form.names)
        for number, record in enumerate(records):
            try:
                yield parse(record.decode())
            except UnicodeDecodeError:
                reasons[number] = NOT_UTF8
                yield nothing
            except ValueError as exc:
                reasons[number] = f"{self._malformed}{exc}"
                yield nothing

    def _column(
        self, field: T.StructField, rows: Sequence[Any], reasons: dict[int, str]
    ) -> pa.Array:
        """Return a column, and add the reasons of records whose value does not fit."""
        fit, name = self._fits.get(field.name), field.name
        if fit is None:
            return pa.nulls(len(rows), self._arrow.field(name).type)
        if self._is_json:
            values = [row.get(name) for row in rows]
        else:
            place = list(self._form.names).index(name)
            values = [row[place] for row in rows]
        column, misfits = fit(values)
        expected = f"{self._malformed}{name}: expected {field.dataType.simpleString()}, found "
        wrong = {number: values[number] for number in misfits.tolist()}
        if self._is_json:
            wrong = misfits_of_doubled(name, fit, rows) | wrong
        for number, value in wrong.items():
            reasons.setdefault(number, expected + quote(text_of(value)[:_MOST_SHOWN]))
        return column

    def _table(
        self, records: Sequence[bytes], columns: list[pa.Array], reasons: dict[int, str]
    ) -> pa.Table:
        failed = sorted(reasons)
        place = np.zeros(len(records), np.int64)
        good = np.ones(len(records), bool)
        if failed:
            good[failed] = False
            rows = pa.array(np.arange(len(records)), mask=~good)
            columns = [column.take(rows) for column in columns]
        place[failed] = np.arange(len(failed))
        numbers = pa.array(place, mask=good)
        why = (
            pa.array([records[number] for number in failed], pa.binary()),
            pa.array([reasons[number] for number in failed], pa.string()),
        )
        return pa.table([*columns, *(own.take(numbers) for own in why)], schema=self._arrow)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch off Python's cyclic collector, which would scan ever more values without cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
