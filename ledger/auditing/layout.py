"""Place the nodes of a graph in layers, each below the nodes that its rows come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

Edges = Sequence[tuple[int, int]]
SWEEPS = 12
GAP = 28.0  # between two nodes of a layer
BEND = 12.0  # the width of an edge that passes a layer


@dataclass(frozen=True)
class Placement:
    """The place of each node: its layer from the top, and its center from the left.

    ``bends``: by the index of an edge, its centers in the layers that it passes.
    """

    layers: Sequence[int]
    centers: Sequence[float]
    bends: Mapping[int, Sequence[float]]
    width: float


def layout(widths: Sequence[float], edges: Edges) -> Placement:
    """Place nodes so that few edges cross: the longest path gives a node's layer, the mean of its
    neighbours its order and its center.

    ``edges``: pairs of indexes, without a circle.
    """
    layers = _layers(len(widths), edges)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    # An edge that passes layers gets a node in each.
    sizes, links, passing = list(widths), [], {}
    for at, (start, end) in enumerate(edges):
        chain = [start]
        for layer in range(layers[start] + 1, layers[end]):
            chain.append(len(sizes))
            rows[layer].append(len(sizes))
            sizes.append(BEND)
        passing[at] = chain[1:]
        links += list(zip(chain, [*chain[1:], end], strict=True))
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for start, end in links:
        above[end].append(start)
        below[start].append(end)
    _order(rows, above, below)
    centers = _centers(rows, sizes, above, below)
    left = min((c - size / 2 for c, size in zip(centers, sizes, strict=True)), default=0.0)
    centers = [center - left for center in centers]
    width = max((c + size / 2 for c, size in zip(centers, sizes, strict=True)), default=0.0)
    bends = {at: [centers[node] for node in nodes] for at, nodes in passing.items()}
    return Placement(layers, centers[: len(widths)], bends, width)


def _layers(number: int, edges: Edges) -> list[int]:
    """The layer of each node: below all that it needs, and else close to what needs it."""
    layers = [0] * number
    for _ in range(number):
        before = list(layers)
        for start, end in edges:
            layers[end] = max(layers[end], layers[start] + 1)
        if layers == before:
            break
    ends = {end for _, end in edges}
    for node in range(number):
        needed = [layers[end] for start, end in edges if start == node]
        if node not in ends and needed:
            layers[node] = min(needed) - 1
    return layers


def _order(
    rows: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> None:
    """Sort each layer by the mean position of its nodes' neighbours, downwards and upwards."""
    position = {node: float(at) for row in rows for at, node in enumerate(row)}
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            means = {
                node: fmean(position[each] for each in neighbours[node])
                if neighbours[node]
                else position[node]
                for node in row
            }
            row.sort(key=means.__getitem__)
            position |= {node: float(at) for at, node in enumerate(row)}
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _crossings(rows: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    position = {node: at for row in rows for at, node in enumerate(row)}
    total = 0
    for row in rows:
        ends = [position[end] for node in row for end in sorted(below[node], key=position.get)]  # type: ignore[arg-type]
        total += sum(
            ends[one_end] > later for one_end in range(len(ends)) for later in ends[one_end + 1 :]
        )
    return total


def _centers(
    rows: Sequence[Sequence[int]],
    sizes: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
) -> list[float]:
    """The center of each node, close to the mean of its neighbours, without overlaps."""
    centers = [0.0] * len(sizes)
    for row in rows:
        for node, center in zip(row, _spread([0.0] * len(row), row, sizes), strict=True):
            centers[node] = center
    for sweep in range(SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = []
            for node in row:
                near = (below if sweep % 2 else above)[node] or [node]
                near = near if sweep < SWEEPS - 2 else [*above[node], *below[node]] or [node]
                wanted.append(fmean(centers[each] for each in near))
            for node, center in zip(row, _spread(wanted, row, sizes), strict=True):
                centers[node] = center
    return centers


def _spread(wanted: Sequence[float], row: Sequence[int], sizes: Sequence[float]) -> list[float]:
    """Centers as close to the wanted ones as the sizes allow, by least squares.

    Neighbours that would overlap form a block, which has the mean of their wishes (pool adjacent
    violators).
    """
    offsets, at = [], 0.0
    for index, node in enumerate(row):
        at += (sizes[row[index - 1]] + sizes[node]) / 2 + GAP if index else 0.0
        offsets.append(at)
    blocks: list[list[float]] = []
    for wish, offset in zip(wanted, offsets, strict=True):
        blocks.append([wish - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    starts = [fmean(block) for block in blocks for _ in block]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
