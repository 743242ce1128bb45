"""Convert columns of texts to a type, where the exact reader would make the same value.

A cast of Arrow fails for the whole column. So only texts that it is sure to convert are cast; any
other becomes null, and ``parsing.scalars`` may still convert it.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from ledger.types.spark import to_arrow_type

TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
# Of other signs and digits, such as +5 and those of Arabic, Spark makes numbers and Arrow none.
_INTEGERS: dict[type[T.DataType], str] = {
    T.ByteType: r"-?\d{1,3}",
    T.ShortType: r"-?\d{1,5}",
    T.IntegerType: r"-?\d{1,10}",
    T.LongType: r"-?(?:\d{1,18}|[1-8]\d{18})",  # each of which a long holds
}
# With so few digits none is infinite, and of all both make the nearest double.
_DOUBLE = r"-?\d{1,25}(?:\.\d{1,25})?(?:[eE][+-]?\d{1,2})?"
# A day that there is, of the year 0 too.
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    r"(?:\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_SECONDS = r":[0-5]\d(?:\.\d{1,6})?"
_CLOCK = r"[T ](?:[01]\d|2[0-3]):[0-5]\d"
_LOCAL = rf"{_DAY}(?:{_CLOCK}(?:{_SECONDS})?)?"
_UTC = rf"{_DAY}(?:{_CLOCK}(?:{_SECONDS}Z?)?)?"  # Spark takes no zone behind minutes
_ZONED = rf"{_DAY}{_CLOCK}{_SECONDS}[+-](?:0\d|1[0-7]):[0-5]\d"


def converts(kind: T.DataType) -> bool:
    """Return whether texts can be converted to this type."""
    if isinstance(kind, T.DecimalType):
        return 0 <= kind.scale <= kind.precision
    plain = (*_INTEGERS, T.DoubleType, T.BooleanType, *TIMES)
    return kind == T.StringType() or type(kind) in plain


def converted(texts: pa.StringArray, kind: T.DataType) -> pa.Array:
    """Convert texts to values; null for texts that are left to the exact reader."""
    if isinstance(kind, T.StringType):
        return texts
    if isinstance(kind, T.BooleanType):
        return _truths(texts)
    if isinstance(kind, T.IntegralType):
        return _integers(texts, kind)
    if isinstance(kind, TIMES):
        return _times(texts, kind)
    pattern = _decimal(kind) if isinstance(kind, T.DecimalType) else _DOUBLE
    return pc.cast(_matching(texts, pattern), to_arrow_type(kind))


def _matching(texts: pa.StringArray, pattern: str) -> pa.StringArray:
    """Return the texts that match as a whole, and null for all others."""
    return _where(texts, pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))


def _where(values: pa.Array, condition: pa.BooleanArray) -> pa.Array:
    """Return the values that meet the condition, and null for all others."""
    if pc.all(condition, min_count=0).as_py():
        return values
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _truths(texts: pa.StringArray) -> pa.BooleanArray:
    """Convert true and false in any case, of ASCII only: Java takes a long s for an s."""
    lower = pc.ascii_lower(texts)
    is_true = pc.equal(lower, "true")
    return _where(is_true, pc.or_(is_true, pc.equal(lower, "false")))


def _integers(texts: pa.StringArray, kind: T.IntegralType) -> pa.Array:
    values = pc.cast(_matching(texts, _INTEGERS[type(kind)]), pa.int64())
    integer = to_arrow_type(kind)
    if integer == pa.int64():
        return values
    most = 1 << (integer.bit_width - 1)
    fits = pc.and_(pc.greater_equal(values, -most), pc.less(values, most))
    return pc.cast(_where(values, fits), integer)


def _decimal(kind: T.DecimalType) -> str:
    """Return the pattern of texts that a decimal has enough digits for, without rounding."""
    whole = kind.precision - kind.scale
    digits = rf"\d{{1,{whole}}}" if whole else "0"
    return rf"-?{digits}(?:\.\d{{1,{kind.scale}}})?" if kind.scale else f"-?{digits}"


def _times(texts: pa.StringArray, kind: T.DataType) -> pa.Array:
    if isinstance(kind, T.DateType):
        return pc.cast(_matching(texts, _DAY), pa.date32())
    if isinstance(kind, T.TimestampNTZType):
        return pc.cast(_matching(texts, _LOCAL), pa.timestamp("us"))
    # Without a zone it is UTC, too: that of the session.
    in_utc = pc.cast(pc.utf8_rtrim(_matching(texts, _UTC), "Z"), pa.timestamp("us"))
    times = pc.cast(in_utc, pa.timestamp("us", "UTC"))
    if times.null_count == texts.null_count:
        return times
    return pc.coalesce(times, pc.cast(_matching(texts, _ZONED), times.type))
