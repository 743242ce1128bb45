"""Rows that cannot lie in a sink's folders as they are: an empty text makes the folder of null."""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from ledger.core.column_names import FAILED
from ledger.errors import StageError
from ledger.pipeline.steps import SinkStep
from ledger.spark.job import Witness

_MISPLACED = "misplaced"  # what a witness counts of them
_TAKEN_FOR_NULL = ("", "__HIVE_DEFAULT_PARTITION__")


def _reason(rows: DataFrame, step: SinkStep) -> Column:
    """Of each row why it cannot; null where it can."""
    texts = [name for name in step.sink.partition_by if _is_text(rows, name)]
    faults = [
        F.when(
            F.col(f"`{name}`").cast("string").isin(*_TAKEN_FOR_NULL),
            F.lit(
                f"column {name!r} of partition_by: expected null or a word, found an empty text, or"
                " that of Hive's default partition, of which the folder's name makes null"
            ),
        )
        for name in texts
    ]
    return F.coalesce(*faults, F.lit(None).cast("string"))


def counting_misplaced(step: SinkStep) -> Mapping[str, Callable[[DataFrame], Column]]:
    """What a witness is to count beside the rows."""
    if not step.sink.partition_by:
        return {}
    return {_MISPLACED: lambda rows: F.count(_reason(rows, step))}


def misplaced_rows(wrote: Witness, rows: DataFrame, step: SinkStep) -> DataFrame | None:
    """Those of the rows that ``wrote`` has seen on their way, with the reason as ``_failed``; None
    if there are none."""
    if not wrote.counted.get(_MISPLACED):
        return None
    return rows.withColumn(FAILED, _reason(rows, step)).where(F.col(FAILED).isNotNull())


def require_placed(wrote: Witness, rows: DataFrame, step: SinkStep) -> None:
    """Raise StageError if there is one; it belongs to no record that could fail with it."""
    misplaced = misplaced_rows(wrote, rows, step)
    row = None if misplaced is None else misplaced.first()
    if row is not None:
        raise StageError(
            f"sink {step.name!r}: {row[FAILED]}. Write a word instead in the step before the sink"
        )


def _is_text(rows: DataFrame, name: str) -> bool:
    texts = (StringType, BinaryType)
    return any(field.name == name and isinstance(field.dataType, texts) for field in rows.schema)
