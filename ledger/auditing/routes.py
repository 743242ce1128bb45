"""Routes from the sources to the output of a plan, and the one that a record's own row takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.definitions import rank_in
from ledger.auditing.ids import Ids
from ledger.auditing.operations import is_consulting
from ledger.auditing.sources import Leaf
from ledger.lineage.catalyst import Node
from ledger.lineage.nodes import join_type, simple_name

# Below these a row stands for others as well, or only chooses them.
_COLLECTING = frozenset({"Aggregate", "Deduplicate", "Distinct", "Except", "Intersect"})


@dataclass(frozen=True)
class Route:
    """The way of one occurrence of a source. ``groups``: the number of operations on it that
    collect rows or keep one of several by a rank. ``is_optional``: it enters an outer join on the
    side whose rows are not expected in the output.
    """

    source: int
    occurrence: int
    leaf: Leaf
    groups: int = 0
    is_optional: bool = False


def main_routes(attribution: Attribution, node: Node) -> list[Route]:
    """Return the routes that the records' own rows take to a node.

    Each branch of a union is one. Where a source is joined with itself, only one side counts: the
    one with fewer groups, or else the preserved or left one. The other side, such as a dimension
    that is made from the records, may still have a row of a record that was lost.
    """
    catalyst = attribution.catalyst
    children = catalyst.children(node)
    if not children:
        leaf = attribution.sources.leaf_of(node)
        if leaf is None:
            return []
        at = attribution.occurrence(leaf, node)
        return [Route(number, at, leaf) for number in leaf.numbers]
    if is_consulting(node):
        children = children[:1]
    sides = [main_routes(attribution, child) for child in children]
    name = simple_name(node)
    if name in ("Join", "Intersect") and len(sides) > 1:
        sides = _with_one_side_each(node, sides)
    is_collecting = name in _COLLECTING or (
        name == "Filter" and rank_in(catalyst, children[0], node.condition()) is not None
    )
    return [
        replace(
            route,
            groups=route.groups + is_collecting,
            is_optional=route.is_optional or _is_optional(node, side),
        )
        for side, routes in enumerate(sides)
        for route in routes
    ]


def on_main_routes(arrived: Ids, routes: Sequence[Route]) -> Ids:
    """Return the records of ids that came on a main route, sorted."""
    tags = record_ids.tags_of(arrived)
    mains = [record_ids.tag(route.source, route.occurrence) for route in routes]
    return record_ids.records_of(arrived[np.isin(tags, mains)])


def missing_on(routes: Sequence[Route], arrived: Ids) -> dict[int, Ids]:
    """Return, by source, the ids of records that entered on main routes and have not arrived."""
    missing: dict[int, list[Ids]] = {}
    for route in routes:
        entered = route.leaf.ids_of(route.source)
        lost = record_ids.difference(entered, arrived)
        ids = record_ids.at_occurrence(lost, route.occurrence)
        missing.setdefault(route.source, []).append(ids)
    return {source: record_ids.union(ids) for source, ids in missing.items()}


def sources_in(attribution: Attribution, node: Node) -> set[int]:
    """Return the numbers of all sources in a plan, in its subqueries, and of consulted ones."""
    leaf = attribution.sources.leaf_of(node)
    if leaf is not None:
        return set(leaf.numbers)
    catalyst = attribution.catalyst
    below = [*catalyst.children(node), *catalyst.subqueries(node)]
    return set().union(*(sources_in(attribution, child) for child in below))


def _with_one_side_each(node: Node, sides: Sequence[list[Route]]) -> list[list[Route]]:
    """Return the routes of two sides, without those of a source that counts on the other side."""
    left, right = ({route.source for route in routes} for routes in sides)
    is_right_preserved = simple_name(node) == "Join" and join_type(node) == "RightOuter"
    dropped: dict[int, int] = {}  # the side that does not count, by source
    for source in left & right:
        fewest = [min(r.groups for r in routes if r.source == source) for routes in sides]
        is_right = fewest[1] < fewest[0] or (fewest[0] == fewest[1] and is_right_preserved)
        dropped[source] = 0 if is_right else 1
    return [
        [route for route in routes if dropped.get(route.source) != side]
        for side, routes in enumerate(sides)
    ]


def _is_optional(node: Node, side: int) -> bool:
    if simple_name(node) != "Join":
        return False
    return (join_type(node), side) in {("LeftOuter", 1), ("RightOuter", 0)}
