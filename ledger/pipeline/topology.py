"""A step as the ledger keeps it with a batch."""

from typing import Any

from ledger.pipeline.graph import Graph
from ledger.pipeline.steps import CombineStep, SinkStep, SourceStep, StageStep, Step
from ledger.sinks.options import Bloom


def described(graph: Graph, step: Step) -> dict[str, Any]:
    """One step, as the ledger keeps it: name, kind, reads, and what its kind adds.

    What does not hold of it is left out. ``merges``: its rows may be anchored to several
    records; ``units``: of a sink, its rows are withheld by unit; ``after``: it runs after the
    settlement; ``stateful``: in the order of the batches; ``joins``: of a stage, it has several
    inputs, or references; ``in_place``, ``dedup_window``: of a sink, whether its files are its
    table's, and with how many earlier batches it compares (-1: all).
    """
    name = step.name
    flags = {
        "merges": graph.merges(name),
        "units": step.kind == "sink" and graph.in_units(name),
        "after": graph.follows(name),
        "stateful": graph.is_stateful(name),
    }
    return {
        "name": name,
        "kind": step.kind,
        "reads": list(step.inputs),
        **_own(step),
        **{flag: True for flag, holds in flags.items() if holds},
    }


def _own(step: Step) -> dict[str, Any]:
    """What only steps of its kind have."""
    if isinstance(step, StageStep):
        joins = {"joins": True} if step.references or len(step.inputs) > 1 else {}
        return {"acks": step.acks, **({"unit": list(step.unit)} if step.whole else {}), **joins}
    if isinstance(step, SourceStep):
        return {**({"notice": True} if step.wants_notice else {}), **step.layout}
    if isinstance(step, CombineStep) and step.partial:
        return {"partial": True}
    if isinstance(step, SinkStep):
        return _kept(step)
    return {}


def _kept(step: SinkStep) -> dict[str, Any]:
    """What retention has to know of a sink."""
    made: dict[str, Any] = {"in_place": True} if step.sink.in_place else {}
    dedup = step.sink.dedup
    if isinstance(dedup, Bloom) and dedup.key:
        made |= {"dedup_window": -1 if dedup.window_batches is None else dedup.window_batches}
    return made
