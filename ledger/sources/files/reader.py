"""Reads what a FileSource declares."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR, FILE, MESSAGE, NAMES, QUOTED, RAW, TEXT
from ledger.errors import InputError
from ledger.sources import listing
from ledger.sources.base import Claim, SourceReader
from ledger.sources.files import layouts as files
from ledger.sources.files import lines
from ledger.sources.files.multiline import TOO_LONG
from ledger.sources.files.source import FileSource
from ledger.sources.files.text import IS_LONG, READ, TextReader
from ledger.sources.parsing.typed import aligned, check_schema, checked, parsed_again, struct
from ledger.storage.paths import literal

_BETWEEN = "\x1f"  # of the columns of a header that is read by name


class Reader(SourceReader):
    """Reads one source."""

    def __init__(self, spark: SparkSession, source: FileSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        check_schema(self.schema)
        self._listed: Sequence[listing.FoundFile] = ()  # by this reader, not by the claim
        self._footers: Mapping[str, int] | None = None  # of Parquet: the records of each file

    @property
    def formats(self) -> Mapping[str, str]:
        """The options for the format of its dates and timestamps."""
        return self._source.options

    def records(self, claim: Claim) -> DataFrame:
        """All records: the schema's columns, ``FILE``, ``RAW``, ``ERROR``, ``QUOTED``. Checks
        headers first.

        Raises InputError when a header, or a Parquet file's schema, is not as declared, or when no
        file is there and one is due.
        """
        inputs: Sequence[listing.FoundFile] = claim.files
        if not self._source.incremental:
            missing = self._source.allow_missing
            inputs = listing.find_files(claim.source, claim.path, allow_missing=missing)
            self._listed = inputs
        if self._source.format == "parquet":
            return self._rows([file.path for file in inputs])
        return self._lines(inputs)

    def _rows(self, paths: list[str]) -> DataFrame:
        self._footers = files.check_parquet(paths, self.schema)
        reader = self._spark.read.schema(self.schema)
        if not paths:
            return checked(self._spark.createDataFrame([], self.schema), self.schema)
        rows = checked(reader.parquet(*literal(paths)), self.schema)
        path = rows.metadataColumn("_metadata")["file_path"]
        return rows.select("*", path.alias(FILE))

    def _lines(self, inputs: Sequence[listing.FoundFile]) -> DataFrame:
        """The records of text, file by file with the same columns."""
        source, paths = self._source, [file.path for file in inputs]
        layouts = [files.Layout(tuple(self.schema.names), tuple(paths), {})]
        if source.format == "csv" and source.header and paths:
            layouts = files.layouts(paths, self.schema, source.columns, self._form([]))
        by_path = {file.path: file for file in inputs}
        frames = []
        for layout in layouts:
            form = self._form(layout.names)
            text = TextReader(form, layout.paths, layout.headers)
            frame = text.frame(self._spark, [by_path[path] for path in layout.paths])
            frames.append(self._parsed(form, frame))
        return reduce(DataFrame.union, frames)

    def check_read(self, source: str, rows: int, stored: Callable[[], DataFrame]) -> None:
        """Raise InputError if a file has changed since ``records`` listed it, or if a Parquet file
        has another number of records by its footer than were read of it."""
        listing.require_unchanged(source, self._listed)
        if self._footers is None or rows == sum(self._footers.values()):
            return
        counts = stored().groupBy(FILE).count().collect()
        read = {_place(unquote(row[FILE])): row["count"] for row in counts}
        for path, expected in self._footers.items():
            count = read.get(_place(path), 0)
            if count != expected:
                raise InputError(
                    f"source file {path} of {source!r} is damaged: expected {expected} records by"
                    f" its footer, and Spark read {count}, as if a row group lay elsewhere in the"
                    " file than the footer says. Write the file again, then run this again"
                )

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records with ``MESSAGE``, in today's schema; what did not parse is parsed by it.

        A value that does not fit today's type fails its record.
        """
        if self._source.format == "parquet":
            return parsed_again(stored, self.schema)
        records = stored.where(F.col(ERROR).isNull())
        good = aligned(records, self.schema, self._source.options)
        spoilt = stored.where(F.col(ERROR).isNotNull())
        text = [
            F.col(RAW).cast("string").alias(TEXT),
            (F.col(ERROR) == TOO_LONG).alias(IS_LONG),  # it is as long as it was
        ]
        if NAMES not in stored.columns:
            again = self._parsed(self._form(self.schema.names), spoilt.select(MESSAGE, *text))
            return good.unionByName(again, allowMissingColumns=True)
        orders = [row[0] for row in spoilt.select(NAMES).distinct().collect()]
        for order in orders:
            own = spoilt.where(F.col(NAMES) == order).select(MESSAGE, *text)
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
        """Text as records: what its ``TEXT`` is parsed to, or without one what was read of it by
        columns."""
        parsed = lines.parsed(text, form)
        long = F.when(F.col(IS_LONG), TOO_LONG)
        columns = []
        for number, name in enumerate(self.schema.names):
            read = [F.col(READ)[str(number)]] if READ in text.columns else []
            columns.append(F.coalesce(*read, F.col(lines.quoted(name))).alias(name))
        marks = [
            F.coalesce(long, ERROR).alias(ERROR),
            # Aside: or Spark puts all columns into one method, which is too much for the JVM.
            F.when(long.isNull() & F.col(ERROR).isNotNull(), lines.aside(F.col(QUOTED))).alias(
                QUOTED
            ),
        ]
        others = [name for name in (MESSAGE, FILE) if name in parsed.columns]
        records = parsed.select(*others, *columns, RAW, *marks)
        if self._source.columns == "in_order":
            return records
        return records.withColumn(NAMES, F.lit(_BETWEEN.join(form.names)))


def _place(path: str) -> str:
    """A path or URL without its scheme, which Spark and fsspec may call otherwise."""
    return path.split("://", 1)[-1]
