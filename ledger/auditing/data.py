"""An audit's report as plain data, from which its JSON, text and page are made."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ledger.auditing import ids as record_ids
from ledger.auditing.graph import JobGraph
from ledger.auditing.losses import KINDS, Loss, OutputResult, SourceResult
from ledger.auditing.remarks import REMARKS, Remark

VERSION = 1  # of the form; a key that is renamed or removed makes a new one


def source_data(result: SourceResult) -> dict[str, Any]:
    """Return a source as plain data. Numbers that are not known are None."""
    counts = {
        "arrived": result.arrived,
        "lost": len(result.lost),
        "expected": len(result.expected),
        "intended": len(result.intended),
        "unplaced": len(result.unplaced),
    }
    if result.unknown:
        counts = dict.fromkeys(counts)  # type: ignore[assignment]
    return {
        "name": result.source.name,
        "records": result.source.records,
        **counts,
        "note": result.note,
        "unknown": result.unknown,
    }


def loss_data(loss: Loss, examples: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Return a loss as plain data, without the ids of its records."""
    return {
        "kind": loss.kind,
        "source": loss.source.name,
        "operation": loss.operation,
        "place": loss.place,
        "reason": loss.reason,
        "text": loss.text,
        "records": loss.records,
        "share": loss.records / max(loss.source.records, 1),
        "is_intended": loss.is_intended,
        "has_arrived": loss.has_arrived,
        "is_repeatable": loss.is_repeatable,
        "outputs": list(loss.outputs),
        "note": loss.note,
        "at_most": loss.expected.at_most if loss.expected else None,
        "why": loss.expected.why if loss.expected else "",
        "examples": _examples(examples),
    }


def remark_data(remark: Remark, examples: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Return a remark as plain data, without the ids of its records."""
    return {
        "kind": remark.kind,
        "source": remark.source.name,
        "operation": remark.operation,
        "place": remark.place,
        "text": remark.text,
        "records": remark.records,
        "share": remark.records / max(remark.source.records, 1),
        "examples": _examples(examples),
    }


def output_data(output: OutputResult) -> dict[str, Any]:
    """Return an output as plain data."""
    return {
        "name": output.name,
        "place": output.place,
        "is_final": output.is_final,
        "is_followed": not output.why,
        "why": output.why,
    }


def graph_data(graph: JobGraph, losses: Sequence[Loss]) -> dict[str, Any]:
    """Return a graph as plain data. Edges name nodes and losses by their index."""
    indexes = {loss.identity: at for at, loss in enumerate(losses)}
    return {
        "nodes": [
            {
                "kind": node.kind,
                "label": node.label,
                "place": node.place,
                "detail": node.detail,
                "remarks": _counts(node.remarks, REMARKS),
            }
            for node in graph.nodes
        ],
        "edges": [
            {
                "start": edge.start,
                "end": edge.end,
                "is_consulted": edge.is_consulted,
                "records": _counts(edge.losses, KINDS),
                "losses": sorted({indexes[each.identity] for each in edge.losses}),
            }
            for edge in graph.edges
        ],
    }


def _counts(items: Sequence[Loss | Remark], kinds: Sequence[str]) -> dict[str, int]:
    """Return the number of distinct records of losses or remarks, by kind."""
    return {
        kind: len(record_ids.union(each.ids for each in items if each.kind == kind))
        for kind in kinds
        if any(each.kind == kind for each in items)
    }


def _examples(examples: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{name: _plain(value) for name, value in example.items()} for example in examples]


def _plain(value: object) -> object:
    """Return a value that JSON has unchanged, and any other value as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
