"""The reader of an OffsetSource, whose frames need no parsing."""

from pyspark.sql import DataFrame, SparkSession

from ledger.sources.base import Claim, SourceReader
from ledger.sources.offsets.source import OffsetSource
from ledger.sources.parsing.typed import (
    check_columns,
    check_schema,
    checked,
    no_rows,
    parsed_again,
    struct,
)


class OffsetReader(SourceReader):
    """Reads one source from offset to offset."""

    def __init__(self, spark: SparkSession, source: OffsetSource):
        self._spark = spark
        self._source = source
        self.schema = struct(source.schema)
        check_schema(self.schema)

    def records(self, claim: Claim) -> DataFrame:
        """The schema's columns of what ``read`` returns, ``RAW`` and ``ERROR``. Raises
        InputError when one is missing or of another type."""
        if claim.end is None:
            return checked(no_rows(self._spark, self.schema), self.schema)
        frame = self._source.read(self._spark, claim.start, claim.end)
        check_columns(f"read of {self._source.shown}", frame.schema, self.schema)
        return checked(frame.select(*(f"`{name}`" for name in self.schema.names)), self.schema)

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records in today's schema, with ``MESSAGE`` where they have it; a value that
        does not fit fails its record. One that did not fit before is as it was, unless it still has
        all of its values."""
        return parsed_again(stored, self.schema)
