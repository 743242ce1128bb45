"""Numbers of JSON as they are written, where a text or a decimal is to be made of them.

Spark's reader makes a double of a number with a point or an exponent, and the text of that double
of it. So such numbers are put in quotes, with a mark that no record has, and read as texts. Of a
VARIANT, which has a double of a number that no decimal holds, these are compared with the double.
"""

import re
from collections.abc import Mapping
from uuid import uuid4

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.sources.parsing.values import allows, any_of, matches, parsed_type
from ledger.types.spark import NESTED, nullable, rebuilt, walk

MARK = uuid4().hex
_END = r"(?=\s*+[,\]}])"
# Numbers that are the text of their double, and those with so few digits that a double has them.
_OWN_TEXT = (
    r"(?:0|-?+[1-9]\d{0,37}+|-?+(?:0|[1-9]\d{0,6}+)\.0|-?+[1-9]\d{0,6}+\.\d{0,7}[1-9]"
    rf"|-?+0\.(?!000)\d{{0,7}}[1-9]){_END}"
)
_FEW_DIGITS = rf"-?+(?:\d++|(?=[\d.]{{1,16}}+[^\d.])\d++\.\d++){_END}"
# A text that may have been made of a number, and how one begins that was made of anything else.
_TEXT_OF_NUMBER = r"[-+.\deE]++|[-+][NI]\w++"
_TEXT_OF_OTHER = '[{"NI'
_AS_DECIMAL = r"-?+(?:\d{1,38}+|(?=[\d.]{1,39}+(?![\d.]))\d++\.\d++|0\.\d{1,38}+)"  # in a VARIANT


def _number(options: Mapping[str, str]) -> str:
    """Return the pattern of a number. Other text is left as it is, and refused when parsed."""
    zeros = "" if allows(options, "allowNumericLeadingZeros") else r"(?!0\d)"
    number = rf"-?+{zeros}\d++(?:\.\d++)?+(?:[eE][-+]?+\d++)?+"
    if allows(options, "allowNonNumericNumbers"):
        number += r"|[-+]?+(?:NaN|INF|Infinity)(?!\w)"
    return f"(?:{number})"


def texts(kind: T.DataType) -> T.DataType:
    """The type in which marked numbers are read."""
    return nullable(rebuilt(kind, lambda _: T.StringType()))


def doubtful(
    text: Column, schema: T.StructType, options: Mapping[str, str], read: Column, corrupt: str
) -> Column:
    """Whether a line has a number of which Spark makes another text, or another decimal, and a
    column that might have got it.

    ``read``: what Spark has made of the line, with a column ``corrupt`` for what does not fit.
    """
    conditions = [F.lit(False)]
    for predicate, usual in (
        (_is_text, _OWN_TEXT),
        (_is_decimal, _FEW_DIGITS),
        (_is_variant, f"{_AS_DECIMAL}{_END}"),
    ):
        names = {re.escape(name) for name, kind in _leaves(schema) if predicate(kind)}
        if not names:
            continue
        number = f"(?!{usual}){_number(options)}"
        condition = text.rlike(rf"[:\[,]\s*+{number}")
        if not any("Quote" in name or "Unquoted" in name for name in options):
            # A backslash may be a part of a name that is written otherwise.
            named = rf'"(?:{"|".join(sorted(names))})"\s*+:\s*+(?:[\[{{]|{number})|\\'
            condition = text.rlike(named) & condition
        if predicate is _is_text:  # a text of a number looks like one: no line is searched
            got = [_got_number(read[field.name], field.dataType) for field in schema.fields]
            condition = any_of([*got, read[corrupt].isNotNull()]) & condition
        conditions.append(condition)
    return any_of(conditions)


def _got_number(value: Column, kind: T.DataType) -> Column:
    """Whether a value may be the text of a number, or may have one in it."""
    if isinstance(kind, NESTED):
        return value.isNotNull()
    if not _is_text(kind):
        return F.lit(False)
    first = F.ascii(value)
    number = first.between(ord("+"), ord("9")) & matches(value, _TEXT_OF_NUMBER)
    return number | first.isin([ord(character) for character in _TEXT_OF_OTHER])


def marked(text: Column, options: Mapping[str, str]) -> Column:
    """A line with each number that Spark might change in quotes, with a mark before it."""
    quoted = [r'"[^"\\]*+(?:\\.[^"\\]*+)*+"']
    if allows(options, "allowSingleQuotes"):
        quoted.append(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'")
    number = f"(?!{_OWN_TEXT}){_number(options)}{_END}"
    other = "|".join([rf"[^\"'\[:,]++|[\[:,](?!\s*+{number})", *quoted])
    return F.regexp_replace(
        text, F.lit(rf"(?s)\G((?:{other})*+[\[:,]\s*+)({number})"), F.lit(f'$1"{MARK}$2"')
    )


def unmarked(text: Column) -> Column:
    """A text that was read of a marked line, as the line has it."""
    plain = F.regexp_replace(text, F.lit(rf'"?{MARK}([^"]*+)"?'), F.lit("$1"))
    return F.when(F.contains(text, F.lit(MARK)), plain).otherwise(text)


def restored(read: Column, exact: Column, kind: T.DataType) -> Column:
    """Return the values that were read, with the texts and decimals of ``exact`` in place of
    theirs.

    A VARIANT that has another number than the line is null.

    ``exact``: the values of the marked line.
    """
    if not _leaves(kind):
        return read
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.zip_with(read, exact, lambda element, other: restored(element, other, inner))
    if isinstance(kind, T.MapType):
        inner = kind.valueType
        return F.transform_values(
            read, lambda key, value: restored(value, F.try_element_at(exact, key), inner)
        )
    if isinstance(kind, T.StructType):
        fields = [
            restored(read[field.name], exact[field.name], field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return F.when(read.isNotNull(), F.struct(*fields))
    if _is_variant(kind):
        return F.when(~F.coalesce(_is_rounded(exact), F.lit(False)), read)
    return unmarked(exact)


def _is_rounded(exact: Column) -> Column:
    """Whether a marked text has a number that is no decimal and has other digits than its double:
    of one that is too large or too small for a double, too."""
    pattern = rf"{MARK}(?!{_AS_DECIMAL}(?:\"|\z))(-?\d[^\"]*+)"
    numbers = F.regexp_extract_all(exact, F.lit(pattern))
    return F.exists(numbers, lambda number: _digits(number) != _digits(number.try_cast("double")))


def _digits(number: Column) -> Column:
    """The digits of a number that count, in order."""
    mantissa = F.regexp_replace(number.cast("string"), r"[eE].*|[-.]", "")
    return F.regexp_replace(mantissa, r"^0+|0+\z", "")


def _is_text(kind: T.DataType) -> bool:
    return isinstance(parsed_type(kind, "json"), T.StringType) and not _is_decimal(kind)


def _is_decimal(kind: T.DataType) -> bool:
    return isinstance(kind, T.DecimalType)


def _is_variant(kind: T.DataType) -> bool:
    return isinstance(kind, T.VariantType)


def _leaves(schema: T.DataType) -> list[tuple[str, T.DataType]]:
    """The texts, decimals and variants of a type, at every depth, each with the name that stands
    before it, or before the list or map that it is in."""
    return [
        (name, kind)
        for name, kind in walk(schema)
        if _is_text(kind) or _is_decimal(kind) or _is_variant(kind)
    ]
