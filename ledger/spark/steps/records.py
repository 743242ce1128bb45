"""Record stages: a user's generator over Arrow batches, one record at a time, anchored for it."""

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from ledger.core.column_names import ANCHOR, DROPPED, FAILED, PREFIX, check_names
from ledger.core.outcomes import Drop, FailedRecord
from ledger.core.redaction import Redaction, found_pattern, texts, without
from ledger.core.text import as_reason
from ledger.errors import MASK
from ledger.pipeline.steps import StageStep
from ledger.sources.parsing.fitting import Fitting, kept, yielded
from ledger.sources.parsing.typed import struct
from ledger.spark.frames.inputs import user_columns

NOTHING = "emitted nothing"

_MARKS = [StructField(FAILED, StringType()), StructField(DROPPED, StringType())]
_MUTABLE = (ArrayType, BinaryType, MapType, StructType, VariantType)

Record = dict[str, Any]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class _Failure:
    """Stands where the rows of a record that failed would be."""

    reason: str


@dataclass(frozen=True)
class _Made:
    """What the records of a batch became: their rows, drops and failures, and where each's end."""

    rows: list[Row | Drop | _Failure] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def end_record(self, failure: str | None) -> None:
        """All of the record is here; with a ``failure`` that is all there is of it."""
        if failure is not None:
            del self.rows[self.ends[-1] if self.ends else 0 :]
            self.rows.append(_Failure(failure))
        self.ends.append(len(self.rows))

    def without_misfits(self, errors: Sequence[str | None]) -> tuple["_Made", list[int | None]]:
        """The same, but each record fails that has a row with an error; and where its rows were.
        ``errors``: one a row."""
        made, places = _Made(), list[int | None]()
        for start, end in pairwise([0, *self.ends]):
            error = next(filter(None, errors[start:end]), None)
            made.rows.extend(self.rows[start:end])
            made.end_record(error)
            places += range(start, end) if error is None else [None]
        return made, places

    def anchors(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The columns of ``batch``, one row a record, with a row for each that its record made."""
        if self.ends == list(range(1, len(self.ends) + 1)):
            return list(batch.columns)
        places = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        return [column.take(pa.array(places)) for column in batch.columns]

    def reasons(self, kind: type[_Failure | Drop]) -> pa.Array:
        """Why a row is no row, if it is of this kind."""
        found = [as_reason(one.reason) if isinstance(one, kind) else None for one in self.rows]
        return pa.array(found, pa.string())


class _Taking:
    """Takes what is yielded as it is at that moment: its values in the schema's order.

    What the generator changes later, in the same dict or in a list of it, is another matter.
    """

    def __init__(self, schema: StructType):
        self._names = schema.names
        self._known = frozenset(schema.names)
        self._values = itemgetter(*schema.names)
        self._copied = [
            place for place, one in enumerate(schema.fields) if isinstance(one.dataType, _MUTABLE)
        ]

    def __call__(self, given: object) -> Row | Drop:
        """Raises TypeError unless ``given`` is a dict of known columns, or a drop."""
        if not isinstance(given, dict):
            if isinstance(given, Drop):
                return given
            raise TypeError(f"yielded {type(given).__name__}, expected a dict or dropped(reason)")
        if len(given) == len(self._names) > 1 and self._known.issuperset(given):
            row: Row = self._values(given)
        else:
            row = self._sparse(given)
        return self._copy(row) if self._copied else row

    def _sparse(self, given: Record) -> Row:
        """A row of which columns are missing."""
        for name in given:
            if name not in self._known:
                raise TypeError(f"yielded column {name!r}, the schema has {', '.join(self._names)}")
        return tuple(map(given.get, self._names))

    def _copy(self, row: Row) -> Row:
        values = list(row)
        for place in self._copied:
            values[place] = deepcopy(values[place])
        return tuple(values)


class _Telling:
    """Puts into words why a record goes no further; without the values of redacted columns."""

    def __init__(self, redact: Redaction, schema: StructType):
        self._redact = redact
        self._found = re.compile(found_pattern(schema.names))

    def of(self, record: Record) -> "_Words":
        """For one record, as it is before the generator gets it."""
        if not self._redact.columns:
            return _OPEN
        return _Words(tuple(texts([record[name] for name in self._redact.among(record)])), True)

    def misfits(self, errors: Sequence[str | None]) -> list[str | None]:
        """Why yielded rows do not fit the schema."""
        if not self._redact.columns:
            return list(errors)
        return [error and self._found.sub(rf"\1{MASK}", error) for error in errors]


@dataclass(frozen=True)
class _Words:
    """``values``: of the record's redacted columns; ``hides``: whether the pipeline has such, which
    an earlier stage may have renamed."""

    values: tuple[str, ...] = ()
    hides: bool = False

    def reason(self, text: str) -> str:
        """What the stage's author says."""
        return without(text, self.values) if self.hides else text

    def error(self, exc: Exception) -> str:
        """What an exception says, which may quote anything of the record."""
        return f"{type(exc).__name__}: {MASK if self.hides else _text_of(exc)}"

    def taken(self, rows: Iterator[Row | Drop]) -> Iterator[Row | Drop]:
        """What is yielded."""
        return map(self._taken, rows) if self.hides else rows

    def _taken(self, row: Row | Drop) -> Row | Drop:
        return Drop(self.reason(row.reason)) if isinstance(row, Drop) else row


_OPEN = _Words()


def run_records(step: StageStep, redact: Redaction, frame: DataFrame) -> DataFrame:
    """The output of a record stage over an anchored frame, with ``_failed`` and ``_dropped``."""
    assert step.schema is not None
    declared = struct(step.schema)
    check_names(f"record stage {step.name!r} declares", declared.names)
    # A row that only says why there is none has nulls in every column.
    nullable = [StructField(f.name, kept(f.dataType)) for f in declared.fields]
    own, apart, together = _anchor_parts(frame)
    telling = _Telling(redact, declared)
    given = frame.select(*user_columns(frame), *apart)
    task = partial(
        _task,
        step.function,
        _Taking(declared),
        yielded(declared),
        telling,
        given.columns,
        [f.name for f in own],
    )
    # By number: mapInArrow looks columns up by name, and takes one with a dot for a field.
    numbered = given.toDF(*(f"_{number}" for number in range(len(given.columns))))
    made = numbered.mapInArrow(task, StructType([*nullable, *own, *_MARKS]))
    return made.select(*user_columns(made), together, FAILED, DROPPED)


def _anchor_parts(frame: DataFrame) -> tuple[list[StructField], list[Column], Column]:
    """``_anchor`` on its way to Python and back: its columns there, how they are made of it, and it
    of them. Fields travel faster than the struct that they make; a list travels as it is."""
    anchor = frame.schema[ANCHOR].dataType
    if not isinstance(anchor, StructType):
        return [StructField(ANCHOR, anchor)], [F.col(ANCHOR)], F.col(ANCHOR)
    own = [StructField(f"{PREFIX}{f.name}", f.dataType, f.nullable) for f in anchor.fields]
    apart = [F.col(ANCHOR)[f.name].alias(f"{PREFIX}{f.name}") for f in anchor.fields]
    fields = [F.col(f"{PREFIX}{f.name}").alias(f.name) for f in anchor.fields]
    return own, apart, F.struct(*fields).alias(ANCHOR)


def _task(
    function: Callable[[Record], Iterator[Any]],
    take: _Taking,
    fitting: Fitting,
    telling: _Telling,
    given: list[str],
    own: list[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    names = [*fitting.names, *own, FAILED, DROPPED]
    for numbered in batches:
        batch = pa.RecordBatch.from_arrays(numbered.columns, given)
        made = _run(function, take, telling, batch.drop_columns(own).to_pylist())
        made, columns = _fitted(made, fitting, telling)
        marks = [made.reasons(_Failure), made.reasons(Drop)]
        yield pa.RecordBatch.from_arrays(
            [*columns, *made.anchors(batch.select(own)), *marks], names
        )


def _run(
    function: Callable[[Record], Iterator[Any]],
    take: _Taking,
    telling: _Telling,
    records: list[Record],
) -> _Made:
    """What each record becomes; whether values fit is for the whole batch to check."""
    made = _Made()
    for record in records:
        before = len(made.rows)
        failure, words = None, telling.of(record)
        try:
            made.rows.extend(words.taken(map(take, function(record))))
            if len(made.rows) == before:
                failure = NOTHING
        except FailedRecord as exc:
            failure = words.reason(_text_of(exc)) or FailedRecord.__name__
        except Exception as exc:  # a record's own failure is data, not the job's
            failure = words.error(exc)
        made.end_record(failure)
    return made


def _text_of(exc: Exception) -> str:
    """The exception's text; empty if it cannot say it."""
    try:
        return str(exc)
    except Exception:  # a user's own __str__
        return ""


def _fitted(made: _Made, fitting: Fitting, telling: _Telling) -> tuple[_Made, list[pa.Array]]:
    """The columns of what was yielded, null where a row is none; a record whose values do not fit
    has failed."""
    rows = {place: one for place, one in enumerate(made.rows) if isinstance(one, tuple)}
    columns, found = fitting.fit(list(rows.values()))
    if len(rows) == len(made.rows) and not any(found):
        return made, columns
    errors = dict(zip(rows, telling.misfits(found), strict=True))
    kept, places = made.without_misfits([errors.get(place) for place in range(len(made.rows))])
    fitted: dict[int | None, int] = {place: number for number, place in enumerate(rows)}
    numbers = pa.array(map(fitted.get, places), pa.int64())
    return kept, [column.take(numbers) for column in columns]
