"""Reasons of failed rows without the values of redacted columns, before they are stored."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

from ledger.core.column_names import ERROR, RESERVED
from ledger.core.redaction import LONG, Redaction, found_pattern
from ledger.errors import MASK

_PARTED = (ArrayType, MapType, StructType, VariantType)


def without_found(records: DataFrame, redact: Redaction) -> DataFrame:
    """Records of a source whose ``_error`` quotes no value. Of no column, for in a record that did
    not parse a value may stand in the place of another."""
    if not redact.columns:
        return records
    names = [name for name in records.columns if name not in RESERVED]
    hidden = F.regexp_replace(ERROR, found_pattern(names), f"$1{MASK}")
    return records.withColumn(ERROR, hidden)


def without_values(reason: Column, rows: DataFrame, redact: Redaction) -> Column:
    """A reason in which the values that its row has in redacted columns are masked; all of it where
    one of these has parts."""
    names = redact.among(name for name in rows.columns if name not in RESERVED)
    parted = [name for name in names if isinstance(rows.schema[name].dataType, _PARTED)]
    plain = [F.col(f"`{name}`").cast("string") for name in names if name not in parted]
    if plain:
        given = F.filter(F.array(*map(_stripped, plain)), lambda one: F.length(one) > 0)
        values = F.concat(given, F.transform(given, _as_json))
        longest = F.array_sort(values, lambda one, other: F.length(other) - F.length(one))
        pattern = F.array_join(F.transform(longest, _quoted), "|")
        hidden = F.regexp_replace(reason, F.concat(F.lit("(?iU)"), pattern), F.lit(MASK))
        reason = F.when(reason.isNull() | (F.size(values) == 0), reason).otherwise(hidden)
    if parted:
        there = [F.col(f"`{name}`").isNotNull() for name in parted]
        hides = reason.isNotNull() & reduce(lambda one, other: one | other, there)
        reason = F.when(hides, F.lit(MASK)).otherwise(reason)
    return reason


def without_row(said: Column, rows: DataFrame, redact: Redaction) -> Column:
    """What a sink says of a row, whose values it may quote: as ``without_values``. Of all its
    columns where one that is redacted is not among them: a stage may have renamed it, and the words
    are no author's who could have known. In one line, once values that have several are masked."""
    names = [name for name in rows.columns if name not in RESERVED]
    if redact.columns:
        lacks = len(redact.among(names)) < len(redact.columns)
        said = without_values(said, rows, Redaction.of(names) if lacks else redact)
    return F.regexp_replace(said, r"\s*\R\s*", " ")


def _as_json(value: Column) -> Column:
    """A text as it stands within JSON, without its quotes."""
    text = F.to_json(F.array(value))
    return F.substring(text, F.lit(3), F.length(text) - F.lit(4))


def _stripped(value: Column) -> Column:
    return F.regexp_replace(value, r"(?U)^\s+|\s+$", "")


def _quoted(value: Column) -> Column:
    """A pattern of just this text; of a short one as a whole word."""
    plain = F.replace(value, F.lit("\\E"), F.lit("\\E\\\\E\\Q"))  # it ends what is taken literally
    text = F.concat(F.lit("\\Q"), plain, F.lit("\\E"))
    word = F.concat(F.lit("(?<!\\w)"), text, F.lit("(?!\\w)"))
    return F.when(F.length(value) < LONG, word).otherwise(text)
