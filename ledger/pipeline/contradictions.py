"""Contradictions in a graph of steps: tables of conditions and messages, and their loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ledger.errors import DeclarationError
from ledger.pipeline.steps import SinkStep, SourceStep, StageStep, Step
from ledger.sinks.options import is_keyed


@dataclass(frozen=True)
class Contradiction:
    """A combination in a graph that is not allowed for a step of ``kind``.

    ``culprit``: called with the graph and the step. Returns what the message names, or a false
    value if nothing is wrong.
    ``message``: a template with {what}, {step}, {graph} and {culprit}.
    """

    kind: type[Step]
    culprit: Callable[[Any, Any], Any]
    message: str


def check(graph: Any, steps: Iterable[Step], contradictions: Iterable[Contradiction]) -> None:
    """Raise DeclarationError for the first contradiction in a graph."""
    every = list(steps)
    for contradiction in contradictions:
        for step in every:
            if not isinstance(step, contradiction.kind):
                continue
            culprit = contradiction.culprit(graph, step)
            if culprit:
                what = f"{step.kind} {step.name!r} of pipeline {graph.name!r}"
                raise DeclarationError(
                    contradiction.message.format(what=what, step=step, graph=graph, culprit=culprit)
                )


def _is_unread(graph: Any, step: Step) -> bool:
    read = {name for each in graph.steps.values() for name in each.inputs}
    return not step.is_kept_elsewhere and step.name not in read


def _untracked(graph: Any, step: Step) -> bool:
    return not all(map(graph.tracks, step.inputs))


def _lost_anchor(graph: Any, step: Step) -> str | None:
    """Return an untracked input of a step that needs anchors, or that also reads tracked rows; None
    if there is none. Tracked rows beside untracked ones would get no acks.
    """
    untracked = [name for name in step.inputs if not graph.tracks(name)]
    is_mixed = len(untracked) < len(step.inputs)
    return untracked[0] if untracked and (step.needs_anchor or is_mixed) else None


def _earlier(graph: Any, step: Step, same: Callable[[Any], bool]) -> str | None:
    """Return the name of a step of the same kind that was declared earlier and for which ``same``
    holds; None if there is none.
    """
    for each in graph.steps.values():
        if each is step:
            break
        if type(each) is type(step) and same(each):
            return str(each.name)
    return None


def _claiming(graph: Any, step: SinkStep) -> str | None:
    """Return an incremental source of a sink that replaces intervals; None if there is none.
    Batches of such a source have no interval of their own to replace.
    """
    if not step.sink.replaces_intervals:
        return None
    sources = map(graph.step, sorted(graph.sources(step.name)))
    return next((source.name for source in sources if source.incremental), None)


def _is_repeated(graph: Any, step: SinkStep) -> bool:
    """Return whether a later run publishes the sink's rows again in place of earlier ones: after a
    replay of the whole batch, or a new result of a combine or state.
    """
    return bool(graph.is_whole or graph.follows(step.name))


# Of a step by itself, in the line that declares it; ``graph`` is the pipeline.
OF_STEP = (
    Contradiction(
        StageStep,
        lambda graph, step: step.acks == "untracked" and step.emits == "one",
        'stage {step.name!r}: emits="one" fails a record by its rows, and after acks="untracked"'
        " the ledger does not know which record a row is of",
    ),
)

OF_GRAPH = (
    Contradiction(
        Step,
        _is_unread,
        "nothing reads {what}: add a stage or a sink that reads it, or remove it",
    ),
    Contradiction(
        Step,
        _lost_anchor,
        "{what} reads {culprit!r}, which is not tracked any more, and all that it reads has to be:"
        ' leave out acks="untracked" before it',
    ),
    Contradiction(
        SinkStep,
        lambda graph, step: step.sink.dedup != "none" and _is_repeated(graph, step),
        "{what} gets all rows of a combine, of a state, or, with a whole stage, of a batch again,"
        ' and replaces what it had: expected dedup="none"',
    ),
    Contradiction(
        SinkStep,
        lambda graph, step: (
            step.sink.dedup != "none" and not is_keyed(step.sink.dedup) and _untracked(graph, step)
        ),
        "{what} recognizes duplicates by their record, and its input is not tracked any more: give"
        ' Bloom a key, or dedup="none"',
    ),
    Contradiction(
        SinkStep,
        lambda graph, step: _earlier(
            graph, step, lambda each: each.sink.identity == step.sink.identity
        ),
        "sinks {culprit!r} and {step.name!r} of pipeline {graph.name!r} write to the same"
        " {step.sink.place}: each batch has one place there, so give one of them another",
    ),
    Contradiction(
        StageStep,
        lambda graph, step: step.emits == "one" and graph.merges(step.name),
        'stage {step.name!r}: emits="one" compares rows with records one by one, and after a whole'
        " stage a row may be of several",
    ),
    Contradiction(
        SinkStep,
        _claiming,
        "{what}: source {culprit!r} is incremental, its batches have no interval of their own to"
        ' replace: expected mode="append" or Upsert(key)',
    ),
    Contradiction(
        SourceStep,
        lambda graph, step: step.track is not None and graph.is_whole,
        "{what} has untracked records, which a replay of a whole batch, for the sake of a whole"
        " stage, could not read again: leave out track=",
    ),
)

OF_EXACTLY_ONCE = (
    Contradiction(
        SinkStep,
        lambda graph, step: not graph.tracks(step.reads) and not graph.follows(step.name),
        "{what} reads {step.reads!r}, which is not tracked any more, so rows of failed records"
        ' could not be withheld: leave out acks="untracked" before the sink, or declare the'
        ' pipeline with guarantee="at_least_once"',
    ),
)
