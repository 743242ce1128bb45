"""Graph of a batch: how many rows went along each edge, and where they were lost."""

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.core.declared_steps import DeclaredStep
from ledger.core.states import RunState

_Rows = Sequence[Mapping[str, Any]]


def flow(
    topology: Sequence[DeclaredStep],
    progress: _Rows,
    losses: _Rows,
    dropped: _Rows,
    elsewhere: Mapping[str, int] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the steps and edges of a batch's graph.

    ``topology``: the steps as they were declared.
    ``progress``: the newest run of each step.
    ``losses``: records that failed, by step and source, with the number of those still ``missing``.
    ``dropped``: rows that were dropped, by step and reason.
    ``elsewhere``: the other batch of the family in which a step has run.

    A step has name, kind, reads, after, state, input, output, failed, duplicates, seconds (None: it
    has not run), lost (records that failed there), missing (number of those that still are),
    dropped and ran_in (another batch of its family, if the step has run only there).

    An edge goes from a step to one that reads it. ``rows``: rows that were passed on. ``read``:
    whether a run that counts has read them. ``lost``: records that failed at the end of the edge
    and whose rows come along it. ``missing``: number of those that still are. If several edges lead
    from one source to a step, it is unknown on which of them a record was lost: all have it.
    """
    runs = {run["name"]: run for run in progress}
    sources = _sources(topology)
    steps, edges = [], []
    for declared in topology:
        name = declared.name
        here = [loss for loss in losses if loss["step"] == name]
        run = runs.get(name, {})
        steps.append(
            {
                "name": name,
                "kind": declared.kind,
                "reads": list(declared.reads),
                "after": declared.after,
                "state": run.get("state"),
                **{key: run.get(key) for key in _COUNTS},
                "lost": _sum(here, "records"),
                "missing": _sum(here, "missing"),
                "ran_in": None if name in runs else (elsewhere or {}).get(name),
                "dropped": [
                    {"reason": drop["reason"], "rows": drop["records"]}
                    for drop in dropped
                    if drop["step"] == name
                ],
            }
        )
        edges += [_edge(reads, name, runs, here, sources) for reads in declared.reads]
    return steps, edges


_COUNTS = ("input", "output", "failed", "duplicates", "seconds")


def _edge(
    start: str,
    end: str,
    runs: Mapping[str, Mapping[str, Any]],
    losses: _Rows,
    sources: Mapping[str, set[str]],
) -> dict[str, Any]:
    along = [loss for loss in losses if loss["source"] in sources[start]]
    return {
        "from": start,
        "to": end,
        "rows": runs.get(start, {}).get("output"),
        "read": runs.get(end, {}).get("state") == RunState.COMMITTED,
        "lost": _sum(along, "records"),
        "missing": _sum(along, "missing"),
    }


def _sum(losses: _Rows, name: str) -> int:
    return sum(loss[name] for loss in losses)


def _sources(topology: Sequence[DeclaredStep]) -> dict[str, set[str]]:
    """Return the sources that each step reads, directly or through other steps; a source reads
    itself.
    """
    sources: dict[str, set[str]] = {}
    for step in topology:  # inputs come first
        of_inputs = (sources[name] for name in step.reads)
        sources[step.name] = set().union(*of_inputs) or {step.name}
    return sources
