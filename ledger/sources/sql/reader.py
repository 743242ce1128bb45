"""Read ranges of a table's cursor, one Spark task each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ledger.core.column_names import ERROR, MESSAGE, RAW
from ledger.sources.base import Claim, SourceReader
from ledger.sources.parsing.exact import OF_FAILED
from ledger.sources.parsing.typed import aligned, check_schema, struct
from ledger.sources.sql import queries as source_tables
from ledger.sources.sql.cursor import Range, from_text
from ledger.sources.sql.source import SqlSource
from ledger.types.fitting import Fitting, of_table
from ledger.types.raw_rows import from_raw, raw


class TableReader(SourceReader):
    """Reader of one table. Raises DeclarationError if the schema lacks the cursor or cannot be
    read.
    """

    def __init__(self, spark: SparkSession, source: SqlSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        check_schema(self.schema)
        source.require_cursor(self.schema.names)
        self._fitting = of_table(self.schema)
        # A record that does not fit has nulls in every column.
        nullable = [StructField(field.name, field.dataType) for field in self.schema.fields]
        self._records = StructType([*nullable, *OF_FAILED])

    def records(self, claim: Claim) -> DataFrame:
        """Return the rows of the claimed range: the schema's columns, ``RAW`` and ``ERROR``."""
        if claim.end is None:
            return self.rows([])
        after = None if claim.start is None else from_text(claim.start)
        upto, parts = from_text(claim.end), self._source.partitions
        return self.rows(source_tables.slices(self._source, after, upto, parts))

    def rows(self, ranges: Sequence[Range]) -> DataFrame:
        """Return the rows of ``ranges``: the schema's columns, ``RAW`` and ``ERROR``; one task a
        range.

        Lazy, except for the check of the columns. Each task connects by itself; the address travels
        in its closure. Raises InputError if the table or a column is missing.
        """
        source_tables.require_columns(self._source, self.schema.names)
        if not ranges:
            return self._spark.createDataFrame([], self._records)
        address = self._source.address.render_as_string(hide_password=False)
        task = partial(
            _read,
            replace(self._source, url=address),
            self.schema,
            self._fitting,
            list(ranges),
        )
        numbers = self._spark.range(0, len(ranges), 1, len(ranges))
        return numbers.mapInArrow(task, self._records)

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Return stored records with ``MESSAGE`` in today's schema. Records that did not fit are
        fitted again.

        A value that does not fit today's type fails its record.
        """
        good = aligned(stored.where(F.col(ERROR).isNull()), self.schema)
        spoilt = stored.where(F.col(ERROR).isNotNull()).select(MESSAGE, RAW)
        shape = StructType([StructField(MESSAGE, LongType()), *self._records.fields])
        task = partial(_fit_again, self.schema.names, self._fitting)
        return good.unionByName(spoilt.mapInArrow(task, shape), allowMissingColumns=True)


def _read(
    source: SqlSource,
    schema: StructType,
    fitting: Fitting,
    ranges: Sequence[Range],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read ranges of the table in one task: the schema's columns, ``RAW`` and ``ERROR``. A row that
    does not fit the schema is null in each of its columns, with its raw text and the reason.

    ``numbers``: batches whose first column has the indexes of the ranges that this task reads.
    """
    names = schema.names
    texts = {field.name for field in schema.fields if isinstance(field.dataType, StringType)}
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            after, upto = ranges[number]
            for part in source_tables.rows(source, names, after, upto, texts):
                columns, misfits = fitting.fit(part)
                spoilt = [
                    None if misfit is None else raw(names, row)
                    for row, misfit in zip(part, misfits, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(
                    [*columns, *_marks(spoilt, misfits)], [*names, RAW, ERROR]
                )


def _fit_again(
    names: Sequence[str], fitting: Fitting, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fit records, stored as JSON, that did not fit when they were read."""
    for batch in batches:
        stored = batch.column(1).to_pylist()
        columns, misfits = fitting.fit([from_raw(names, raw) for raw in stored])
        spoilt = [
            None if misfit is None else raw for raw, misfit in zip(stored, misfits, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(
            [batch.column(0), *columns, *_marks(spoilt, misfits)], [MESSAGE, *names, RAW, ERROR]
        )


def _marks(spoilt: list[bytes | None], misfits: list[str | None]) -> list[pa.Array]:
    return [pa.array(spoilt, pa.binary()), pa.array(misfits, pa.string())]
