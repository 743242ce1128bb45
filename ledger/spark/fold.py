"""Deltas: what a run adds to each root's ack value, folded to one row per root.

An edge, one row on its way to one consumer, has the id ``xxhash64('run:consumer', position, root)``.
It is a function of where the row is stored, so two readings of the same files agree, and equal
siblings differ. See CONCEPTS of Storm's acker: an edge is XORed in twice, when it is emitted and
when its consumer acks it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

REPEATED = "more than one row for an input"

SAME = "same"  # in a column's metadata: its value, the same in every row, so it need not travel


def edge(run_id: int, position: Column, consumer: str, root: Column) -> Column:
    """64-bit id of the edge from the row at ``position`` of a run's output to ``consumer``.

    The run is part of a text because Spark writes numbers into the code that it generates, texts
    not: so it compiles a fold once a session, not once a run.
    """
    return F.xxhash64(F.lit(f"{run_id}:{consumer}"), position, root)


def parent_edge(inputs: Mapping[str, int], consumer: str) -> Column:
    """Id of the edge that brought a row's parent, ``_parent`` of ``_root``, to ``consumer``.

    ``inputs``: run ids of the steps that it reads; of several, ``_input`` says which one.
    """
    if len(inputs) == 1:
        (run_id,) = inputs.values()
        return edge(run_id, F.col("_parent"), consumer, F.col("_root"))
    texts = ((F.lit(name), F.lit(f"{run_id}:{consumer}")) for name, run_id in inputs.items())
    source = F.create_map(*chain.from_iterable(texts))[F.col("_input")]
    return F.xxhash64(source, F.col("_parent"), F.col("_root"))


def parent_key(inputs: Mapping[str, int]) -> list[str]:
    """What tells an input row from others: root, position, and of several inputs which one."""
    return ["_root", "_parent", *(["_input"] if len(inputs) > 1 else [])]


def edges(run_id: int, position: Column, consumers: Sequence[str], root: Column) -> Column:
    """XOR of a row's edges to all its consumers; 0 where only combines read it."""
    own = [edge(run_id, position, name, root) for name in consumers]
    return reduce(Column.bitwiseXOR, own) if own else F.lit(0).cast("bigint")


def fold_source(rows: DataFrame, run_id: int, consumers: Sequence[str]) -> DataFrame:
    """Init deltas, one per root.

    ``rows``: root, position; in a replay message; and _error and detail if some did not parse. Such
    a record has no edges and fails with ``_error`` as its reason.
    """
    emitted = edges(run_id, F.col("position"), consumers, F.col("root"))
    count = _same("emitted_edges", len(consumers))
    failing = "_error" in rows.columns
    if failing:
        parsed = F.col("_error").isNull()
        emitted = F.when(parsed, emitted).otherwise(F.lit(0).cast("bigint"))
        count = F.when(parsed, len(consumers)).otherwise(F.lit(0)).alias("emitted_edges")
    kept = [name for name in ("detail", "message") if name in rows.columns]
    return rows.select(
        "root",
        emitted.alias("delta"),
        _same("acked", 0, "bigint"),
        count,
        _same("acked_edges", 0),
        *([F.col("_error").alias("reason")] if failing else []),
        *kept,
    )


def by_anchor(output: DataFrame) -> DataFrame:
    """Rows of several anchors (``_anchors``: root, parent and maybe input, sorted) as a row for each; one
    that stands there twice makes two, which the folds count once.

    ``_first``: whether it is the row's first of that root. ``_shared``: whether the row has others.
    """
    one = F.col("_one")
    anchor = output.schema["_anchors"].dataType.elementType  # type: ignore[attr-defined]
    fields = [name for name in anchor.names if name != "unit"]
    before = F.get(F.col("_anchors"), F.col("_place") - 1)["root"]
    shared = F.array_min("_anchors")["root"] != F.array_max("_anchors")["root"]
    rows = output.select("*", F.posexplode("_anchors").alias("_place", "_one"))
    return rows.select(
        *(name for name in output.columns if name != "_anchors"),
        *(one[name].alias(f"_{name}") for name in fields),
        (~before.eqNullSafe(one["root"])).alias("_first"),
        shared.alias("_shared"),
    )


def fold_emitted(
    output: DataFrame,
    failed: DataFrame | None,
    inputs: Mapping[str, int],
    run_id: int,
    stage: str,
    consumers: Sequence[str],
    *,
    one_parent: bool,
    one_each: bool = False,
    emits_one: bool = False,
) -> DataFrame:
    """Deltas of a stage that acks an input if some output is anchored to it.

    ``output``: _root, _parent, _position and, where some rows have them, _failed and _dropped; of rows
    with several anchors as ``by_anchor`` makes it. ``failed``: _root, _failed, and maybe _shared, of the
    same rows, if some of them fail. A parent counts once, however
    many children it has: rows are folded by parent first, unless ``one_parent`` says that the input
    has a single row of each root.
    ``one_each``: each input, one of each root, has a single row. ``emits_one``: a root fails if one of
    its inputs has more than one row.
    """
    if one_each:
        own = _own_edges(output, run_id, consumers)
        acked = {"acked": parent_edge(inputs, stage), "acked_edges": F.lit(1)}
        same = {"acked_edges": 1}
        if not {"_failed", "_dropped"} & set(output.columns):
            same["emitted_edges"] = len(consumers)
        return _rows(_with_reasons(output.withColumns({**own, **acked}), failed), same)
    measures = _emitted(output, run_id, consumers)
    if emits_one:  # by rows: where only combines and states read the stage, none has an edge
        measures.append(F.count_if(_passes(output)).alias("going_on"))
    if one_parent:
        by_root = output.groupBy("_root").agg(*measures, F.min("_parent").alias("_parent"))
        folded = by_root.withColumns(
            {
                "acked": parent_edge(inputs, stage),
                "acked_edges": F.lit(1),
            }
        )
    else:
        by_parent = output.groupBy(*parent_key(inputs)).agg(*measures)
        folded = by_parent.groupBy("_root").agg(
            F.bit_xor("emitted").alias("emitted"),
            F.sum("emitted_edges").alias("emitted_edges"),
            F.bit_xor(parent_edge(inputs, stage)).alias("acked"),
            F.count(F.lit(1)).alias("acked_edges"),
            *([F.max("going_on").alias("going_on")] if emits_one else []),
        )
    folded = _with_reasons(folded, failed)
    if emits_one:
        told = F.col("reason") if "reason" in folded.columns else F.lit(None)
        more = F.when(F.col("going_on") > 1, F.lit(REPEATED))
        folded = folded.withColumn("reason", F.coalesce(told, more))
    return _rows(folded)


def fold_read(
    rows: DataFrame,
    inputs: Mapping[str, int],
    consumer: str,
    *,
    one_row: bool = False,
    failed: DataFrame | None = None,
) -> DataFrame:
    """Deltas of a sink, or of the last tracked stage: every row that it read is acked.

    ``rows``: _root, _parent and, of several inputs, _input. ``one_row``: there is a single row of
    each root, so nothing is to be folded. ``failed``: as for ``fold_emitted``.
    """
    if one_row:
        own = parent_edge(inputs, consumer)
        acked = rows.withColumns({"acked": own, "acked_edges": F.lit(1)})
        same = {"emitted_edges": 0, "acked_edges": 1}
    else:
        acked = _acked_by_reading(rows, inputs, consumer)
        same = {"emitted_edges": 0}
    nothing = {"emitted": F.lit(0).cast("bigint"), "emitted_edges": F.lit(0)}
    return _rows(_with_reasons(acked.withColumns(nothing), failed), same)


def fold_on_read(
    rows: DataFrame,
    output: DataFrame,
    failed: DataFrame | None,
    inputs: Mapping[str, int],
    run_id: int,
    stage: str,
    consumers: Sequence[str],
) -> DataFrame:
    """Deltas of a stage that acks every input it read, and emits what is in ``output``.

    ``rows``: of all inputs _root, _parent and, of several, _input. ``output``, ``failed``: as for ``fold_emitted``.
    """
    acked = _acked_by_reading(rows, inputs, stage)
    emitted = output.groupBy("_root").agg(*_emitted(output, run_id, consumers))
    both = acked.unionByName(emitted, allowMissingColumns=True).groupBy("_root")
    folded = both.agg(
        *(
            F.coalesce(aggregate(name), F.lit(0).cast("bigint")).alias(name)
            for name, aggregate in (
                ("emitted", F.bit_xor),
                ("emitted_edges", F.sum),
                ("acked", F.bit_xor),
                ("acked_edges", F.sum),
            )
        )
    )
    return _rows(_with_reasons(folded, failed))


def _emitted(output: DataFrame, run_id: int, consumers: Sequence[str]) -> list[Column]:
    """XOR and count of the edges emitted; a failed or dropped row goes no further, so it has none."""
    own = _own_edges(output, run_id, consumers)
    return [
        F.bit_xor(own["emitted"]).alias("emitted"),
        F.sum(own["emitted_edges"]).alias("emitted_edges"),
    ]


def _own_edges(output: DataFrame, run_id: int, consumers: Sequence[str]) -> dict[str, Column]:
    """XOR and number of the edges of each row by itself; 0 if it goes no further."""
    passes = _passes(output)
    own = edges(run_id, F.col("_position"), consumers, F.col("_root"))
    return {
        "emitted": F.when(passes, own).otherwise(F.lit(0).cast("bigint")),
        "emitted_edges": F.when(passes, F.lit(len(consumers))).otherwise(F.lit(0)),
    }


def _passes(output: DataFrame) -> Column:
    """Whether a row goes on to the consumers."""
    marks = [F.col(mark).isNull() for mark in ("_failed", "_dropped") if mark in output.columns]
    # A row of several anchors has one edge for each root, however many of them are of that root.
    first = [F.col("_first")] if "_first" in output.columns else []
    return reduce(Column.__and__, [*marks, *first], F.lit(True))


def _acked_by_reading(rows: DataFrame, inputs: Mapping[str, int], consumer: str) -> DataFrame:
    own = parent_edge(inputs, consumer)
    return rows.groupBy("_root").agg(
        F.bit_xor(own).alias("acked"), F.count(F.lit(1)).alias("acked_edges")
    )


def _with_reasons(folded: DataFrame, failed: DataFrame | None) -> DataFrame:
    """The reason of each failed root, joined: text among the measures would make Spark sort them."""
    if failed is None:
        return folded
    reasons = [F.min("_failed").alias("reason")]
    if "_shared" in failed.columns:  # of a fail of its own and one with others, its own counts
        own = F.min(F.struct("_shared", "_failed"))
        reasons = [own["_failed"].alias("reason"), own["_shared"].alias("shared")]
    failures = failed.where("_failed IS NOT NULL").groupBy("_root")
    return folded.join(failures.agg(*reasons), "_root", "left")


def _same(name: str, value: int, kind: str = "int") -> Column:
    return F.lit(value).cast(kind).alias(name, metadata={SAME: value})


def _rows(folded: DataFrame, same: Mapping[str, int] | None = None) -> DataFrame:
    """One row per root in the shape that is posted; reasons only where there are some.

    ``same``: columns that have one value in all rows.
    """
    given = same or {}
    counts = [
        _same(name, given[name]) if name in given else F.col(name).cast("int").alias(name)
        for name in ("emitted_edges", "acked_edges")
    ]
    reason = [F.col("reason"), F.lit(None).cast("string").alias("detail")]
    reason += [F.col("shared")] if "shared" in folded.columns else []
    return folded.select(
        F.col("_root").alias("root"),
        F.col("emitted").bitwiseXOR(F.col("acked")).alias("delta"),
        "acked",
        *counts,
        *(reason if "reason" in folded.columns else []),
    )
