"""Find records that an aggregate leaves out without a word, because its argument is NULL."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution
from ledger.auditing.flags import flags_of, with_any_flag, with_flags
from ledger.auditing.ids import Ids
from ledger.auditing.operations import simple_class, text_of
from ledger.auditing.reasons import Reasons
from ledger.lineage.catalyst import Catalyst, Expression, Node

# Aggregates that skip a row whose first argument is NULL; count asks for all of its arguments.
_SKIPPING = frozenset(
    {
        "ApproximatePercentile",
        "Average",
        "BoolAnd",
        "BoolOr",
        "CollectList",
        "CollectSet",
        "Count",
        "CountIf",
        "HyperLogLogPlusPlus",
        "ListAgg",
        "Max",
        "Median",
        "Min",
        "Percentile",
        "StddevPop",
        "StddevSamp",
        "Sum",
        "VariancePop",
        "VarianceSamp",
    }
)
# Expressions that are NULL if one of their children is.
_STRICT = frozenset({"Abs", "Add", "Cast", "Divide", "Multiply", "Round", "Subtract", "UnaryMinus"})


@dataclass(frozen=True)
class Skip:
    """Rows that one aggregate leaves out.

    ``silent``: whether it leaves the row out without being asked to, because its argument is NULL.
    ``used``: whether it includes the row. Neither holds for a row that FILTER excludes.
    """

    operation: str
    text: str
    silent: Column
    used: Column


def ignored(attribution: Attribution, node: Node) -> Iterator[tuple[str, str, Ids]]:
    """Yield each aggregate of a node that silently left out records, with the reason and the
    records.

    A record is named if the aggregate includes none of its rows, and silently leaves out at least
    one.
    """
    if not attribution.sources_below(node):
        return
    skips = skips_of(attribution.catalyst, node)
    if not skips:
        return
    child = attribution.catalyst.children(node)[0]
    frame, ids = attribution.carried(child, {})
    silent = flags_of(with_any_flag(frame, ids, [skip.silent for skip in skips]))
    used_rows = Reasons(attribution).rows(
        child,
        silent.records,
        lambda rows, hidden: iter([with_flags(rows, hidden, [skip.used for skip in skips])]),
    )
    if used_rows is None:
        return
    used = flags_of(used_rows)
    for at, skip in enumerate(skips):
        yield skip.operation, skip.text, record_ids.difference(silent.having(at), used.having(at))


def skips_of(catalyst: Catalyst, node: Node) -> list[Skip]:
    """Return the rows that the aggregates of an Aggregate node leave out. Equal aggregates count
    once.
    """
    aggregates = [
        each
        for expression in catalyst.items(node.aggregateExpressions())
        for each in _aggregates_in(catalyst, expression)
    ]
    pivoted = _pivoted(catalyst, aggregates)
    skips = [*_pivot(catalyst, node, aggregates, pivoted)]
    for at, aggregate in enumerate(aggregates):
        skips += _skips(catalyst, aggregate, pivoted[at] if pivoted else None)
    by_text: dict[tuple[str, str], list[Skip]] = {}
    for skip in skips:
        by_text.setdefault((skip.operation, skip.text), []).append(skip)
    return [
        replace(
            equal[0],
            silent=reduce(Column.__or__, [skip.silent for skip in equal]),
            used=reduce(Column.__or__, [skip.used for skip in equal]),
        )
        for equal in by_text.values()
    ]


def _aggregates_in(catalyst: Catalyst, expression: Expression) -> Iterator[Expression]:
    if simple_class(expression) == "AggregateExpression":
        yield expression
        return
    for child in catalyst.items(expression.children()):
        yield from _aggregates_in(catalyst, child)


def _skips(catalyst: Catalyst, aggregate: Expression, pivoted: Expression | None) -> Iterator[Skip]:
    """Yield the rows that an aggregate leaves out. ``pivoted``: the IF that a pivot made of its
    argument.
    """
    function = aggregate.aggregateFunction()
    kind = simple_class(function)
    if kind not in _SKIPPING or _respects_nulls(catalyst, function):
        return
    arguments = catalyst.items(function.children())
    arguments = arguments if kind == "Count" else arguments[:1]
    condition = aggregate.filter().get() if aggregate.filter().isDefined() else None
    clause = "" if condition is None else f" FILTER (WHERE {text_of(condition, catalyst)})"
    if pivoted is not None:
        arguments, condition = [pivoted.trueValue()], pivoted.predicate()
    names = ", ".join(text_of(each, catalyst) for each in arguments)
    distinct = "DISTINCT " if aggregate.isDistinct() else ""
    operation = f"{function.prettyName()}({distinct}{names}){clause}"
    if not all(each.deterministic() for each in [*arguments, *([condition] if condition else [])]):
        return
    nullable = [each for each in arguments if each.nullable()]
    is_null = _any(catalyst.column(each).isNull() for each in nullable)
    silent = is_null & ~_any(_is_asked_for(catalyst, each) for each in nullable)
    names = " or ".join(text_of(each, catalyst) for each in nullable)
    if condition is None:
        if nullable:
            yield Skip(operation, f"{names} is NULL", silent, ~is_null)
        return
    holds = catalyst.column(condition)
    used = F.when(holds, ~is_null).otherwise(F.lit(False))
    if nullable:
        silent = F.when(holds, silent).otherwise(F.lit(False))
        yield Skip(operation, f"{names} is NULL", silent, used)
    if condition.nullable():
        text = f"condition NULL: {text_of(condition, catalyst)}"
        yield Skip(operation, text, holds.isNull(), used)


def _respects_nulls(catalyst: Catalyst, function: Expression) -> bool:
    """Return whether the user asked a function to keep NULLs, if it has that choice."""
    fields = catalyst.fields(function)
    return "ignoreNulls" in fields and not function.productElement(fields.index("ignoreNulls"))


def _is_asked_for(catalyst: Catalyst, value: Expression) -> Column:
    """Return whether the user asked for NULL as a value: by CASE without ELSE, NULLIF, or NULL
    itself.

    CASE does not count if the condition of another branch is NULL.
    """
    kind = simple_class(value)
    if kind == "TypedNullLiteral" or (kind == "Literal" and value.value() is None):
        return F.lit(True)
    if kind == "NullIf":
        left = value.left()
        return catalyst.column(left).isNotNull() | _is_asked_for(catalyst, left)
    if kind in _STRICT:
        return _any(_is_asked_for(catalyst, child) for child in catalyst.items(value.children()))
    if kind not in ("CaseWhen", "If"):
        return F.lit(False)
    if kind == "If":
        branches, otherwise = [(value.predicate(), value.trueValue())], value.falseValue()
    else:
        branches = [(each._1(), each._2()) for each in catalyst.items(value.branches())]
        otherwise = value.elseValue().get() if value.elseValue().isDefined() else None
    is_asked = F.lit(True) if otherwise is None else _is_asked_for(catalyst, otherwise)
    for predicate, result in reversed(branches):
        holds = catalyst.column(predicate)
        chosen_result = F.when(holds, _is_asked_for(catalyst, result))
        is_asked = chosen_result.when(holds.isNull(), F.lit(False)).otherwise(is_asked)
    return is_asked


def _pivoted(catalyst: Catalyst, aggregates: Sequence[Expression]) -> list[Expression]:
    """Return the ``IF(key <=> value, argument, NULL)`` that a pivot has put into each aggregate.

    Empty: the aggregates do not come from a pivot.
    """
    arguments = [each.aggregateFunction().children().headOption() for each in aggregates]
    parts = [each.get() for each in arguments if each.isDefined()]
    if not parts or len(parts) < len(aggregates) or not all(map(_is_of_pivot, parts)):
        return []
    keys = {str(part.predicate().left().sql()) for part in parts}
    return parts if len(keys) == 1 else []


def _is_of_pivot(argument: Expression) -> bool:
    if simple_class(argument) != "If" or simple_class(argument.predicate()) != "EqualNullSafe":
        return False
    otherwise = argument.falseValue()
    is_null = bool(otherwise.foldable()) and otherwise.nullable()
    return is_null and bool(argument.predicate().right().foldable())


def _pivot(
    catalyst: Catalyst,
    node: Node,
    aggregates: Sequence[Expression],
    pivoted: Sequence[Expression],
) -> Iterator[Skip]:
    """Yield the rows whose value is not in the list of a pivot."""
    if pivoted:
        is_listed = _any(catalyst.column(each.predicate()) for each in pivoted)
        yield _not_listed(catalyst, pivoted[0].predicate().left(), is_listed)
    for aggregate in aggregates:
        function = aggregate.aggregateFunction()
        if simple_class(function) == "PivotFirst":
            key, values = function.pivotColumn(), function.pivotColumnValues().toSet()
            column = catalyst.column(key)
            has_null = F.lit(bool(values.contains(None)))
            is_equal = F.coalesce(catalyst.is_in(key, values), F.lit(False))
            is_listed = F.when(column.isNull(), has_null).otherwise(is_equal)
            yield _not_listed(catalyst, _below_aggregate(catalyst, node, key), is_listed)


def _not_listed(catalyst: Catalyst, key: Expression, is_listed: Column) -> Skip:
    parts = [key]
    if simple_class(key) == "CreateNamedStruct":
        parts = catalyst.items(key.children())[1::2]
    name = ", ".join(text_of(part, catalyst) for part in parts)
    return Skip(f"pivot({name})", f"{name} is not in the list", ~is_listed, is_listed)


def _below_aggregate(catalyst: Catalyst, node: Node, key: Expression) -> Expression:
    """Return the expression by which the Aggregate below a pivot groups."""
    wanted = key.exprId().id()
    for each in catalyst.items(catalyst.children(node)[0].aggregateExpressions()):
        if simple_class(each) == "Alias" and each.exprId().id() == wanted:
            return each.child()
    return key


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__or__, conditions, F.lit(False))
