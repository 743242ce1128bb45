"""The graph of a job: its sources, the operations that can lose or merge records, its outputs."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ledger.auditing.attribution import Attribution
from ledger.auditing.losses import Loss
from ledger.auditing.operations import is_consulting, losing_sides, operation, text_of
from ledger.auditing.outputs import AuditOutput, OutputLeaf
from ledger.auditing.remarks import Remark
from ledger.auditing.sources import AuditSource, Sources
from ledger.lineage.catalyst import Node
from ledger.lineage.nodes import WORDS, simple_name

SOURCE, REFERENCE, OPERATION, OUTPUT, FOLDED = (
    "source",
    "reference",
    "operation",
    "output",
    "folded",
)
MAX_OPERATIONS = 24  # with more of them, those without losses are folded
# Operations without losses of their own that several records share a row of.
_MERGING = {
    "Aggregate": "groupBy",
    "Deduplicate": "dropDuplicates",
    "Distinct": "distinct",
    "Union": "union",
}
# Where the expressions are that an operation shows.
_SHOWN = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "Filter": "condition",
    "Generate": "generator",
    "GlobalLimit": "limitExpr",
    "Join": "condition",
    "Offset": "offsetExpr",
}

_About = TypeVar("_About", Loss, Remark)


@dataclass(frozen=True)
class GraphNode:
    """A box of the graph.

    Attributes:
        kind: "source", "operation" or "output"; "reference": a table that is not followed;
            "folded": operations without losses.
        detail: the condition, keys or number of an operation.
        remarks: about records that an operation passed on, but not as the job may intend.
    """

    kind: str
    label: str
    place: str = ""
    detail: str = ""
    remarks: tuple[Remark, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class GraphEdge:
    """Rows that go from one node to another, by their index.

    Attributes:
        losses: the records that are lost where the rows enter ``end``.
        is_consulted: the rows only choose others.
    """

    start: int
    end: int
    losses: tuple[Loss, ...] = ()
    is_consulted: bool = False


@dataclass(frozen=True)
class JobGraph:
    """The graph of a job, without the operations that pass each row on."""

    nodes: Sequence[GraphNode] = ()
    edges: Sequence[GraphEdge] = ()

    def with_losses(self, changed: Callable[[Loss], Loss]) -> "JobGraph":
        """Return the graph with ``changed`` applied to each of its losses."""
        edges = [replace(edge, losses=tuple(map(changed, edge.losses))) for edge in self.edges]
        return JobGraph(self.nodes, edges)

    def of_sources(self, names: Container[str]) -> "JobGraph":
        """Return the graph with only the losses and remarks of these sources."""

        def own(items: Iterable[_About]) -> tuple[_About, ...]:
            return tuple(each for each in items if each.source.name in names)

        nodes = [replace(node, remarks=own(node.remarks)) for node in self.nodes]
        return JobGraph(nodes, [replace(edge, losses=own(edge.losses)) for edge in self.edges])


def graph_of(
    sources: Sources,
    outputs: Sequence[AuditOutput],
    losses: Iterable[Loss],
    remarks: Iterable[Remark] = (),
) -> JobGraph:
    """Return the graph of a job. An operation that several outputs share becomes one node.

    ``losses``, ``remarks``: have the identities of the plan nodes where they belong.
    """
    drawing = _Drawing()
    for remark in remarks:
        for identity in remark.at:
            drawing.remarks.setdefault(identity, []).append(remark)
    for loss in losses:
        if len(loss.ids):
            drawing.losses.setdefault(loss.at, []).append(loss)
    for output in outputs:
        end = drawing.output(output)
        if output.attribution is not None:
            for start in drawing.draw(output.attribution, output.attribution.plan):
                drawing.join(start, end)
        else:
            for number in sorted(output.sources):
                drawing.join(drawing.source(sources.sources[number]), end, is_consulted=True)
    return folded(drawing.graph)


@dataclass
class _Drawing:
    """A graph under construction.

    ``losses``: by the identity of a plan's node and the index of its child.
    ``remarks``: by the identity of a plan's node.
    """

    losses: dict[tuple[int, int], list[Loss]] = field(default_factory=dict)
    remarks: dict[int, list[Remark]] = field(default_factory=dict)
    _nodes: list[GraphNode] = field(default_factory=list)
    _by_key: dict[object, int] = field(default_factory=dict)
    _edges: dict[tuple[int, int], GraphEdge] = field(default_factory=dict)
    _drawn: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def graph(self) -> JobGraph:
        return JobGraph(tuple(self._nodes), tuple(self._edges.values()))

    def node(self, key: object, node: GraphNode) -> int:
        """Return the index of a node, which is added on first use."""
        if key not in self._by_key:
            self._by_key[key] = len(self._nodes)
            self._nodes.append(node)
        return self._by_key[key]

    def source(self, source: AuditSource) -> int:
        """Return the index of a source."""
        detail = f"{source.records:,} records"
        return self.node((SOURCE, source.number), GraphNode(SOURCE, source.name, "", detail))

    def output(self, output: AuditOutput) -> int:
        """Return the index of an output."""
        detail = "not followed" if output.attribution is None else ""
        node = GraphNode(OUTPUT, output.name, output.place, detail)
        return self.node((OUTPUT, id(output)), node)

    def join(
        self, start: int, end: int, losses: Iterable[Loss] = (), is_consulted: bool = False
    ) -> None:
        """Add an edge from ``start`` to ``end``, or add losses to the existing one."""
        edge = self._edges.get((start, end), GraphEdge(start, end, (), is_consulted))
        more = tuple(loss for loss in losses if not any(loss is each for each in edge.losses))
        is_consulted = edge.is_consulted and is_consulted
        self._edges[start, end] = GraphEdge(
            start, end, (*edge.losses, *more), is_consulted=is_consulted
        )

    def add_remarks(self, index: int, identity: int) -> None:
        """Add the remarks on a plan's node to a node of the graph, once each.

        ``index``: the index of the graph's node.
        ``identity``: the identity of the plan's node.
        """
        node = self._nodes[index]
        new = [
            each
            for each in self.remarks.get(identity, ())
            if all(each is not other for other in node.remarks)
        ]
        self._nodes[index] = replace(node, remarks=(*node.remarks, *new))

    def draw(self, attribution: Attribution, node: Node) -> tuple[int, ...]:
        """Draw a node of a plan and the plan below it, unless they are drawn. Return the indexes of
        the graph nodes from which the rows of the plan's node come.
        """
        key = id(attribution), attribution.catalyst.identity(node)
        if key not in self._drawn:
            self._drawn[key] = self._draw_new(attribution, node)
        return self._drawn[key]

    def _draw_new(self, attribution: Attribution, node: Node) -> tuple[int, ...]:
        leaf = attribution.sources.leaf_of(node)
        if isinstance(leaf, AuditSource):
            return (self.source(leaf),)
        if isinstance(leaf, OutputLeaf):
            return tuple(self.output(output) for output in leaf.outputs)
        catalyst, place = attribution.catalyst, attribution.place(node)
        name = simple_name(node)
        below = [self.draw(attribution, child) for child in catalyst.children(node)]
        consulted = [self.draw(attribution, plan) for plan in catalyst.subqueries(node)]
        if not below and not consulted:
            label = attribution.sources.reference_of(node)
            own = GraphNode(REFERENCE, label or "table", "", "not followed")
            return (self.node((REFERENCE, label or catalyst.identity(node)), own),)
        if not consulted and not losing_sides(node) and name not in _MERGING and name != "Join":
            return tuple(dict.fromkeys(index for indexes in below for index in indexes))
        if name == "Aggregate" and self._is_pivot(below, place):
            self.add_remarks(below[0][0], catalyst.identity(node))
            return below[0]
        label = _MERGING.get(name) or operation(node)
        own = GraphNode(OPERATION, WORDS.get(name, label) if label == name else label, place)
        own = replace(own, detail=_detail(attribution, node))
        index = self.node((own, tuple(below), tuple(consulted)), own)
        self.add_remarks(index, catalyst.identity(node))
        for side, starts in enumerate(below):
            losses = self.losses.get((catalyst.identity(node), side), ())
            for start in starts:
                self.join(start, index, losses, is_consulted=side == 1 and is_consulting(node))
        for start in (start for starts in consulted for start in starts):
            self.join(start, index, is_consulted=True)
        return (index,)

    def _is_pivot(self, below: Sequence[tuple[int, ...]], place: str) -> bool:
        """Return whether an aggregate is the second one on the same line, which means a pivot."""
        starts = below[0]
        return len(starts) == 1 and (
            self._nodes[starts[0]].label,
            self._nodes[starts[0]].place,
        ) == (_MERGING["Aggregate"], place)


def _detail(attribution: Attribution, node: Node) -> str:
    """Return the condition, the keys or the number of an operation as text."""
    shown = _SHOWN.get(simple_name(node))
    if shown is None:
        return ""
    catalyst, value = attribution.catalyst, getattr(node, shown)()
    if shown in ("groupingExpressions", "keys"):
        keys = ", ".join(text_of(each, catalyst) for each in catalyst.items(value))
        return f"by {keys}" if keys else ""
    if shown == "condition" and simple_name(node) == "Join":
        if value.isEmpty():
            return ""
        # Both sides of a key have the same name after join("key").
        return "on " + re.sub(r"^(\w+) = \1$", r"\1", text_of(value.get(), catalyst))
    return text_of(value, catalyst)


def folded(graph: JobGraph, most: int = MAX_OPERATIONS) -> JobGraph:
    """Return a graph in which neighbours without losses and remarks are merged into one node.
    Graphs with at most ``most`` operations are not changed.

    Two neighbours are merged only if no other path connects them, so that no cycle arises.
    """
    operations = [node for node in graph.nodes if node.kind == OPERATION]
    if len(operations) <= most:
        return graph
    lossy = {edge.end for edge in graph.edges if edge.losses}
    lossy |= {at for at, node in enumerate(graph.nodes) if node.remarks}
    parts: dict[int, list[int]] = {
        at: [at]
        for at, node in enumerate(graph.nodes)
        if node.kind == OPERATION and at not in lossy
    }
    edges = {(edge.start, edge.end): edge for edge in graph.edges}
    while pair := _neighbours(edges, parts):
        into, gone = pair
        parts[into] += parts.pop(gone)
        del edges[pair]
        for start, end in [ends for ends in edges if gone in ends]:
            moved = (into if start == gone else start, into if end == gone else end)
            edge, other = edges.pop((start, end)), edges.get(moved)
            edges[moved] = edge if other is None else _merged(edge, other)
    nodes = list(graph.nodes)
    for at, members in parts.items():
        if len(members) > 1:
            nodes[at] = _fold([graph.nodes[member] for member in sorted(members)])
    remaining = [
        at for at in range(len(nodes)) if at in parts or nodes[at].kind != OPERATION or at in lossy
    ]
    position = {at: index for index, at in enumerate(remaining)}
    moved_edges = (
        replace(edge, start=position[start], end=position[end])
        for (start, end), edge in edges.items()
    )
    return JobGraph([nodes[at] for at in remaining], list(moved_edges))


def _neighbours(edges: Iterable[tuple[int, int]], parts: Container[int]) -> tuple[int, int] | None:
    """Return two parts that an edge connects, and no other path; None if there are none."""
    every = list(edges)
    starts, ends = Counter(start for start, _ in every), Counter(end for _, end in every)
    for start, end in every:
        if start in parts and end in parts and (starts[start] == 1 or ends[end] == 1):
            return start, end
    return None


def _merged(edge: GraphEdge, other: GraphEdge) -> GraphEdge:
    losses = (*other.losses, *edge.losses)
    return replace(other, losses=losses, is_consulted=edge.is_consulted and other.is_consulted)


def _fold(nodes: Sequence[GraphNode]) -> GraphNode:
    labels = ", ".join(dict.fromkeys(node.label for node in nodes))
    places = list(dict.fromkeys(node.place for node in nodes))
    place = places[0] if len(places) == 1 else f"{places[0]} to {places[-1]}"
    return GraphNode(FOLDED, f"{len(nodes)} operations without losses", place, labels)
