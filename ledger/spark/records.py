"""Record stages: a user's generator over Arrow batches, one record at a time, anchored for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ledger.errors import StageError
from ledger.marks import Drop, FailedRecord
from ledger.spark.job import ANCHOR, DROPPED, FAILED, RESERVED
from ledger.spark.reading import struct
from ledger.steps import StageStep

NOTHING = "emitted nothing"

_MARKS = [StructField(FAILED, StringType()), StructField(DROPPED, StringType())]

Record = dict[str, Any]


@dataclass(frozen=True)
class _Columns:
    """What a record may yield: Arrow's schema of its columns, and those that may not be null."""

    schema: pa.Schema
    required: frozenset[str]

    def check(self, made: object) -> Record:
        """What was yielded, if it is a row. Raises TypeError with what was expected."""
        if not isinstance(made, dict):
            raise TypeError(f"yielded {type(made).__name__}, expected a dict or dropped(reason)")
        for name in made:
            if name not in self.schema.names:
                raise TypeError(
                    f"yielded column {name!r}, the schema has {', '.join(self.schema.names)}"
                )
        for name in self.required:
            if made.get(name) is None:
                raise TypeError(f"yielded no {name!r}, which the schema says is NOT NULL")
        return made


@dataclass
class _Made:
    """Rows of one batch as they come: the row, and the place of its record in the batch."""

    rows: list[Record] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)

    def add(self, row: Record, place: int) -> None:
        self.rows.append(row)
        self.places.append(place)

    def cut(self, length: int) -> None:
        """Discard what was added beyond ``length`` rows."""
        del self.rows[length:], self.places[length:]
        for marks in (self.failed, self.dropped):
            for row in [row for row in marks if row >= length]:
                del marks[row]


def run_records(step: StageStep, frame: DataFrame) -> DataFrame:
    """The output of a record stage over an anchored frame, with ``_failed`` and ``_dropped``."""
    assert step.schema is not None
    declared = struct(step.schema)
    taken = sorted(RESERVED & set(declared.names))
    if taken:
        raise StageError(
            f"record stage {step.name!r} declares column {taken[0]!r}, a name of the ledger: rename it"
        )
    # A row that only says why there is none has nulls in every column.
    nullable = [StructField(f.name, f.dataType) for f in declared.fields]
    columns = _Columns(
        to_arrow_schema(StructType(nullable), timezone="UTC"),
        frozenset(f.name for f in declared.fields if not f.nullable),
    )
    task = partial(_task, step.function, columns)
    anchor = StructField(ANCHOR, frame.schema[ANCHOR].dataType, nullable=False)
    return frame.mapInArrow(task, StructType([*nullable, anchor, *_MARKS]))


def _task(
    function: Callable[[Record], Iterator[Any]],
    columns: _Columns,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = _run(function, columns, batch.drop_columns([ANCHOR]).to_pylist())
        rows, made = _fitting(made, columns.schema)
        anchors = batch.column(ANCHOR).take(pa.array(made.places, pa.int32()))
        count = len(made.places)
        own = [anchors, _marks(made.failed, count), _marks(made.dropped, count)]
        names = [*columns.schema.names, ANCHOR, FAILED, DROPPED]
        yield pa.RecordBatch.from_arrays([*rows.columns, *own], names)


def _run(
    function: Callable[[Record], Iterator[Any]], columns: _Columns, records: list[Record]
) -> _Made:
    """What each record becomes: its rows, or one row that says why there is none."""
    made, known, plain = _Made(), frozenset(columns.schema.names), not columns.required
    rows, places = made.rows, made.places  # a call for each record would cost as much as the user's
    for place, record in enumerate(records):
        before = len(rows)
        try:
            for one in function(record):
                if plain and one.__class__ is dict and one.keys() <= known:
                    rows.append(one)
                elif isinstance(one, Drop):
                    made.dropped[len(rows)] = one.reason
                    rows.append({})
                else:
                    rows.append(columns.check(one))
                places.append(place)
            if len(rows) > before:
                continue
            failure = NOTHING
        except FailedRecord as exc:
            failure = str(exc) or FailedRecord.__name__
        except Exception as exc:  # a record's own failure is data, not the job's
            failure = f"{type(exc).__name__}: {exc}"
        _fail(made, before, place, failure)
    return made


def _fail(made: _Made, before: int, place: int, reason: str) -> None:
    made.cut(before)
    made.failed[before] = reason
    made.add({}, place)


def _fitting(made: _Made, schema: pa.Schema) -> tuple[pa.RecordBatch, _Made]:
    """The rows in Arrow. If a value does not fit the schema, just its record fails."""
    try:
        return pa.RecordBatch.from_pylist(made.rows, schema), made
    except Exception:  # pyarrow raises errors of Arrow's, and Python's OverflowError and others
        fitting = _Made()
    for place, group in groupby(range(len(made.rows)), key=made.places.__getitem__):
        _refit(made, list(group), place, schema, fitting)
    return pa.RecordBatch.from_pylist(fitting.rows, schema), fitting


def _refit(made: _Made, own: list[int], place: int, schema: pa.Schema, fitting: _Made) -> None:
    """Hand on the rows of one record, or its failure if one of them does not fit."""
    try:
        pa.RecordBatch.from_pylist([made.rows[row] for row in own], schema)
    except Exception as exc:
        _fail(fitting, len(fitting.rows), place, f"{type(exc).__name__}: {exc}")
        return
    for row in own:
        for marks, kept in ((made.failed, fitting.failed), (made.dropped, fitting.dropped)):
            if row in marks:
                kept[len(fitting.rows)] = marks[row]
        fitting.add(made.rows[row], place)


def _marks(marks: dict[int, str], count: int) -> pa.Array:
    if not marks:
        return pa.nulls(count, pa.string())
    return pa.array([marks.get(row) for row in range(count)], pa.string())
