"""Records that already have types: a value that does not fit the schema fails its record.

The schema is the one they were read with, or a later one.
"""

from collections.abc import Iterator, Mapping, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import ArithmeticException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from ledger.core.column_names import ERROR, MESSAGE, RAW, check_names, is_own
from ledger.errors import MARKS, QUOTE, UNQUOTE, DeclarationError, InputError, suggestion
from ledger.sources.parsing.scalars import value_of
from ledger.types.spark import NESTED, nullable, without_lengths


def struct(schema: StructType | str) -> StructType:
    """Return a schema as a StructType. A DDL string needs a running session. Raises
    DeclarationError for a string that is no columns in DDL.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except (ParseException, ArithmeticException, Py4JJavaError) as exc:  # what no type can be, too
        reason = exc.java_exception.getMessage() if isinstance(exc, Py4JJavaError) else exc
        raise DeclarationError(
            f"schema {schema!r}: expected a StructType or DDL, for example 'id INT, name STRING':"
            f" {reason}"
        ) from exc
    if not isinstance(parsed, StructType):
        raise DeclarationError(f"schema {schema!r}: expected columns, found one type")
    return parsed


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a frame without rows, as Spark reads files of the schema: every column may be null,
    and a text of limited length is a text.
    """
    columns = nullable(without_lengths(schema))
    assert isinstance(columns, StructType)
    return spark.createDataFrame([], columns)


def check_schema(schema: StructType) -> None:
    """Raise DeclarationError if a column has a name of the ledger, or one that Spark confuses."""
    check_names("the schema has", schema.names, error=DeclarationError)


def check_columns(where: str, columns: StructType, schema: StructType) -> None:
    """Raise InputError unless a frame has the schema's columns with their types.

    Nulls are checked record by record, not here.
    """
    types = {field.name: field.dataType for field in columns.fields}
    wrong = []
    for field in schema.fields:
        if field.name not in types or nullable(types[field.name]) != nullable(field.dataType):
            none = f"no such column{suggestion(field.name, types)}"
            has = types[field.name].simpleString() if field.name in types else none
            wrong.append(
                f"expected column {field.name} of type {field.dataType.simpleString()}, found {has}"
            )
    if wrong:
        raise InputError(f"{where}: {'; '.join(wrong)}")


def aligned(
    stored: DataFrame, schema: StructType, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return stored records in ``schema``, with ``MESSAGE`` if they have it.

    Columns that are not in the schema are left out. A value that does not fit, or would be rounded
    or cut, fails its record.

    ``options``: the formats of dates of their source.
    """
    columns, problems = [], []
    for field in schema.fields:
        value = F.col(f"`{field.name}`") if field.name in stored.columns else F.lit(None)
        had = stored.schema[field.name].dataType if field.name in stored.columns else NullType()
        column = _fitted(value, had, field.dataType, options or {})
        columns.append(column.alias(field.name))
        what = F.lit(f"{field.name}: expected {field.dataType.simpleString()}, found ")
        misfit = F.concat_ws("", what, quote_of(value.cast("string")))
        problems.append(F.when(value.isNotNull() & column.isNull(), misfit))
        for condition, reason in nulls(value, field, field.name):
            problems.append(F.when(condition, reason))
    own = [name for name in stored.columns if not is_own(name)]
    return stored.select(*_lasting(stored), *columns, *_marks(F.coalesce(*problems), own))


def parsed_again(stored: DataFrame, schema: StructType) -> DataFrame:
    """Return stored values in ``schema``.

    A record that did not fit before and may have lost some of its values stays as it is.
    """
    own = [f"`{name}`" for name in stored.columns if not is_own(name)]
    whole = F.col(RAW).eqNullSafe(F.to_json(F.struct(*own)).cast("binary"))
    is_intact = F.col(ERROR).isNull() | whole
    good = aligned(stored.where(is_intact).drop(RAW, ERROR), schema)
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    spoilt = stored.where(~is_intact)
    return good.unionByName(spoilt.select(*_lasting(stored), *nothing, RAW, ERROR))


def _lasting(stored: DataFrame) -> list[str]:
    """Return the columns that a record keeps when it is parsed again."""
    return [MESSAGE] if MESSAGE in stored.columns else []


def quote_of(words: Column) -> Column:
    """Mark words that are not ours in a reason, as ``ledger.errors.quote`` does."""
    return F.concat(F.lit(QUOTE), F.translate(words, MARKS, ""), F.lit(UNQUOTE))


def _fitted(value: Column, had: DataType, kind: DataType, options: Mapping[str, str]) -> Column:
    """Return a stored value in another type, without loss; null if that is not possible."""
    kind = nullable(kind)
    if nullable(had) == kind:
        return value
    if isinstance(had, NullType):
        return value.cast(kind)
    if isinstance(had, StringType):
        return from_text(value, kind, options)
    if isinstance(had, TimestampType) and isinstance(kind, DateType | TimestampNTZType):
        return F.lit(None).cast(kind)  # the offset that it was written with is not known
    result = value.try_cast(kind)
    return F.when(result.try_cast(had) == value, result)


def from_text(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """Convert a text to another type, as a field of CSV is read; null if it does not fit.

    No text fits a type with parts.
    """
    if isinstance(kind, (*NESTED, VariantType)):
        return F.lit(None).cast(kind)
    return F.udf(value_of(kind, options), without_lengths(kind))(text)


def checked(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows of the schema with ``RAW`` and ``ERROR``, set in rows with a null that is not
    allowed.
    """
    missing = [
        F.when(condition, reason)
        for field in schema.fields
        for condition, reason in nulls(F.col(f"`{field.name}`"), field, field.name)
    ]
    nothing = F.lit(None).cast("string")
    own = [name for name in rows.columns if not is_own(name)]
    return rows.select("*", *_marks(F.coalesce(nothing, *missing), own))


def _marks(error: Column, names: Sequence[str]) -> list[Column]:
    fields = F.struct(*(F.col(f"`{name}`") for name in names))
    raw = F.when(error.isNotNull(), F.to_json(fields)).cast("binary")
    return [raw.alias(RAW), error.alias(ERROR)]


def nulls(
    column: Column, field: StructField, name: str, within: Column | None = None
) -> Iterator[tuple[Column, str]]:
    """Yield the conditions under which a value or a part of it is null but may not be, with
    reasons.

    ``within``: the struct that has the value.
    """
    kind, absent = field.dataType, column.isNull()
    if not field.nullable:
        yield absent if within is None else within.isNotNull() & absent, f"{name} is null"
    if isinstance(kind, StructType):
        for part in kind.fields:
            yield from nulls(column[part.name], part, f"{name}.{part.name}", column)
    elif nullable(kind) != kind:
        yield _has_nulls(column, kind), f"{name} has a null where none may be"


def _has_nulls(value: Column, kind: DataType) -> Column:
    """Return whether a part of a value, at any depth, is null but may not be."""
    if isinstance(kind, MapType):
        return _has_nulls(F.map_values(value), ArrayType(kind.valueType, kind.valueContainsNull))
    if isinstance(kind, ArrayType):

        def is_wrong(element: Column) -> Column:
            null = F.lit(not kind.containsNull) & element.isNull()
            return null | _has_nulls(element, kind.elementType)

        return F.coalesce(F.exists(value, is_wrong), F.lit(False))
    wrong = F.lit(False)
    for field in kind.fields if isinstance(kind, StructType) else ():
        part = value[field.name]
        wrong |= F.lit(not field.nullable) & part.isNull() | _has_nulls(part, field.dataType)
    return value.isNotNull() & wrong
