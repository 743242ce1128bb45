"""Find the operation of a stage at which each input row was lost that no output row comes from.

The output's plan is computed again for these rows alone. A row is dropped on purpose only if that
is certain for all that the function makes of it: otherwise it counts as lost.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import EXECUTION_ERRORS, Attribution, Lost, condition_of
from ledger.auditing.comma_joins import with_join_conditions
from ledger.auditing.conditions import Condition
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.operations import (
    conjuncts,
    has_subquery,
    is_consulting,
    losing_sides,
    operation,
    references,
    simple_class,
)
from ledger.auditing.parsing import ParsedText, parsed_texts
from ledger.auditing.reasons import OF_LISTS, LossCause, Reason, Reasons
from ledger.auditing.sources import ID
from ledger.errors import CarryError, quote
from ledger.lineage.carry import Following
from ledger.lineage.catalyst import Node
from ledger.lineage.nodes import join_type, simple_name
from ledger.spark.steps.names_of_values import has_values_in_names
from ledger.spark.steps.repeats import Repeats
from ledger.spark.steps.stage_leaves import StageLeaves

_log = logging.getLogger(__name__)

UNKNOWN = "reason not known"
ARRIVED_AGAIN = "arrived when computed again: the function or a reference gave another answer"
# Texts and numbers in a condition, which may be values of records; a text may be cut.
_LITERALS = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|(?<![\w.])\d+(?:\.\d+)?\w*")
_MULTIPLYING = frozenset({"Expand", "Generate", "Join"})
_HIDDEN, _CAUSE = "__ackledger_ids", "__ackledger_cause"
MOST_RESTRICTED = 100_000  # missing rows for which the others are left out by a join


@dataclass(frozen=True)
class RowLoss:
    """Input rows that one operation lost for one reason.

    Attributes:
        operation: in users' words; empty where it is not known.
        place: its line, as file:line.
        reason: why it lost them.
        is_drop: whether it dropped them on purpose.
        why: what the author of the stage says of it.
        has_values: whether names of columns in the reason may be values of records.
        rows: their positions, by the number of the input.
    """

    operation: str
    place: str
    reason: str
    is_drop: bool = False
    why: str = ""
    has_values: bool = False
    rows: Mapping[int, Ids] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The operation, its line and the reason, with the literals of conditions as quotes."""
        if self.why:
            reason = self.why
        elif self.has_values:
            words, colon, details = self.reason.partition(": ")
            reason = f"{words}{colon}{quote(details)}" if colon else quote(words)
        else:
            reason = _LITERALS.sub(lambda literal: quote(literal[0]), self.reason)
        return f"{self.operation} at {self.place}: {reason}" if self.operation else reason

    @property
    def key(self) -> str:
        """The operation and the reason as the author of a stage writes them in ``expected``."""
        return f"{self.operation}: {self.reason}"


def find_losses(
    following: Following,
    frames: Sequence[DataFrame],
    missing: Mapping[int, Ids],
    *,
    drops: bool,
    expected: Mapping[str, str],
) -> list[RowLoss]:
    """Return at which operation of a stage input rows were lost.

    A row is dropped on purpose if all frames drop it that are made of its input.

    Args:
        following: the call of the stage's function.
        frames: what it returned: the output, then the frames of its marks.
        missing: positions of the rows, sorted, by the number of the input.
        drops: whether operations drop rows on purpose, such as a filter whose condition is false.
        expected: losses that are drops as well, by ``RowLoss.key``, each with why.
    """
    lost: list[RowLoss] = []
    drops_of: dict[int, list[RowLoss]] = {}
    rest = dict(missing)
    for frame in frames:
        try:
            finding = _Finding(following, frame, rest, drops, expected)
            losses = [*finding.losses()]
        except (CarryError, RecursionError, *EXECUTION_ERRORS) as error:
            why = error if isinstance(error, CarryError) else condition_of(error)
            _log.warning("it is not known what lost rows of %s: %s", following.function, why)
            return [*lost, RowLoss("", "", f"{UNKNOWN}: {condition_of(error)}", rows=rest)]
        for number in finding.inputs - drops_of.keys():
            drops_of[number] = [loss for loss in losses if loss.is_drop and number in loss.rows]
        for loss in losses:
            if not loss.is_drop:
                lost.append(loss)
                for number, positions in loss.rows.items():
                    rest[number] = record_ids.difference(rest[number], positions)
    for number, positions in rest.items():
        if number not in drops_of and len(positions):
            lost.append(RowLoss("", "", UNKNOWN, rows={number: positions}))
    for number, dropped in drops_of.items():
        for drop in dropped:
            positions = record_ids.intersection(drop.rows[number], rest[number])
            if len(positions):
                lost.append(replace(drop, rows={number: positions}))
    return lost


class _Finding:
    """Finds what operations of one frame lost.

    ``inputs``: the numbers of the inputs that it is made of, with missing rows.
    """

    def __init__(
        self,
        following: Following,
        frame: DataFrame,
        missing: Mapping[int, Ids],
        drops: bool,
        expected: Mapping[str, str],
    ) -> None:
        catalyst = self._catalyst = following.catalyst
        original = catalyst.analyzed(frame)
        plan = catalyst.without_ctes(original)
        places = following.sites.places(catalyst, plan, original)
        plain = Attribution(catalyst, StageLeaves(following), places, plan)
        self._attribution = with_join_conditions(plain)
        self._reasons, self._repeats = Reasons(self._attribution), Repeats(self._attribution)
        self._drops, self._expected = drops, expected
        ways = [*self._ways(self._attribution.plan, ())]
        self.inputs = {way.number for way in ways if len(missing.get(way.number, NO_IDS))}
        self._missing = {n: missing[n] + record_ids.first_id(n) for n in self.inputs}
        self._ways_in = [way for way in ways if way.number in self.inputs]

    def losses(self) -> Iterator[RowLoss]:
        """Yield what operations lost of each input: every missing row once."""
        each = [*self._judged()]
        for number in sorted(self.inputs):
            records, first = self._missing[number], record_ids.first_id(number)
            which = np.full(len(records), -1)
            # A loss of some row of a record counts before a drop of another one.
            for is_drop in (True, False):
                for at, (loss, ids) in reversed([*enumerate(each)]):
                    if loss.is_drop == is_drop:
                        own = record_ids.intersection(ids, records)
                        which[np.searchsorted(records, own)] = at
            for at in np.unique(which):
                loss = each[at][0] if at >= 0 else RowLoss("", "", ARRIVED_AGAIN)
                yield replace(loss, rows={number: records[which == at] - first})

    def _judged(self) -> Iterator[tuple[RowLoss, Ids]]:
        """Yield what each operation lost for each reason, with the ids of the records."""
        rest = dict(self._missing)
        steps = {
            number: {
                step.key: step for way in self._ways_in if way.number == number
                for step in way.losing
            } for number in self.inputs
        }  # fmt: skip
        nodes = [self._attribution.plan]
        while nodes:
            node = nodes.pop()
            ways = self._whole_ways(node)
            if not any(way.losing for way in ways):
                continue
            judged = self._judged_part(node, ways)
            if judged is None:
                nodes += self._catalyst.children(node)[: 1 if is_consulting(node) else None]
                continue
            losses, leaving = judged
            for loss, ids in losses:
                # Other rows of a record that leaves the part may be lost above it.
                yield loss, record_ids.difference(ids, leaving) if loss.is_drop else ids
            for way in ways:
                own = record_ids.intersection(self._missing[way.number], leaving)
                rest[way.number] = NO_IDS if node is self._attribution.plan else own
                for step in way.losing:
                    steps[way.number].pop(step.key, None)
        yield from self._by_record(rest, {n: [*each.values()] for n, each in steps.items()})

    def _whole_ways(self, node: Node) -> list["_Way"]:
        """Return the ways to a node of the inputs that are nowhere else in the plan."""
        ways = [way for way in self._ways(node, ()) if way.number in self.inputs]
        every = Counter(way.number for way in self._ways_in)
        inside = Counter(way.number for way in ways)
        return [way for way in ways if inside[way.number] == every[way.number]]

    def _judged_part(
        self, node: Node, ways: Sequence["_Way"]
    ) -> tuple[list[tuple[RowLoss, Ids]], Ids] | None:
        """Return what ``_row_by_row`` does of a part of the plan; None: it may lose other rows when
        it is computed again, or fails then.
        """
        steps = [step for way in ways for step in way.losing]
        if not self._repeats.is_timeless(node) or not all(map(self._has_lost_rows, steps)):
            return None
        try:
            return self._row_by_row(node, ways)
        except EXECUTION_ERRORS as error:
            place = f"{operation(node)} at {self._attribution.place(node)}"
            _log.info("rows that %s lost cannot be computed: %s", place, condition_of(error))
            return None

    def _has_lost_rows(self, step: "_PathStep") -> bool:
        """Return whether ``_lost_rows`` finds the rows that an operation does not pass on."""
        name = simple_name(step.node)
        if name == "Filter":
            return not has_subquery(step.node.condition(), self._catalyst)
        if name == "Generate":
            return simple_class(step.node.generator()) in OF_LISTS
        return name == "Join"

    def _row_by_row(
        self, part: Node, ways: Sequence["_Way"]
    ) -> tuple[list[tuple[RowLoss, Ids]], Ids]:
        """Return for each operation of a part of the plan the records of which it lost a row, and
        the records of which a row leaves the part. All are found in one Spark job.
        """
        causes: list[tuple[_PathStep, LossCause]] = []
        frames: list[DataFrame] = []
        for step in {step.key: step for way in ways for step in way.losing}.values():
            for lost, own in self._lost_rows(step):
                number = F.lit(len(causes) + len(own) - 1)
                for at, cause in reversed([*enumerate(own[:-1], len(causes))]):
                    number = F.when(cause.holds, F.lit(at)).otherwise(number)
                causes += [(step, cause) for cause in own]
                frames.append(lost.select(F.explode(_HIDDEN).alias(ID), number.alias(_CAUSE)))
        inputs = {way.number for way in ways}
        missing = record_ids.union(self._missing[number] for number in inputs)
        is_multiplying = len(inputs) < len(ways) or any(
            simple_name(node) in _MULTIPLYING for node in self._catalyst.nodes(part)
        )
        if is_multiplying:
            frames.append(self._leaving(part, missing).withColumn(_CAUSE, F.lit(len(causes))))
        rows = reduce(DataFrame.union, frames)
        table = (rows.distinct() if is_multiplying else rows).toArrow()
        values, numbers = (np.asarray(table.column(at).to_numpy()) for at in (0, 1))
        values = values & ~np.int64(record_ids.OCCURRENCE_MASK)
        losses = [
            each
            for at, (step, cause) in enumerate(causes)
            for each in self._parsed_and_other(step, cause, values[numbers == at])
        ]
        losses = [(loss, record_ids.intersection(ids, missing)) for loss, ids in losses]
        if is_multiplying:
            return losses, record_ids.distinct(values[numbers == len(causes)])
        return losses, record_ids.difference(missing, record_ids.union(ids for _, ids in losses))

    def _parsed_and_other(
        self, step: "_PathStep", cause: LossCause, values: Ids
    ) -> Iterator[tuple[RowLoss, Ids]]:
        """Yield what an operation lost for a cause, and before it the records whose texts it took
        for missing because they did not parse.
        """
        ids, parsed = record_ids.distinct(values), NO_IDS
        for text in self._parsers(step, cause):
            having = self._reasons.having(text.node, text.failed)
            occurrences = {way.occurrence for way in self._ways_in}
            everywhere = [record_ids.at_occurrence(ids, number) for number in occurrences]
            wrong = record_ids.records_of(having(record_ids.union(everywhere)))
            yield self._loss(step, f"did not parse: {text.text}", is_intended=False), wrong
            parsed = record_ids.union([parsed, wrong])
        rest = record_ids.difference(ids, parsed)
        yield self._loss(step, cause.text, is_intended=cause.is_intended), rest

    def _leaving(self, part: Node, missing: Ids) -> DataFrame:
        """Return the ids of missing records in the rows of a part of the plan, as ``ID``."""
        only = self._restriction(part)
        rows = self._attribution.arrived(part, only)
        if len(only) == len(self.inputs):
            return rows
        wanted = self._attribution.sources.frame_of(missing).withColumnRenamed(ID, _HIDDEN)
        record = F.col(ID).bitwiseAND(F.lit(~record_ids.OCCURRENCE_MASK))
        return rows.join(wanted, record == F.col(_HIDDEN), "left_semi")

    def _lost_rows(self, step: "_PathStep") -> Iterator[tuple[DataFrame, list[LossCause]]]:
        """Yield the rows that an operation does not pass on, with the list of their ids as
        ``_HIDDEN``, and its causes; the last one is that of all other rows.
        """
        catalyst, node = self._catalyst, step.node
        child = catalyst.children(node)[step.side]
        frame, ids = self._attribution.carried(child, self._restriction(child))
        frame = frame.withColumn(_HIDDEN, ids)
        name = simple_name(node)
        if name == "Join":
            kind = "leftsemi" if join_type(node) == "LeftAnti" else "leftanti"
            joined = catalyst.rebuilt(
                node,
                left=catalyst.analyzed(frame),
                right=catalyst.children(node)[1 - step.side],
                joinType=catalyst.spark_class("plans.JoinType").apply(kind),
                hint=catalyst.spark_class("plans.logical.JoinHint").NONE(),
            )
            yield catalyst.frame(joined), [*self._reasons.causes_of_join(node, step.side)]
        elif name == "Generate":
            argument = catalyst.column(node.generator().children().head())
            is_empty = F.coalesce(F.size(argument), F.lit(0)) <= 0
            yield frame.where(is_empty), [*self._reasons.causes_of_list(node)]
        else:
            is_join = self._is_join_condition(node)
            for part in self._evaluated_in_turn(node):
                causes = self._reasons.causes_of_filter(part)
                is_true = catalyst.column(part.condition())
                if is_join:
                    causes = [replace(cause, is_intended=False) for cause in causes]
                yield frame.where(~F.coalesce(is_true, F.lit(False))), causes
                frame = frame.where(is_true)

    def _evaluated_in_turn(self, node: Node) -> Iterator[Node]:
        """Yield a filter as several: Spark calls a function of the user only for the rows for which
        the rest of the condition is true.
        """
        python = self._catalyst.spark_class("trees.TreePattern").PYTHON_UDF()
        parts = [*conjuncts(node.condition(), self._catalyst)]
        both = self._catalyst.spark_class("expressions.And")
        for is_python in (False, True):
            own = [part for part in parts if bool(part.containsPattern(python)) == is_python]
            if own:
                yield self._catalyst.rebuilt(node, condition=reduce(both, own))

    def _parsers(self, step: "_PathStep", cause: LossCause) -> Iterator[ParsedText]:
        """Yield the texts that an intended drop of a filter expects to be values."""
        if simple_name(step.node) != "Filter" or not cause.is_intended:
            return
        (child,) = self._catalyst.children(step.node)
        for part in Condition.of(self._catalyst, step.node).plain:
            if part.false_text == cause.text:
                for value in part.required:
                    yield from parsed_texts(self._catalyst, child, value)

    def _by_record(
        self, rest: Mapping[int, Ids], steps: Mapping[int, Sequence["_PathStep"]]
    ) -> Iterator[tuple[RowLoss, Ids]]:
        """Yield for each operation the records that end there when it is computed again.

        Other rows may come to it then, so nothing is a drop, unless only one operation can have
        lost a row.

        ``steps``: the operations that can have lost a row, by the number of its input.
        """
        missing: dict[int, Ids] = {}
        losses: list[tuple[Lost, bool]] = []
        for number, records in rest.items():
            ways = [way for way in self._ways_in if way.number == number]
            entering = [record_ids.at_occurrence(records, way.occurrence) for way in ways]
            if len(ways) == 1 and len(steps[number]) == 1:
                (step,) = steps[number]
                lost = Lost(step.node, self._place(step), step.side, entering[0])
                losses += [(lost, self._is_certain(step))] if len(records) else []
            else:
                missing[number] = record_ids.union(entering)
        losses += [(lost, False) for lost in self._attribution.losses(missing, {})]
        for lost, is_certain in losses:
            step = _PathStep(lost.node, lost.side, loses=True, identity=0)
            try:
                reasons = self._reasons.of(lost)
            except EXECUTION_ERRORS as error:  # on values of rows that a later operation drops
                reasons = [Reason(f"{UNKNOWN}: {condition_of(error)}", False, lost.ids)]
            for reason in reasons:
                loss = self._loss(step, reason.text, is_intended=reason.is_intended)
                ids = record_ids.records_of(reason.ids)
                yield (loss if is_certain else replace(loss, is_drop=False, why="")), ids

    def _is_certain(self, step: "_PathStep") -> bool:
        """Return whether the only operation that can have lost a row has the same reason for it
        when it is computed again. A condition could have been NULL, and be false now.
        """
        name = simple_name(step.node)
        if name == "Filter":
            has_reason = not step.node.condition().nullable()
            has_reason = has_reason or self._repeats.is_repeatable(step.node)
            return has_reason and not self._is_join_condition(step.node)
        if name in ("Generate", "Join"):
            return self._repeats.is_repeatable(self._catalyst.children(step.node)[step.side])
        return True

    def _loss(self, step: "_PathStep", reason: str, *, is_intended: bool) -> RowLoss:
        has_values = has_values_in_names(self._catalyst, step.node)
        loss = RowLoss(operation(step.node), self._place(step), reason, has_values=has_values)
        why = self._expected.get(loss.key, "")
        return replace(loss, is_drop=bool(why) or (self._drops and is_intended), why=why)

    def _place(self, step: "_PathStep") -> str:
        return self._attribution.place(step.node)

    def _restriction(self, node: Node) -> dict[int, DataFrame]:
        """Return the few rows of each input that are looked for below a node, where others have no
        part in them.
        """
        attribution = self._attribution
        return {
            number: attribution.sources.part_of(number, self._missing[number])
            for number in self.inputs
            if len(self._missing[number]) <= MOST_RESTRICTED
            and number in attribution.sources_below(node)
            and attribution.is_row_wise(node, number)
        }

    def _ways(self, node: Node, above: tuple["_PathStep", ...]) -> Iterator["_Way"]:
        """Yield the way of the rows of each occurrence of an input below a node."""
        leaf = self._attribution.sources.leaf_of(node)
        if leaf is not None:
            (number,) = leaf.numbers
            yield _Way(number, self._attribution.occurrence(leaf, node), above)
            return
        children = self._catalyst.children(node)
        for side, child in enumerate(children[:1] if is_consulting(node) else children):
            key = self._catalyst.identity(node)
            step = _PathStep(node, side, side in losing_sides(node), key)
            yield from self._ways(child, (step, *above))

    def _is_join_condition(self, node: Node) -> bool:
        """Return whether a filter may choose the partners of rows: a join below it has no condition
        on both of its sides.
        """
        catalyst = self._catalyst
        for join in catalyst.nodes(node):
            if simple_name(join) != "Join" or is_consulting(join):
                continue
            condition = join.condition()
            used = set() if condition.isEmpty() else references(condition.get(), catalyst)
            sides = [catalyst.output(child) for child in catalyst.children(join)]
            if not all(used & {int(each.exprId().id()) for each in side} for side in sides):
                return True
        return False


@dataclass(frozen=True)
class _PathStep:
    """An operation on the way of a row. ``side``: the child that the row comes from. ``loses``: it
    can lose rows of that child. ``identity``: of its node.
    """

    node: Node
    side: int
    loses: bool
    identity: int

    @property
    def key(self) -> tuple[int, int]:
        """The operation and its side, which several ways may have in common."""
        return self.identity, self.side


@dataclass(frozen=True)
class _Way:
    """The way of the rows of an input to the output: the number of the input and of its occurrence
    in the plan, and the operations, the first one first.
    """

    number: int
    occurrence: int
    steps: tuple[_PathStep, ...]

    @property
    def losing(self) -> list[_PathStep]:
        """The operations that can lose rows."""
        return [step for step in self.steps if step.loses]
