"""Reads what a FileSource declares."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from urllib.parse import unquote

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR, FILE, MESSAGE, NAMES, QUOTED, RAW, TEXT
from ledger.errors import InputError, IntegrityError
from ledger.sources import listing
from ledger.sources.base import Claim, SourceReader
from ledger.sources.files import layouts as files
from ledger.sources.files import lines
from ledger.sources.files.multiline import IS_LONG, TOO_LONG, text_records
from ledger.sources.files.source import FileSource
from ledger.sources.parsing.typed import aligned, check_schema, checked, parsed_again, struct
from ledger.storage.paths import literal

_BLANKS = " \t\r\f\v"
_TEXT = f"{TEXT} string, {FILE} string"
_FILE = f"_metadata.file_path AS {FILE}"
_IS_FIRST = "_ackledger_first"
_FIRST = f"_metadata.file_block_start = 0 AS {_IS_FIRST}"  # of a file's blocks the first
_BETWEEN = "\x1f"  # of the columns of a header that is read by name


class Reader(SourceReader):
    """Reads one source. ``records`` is lazy; after its action, ``repeated_headers`` is complete."""

    def __init__(self, spark: SparkSession, source: FileSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        check_schema(self.schema)
        self._read: list[_Text] = []
        self._listed: Sequence[listing.FoundFile] = ()  # by this reader, not by the claim
        self._footers: Mapping[str, int] | None = None  # of Parquet: the records of each file
        self._by_file = source.multiline

    def by_file(self, stored: DataFrame) -> bool:
        """Whether what was read must be reread, file by file, as it is from here on: a line
        whose quote does not close may begin a record of several lines, and one of these may look
        like a record. ``stored``: what was read."""
        again = not self._by_file and any(
            not stored.where(lines.is_unclosed(text.form)).isEmpty()
            for text in self._read[:1]
            if text.form.format == "csv"
        )
        self._by_file |= again
        return again

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
        return self._records([file.path for file in inputs])

    def _records(self, paths: list[str]) -> DataFrame:
        if self._source.format == "parquet":
            self._footers = files.check_parquet(paths, self.schema)
            reader = self._spark.read.schema(self.schema)
            if not paths:
                return checked(self._none(), self.schema)
            rows = checked(reader.parquet(*literal(paths)), self.schema)
            path = rows.metadataColumn("_metadata")["file_path"]
            return rows.select("*", path.alias(FILE))
        source = self._source
        if source.format == "csv" and source.header and paths:
            layouts = files.layouts(paths, self.schema, source.columns, self._form([]))
        else:
            layouts = [files.Layout(tuple(self.schema.names), tuple(paths), {})]
        self._read = [
            _Text(self._spark, self._form(layout.names), layout, self._by_file)
            for layout in layouts
        ]
        return self._united([self._parsed(text.form, text.records()) for text in self._read])

    def repeated_headers(self) -> DataFrame | None:
        """Lines equal to their file's header beyond the first: records that were left out."""
        headers = [
            self._parsed(text.form, self._spark.createDataFrame(extra, _TEXT))
            for text in self._read
            if (extra := text.repeated_headers())
        ]
        return self._united(headers) if headers else None

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
        records = lines.parsed(text, form)
        if IS_LONG in records.columns:
            long = F.when(F.col(IS_LONG), TOO_LONG)
            quoted = F.when(long.isNull(), F.col(QUOTED))
            records = records.withColumns({ERROR: F.coalesce(long, ERROR), QUOTED: quoted})
            records = records.drop(IS_LONG)
        if self._source.columns == "in_order":
            return records
        return records.withColumn(NAMES, F.lit(_BETWEEN.join(form.names)))

    def _united(self, parts: list[DataFrame]) -> DataFrame:
        return reduce(DataFrame.union, parts)

    def _none(self) -> DataFrame:
        return self._spark.createDataFrame([], self.schema)


def _place(path: str) -> str:
    """A path or URL without its scheme, which Spark and fsspec may call otherwise."""
    return path.split("://", 1)[-1]


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
        """``TEXT``, a string of raw bytes, and ``FILE``. Lazy."""
        paths = list(self._layout.paths)
        if not paths:
            return self._spark.createDataFrame([], _TEXT)
        if self._by_file:
            return text_records(self._spark, paths, self.form, self._layout.headers)
        text = self._spark.read.text(literal(paths)).selectExpr(f"value AS {TEXT}", _FILE, _FIRST)
        # Of CSV only an empty line is no record: one of blanks or separators has values.
        line = F.col(TEXT)
        is_record = line != ""
        if self.form.format == "json":
            is_record = line.startswith("{") | (F.trim(line, F.lit(_BLANKS)) != "")
        return self._without_headers(text).where(is_record)

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
            count = int(seen.get(f"header_{number}", 0))
            if count < due:
                raise IntegrityError(
                    f"{due} files begin with the header {text[:100]!r}, and Spark has counted"
                    f" {count}: they were changed while they were read, or its count is lost. Run"
                    " the step again",
                    quotes=[repr(text[:100])],
                )
            extra += [(text, None)] * (count - due)
        return extra

    def _without_headers(self, text: DataFrame) -> DataFrame:
        if not self._headers:
            return text.drop(_IS_FIRST)
        matches = [F.col(_IS_FIRST) & (F.col(TEXT) == header) for header in self._headers]
        counts = [
            F.count_if(match).alias(f"header_{number}") for number, match in enumerate(matches)
        ]
        is_header = reduce(lambda match, other: match | other, matches)
        return text.observe(self._observed, *counts).where(~is_header).drop(_IS_FIRST)
