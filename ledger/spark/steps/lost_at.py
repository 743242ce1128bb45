"""Find the operation of a stage at which each input row was lost that no output row comes from.

The output's plan is computed again for these rows alone. A row is dropped on purpose only if that
is certain for all that the function makes of it: otherwise it counts as lost.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ledger.auditing import ids as record_ids
from ledger.auditing.attribution import EXECUTION_ERRORS, Attribution, Lost, condition_of
from ledger.auditing.comma_joins import with_join_conditions
from ledger.auditing.conditions import Condition
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.operations import (
    is_consulting,
    join_type,
    losing_sides,
    operation,
    simple_class,
)
from ledger.auditing.parsing import ParsedText, parsed_texts
from ledger.auditing.reasons import OF_LISTS, LossCause, Reason, Reasons
from ledger.auditing.sources import ID, Leaf, Sources
from ledger.core.column_names import ANCHOR
from ledger.errors import CarryError, quote
from ledger.lineage.anchors import Anchors
from ledger.lineage.carrier import Carried
from ledger.lineage.carry import Following
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name
from ledger.spark.frames.stored import local_numbers

_log = logging.getLogger(__name__)

UNKNOWN = "reason not known"
ARRIVED_AGAIN = "arrived when computed again: the function or a reference gave another answer"
# Texts and numbers in a condition, which may be values of records; a text may be cut.
_LITERALS = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|(?<![\w.])\d+(?:\.\d+)?\w*")
# The rows of these may depend on the order of others, or on which of them are equal.
_OF_ORDER = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sample", "Tail", "Window"})
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
        rows: their positions, by the number of the input.
    """

    operation: str
    place: str
    reason: str
    is_drop: bool = False
    why: str = ""
    rows: Mapping[int, Ids] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The operation, its line and the reason, with the literals of conditions as quotes."""
        reason = self.why or _LITERALS.sub(lambda literal: quote(literal[0]), self.reason)
        return f"{self.operation} at {self.place}: {reason}" if self.operation else reason

    @property
    def key(self) -> str:
        """The operation and the reason as the author of a stage writes them in ``expected``."""
        return f"{self.operation}: {self.reason}"


@dataclass
class _Leaf:
    """An input of a stage as a leaf of its function's plan; the id of a row is its position."""

    following: Following
    number: int
    name: str
    is_list: bool
    is_restrictable: bool = True

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number,)

    def ids_of(self, source: int) -> Ids:
        raise NotImplementedError("an audit alone asks for all rows of an input")

    def carried(
        self, catalyst: Catalyst, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> Carried:
        first = record_ids.first_id(self.number) + (occurrence << record_ids.ROW_BITS)

        def parent(anchor: Column) -> Column:
            return (anchor[0] if self.is_list else anchor)["parent"]

        def restricted(rows: DataFrame, anchor: Column) -> DataFrame:
            wanted = F.broadcast(only[self.number])
            record = parent(anchor) + F.lit(record_ids.first_id(self.number))
            return rows.join(wanted, record == wanted[ID], "left_semi")

        plan, own = self.following.with_column(
            node,
            lambda anchor: parent(anchor) + F.lit(first),
            restricted if self.number in only else None,
        )
        return plan, Anchors.of_id(own)


class _Leaves(Sources):
    """The inputs of a stage as the leaves of its function's plan, which are read where they lie."""

    def __init__(self, following: Following) -> None:
        super().__init__(following.catalyst, Path())
        self._following = following
        self._leaves = [
            _Leaf(following, number, name, isinstance(rows.schema[ANCHOR].dataType, ArrayType))
            for number, (name, rows) in enumerate(following.inputs.items())
        ]

    def leaf_of(self, node: Node) -> Leaf | None:
        number = self._following.number_of(node)
        return None if number is None else self._leaves[number]

    def frame_of(self, values: Ids) -> DataFrame:
        return local_numbers(self.catalyst.spark, ID, pa.array(values))

    def part_of(self, source: int, wanted: Ids) -> DataFrame:
        return self.frame_of(wanted)


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
        except (CarryError, *EXECUTION_ERRORS) as error:
            _log.warning("it is not known what lost rows of %s: %s", following.function, error)
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
        plain = Attribution(catalyst, _Leaves(following), places, plan)
        self._attribution = with_join_conditions(plain)
        self._reasons = Reasons(self._attribution)
        self._drops, self._expected = drops, expected
        ways = [*self._ways(self._attribution.plan, ())]
        self.inputs = {number for number, _, _ in ways if len(missing.get(number, NO_IDS))}
        self._missing = {n: missing[n] + record_ids.first_id(n) for n in self.inputs}
        self._ways_in = [way for way in ways if way[0] in self.inputs]
        self._steps = [
            *{step.key: step for _, _, way in self._ways_in for step in way if step.loses}.values()
        ]

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
        if self._is_stable():
            try:
                by_row = [*self._row_by_row()]  # all of it, or none: a loss may come last
            except EXECUTION_ERRORS as error:
                _log.info("lost rows are looked for by operation: %s", condition_of(error))
            else:
                yield from by_row
                return
        yield from self._by_record()

    def _is_stable(self) -> bool:
        """Whether the lost rows of each operation are the same when it is computed again, and are
        found by ``_lost_rows``.
        """
        attribution, plan = self._attribution, self._attribution.plan
        now = self._catalyst.spark_class("trees.TreePattern").CURRENT_LIKE()
        if attribution.is_random(plan) or plan.containsPattern(now):
            return False
        if any(simple_name(node) in _OF_ORDER for node in self._catalyst.nodes(plan)):
            return False
        return all(map(self._has_lost_rows, self._steps))

    def _has_lost_rows(self, step: "_PathStep") -> bool:
        name = simple_name(step.node)
        if name == "Filter":
            condition = Condition.of(self._catalyst, step.node)
            return not condition.subqueries and not condition.is_random
        if name == "Generate":
            return simple_class(step.node.generator()) in OF_LISTS
        return name == "Join"

    def _row_by_row(self) -> Iterator[tuple[RowLoss, Ids]]:
        """Yield for each operation the records of which it lost a row, in one Spark job."""
        plan = self._attribution.plan
        causes: list[tuple[_PathStep, LossCause]] = []
        frames: list[DataFrame] = []
        for step in self._steps:
            lost, own = self._lost_rows(step)
            number = F.lit(len(causes) + len(own) - 1)
            for at, cause in reversed([*enumerate(own[:-1], len(causes))]):
                number = F.when(cause.holds, F.lit(at)).otherwise(number)
            causes += [(step, cause) for cause in own]
            frames.append(lost.select(F.explode(_HIDDEN).alias(ID), number.alias(_CAUSE)))
        if not frames:
            return
        rows = reduce(DataFrame.union, frames)
        if any(simple_name(node) in _MULTIPLYING for node in self._catalyst.nodes(plan)):
            rows = rows.distinct()
        table = rows.toArrow()
        values, numbers = (np.asarray(table.column(at).to_numpy()) for at in (0, 1))
        values = values & ~np.int64(record_ids.OCCURRENCE_MASK)
        for at, (step, cause) in enumerate(causes):
            ids = record_ids.distinct(values[numbers == at])
            parsed = NO_IDS
            for text in self._parsers(step, cause):
                having = self._reasons.having(text.node, text.failed)
                occurrences = {occurrence for _, occurrence, _ in self._ways_in}
                everywhere = [record_ids.at_occurrence(ids, number) for number in occurrences]
                wrong = record_ids.records_of(having(record_ids.union(everywhere)))
                yield self._loss(step, f"did not parse: {text.text}", is_intended=False), wrong
                parsed = record_ids.union([parsed, wrong])
            rest = record_ids.difference(ids, parsed)
            yield self._loss(step, cause.text, is_intended=cause.is_intended), rest

    def _lost_rows(self, step: "_PathStep") -> tuple[DataFrame, list[LossCause]]:
        """Return the rows that an operation does not pass on, with the list of their ids as
        ``_HIDDEN``, and its causes; the last one is that of all other rows.
        """
        catalyst, node = self._catalyst, step.node
        child = catalyst.children(node)[step.side]
        frame, ids = self._attribution.carried(child, self._restriction(child))
        name = simple_name(node)
        if name == "Join":
            kind = "leftsemi" if join_type(node) == "LeftAnti" else "leftanti"
            frame = catalyst.frame(
                catalyst.rebuilt(
                    node,
                    left=catalyst.analyzed(frame.withColumn(_HIDDEN, ids)),
                    right=catalyst.children(node)[1 - step.side],
                    joinType=catalyst.spark_class("plans.JoinType").apply(kind),
                )
            )
            return frame, [*self._reasons.causes_of_join(node, step.side)]
        frame = frame.withColumn(_HIDDEN, ids)
        if name == "Generate":
            causes = [*self._reasons.causes_of_list(node)]
            argument = catalyst.column(node.generator().children().head())
            return frame.where(F.coalesce(F.size(argument), F.lit(0)) <= 0), causes
        condition = Condition.of(catalyst, node)
        is_comma_join = any(map(self._is_bare_join, catalyst.nodes(child)))
        causes = [
            *(
                LossCause(~part.value, part.false_text, not is_comma_join)
                for part in condition.plain
            ),
            *(LossCause(part.value.isNull(), part.null_text, False) for part in condition.plain),
            LossCause(F.lit(True), "condition not true", False),
        ]
        return frame.where(~F.coalesce(catalyst.column(node.condition()), F.lit(False))), causes

    def _parsers(self, step: "_PathStep", cause: LossCause) -> Iterator[ParsedText]:
        """Yield the texts that an intended drop of a filter expects to be values."""
        if simple_name(step.node) != "Filter" or not cause.is_intended:
            return
        (child,) = self._catalyst.children(step.node)
        for part in Condition.of(self._catalyst, step.node).plain:
            if part.false_text == cause.text:
                for value in part.required:
                    yield from parsed_texts(self._catalyst, child, value)

    def _by_record(self) -> Iterator[tuple[RowLoss, Ids]]:
        """Yield for each operation the records that end there when it is computed again.

        Other rows may come to it then, so nothing is a drop, unless only one operation can have
        lost a row.
        """
        is_only = len(self._ways_in) == 1 and len(self._steps) == 1
        if is_only:
            ((number, occurrence, _),) = self._ways_in
            (step,) = self._steps
            ids = record_ids.at_occurrence(self._missing[number], occurrence)
            losses = [Lost(step.node, self._place(step), step.side, ids)]
        else:
            missing: dict[int, Ids] = {}
            for number, occurrence, _ in self._ways_in:
                ids = record_ids.at_occurrence(self._missing[number], occurrence)
                missing[number] = record_ids.union([missing.get(number, NO_IDS), ids])
            losses = self._attribution.losses(missing, {})
        for lost in losses:
            step = _PathStep(lost.node, lost.side, loses=True, identity=0)
            try:
                reasons = self._reasons.of(lost)
            except EXECUTION_ERRORS as error:  # on values of rows that a later operation drops
                reasons = [Reason(f"{UNKNOWN}: {condition_of(error)}", False, lost.ids)]
            for reason in reasons:
                loss = self._loss(step, reason.text, is_intended=reason.is_intended)
                ids = record_ids.records_of(reason.ids)
                yield (loss if is_only else replace(loss, is_drop=False, why="")), ids

    def _loss(self, step: "_PathStep", reason: str, *, is_intended: bool) -> RowLoss:
        loss = RowLoss(operation(step.node), self._place(step), reason)
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

    def _ways(
        self, node: Node, above: tuple["_PathStep", ...]
    ) -> Iterator[tuple[int, int, tuple["_PathStep", ...]]]:
        """Yield each occurrence of an input below a node: its number, that of the occurrence, and
        the operations on the way of its rows, the first one first.
        """
        leaf = self._attribution.sources.leaf_of(node)
        if leaf is not None:
            (number,) = leaf.numbers
            yield number, self._attribution.occurrence(leaf, node), above
            return
        children = self._catalyst.children(node)
        for side, child in enumerate(children[:1] if is_consulting(node) else children):
            key = self._catalyst.identity(node)
            step = _PathStep(node, side, side in losing_sides(node), key)
            yield from self._ways(child, (step, *above))

    def _is_bare_join(self, node: Node) -> bool:
        return simple_name(node) == "Join" and bool(node.condition().isEmpty())


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
