"""Parse text into records without losing one: what does not parse keeps its bytes and a reason."""

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from ledger.errors import DeclarationError
from ledger.spark.job import RESERVED
from ledger.spark.names import check_names

CORRUPT = "_corrupt"
NOT_UTF8 = "not UTF-8"


def check_schema(schema: StructType) -> None:
    """Raise DeclarationError if a column has a name of the ledger, or one that Spark confuses."""
    check_names("the schema has", schema.names, taken=RESERVED | {CORRUPT}, error=DeclarationError)


def parsed(
    lines: DataFrame,
    format: str,
    schema: StructType,
    null_value: str | None,
    options: Mapping[str, str],
) -> DataFrame:
    """``lines`` (``value``: string of raw bytes, and others) with ``value`` replaced by the schema's
    columns, ``_raw`` (bytes) and ``_error``, both null where the record parsed.
    """
    value = F.col("value")
    others = [name for name in lines.columns if name != "value"]
    record = _parser(format, schema, null_value, options)(value)
    made = lines.select(*others, "value", record.alias("_record"))
    error = _error(format, schema)
    known = made.select(*others, "value", "_record", error.alias("_error"))
    good = F.col("_error").isNull()
    data = [F.when(good, F.col("_record")[name]).alias(name) for name in schema.names]
    raw = F.when(~good, value.cast("binary")).alias("_raw")
    return known.select(*others, *data, raw, "_error")


def _parser(
    format: str, schema: StructType, null_value: str | None, options: Mapping[str, str]
) -> Callable[[Column], Column]:
    nullable = [StructField(field.name, field.dataType, True) for field in schema.fields]
    target = StructType([*nullable, StructField(CORRUPT, StringType())])
    given = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    if format == "json":
        return lambda value: F.from_json(value, target, {**given, **options})
    # RFC 4180 doubles a quote inside quotes; Spark's own default, a backslash, keeps both.
    csv = {**given, "escape": '"', **({} if null_value is None else {"nullValue": null_value})}
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in target.fields)
    return lambda value: F.from_csv(value, ddl, {**csv, **options})


def _error(format: str, schema: StructType) -> Column:
    """Why a record does not parse; null if it does."""
    value, record = F.col("value"), F.col("_record")
    if format == "json":
        expected = (
            f"not one object with fields of the declared types ({schema.simpleString()[7:-1]})"
        )
        # from_json reads the first value of a line and forgets what follows it. Where the first
        # brace that closes is the last character nothing follows; else the line is parsed again.
        ends = F.instr(value, "}") == F.length(F.rtrim(value))
        single = F.json_array_length(F.concat(F.lit("["), value, F.lit("]"))) == 1
        alone = F.when(ends, F.lit(True)).otherwise(F.coalesce(single, F.lit(False)))
        well_formed = alone & F.ltrim(value).startswith("{")
    else:
        expected = f"not {len(schema.fields)} fields of the declared types"
        well_formed = F.lit(True)
    broken = record[CORRUPT].isNotNull() | ~well_formed
    checks = F.when(~F.is_valid_utf8(value), NOT_UTF8).when(
        broken, f"malformed {format}: {expected}"
    )
    required = [field.name for field in schema.fields if not field.nullable]
    return reduce(
        lambda chain, name: chain.when(
            record[name].isNull(), f"malformed {format}: {name} is null"
        ),
        required,
        checks,
    )
