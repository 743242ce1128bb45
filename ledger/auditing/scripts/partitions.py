"""Overwrites of some partitions: outputs with other partitions stay."""

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Partition, WrittenOutput, in_folder


def left_outputs(
    spark: SparkSession, output: WrittenOutput, live: Sequence[WrittenOutput]
) -> list[WrittenOutput]:
    """Return the outputs at the place of a new output that stay, because no partition of it
    replaces them.

    Ends the script if a partition replaces only part of an output. The audit cannot tell the
    records of such a part apart.
    """
    to = output.destination
    replaced = {to.emptied} if to.emptied else output.partitions(spark, to.replaces)
    left = []
    for each in live:
        has_same = to.kind == "table" or _folded(each) == _folded(output)
        partitions = each.partitions(spark, to.replaces) if has_same else set()
        if not has_same or (partitions & replaced and not partitions <= replaced):
            raise ScriptStop(
                f"replaces some of the partitions of {to.name} that were written at {each.place}: "
                "the audit cannot tell which records remain. Expected a write of all of them, or "
                "of others. Write each partition by itself"
            )
        if not partitions & replaced:
            left.append(each)
    return left


def partition_of(spark: SparkSession, values: Sequence[tuple[str | None, str]]) -> Partition:
    """Return the partition of PARTITION (name = value), from all its values and their types."""
    columns = [
        in_folder(F.lit(value).cast(kind)).alias(f"p{at}")
        for at, (value, kind) in enumerate(values)
    ]
    (row,) = spark.range(1).select(*columns).collect()
    return tuple(row)


def _folded(output: WrittenOutput) -> list[str]:
    return [name.lower() for name in output.destination.partitions]
