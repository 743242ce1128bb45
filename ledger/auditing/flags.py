"""Conditions on rows as bits of whole numbers, which are collected for each record."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing.ids import OCCURRENCE_MASK, Ids
from ledger.auditing.sources import ID

_BITS = 62  # of a bigint
_FLAGS = "__ackledger_flags_"
_ROW = "__ackledger_row"


@dataclass(frozen=True)
class RecordFlags:
    """Conditions that hold for at least one row of each record. ``words``: a bit for each
    condition, by record.
    """

    records: Ids
    words: Sequence[Ids]

    def having(self, at: int) -> Ids:
        """Return the records that have a row for which the condition with this number holds."""
        bits = (self.words[at // _BITS] >> (at % _BITS)) & 1
        return cast(Ids, self.records[bits == 1])


def with_flags(frame: DataFrame, ids: Column, conditions: Sequence[Column]) -> DataFrame:
    """Return a row for each id in a row's list ``ids``: the id in ``ID``, and the conditions as
    bits.
    """
    return frame.select(F.explode(ids).alias(ID), *_words(conditions))


def with_any_flag(frame: DataFrame, ids: Column, conditions: Sequence[Column]) -> DataFrame:
    """Return the same as ``with_flags``, only for rows for which at least one condition holds.

    Spark must not evaluate the conditions for rows that a join or a filter drops: a cast or a
    division could raise an error there. A row number in the same projection prevents that.
    """
    number = F.monotonically_increasing_id().alias(_ROW)
    rows = frame.select(ids.alias(ID), *_words(conditions), number)
    names = [name for name in rows.columns if name.startswith(_FLAGS)]
    some = reduce(Column.__or__, [F.col(name) != 0 for name in names])
    return rows.where(some & (F.col(_ROW) >= 0)).select(F.explode(ID).alias(ID), *names)


def flags_of(rows: DataFrame) -> RecordFlags:
    """Combine the bits of all rows of each record. ``rows``: a frame from ``with_flags``."""
    names = [name for name in rows.columns if name.startswith(_FLAGS)]
    record = F.col(ID).bitwiseAND(F.lit(~OCCURRENCE_MASK)).alias(ID)
    bits = [F.bit_or(name).alias(name) for name in names]
    table = rows.groupBy(record).agg(*bits).orderBy(ID).toArrow()
    values = [np.asarray(column.to_numpy(), dtype=np.int64) for column in table.columns]
    return RecordFlags(values[0], values[1:])


def _words(conditions: Sequence[Column]) -> list[Column]:
    words = []
    for start in range(0, len(conditions), _BITS):
        bits = [
            F.when(condition, F.lit(1 << at)).otherwise(F.lit(0)).cast("bigint")
            for at, condition in enumerate(conditions[start : start + _BITS])
        ]
        words.append(reduce(Column.bitwiseOR, bits).alias(f"{_FLAGS}{start}"))
    return words
