"""Find records that ``dropDuplicates`` of some columns merged into the row of another record."""

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.flags import flags_of, with_flags
from ledger.auditing.ids import Ids
from ledger.auditing.operations import text_of
from ledger.auditing.sources import ID
from ledger.lineage.catalyst import Expression, Node

_KEY, _ROW, _FIRST = "__ackledger_key", "__ackledger_row", "__ackledger_first"


def may_merge(attribution: Attribution, node: Node) -> DataFrame | None:
    """Return the hashes of the keys whose rows differ in other columns. None: there are no other
    columns.
    """
    keys, others = _columns(attribution, node)
    if not others or not attribution.sources_below(node):
        return None
    columns = list(map(attribution.catalyst.column, others))
    frame = attribution.catalyst.frame(attribution.catalyst.children(node)[0])
    rows = frame.select(_hash(attribution, keys), F.xxhash64(*columns).alias(_ROW))
    ends = rows.groupBy(_KEY).agg(F.min(_ROW).alias("least"), F.max(_ROW).alias("greatest"))
    return ends.where("least <> greatest").select(_KEY)


def merges(attribution: Attribution, node: Node) -> Iterator[tuple[str, str, Ids]]:
    """Yield the operation, the columns that differ, and the records that were merged into a
    differing row of the same key.

    A record is named if none of its rows equals the row that was kept.
    """
    catalyst = attribution.catalyst
    conflicts = may_merge(attribution, node)
    assert conflicts is not None
    keys, others = _columns(attribution, node)
    frame, ids = attribution.carried(catalyst.children(node)[0], {})
    values = [catalyst.column(each).alias(f"c{at}") for at, each in enumerate(others)]
    groups = [catalyst.column(each).alias(f"k{at}") for at, each in enumerate(keys)]
    rows = frame.select(ids.alias(ID), _hash(attribution, keys), *groups, *values)
    names = [f"c{at}" for at in range(len(others))]
    group = Window.partitionBy(_KEY, *(f"k{at}" for at in range(len(keys))))
    first = F.first(F.struct(*names)).over(group).alias(_FIRST)
    rows = rows.join(conflicts, _KEY, "left_semi").select(ID, *names, first)
    differs = [~F.col(name).eqNullSafe(F.col(_FIRST)[name]) for name in names]
    flags = flags_of(with_flags(rows, F.col(ID), [*differs, ~reduce(Column.__or__, differs)]))
    merged = record_ids.difference(flags.records, flags.having(len(others)))
    different = [
        text_of(each, catalyst)
        for at, each in enumerate(others)
        if np.isin(flags.having(at), merged).any()
    ]
    yield "dropDuplicates", f"other values in {', '.join(different)}", merged


def _columns(attribution: Attribution, node: Node) -> tuple[list[Expression], list[Expression]]:
    """Return the keys of a Deduplicate node, and its other columns. Columns of types without an
    order, such as maps, are left out.
    """
    catalyst = attribution.catalyst
    keys = catalyst.items(node.keys())
    key_ids = {int(key.exprId().id()) for key in keys}
    others = [each for each in catalyst.output(node) if int(each.exprId().id()) not in key_ids]
    return keys, [each for each in others if catalyst.is_orderable(each)]


def _hash(attribution: Attribution, keys: Sequence[Expression]) -> Column:
    return F.xxhash64(F.lit(0), *map(attribution.catalyst.column, keys)).alias(_KEY)
