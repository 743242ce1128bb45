"""Reads what a FileSource declares: the records of a source, or a side input."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType, StringType, StructField, StructType

from ledger.core import path_templates
from ledger.core.column_names import ERROR, MESSAGE, NAMES, RAW, RESERVED
from ledger.core.stateful import StatefulSource
from ledger.errors import IntegrityError
from ledger.settings import Settings
from ledger.sources.files import layouts as files
from ledger.sources.files import lines, listing
from ledger.sources.files.multiline import text_records
from ledger.sources.files.source import FileSource
from ledger.sources.parsing import values
from ledger.store.queries.batches import Batch

_BLANKS = " \t\r\f\v"
_TEXT = "value string, _file string"
_FILE = "_metadata.file_path AS _file"
_FIRST = "_metadata.file_block_start = 0 AS _first"  # of a file's blocks the first
_BETWEEN = "\x1f"  # of the columns of a header that is read by name


class Reader:
    """Reads one source. ``records`` is lazy; after its action, ``repeated_headers`` is complete."""

    def __init__(self, spark: SparkSession, source: FileSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        lines.check_schema(self.schema)
        self._read: list[_Text] = []
        self._by_file = source.multiline

    def by_file(self, stored: DataFrame) -> bool:
        """Whether what was read has to be read again, file by file, as it is from here on: a line
        whose quote does not close may begin a record of several lines, and one of these may look
        like a record. ``stored``: what was read."""
        again = not self._by_file and any(
            not stored.where(lines.is_unclosed(one.form)).isEmpty()
            for one in self._read[:1]
            if one.form.format == "csv"
        )
        self._by_file |= again
        return again

    def records(self, paths: list[str]) -> DataFrame:
        """All records: the schema's columns, ``_file``, ``_raw`` and ``_error``; checks headers first.

        Raises InputError when a header, or a Parquet file's schema, is not as declared.
        """
        if self._source.format == "parquet":
            files.check_parquet(paths, self.schema)
            reader = self._spark.read.schema(self.schema)
            if not paths:
                return checked(self._none(), self.schema)
            found = checked(reader.parquet(*files.literal(paths)), self.schema)
            return found.selectExpr("*", _FILE)
        source = self._source
        if source.format == "csv" and source.header and paths:
            layouts = files.layouts(paths, self.schema, source.columns, self._form([]))
        else:
            layouts = [files.Layout(tuple(self.schema.names), tuple(paths), {})]
        self._read = [
            _Text(self._spark, self._form(one.names), one, self._by_file) for one in layouts
        ]
        return self._united([self._parsed(one.form, one.records()) for one in self._read])

    def repeated_headers(self) -> DataFrame | None:
        """Lines equal to their file's header beyond the first: records that were left out."""
        found = [
            self._parsed(one.form, self._spark.createDataFrame(extra, _TEXT))
            for one in self._read
            if (extra := one.repeated_headers())
        ]
        return self._united(found) if found else None

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records with ``_message``, in today's schema; what did not parse is parsed by it.

        A value that does not fit today's type fails its record.
        """
        if self._source.format == "parquet":
            return _judged_again(stored, self.schema)
        kept = stored.where(F.col(ERROR).isNull())
        good = aligned(kept, self.schema, self._source.options)
        spoilt = stored.where(F.col(ERROR).isNotNull())
        raw = F.col(RAW).cast("string").alias("value")
        if NAMES not in stored.columns:
            again = self._parsed(self._form(self.schema.names), spoilt.select(MESSAGE, raw))
            return good.unionByName(again, allowMissingColumns=True)
        orders = [row[0] for row in spoilt.select(NAMES).distinct().collect()]
        for order in orders:
            own = spoilt.where(F.col(NAMES) == order).select(MESSAGE, raw)
            again = self._parsed(self._form(order.split(_BETWEEN)), own)
            good = good.unionByName(again, allowMissingColumns=True)
        return good

    def _form(self, names: Sequence[str]) -> lines.Format:
        source = self._source
        return lines.Format(
            source.format,
            self.schema,
            names,
            source.null_value,
            source.options,
            source.multiline,
        )

    def _parsed(self, form: lines.Format, text: DataFrame) -> DataFrame:
        made = lines.parsed(text, form)
        if self._source.columns == "in_order":
            return made
        return made.withColumn(NAMES, F.lit(_BETWEEN.join(form.names)))

    def _united(self, parts: list[DataFrame]) -> DataFrame:
        return reduce(DataFrame.union, parts)

    def _none(self) -> DataFrame:
        return self._spark.createDataFrame([], self.schema)


class _Text:
    """The records of files of one layout, as text."""

    def __init__(
        self, spark: SparkSession, form: lines.Format, layout: files.Layout, by_file: bool
    ):
        self.form = form
        self._by_file = by_file
        self._spark = spark
        self._layout = layout
        self._headers = Counter(layout.headers.values())
        self._observed = Observation()

    def records(self) -> DataFrame:
        """``value``, a string of raw bytes, and ``_file``. Lazy."""
        paths = list(self._layout.paths)
        if not paths:
            return self._spark.createDataFrame([], _TEXT)
        if self._by_file:
            return text_records(self._spark, paths, self.form, self._layout.headers)
        text = self._spark.read.text(files.literal(paths)).selectExpr("value", _FILE, _FIRST)
        # Of CSV only an empty line is no record: one of blanks or separators has values.
        line = F.col("value")
        record = F.trim(line, F.lit(_BLANKS)) if self.form.format == "json" else line
        return self._without_headers(text).where(record != "")

    def repeated_headers(self) -> list[tuple[str, None]]:
        """Lines equal to their file's header beyond the first.

        The header is dropped by its text, within a file's first block, because text has no line
        numbers; a file that repeats it has a record of that very text.
        """
        if not self._headers or self._by_file:
            return []
        seen = self._observed.get
        extra: list[tuple[str, None]] = []
        for number, (text, due) in enumerate(self._headers.items()):
            found = int(seen.get(f"header_{number}", 0))
            if found < due:
                raise IntegrityError(
                    f"{due} files begin with the header {text[:100]!r}, and Spark has counted {found}: they "
                    "were changed while they were read, or its count is lost. Run the step again"
                )
            extra += [(text, None)] * (found - due)
        return extra

    def _without_headers(self, text: DataFrame) -> DataFrame:
        if not self._headers:
            return text.drop("_first")
        matches = [F.col("_first") & (F.col("value") == header) for header in self._headers]
        counts = [
            F.count_if(match).alias(f"header_{number}") for number, match in enumerate(matches)
        ]
        is_header = reduce(lambda one, other: one | other, matches)
        return text.observe(self._observed, *counts).where(~is_header).drop("_first")


class FrameReader:
    """Takes what a StatefulSource reads: a frame, which nothing has to be parsed of."""

    def __init__(self, source: StatefulSource):
        self._source = source
        self.schema = struct(source.schema)
        lines.check_schema(self.schema)

    def records(self, frame: DataFrame) -> DataFrame:
        """The schema's columns of the frame, ``_raw`` and ``_error``. Raises InputError when one is missing or
        of another type."""
        files.check_columns(f"read of {self._source.shown}", frame.schema, self.schema)
        return checked(frame.select(*(f"`{name}`" for name in self.schema.names)), self.schema)

    def repeated_headers(self) -> None:
        """A frame has no headers."""
        return

    def by_file(self, stored: DataFrame) -> bool:
        """A frame has no lines."""
        return False

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records in today's schema, with ``_message`` where they have it; a value that does not fit fails
        its record. One that did not fit before is as it was, unless it still has all of its values."""
        return _judged_again(stored, self.schema)


def read_reference(
    spark: SparkSession, settings: Settings, batch: Batch, name: str, source: FileSource
) -> DataFrame:
    """A side input; a record of it that does not parse fails the stage that reads it, without its
    text: whoever reads the ledger sees the failure."""
    path = path_templates.render(
        source.path, batch.interval_start, batch.interval_end, batch.params
    )
    reader = Reader(spark, source)
    records = reader.records(listing.find_files(name, source, settings.data_path(path)))
    message = F.concat(F.lit(f"reference {name!r} ({path}): "), ERROR)
    parsed = F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(
        F.raise_error(message).cast("boolean")
    )
    return records.where(parsed).select(*(f"`{column}`" for column in reader.schema.names))


def struct(schema: StructType | str) -> StructType:
    """A schema given as a StructType or a DDL string; needs a running session for the latter."""
    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


def aligned(
    stored: DataFrame, schema: StructType, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Stored records, with ``_message`` where they have it, in ``schema``; columns that it no longer
    has are left out. ``options``: of their source, how it writes dates.

    A value that does not fit, or would be rounded or cut, fails its record.
    """
    columns, misfits = [], []
    for field in schema.fields:
        kept = F.col(f"`{field.name}`") if field.name in stored.columns else F.lit(None)
        had = stored.schema[field.name].dataType if field.name in stored.columns else NullType()
        made = _fitted(kept, had, field.dataType, options or {})
        columns.append(made.alias(field.name))
        what = f"{field.name}: expected {field.dataType.simpleString()}, found "
        text = F.concat(F.lit(what), kept.cast("string"))
        misfits.append(F.when(kept.isNotNull() & made.isNull(), text))
        misfits += [F.when(*one) for one in _nulls(kept, field)]
    message = [name for name in (MESSAGE,) if name in stored.columns]
    own = [name for name in stored.columns if name not in RESERVED]
    return stored.select(*message, *columns, *_marks(F.coalesce(*misfits), own))


def _judged_again(stored: DataFrame, schema: StructType) -> DataFrame:
    """Stored values in ``schema``. Of a record that did not fit before they may be gone: then it is as
    it was."""
    own = [f"`{name}`" for name in stored.columns if name not in RESERVED]
    whole = F.col(RAW).eqNullSafe(F.to_json(F.struct(*own)).cast("binary"))
    kept = F.col(ERROR).isNull() | whole
    good = aligned(stored.where(kept).drop(RAW, ERROR), schema)
    nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in schema.fields]
    names = [name for name in good.columns if name not in schema.names]
    return good.unionByName(stored.where(~kept).select(*nothing, *names))


def _fitted(kept: Column, had: DataType, kind: DataType, options: Mapping[str, str]) -> Column:
    """A stored value in another type, without loss; null where that cannot be."""
    kind = values.nullable(kind)
    if values.nullable(had) == kind:
        return kept
    if isinstance(had, NullType):
        return kept.cast(kind)
    if isinstance(had, StringType):
        return values.from_text(kept, kind, options)
    made = kept.try_cast(kind)
    return F.when(made.try_cast(had) == kept, made)


def checked(rows: DataFrame, schema: StructType) -> DataFrame:
    """Rows of the schema with ``_raw`` and ``_error``: of those with a null where none may be."""
    missing = [
        F.when(condition, reason)
        for field in schema.fields
        for condition, reason in _nulls(F.col(f"`{field.name}`"), field)
    ]
    return rows.select("*", *_marks(F.coalesce(F.lit(None).cast("string"), *missing), rows.columns))


def _nulls(column: Column, field: StructField) -> Iterator[tuple[Column, str]]:
    """Conditions under which a value, or a part of it, is null that may not be, each with the reason."""
    if not field.nullable:
        yield column.isNull(), f"{field.name} is null"
    yield from values.nulls(column, field.dataType, field.name)


def _marks(error: Column, names: Sequence[str]) -> list[Column]:
    fields = F.struct(*(F.col(f"`{name}`") for name in names))
    raw = F.when(error.isNotNull(), F.to_json(fields)).cast("binary")
    return [raw.alias(RAW), error.alias(ERROR)]
