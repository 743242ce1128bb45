"""The graph of an audited job: its layers, what is folded, and its drawing."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from ledger.auditing.data import graph_data
from ledger.auditing.drawing import drawn
from ledger.auditing.graph import (
    FOLDED,
    OPERATION,
    OUTPUT,
    SOURCE,
    GraphEdge,
    GraphNode,
    JobGraph,
    folded,
)
from ledger.auditing.layout import GAP, layout
from ledger.auditing.remarks import MERGED, SEVERAL_ROWS, Remark
from tests.support.audits import loss, source


def random_edges(number: int, seed: int) -> list[tuple[int, int]]:
    """Edges of a graph without a circle: each node but the first has one from an earlier one."""
    pick = random.Random(seed)
    edges = {(pick.randrange(node), node) for node in range(1, number)}
    for _ in range(number // 2):
        start, end = sorted(pick.sample(range(number), 2))
        edges.add((start, end))
    return sorted(edges)


@pytest.mark.parametrize("seed", range(5))
def test_each_node_is_below_those_that_it_needs(seed):
    """Edges lead downwards, boxes of a layer do not overlap, and passing edges keep clear."""
    edges, widths = random_edges(30, seed), [100.0 + node for node in range(30)]
    places = layout(widths, edges)
    assert all(places.layers[start] < places.layers[end] for start, end in edges)
    spans = {}
    for node, width in enumerate(widths):
        left = places.centers[node] - width / 2
        assert left >= -0.001
        assert left + width <= places.width + 0.001
        spans.setdefault(places.layers[node], []).append((left, left + width))
    for at, (start, end) in enumerate(edges):
        bends = places.bends[at]
        assert len(bends) == places.layers[end] - places.layers[start] - 1
        for step, center in enumerate(bends, 1):
            spans[places.layers[start] + step].append((center, center))
    for layer in spans.values():
        for (_, right), (left, _) in pairwise(sorted(layer)):
            assert right + GAP <= left + 0.001


def test_layouts_of_nothing_and_of_one():
    """A graph without nodes has no width, and a single node stands at the left."""
    assert layout([], []).width == 0
    assert layout([50.0], []).centers == [25.0]


def test_edges_do_not_cross_where_they_need_not():
    """Two chains that are joined stay beside each other."""
    places = layout([50.0] * 5, [(0, 3), (1, 2), (2, 4), (3, 4)])
    assert (places.centers[0] < places.centers[1]) == (places.centers[3] < places.centers[2])


def job(operations: int, lossy: set[int]) -> JobGraph:
    """A chain of operations below a source; those of ``lossy`` lose a record each. Every third one
    reads a table beside it.
    """
    orders = source()
    nodes = [GraphNode(SOURCE, "orders")]
    edges = []
    last = 0
    for at in range(operations):
        nodes.append(GraphNode(OPERATION, f"filter{at}", f"shop.py:{at}"))
        lost = (loss(orders, at, 1, place=f"shop.py:{at}"),) if at in lossy else ()
        edges.append(GraphEdge(last, len(nodes) - 1, lost))
        last = len(nodes) - 1
        if at % 3 == 0:
            nodes.append(GraphNode(SOURCE, f"table{at}"))
            edges.append(GraphEdge(len(nodes) - 1, last))
    nodes.append(GraphNode(OUTPUT, "totals"))
    return JobGraph(nodes, [*edges, GraphEdge(last, len(nodes) - 1)])


def test_many_operations_are_folded_but_those_with_losses():
    """Of sixty operations the two that lose records stay, and neighbours of the others are one."""
    graph = folded(job(60, {20, 40}))
    own = [node for node in graph.nodes if node.kind in (OPERATION, FOLDED)]
    assert sorted(node.label for node in own) == [
        "19 operations without losses",
        "19 operations without losses",
        "20 operations without losses",
        "filter20",
        "filter40",
    ]
    assert {node.place for node in own if node.kind == FOLDED} == {
        "shop.py:0 to shop.py:19",
        "shop.py:21 to shop.py:39",
        "shop.py:41 to shop.py:59",
    }
    assert sum(len(edge.losses) for edge in graph.edges) == 2
    assert layout([50.0] * len(graph.nodes), [(e.start, e.end) for e in graph.edges]).layers
    assert job(20, set()) == folded(job(20, set()))


@pytest.mark.parametrize("seed", range(20))
def test_folding_makes_no_circle(seed):
    """Whatever is folded, each edge still leads from an earlier part to a later one."""
    pick, orders = random.Random(seed), source()
    nodes = [GraphNode(OPERATION, f"n{at}", "shop.py:1") for at in range(40)]
    edges = [
        GraphEdge(start, end, (loss(orders, 0, 1),) if pick.random() < 0.2 else ())
        for start, end in random_edges(40, seed)
    ]
    graph = folded(JobGraph(nodes, edges), most=10)
    pairs = [(edge.start, edge.end) for edge in graph.edges]
    layers = layout([50.0] * len(graph.nodes), pairs).layers
    assert all(layers[start] < layers[end] for start, end in pairs)
    assert len(graph.nodes) < 40
    lost = {id(each) for edge in edges for each in edge.losses}
    assert {id(each) for edge in graph.edges for each in edge.losses} == lost


def test_remarks_are_lines_of_their_operation():
    """A box has the numbers of its remarks, which keep it from being folded; other sources' are
    left out of the report on some.
    """
    orders, shops = source(), source("shops", number=1)
    ids = {each.name: each.all_ids for each in (orders, shops)}
    noted = [
        Remark(SEVERAL_ROWS, orders, "filter4", "shop.py:4", "2 doubled keys", ids["orders"][:7]),
        Remark(SEVERAL_ROWS, orders, "filter4", "shop.py:4", "1 doubled key", ids["orders"][5:9]),
        Remark(MERGED, shops, "filter4", "shop.py:4", "other values", ids["shops"][:1200]),
    ]
    chain = job(40, {20})
    at = [node.label for node in chain.nodes].index("filter4")
    nodes = [replace(n, remarks=tuple(noted)) if i == at else n for i, n in enumerate(chain.nodes)]
    graph = folded(JobGraph(nodes, chain.edges))
    losses = [each for edge in graph.edges for each in edge.losses]
    (box,) = [
        box
        for box in drawn(graph_data(graph, losses), [{"kind": "lost"}]).boxes
        if box.title.startswith("filter4,")
    ]
    assert box.lines[-2:] == [("9 with several rows", "remark"), ("100 merged", "remark")]
    assert box.title.endswith("9 with several rows, 100 merged")
    of_shops = graph_data(graph.of_sources(["shops"]), [])
    assert [node["remarks"] for node in of_shops["nodes"] if node["label"] == "filter4"] == [
        {MERGED: 100}
    ]
    assert not any(edge["records"] for edge in of_shops["edges"])


def test_the_drawing_has_a_label_for_each_loss():
    """An edge that loses records is red with their number, one of intended drops is grey."""
    orders = source()
    losses = [
        loss(orders, 0, 20),
        loss(orders, 20, 10, is_intended=True, reason="condition false: x"),
        loss(orders, 30, 5, place="shop.py:8", is_intended=True),
    ]
    nodes = [
        GraphNode(SOURCE, "orders"),
        GraphNode(OPERATION, "filter", "shop.py:7", "a condition that is longer than its box is"),
        GraphNode(OPERATION, "filter", "shop.py:8"),
        GraphNode(OUTPUT, "warehouse/" * 5 + "totals"),
    ]
    edges = [
        GraphEdge(0, 1, tuple(losses[:2])),
        GraphEdge(1, 2, tuple(losses[2:])),
        GraphEdge(2, 3, is_consulted=True),
    ]
    rows = [{"kind": each.kind} for each in losses]
    drawing = drawn(graph_data(JobGraph(nodes, edges), losses), rows)
    assert [arrow.kind for arrow in drawing.arrows] == ["lost", "dropped", "plain"]
    assert [label.text for label in drawing.arrows[0].labels] == ["20 lost", "10 on purpose"]
    assert [label.loss for label in drawing.arrows[0].labels] == [0, 1]
    assert drawing.arrows[2].is_dashed
    assert "20 lost, 10 on purpose" in drawing.description[0]
    shown = [text for box in drawing.boxes for text, _ in box.lines]
    assert "a condition that is longer than…" in shown
    assert any(text.startswith("…") and text.endswith("/totals") for text in shown)
    assert all(box.x >= 0 and box.x + box.width <= drawing.width for box in drawing.boxes)
