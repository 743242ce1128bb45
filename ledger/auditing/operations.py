"""Operations of a plan that can lose records, in the words of users."""

import re
from collections.abc import Iterator

from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import CONSULTING_JOINS, asked_once, join_type, simple_name

_JOINS = {
    "Inner": "inner join",
    "Cross": "cross join",
    "LeftOuter": "left join",
    "RightOuter": "right join",
    "FullOuter": "full join",
    "LeftSemi": "semi join",
    "LeftAnti": "anti join",
}
_NAMES = {
    "Except": "except",
    "Filter": "filter",
    "Generate": "explode",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    "Offset": "offset",
    "Sample": "sample",
}
# Each row goes through alone, so the input may be restricted to the records that are looked for.
ROW_WISE = frozenset(
    {
        "CollectMetrics",
        "Filter",
        "Generate",
        "Join",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "Union",
        "View",
    }
)
# Several rows may become one of these, which stands for all of their records.
COLLECTING = frozenset({"Aggregate", "Deduplicate", "Distinct"})
# Each row goes through, or into a row that stands for it as well.
KEEPING = COLLECTING | {
    *("CollectMetrics", "Expand", "Project", "RebalancePartitions", "Repartition"),
    *("RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "View", "Window"),
}
_MAKING_ROWS = frozenset({"JsonTuple", "Stack"})  # generators that make a row of each
MAX_TEXT = 70  # characters of a condition
# A text in quotes, with its quotes.
_QUOTED = re.compile(r"('(?:[^'\\]|\\.)*')")
# Subqueries in the SQL of an expression, whose arguments are outer columns.
_SUBQUERIES = {"listquery(": "subquery", "exists(": "EXISTS (subquery)"}
_SUBQUERIES |= {"scalarsubquery(": "(subquery)"}
# Between these and its Sort a limit's rows keep their order.
_ORDERED = frozenset({"Filter", "GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"})


def operation(node: Node) -> str:
    """Return what users call a node."""
    name = simple_name(node)
    return _JOINS[join_type(node)] if name == "Join" else _NAMES.get(name, name)


def is_consulting(node: Node) -> bool:
    """Return whether the right side of a node only chooses rows of the left one."""
    name = simple_name(node)
    return name == "Except" or (name == "Join" and join_type(node) in CONSULTING_JOINS)


def losing_sides(node: Node) -> tuple[int, ...]:
    """Return the children whose rows a node can lose, by their index."""
    name = simple_name(node)
    if name == "Join":
        return {
            "Inner": (0, 1),
            "LeftOuter": (1,),
            "RightOuter": (0,),
            "LeftSemi": (0,),
            "LeftAnti": (0,),
        }.get(join_type(node), (0, 1) if join_type(node) == "Cross" else ())
    if name == "Generate":
        is_whole = node.outer() or simple_class(node.generator()) in _MAKING_ROWS
        return () if is_whole else (0,)
    if name == "Intersect":
        return (0, 1)
    return (0,) if name in _NAMES else ()


def chooses_freely(node: Node, catalyst: Catalyst) -> bool:
    """Return whether a node may keep other rows or values each time it is computed."""
    name = simple_name(node)
    if name == "Sample":
        return True
    if name in ("GlobalLimit", "Offset"):
        return not _is_ordered(catalyst.children(node)[0], catalyst)
    if name == "Deduplicate":
        return int(node.keys().size()) < len(catalyst.output(node))
    return not all(each.deterministic() for each in catalyst.items(node.expressions()))


def _is_ordered(node: Node, catalyst: Catalyst) -> bool:
    while simple_name(node) in _ORDERED:
        (node,) = catalyst.children(node)
    return simple_name(node) == "Sort"


def conjuncts(condition: Expression, catalyst: Catalyst) -> Iterator[Expression]:
    """Yield the parts of a condition that are joined by AND."""
    if simple_class(condition) == "And":
        for part in catalyst.items(condition.children()):
            yield from conjuncts(part, catalyst)
    else:
        yield condition


def text_of(expression: Expression, catalyst: Catalyst) -> str:
    """Return an expression in SQL, without qualifiers, backticks and outer brackets."""
    attributes = catalyst.items(expression.references().toSeq())
    names = {str(attribute.sql()): str(attribute.name()) for attribute in attributes}
    text = str(expression.sql())
    if has_subquery(expression, catalyst):
        for call, word in _SUBQUERIES.items():
            text = _without_arguments(text, call, word)
    # Texts in quotes stay as they are: they are the parts with odd numbers.
    parts = _QUOTED.split(text)
    parts[::2] = [_unqualified(part, names).replace("`", "") for part in parts[::2]]
    text = "".join(parts)
    if text.startswith("(") and _closing(text, 0) == len(text) - 1:
        text = text[1:-1]
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _unqualified(text: str, names: dict[str, str]) -> str:
    """Return a text in which the SQL of attributes, which has qualifiers, is replaced by their
    names.
    """
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(rf"(?<![\w.`])(?:{pattern})(?![\w`])", lambda hit: names[hit[0]], text)


def _without_arguments(text: str, call: str, word: str) -> str:
    """Return a text in which each call of a function is replaced by a word."""
    start = text.find(call)
    while start >= 0:
        end = _closing(text, start + len(call) - 1)
        text = f"{text[:start]}{word}{text[end + 1 :]}"
        start = text.find(call, start + len(word))
    return text


def _closing(text: str, start: int) -> int:
    """Return the index at which the bracket at ``start`` is closed."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text) - 1


def references(expression: Expression, catalyst: Catalyst) -> set[int]:
    """Return the ids of the attributes that an expression has."""
    attributes = catalyst.items(expression.references().toSeq())
    return {int(attribute.exprId().id()) for attribute in attributes}


@asked_once
def simple_class(expression: Expression) -> str:
    """Return the name of an expression's class."""
    return str(expression.getClass().getSimpleName())


def has_subquery(expression: Expression, catalyst: Catalyst) -> bool:
    """Return whether a subquery is in an expression."""
    if simple_class(expression) in ("Exists", "InSubquery", "ListQuery", "ScalarSubquery"):
        return True
    return any(has_subquery(child, catalyst) for child in catalyst.items(expression.children()))
