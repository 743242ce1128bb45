"""Record stages: a user's generator over Arrow batches, one record at a time, anchored for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ledger.errors import StageError
from ledger.marks import Drop, FailedRecord
from ledger.spark.inputs import user_columns
from ledger.spark.job import ANCHOR, DROPPED, FAILED, RESERVED
from ledger.spark.reading import struct
from ledger.steps import StageStep

NOTHING = "emitted nothing"

_MARKS = [StructField(FAILED, StringType()), StructField(DROPPED, StringType())]

Record = dict[str, Any]


@dataclass(frozen=True)
class _Failure:
    """Stands where the rows of a record that failed would be."""

    reason: str


@dataclass(frozen=True)
class _Made:
    """What the records of a batch became: their rows, drops and failures, and where each's end."""

    rows: list[Any] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @cached_property
    def kinds(self) -> set[type]:
        """What there is among the rows."""
        return set(map(type, self.rows))

    def judged(self, judge: Callable[[list[Any]], object]) -> "_Made":
        """The same, but the records whose rows ``judge`` refuses fail with its reason."""
        made = _Made()
        for start, end in pairwise([0, *self.ends]):
            own = self.rows[start:end]
            try:
                judge(own)
            except Exception as exc:  # pyarrow raises errors of Arrow's, OverflowError and others
                own = [_Failure(f"{type(exc).__name__}: {exc}")]
            made.rows.extend(own)
            made.ends.append(len(made.rows))
        return made

    def anchors(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The columns of ``batch``, one row a record, with a row for each that its record made."""
        if self.ends == list(range(1, len(self.ends) + 1)):
            return list(batch.columns)
        places = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        return [column.take(pa.array(places)) for column in batch.columns]

    def reasons(self, kind: type[_Failure | Drop]) -> pa.Array:
        """Why a row is no row, if it is of this kind."""
        if kind not in self.kinds:
            return pa.nulls(len(self.rows), pa.string())
        found = [one.reason if isinstance(one, kind) else None for one in self.rows]
        return pa.array(found, pa.string())


@dataclass(frozen=True)
class _Columns:
    """What a record may yield: Arrow's schema of its columns, and those that may not be null."""

    schema: pa.Schema
    required: frozenset[str]

    def fit(self, made: _Made) -> bool:
        """Whether all was yielded as declared: for a whole batch at once it costs little."""
        if not made.kinds <= {dict, Drop, _Failure}:
            return False
        rows = [one for one in made.rows if type(one) is dict]
        known = set(self.schema.names).issuperset(set().union(*rows))
        return known and all(row.get(name) is not None for name in self.required for row in rows)

    def check(self, made: list[Any]) -> None:
        """Raise TypeError, with what was expected, unless one record's rows are as declared."""
        for one in made:
            if isinstance(one, dict):
                self._check_row(one)
            elif not isinstance(one, Drop | _Failure):
                raise TypeError(f"yielded {type(one).__name__}, expected a dict or dropped(reason)")

    def _check_row(self, row: Record) -> None:
        for name in row:
            if name not in self.schema.names:
                raise TypeError(
                    f"yielded column {name!r}, the schema has {', '.join(self.schema.names)}"
                )
        for name in self.required:
            if row.get(name) is None:
                raise TypeError(f"yielded no {name!r}, which the schema says is NOT NULL")

    def arrow(self, made: list[Any]) -> pa.RecordBatch:
        """What was yielded; what is no row has nulls. Raises what pyarrow does if a value does not fit."""
        rows = [one if isinstance(one, dict) else {} for one in made]
        return pa.RecordBatch.from_pylist(rows, self.schema)


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
    own, apart, together = _anchor_parts(frame)
    task = partial(_task, step.function, columns, [f.name for f in own])
    made = frame.select(*user_columns(frame), *apart).mapInArrow(
        task, StructType([*nullable, *own, *_MARKS])
    )
    return made.select(*user_columns(made), together, FAILED, DROPPED)


def _anchor_parts(frame: DataFrame) -> tuple[list[StructField], list[Column], Column]:
    """``_anchor`` on its way to Python and back: its columns there, how they are made of it, and it of
    them. Fields travel faster than the struct that they make; a list travels as it is."""
    anchor = frame.schema[ANCHOR].dataType
    if not isinstance(anchor, StructType):
        return [StructField(ANCHOR, anchor)], [F.col(ANCHOR)], F.col(ANCHOR)
    own = [StructField(f"_{f.name}", f.dataType, f.nullable) for f in anchor.fields]
    apart = [F.col(ANCHOR)[f.name].alias(f"_{f.name}") for f in anchor.fields]
    fields = [F.col(f"_{f.name}").alias(f.name) for f in anchor.fields]
    return own, apart, F.struct(*fields).alias(ANCHOR)


def _task(
    function: Callable[[Record], Iterator[Any]],
    columns: _Columns,
    own: list[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    names = [*columns.schema.names, *own, FAILED, DROPPED]
    for batch in batches:
        made = _run(function, batch.drop_columns(own).to_pylist())
        if not columns.fit(made):
            made = made.judged(columns.check)
        try:
            rows = columns.arrow(made.rows)
        except Exception:  # a value does not fit the schema: just its record fails
            made = made.judged(columns.arrow)
            rows = columns.arrow(made.rows)
        marks = [made.reasons(_Failure), made.reasons(Drop)]
        arrays = [*rows.columns, *made.anchors(batch.select(own)), *marks]
        yield pa.RecordBatch.from_arrays(arrays, names)


def _run(function: Callable[[Record], Iterator[Any]], records: list[Record]) -> _Made:
    """What each record becomes; whether it is as declared is for the whole batch to check."""
    made = _Made()
    rows, ends = made.rows, made.ends
    for record in records:
        before = len(rows)
        failure = NOTHING
        try:
            rows.extend(function(record))  # a step for each row would cost as much as the user's
        except FailedRecord as exc:
            failure = str(exc) or FailedRecord.__name__
            del rows[before:]
        except Exception as exc:  # a record's own failure is data, not the job's
            failure = f"{type(exc).__name__}: {exc}"
            del rows[before:]
        if len(rows) == before:
            rows.append(_Failure(failure))
        ends.append(len(rows))
    return made
