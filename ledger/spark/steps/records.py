"""Record stages: a user's generator over Arrow batches, one record at a time, anchored for it."""

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import ANCHOR, DROPPED, FAILED, PREFIX, check_names
from ledger.pipeline.steps import StageStep
from ledger.sources.parsing.typed import struct
from ledger.spark.frames.inputs import user_columns
from ledger.spark.steps.record_task import Taking, transform
from ledger.types.fitting import yielded
from ledger.types.spark import without_lengths

_MARKS = [T.StructField(FAILED, T.StringType()), T.StructField(DROPPED, T.StringType())]


def run_records(step: StageStep, frame: DataFrame) -> DataFrame:
    """The output of a record stage over an anchored frame, with ``_failed`` and ``_dropped``."""
    assert step.schema is not None
    declared = struct(step.schema)
    check_names(f"record stage {step.name!r} declares", declared.names)
    # A row that only has a reason why there is none has nulls in every column.
    nullable = [T.StructField(f.name, without_lengths(f.dataType)) for f in declared.fields]
    own, apart, together = _anchor_parts(frame)
    rows = frame.select(*user_columns(frame), *apart)
    task = partial(
        transform,
        step.function,
        Taking(declared),
        yielded(declared),
        rows.columns,
        [f.name for f in own],
    )
    # By number: mapInArrow looks columns up by name, and takes one with a dot for a field.
    numbered = rows.toDF(*(f"_{number}" for number in range(len(rows.columns))))
    output = numbered.mapInArrow(task, T.StructType([*nullable, *own, *_MARKS]))
    return output.select(*user_columns(output), together, FAILED, DROPPED)


def _anchor_parts(frame: DataFrame) -> tuple[list[T.StructField], list[Column], Column]:
    """``_anchor`` on its way to Python and back: its columns there, how they are made of it, and it
    of them. Fields travel faster than the struct that they make; a list travels as it is."""
    anchor = frame.schema[ANCHOR].dataType
    if not isinstance(anchor, T.StructType):
        return [T.StructField(ANCHOR, anchor)], [F.col(ANCHOR)], F.col(ANCHOR)
    own = [T.StructField(f"{PREFIX}{f.name}", f.dataType, f.nullable) for f in anchor.fields]
    apart = [F.col(ANCHOR)[f.name].alias(f"{PREFIX}{f.name}") for f in anchor.fields]
    fields = [F.col(f"{PREFIX}{f.name}").alias(f.name) for f in anchor.fields]
    return own, apart, F.struct(*fields).alias(ANCHOR)
