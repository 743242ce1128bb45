"""Draw the graph of a job: boxes, edges and labels with their places, for SVG."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.auditing.layout import layout
from ledger.auditing.losses import ELSEWHERE, EXPECTED, INTENDED, LOST, NOT_NEEDED
from ledger.auditing.remarks import IGNORED, MERGED, SEVERAL_ROWS

# All in pixels.
PADDING, LINE, MARGIN = 12.0, 17.0, 8.0
LETTER, BOLD = 7.1, 7.9  # the width of a letter
LEAST_WIDTH, GAP, GAP_OF_LABELS = 96.0, 34.0, 24.0
HEAD = 9.0  # of an arrow
MAX_LETTERS = 32  # of a line in a box
_WORDS = {
    LOST: "lost",
    EXPECTED: "expected",
    ELSEWHERE: "in another output",
    INTENDED: "on purpose",
    NOT_NEEDED: "not needed",
    SEVERAL_ROWS: "with several rows",
    MERGED: "merged",
    IGNORED: "ignored",
}


@dataclass(frozen=True)
class Box:
    """A node of the drawing. ``lines``: its texts with their CSS class. ``title``: its full
    text.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float
    lines: Sequence[tuple[str, str]]
    title: str


@dataclass(frozen=True)
class Label:
    """The number of records that are lost on an edge. ``loss``: the index of the first of these
    losses.
    """

    kind: str
    text: str
    x: float
    y: float
    width: float
    loss: int


@dataclass(frozen=True)
class Arrow:
    """An edge of the drawing. ``kind``: "lost", "dropped" or "plain". ``path``: its SVG path."""

    kind: str
    path: str
    is_dashed: bool
    labels: Sequence[Label]


@dataclass(frozen=True)
class Drawing:
    """A drawn graph with all coordinates. ``description``: a sentence for each edge."""

    width: float
    height: float
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    description: Sequence[str]


def drawn(data: Mapping[str, Any], losses: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the plain data of a graph. ``losses``: the losses, to which edges refer by index."""
    nodes, edges = data["nodes"], data["edges"]
    texts = [list(_lines(node)) for node in nodes]
    widths = [
        max(
            LEAST_WIDTH,
            *(2 * PADDING + (BOLD if role == "label" else LETTER) * len(t) for t, role in lines),
        )
        for lines in texts
    ]
    heights = [2 * PADDING + LINE * len(lines) - 5 for lines in texts]
    starts = Counter(edge["start"] for edge in edges)
    ends = Counter(edge["end"] for edge in edges)
    # Where edges meet, a label is below the edge's start, and else above its end.
    at_start = [ends[edge["end"]] > 1 and starts[edge["start"]] == 1 for edge in edges]
    labels = [list(_labels(edge, losses)) for edge in edges]
    places = layout(
        widths,
        [(edge["start"], edge["end"]) for edge in edges],
        [max((width for *_, width in own), default=0.0) for own in labels],
    )
    tops, bottoms = _layers(edges, places.layers, heights)
    boxes = []
    for node, lines, width, height, layer, center in zip(
        nodes, texts, widths, heights, places.layers, places.centers, strict=True
    ):
        y = (tops[layer] + bottoms[layer] - height) / 2
        x = center - width / 2 + MARGIN
        boxes.append(Box(node["kind"], x, y, width, height, lines, _title(node)))
    entries = _entries(edges, boxes, places.bends)
    arrows = []
    for at, edge in enumerate(edges):
        start, end, layer = boxes[edge["start"]], boxes[edge["end"]], places.layers[edge["start"]]
        points = [(start.x + start.width / 2, start.y + start.height)]
        for step, center in enumerate(places.bends[at], 1):
            points += [(center + MARGIN, y[layer + step]) for y in (tops, bottoms)]
        points.append((entries[at], end.y))
        is_at_start = at_start[at] or (len(points) > 2 and ends[edge["end"]] > 1)
        arrows.append(_arrow(edge, points, labels[at], is_at_start))
    description = [_sentence(nodes[edge["start"]], nodes[edge["end"]], edge) for edge in edges]
    height = max(bottoms, default=0.0) + MARGIN
    return Drawing(places.width + 2 * MARGIN, height, boxes, arrows, description)


def _labels(
    edge: Mapping[str, Any], losses: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, int, float]]:
    """Yield the kind, text, loss and width of each label of an edge."""
    for kind, number in edge["records"].items():
        loss = next(index for index in edge["losses"] if losses[index]["kind"] == kind)
        text = f"{number:,} {_WORDS[kind]}"
        yield kind, text, loss, (BOLD if kind == LOST else LETTER) * len(text) + 4


def _lines(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield _short(node["label"], node["kind"] in ("source", "output")), "label"
    if node["detail"]:
        yield _short(node["detail"]), "detail"
    if node["place"]:
        yield _short(node["place"], True), "place"
    for kind, number in node["remarks"].items():
        yield f"{number:,} {_WORDS[kind]}", "remark"


def _short(text: str, from_end: bool = False) -> str:
    """Return a text, cut to ``MAX_LETTERS``. ``from_end``: keep its end, such as that of a path."""
    if len(text) <= MAX_LETTERS:
        return text
    return f"…{text[1 - MAX_LETTERS :]}" if from_end else f"{text[: MAX_LETTERS - 1]}…"


def _title(node: Mapping[str, Any]) -> str:
    remarks = (f"{number:,} {_WORDS[kind]}" for kind, number in node["remarks"].items())
    return ", ".join(filter(None, (node["label"], node["detail"], node["place"], *remarks)))


def _layers(
    edges: Sequence[Mapping[str, Any]], layers: Sequence[int], heights: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the top and bottom of each layer, with room for the labels of the edges above it."""
    labels = [0] * (max(layers, default=-1) + 1)
    for edge in edges:
        layer = layers[edge["end"]]
        labels[layer] = max(labels[layer], len(edge["records"]))
    tops, bottoms, y = [], [], MARGIN - GAP
    for layer, number in enumerate(labels):
        y += GAP + (GAP_OF_LABELS if number else 0.0) + LINE * max(number - 1, 0)
        tops.append(y)
        y += max(h for h, at in zip(heights, layers, strict=True) if at == layer)
        bottoms.append(y)
    return tops, bottoms


def _entries(
    edges: Sequence[Mapping[str, Any]],
    boxes: Sequence[Box],
    bends: Mapping[int, Sequence[float]],
) -> dict[int, float]:
    """Return the x at which each edge enters the box at its end: side by side, in the order of the
    places from which the edges come.
    """
    entries = {}
    for end, box in enumerate(boxes):
        own = [at for at, edge in enumerate(edges) if edge["end"] == end]
        froms = {
            at: bends[at][-1]
            if bends[at]
            else boxes[edges[at]["start"]].x + boxes[edges[at]["start"]].width / 2
            for at in own
        }
        own.sort(key=froms.__getitem__)
        space = min(40.0, box.width / (len(own) + 1))
        for position, at in enumerate(own):
            entries[at] = box.x + box.width / 2 + (position - (len(own) - 1) / 2) * space
    return entries


def _arrow(
    edge: Mapping[str, Any],
    points: Sequence[tuple[float, float]],
    texts: Sequence[tuple[str, str, int, float]],
    is_at_start: bool,
) -> Arrow:
    """Return an edge drawn through points: curved between layers, and straight where it passes a
    layer and beside its labels. These are in the gap above its end, or below its start if
    ``is_at_start``.
    """
    room = LINE * len(texts) + 8 if texts else 0.0
    (x, y), *others = points
    path = f"M{x:.1f},{y:.1f}"
    labels: list[Label] = []
    for at, (next_x, next_y) in enumerate(others):
        if at % 2:
            path += f" L{next_x:.1f},{next_y:.1f}"
        else:
            is_last = at == len(others) - 1
            top = y + (room if is_last and is_at_start else 0.0)
            bottom = next_y - (HEAD if is_last else 0.0)
            bottom -= room if is_last and not is_at_start else 0.0
            middle = (top + bottom) / 2
            path += f" L{x:.1f},{top:.1f} C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f}"
            path += f" {next_x:.1f},{bottom:.1f} L{next_x:.1f},{next_y:.1f}"
            if is_last:
                center, first = (x, y + 20) if is_at_start else (next_x, bottom + 15)
                labels = [
                    Label(kind, text, center, first + LINE * line, width, loss)
                    for line, (kind, text, loss, width) in enumerate(texts)
                ]
        x, y = next_x, next_y
    kind = "lost" if LOST in edge["records"] else "dropped" if edge["records"] else "plain"
    return Arrow(kind, path, edge["is_consulted"], labels)


def _sentence(start: Mapping[str, Any], end: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    counts = "".join(f", {number:,} {_WORDS[kind]}" for kind, number in edge["records"].items())
    return f"{_title(start)} to {_title(end)}{counts}"
