"""The graph of a pipeline's steps: their order, what is tracked, what a replay takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ledger.core.branches import loss_in_a_branch
from ledger.core.declared_steps import DeclaredStep
from ledger.core.states import Guarantee
from ledger.errors import DeclarationError, suggestion
from ledger.pipeline.contradictions import OF_EXACTLY_ONCE, OF_GRAPH, check
from ledger.pipeline.steps import SinkStep, SourceStep, StageStep, Step
from ledger.sources.references import Reference


@dataclass(frozen=True)
class Graph:
    """The steps and references that a pipeline declares.

    ``name``: the name of the pipeline.
    ``whole``: the stages whose plans show that their rows depend on which other rows there are.
    """

    name: str
    steps: Mapping[str, Step]
    references: Mapping[str, Reference]
    whole: frozenset[str] = frozenset()

    @cached_property
    def checked(self) -> tuple[Step, ...]:
        """Return all steps in order: each after its inputs, and those after the settlement last.
        Raises DeclarationError if the steps form no valid pipeline.
        """
        self._check_names()
        try:
            order = TopologicalSorter({step.name: step.inputs for step in self.steps.values()})
            names = tuple(order.static_order())
        except CycleError as exc:
            raise DeclarationError(
                f"pipeline {self.name!r} has a cycle: {' -> '.join(exc.args[1])}"
            ) from exc
        check(self, map(self.step, names), OF_GRAPH)
        ordered = sorted(names, key=self.follows)
        return tuple(self.steps[name] for name in ordered)

    def follows(self, name: str) -> bool:
        """Return whether a step runs after the settlement of its batch: a combine, a state, or a
        step that reads one.
        """
        step = self.step(name)
        return step.ends_tracking or any(map(self.follows, step.inputs))

    def is_stateful(self, name: str) -> bool:
        """Return whether a step is a state over batches, or a sink of one."""
        step = self.step(name)
        return step.is_state or any(map(self.is_stateful, step.inputs))

    def declared(self, step: Step) -> DeclaredStep:
        """Return a step in the form that the ledger stores."""
        name, follows = step.name, self.follows(step.name)
        awaited = None if self.is_whole or not follows else tuple(sorted(self.sources(name)))
        return DeclaredStep(
            name,
            step.kind,
            step.inputs,
            merges=self.merges(name),
            after=follows,
            stateful=self.is_stateful(name),
            awaits=awaited,
            **step.described(),
        )

    def check_guarantee(self, guarantee: Guarantee) -> None:
        """Raise DeclarationError unless the steps can give the guarantee. For exactly once, each
        sink must be able to tell the rows of acked records apart.
        """
        self._check_names()
        if guarantee is Guarantee.EXACTLY_ONCE:
            check(self, self.steps.values(), OF_EXACTLY_ONCE)

    def step(self, name: str) -> Step:
        """Return the step of this name."""
        if name not in self.steps:
            raise DeclarationError(
                f"pipeline {self.name!r} has no step {name!r}{suggestion(name, self.steps)}"
            )
        return self.steps[name]

    def tracks(self, name: str) -> bool:
        """Return whether the output of a step is tracked. Tracking ends at a stage with
        ``acks="untracked"``.
        """
        return self._tracked[self.step(name).name]

    def merges(self, name: str) -> bool:
        """Return whether a step is a whole stage, or downstream of one. Its rows may be anchored to
        several records.
        """
        return self._merging[self.step(name).name]

    @property
    def is_whole(self) -> bool:
        """Whether a replay runs the whole batch again, because a stage needs all rows of its
        input.
        """
        return any(map(self._is_whole, self.steps.values()))

    def sources(self, name: str) -> frozenset[str]:
        """Return the sources that a step reads, directly or through other steps."""
        return self._sources[self.step(name).name]

    def loss_in_a_branch(self, source: str) -> str:
        """Return a sentence on stages whose losses withhold a record of a source from sinks that
        they do not feed; empty if there are none.
        """
        stages = [
            step.name
            for step in self.steps.values()
            if isinstance(step, StageStep)
            and step.carries
            and step.acks != "on_read"
            and not step.expected
            and all(map(self.tracks, step.inputs))
        ]
        sinks = [step.name for step in self.steps.values() if step.is_published]
        inputs = {step.name: step.inputs for step in self.steps.values()}
        return loss_in_a_branch(source, inputs, stages, sinks)

    def root_is_optional(self, name: str) -> bool:
        """Return whether a step reads, directly or through other steps, a source with untracked
        records.
        """
        sources = [self.steps[source] for source in self._sources[self.step(name).name]]
        return any(isinstance(step, SourceStep) and step.track is not None for step in sources)

    def stages_in_a_row(self) -> list[tuple[StageStep, ...]]:
        """Return the tracked stages with carried anchors and one input, in sequences: each stage is
        the only reader of the one before it.
        """
        rows: dict[str, tuple[StageStep, ...]] = {}
        for step in self.checked:
            if not (isinstance(step, StageStep) and self._may_share_a_plan(step)):
                continue
            (before,) = step.inputs
            readers = [each.name for each in self.checked if before in each.inputs]
            rows[step.name] = (*(rows.pop(before, ()) if readers == [step.name] else ()), step)
        return list(rows.values())

    def sink_after(self, stages: Sequence[StageStep]) -> SinkStep | None:
        """Return the sink of a pipeline that is a line: one source, these stages in a row, and the
        sink. Return None for any other pipeline.
        """
        *others, last = self.checked
        is_line = bool(stages) and others[1:] == [*stages] and last.inputs == (stages[-1].name,)
        return last if is_line and isinstance(last, SinkStep) else None

    def _may_share_a_plan(self, step: StageStep) -> bool:
        return (
            step.carries
            and step.acks == "on_emit"
            and len(step.inputs) == 1
            and self.tracks(step.name)
            and not self.root_is_optional(step.name)
        )

    @cached_property
    def _tracked(self) -> dict[str, bool]:
        return self._derived(lambda step, inputs: all(inputs) and step.keeps_anchor)

    @cached_property
    def _merging(self) -> dict[str, bool]:
        return self._derived(
            lambda step, inputs: (
                isinstance(step, StageStep) and (self._is_whole(step) or any(inputs))
            )
        )

    def _is_whole(self, step: Step) -> bool:
        return step.name in self.whole or (
            isinstance(step, StageStep) and step.anchors == "merged_by_hand"
        )

    @cached_property
    def _sources(self) -> dict[str, frozenset[str]]:
        return self._derived(lambda step, inputs: frozenset[str]().union(*inputs) or {step.name})

    def _derived(self, derive: Callable[[Step, list[Any]], Any]) -> dict[str, Any]:
        """Derive a value for every step from the values of its inputs, and return them by the
        step's name.
        """
        results: dict[str, Any] = {}

        def visit(name: str) -> Any:
            if name not in results:
                step = self.step(name)
                results[name] = derive(step, [visit(before) for before in step.inputs])
            return results[name]

        for name in self.steps:
            visit(name)
        return results

    def _check_names(self) -> None:
        if not self.steps:
            raise DeclarationError(f"pipeline {self.name!r} is empty: declare a source and a sink")
        for step in self.steps.values():
            for name in step.inputs:
                self._check_input(step, name)
            for name in step.references:
                if name not in self.references:
                    raise DeclarationError(
                        f"stage {step.name!r} asks for reference {name!r}, which is not declared"
                        f"{suggestion(name, self.references)}"
                    )

    def _check_input(self, step: Step, name: str) -> None:
        if name in self.references:
            raise DeclarationError(
                f"{step.kind} {step.name!r} reads {name!r}, a reference: references are not "
                "tracked; declare it as a source, or take it as a keyword-only parameter"
            )
        upstream = self.steps.get(name)
        if upstream is None:
            raise DeclarationError(
                f"{step.kind} {step.name!r} reads {name!r}, which is not declared"
                f"{suggestion(name, self.steps)}"
            )
        if upstream.is_published:
            raise DeclarationError(f"{step.kind} {step.name!r} reads {name!r}, a sink")
        if upstream.ends_tracking and not step.is_published:
            raise DeclarationError(
                f"{step.kind} {step.name!r} reads {name!r}, {upstream.in_words}, which runs once"
                f" the batch is settled: only sinks may read it. Do the rest in {name!r} itself"
            )
