"""Find the operation at which each missing record of an output was lost."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TypeAlias, cast

import numpy as np
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger.auditing import ids as record_ids
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.operations import (
    COLLECTING,
    KEEPING,
    ROW_WISE,
    chooses_freely,
    is_consulting,
    losing_sides,
    operation,
)
from ledger.auditing.options import GROUPS, PARTS, under_options
from ledger.auditing.sources import ID, Leaf, Sources, column_of
from ledger.errors import CarryError
from ledger.lineage.anchors import LISTS
from ledger.lineage.carrier import Carried, Carrier
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import simple_name

_PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern"
# Patterns of operations that may return other rows when computed again.
_UNSTEADY = ("AGGREGATE", "CURRENT_LIKE", "LIMIT", "WINDOW")
# Patterns of expressions that read uncopied data or run the user's code.
_UNCOPIED = ("PLAN_EXPRESSION", "PYTHON_UDF")
_AT, _RECORD = "__ackledger_at", "__ackledger_record"
MAX_GROUPS = 1024
MAX_PARTS, RECORDS_OF_PART = 200, 1_000_000
# Errors of Spark on the values of rows. Of an Arrow result py4j does not translate them.
EXECUTION_ERRORS = (PySparkException, Py4JError)

# The ids of a source that were looked for in the rows of a node, and those that its rows have.
Presence: TypeAlias = dict[tuple[int, ...], tuple[Ids, Ids]]


@dataclass(frozen=True)
class Lost:
    """Records whose rows one operation lost. ``side``: the index of the operation's child that had
    the rows.

    ``is_repeatable``: the operation loses the same records each time it is computed.
    """

    node: Node
    place: str
    side: int
    ids: Ids
    is_repeatable: bool = True


@dataclass
class Attribution:
    """One output's plan, without common table expressions, and the way of the records through it.

    ``notes``: sentences on what could not be computed.
    ``options``: the session's options when a script wrote the output; None: they have not changed
    since.
    """

    catalyst: Catalyst
    sources: Sources
    place: Callable[[Node], str]
    plan: Node
    notes: list[str] = field(default_factory=list)
    options: Mapping[str, str] | None = None
    _occurrences: dict[int, tuple[int, Leaf]] = field(default_factory=dict)
    _random: dict[int, bool] = field(default_factory=dict)
    _below: dict[int, list[tuple[Leaf, Node]]] = field(default_factory=dict)

    def as_written(self) -> AbstractContextManager[None]:
        """Return a context in which the session has the options that it had when the output was
        written.
        """
        return under_options(self.catalyst.spark, self.options)

    @cached_property
    def _version(self) -> int:
        """Return a number that is equal for outputs written under the same options."""
        return hash(frozenset((self.options or {}).items()))

    def _carrier(self, only: Mapping[int, DataFrame]) -> Carrier:
        def input_of(node: Node) -> Carried | None:
            leaf = self.sources.leaf_of(node)
            if leaf is None:
                return None
            return leaf.carried(self.catalyst, node, self.occurrence(leaf, node), only)

        return Carrier(self.catalyst, LISTS, input_of, self.place)

    def occurrence(self, leaf: Leaf, node: Node) -> int:
        """Return the index of a leaf among the leaves of the plan that read the same sources.
        Raises CarryError if there are more than ``MAX_OCCURRENCES`` of them.
        """
        first = self.catalyst.output(node)
        key = int(first[0].exprId().id()) if first else -self.catalyst.identity(node)
        if key not in self._occurrences:
            taken = [at for at, other in self._occurrences.values() if is_of_one(leaf, other)]
            number = max(taken, default=-1) + 1
            if number == record_ids.MAX_OCCURRENCES:
                raise CarryError(
                    f"input {leaf.name!r} is used more than {number} times in the plan of the "
                    "result: audit a part of the function"
                )
            self._occurrences[key] = number, leaf
        return self._occurrences[key][0]

    def carried(self, node: Node, only: Mapping[int, DataFrame]) -> tuple[DataFrame, Column]:
        """Return the rows of a node, in any order, and the column with the ids of each row's
        records. The node must have a source below it.
        """
        frame, (ids,) = self._carrier(only).carried(self._unsorted(node))
        return frame, ids

    def _unsorted(self, node: Node) -> Node:
        """Return a node without sorts that do not affect its rows. Such a sort may fail on values
        that are not read.
        """
        name = simple_name(node)
        children = self.catalyst.children(node)
        if name not in ROW_WISE or not children or self.sources.leaf_of(node) is not None:
            return node
        below = [self._unsorted(child) for child in children]
        if name == "Sort":
            return below[0]
        pairs = zip(children, below, strict=True)
        if all(self.catalyst.identity(old) == self.catalyst.identity(new) for old, new in pairs):
            return node
        return self.catalyst.with_children(node, below)

    def with_ids(self, name: str, selected: Callable[[Column], Column]) -> DataFrame:
        """Return the rows of the output with a last column ``name``: ``selected`` applied to the
        ids of each row's records.
        """
        ids: Column
        if self.sources_below(self.plan):
            frame, (ids,) = self._carrier({}).carried(self.plan)
            plan = self.catalyst.analyzed(frame)
        else:
            plan, ids = self.plan, F.array().cast("array<bigint>")
        visible = self.catalyst.output(self.plan)
        plan, _ = self.catalyst.projected(plan, visible, [selected(ids)])
        frame = self.catalyst.frame(plan)
        return frame.withColumnRenamed(frame.columns[-1], name)

    def arrived_ids(self) -> Ids:
        """Return the distinct ids in the rows of the output."""
        node, arrived = self._path()[-1], self.sources.arrived
        if not self.sources_below(node):
            return NO_IDS
        key = self.key(node)
        if key not in arrived:
            with self.as_written():
                arrived[key] = column_of(self.arrived(node, {}).distinct())
        return arrived[key]

    def note_arrived(self, ids: Ids) -> None:
        """Store the distinct ids in the rows of the output, so that they are not computed again,
        also not for another output with the same rows.
        """
        self.sources.arrived[self.key(self._path()[-1])] = ids

    @property
    def collects(self) -> bool:
        """Whether the output's rows are groups of other rows that have the same records each time
        they are computed under the same options. That needs inputs that are all copies, and no
        operation that is random, or depends on the time or on the order of equal rows.

        A carried plan reads the right sides of semi and anti joins, subqueries and RDDs as they
        are. Python code of the user runs as often as without an audit.
        """
        *above, node = self._path()
        if not any(simple_name(each) in COLLECTING for each in above):
            return False
        patterns = getattr(self.catalyst.spark._jvm, _PATTERNS)
        looked_for = [(self.plan, name) for name in _UNCOPIED] + [(node, n) for n in _UNSTEADY]
        if any(plan.containsPattern(getattr(patterns, name)()) for plan, name in looked_for):
            return False
        if any(simple_name(each) == "Offset" for each in self.catalyst.nodes(node)):
            return False  # no pattern of Spark 4.0
        return not self.is_random(node) and all(
            map(self._is_copied, self.catalyst.nodes(self.plan))
        )

    def _is_copied(self, node: Node) -> bool:
        """Return whether a node reads only copies: a leaf must read a source, and any other node
        must take rows from all of its children.
        """
        if self.catalyst.children(node):
            return not is_consulting(node)
        return self.sources.leaf_of(node) is not None

    def _path(self) -> list[Node]:
        """Return the nodes from the output down, through operations that keep all rows, to the
        first operation that may lose some.
        """
        nodes = [self.plan]
        while simple_name(nodes[-1]) in KEEPING:
            nodes += self._followed(nodes[-1])
        return nodes

    def arrived(self, node: Node, only: Mapping[int, DataFrame]) -> DataFrame:
        """Return the ids of the records in a node's rows, one in a row, in a column ``ID``. The
        node must have a source below it.
        """
        frame, ids = self.carried(node, only)
        return frame.select(F.explode(ids).alias(ID))

    def losses(self, missing: Mapping[int, Ids], presence: Presence) -> list[Lost]:
        """Find the operations that lost the missing records, from the leaves upwards.

        ``missing``: the missing ids by number of the source, with the occurrence to follow.
        ``presence``: findings on nodes by ``key``, which are shared with other outputs. This call
        adds to them.
        """
        missing = {source: values for source, values in missing.items() if len(values)}
        if not missing:
            return []
        losing = [node for node in self.nodes(self.plan) if losing_sides(node)]
        present = self._present(losing, missing, presence)
        losses: list[Lost] = []
        self._walk(self.plan, missing, present, losses)
        return losses

    def _walk(
        self,
        node: Node,
        missing: Mapping[int, Ids],
        present: Mapping[int, Ids],
        losses: list[Lost],
    ) -> Ids:
        """Return the missing ids that are in the rows of a node, and append the losses below it to
        ``losses``. A node without an entry in ``present`` is taken to lose nothing.
        """
        children = self._followed(node)
        if not children:
            leaf = self.sources.leaf_of(node)
            numbers = [] if leaf is None else [n for n in leaf.numbers if n in missing]
            if leaf is None or not numbers:
                return NO_IDS
            values = np.concatenate([missing[number] for number in numbers])
            at = self.occurrence(leaf, node)
            return cast(Ids, values[record_ids.occurrences_of(values) == at])
        entering = [self._walk(child, missing, present, losses) for child in children]
        leaving = present.get(self.catalyst.identity(node))
        if leaving is None:
            return record_ids.union(entering)
        sides = losing_sides(node)
        for side, values in enumerate(entering):
            if side in sides:
                lost = record_ids.difference(values, leaving)
                if len(lost):
                    is_repeatable = not self.is_random(node)
                    losses.append(Lost(node, self.place(node), side, lost, is_repeatable))
            else:
                leaving = record_ids.union([leaving, values])
        return leaving

    def is_random(self, node: Node) -> bool:
        """Return whether the rows or values of a node may differ each time it is computed."""
        identity = self.catalyst.identity(node)
        if identity not in self._random:
            is_leaf = self.sources.leaf_of(node) is not None
            below = [*self.catalyst.children(node), *self.catalyst.subqueries(node)]
            self._random[identity] = not is_leaf and (
                chooses_freely(node, self.catalyst) or any(map(self.is_random, below))
            )
        return self._random[identity]

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yield a node and the nodes below it, children first, except those that only choose rows
        of others.
        """
        for child in self._followed(node):
            yield from self.nodes(child)
        yield node

    def _followed(self, node: Node) -> list[Node]:
        if self.sources.leaf_of(node) is not None:
            return []
        children = self.catalyst.children(node)
        return children[:1] if is_consulting(node) else children

    def _present(
        self, nodes: Sequence[Node], missing: Mapping[int, Ids], presence: Presence
    ) -> dict[int, Ids]:
        """Return the missing ids that are in the rows of each node, by the node's identity. A node
        whose rows Spark cannot compute is left out. Findings are added to ``presence``.
        """
        keys = {
            (at, source): (source, *self.key(node))
            for at, node in enumerate(nodes)
            for source in sorted(set(missing) & set(self.sources_below(node)))
        }
        for (at, source), key in keys.items():
            arrived = self.sources.arrived.get(self.key(nodes[at]))
            if arrived is not None and not self.is_random(nodes[at]):
                presence[key] = missing[source], record_ids.intersection(missing[source], arrived)
        asked = [
            (at, source)
            for (at, source), key in keys.items()
            if key not in presence or len(record_ids.difference(missing[source], presence[key][0]))
        ]
        branches = []
        for at, source in asked:
            only, restricted = self.restriction(nodes[at], source, missing[source])
            branches.append(restricted(self.arrived(nodes[at], only)))
        ids_of_each = self._ids_in(branches, [nodes[at] for at, _ in asked])
        for each, ids in zip(asked, ids_of_each, strict=True):
            if ids is not None:
                presence[keys[each]] = missing[each[1]], ids
        failing = {at for (at, _), ids in zip(asked, ids_of_each, strict=True) if ids is None}
        return {
            self.catalyst.identity(node): record_ids.union(
                record_ids.intersection(presence[key][1], missing[source])
                for (other, source), key in keys.items()
                if other == at
            )
            for at, node in enumerate(nodes)
            if at not in failing
        }

    def _ids_in(self, branches: Sequence[DataFrame], nodes: Sequence[Node]) -> list[Ids | None]:
        """Return the ids in each branch, computed in one Spark job; None if a branch cannot be
        computed.

        This computes rows that a later operation drops, and Spark may fail on their values.
        """
        try:
            return [*_ids_of_each(branches)]
        except EXECUTION_ERRORS as error:
            if len(branches) > 1:
                pairs = zip(branches, nodes, strict=True)
                return [self._ids_in([rows], [node])[0] for rows, node in pairs]
            self.notes.append(
                f"{operation(nodes[0])} at {self.place(nodes[0])} fails on rows that the job does "
                f"not compute ({condition_of(error)}): what it lost is listed at a later operation"
            )
            return [None]

    def key(self, node: Node) -> tuple[int, ...]:
        """Return a key that is equal for nodes of several outputs with the same rows and ids."""
        occurrences = (self.occurrence(leaf, each) for leaf, each in self._leaves(node))
        return (self.catalyst.identity(node), self._version, *occurrences)

    def restriction(
        self, node: Node, source: int, values: Ids
    ) -> tuple[dict[int, DataFrame], Callable[[DataFrame], DataFrame]]:
        """Return how to find ids in the rows of a node without reading all of a source: the parts
        of sources to read instead, and a function that filters rows of ids approximately.
        """
        records = record_ids.records_of(values)
        if self.is_row_wise(node, source):
            bits = record_ids.ROW_BITS + record_ids.OCCURRENCE_BITS
            of_source = F.shiftright(ID, bits) == source
            part = self.sources.part_of(source, records)
            return {source: part}, lambda rows: rows.where(of_source)
        record = F.col(ID).bitwiseAND(F.lit(~record_ids.OCCURRENCE_MASK))
        wanted = F.broadcast(self.sources.frame_of(records).withColumnRenamed(ID, _RECORD))
        return {}, lambda rows: rows.join(wanted, record == F.col(_RECORD), "left_semi")

    def sources_below(self, node: Node) -> list[int]:
        """Return the numbers of the sources whose rows reach a node, one for each occurrence."""
        return [number for leaf, _ in self._leaves(node) for number in leaf.numbers]

    def _leaves(self, node: Node) -> list[tuple[Leaf, Node]]:
        """Return the leaves below a node with followed records whose rows reach it."""
        identity = self.catalyst.identity(node)
        if identity not in self._below:
            children = self._followed(node)
            leaf = None if children else self.sources.leaf_of(node)
            of_children = [each for child in children for each in self._leaves(child)]
            self._below[identity] = of_children if leaf is None else [(leaf, node)]
        return self._below[identity]

    def is_row_wise(self, node: Node, source: int) -> bool:
        """Return whether the rows of a source reach a node independently of each other, so that
        reading a part of the source is enough.
        """
        children = self._followed(node)
        if not children:
            leaf = self.sources.leaf_of(node)
            return leaf is None or source not in leaf.numbers or leaf.is_restrictable
        if any(source in self.sources_below(sub) for sub in self.catalyst.subqueries(node)):
            return False
        with_source = [child for child in children if source in self.sources_below(child)]
        if not with_source:
            return True
        name = simple_name(node)
        if name not in ROW_WISE or (len(with_source) > 1 and name != "Union"):
            return False
        if is_consulting(node):
            (right,) = self.catalyst.children(node)[1:]
            if source in self.sources_below(right):
                return False
        if not all(each.deterministic() for each in self.catalyst.items(node.expressions())):
            return False
        return all(self.is_row_wise(child, source) for child in with_source)


@contextmanager
def groups_in_memory(spark: SparkSession) -> Iterator[None]:
    """Let Spark collect the ids of more groups in memory in the block, unless the job has set the
    limit.

    By default Spark sorts from the 129th group on, which costs as much as the rest of the group.
    """
    with _by_default(spark, GROUPS, MAX_GROUPS):
        yield


@contextmanager
def in_few_shuffles(sources: Sources) -> Iterator[None]:
    """Set the number of shuffle partitions in the block by the number of records, unless the job
    has set it.

    Spark's default of 200 makes each task write 200 files, which takes longer than a million ids.
    """
    spark = sources.catalyst.spark
    cores, records = spark.sparkContext.defaultParallelism, sum(s.records for s in sources.sources)
    parts = min(max(cores, records // RECORDS_OF_PART), MAX_PARTS)
    with _by_default(spark, PARTS, parts), groups_in_memory(spark):
        yield


@contextmanager
def _by_default(spark: SparkSession, name: str, value: int) -> Iterator[None]:
    """Set an option in the block, unless the job has set it."""
    is_default = spark.conf.get(name, None) is None
    if is_default:
        spark.conf.set(name, value)
    try:
        yield
    finally:
        if is_default:
            spark.conf.unset(name)


def _ids_of_each(frames: Sequence[DataFrame]) -> Iterator[Ids]:
    """Yield the distinct ids in each frame."""
    if not frames:
        return
    numbered = [rows.select(F.lit(at).alias(_AT), ID) for at, rows in enumerate(frames)]
    table = reduce(DataFrame.union, numbered).distinct().toArrow()
    numbers, values = (np.asarray(table.column(at).to_numpy()) for at in (0, 1))
    for at in range(len(frames)):
        yield values[numbers == at]


def condition_of(error: Exception) -> str:
    """Return the name of Spark's error condition, such as DIVIDE_BY_ZERO, or else the error's
    class.
    """
    condition = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))
    return condition[1] if condition else type(error).__name__


def is_of_one(leaf: Leaf, other: Leaf) -> bool:
    """Return whether two leaves read records of the same source."""
    return not set(leaf.numbers).isdisjoint(other.numbers)
