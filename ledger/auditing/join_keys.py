"""The expressions that the condition of a join compares for equality."""

from ledger.auditing.operations import conjuncts, references, simple_class
from ledger.lineage.catalyst import Catalyst, Expression, Node


def join_keys(
    catalyst: Catalyst, node: Node, side: int
) -> tuple[list[tuple[Expression, bool]], bool]:
    """Return the keys of one side of a join, each with whether NULL equals NULL. Also return
    whether the condition has further parts.
    """
    if node.condition().isEmpty():
        return [], False
    sides = [
        {int(attribute.exprId().id()) for attribute in catalyst.output(child)}
        for child in catalyst.children(node)
    ]
    keys: list[tuple[Expression, bool]] = []
    has_more = False
    for part in conjuncts(node.condition().get(), catalyst):
        key = compared_key(catalyst, part, sides[side], sides[1 - side])
        if key is None:
            has_more = True
        else:
            keys.append((key, simple_class(part) == "EqualNullSafe"))
    return keys, has_more


def compared_key(
    catalyst: Catalyst, part: Expression, own: set[int], other: set[int]
) -> Expression | None:
    """Return the operand of an equality that reads ``own`` columns, if its other operand reads
    ``other`` columns; else None.
    """
    if simple_class(part) not in ("EqualTo", "EqualNullSafe"):
        return None
    operands = catalyst.items(part.children())
    used = [references(operand, catalyst) for operand in operands]
    for at in (0, 1):
        if used[at] and used[1 - at] and used[at] <= own and used[1 - at] <= other:
            return operands[at]
    return None
