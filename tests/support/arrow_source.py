"""A kind of source of one's own, a folder of Arrow files: docs/extending.md shows this module."""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from ledger.core import path_templates
from ledger.errors import InputError
from ledger.sources.base import Source, SourceReader
from ledger.sources.listing import find_files, new_files
from ledger.sources.parsing.typed import check_schema, checked, parsed_again, struct
from ledger.sources.registry import register
from ledger.types.ddl import arrow_schema


@register
@dataclass(frozen=True)
class ArrowSource(Source):
    """Files in Arrow's IPC format, read by interval or, with ``incremental``, each once."""

    place: str  # a glob, a template over the interval
    schema: str
    incremental: bool = False

    @property
    def not_reread(self):
        return "its next batch takes a corrected file as a whole" if self.incremental else None

    def path(self, settings, interval):
        place = path_templates.render(self.place, interval.start, interval.end, interval.params)
        return settings.data_path(place)

    def check(self, settings, name, interval):
        if interval is None and not path_templates.is_fixed(self.place):
            return f"{self.place} depends on the run"
        path = settings.data_path(self.place) if interval is None else self.path(settings, interval)
        files = find_files(name, path, allow_missing=self.incremental)
        for file in files:
            self.require_columns(file.path)
        return f"{len(files)} files match {path}"

    def latest(self, scope, start, room):
        return new_files(scope, room, count_rows) if self.incremental else scope.claim()

    def reader(self, spark):
        return ArrowReader(spark, self)

    def require_columns(self, file):
        schema = opened(file).schema
        for field in arrow_schema(self.schema):
            kind = schema.field(field.name).type if field.name in schema.names else "no such column"
            if kind != field.type:
                raise InputError(
                    f"{file}: expected column {field.name} of type {field.type}, found {kind}: "
                    "fix the file, or correct the schema"
                )


class ArrowReader(SourceReader):
    def __init__(self, spark, source):
        self._spark, self._source = spark, source
        self.schema = struct(source.schema)
        check_schema(self.schema)

    def records(self, claim):
        listed = claim.files
        if not self._source.incremental:
            listed = find_files(claim.source, claim.path)
        files = [file.path for file in listed]
        for file in files:
            self._source.require_columns(file)
        # A null where none may be fails its record, so until then any column may have one.
        rows = StructType([StructField(field.name, field.dataType) for field in self.schema.fields])
        if not files:
            return checked(self._spark.createDataFrame([], rows), self.schema)
        numbers = self._spark.range(0, len(files), 1, len(files))  # one task a file
        return checked(numbers.mapInArrow(reading(files, rows.names), rows), self.schema)

    def parse_again(self, stored):
        return parsed_again(stored, self.schema)


def reading(files, names):
    def read(numbers):  # defined here, it travels to the executors with what it uses
        import pyarrow

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with pyarrow.OSFile(files[number]) as stream, pyarrow.ipc.open_file(stream) as file:
                    for part in range(file.num_record_batches):
                        yield file.get_batch(part).select(names)

    return read


def opened(file):
    try:
        return pa.ipc.open_file(file)
    except (OSError, pa.ArrowInvalid) as exc:
        raise InputError(f"source file {file} cannot be read as Arrow: {exc}") from exc


def count_rows(file):
    reader = opened(file.path)
    return sum(reader.get_batch(part).num_rows for part in range(reader.num_record_batches))
