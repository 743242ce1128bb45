"""Tell which operations of a plan have the same rows each time they are computed."""

from ledger.auditing.attribution import Attribution
from ledger.auditing.operations import simple_class
from ledger.lineage.catalyst import Expression, Node
from ledger.lineage.nodes import simple_name

# The rows of these depend on the order of others.
_OF_ORDER = frozenset(
    {"AttachDistributedSequence", "GlobalLimit", "LocalLimit", "Offset", "Sample", "Tail"}
)
# Aggregate functions whose value does not depend on the order of rows, except for rounding.
_UNORDERED = frozenset(
    {
        *("Average", "BitAndAgg", "BitOrAgg", "BitXorAgg", "BoolAnd", "BoolOr", "Corr", "Count"),
        *("CountIf", "CovPopulation", "CovSample", "HyperLogLogPlusPlus", "Kurtosis", "Max"),
        *("Median", "Min", "Percentile", "PivotFirst", "Skewness", "StddevPop", "StddevSamp"),
        *("Sum", "VariancePop", "VarianceSamp"),
    }
)


class Repeats:
    """Tells which nodes of a plan are repeatable: their rows depend neither on random values nor on
    the order of rows, and not on the current time either, where that counts.
    """

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._catalyst = attribution.catalyst
        self._repeatable: dict[int, bool] = {}

    def is_timeless(self, node: Node) -> bool:
        """Return whether the rows of a node are repeatable, and do not depend on the time."""
        now = self._catalyst.spark_class("trees.TreePattern").CURRENT_LIKE()
        return not node.containsPattern(now) and self.is_repeatable(node)

    def is_repeatable(self, node: Node) -> bool:
        """Return whether the rows of a node are repeatable, as far as the time stays the same."""
        key = self._catalyst.identity(node)
        if self._attribution.sources.leaf_of(node) is not None:
            return True
        if key not in self._repeatable:
            below = [*self._catalyst.children(node), *self._catalyst.subqueries(node)]
            is_own = not self._attribution.is_random(node) and not self._is_ordered(node)
            self._repeatable[key] = is_own and all(map(self.is_repeatable, below))
        return self._repeatable[key]

    def _is_ordered(self, node: Node) -> bool:
        """Return whether the rows of a node depend on the order of those below it."""
        name = simple_name(node)
        if name == "Window":
            functions = self._catalyst.items(node.windowExpressions())
            return bool(node.orderSpec().size()) or not all(map(self._is_unordered, functions))
        if name == "Aggregate":
            return not all(
                map(self._is_unordered, self._catalyst.items(node.aggregateExpressions()))
            )
        return name in _OF_ORDER

    def _is_unordered(self, expression: Expression) -> bool:
        """Return whether an expression has only aggregate functions that need no order."""
        kind = simple_class(expression)
        if kind == "AggregateExpression":
            return simple_class(expression.aggregateFunction()) in _UNORDERED
        if kind == "WindowExpression":
            function = expression.windowFunction()
            return simple_class(function) == "AggregateExpression" and self._is_unordered(function)
        return all(map(self._is_unordered, self._catalyst.items(expression.children())))
