"""Reasons of failed rows without the values of redacted columns, before they are stored."""

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from itertools import chain
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import ERROR, NAMES, RAW, is_own
from ledger.core.redaction import NOTHING, Redaction, found_pattern, without
from ledger.errors import MASK
from ledger.pipeline.pipeline import Pipeline
from ledger.sources.parsing.typed import struct
from ledger.types.spark import NESTED

_PARTED = (*NESTED, T.VariantType)


def redaction_of(pipeline: Pipeline, step: str, names: Collection[str]) -> Redaction:
    """What a step that reads these columns masks: nothing if none of them is redacted, and no
    source of its records, and no reference, has a column that is."""
    redact = Redaction.of(pipeline.redact)
    sources = {source.name: source.source for source in pipeline.sources()}
    read = [sources[name] for name in pipeline.graph.sources(step)]
    for each in pipeline.steps():
        read += pipeline.references(each).values()
    columns = chain(names, *(struct(source.schema).names for source in read))
    return redact if redact.columns and redact.among(columns) else NOTHING


def without_found(records: DataFrame, redact: Redaction) -> DataFrame:
    """Records of a source whose ``ERROR`` quotes no value of a record that may have a redacted
    column. Of no column, for in a record that did not parse a value may stand in the place of
    another."""
    if not redact.columns:
        return records
    names = [name for name in records.columns if not is_own(name)]
    hidden = F.regexp_replace(ERROR, found_pattern(names), f"$1{MASK}")
    if not redact.among(names):
        texts = [F.col(name).cast("string") for name in (RAW, NAMES) if name in records.columns]
        may_be = _udf(redact.may_be_in, T.BooleanType())
        failed = [F.when(F.col(ERROR).isNotNull(), text) for text in texts]
        hidden = F.when(may_be(*failed), hidden).otherwise(F.col(ERROR))
    return records.withColumn(ERROR, hidden)


def without_values(reason: Column, rows: DataFrame, redact: Redaction) -> Column:
    """A reason in which the values that its row has in redacted columns are masked; all of it where
    one of these has parts."""
    names = redact.among(name for name in rows.columns if not is_own(name))
    parted = [name for name in names if isinstance(rows.schema[name].dataType, _PARTED)]
    plain = [F.col(f"`{name}`").cast("string") for name in names if name not in parted]
    if plain:
        values = F.when(reason.isNotNull(), F.array(*plain))
        reason = _udf(_without, T.StringType())(reason, values)
    if parted:
        there = [F.col(f"`{name}`").isNotNull() for name in parted]
        hides = reason.isNotNull() & reduce(lambda left, right: left | right, there)
        reason = F.when(hides, F.lit(MASK)).otherwise(reason)
    return reason


def without_row(reason: Column, rows: DataFrame, redact: Redaction) -> Column:
    """A sink's reason for a row, whose values it may quote: as ``without_values``. Of all its
    columns where one that is redacted is not among them: a stage may have renamed it, and the words
    are no author's who could have known. In one line, once values that have several are masked."""
    names = [name for name in rows.columns if not is_own(name)]
    if redact.columns:
        lacks = len(redact.among(names)) < len(redact.columns)
        reason = without_values(reason, rows, Redaction.of(names) if lacks else redact)
    return F.regexp_replace(reason, r"\s*\R\s*", " ")


def _udf(function: Callable[..., Any], kind: T.DataType) -> Callable[..., Column]:
    """A function of rows. Said to be no Arrow's, for PySpark otherwise asks its type hints, and
    warns on each run that it learns nothing from them."""
    return F.udf(function, kind, useArrow=False)


def _without(reason: str | None, values: Sequence[str | None] | None) -> str | None:
    return None if reason is None else without(reason, [value for value in values or () if value])
