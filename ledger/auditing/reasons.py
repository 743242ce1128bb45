"""Say why an operation lost records: conditions that are false or NULL, keys without a partner."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import Attribution, Lost
from ledger.auditing.conditions import Condition, Conjunct, negated
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.join_keys import join_keys
from ledger.auditing.operations import simple_class, text_of
from ledger.auditing.parsing import parsed_texts
from ledger.auditing.sources import ID, column_of
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import CONSULTING_JOINS, join_type, simple_name

_REASON = "__ackledger_reason"
# Generators that make no row of a list that is NULL or empty.
OF_LISTS = frozenset({"Explode", "Inline", "PosExplode"})
MAX_SUBQUERIES = 4  # of one condition, for which it is said whether it is false or NULL


@dataclass(frozen=True)
class Reason:
    """A reason and the records that were lost for it. ``is_intended``: their loss is expected."""

    text: str
    is_intended: bool
    ids: Ids


@dataclass(frozen=True)
class LossCause:
    """A possible reason for the loss of a row. ``holds``: whether it is the reason.
    ``may_be_loud``: an intended drop that turns out to be a loss for some records.
    """

    holds: Column
    text: str
    is_intended: bool
    may_be_loud: bool = False

    @property
    def rank(self) -> int:
        """The order of the causes of a record with several rows: losses before intended drops."""
        return 0 if not self.is_intended else 1 if self.may_be_loud else 2


class Reasons:
    """Finds reasons in the plan of one output."""

    def __init__(self, attribution: Attribution) -> None:
        self._attribution = attribution
        self._catalyst: Catalyst = attribution.catalyst

    def of(self, lost: Lost) -> list[Reason]:
        """Return the reasons of one operation's losses, each record with one of them."""
        name = simple_name(lost.node)
        if name == "Filter":
            return self._filter(lost)
        if name == "Join":
            return self._join(lost)
        if name == "Generate":
            return self._generate(lost)
        text, is_intended = {
            "GlobalLimit": ("beyond the limit", True),
            "Offset": ("before the offset", True),
            "Sample": ("not in the sample", True),
            "Except": ("on the right side, too", True),
            "Intersect": ("not on the other side", True),
        }[name]
        return [Reason(text, is_intended, lost.ids)]

    def _filter(self, lost: Lost) -> list[Reason]:
        condition = Condition.of(self._catalyst, lost.node)
        child = self._catalyst.children(lost.node)[0]
        parsers = [
            [text for value in part.required for text in parsed_texts(self._catalyst, child, value)]
            for part in condition.plain
        ]
        false = [
            LossCause(~part.value, part.false_text, True, may_be_loud=bool(texts))
            for part, texts in zip(condition.plain, parsers, strict=True)
        ]
        null = [LossCause(part.value.isNull(), part.null_text, False) for part in condition.plain]
        if condition.subqueries:
            reasons = self._filter_by_subquery(lost, condition, false, null)
        else:
            rest = LossCause(F.lit(True), "condition not true", False)
            if condition.is_random:
                rest = LossCause(F.lit(True), "random condition", True)
            # A later part is evaluated only where no earlier one is false, as in the filter.
            reasons = self._sorted_into(lost, [*false, *null], rest)
        for part, texts in zip(condition.plain, parsers, strict=True):
            for text in texts:
                failed = self.having(text.node, text.failed)
                reasons = _split(reasons, part, f"did not parse: {text.text}", failed)
        return reasons

    def _filter_by_subquery(
        self,
        lost: Lost,
        condition: Condition,
        false: Sequence[LossCause],
        null: Sequence[LossCause],
    ) -> list[Reason]:
        """Return the reasons of a filter whose condition has subqueries, such as ``IN`` or
        ``EXISTS``. A record counts as lost to NULL if it has a row for which no part is false; it
        gets a cause of ``null``. Any other record gets one of ``false``.

        If the condition is random, or has more than ``MAX_SUBQUERIES`` subqueries, there is one
        reason.
        """
        if condition.is_random or len(condition.subqueries) > MAX_SUBQUERIES:
            return [Reason(f"condition not true: {condition.text}", False, lost.ids)]
        with_null = self._without_false(lost, condition)
        text = " AND ".join(text_of(part, self._catalyst) for part in condition.subqueries)
        of_null = LossCause(F.lit(True), f"condition NULL: {text}", False)
        of_false = LossCause(F.lit(True), f"condition false: {text}", True)
        others = record_ids.difference(lost.ids, with_null)
        return [
            *self._sorted_into(replace(lost, ids=with_null), null, of_null),
            *self._sorted_into(replace(lost, ids=others), false, of_false),
        ]

    def _without_false(self, lost: Lost, condition: Condition) -> Ids:
        """Return the lost records with a row for which no part of a condition is false.

        A row for which NOT of a part is true is counted out. A filter evaluates NOT IN with NULLs
        as SQL does; the same expression in a column would be false.
        """

        def counted(frame: DataFrame, hidden: Column) -> Iterator[DataFrame]:
            for part in condition.plain:
                frame = frame.where(F.coalesce(part.value, F.lit(True)))
            for size in range(len(condition.subqueries) + 1):
                for parts in combinations(condition.subqueries, size):
                    rows = frame
                    for part in parts:
                        rows = rows.where(negated(self._catalyst, part))
                    yield rows.select(
                        F.explode(hidden).alias(ID), F.lit((-1) ** size).alias(_REASON)
                    )

        child = self._catalyst.children(lost.node)[0]
        rows = self.rows(child, lost.ids, counted)
        if rows is None:
            return NO_IDS
        sums = rows.groupBy(ID).agg(F.sum(_REASON).alias(_REASON))
        return record_ids.intersection(
            column_of(sums.where(F.col(_REASON) > 0).select(ID)), lost.ids
        )

    def _join(self, lost: Lost) -> list[Reason]:
        *causes, rest = self.causes_of_join(lost.node, lost.side)
        if not causes:
            return [Reason(rest.text, rest.is_intended, lost.ids)]
        return self._sorted_into(lost, causes, rest)

    def causes_of_join(self, node: Node, side: int) -> list[LossCause]:
        """Return the causes of a join's losses; the last one is that of all other rows."""
        kind, every = join_type(node), F.lit(True)
        if kind == "LeftAnti":
            return [LossCause(every, "has a partner", True)]
        is_intended = kind in CONSULTING_JOINS
        if node.condition().isEmpty():
            return [LossCause(every, "the other side has no rows", is_intended)]
        keys, has_more = join_keys(self._catalyst, node, side)
        if not keys:
            return [LossCause(every, "no partner by the condition", is_intended)]
        causes = [
            LossCause(self._catalyst.column(key).isNull(), f"key NULL: {self._text(key)}", False)
            for key, is_null_safe in keys
            if not is_null_safe
        ]
        names = ", ".join(self._text(key) for key, _ in keys)
        text = "no partner by the condition" if has_more else f"no partner for {names}"
        return [*causes, LossCause(every, text, is_intended)]

    def causes_of_filter(self, node: Node) -> list[LossCause]:
        """Return the causes of the losses of a filter without a subquery; the last one is that of
        all other rows.
        """
        plain = Condition.of(self._catalyst, node).plain
        return [
            *(LossCause(~part.value, part.false_text, True) for part in plain),
            *(LossCause(part.value.isNull(), part.null_text, False) for part in plain),
            LossCause(F.lit(True), "condition not true", False),
        ]

    def _generate(self, lost: Lost) -> list[Reason]:
        generator = lost.node.generator()
        if simple_class(generator) not in OF_LISTS:
            text = f"{self._text(generator)} makes no row"
            return [Reason(text, False, lost.ids)]
        cause, rest = self.causes_of_list(lost.node)
        return self._sorted_into(lost, [cause], rest)

    def causes_of_list(self, node: Node) -> tuple[LossCause, LossCause]:
        """Return the causes of the losses of one of ``OF_LISTS``; the last one is that of all other
        rows.
        """
        argument = node.generator().children().head()
        column, text = self._catalyst.column(argument), self._text(argument)
        return (
            LossCause(column.isNull(), f"{text} is NULL", False),
            LossCause(F.lit(True), f"{text} is empty", False),
        )

    def _text(self, expression: Expression) -> str:
        return text_of(expression, self._catalyst)

    def having(self, node: Node, condition: Column) -> Callable[[Ids], Ids]:
        """Return a function that selects ids with a row of a node for which a condition holds."""

        def having(values: Ids) -> Ids:
            rows = self._with_reason(node, values, F.when(condition, F.lit(1)))
            if rows is None:
                return NO_IDS
            rows = rows.where(F.col(_REASON).isNotNull()).select(ID).distinct()
            return record_ids.intersection(column_of(rows), values)

        return having

    def _sorted_into(
        self, lost: Lost, causes: Sequence[LossCause], rest: LossCause
    ) -> list[Reason]:
        """Give each lost record the first cause of each of its rows, and of these the loudest.

        ``rest``: the cause of rows for which no other one holds.
        """
        if not len(lost.ids):
            return []
        every = [*causes, rest]
        loudest_first = sorted(range(len(every)), key=lambda at: every[at].rank)
        number = F.lit(loudest_first.index(len(causes)))
        for at, cause in reversed(list(enumerate(causes))):
            number = F.when(cause.holds, F.lit(loudest_first.index(at))).otherwise(number)
        child = self._catalyst.children(lost.node)[lost.side]
        rows = self._with_reason(child, lost.ids, number)
        values, numbers = NO_IDS, NO_IDS
        if rows is not None:
            table = rows.groupBy(ID).agg(F.min(_REASON)).toArrow()
            values, numbers = (np.asarray(table.column(at).to_numpy()) for at in (0, 1))
        is_lost = np.isin(values, lost.ids)
        values, numbers = values[is_lost], numbers[is_lost]
        reasons = []
        for position, at in enumerate(loudest_first):
            ids = np.sort(values[numbers == position])
            if at == len(causes):
                # A record that no row has when the operation is computed again is here as well.
                ids = record_ids.union([ids, record_ids.difference(lost.ids, values)])
            reasons.append(Reason(every[at].text, every[at].is_intended, ids))
        return [reason for reason in reasons if len(reason.ids)]

    def _with_reason(self, child: Node, values: Ids, reason: Column) -> DataFrame | None:
        """Return the rows of a node that have some records: the id and the number of the reason.
        None: no record's source is below the node.
        """
        return self.rows(
            child,
            values,
            lambda frame, hidden: iter(
                [frame.select(F.explode(hidden).alias(ID), reason.alias(_REASON))]
            ),
        )

    def rows(
        self,
        child: Node,
        values: Ids,
        selected: Callable[[DataFrame, Column], Iterator[DataFrame]],
    ) -> DataFrame | None:
        """Return the rows of a node that have some records, in a selection by their list of ids.

        None: no record's source is below the node.
        """
        below = self._attribution.sources_below(child)
        frames: list[DataFrame] = []
        for number, own in record_ids.by_source(values):
            if number not in below:
                continue
            only, restricted = self._attribution.restriction(child, number, own)
            frame, hidden = self._attribution.carried(child, only)
            frames += map(restricted, selected(frame, hidden))
        return reduce(DataFrame.union, frames) if frames else None


def _split(
    reasons: Sequence[Reason], part: Conjunct, text: str, chosen_of: Callable[[Ids], Ids]
) -> list[Reason]:
    """Return the reasons in which those records that ``chosen_of`` selects are split off the
    intended drop of a conjunct: they are lost for ``text``.
    """
    split = []
    for reason in reasons:
        if reason.text != part.false_text:
            split.append(reason)
            continue
        ids = chosen_of(reason.ids)
        split.append(Reason(text, False, ids))
        split.append(
            Reason(reason.text, reason.is_intended, record_ids.difference(reason.ids, ids))
        )
    return [reason for reason in split if len(reason.ids)]
