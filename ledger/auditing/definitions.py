"""Find the expressions that made the columns of a plan's node."""

from collections.abc import Iterator

from ledger.auditing.operations import simple_class
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import simple_name

RANKS = ("row_number", "rank", "dense_rank", "ntile", "percent_rank", "cume_dist")


def definitions(
    catalyst: Catalyst, node: Node, attribute: Expression
) -> Iterator[tuple[Expression, Node]]:
    """Yield the expressions that define an attribute in a node's output, one for each branch of a
    union below. Each comes with the node whose rows it reads. None: a table, an aggregate or a
    generator defines the attribute.
    """
    wanted = int(attribute.exprId().id())
    name = simple_name(node)
    if name in ("Project", "Window"):
        own = node.projectList() if name == "Project" else node.windowExpressions()
        for expression in catalyst.items(own):
            if simple_class(expression) == "Alias" and int(expression.exprId().id()) == wanted:
                yield expression.child(), node.child()
                return
    if name == "Union":
        at = _position(catalyst, node, wanted)
        for child in catalyst.children(node):
            yield from definitions(catalyst, child, catalyst.output(child)[at])
        return
    for child in catalyst.children(node):
        if any(int(each.exprId().id()) == wanted for each in catalyst.output(child)):
            yield from definitions(catalyst, child, attribute)
            return


def rank_in(catalyst: Catalyst, node: Node, condition: Expression) -> str | None:
    """Return the rank function that a condition over a node's rows uses; None: none."""
    for attribute in catalyst.items(condition.references().toSeq()):
        rank = _rank_of(catalyst, node, attribute)
        if rank:
            return rank
    return None


def _rank_of(catalyst: Catalyst, node: Node, attribute: Expression) -> str | None:
    for expression, below in definitions(catalyst, node, attribute):
        kind = simple_class(expression)
        if kind == "WindowExpression":
            name = str(expression.windowFunction().prettyName())
            if name in RANKS:
                return name
        if kind == "AttributeReference":
            return _rank_of(catalyst, below, expression)
    return None


def _position(catalyst: Catalyst, node: Node, wanted: int) -> int:
    ids = [int(attribute.exprId().id()) for attribute in catalyst.output(node)]
    return ids.index(wanted)
