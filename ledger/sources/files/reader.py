"""The reader of files that a FileSource declares."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.core.column_names import BETWEEN, ERROR, FILE, MESSAGE, NAMES, RAW
from ledger.core.paths import literal
from ledger.errors import DeclarationError, InputError
from ledger.sources import listing
from ledger.sources.base import Claim, FoundFile, SourceReader, WrittenFiles
from ledger.sources.files import absent, writing
from ledger.sources.files import layouts as files
from ledger.sources.files.format import Format
from ledger.sources.files.multiline import TOO_LONG
from ledger.sources.files.source import FileSource
from ledger.sources.files.text import TextReader, blocks_of
from ledger.sources.files.writing import Writer
from ledger.sources.parsing.exact import Parser, stored_schema
from ledger.sources.parsing.typed import (
    aligned,
    check_schema,
    checked,
    no_rows,
    parsed_again,
    struct,
)
from ledger.sources.version_files import ListedFile, take_version
from ledger.storage import stores
from ledger.storage.manifest import About, mark_of
from ledger.storage.versions import Version
from ledger.types.spark import walk

_IF_LOST = (
    "With copy=False a file has to stay as it is until its batch and the replays have ended. Bring"
    " the file back as it was, or declare the source without copy=False and reprocess the interval."
    " Write changed records to new files"
)
_TIME = "spark.sql.timeType.enabled"


_log = logging.getLogger(__name__)


class Reader(SourceReader):
    """Reader of one source of files."""

    def __init__(self, spark: SparkSession, source: FileSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        check_schema(self.schema)
        for name, kind in walk(self.schema):
            if kind.typeName() == "time" and spark.conf.get(_TIME, "false") != "true":
                raise DeclarationError(
                    f"column {name!r} is of type TIME, which this session of Spark has switched"
                    f" off: set {_TIME} to true, or declare STRING"
                )
        self._listed: Sequence[FoundFile] = ()  # by this reader, not by the claim
        self._footers: Mapping[str, int] | None = None  # of Parquet: the records of each file
        self._text: TextReader | None = None  # of JSON whose keys are yet to be compared
        self._keys: absent.Keys | None = None  # of headers, or of records of JSON

    @property
    def formats(self) -> Mapping[str, str]:
        """Return the options for the format of its dates and timestamps."""
        return self._source.options

    def null_columns(self, stored: Sequence[str] | None = None) -> Sequence[str]:
        """Return the columns that no record, or no header, has. Raises InputError if one may have
        been renamed at the source.
        """
        text, self._text = self._text, None
        if text is not None:
            present = (
                absent.first_paths(text)
                if stored is None
                else absent.stored_paths(self.schema, stored)
            )
            self._require(absent.keys_of_records(self._spark, text, self._source.optional, present))
        return [absent.shown(path) for path in self._keys.absent] if self._keys else ()

    def records(self, claim: Claim) -> DataFrame:
        """Return all records: the schema's columns, ``FILE``, ``RAW`` and ``ERROR``. Checks headers
        first.

        Raises InputError if a header or the schema of a Parquet file is not as declared, or if no
        file is there and one is due.
        """
        inputs = self._inputs(claim)
        if self._source.format == "parquet":
            paths = [file.path for file in inputs]
            self._footers = self._check_parquet(paths)
            if not paths:
                return checked(no_rows(self._spark, self.schema), self.schema)
            frame = self._spark.read.schema(self.schema).parquet(*literal(paths))
            rows = checked(frame, self.schema)
            return rows.select("*", rows.metadataColumn("_metadata")["file_path"].alias(FILE))
        frames = [
            self._with_names(reader.frame(self._spark), reader.form)
            for reader in self._readers(inputs)
        ]
        return reduce(DataFrame.union, frames)

    def version(self, claim: Claim) -> Version | None:
        """Return the files of a source with ``copy=False``. Return None, and log why, if a record
        may not fit the schema.
        """
        if self._source.copy:
            return None
        inputs = self._inputs(claim)
        self._footers = self._check_parquet([file.path for file in inputs])
        about = About(f"source files {claim.path}", _IF_LOST)
        listed = [ListedFile(file.path, file.bytes) for file in inputs]
        try:
            taken = take_version(about, self.schema, listed)
        except PySparkException as exc:  # of a type that Arrow does not have
            why: str | None = str(exc)
        else:
            why, version = taken.misfit, taken.version
        if why is None:
            entries = {file.path: stores.info(file.path) for file in version.files}
            marks = {path: mark_of(entry) for path, entry in entries.items() if entry is not None}
            return replace(version, marks=marks)
        _log.warning("source %s is copied: %s", claim.source, why)
        return None

    def check(self, claim: Claim) -> None:
        """Read headers of CSV and footers of Parquet. Raises InputError as ``records`` does."""
        paths = [file.path for file in self._inputs(claim)]
        if self._source.format == "parquet":
            self._check_parquet(paths)
        else:
            self._layouts(paths)

    def write(self, claim: Claim, folder: str) -> WrittenFiles | None:
        """Write the records of a claim to a folder: see ``SourceReader.write``.

        Return None, and write nothing, if the files are Parquet, which Spark reads, or if there are
        no records.
        """
        if self._source.format == "parquet":
            return None
        readers = list(self._readers(self._inputs(claim)))
        done = [
            Writer(reader, folder, number, self._source.by_name, writing.GROUP_BYTES).write(
                self._spark
            )
            for number, reader in enumerate(readers)
        ]
        names = tuple(name for written in done for name in written.names)
        rows, failed = sum(own.rows for own in done), sum(own.failed for own in done)
        return WrittenFiles(names, rows, failed) if names else None

    def _inputs(self, claim: Claim) -> Sequence[FoundFile]:
        if self._source.incremental:
            return claim.files
        missing = self._source.allow_missing
        files = listing.find_files(claim.source, claim.path, allow_missing=missing)
        self._listed = listing.require_unchanged(claim.source, files)
        return self._listed

    def _check_parquet(self, paths: list[str]) -> Mapping[str, int]:
        is_sensitive = self._spark.conf.get("spark.sql.caseSensitive", "false") == "true"
        return files.check_parquet(paths, self.schema, case_sensitive=is_sensitive)

    def _readers(self, inputs: Sequence[FoundFile]) -> Iterator[TextReader]:
        """Yield a reader of text for each group of files with the same columns."""
        by_path = {file.path: file for file in inputs}
        for layout in self._layouts(list(by_path)):
            form, own = self._form(layout.names), [by_path[path] for path in layout.paths]
            blocks = blocks_of(self._spark, own, form, layout.headers)
            reader = TextReader(form, blocks)
            if self._source.format == "json":
                self._text = reader
            yield reader

    def _require(self, keys: absent.Keys) -> None:
        """Note the columns that no record has. Raises InputError if one may be renamed."""
        where = self._source.path
        keys.require_known(where)
        for name in map(absent.shown, keys.absent if self._keys is None else ()):
            _log.warning("%s: no record has column %s: it is null in all of them", where, name)
        self._keys = keys

    def _layouts(self, paths: list[str]) -> list[files.Layout]:
        """Group the files of text by their columns. Raises InputError for a header that does not
        fit.
        """
        source = self._source
        if source.format == "csv" and source.header and paths:
            layouts = files.layouts(paths, self.schema, source.by_name, self._form([]))
            if source.by_name:
                read = [layout.names for layout in layouts if any(layout.headers.values())]
                headers = chain.from_iterable(read or [self.schema.names])
                self._require(absent.of_headers(self.schema, source.optional, headers))
            return layouts
        return [files.Layout(tuple(self.schema.names), tuple(paths), {})]

    def _with_names(self, records: DataFrame, form: Format) -> DataFrame:
        """Add the columns of their file to records, if columns are looked up by name."""
        if not self._source.by_name:
            return records
        return records.withColumn(NAMES, F.lit(BETWEEN.join(form.names)))

    def check_unchanged(self, source: str) -> None:
        """Raise InputError if a file has changed since ``records`` listed it."""
        listing.require_unchanged(source, self._listed)

    def check_read(self, source: str, rows: int, stored: Callable[[], DataFrame]) -> None:
        """Raise InputError if Spark read another number of records from a Parquet file than its
        footer states.
        """
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
        """Return stored records with ``MESSAGE`` in today's schema. Records that did not parse are
        parsed again.

        A value that does not fit today's type fails its record.
        """
        if self._source.format == "parquet":
            return parsed_again(stored, self.schema)
        records = stored.where(F.col(ERROR).isNull())
        good = aligned(records, self.schema, self._source.options)
        names = [name for name in (MESSAGE, NAMES) if name in stored.columns]
        spoilt = stored.where(F.col(ERROR).isNotNull()).select(*names, RAW, ERROR)
        if NAMES not in stored.columns:
            again = self._again(spoilt, self.schema.names)
            return good.unionByName(again, allowMissingColumns=True)
        orders = [row[0] for row in spoilt.select(NAMES).distinct().collect()]
        for order in orders:
            own = spoilt.where(F.col(NAMES).eqNullSafe(order))
            again = self._again(own, order.split(BETWEEN) if order else self.schema.names)
            good = good.unionByName(again, allowMissingColumns=True)
        return good

    def _again(self, spoilt: DataFrame, names: Sequence[str]) -> DataFrame:
        """Parse records by their ``RAW`` in today's schema, and keep their other columns.

        ``names``: the columns of their file.
        """
        form, spoilt = self._form(names), spoilt.drop(NAMES)
        others = [field for field in spoilt.schema.fields if field.name not in (RAW, ERROR)]
        schema = StructType([*others, *stored_schema(form.schema).fields])

        def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parser = Parser(form)
            for batch in batches:
                errors = batch.column(ERROR).to_pylist()
                # The rest of a record that is too long was not kept.
                failed = {number: why for number, why in enumerate(errors) if why == TOO_LONG}
                table = parser.parse(batch.column(RAW).to_pylist(), failed)
                columns = [*(batch.column(field.name) for field in others), *table.columns]
                yield from pa.table(columns, names=schema.names).to_batches()

        return self._with_names(spoilt.mapInArrow(parse, schema), form)

    def _form(self, names: Sequence[str]) -> Format:
        source = self._source
        return Format(
            source.format,
            self.schema,
            names,
            source.null_value,
            source.options,
            source.multiline,
        )


def _place(path: str) -> str:
    """Return a path or URL without its scheme, which Spark and fsspec may name differently."""
    return path.split("://", 1)[-1]
