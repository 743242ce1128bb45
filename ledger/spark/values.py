"""Texts of records into values of declared types, without rounding, guessing or leaving out.

Spark's readers round decimals, read ``1,5`` as 15, a time of day as today's and the beginning of a
text as a date. Types of which that is so are read as texts, or wider, and converted here.
"""

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

Kind = Callable[[DataType, str], DataType]

_DATE = r"^\d{4}-\d{2}-\d{2}$"
_CLOCK = r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
_MOMENT = rf"^\d{{4}}-\d{{2}}-\d{{2}}([T ]{_CLOCK}(Z|[+-]\d{{2}}:?\d{{2}})?)?$"
_LOCAL = rf"^\d{{4}}-\d{{2}}-\d{{2}}([T ]{_CLOCK})?$"
_NUMBER = r"^([+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|NaN|[+-]?Inf(inity)?)$"
# Options of Spark's readers that are enforced here.
FORMATS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
_TEXTUAL = (DateType, TimestampType, TimestampNTZType, CharType, VarcharType)
_MOMENTS: Mapping[type[DataType], tuple[str, str]] = {
    DateType: ("dateFormat", _DATE),
    TimestampType: ("timestampFormat", _MOMENT),
    TimestampNTZType: ("timestampNTZFormat", _LOCAL),
}


def parsed_type(kind: DataType, format: str) -> DataType:
    """The type that Spark's reader is to make of a field before it is converted."""
    if isinstance(kind, ArrayType):
        return ArrayType(parsed_type(kind.elementType, format))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, parsed_type(kind.valueType, format))
    if isinstance(kind, StructType):
        fields = [StructField(one.name, parsed_type(one.dataType, format)) for one in kind.fields]
        return StructType(fields)
    if isinstance(kind, _TEXTUAL):
        return StringType()
    if format == "csv" and isinstance(kind, DecimalType | DoubleType | FloatType):
        return StringType()
    if isinstance(kind, DecimalType):  # a number of JSON, which as a text would be a double's
        return DecimalType(38, 38 - (kind.precision - kind.scale))
    return kind


def converted(read: Column, kind: DataType, format: str, options: Mapping[str, str]) -> Column:
    """A field that was read as ``parsed_type`` says, in its own type; null where it does not fit.

    ``value`` is the text of its record.
    """
    if not _changes(kind):
        return read
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return F.transform(read, lambda one: converted(one, inner, format, options))
    if isinstance(kind, MapType):
        inner = kind.valueType
        return F.transform_values(read, lambda _, one: converted(one, inner, format, options))
    if isinstance(kind, StructType):
        fields = [
            converted(read[one.name], one.dataType, format, options).alias(one.name)
            for one in kind.fields
        ]
        return F.when(read.isNotNull(), F.struct(*fields))
    if isinstance(kind, DecimalType):
        return _decimal(read, kind, format)
    if isinstance(kind, DoubleType | FloatType):
        return _number(read, kind, format)
    if isinstance(kind, CharType | VarcharType):
        return F.when(F.length(read) <= kind.length, read)
    return _moment(read, kind, options)


def _changes(kind: DataType) -> bool:
    """Whether a value is converted after it was read, or a part of it."""
    if isinstance(kind, ArrayType):
        return _changes(kind.elementType)
    if isinstance(kind, MapType):
        return _changes(kind.valueType)
    if isinstance(kind, StructType):
        return any(_changes(one.dataType) for one in kind.fields)
    return isinstance(kind, (DecimalType, DoubleType, FloatType, *_TEXTUAL))


def _moment(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """A date or a moment, written as ISO 8601 or as the option says, and nothing beside it."""
    option, pattern = _MOMENTS[type(kind)]
    given = options.get(option)
    if given is None:
        return F.when(text.rlike(pattern), text.try_cast(kind))
    return F.try_to_timestamp(text, F.lit(given)).cast(kind)


def _decimal(read: Column, kind: DecimalType, format: str) -> Column:
    """Exactly the number, or null."""
    made = read.try_cast(kind)
    if format == "json":
        return F.when(made == read, made)
    exact = rf"^[+-]?(\d+(\.\d{{0,{kind.scale}}}0*)?|\.\d{{1,{max(kind.scale, 1)}}}0*)$"
    return F.when(read.rlike(exact), made)


def _number(read: Column, kind: DataType, format: str) -> Column:
    """A number; one that is too large is none, unless the record writes that it is infinite."""
    made = read.try_cast(kind)
    written = F.col("value") if format == "json" else read
    fits = (F.abs(made) != F.lit(float("inf"))) | F.contains(written, F.lit("Inf"))
    return F.when(fits if format == "json" else read.rlike(_NUMBER) & fits, made)


def misfits(read: Column, made: Column, kind: DataType) -> Column:
    """Whether something was read that did not become a value, at any depth."""
    if isinstance(kind, ArrayType):
        pairs = F.zip_with(read, made, lambda one, other: misfits(one, other, kind.elementType))
        return F.coalesce(F.exists(pairs, lambda one: one), F.lit(False))
    if isinstance(kind, MapType):
        inner = ArrayType(kind.valueType)
        return misfits(F.map_values(read), F.map_values(made), inner)
    if isinstance(kind, StructType):
        found = [
            misfits(read[one.name], made[one.name], one.dataType)
            | (F.lit(not one.nullable) & made[one.name].isNull())
            for one in kind.fields
        ]
        any_of = reduce(lambda one, other: one | other, found, F.lit(False))
        return F.coalesce(read.isNotNull() & any_of, F.lit(False))
    return read.isNotNull() & made.isNull()


def plain(kind: DataType) -> bool:
    """Whether a value that was read is always one of its type, at every depth."""
    if isinstance(kind, ArrayType):
        return plain(kind.elementType)
    if isinstance(kind, MapType):
        return plain(kind.valueType)
    if isinstance(kind, StructType):
        return all(one.nullable and plain(one.dataType) for one in kind.fields)
    return not _changes(kind)


def textual(kind: DataType) -> bool:
    """Whether a field of CSV is read as a text and converted here."""
    return isinstance(parsed_type(kind, "csv"), StringType)
