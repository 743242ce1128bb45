"""Names of columns that may be values of records."""

from collections.abc import Iterator

from ledger.auditing.operations import simple_class
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import asked_once, simple_name


@asked_once
def has_values_in_names(catalyst: Catalyst, node: Node) -> bool:
    """Return whether names of columns below a node may be values of records, because a pivot made
    them, or have a quote, which hides where a text in a condition begins.
    """
    outputs = [catalyst.output(child) for child in catalyst.children(node)]
    if any("'" in str(attribute.name()) for output in outputs for attribute in output):
        return True
    aggregates = (each for each in catalyst.nodes(node) if simple_name(each) == "Aggregate")
    return any(
        _is_of_pivot(each)
        for aggregate in aggregates
        for expression in catalyst.items(aggregate.aggregateExpressions())
        for each in _expressions(catalyst, expression)
    )


def _is_of_pivot(expression: Expression) -> bool:
    """Return whether an expression selects the rows of one value of a pivot."""
    kind = simple_class(expression)
    if kind == "If":
        return simple_class(expression.children().head()) == "EqualNullSafe"
    return kind == "PivotFirst"


def _expressions(catalyst: Catalyst, expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in catalyst.items(expression.children()):
        yield from _expressions(catalyst, child)
