"""Find records that a join gives several rows, because keys of the other side are doubled."""

from collections.abc import Iterator
from functools import reduce

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.ids import Ids
from ledger.auditing.join_keys import join_keys
from ledger.auditing.operations import operation, text_of
from ledger.auditing.sources import ID
from ledger.lineage.catalyst import Node
from ledger.lineage.nodes import join_type

_COUNT, _KEY, _ROW = "__ackledger_count", "__ackledger_key", "__ackledger_row"
# The sides whose rows a join is expected to keep as they are.
_MAIN_SIDES = {"Inner": (0,), "LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1)}


def may_multiply(attribution: Attribution, node: Node) -> DataFrame | None:
    """Return a frame that has rows if keys are doubled on the side to which a main side is joined.

    None: the join compares no keys for equality, so several rows are what it is for, or no source
    is below it.
    """
    sides = _MAIN_SIDES.get(join_type(node), ())
    keys, _ = join_keys(attribution.catalyst, node, 0)
    if not sides or not keys or not attribution.sources_below(node):
        return None
    frames = [_doubled_keys(attribution, node, 1 - side).select(F.lit(1)) for side in sides]
    return reduce(DataFrame.union, frames)


def fan_outs(attribution: Attribution, node: Node) -> Iterator[tuple[str, str, Ids]]:
    """Yield the operation, the doubled keys, and the records that get several rows by them.

    In a lookup each row of the main side has at most one partner. Then the other side's rows have
    several partners by intention, and its records are not named.
    """
    sides = _MAIN_SIDES[join_type(node)]
    for side in sides:
        keys, ids = _multiplied(attribution, node, side)
        yield operation(node), _text(attribution, node, side, keys), ids
        if (
            keys
            and len(sides) == 1
            and attribution.sources_below(_child(attribution, node, 1 - side))
        ):
            keys, ids = _multiplied(attribution, node, 1 - side)
            yield operation(node), _text(attribution, node, 1 - side, keys), ids


def _text(attribution: Attribution, node: Node, side: int, keys: int) -> str:
    others, _ = join_keys(attribution.catalyst, node, 1 - side)
    names = ", ".join(text_of(key, attribution.catalyst) for key, _ in others)
    return f"{keys:,} doubled key{'s' if keys != 1 else ''} of {names}"


def _child(attribution: Attribution, node: Node, side: int) -> Node:
    return attribution.catalyst.children(node)[side]


def _doubled_keys(attribution: Attribution, node: Node, side: int) -> DataFrame:
    """Return the keys that several rows of one side have. Keys with a NULL that equals nothing are
    left out.
    """
    catalyst = attribution.catalyst
    keys, _ = join_keys(catalyst, node, side)
    frame = catalyst.frame(_child(attribution, node, side))
    rows = frame.select(
        *(catalyst.column(key).alias(f"{_KEY}{at}") for at, (key, _) in enumerate(keys))
    )
    not_null = [f"{_KEY}{at}" for at, (_, is_null_safe) in enumerate(keys) if not is_null_safe]
    if not_null:
        rows = rows.where(reduce(Column.__and__, [F.col(name).isNotNull() for name in not_null]))
    counted = rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias(_COUNT))
    return counted.where(F.col(_COUNT) > 1).drop(_COUNT)


def _multiplied(attribution: Attribution, node: Node, side: int) -> tuple[int, Ids]:
    """Return the number of keys for which a row of one side gets several rows, and the records of
    these rows.

    The whole condition decides, so the join itself is computed for rows whose keys are doubled on
    the other side.
    """
    catalyst = attribution.catalyst
    children = catalyst.children(node)
    if attribution.sources_below(children[side]):
        frame, ids = attribution.carried(children[side], {})
    else:
        frame, ids = catalyst.frame(children[side]), F.array().cast("array<bigint>")
    keys = [catalyst.column(key) for key, _ in join_keys(catalyst, node, side)[0]]
    doubled = _doubled_keys(attribution, node, 1 - side)
    equal = [key.eqNullSafe(F.col(f"{_KEY}{at}")) for at, key in enumerate(keys)]
    wanted = catalyst.analyzed(frame.join(doubled, reduce(Column.__and__, equal), "left_semi"))
    # A leaf has columns that the audit hides from the user's plan.
    wanted_ids = {int(each.exprId().id()) for each in catalyst.output(wanted)}
    visible = [e for e in catalyst.output(children[side]) if int(e.exprId().id()) in wanted_ids]
    own = [ids, F.monotonically_increasing_id()]
    children[side], attributes = catalyst.projected(wanted, visible, own)
    rows = catalyst.frame(catalyst.with_children(node, children))
    ids, number = map(catalyst.column, attributes)
    counted = (
        rows.where(number.isNotNull())
        .groupBy(number.alias(_ROW))
        .agg(
            F.count(F.lit(1)).alias(_COUNT),
            F.first(ids).alias(ID),
            F.first(F.struct(*(key.alias(f"k{at}") for at, key in enumerate(keys)))).alias(_KEY),
        )
    )
    several = counted.where(F.col(_COUNT) > 1).groupBy(_KEY)
    lists = (
        several.agg(F.array_distinct(F.flatten(F.collect_set(ID))).alias(ID)).select(ID).toArrow()
    )
    values = lists.column(0).combine_chunks().flatten().to_numpy()
    return lists.num_rows, record_ids.records_of(np.asarray(values, dtype=np.int64))
