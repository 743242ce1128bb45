"""Make the conditions of a filter those of the join below it, as ``FROM a, b WHERE`` means them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from ledger.auditing.attribution import Attribution
from ledger.auditing.join_keys import compared_key
from ledger.auditing.operations import conjuncts, has_subquery, references
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import join_type, simple_name

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_JOIN_TYPE = "org.apache.spark.sql.catalyst.plans.JoinType"
_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"


def with_join_conditions(attribution: Attribution) -> Attribution:
    """Return an attribution in whose plan each join has the keys that a filter right above
    compares. The rows of the plan stay the same.
    """
    catalyst = attribution.catalyst
    if not any(_is_bare(node) for node in catalyst.nodes(attribution.plan)):
        return attribution
    joining = _Joining(attribution)
    return replace(
        attribution, plan=joining.with_conditions_moved(attribution.plan), place=joining.place
    )


@dataclass
class _Joining:
    attribution: Attribution
    _places: dict[int, str] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)  # so that no identity is given twice

    @property
    def _catalyst(self) -> Catalyst:
        return self.attribution.catalyst

    def place(self, node: Node) -> str:
        """Return the line of a node. A node that was made here has the line of the node it
        replaces.
        """
        place = self._places.get(self._catalyst.identity(node))
        return place or self.attribution.place(node)

    def with_conditions_moved(self, node: Node) -> Node:
        """Rewrite the plan below a node: conditions of a filter move into the joins below it that
        have no condition. They move into a join if they compare columns of both its sides, and if
        at least one of them makes a join key. Return the node itself if nothing changes.
        """
        catalyst = self._catalyst
        old = catalyst.children(node)
        new = [self.with_conditions_moved(child) for child in old]
        if any(before is not after for before, after in zip(old, new, strict=True)):
            node = self._noted(node, catalyst.with_children(node, new))
        if simple_name(node) != "Filter" or not node.condition().deterministic():
            return node
        parts = list(conjuncts(node.condition(), catalyst))
        join, rest = self._pushed(new[0], parts)
        if not rest:
            return join
        if len(rest) == len(parts):
            return node
        condition = self._all(rest)
        return self._noted(node, catalyst.rebuilt(node, condition=condition, child=join))

    def _pushed(self, node: Node, parts: Sequence[Expression]) -> tuple[Node, Sequence[Expression]]:
        """Return the node with the parts of a condition moved into its joins, and the parts that
        are left.
        """
        if simple_name(node) != "Join" or join_type(node) not in ("Cross", "Inner"):
            return node, parts
        catalyst, children = self._catalyst, []
        old = catalyst.children(node)
        for child in old:
            new, parts = self._pushed(child, parts)
            children.append(new)
        joined = node
        if any(before is not after for before, after in zip(old, children, strict=True)):
            joined = self._noted(node, catalyst.with_children(node, children))
        if not _is_bare(node):
            return joined, parts
        sides = [{int(e.exprId().id()) for e in catalyst.output(child)} for child in children]
        own = [part for part in parts if self._is_of_both(part, sides)]
        if not any(compared_key(catalyst, part, *sides) is not None for part in own):
            return joined, parts
        fields: dict[str, Any] = {
            "condition": self._class("scala.Some")(self._all(own)),
            "joinType": self._class(_JOIN_TYPE).apply("inner"),
        }
        rest = [part for part in parts if not any(part is each for each in own)]
        return self._noted(node, catalyst.rebuilt(joined, **fields)), rest

    def _is_of_both(self, part: Expression, sides: Sequence[set[int]]) -> bool:
        """Return whether a part compares columns of both sides, and of nothing else."""
        used, catalyst = references(part, self._catalyst), self._catalyst
        is_python = part.containsPattern(self._class(_PATTERNS).PYTHON_UDF())
        is_of_both = used <= sides[0] | sides[1] and all(used & side for side in sides)
        return is_of_both and not is_python and not has_subquery(part, catalyst)

    def _all(self, parts: Sequence[Expression]) -> Expression:
        return reduce(self._class(f"{_EXPRESSIONS}.And"), parts)

    def _class(self, name: str) -> Any:
        return getattr(self._catalyst.spark._jvm, name)

    def _noted(self, original: Node, node: Node) -> Node:
        self._places[self._catalyst.identity(node)] = self.place(original)
        self._nodes.append(node)
        return node


def _is_bare(node: Node) -> bool:
    """Return whether a node is a join without a condition."""
    if simple_name(node) != "Join" or join_type(node) not in ("Cross", "Inner"):
        return False
    return bool(node.condition().isEmpty())
