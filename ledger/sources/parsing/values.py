"""Texts of records into values of declared types, without rounding, guessing or leaving out.

Spark's readers round decimals, read ``1,5`` as 15, a time of day as today's and the beginning of a
text as a date. Types of which that is so are read as texts, or wider, and converted here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import TEXT
from ledger.types.spark import nullable, rebuilt, walk

Kind = Callable[[T.DataType, str], T.DataType]

_DATE = r"\d{4}-\d{2}-\d{2}"
_CLOCK = r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
_TIMESTAMP = rf"{_DATE}([T ]{_CLOCK}(Z|[+-]\d{{2}}:?\d{{2}})?)?"
_LOCAL = rf"{_DATE}([T ]{_CLOCK})?"
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN|[+-]?Inf(inity)?"
# Numbers of JSON in whose record one is so large that a float, or a double, is infinite.
_LARGE: Mapping[type[T.DataType], str] = {
    T.FloatType: r"\d[eE]\+?0*[1-9]\d|\d{29}",
    T.DoubleType: r"\d[eE]\+?0*[1-9]\d\d|\d{200}",
}
# A number with an exponent that no other of so few digits has the double of, and that no decimal
# rounds to zero unseen.
MOST_DIGITS, MOST_EXPONENT = 15, 2  # digits
_SHORT = (
    rf"[+-]?(?=(?:\.?\d){{1,{MOST_DIGITS}}}\.?[eE])(?:\d+\.?\d*|\.\d+)"
    rf"[eE][+-]?0*\d{{1,{MOST_EXPONENT}}}"
)
MOST_CHARACTERS = 100  # of the text of a decimal: to make a number of more takes ever longer
_LONGEST = rf"(?=.{{1,{MOST_CHARACTERS}}}\z)"
_WHOLE, _TRUTH = r"[+-]?\d+", r"(?i)true|false"
# Of these Spark's reader of CSV also takes digits of other scripts, and a long s.
MISREAD = (T.IntegralType, T.BooleanType)
_FOREIGN = r"[\p{Nd}\x{17f}&&[^0-9]]"
_ASCII, _INTERVAL = r"\p{ASCII}++", r"[!-~](?:[ -~]*[!-~])?"  # a cast trims blanks
# Options of Spark's readers that are enforced here.
FORMATS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
_FINER = r"\.\d{6}\d*[1-9]"  # of what is kept to the microsecond
_TIME = (T.TimeType,) if hasattr(T, "TimeType") else ()  # which Spark has since 4.1
_INTERVALS = (T.DayTimeIntervalType, T.YearMonthIntervalType)
_TEXTUAL = (
    *(T.DateType, T.TimestampType, T.TimestampNTZType, *_TIME, *_INTERVALS),
    *(T.CharType, T.VarcharType, T.DecimalType),
)
_CONVERTED = (T.MapType, T.ByteType, T.DoubleType, T.FloatType, T.VariantType, *_TEXTUAL)
_TIME_FORMATS: Mapping[type[T.DataType], tuple[str, str]] = {
    T.DateType: ("dateFormat", _DATE),
    T.TimestampType: ("timestampFormat", _TIMESTAMP),
    T.TimestampNTZType: ("timestampNTZFormat", _LOCAL),
}


def parsed_type(kind: T.DataType, format: str) -> T.DataType:
    """The type that Spark's reader is to make of a field before it is converted."""
    return nullable(rebuilt(kind, partial(_parsed, format)))


def _parsed(format: str, kind: T.DataType) -> T.DataType:
    if isinstance(kind, _TEXTUAL):
        return T.StringType()
    if format == "csv" and isinstance(kind, T.DoubleType | T.FloatType):
        return T.StringType()
    if isinstance(kind, T.ByteType):  # of which the reader of JSON takes 255 for -1
        return T.ShortType()
    return kind


def converted(read: Column, kind: T.DataType, format: str, options: Mapping[str, str]) -> Column:
    """A field that was read as its ``parsed_type``, in its own type; null where it does not fit.

    ``TEXT`` is that of its record.
    """
    if not _changes(kind):
        return read
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.transform(read, lambda element: converted(element, inner, format, options))
    if isinstance(kind, T.MapType):
        inner, keys = kind.valueType, F.map_keys(read)
        entries = F.transform_values(
            read, lambda _, value: converted(value, inner, format, options)
        )
        return F.when(F.size(keys) == F.size(F.array_distinct(keys)), entries)
    if isinstance(kind, T.StructType):
        fields = [
            converted(read[field.name], field.dataType, format, options).alias(field.name)
            for field in kind.fields
        ]
        return F.when(read.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.DecimalType):
        return _decimal(read, kind, format)
    if isinstance(kind, T.DoubleType | T.FloatType):
        return _number(read, kind, format)
    if isinstance(kind, T.CharType | T.VarcharType):
        return F.when(F.length(read) <= kind.length, read)
    if isinstance(kind, T.ByteType):
        return read.try_cast(kind)
    if isinstance(kind, T.VariantType):  # of which numbers may have been rounded
        return read
    if isinstance(kind, _TIME):
        digits = rf"\.\d{{1,{kind.precision}}}0*" if kind.precision else r"\.0+"
        return _where(read, rf"\d{{2}}:\d{{2}}(:\d{{2}}({digits})?)?").try_cast(kind)
    if isinstance(kind, _INTERVALS):
        return F.when(~read.rlike(_FINER), _where(read, _INTERVAL)).try_cast(kind)
    return _utc_time(read, kind, options)


def from_text(text: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    """A text in another type, as a field of CSV is read; null where it does not fit."""
    if isinstance(parsed_type(kind, "csv"), T.StringType):
        return converted(text, kind, "csv", options)
    return F.when(~misread(text, kind), text.try_cast(kind))


def has_foreign(text: Column) -> Column:
    """Whether a text has a character of which Spark's reader of CSV may make a part of a number or
    of a truth value, though it is none."""
    return (F.octet_length(text) != F.length(text)) & text.rlike(_FOREIGN)


def misread(text: Column, kind: T.DataType) -> Column:
    """Whether a text is no value of a type of which Spark's reader of CSV may have made one."""
    if not isinstance(kind, MISREAD):
        return F.lit(False)
    return ~matches(text, _TRUTH if isinstance(kind, T.BooleanType) else _WHOLE)


def _changes(kind: T.DataType) -> bool:
    """Whether a value is converted after it was read, or a part of it. A map may have a key
    twice."""
    return any(isinstance(part, _CONVERTED) for _, part in walk(kind))


def matches(text: Column, pattern: str) -> Column:
    """Whether all of a text matches a pattern of Java, in which ``$`` also matches before a line
    break at the end."""
    return text.rlike(rf"\A(?:{pattern})\z")


def _where(text: Column, pattern: str) -> Column:
    """A text that matches as a whole; null in the place of any other."""
    return F.when(matches(text, pattern), text)


def _utc_time(text: Column, kind: T.DataType, options: Mapping[str, str]) -> Column:
    """A date or a timestamp in ISO 8601 or the option's format, and nothing beside it."""
    option, pattern = _TIME_FORMATS[type(kind)]
    layout = options.get(option)
    if layout is None:
        return _where(text, pattern).try_cast(kind)
    # In any case, so that it takes a long s for an s in a month or a letter of the pattern. Where
    # all of a pattern is optional, nothing would be the year 1970.
    texts = _where(text, _ASCII if layout.isascii() else r"(?s).+")
    return F.try_to_timestamp(texts, F.lit(layout)).cast(kind)


def _decimal(read: Column, kind: T.DecimalType, format: str) -> Column:
    """Exactly the number, or null. Only what looks like it is made a number of: with an exponent
    of eight digits that takes half a minute."""
    exactly = _exactly(kind)
    if format == "csv":
        return _where(read, exactly).try_cast(kind)
    text = _where(read, f"{exactly}|{_SHORT}")
    value = text.try_cast(kind)
    same = matches(text, exactly) | (value.cast("double") == text.try_cast("double"))
    return F.when(same, value)


def _exactly(kind: T.DecimalType) -> str:
    """The texts of which a decimal is made without rounding."""
    return rf"{_LONGEST}[+-]?(\d+(\.\d{{0,{kind.scale}}}0*)?|\.\d{{1,{max(kind.scale, 1)}}}0*)"


def _number(read: Column, kind: T.DataType, format: str) -> Column:
    """A number; one that is too large is none, unless the record writes that it is infinite."""
    value = read.try_cast(kind)
    finite = F.abs(value) != F.lit(float("inf"))
    if format == "json":
        return F.when(finite | ~F.col(TEXT).rlike(_LARGE[type(kind)]), value)
    return F.when(matches(read, _NUMBER) & (finite | F.contains(read, F.lit("Inf"))), value)


def misfits(read: Column, value: Column, kind: T.DataType) -> Column:
    """Whether something was read that did not become a value, at any depth."""
    if isinstance(kind, T.ArrayType):
        pairs = F.zip_with(
            read,
            value,
            lambda element, other: (
                misfits(element, other, kind.elementType)
                | (F.lit(not kind.containsNull) & other.isNull())
            ),
        )
        return F.coalesce(F.exists(pairs, lambda misfit: misfit), F.lit(False))
    if isinstance(kind, T.MapType):
        inner = T.ArrayType(kind.valueType, kind.valueContainsNull)
        return read.isNotNull() & (
            value.isNull() | misfits(F.map_values(read), F.map_values(value), inner)
        )
    if isinstance(kind, T.StructType):
        parts = [
            misfits(read[field.name], value[field.name], field.dataType)
            | (F.lit(not field.nullable) & value[field.name].isNull())
            for field in kind.fields
        ]
        return F.coalesce(read.isNotNull() & any_of(parts), F.lit(False))
    return read.isNotNull() & value.isNull()


def plain(kind: T.DataType) -> bool:
    """Whether a value that was read is always one of its type, at every depth."""
    return nullable(kind) == kind and not _changes(kind)


def nulls(
    column: Column, field: T.StructField, name: str, within: Column | None = None
) -> Iterator[tuple[Column, str]]:
    """Conditions under which a value, or a part of it, is null that may not be, each with the
    reason. ``within``: the struct that has it."""
    kind, absent = field.dataType, column.isNull()
    if not field.nullable:
        yield absent if within is None else within.isNotNull() & absent, f"{name} is null"
    if isinstance(kind, T.StructType):
        for part in kind.fields:
            yield from nulls(column[part.name], part, f"{name}.{part.name}", column)
    elif nullable(kind) != kind:
        yield misfits(column, column, kind), f"{name} has a null where none may be"


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of the conditions is true."""
    return reduce(lambda first, second: first | second, conditions, F.lit(False))


def allows(options: Mapping[str, str], name: str) -> bool:
    """Whether an option of the reader of JSON is on."""
    return options.get(name, "").lower() == "true"
