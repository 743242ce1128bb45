"""The conjuncts of a filter's condition: when each is false or NULL, and what to say then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from ledger.auditing.definitions import rank_in
from ledger.auditing.operations import conjuncts, has_subquery, simple_class, text_of
from ledger.lineage.catalyst import Catalyst, Expression, Node


@dataclass(frozen=True)
class Conjunct:
    """One of the conditions that a filter joins by AND.

    ``value``: whether it is true, false or NULL for a row below the filter.
    ``required``: the values that it expects not to be NULL.
    """

    value: Column
    false_text: str
    null_text: str
    required: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class Condition:
    """The condition of a filter.

    ``plain``: conjuncts that can be evaluated for each row.
    ``subqueries``: conjuncts that only a filter evaluates as Spark does, because IN outside of a
    filter is never NULL.
    ``is_random``: whether other conjuncts have random values.
    """

    text: str
    plain: Sequence[Conjunct]
    subqueries: Sequence[Expression]
    is_random: bool

    @classmethod
    def of(cls, catalyst: Catalyst, node: Node) -> "Condition":
        """Split the condition of a Filter node into conjuncts."""
        parts = list(conjuncts(node.condition(), catalyst))
        subqueries = [part for part in parts if has_subquery(part, catalyst)]
        others = [part for part in parts if not has_subquery(part, catalyst)]
        child = catalyst.children(node)[0]
        plain = [
            conjunct
            for part in others
            if part.deterministic()
            for conjunct in _conjuncts_of(catalyst, child, part)
        ]
        is_random = not all(part.deterministic() for part in others)
        return cls(text_of(node.condition(), catalyst), plain, subqueries, is_random)


def negated(catalyst: Catalyst, condition: Expression) -> Column:
    """Return NOT of a condition, without a double NOT."""
    if simple_class(condition) == "Not":
        return catalyst.column(condition.child())
    return ~catalyst.column(condition)


def _conjuncts_of(catalyst: Catalyst, child: Node, part: Expression) -> Iterator[Conjunct]:
    kind = simple_class(part)
    if kind == "AtLeastNNonNulls":
        yield from _of_dropna(catalyst, part)
        return
    text = text_of(part, catalyst)
    rank = rank_in(catalyst, child, part)
    false_text = f"not kept by {rank}()" if rank else f"condition false: {text}"
    required: tuple[Expression, ...] = ()
    if kind == "IsNotNull":
        required = (part.child(),)
    elif kind == "Not" and simple_class(part.child()) == "IsNull":
        required = (part.child().child(),)
    yield Conjunct(catalyst.column(part), false_text, f"condition NULL: {text}", required)


def _of_dropna(catalyst: Catalyst, part: Expression) -> Iterator[Conjunct]:
    """Yield the conjuncts of ``dropna``. If it requires all values, each value is a conjunct."""
    values = catalyst.items(part.children())
    number = int(part.n())
    if number < len(values):
        names = ", ".join(text_of(value, catalyst) for value in values)
        text = f"dropna: fewer than {number} of {names}"
        yield Conjunct(catalyst.column(part), text, text, tuple(values))
        return
    for value in values:
        is_there = catalyst.column(value).isNotNull()
        text = f"dropna: {text_of(value, catalyst)} is NULL"
        if str(value.dataType().simpleString()) in ("float", "double"):
            is_there &= ~F.isnan(catalyst.column(value))
            text = f"{text} or NaN"
        yield Conjunct(is_there, text, text, (value,))
