"""Place the nodes of a graph in layers, each below the nodes that its rows come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

Edges = Sequence[tuple[int, int]]
SWEEPS = 12
GAP = 28.0  # between two nodes of a layer
SIDE = 0.1  # the weight of a node without others above it
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


def layout(
    widths: Sequence[float], edges: Edges, labels: Sequence[float] | None = None
) -> Placement:
    """Place nodes so that few edges cross: the longest path gives a node's layer, the mean of its
    neighbours its order and its center.

    ``edges``: pairs of indexes, without a circle. ``labels``: the width that each edge needs.
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
            sizes.append(max(BEND, labels[at] if labels else 0.0))
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
    """Return the layer of each node: below all nodes that its rows come from. A node without any is
    right above the first node that its rows go to.
    """
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
    """Return the center of each node, close to the mean of its neighbours, without overlaps."""
    centers = [0.0] * len(sizes)
    # Chains stay straight: a node without others above it stands beside them.
    weights = [1.0 if nodes else SIDE for nodes in above]
    for sweep in range(SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = []
            for node in row:
                near = (below if sweep % 2 else above)[node]
                if sweep >= SWEEPS - 2:
                    near = [*above[node], *below[node]]
                near = near or [node]
                wanted.append(fmean((centers[at] for at in near), [weights[at] for at in near]))
            widths = [sizes[node] for node in row]
            spread = _spread(wanted, widths, [weights[node] for node in row])
            for node, center in zip(row, spread, strict=True):
                centers[node] = center
    return centers


def _spread(
    wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Return centers as close to the wanted ones as the widths allow, by weighted least squares.

    Neighbours that would overlap form a block, which has the mean of their wishes (pool adjacent
    violators).
    """
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + GAP)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, nodes
    for wish, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, total, number = wish - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, more, nodes = blocks.pop()
            mean = (mean * total + other * more) / (total + more)
            total, number = total + more, number + nodes
        blocks.append((mean, total, number))
    starts = [mean for mean, _, number in blocks for _ in range(number)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
