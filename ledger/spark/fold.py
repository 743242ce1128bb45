"""Deltas: what a run adds to each root's ack value, folded to one row per root.

An edge, one row on its way to one consumer, has the id ``xxhash64(run, position, consumer, root)``.
It is a function of where the row is stored, so two readings of the same files agree, and equal
siblings differ. See CONCEPTS of Storm's acker: an edge is XORed in twice, when it is emitted and
when its consumer acks it.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

COLUMNS = ("root", "delta", "acked", "emitted_edges", "acked_edges", "reason", "detail")


def edge(run_id: int, position: Column, consumer: str, root: Column) -> Column:
    """64-bit id of the edge from the row at ``position`` of a run's output to ``consumer``."""
    return F.xxhash64(F.lit(run_id).cast("bigint"), position, F.lit(consumer), root)


def edges(run_id: int, position: Column, consumers: Sequence[str], root: Column) -> Column:
    """XOR of a row's edges to all its consumers."""
    return reduce(Column.bitwiseXOR, [edge(run_id, position, name, root) for name in consumers])


def fold_source(rows: DataFrame, run_id: int, consumers: Sequence[str]) -> DataFrame:
    """Init deltas, one per root. ``rows``: root, position, _error, detail and, in a replay, message.

    A record that did not parse has no edges and fails with ``_error`` as its reason.
    """
    parsed = F.col("_error").isNull()
    emitted = edges(run_id, F.col("position"), consumers, F.col("root"))
    message = ["message"] if "message" in rows.columns else []
    return rows.select(
        "root",
        F.when(parsed, emitted).otherwise(F.lit(0).cast("bigint")).alias("delta"),
        F.lit(0).cast("bigint").alias("acked"),
        F.when(parsed, F.lit(len(consumers))).otherwise(F.lit(0)).alias("emitted_edges"),
        F.lit(0).alias("acked_edges"),
        F.col("_error").alias("reason"),
        "detail",
        *message,
    )


def fold_emitted(
    output: DataFrame, input_run_id: int, run_id: int, stage: str, consumers: Sequence[str]
) -> DataFrame:
    """Deltas of a stage that acks an input if some output is anchored to it.

    ``output``: _root, _parent, _position and perhaps _failed. A parent counts once, however many
    children it has: rows are folded by parent first.
    """
    by_parent = _emitted_by(output, ["_root", "_parent"], run_id, consumers)
    parent_edge = edge(input_run_id, F.col("_parent"), stage, F.col("_root"))
    return _rows(
        by_parent.groupBy("_root").agg(
            F.bit_xor("emitted").alias("emitted"),
            F.sum("emitted_edges").alias("emitted_edges"),
            F.bit_xor(parent_edge).alias("acked"),
            F.count(F.lit(1)).alias("acked_edges"),
            F.min("reason").alias("reason"),
        )
    )


def fold_read(rows: DataFrame, input_run_id: int, consumer: str) -> DataFrame:
    """Deltas of a sink: every row that it read is acked. ``rows``: _root, _position."""
    return _rows(_acked_by_reading(rows, input_run_id, consumer))


def fold_on_read(
    rows: DataFrame,
    output: DataFrame,
    input_run_id: int,
    run_id: int,
    stage: str,
    consumers: Sequence[str],
) -> DataFrame:
    """Deltas of a stage that acks every input it read, and emits what is in ``output``."""
    acked = _acked_by_reading(rows, input_run_id, stage)
    emitted = _emitted_by(output, ["_root"], run_id, consumers).select(
        "_root",
        "emitted",
        "emitted_edges",
        F.lit(0).cast("bigint").alias("acked"),
        F.lit(0).cast("bigint").alias("acked_edges"),
        "reason",
    )
    both = acked.unionByName(emitted).groupBy("_root")
    return _rows(
        both.agg(
            F.bit_xor("emitted").alias("emitted"),
            F.sum("emitted_edges").alias("emitted_edges"),
            F.bit_xor("acked").alias("acked"),
            F.sum("acked_edges").alias("acked_edges"),
            F.min("reason").alias("reason"),
        )
    )


def _emitted_by(
    output: DataFrame, keys: Sequence[str], run_id: int, consumers: Sequence[str]
) -> DataFrame:
    """Emitted XOR, edges and reason per key; a failed row goes no further, so it has no edges."""
    passes = F.col("_failed").isNull() if "_failed" in output.columns else F.lit(True)
    reason = F.col("_failed") if "_failed" in output.columns else F.lit(None).cast("string")
    own = edges(run_id, F.col("_position"), consumers, F.col("_root"))
    return output.groupBy(*keys).agg(
        F.coalesce(F.bit_xor(F.when(passes, own)), F.lit(0).cast("bigint")).alias("emitted"),
        F.sum(F.when(passes, F.lit(len(consumers))).otherwise(F.lit(0))).alias("emitted_edges"),
        F.min(reason).alias("reason"),
    )


def _acked_by_reading(rows: DataFrame, input_run_id: int, consumer: str) -> DataFrame:
    own = edge(input_run_id, F.col("_position"), consumer, F.col("_root"))
    return rows.groupBy("_root").agg(
        F.lit(0).cast("bigint").alias("emitted"),
        F.lit(0).cast("bigint").alias("emitted_edges"),
        F.bit_xor(own).alias("acked"),
        F.count(F.lit(1)).alias("acked_edges"),
        F.lit(None).cast("string").alias("reason"),
    )


def _rows(folded: DataFrame) -> DataFrame:
    """One row per root in the shape that is posted."""
    return folded.select(
        F.col("_root").alias("root"),
        F.col("emitted").bitwiseXOR(F.col("acked")).alias("delta"),
        "acked",
        F.col("emitted_edges").cast("int").alias("emitted_edges"),
        F.col("acked_edges").cast("int").alias("acked_edges"),
        "reason",
        F.lit(None).cast("string").alias("detail"),
    )
