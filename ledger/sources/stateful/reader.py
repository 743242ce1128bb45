"""Reads what a StatefulSource gives: frames, of which nothing has to be parsed."""

from pyspark.sql import DataFrame, SparkSession

from ledger.core.stateful import StatefulSource
from ledger.sources.base import Claimed, SourceReader
from ledger.sources.parsing.typed import check_columns, check_schema, checked, parsed_again, struct


class FrameReader(SourceReader):
    """Reads on from where the hooks stand."""

    def __init__(self, spark: SparkSession, hooks: StatefulSource):
        self._spark = spark
        self._hooks = hooks
        self.schema = struct(hooks.schema)
        check_schema(self.schema)

    def records(self, claimed: Claimed) -> DataFrame:
        """The schema's columns of what ``read`` gives, ``RAW``, ``ERROR`` and ``QUOTED``. Raises
        InputError when one is missing or of another type."""
        frame = self._hooks.read(self._spark)
        check_columns(f"read of {self._hooks.shown}", frame.schema, self.schema)
        return checked(frame.select(*(f"`{name}`" for name in self.schema.names)), self.schema)

    def parse_again(self, stored: DataFrame) -> DataFrame:
        """Stored records in today's schema, with ``MESSAGE`` where they have it; a value that
        does not fit fails its record. One that did not fit before is as it was, unless it still has
        all of its values."""
        return parsed_again(stored, self.schema)
