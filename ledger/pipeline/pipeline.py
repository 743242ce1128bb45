"""A pipeline as its user declares it: sources, references, stages and sinks, checked as a graph."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.core.declarations import keep_seconds, seconds
from ledger.core.declared_steps import DeclaredStep
from ledger.core.stateful import StatefulStage
from ledger.core.states import Guarantee, PublishPolicy
from ledger.errors import DeclarationError
from ledger.pipeline.contradictions import OF_STEP, check
from ledger.pipeline.graph import Graph
from ledger.pipeline.options import check_limits, option
from ledger.pipeline.redacted import check_redacted, named_columns
from ledger.pipeline.steps import (
    Acks,
    AnchorsOf,
    Emits,
    Filters,
    Notice,
    SinkStep,
    SourceStep,
    StageStep,
    StateStep,
    Step,
)
from ledger.pipeline.steps.base import PARAMS, checked_name, one_input
from ledger.pipeline.steps.combine import combine_step
from ledger.pipeline.steps.source import source_step
from ledger.pipeline.steps.stage import record_step, stage_step, warn_of_aggregates
from ledger.pipeline.steps.state import hooks_step, state_step
from ledger.sinks.base import Sink
from ledger.sinks.registry import require_sink
from ledger.sources.references import Reference
from ledger.sources.registry import AnySource, source_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Function = TypeVar("Function", bound="Callable[..., Any]")
Kind = TypeVar("Kind", bound=Step)


class Pipeline:
    """Sources, stages and sinks over which every record is tracked; docs/pipelines.md has a table.

    - ``guarantee``: ``exactly_once`` or ``at_least_once``; None: as ``ACKLEDGER_GUARANTEE`` sets.
    - ``publish``: once the batch is ``settled``, or ``complete``: no record, replays included, is
      failed.
    - ``message_timeout``: seconds, a timedelta or text such as ``"90m"``; a batch expires this long
      after a step failed or its driver died. ``max_batch_age``: at most, whatever still runs.
    - ``max_replays``: a record is quarantined after so many failed replays.
    - ``replay_limit``: one replay takes at most so many records, unless a stage is whole.
    - ``replay_backoff``: how long a record waits before its first replay, twice as long after each
      that failed, up to ``replay_backoff_cap``.
    - ``hold_above``: a batch is put on hold if a greater share of records fails through their
      own fault (0 to 1; None: never).
    - ``allow_failed``: a run succeeds while at most this share of records is failed or quarantined.
    - ``tracking``: False turns tracking off.
    - ``one_plan``: False: each stage writes its rows; True: stages in one driver, and the sink of
      a line of stages, may run as one plan, of which only the last step writes its rows.
    - ``max_anchors``: one row may come from so many records.
    - ``max_pending``: so many records of a source may be undecided at once; a batch that has no
      room waits (None: no limit). An interval, and what is new for a whole stage, is never cut.
    - ``auto_replay``: the sweeper asks for a replay when records have failed and are due.
    - ``redact``: columns of the sources that are masked wherever failed records are kept or shown.
    - ``keep``: how long files are kept that nothing needs, at least ``"1d"`` (None: permanently).

    Raises DeclarationError on any argument, name or graph that cannot work.
    """

    def __init__(
        self,
        name: str,
        *,
        guarantee: str | None = None,
        publish: str = "settled",
        message_timeout: str | float | timedelta = "1h",
        max_batch_age: str | float | timedelta = "7d",
        max_replays: int = 3,
        hold_above: float | None = None,
        allow_failed: float = 0,
        replay_limit: int | None = None,
        replay_backoff: str | float | timedelta = 0,
        replay_backoff_cap: str | float | timedelta = "1d",
        tracking: bool = True,
        one_plan: bool = True,
        max_anchors: int = 10_000,
        max_pending: int | None = None,
        auto_replay: bool = False,
        redact: str | Sequence[str] = (),
        keep: str | float | timedelta | None = None,
    ):
        self.name = checked_name("pipeline", name)
        self.guarantee = (
            None if guarantee is None else option(name, "guarantee", Guarantee, guarantee)
        )
        self.publish = option(name, "publish", PublishPolicy, publish)
        self._check_hold(self.guarantee)
        self.message_timeout_seconds = seconds(message_timeout)
        self.max_batch_age_seconds = seconds(max_batch_age)
        self.max_replays = max_replays
        self.hold_above = hold_above
        self.allow_failed = allow_failed
        self.replay_limit = replay_limit
        self.replay_backoff_seconds = seconds(replay_backoff)
        self.replay_backoff_cap_seconds = seconds(replay_backoff_cap)
        self.tracking = tracking
        self.one_plan = one_plan
        self.max_anchors = max_anchors
        self.max_pending = max_pending
        self.auto_replay = auto_replay
        check_limits(name, vars(self))
        self.redact = named_columns(name, redact)
        self.keep_seconds = None if keep is None else keep_seconds(f"pipeline {name!r}", keep)
        self.module: str = sys._getframe(1).f_globals.get("__name__", "__main__")
        self._whole = frozenset[str]()  # stages whose plans say so
        self._declared: Pipeline | None = None
        self._graph: Graph | None = None  # as it was last asked for
        self._steps: dict[str, Step] = {}
        self._references: dict[str, Reference] = {}

    def source(
        self,
        name: str,
        source: AnySource,
        *,
        on_ack: Notice | None = None,
        on_fail: Notice | None = None,
        track: str | None = None,
        key: str | Sequence[str] = (),
    ) -> None:
        """Declare a tracked source: files, a table, an OffsetSource, or an object of a registered
        class of your own.

        ``key``: the columns by which people know a record. Each failure keeps them, and
        ``ackledger replay --from-source`` finds a record by them in a corrected file.

        ``track``: a SQL predicate over its columns, for example ``"cents > 0"``. Records for
        which it is false are not tracked: no check notices if they are lost. Null counts as true.

        ``on_ack``, ``on_fail``: called once the batch is settled, with its number and a frame of
        the records that were acked, or failed: ``message_id`` and ``record``, a struct of the
        source's columns, for failed ones also ``step``, ``reason`` and ``raw``. Each is called at
        least once for a batch, and again if it raises, so make it idempotent on the batch's number.
        """
        self._add(source_step(name, source, on_ack, on_fail, track, key))

    def reference(self, name: str, source: AnySource, *, allow_empty: bool = False) -> None:
        """Declare a side input: not tracked, handed to stages that name it as a keyword.

        ``allow_empty``: it may have no rows. By default a step that reads it fails then, as a file
        that was cut off would lose every record of an inner join.
        """
        self._free(checked_name("reference", name))
        if name == PARAMS:
            raise DeclarationError(
                f"reference {name!r} of {self.name!r}: a keyword-only parameter of that name gets"
                " the parameters of the run. Rename the reference"
            )
        side_input = source_of(f"reference {name!r} of {self.name!r}", source)
        if side_input.incremental:
            raise DeclarationError(
                f"reference {name!r} of {self.name!r}: expected a FileSource that is not"
                f" incremental, or another source that every batch reads whole, found {source!r}"
            )
        self._references[name] = Reference(side_input, allow_empty)
        self._graph = None

    def stage(
        self,
        *,
        reads: str | Sequence[str],
        acks: Acks = "on_emit",
        emits: Emits = "any",
        anchors: AnchorsOf = "carried",
        filters: Filters = "dropped",
        expected: Mapping[str, str] = MappingProxyType({}),
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a stage; its name is the stage's.

        It takes one frame for each input in ``reads``, in order, and, as keyword-only
        parameters, references by name, and ``params``, a dict of the run's parameters. It returns
        a frame, or a tuple of it and marks: ``dropped(frame, reason)``, ``failed(frame, reason)``,
        ``acked(frame)``. A ``_failed`` string on an output row fails its record.

        The library carries through the plan of what it returns which records each row comes from.
        A stage whose rows depend on which other rows there are, by a join of two inputs, a group,
        ``distinct``, a window or ``limit``, is whole: a replay takes the whole batch. ``check``
        says which stages are.

        - ``acks``: with ``on_emit`` a record counts as processed only if an output or a drop comes
          from it; with ``explicit`` an ack counts as well, and all others fail as "not acked by"
          the stage; with ``on_read`` every input counts once the stage has committed; with
          ``untracked``, too, and tracking ends there.
        - ``emits="one"``: a record with more than one output row for an input fails.
        - ``anchors``: with ``by_hand`` the frames have a column ``_anchor``, which the function
          returns as it came, for operations that cannot be carried; with ``merged_by_hand`` it is
          a list, for functions that merge (``merge_anchors``) or collect (``collect_anchors``) it.
          On a Spark Connect server all stages are by hand.
        - ``filters``: what becomes of a record that a filter with a false condition, a semi or anti
          join, ``limit``, ``sample``, ``dropna`` or a rank leaves out. ``dropped``: it is acked,
          and counted by operation and line. ``lost``: it fails. A condition that is NULL, and a
          join without a partner, always lose a record. By hand, what has no output is lost.
        - ``expected``: losses that are meant, each with why: ``{"inner join: no partner for
          tailnum": "planes of other owners"}``. The keys are as ``ackledger failed`` prints them,
          without the line. Such records are acked and counted with that reason.
        """

        def declare(function: Function) -> Function:
            step = stage_step(
                function, reads, acks=acks, emits=emits, anchors=anchors, filters=filters,
                expected=expected,
            )  # fmt: skip
            self._add(step)
            if step.keeps_anchor and anchors == "by_hand":
                warn_of_aggregates(step)
            return function

        return declare

    def record_stage(
        self, *, reads: str | Sequence[str], schema: "StructType | str", emits: Emits = "any"
    ) -> Callable[[Function], Function]:
        """Declare the decorated generator as a stage that takes one record at a time.

        It takes a dict of the input's columns and yields dicts of the columns of ``schema`` (a
        StructType or DDL), or ``dropped(reason)``. Anchoring and acking are automatic.
        FailedRecord, or any other exception, fails just that record with its type and message,
        and what it had yielded is discarded. A record for which nothing is yielded fails as
        "emitted nothing".
        """

        def declare(function: Function) -> Function:
            self._add(record_step(function, reads, schema, emits))
            return function

        return declare

    def combine(
        self, *, reads: str | Sequence[str], partial: bool = False
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as a combine: aggregates, windows, numbering; its name
        is the combine's.

        It runs once all records of the sources behind ``reads``, replays included, are acked or
        quarantined, over the acked rows of all of them. It takes one frame of the user's columns
        for each step in ``reads``, and references as keyword-only parameters. Its sinks publish
        the result whole. It runs again after a later replay of the batch, and the new result
        replaces the old one. ``partial=True``: it also runs after each settlement over the rows
        that are acked by then, and the complete result replaces the early one; not with
        ``publish="complete"``, which publishes nothing early.
        """

        def declare(function: Function) -> Function:
            self._add(combine_step(function, reads, partial))
            return function

        return declare

    def stateful_stage(self, *, reads: str) -> Callable[[Function], Function]:
        """Declare the decorated function as a state over batches; its name is the stage's.

        It takes the state that it returned for the batch before, or None, the acked rows of this
        batch in the user's columns, and references as keyword-only parameters; it returns the
        new state. It runs once a batch is settled, in the order of the batches; a replay is a
        batch of its own. Its sinks replace the old state with the whole new one.
        """

        def declare(function: Function) -> Function:
            self._add(state_step(function, reads))
            return function

        return declare

    def stateful(self, name: str, stage: StatefulStage, *, reads: str) -> None:
        """Declare a state over batches that ``stage`` keeps, by the hooks of StatefulStage;
        without sinks if it publishes its state elsewhere.
        """
        self._add(hooks_step(name, stage, reads))

    def sink(self, name: str, sink: Sink, *, reads: str) -> None:
        """Declare a sink: a ``ParquetSink``, ``DeltaSink`` or ``PostgresSink``, or an object of
        another kind; see ``ledger.sinks.base.Sink``."""
        reading = one_input("sink", name, reads)
        self._add(SinkStep(checked_name("sink", name), require_sink(name, sink), reading))

    def steps(self) -> tuple[Step, ...]:
        """Return the steps up to the settlement, each after its inputs. Raises DeclarationError if
        the graph is not valid.
        """
        return tuple(step for step in self._checked() if not self.graph.follows(step.name))

    def followers(self) -> tuple[Step, ...]:
        """Return the steps after the settlement: combines, states, and the sinks that read them."""
        return tuple(step for step in self._checked() if self.graph.follows(step.name))

    def combined(self) -> tuple[Step, ...]:
        """Return the steps that run after the settlement of one family: combines and their
        sinks.
        """
        return tuple(step for step in self.followers() if not self.graph.is_stateful(step.name))

    def sources(self) -> tuple[SourceStep, ...]:
        """Return the sources."""
        return self._of_kind(SourceStep)

    def stages(self) -> tuple[StageStep, ...]:
        """Return the stages."""
        return self._of_kind(StageStep)

    def states(self) -> tuple[StateStep, ...]:
        """Return the states over batches."""
        return self._of_kind(StateStep)

    def sinks(self) -> tuple[SinkStep, ...]:
        """Return the sinks in the order of their declaration, in which they are published."""
        return self._of_kind(SinkStep)

    def _of_kind(self, kind: type[Kind]) -> tuple[Kind, ...]:
        return tuple(step for step in self._steps.values() if isinstance(step, kind))

    def source_named(self, name: str) -> SourceStep:
        """Return the source of this name."""
        step = self.step(name)
        assert isinstance(step, SourceStep), name
        return step

    def sink_named(self, name: str) -> SinkStep:
        """Return the sink of this name. Raises DeclarationError for an unknown name. The step must
        be a sink.
        """
        step = self.step(name)
        assert isinstance(step, SinkStep), name
        return step

    def sinks_of(self, name: str) -> tuple[SinkStep, ...]:
        """Return the sinks that read a step."""
        return tuple(step for step in self.sinks() if step.reads == name)

    def _checked(self) -> tuple[Step, ...]:
        if self.guarantee is not None:
            self.check_guarantee(self.guarantee)
        check_redacted(self.name, self.redact, self.sources())
        for step in self.states():
            if self.graph.is_whole and self.publish is not PublishPolicy.COMPLETE:
                raise DeclarationError(
                    f"state {step.name!r} of pipeline {self.name!r} would include records again"
                    " with each replay, which takes the whole batch because of a whole stage:"
                    " declare the pipeline with publish='complete', by which a state includes a"
                    " batch once, when none of its records is failed"
                )
        return self.graph.checked

    def check_guarantee(self, guarantee: Guarantee) -> None:
        """Raise DeclarationError unless the sinks can give this guarantee."""
        self._check_hold(guarantee)
        self.graph.check_guarantee(guarantee)

    def _check_hold(self, guarantee: Guarantee | None) -> None:
        if self.publish is PublishPolicy.COMPLETE and guarantee is Guarantee.AT_LEAST_ONCE:
            raise DeclarationError(
                f"pipeline {self.name!r}: publish='complete' holds back what sinks publish, and at"
                " least once they publish it at once: leave out publish, or run it exactly once"
            )

    def step(self, name: str) -> Step:
        """Return the step of this name."""
        return self.graph.step(name)

    @property
    def graph(self) -> Graph:
        """The steps as a graph, built once. It knows which steps are tracked, and which stages
        merge records.
        """
        if self._graph is None:
            self._graph = Graph(self.name, {**self._steps}, {**self._references}, self._whole)
        return self._graph

    def with_steps(
        self, steps: Iterable[Step], references: Mapping[str, Reference] | None = None
    ) -> "Pipeline":
        """Return a copy with these steps and references in place of its own; None keeps the
        references. For tests and measurements, which replace or omit some steps.
        """
        clone = copy(self)
        clone._steps = {step.name: step for step in steps}
        clone._references = dict(self._references if references is None else references)
        clone._graph = None
        return clone

    def with_whole(self, stages: Iterable[str]) -> "Pipeline":
        """Return a copy that knows its whole stages: those of ``stages`` that it still has and that
        carry anchors. A check or a batch finds whole stages by their plans.
        """
        clone = copy(self)
        clone._whole = frozenset(step.name for step in self.stages() if step.carries).intersection(
            stages
        )
        clone._graph, clone._declared = None, self.declared
        return clone

    @property
    def declared(self) -> "Pipeline":
        """The pipeline from which ``with_whole`` made this copy, or this pipeline itself."""
        return self._declared or self

    def consumers(self, name: str) -> tuple[str, ...]:
        """Return the names of the steps up to the settlement that read ``name``, in the pipeline's
        order.
        """
        return tuple(step.name for step in self.steps() if name in step.inputs)

    @property
    def wants_notice(self) -> bool:
        """Whether a source declares ``on_ack`` or ``on_fail``, or has ``commit``."""
        return any(step.wants_notice for step in self.sources())

    def references(self, step: Step) -> dict[str, Reference]:
        """Return the references that a step reads, by name."""
        return {name: self._references[name] for name in step.references}

    def topology(self) -> tuple[DeclaredStep, ...]:
        """Return the steps, in order, in the form that the ledger stores."""
        return tuple(map(self.graph.declared, self._checked()))

    def _add(self, step: Step) -> None:
        self._free(step.name)
        check(self, [step], OF_STEP)
        self._steps[step.name] = step
        self._graph = None

    def _free(self, name: str) -> None:
        if name in self._steps or name in self._references:
            raise DeclarationError(f"pipeline {self.name!r} declares {name!r} twice")
