"""A step as the ledger keeps it with a batch."""

from typing import Any

from ledger.pipeline.graph import Graph
from ledger.pipeline.steps import Step


def described(graph: Graph, step: Step) -> dict[str, Any]:
    """One step, as the ledger keeps it: name, kind, reads, and what its kind adds.

    What does not hold of it is left out. ``merges``: its rows may be anchored to several
    records; ``units``: of a sink, its rows are withheld by unit; ``after``: it runs after the
    settlement; ``stateful``: in the order of the batches.
    """
    name = step.name
    flags = {
        "merges": graph.merges(name),
        "units": step.is_published and graph.in_units(name),
        "after": graph.follows(name),
        "stateful": graph.is_stateful(name),
    }
    return {
        "name": name,
        "kind": step.kind,
        "reads": list(step.inputs),
        **step.described(),
        **{flag: True for flag, holds in flags.items() if holds},
    }
