"""The graph of a pipeline's steps: their order, what is tracked, what is replayed together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ledger.errors import DeclarationError, suggestion
from ledger.pipeline.steps import SinkStep, SourceStep, StageStep, Step
from ledger.sinks.options import is_keyed
from ledger.sources.base import Source


@dataclass(frozen=True)
class Graph:
    """The declared steps and references of the pipeline ``name``."""

    name: str
    steps: Mapping[str, Step]
    references: Mapping[str, Source]
    max_pending: int | None = None

    @cached_property
    def checked(self) -> tuple[Step, ...]:
        """All steps, every one after its input, those after a settlement last. Raises
        DeclarationError if they form no pipeline.
        """
        self._check_names()
        try:
            order = TopologicalSorter({step.name: step.inputs for step in self.steps.values()})
            names = tuple(order.static_order())
        except CycleError as exc:
            raise DeclarationError(
                f"pipeline {self.name!r} has a cycle: {' -> '.join(exc.args[1])}"
            ) from exc
        self._check_readers()
        for name in names:
            self._check_tracking(self.steps[name])
        self._check_paths()
        self._check_units()
        self._check_mixture()
        self._check_followers()
        self._check_sources()
        self._check_hooks()
        ordered = sorted(names, key=self.follows)
        return tuple(self.steps[name] for name in ordered)

    def follows(self, name: str) -> bool:
        """Whether a step runs once its batch is settled: a combine, a state, what reads one."""
        step = self.step(name)
        return step.ends_tracking or any(map(self.follows, step.inputs))

    def is_stateful(self, name: str) -> bool:
        """Whether a step is a state over batches, or a sink of one."""
        step = self.step(name)
        return step.is_state or any(map(self.is_stateful, step.inputs))

    def check_publishable(self) -> None:
        """Raise DeclarationError unless every sink can tell the rows of acked records from
        others.
        """
        self._check_names()
        for step in self.steps.values():
            if isinstance(step, SinkStep) and not self.tracks(step.reads):
                if self.follows(step.name):
                    continue
                raise DeclarationError(
                    f"sink {step.name!r} of pipeline {self.name!r} reads {step.reads!r}, which is"
                    " not tracked any more, so rows of failed records could not be withheld: keep"
                    " the anchor up to the sink, or declare the pipeline with"
                    ' guarantee="at_least_once"'
                )

    def _check_followers(self) -> None:
        """A table cannot tell families that read by claim apart."""
        for name, step in self.steps.items():
            what = f"{step.kind} {name!r} of pipeline {self.name!r}"
            if not isinstance(step, SinkStep) or not step.sink.replaces_intervals:
                continue
            claiming = [
                source
                for source in sorted(self._sources[name])
                for found in [self.steps[source]]
                if isinstance(found, SourceStep) and found.incremental
            ]
            if claiming:
                raise DeclarationError(
                    f"{what}: source {claiming[0]!r} is incremental, its batches have no interval"
                    ' of their own to replace: expected mode="append" or "upsert"'
                )

    def check_combines(self) -> None:
        """Raise DeclarationError if a combine or a state would count rows that replays of units
        deliver again.
        """
        self._check_names()
        for step in self.steps.values():
            if step.ends_tracking and self.unit is not None and self.in_units(step.name):
                raise DeclarationError(
                    f"{step.kind} {step.name!r} of pipeline {self.name!r} reads what is replayed by"
                    " unit, and at least once nobody can tell which rows of a unit count: declare"
                    ' the pipeline with guarantee="exactly_once"'
                )

    def step(self, name: str) -> Step:
        """One step by name."""
        if name not in self.steps:
            raise DeclarationError(
                f"pipeline {self.name!r} has no step {name!r}{suggestion(name, self.steps)}"
            )
        return self.steps[name]

    def tracks(self, name: str) -> bool:
        """Whether the output of a step is tracked: it ends at a stage with ``anchored=False``."""
        return self._tracked[self.step(name).name]

    def merges(self, name: str) -> bool:
        """Whether a row of a step's output may be anchored to several records: downstream of a
        whole stage.
        """
        return self._merging[self.step(name).name]

    @property
    def unit(self) -> tuple[str, ...] | None:
        """The source columns whose equal values make a unit, () if the batch is one; None without a
        whole stage: records are replayed one by one."""
        return self._wholes[0].unit if self._wholes else None

    def in_units(self, name: str) -> bool:
        """Whether records of a source, or what a step makes of them, are replayed by unit."""
        reached = {source for step in self._wholes for source in self._sources[step.name]}
        return not reached.isdisjoint(self._sources[self.step(name).name])

    def carries(self, name: str) -> bool:
        """Whether a replay by unit carries over what a stage has made of records that did not
        fail: before a whole stage, or beside one, it is made record by record. Of a source:
        whether a stage after it does.
        """
        step = self.step(name)
        if isinstance(step, SourceStep):
            return any(self.carries(reader) for reader in self._stages_after(name))
        recordwise = isinstance(step, StageStep) and self.tracks(name) and not self.merges(name)
        return recordwise and self.in_units(name)

    def sources(self, name: str) -> frozenset[str]:
        """The sources that a step goes back to."""
        return self._sources[self.step(name).name]

    def root_is_optional(self, name: str) -> bool:
        """Whether a source that a step goes back to has untracked records."""
        sources = [self.steps[source] for source in self._sources[self.step(name).name]]
        return any(isinstance(step, SourceStep) and step.track is not None for step in sources)

    def _stages_after(self, source: str) -> list[str]:
        stages = [name for name, step in self.steps.items() if isinstance(step, StageStep)]
        return [name for name in stages if source in self._sources[name]]

    @cached_property
    def _wholes(self) -> list[StageStep]:
        stages = [step for step in self.steps.values() if isinstance(step, StageStep)]
        return [step for step in stages if step.whole]

    @cached_property
    def _tracked(self) -> dict[str, bool]:
        return self._derived(lambda step, inputs: all(inputs) and step.keeps_anchor)

    @cached_property
    def _merging(self) -> dict[str, bool]:
        return self._derived(
            lambda step, inputs: isinstance(step, StageStep) and (step.whole or any(inputs))
        )

    @cached_property
    def _sources(self) -> dict[str, frozenset[str]]:
        return self._derived(lambda step, inputs: frozenset[str]().union(*inputs) or {step.name})

    def _derived(self, derive: Callable[[Step, list[Any]], Any]) -> dict[str, Any]:
        """What follows for every step from what follows for its inputs."""
        found: dict[str, Any] = {}

        def visit(name: str) -> Any:
            if name not in found:
                step = self.step(name)
                found[name] = derive(step, [visit(before) for before in step.inputs])
            return found[name]

        for name in self.steps:
            visit(name)
        return found

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
        found = self.steps.get(name)
        if found is None:
            raise DeclarationError(
                f"{step.kind} {step.name!r} reads {name!r}, which is not declared"
                f"{suggestion(name, self.steps)}"
            )
        if found.is_published:
            raise DeclarationError(f"{step.kind} {step.name!r} reads {name!r}, a sink")
        if found.ends_tracking and not step.is_published:
            raise DeclarationError(
                f"{step.kind} {step.name!r} reads {name!r}, {found.in_words}, which runs once the"
                f" batch is settled: only sinks may read it. Do the rest in {name!r} itself"
            )

    def _check_readers(self) -> None:
        read = {name for step in self.steps.values() for name in step.inputs}
        for step in self.steps.values():
            if not step.is_kept_elsewhere and step.name not in read:
                raise DeclarationError(
                    f"nothing reads {step.kind} {step.name!r} of pipeline {self.name!r}: "
                    "add a stage or a sink that reads it, or remove it"
                )

    def _check_tracking(self, step: Step) -> None:
        tracked = [name for name in step.inputs if self.tracks(name)]
        if len(tracked) == len(step.inputs):
            return
        what = f"{step.kind} {step.name!r} of pipeline {self.name!r}"
        if step.ends_tracking:
            raise DeclarationError(
                f"{what} reads what is not tracked any more, so nobody knows which of its rows are"
                " acked: keep the anchor up to it"
            )
        if tracked:
            raise DeclarationError(
                f"{what} reads {tracked[0]!r}, which is tracked, beside inputs that are not:"
                " expected all or none"
            )
        if isinstance(step, StageStep) and step.by_record:
            raise DeclarationError(f"{what} takes records, and its input is not tracked any more")
        if isinstance(step, SinkStep) and self.follows(step.name) and step.sink.dedup != "none":
            raise DeclarationError(
                f'{what} publishes what {step.reads!r} makes, whole and once: expected dedup="none"'
            )
        if (
            isinstance(step, SinkStep)
            and not is_keyed(step.sink.dedup)
            and step.sink.dedup != "none"
        ):
            raise DeclarationError(
                f"{what} recognizes duplicates by their record, and its input is not tracked any"
                ' more: give Bloom a key, or dedup="none"'
            )

    def _check_paths(self) -> None:
        sinks = [step for step in self.steps.values() if isinstance(step, SinkStep)]
        owners: dict[str, str] = {}
        for step in sinks:
            other = owners.setdefault(step.sink.identity, step.name)
            if other != step.name:
                raise DeclarationError(
                    f"sinks {other!r} and {step.name!r} of pipeline {self.name!r} write to the "
                    f"same {step.sink.place}: each batch has one place there, so give one of them "
                    "another"
                )

    def _check_units(self) -> None:
        for stage in self._wholes:
            if stage.unit != self.unit:
                raise DeclarationError(
                    f"pipeline {self.name!r} has {unit_in_words(self.unit)} and"
                    f" {unit_in_words(stage.unit)} (stage {stage.name!r}): expected one for all its"
                    " whole stages"
                )
        for name, step in self.steps.items():
            if isinstance(step, StageStep) and step.emits == "one" and self.merges(name):
                raise DeclarationError(
                    f'stage {name!r}: emits="one" compares rows with records one by one, and after'
                    " a whole stage a row may be of several"
                )
            if isinstance(step, SinkStep) and self.in_units(name) and not self.follows(name):
                self._check_replaceable(step)
            if isinstance(step, SourceStep) and self.in_units(name):
                self._check_unit_columns(step)

    def _check_mixture(self) -> None:
        """What is replayed by unit cannot be told from what is replayed record by record, once
        they are one frame.
        """
        for name, step in self.steps.items():
            sources = sorted(self._sources[name])
            alone = [source for source in sources if not self.in_units(source)]
            if self.in_units(name) and alone:
                together = next(source for source in sources if source not in alone)
                raise DeclarationError(
                    f"{step.kind} {name!r} of pipeline {self.name!r} reads both source"
                    f" {together!r}, replayed by unit, and {alone[0]!r}, replayed record by"
                    " record: give each its own sink, or unite them in a whole stage"
                )

    def _check_sources(self) -> None:
        """What takes records apart cannot go with what needs them together."""
        for name, step in self.steps.items():
            if not isinstance(step, SourceStep):
                continue
            what = f"source {name!r} of pipeline {self.name!r}"
            if self.max_pending is not None and step.incremental and self.in_units(name):
                raise DeclarationError(
                    f"{what} feeds a whole stage, which needs all records of a unit at once, and"
                    " max_pending would have a batch take less than is new: leave out max_pending"
                )
            if step.track is not None and self.in_units(name):
                raise DeclarationError(
                    f"{what} feeds a whole stage, and a replay could not read its untracked"
                    " records again: leave out track="
                )

    def _check_hooks(self) -> None:
        """A source that keeps its own position has one, after all that it gives."""
        owners: dict[int, str] = {}
        for name, step in self.steps.items():
            if not isinstance(step, SourceStep) or step.hooks is None:
                continue
            if self.max_pending is not None:
                raise DeclarationError(
                    f"source {name!r} of pipeline {self.name!r} keeps its own position, so how much"
                    " a batch takes is known once it has read: leave out max_pending, and let read"
                    " return no more than a batch may hold"
                )
            other = owners.setdefault(id(step.hooks), name)
            if other != name:
                raise DeclarationError(
                    f"sources {other!r} and {name!r} of pipeline {self.name!r} are one object,"
                    " which has one position: expected an object for each"
                )

    def _check_replaceable(self, step: SinkStep) -> None:
        """A replay by unit delivers all rows of it again: the sink must be able to replace them."""
        what = f"sink {step.name!r} of pipeline {self.name!r}"
        if step.sink.dedup != "none":
            raise DeclarationError(
                f"{what}: a whole stage makes replays replace all rows of a unit, so expected"
                ' dedup="none"'
            )
        if self.unit and not self.tracks(step.reads):
            raise DeclarationError(
                f"{what} reads {step.reads!r}, which is not tracked any more, so the rows of a unit"
                f" ({', '.join(self.unit)}) cannot be replaced: leave out unit=, or keep the anchor"
            )

    def _check_unit_columns(self, step: SourceStep) -> None:
        names = getattr(
            step.source.schema, "names", None
        )  # a DDL text is looked at when it is read
        for column in self.unit or ():
            if names is not None and column not in names:
                raise DeclarationError(
                    f"source {step.name!r} of pipeline {self.name!r} has no column {column!r},"
                    f" which makes its unit{suggestion(column, names)}"
                )


def unit_in_words(unit: tuple[str, ...] | None) -> str:
    """A unit in words, for a message."""
    if unit is None:
        return "no whole stage"
    return f"the unit {', '.join(unit)}" if unit else "the batch as unit"
