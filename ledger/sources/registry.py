"""The kinds of sources that a pipeline can declare, and what reads each."""

from typing import TYPE_CHECKING

from ledger.core.stateful import StatefulSource
from ledger.sources.files.source import FileSource
from ledger.sources.table.source import TableSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ledger.sources.files.reader import FrameReader, Reader
    from ledger.sources.table.reader import TableReader

AnySource = FileSource | TableSource | StatefulSource


def reader_of(spark: "SparkSession", source: AnySource) -> "AnyReader":
    """The reader of a source."""
    from ledger.sources.files.reader import FrameReader, Reader
    from ledger.sources.table.reader import TableReader

    if isinstance(source, StatefulSource):
        return FrameReader(source)
    return TableReader(spark, source) if isinstance(source, TableSource) else Reader(spark, source)


if TYPE_CHECKING:
    AnyReader = Reader | TableReader | FrameReader
