"""A step as the ledger keeps it with a batch."""

from typing import Any

from ledger.pipeline.graph import Graph
from ledger.pipeline.steps import SourceStep, StageStep, Step
from ledger.types import ddl


def described(graph: Graph, step: Step) -> dict[str, Any]:
    """One step, as the ledger keeps it: name, kind, reads, and what its kind adds.

    What does not hold of it is left out. ``merges``: its rows may be anchored to several
    records; ``units``: of a sink, its rows are withheld by unit; ``after``: it runs after the
    settlement; ``stateful``: in the order of the batches; ``unit``: of a whole stage, the
    columns that make its units; ``unit_types``: of a source, their types; ``awaits``: of a
    step after the settlement, the sources whose failed records keep it waiting.
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
        **({"awaits": _awaited(graph, name)} if flags["after"] else {}),
        **_unit(graph, step),
    }


def _awaited(graph: Graph, name: str) -> list[str]:
    """The sources that a step goes back to, and those whose records share units with theirs: a
    unit that one of them spoils is withheld from the step as a whole.
    """
    together = graph.in_units(name)
    sources = {step.name for step in graph.steps.values() if isinstance(step, SourceStep)}
    shared = {source for source in sources if together and graph.in_units(source)}
    return sorted(graph.sources(name) | shared)


def _unit(graph: Graph, step: Step) -> dict[str, Any]:
    if isinstance(step, StageStep) and step.whole:
        return {"unit": list(graph.unit or ())}
    if not isinstance(step, SourceStep) or not graph.unit or not graph.in_units(step.name):
        return {}
    types = ddl.columns(step.columns) or {}
    return {"unit_types": {name: types[name] for name in graph.unit if name in types}}
