"""Side inputs: read whole by every batch, and not tracked."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR
from ledger.core.run_request import Interval
from ledger.settings import Settings
from ledger.sources.base import Claim, Source
from ledger.sources.parsing.typed import with_quotes

if TYPE_CHECKING:
    from ledger.store.queries.batches import Batch


def read_reference(
    spark: SparkSession, settings: Settings, batch: "Batch", name: str, source: Source
) -> DataFrame:
    """A side input; a record of it that does not parse fails the stage that reads it, without its
    text: every reader of the ledger sees the failure."""
    interval = Interval(batch.interval_start, batch.interval_end, batch.params)
    reader = source.reader(spark)
    records = with_quotes(reader.records(Claim(name, source.path(settings, interval))))
    message = F.concat(F.lit(f"reference {name!r} ({source.place}): "), ERROR)
    parsed = F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(
        F.raise_error(message).cast("boolean")
    )
    return records.where(parsed).select(*(f"`{column}`" for column in reader.schema.names))
