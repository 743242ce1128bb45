"""Reads what a FileSource declares: the records of a source, or a side input."""

from collections import Counter
from functools import reduce

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger import listing, templates
from ledger.errors import InputError
from ledger.queries.batches import Batch
from ledger.settings import Settings
from ledger.sources import FileSource
from ledger.spark import files, lines
from ledger.stateful import StatefulSource

_BLANKS = " \t\r\f\v"
_TEXT = "value string, _file string"
_FILE = "_metadata.file_path AS _file"
_FIRST = "_metadata.file_block_start = 0 AS _first"  # of a file's blocks the first


class Reader:
    """Reads one source. ``records`` is lazy; after its action, ``repeated_headers`` is complete."""

    def __init__(self, spark: SparkSession, source: FileSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        lines.check_schema(self.schema)
        self._headers: Counter[str] = Counter()
        self._observed = Observation()

    def records(self, paths: list[str]) -> DataFrame:
        """All records: the schema's columns, ``_file``, ``_raw`` and ``_error``; checks headers at once.

        Raises InputError when a header, or a Parquet file's schema, is not as declared.
        """
        if self._source.format == "parquet":
            files.check_parquet(paths, self.schema)
            return _unspoilt(
                self._spark.read.schema(self.schema)
                .parquet(*files.literal(paths))
                .selectExpr("*", _FILE)
                if paths
                else self._none()
            )
        if self._source.format == "csv" and self._source.header:
            headers = files.check_headers(paths, self.schema, self._source.options)
            self._headers = Counter(headers.values())
        text = (
            self._spark.read.text(files.literal(paths)).selectExpr("value", _FILE, _FIRST)
            if paths
            else self._spark.createDataFrame([], f"{_TEXT}, _first boolean")
        )
        return self._parsed(
            self._without_headers(text).where(F.trim("value", F.lit(_BLANKS)) != "")
        )

    def repeated_headers(self) -> DataFrame | None:
        """Lines equal to their file's header beyond the first: records that were left out.

        The header is dropped by its text, within a file's first block, because text has no line
        numbers; a file that repeats it has a record of that very text.
        """
        if not self._headers:
            return None
        seen = self._observed.get
        extra = [
            (text, None)
            for number, (text, due) in enumerate(self._headers.items())
            for _ in range(int(seen[f"header_{number}"]) - due)
        ]
        return self._parsed(self._spark.createDataFrame(extra, _TEXT)) if extra else None

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records with ``_message``, in today's schema; what did not parse is parsed by it.

        A value that does not fit today's type fails its record.
        """
        good = aligned(stored.where(F.col("_error").isNull()), self.schema)
        if self._source.format == "parquet":
            return good
        spoilt = stored.where(F.col("_error").isNotNull())
        again = spoilt.select("_message", F.col("_raw").cast("string").alias("value"))
        return good.unionByName(self._parsed(again))

    def _parsed(self, text: DataFrame) -> DataFrame:
        source = self._source
        return lines.parsed(text, source.format, self.schema, source.null_value, source.options)

    def _without_headers(self, text: DataFrame) -> DataFrame:
        if not self._headers:
            return text.drop("_first")
        matches = [F.col("_first") & (F.col("value") == header) for header in self._headers]
        counts = [
            F.count_if(match).alias(f"header_{number}") for number, match in enumerate(matches)
        ]
        is_header = reduce(lambda one, other: one | other, matches)
        return text.observe(self._observed, *counts).where(~is_header).drop("_first")

    def _none(self) -> DataFrame:
        return self._spark.createDataFrame([], self.schema)


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
        return _unspoilt(frame.select(*(f"`{name}`" for name in self.schema.names)))

    def repeated_headers(self) -> None:
        """A frame has no headers."""
        return

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records in today's schema, with ``_message`` where they have it; a value that does not fit fails
        its record, one that did not fit before is as it was."""
        good = aligned(stored.where(F.col("_error").isNull()), self.schema)
        nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in self.schema.fields]
        names = [name for name in good.columns if name not in self.schema.names]
        spoilt = stored.where(F.col("_error").isNotNull())
        return good.unionByName(spoilt.select(*nothing, *names))


def find_files(name: str, source: FileSource, path: str) -> list[str]:
    """The files that ``path`` matches. Raises InputError if there is none and one is due."""
    paths = [file.path for file in listing.list_files(path)]
    if not paths and not source.allow_missing:
        raise InputError(
            f"source {name!r}: no file matches {path}. Bring the file and run the step again, "
            "or declare it with allow_missing=True"
        )
    return paths


def read_reference(
    spark: SparkSession, settings: Settings, batch: Batch, name: str, source: FileSource
) -> DataFrame:
    """A side input; a record of it that does not parse fails the stage that reads it."""
    path = templates.render(source.path, batch.interval_start, batch.interval_end, batch.params)
    reader = Reader(spark, source)
    records = reader.records(find_files(name, source, settings.data_path(path)))
    message = F.concat(
        F.lit(f"reference {name!r}: "), "_error", F.lit(": "), F.col("_raw").cast("string")
    )
    parsed = F.when(F.col("_error").isNull(), F.lit(True)).otherwise(
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


def aligned(stored: DataFrame, schema: StructType) -> DataFrame:
    """Stored records, with ``_message`` where they have it, cast to ``schema``; columns that it no longer has are left out.

    A value that does not fit fails its record.
    """
    columns, misfits = [], []
    for field in schema.fields:
        kept = F.col(f"`{field.name}`") if field.name in stored.columns else F.lit(None)
        cast = kept.try_cast(field.dataType)
        columns.append(cast.alias(field.name))
        what = f"{field.name}: expected {field.dataType.simpleString()}, found "
        text = F.concat(F.lit(what), kept.cast("string"))
        misfits.append(F.when(kept.isNotNull() & cast.isNull(), text))
    error = F.coalesce(*misfits)
    raw = F.when(error.isNotNull(), F.to_json(F.struct("*"))).cast("binary")
    message = [name for name in ("_message",) if name in stored.columns]
    return stored.select(*message, *columns, raw.alias("_raw"), error.alias("_error"))


def _unspoilt(rows: DataFrame) -> DataFrame:
    return rows.select(
        "*", F.lit(None).cast("binary").alias("_raw"), F.lit(None).cast("string").alias("_error")
    )
