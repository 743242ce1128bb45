"""Reports of audits, made without Spark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ledger.auditing import ids as record_ids
from ledger.auditing.graph import OPERATION, OUTPUT, SOURCE, GraphEdge, GraphNode, JobGraph
from ledger.auditing.ids import Ids, first_id
from ledger.auditing.losses import Loss, OutputResult, SourceResult
from ledger.auditing.remarks import Remark
from ledger.auditing.report import AuditReport
from ledger.auditing.sources import AuditSource, Sources

COLUMNS = ("order_id", "state", "cents")


@dataclass
class HeldSource(AuditSource):
    """A source whose records are held in memory: a tuple of values for each."""

    values: Sequence[tuple[object, ...]] = field(default_factory=list)

    def rows(self, wanted: Any) -> Any:
        """Rows with their id, of a frame that is an array of ids."""
        own = [(int(each), *self.values[int(each) - first_id(self.number)]) for each in wanted]
        return SimpleNamespace(collect=lambda: own)


def source(name: str = "orders", records: int = 100, number: int = 0) -> HeldSource:
    """Orders whose state is NULL."""
    values = [(f"o{at}", None, at) for at in range(records)]
    ids: Ids = np.arange(records, dtype=np.int64) + first_id(number)
    return HeldSource(number, name, COLUMNS, cast(Any, None), ids, values=values)


def loss(of: AuditSource, first: int, records: int, **more: Any) -> Loss:
    """A loss of some records of a source, by default a filter's whose condition is NULL."""
    what: dict[str, Any] = {
        "operation": "filter",
        "place": "shop.py:7",
        "reason": "condition NULL: state = 'paid'",
        "is_intended": False,
        "outputs": ("totals",),
        **more,
    }
    ids: Ids = np.arange(first, first + records, dtype=np.int64) + first_id(of.number)
    return Loss(source=of, ids=ids, **what)


def report(
    losses: Iterable[Loss],
    sources: Sequence[AuditSource] = (),
    graph: JobGraph | None = None,
    outputs: Sequence[OutputResult] = (OutputResult("totals", "shop.py:20", "", True),),
    title: str = "shop.py",
    remarks: Sequence[Remark] = (),
) -> AuditReport:
    """A report of losses, whose sources lose what they name."""
    losses = sorted(losses, key=lambda each: -each.records)
    sources = sources or list({id(each.source): each.source for each in losses}.values())
    results = [
        SourceResult.of(
            each,
            record_ids.union(
                own.ids for own in losses if own.source is each and not own.has_arrived
            ),
            losses,
            "",
        )
        for each in sources
    ]
    held = cast(Sources, SimpleNamespace(frame_of=lambda ids: ids))
    drawn = chain(losses) if graph is None else graph
    return AuditReport(results, losses, held, outputs, remarks, title, drawn)


def chain(losses: Sequence[Loss]) -> JobGraph:
    """A graph with an operation for each loss, one below the other."""
    names = dict.fromkeys(each.source.name for each in losses)
    nodes = [GraphNode(SOURCE, name, "", "100 records") for name in names]
    nodes += [GraphNode(OPERATION, each.operation, each.place, each.reason) for each in losses]
    nodes.append(GraphNode(OUTPUT, "totals", "shop.py:20"))
    edges = [GraphEdge(at, len(names)) for at in range(len(names))] if losses else []
    for at, each in enumerate(losses):
        edge = GraphEdge(len(names) + at - 1, len(names) + at, (each,))
        edges = [other for other in edges if (other.start, other.end) != (edge.start, edge.end)]
        edges.append(edge)
    if losses:
        edges.append(GraphEdge(len(nodes) - 2, len(nodes) - 1))
    return JobGraph(nodes, edges)
