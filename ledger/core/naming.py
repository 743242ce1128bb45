"""Naming of the step where a record broke, from what the steps of its batch emitted and acked of
it, hop by hop.

Pure. Records that broke alike are judged at once, see ``ledger.deltas.single_roots``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ledger.core.states import FailureCause
from ledger.core.verdict import Hop


@dataclass(frozen=True)
class StepEdges:
    """Edges that the steps of a batch emitted and acked for one record. ``broken``: the components
    of hops whose producers emitted other edges than their consumers acked, by XOR or by count.
    ``emitted``, ``acked``: by step of these components, how many edges.
    """

    emitted: Mapping[str, int]
    acked: Mapping[str, int]
    broken: Collection[int]


@dataclass(frozen=True)
class Break:
    """The step where a record broke, and why: of the edges ``emitted`` by the ``producers`` so many
    were ``acked``. ``wrong_at``: the steps with a wrong count, of several. ``own_failure``: through
    its own fault. ``shared``: a failure of its unit. ``incomplete``: some of its rows were lost
    before the steps that take whole units, too.
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
class Naming:
    """Facts of a batch by which the step where a record broke is named.

    ``uncommitted``: steps that never committed; a record that broke there failed through no fault
    of its own. ``explicit``: stages that ack by themselves, so what is missing there was not acked
    rather than lost. ``merging``: whole stages and those after them; rows may be lost there because
    another record is missing, so it is a failure of the unit, unless the record is incomplete.
    ``unproved``: sinks that did not prove that they took each row of their input once.
    """

    hops: Sequence[Hop]
    uncommitted: Collection[str] = ()
    explicit: Collection[str] = ()
    merging: Collection[str] = ()
    unproved: Collection[str] = ()

    @cached_property
    def components(self) -> dict[int, list[Hop]]:
        """The hops that are balanced together, in their order."""
        components: dict[int, list[Hop]] = {}
        for hop in self.hops:
            components.setdefault(hop.component, []).append(hop)
        return components

    def name(self, edges: StepEdges) -> Break | None:
        """The first step where a record broke; None if it broke nowhere. What a record lost by
        itself comes first, whatever others lost with it, and wherever that is.
        """
        breaks = [self._broken(self.components[number], edges) for number in edges.broken]
        breaks.sort(key=lambda some: (not some[1].own_failure, some[0]))
        incomplete = any(some.incomplete for _, some in breaks)
        if not breaks:
            return None
        first = breaks[0][1]
        return replace(first, shared=first.shared and not incomplete, incomplete=incomplete)

    def missed_by(self, edges: StepEdges) -> list[str]:
        """The sinks that may not have got each row of the record once, wherever it is named."""
        reached = {hop.consumer for hop in self.hops if hop.component in edges.broken}
        return sorted(reached.intersection(self.unproved))

    def _broken(self, hops: Sequence[Hop], edges: StepEdges) -> tuple[int, Break]:
        """The break of one component, after the first of its consumers' places."""
        consumers = list(dict.fromkeys(hop.consumer for hop in hops))
        wrong = self._wrong(hops, edges) if len(consumers) > 1 else []
        # Of several with a wrong count one that did commit is to blame: the others never had their
        # turn.
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
        return hops[0].ordinal, Break(
            ", ".join(culprits),
            FailureCause.LATE if late else self._cause(culprits, emitted, acked),
            ", ".join(producers),
            emitted,
            acked,
            ", ".join(wrong) if len(wrong) > 1 else None,
            own_failure=not merging and not late,
            shared=merging and not late,
            incomplete=not all(self._merges(hops, name) for name in concerned),
        )

    def _wrong(self, hops: Sequence[Hop], edges: StepEdges) -> list[str]:
        """The consumers that acked another number of edges than they had to, in their order."""
        due: dict[str, int] = {}
        for hop in hops:
            share = edges.emitted.get(hop.producer, 0) // hop.fanout
            due[hop.consumer] = due.get(hop.consumer, 0) + share
        return [name for name, count in due.items() if count != edges.acked.get(name, 0)]

    def _merges(self, hops: Sequence[Hop], consumer: str) -> bool:
        """Whether the consumer merges, or, a sink, reads what does."""
        steps = {
            name for hop in hops if hop.consumer == consumer for name in (hop.producer, consumer)
        }
        return not steps.isdisjoint(self.merging)

    def _cause(self, culprits: Sequence[str], emitted: int, acked: int) -> FailureCause:
        if emitted > acked:
            unacked = any(name in self.explicit for name in culprits)
            return FailureCause.UNACKED if unacked else FailureCause.LOST
        return FailureCause.DOUBLED if emitted < acked else FailureCause.SWAPPED
