"""Breaks: the step where a record failed, from the edges that the steps of its batch emitted and
acked for it, hop by hop.

Pure. Records that broke alike are judged at once, see ``ledger.deltas.single_roots``.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ledger.core.declared_steps import DeclaredStep
from ledger.core.states import FailureCause


@dataclass(frozen=True)
class Hop:
    """An edge of the topology: a producer and one of its ``fanout`` consumers.

    ``ordinal``: the consumer's place in the pipeline's order.
    ``component``: the number of the hops that are balanced together, because they share producers
    or consumers. If nothing was lost, its consumers acked all edges that its producers emitted.
    """

    ordinal: int
    producer: str
    consumer: str
    fanout: int
    component: int


def hops(topology: Sequence[DeclaredStep]) -> list[Hop]:
    """Return the hops of a topology up to the settlement, in the order of the consumers."""
    pairs = [
        (ordinal, producer, step.name)
        for ordinal, step in enumerate(topology)
        if not step.after
        for producer in step.reads
    ]
    fanout = Counter(producer for _, producer, _ in pairs)
    component = {index: index for index in range(len(pairs))}
    for number, (_, producer, consumer) in enumerate(pairs):
        for other in range(number):
            if producer == pairs[other][1] or consumer == pairs[other][2]:
                old, new = component[number], component[other]
                component = {index: new if of == old else of for index, of in component.items()}
    return [
        Hop(ordinal, producer, consumer, fanout[producer], component[index])
        for index, (ordinal, producer, consumer) in enumerate(pairs)
    ]


@dataclass(frozen=True)
class StepEdges:
    """The edges that each step of a batch emitted and acked for one record.

    ``broken``: the components whose producers emitted other edges than their consumers acked, by
    XOR or by count.
    ``emitted``, ``acked``: the number of edges by step, for the steps of these components.
    """

    emitted: Mapping[str, int]
    acked: Mapping[str, int]
    broken: Collection[int]


@dataclass(frozen=True)
class Break:
    """The step where a record broke, and the numbers of edges: the ``producers`` emitted
    ``emitted`` edges, and ``acked`` of them were acked.

    ``wrong_at``: if there are several producers or consumers, the steps with a wrong count.
    ``own_failure``: whether the record broke through its own fault.
    ``shared``: whether another record may be at fault.
    ``incomplete``: whether some rows of the record were lost before the whole stages as well.
    """

    step: str
    cause: FailureCause
    producers: str
    emitted: int
    acked: int
    wrong_at: str | None
    own_failure: bool
    shared: bool
    incomplete: bool


@dataclass(frozen=True)
class BreakFinder:
    """Facts of a batch that decide at which step a record broke.

    ``uncommitted``: steps that never committed. A record that broke there is not at fault.
    ``explicit``: stages with ``acks="explicit"``. A row that is missing there was not acked,
    instead of lost.
    ``merging``: whole stages and the steps after them. Rows may be missing there because another
    record is missing. Such a failure is shared, unless the record is incomplete.
    ``unproved``: sinks without a proof that they took each row of their input once.
    """

    hops: Sequence[Hop]
    uncommitted: Collection[str] = ()
    explicit: Collection[str] = ()
    merging: Collection[str] = ()
    unproved: Collection[str] = ()

    @cached_property
    def components(self) -> dict[int, list[Hop]]:
        """Hops by the number of their component, in the order of their consumers. The hops of a
        component share producers or consumers, so they are balanced together.
        """
        components: dict[int, list[Hop]] = {}
        for hop in self.hops:
            components.setdefault(hop.component, []).append(hop)
        return components

    def first_break(self, edges: StepEdges) -> Break | None:
        """Return the first step where a record broke, or None. Steps where the record itself was at
        fault come before steps where the failure is shared.
        """
        breaks = [self._break_of(self.components[number], edges) for number in edges.broken]
        breaks.sort(key=lambda some: (not some[1].own_failure, some[0]))
        incomplete = any(some.incomplete for _, some in breaks)
        if not breaks:
            return None
        first = breaks[0][1]
        return replace(first, shared=first.shared and not incomplete, incomplete=incomplete)

    def missed_by(self, edges: StepEdges) -> list[str]:
        """Return the sinks that may lack rows of the record, or have rows twice: unproved sinks
        whose component is broken. They need not be the step where the record broke.
        """
        reached = {hop.consumer for hop in self.hops if hop.component in edges.broken}
        return sorted(reached.intersection(self.unproved))

    def _break_of(self, hops: Sequence[Hop], edges: StepEdges) -> tuple[int, Break]:
        """Return the ordinal of a component's first consumer, and the component's break."""
        due: Counter[str] = Counter()  # the edges that each consumer had to ack, in their order
        for hop in hops:
            due[hop.consumer] += edges.emitted.get(hop.producer, 0) // hop.fanout
        consumers, wrong = list(due), list[str]()
        if len(consumers) > 1:
            wrong = [name for name in due if due[name] != edges.acked.get(name, 0)]
        # Of several with a wrong count one that did commit is to blame: the others have not run.
        blamed = sorted(
            wrong, key=lambda name: (name in self.uncommitted, self._merges(hops, name))
        )
        culprits = blamed[:1] or consumers
        concerned = wrong or consumers
        producers = sorted({hop.producer for hop in hops})
        emitted = sum(edges.emitted.get(name, 0) for name in producers)
        acked = sum(edges.acked.get(name, 0) for name in consumers)
        late = any(name in self.uncommitted for name in culprits)
        merging = any(self._merges(hops, name) for name in culprits)
        if late:
            cause = FailureCause.LATE
        elif emitted > acked:
            unacked = any(name in self.explicit for name in culprits)
            cause = FailureCause.UNACKED if unacked else FailureCause.LOST
        else:
            cause = FailureCause.DOUBLED if emitted < acked else FailureCause.SWAPPED
        return hops[0].ordinal, Break(
            ", ".join(culprits),
            cause,
            ", ".join(producers),
            emitted,
            acked,
            ", ".join(wrong) if len(wrong) > 1 else None,
            own_failure=not merging and not late,
            shared=merging and not late,
            incomplete=not all(self._merges(hops, name) for name in concerned),
        )

    def _merges(self, hops: Sequence[Hop], consumer: str) -> bool:
        """Return whether the consumer, or a step that it reads, is one of ``merging``."""
        steps = {
            name for hop in hops if hop.consumer == consumer for name in (hop.producer, consumer)
        }
        return not steps.isdisjoint(self.merging)
