"""Record stages: a user's generator over Arrow batches, one record at a time, anchored for it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ledger.errors import StageError
from ledger.marks import Drop, FailedRecord
from ledger.spark.job import ANCHOR, DROPPED, FAILED, RESERVED
from ledger.spark.reading import struct
from ledger.steps import StageStep

NOTHING = "emitted nothing"

_OWN = StructType(
    [
        StructField(
            ANCHOR,
            StructType([StructField("root", LongType()), StructField("parent", LongType())]),
            nullable=False,
        ),
        StructField(FAILED, StringType()),
        StructField(DROPPED, StringType()),
    ]
)

Record = dict[str, Any]


def run_records(step: StageStep, frame: DataFrame) -> DataFrame:
    """The output of a record stage over an anchored frame, with ``_failed`` and ``_dropped``."""
    assert step.schema is not None
    declared = struct(step.schema)
    taken = sorted(RESERVED & set(declared.names))
    if taken:
        raise StageError(
            f"record stage {step.name!r} declares column {taken[0]!r}, a name of the ledger: rename it"
        )
    output = StructType([*declared.fields, *_OWN.fields])
    task = partial(_task, step.function, declared.names, to_arrow_schema(output, timezone="UTC"))
    return frame.mapInArrow(task, output)


def _task(
    function: Callable[[Record], Iterator[Any]],
    names: list[str],
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    known = frozenset(names)
    for batch in batches:
        anchors = batch.column(ANCHOR).to_pylist()
        records = batch.drop_columns([ANCHOR]).to_pylist()
        made = [
            _outputs(function, known, record, anchor)
            for record, anchor in zip(records, anchors, strict=True)
        ]
        yield _as_batch(made, schema)


def _outputs(
    function: Callable[[Record], Iterator[Any]],
    known: frozenset[str],
    record: Record,
    anchor: Record,
) -> list[Record]:
    """What one record becomes: its rows, or one row that says why there is none."""
    rows = []
    try:
        for made in function(record):
            if isinstance(made, Drop):
                rows.append({DROPPED: made.reason, ANCHOR: anchor})
            elif isinstance(made, dict) and made.keys() <= known:
                rows.append({**made, ANCHOR: anchor})
            else:
                raise TypeError(_misfit(made, known))
    except FailedRecord as exc:
        return [_failure(str(exc) or FailedRecord.__name__, anchor)]
    except Exception as exc:  # a record's own failure is data, not the job's
        return [_failure(f"{type(exc).__name__}: {exc}", anchor)]
    return rows or [_failure(NOTHING, anchor)]


def _misfit(made: object, known: frozenset[str]) -> str:
    if not isinstance(made, dict):
        return f"yielded {type(made).__name__}, expected a dict or dropped(reason)"
    return f"yielded column {min(made.keys() - known)!r}, the schema has {', '.join(sorted(known))}"


def _failure(reason: str, anchor: Record) -> Record:
    return {FAILED: reason, ANCHOR: anchor}


def _as_batch(made: list[list[Record]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one Arrow batch. If a value does not fit the schema, just its record fails."""
    try:
        return pa.RecordBatch.from_pylist([row for rows in made for row in rows], schema)
    except (pa.ArrowException, TypeError, ValueError):
        kept = [row for rows in made for row in _fitting(rows, schema)]
        return pa.RecordBatch.from_pylist(kept, schema)


def _fitting(rows: list[Record], schema: pa.Schema) -> list[Record]:
    try:
        pa.RecordBatch.from_pylist(rows, schema)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        return [_failure(f"{type(exc).__name__}: {exc}", rows[0][ANCHOR])]
    return rows
