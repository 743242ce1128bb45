"""Rows that fit in no folder of a sink: their text makes no folder's name, or that of null."""

import re
from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from ledger.core.column_names import FAILED
from ledger.pipeline.steps import SinkStep
from ledger.spark.job import Witness

_MISPLACED = "misplaced"  # what a witness counts of them
_TAKEN_FOR_NULL = ("", "__HIVE_DEFAULT_PARTITION__")
_MOST_BYTES = 255  # that a file system takes for the name of a folder
_ESCAPED = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""  # Spark writes three bytes for each


def _fault(name: str) -> Column:
    """Return why a text cannot be the name of a partition folder; null if it can."""
    text = F.col(f"`{name}`").cast("string")
    bytes_, escaped = F.octet_length(text), F.regexp_count(text, F.lit(_ESCAPED))
    room = _MOST_BYTES - len(re.sub(_ESCAPED, "%00", name).encode()) - len("=")
    is_long = (3 * bytes_ > room) & (bytes_ + 2 * escaped > room)

    def refusal(what: str) -> Column:
        return F.lit(f"column {name!r} of partition_by: expected null or a word, found {what}")

    return (
        F.when(
            text.isin(*_TAKEN_FOR_NULL),
            refusal(
                "an empty text, or that of Hive's default partition, of which the folder's name"
                " makes null"
            ),
        )
        .when(F.contains(text, F.lit("\0")), refusal("one with NUL, which makes no folder"))
        .when(~F.is_valid_utf8(text), refusal("bytes that are not UTF-8, which make no folder"))
        .when(
            is_long,
            refusal(
                f"a text whose folder would have a name of more than {_MOST_BYTES} bytes; Spark"
                " writes three bytes for a control character and for some signs"
            ),
        )
    )


def _reason(rows: DataFrame, step: SinkStep) -> Column:
    """Return why a row has no valid partition folder; null if it has one."""
    return F.coalesce(*map(_fault, _texts(rows, step)), F.lit(None).cast("string"))


def placeable(rows: DataFrame, step: SinkStep) -> DataFrame:
    """Return the rows with each text that cannot be a folder's name replaced by null. A single such
    text would make the writer fail for all rows.
    """
    texts = {name: F.when(_fault(name).isNull(), F.col(f"`{name}`")) for name in _texts(rows, step)}
    return rows.withColumns(texts) if texts else rows


def counting_misplaced(step: SinkStep) -> Mapping[str, Callable[[DataFrame], Column]]:
    """Return, by name, the count that a sink's witness needs: the rows without a valid partition
    folder.
    """
    if not step.sink.partition_by:
        return {}
    return {_MISPLACED: lambda rows: F.count(_reason(rows, step))}


def misplaced_number(wrote: Witness) -> int:
    """Return how many rows a sink's witness has counted without a valid partition folder."""
    return int(wrote.counted.get(_MISPLACED) or 0)


def misplaced_rows(wrote: Witness, rows: DataFrame, step: SinkStep) -> DataFrame | None:
    """Return the rows that ``wrote`` has counted as misplaced, with the reason as ``_failed``; None
    if there are none.
    """
    if not misplaced_number(wrote):
        return None
    return rows.withColumn(FAILED, _reason(rows, step)).where(F.col(FAILED).isNotNull())


def _texts(rows: DataFrame, step: SinkStep) -> list[str]:
    """Return the columns of ``partition_by`` that hold texts."""
    texts = (StringType, BinaryType)
    names = {field.name for field in rows.schema if isinstance(field.dataType, texts)}
    return [name for name in step.sink.partition_by if name in names]
