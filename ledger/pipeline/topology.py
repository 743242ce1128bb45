"""A step as the ledger keeps it with a batch."""

from typing import Any

from ledger.pipeline.graph import Graph
from ledger.pipeline.steps import CombineStep, SourceStep, StageStep, Step


def described(graph: Graph, step: Step) -> dict[str, Any]:
    """One step, as the ledger keeps it: name, kind, reads, and what its kind adds.

    What does not hold of it is left out. ``merges``: its rows may be anchored to several
    records; ``units``: of a sink, its rows are withheld by unit; ``after``: it runs after the
    settlement; ``stateful``: in the order of the batches.
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
        return {"acks": step.acks, **({"unit": list(step.unit)} if step.whole else {})}
    if isinstance(step, SourceStep):
        return {**({"notice": True} if step.wants_notice else {}), **step.layout}
    if isinstance(step, CombineStep) and step.partial:
        return {"partial": True}
    return {}
