"""Which records of a random pipeline fail, where and why, and what each sink shows, batch after
batch: dictionaries and counters of single edges.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from operator import eq, ne

from tests.support.random_flow import (
    REFUSED,
    REPEATED,
    Edge,
    Root,
    Row,
    Run,
    acked_rows,
    emit,
    read,
)
from tests.support.random_pipelines import Plan, Sink

Shown = Counter[tuple[object, ...]]


# Whose failure it is: the record's own, one of all that share a row, or one that may be for want of
# another record, of a record that lacks something by itself, too.
OWN, SHARED, NEITHER = "own", "shared", "neither"
Failure = tuple[str, str, str]  # step, reason, whose


@dataclass(frozen=True)
class Verdict:
    """Of a batch each failed record, and what stages dropped by reason."""

    failed: dict[Root, Failure]
    drops: Counter[tuple[str, str]]


class Oracle:
    """What becomes of a plan's records. ``order``: its steps up to the settlement."""

    def __init__(self, plan: Plan, order: Sequence[str]):
        self.plan, self.order = plan, list(order)
        self.round = 0
        self.failed: set[Root] = set()  # of the batch and its replays, as it is now
        self.given_up: set[Root] = set()  # what the next replay of a whole batch leaves out
        self._failed_replays: dict[Root, int] = {}
        # Of each sink and of the combine what there is, by round.
        self._shown: dict[str, dict[int, list[Row]]] = defaultdict(dict)
        self._delivered: dict[str, Counter[object]] = defaultdict(Counter)
        self._state: Counter[str] = Counter()
        self.notes: set[str] = set()  # what there was to it, in words

    def batch(self) -> Verdict:
        """The batch itself, or the next replay of what failed."""
        runs = self._runs()
        naming = Naming(self.plan, self.order, runs)
        verdicts = naming.verdicts()
        failed = set(verdicts)
        self.notes.update(_rivals(runs), naming.notes)
        if self.plan.whole:
            self._shown.clear()  # a replay of the whole batch replaces what there was
            self._give_up(verdicts)
        if not (self.plan.hold and failed):
            self._publish_all(runs, naming, failed)
        self.round, self.failed = self.round + 1, failed
        drops = Counter(
            {
                (stage.name, reason): records
                for stage in self.plan.stages
                for reason, records in runs[stage.name].drops.items()
            }
        )
        return Verdict(verdicts, +drops)

    def _give_up(self, verdicts: Mapping[Root, Failure]) -> None:
        """Give up the records whose replays are used up: of those that failed with others, two
        replays later."""
        for root, (_, _, whose) in verdicts.items():
            times = self._failed_replays.get(root, -1) + 1
            self._failed_replays[root] = times
            if times >= self.plan.max_replays + (0 if whose == OWN else 2):
                self.given_up.add(root)
                self.notes.add(f"given up, {whose}")

    def _publish_all(self, runs: Mapping[str, Run], naming: "Naming", failed: set[Root]) -> None:
        for sink in self.plan.sinks:
            self._publish(sink, runs, failed, naming.missed(sink.name))
        if self.plan.combined:
            rows = self._visible(runs[self.plan.combined].delivered, failed)
            self._shown[f"combine {self.plan.combined}"][self.round] = rows
        if self.plan.carried:
            visible = self._visible(runs[self.plan.carried].delivered, failed)
            self._state += Counter(row.key for row in visible)

    def sink(self, name: str) -> Shown:
        """What a sink shows: number and key of its rows."""
        rows = [row for some in self._shown[name].values() for row in some]
        return Counter((row.id, row.key) for row in rows)

    def combine(self) -> Shown:
        """What the sink of the combine shows: each key with its number of rows, once nothing is
        failed."""
        if self.failed:
            return Counter()
        rows = [
            row for some in self._shown[f"combine {self.plan.combined}"].values() for row in some
        ]
        return Counter(Counter(row.key for row in rows).items())

    def state(self) -> Shown:
        """What the sink of the state shows: each key with its number of rows by now."""
        return Counter(self._state.items())

    def _runs(self) -> dict[str, Run]:
        plan, runs = self.plan, {}
        for source in plan.sources:
            records = [
                (id, unit) for id, unit in source.records if self._is_emitted((source.name, id))
            ]
            runs[source.name] = emit(source.name, records, source.letter)
        for stage in plan.stages:
            runs[stage.name] = plan.stage_run(stage, runs, self.round)
        for sink in plan.sinks:
            runs[sink.name] = self._sink_run(sink, runs)
        return runs

    def _is_emitted(self, root: Root) -> bool:
        """Whether a record is of this batch: all of the first; of a replay those that failed, or,
        of the whole batch, those that are not given up."""
        if self.round == 0:
            return True
        return root not in self.given_up if self.plan.whole else root in self.failed

    def _sink_run(self, sink: Sink, runs: Mapping[str, Run]) -> Run:
        """What it stages, less what it delivered before; what it read is acked all the same."""
        reading = read(runs, (sink.reads,), self.plan.misread(sink.name, self.round))
        rows = self._new(sink, [row for _, row in reading])
        if len(rows) < len(reading):
            self.notes.add(f"delivered before, dedup={sink.dedup}")
        run = Run(rows, acked_rows(sink.name, reading))
        if self.plan.is_faulty(sink.name, self.round):
            refused = [row for row in rows if row.key in sink.refuses]
            run.fails = [
                (root, REFUSED, len(row.roots) > 1) for row in refused for root in row.roots
            ]
        return run

    def _new(self, sink: Sink, rows: list[Row]) -> list[Row]:
        delivered = self._delivered[sink.name]
        if sink.dedup == "keyed":
            return [row for row in rows if row.key not in delivered]
        if sink.dedup == "none" or self.plan.exactly_once:
            return rows
        new, numbers = [], Counter[object]()
        for row in rows:
            identity = self._identity(sink, row)
            numbers[identity] += 1
            if numbers[identity] > delivered[identity]:
                new.append(row)
        return new

    def _identity(self, sink: Sink, row: Row) -> object:
        return row.key if sink.dedup == "keyed" else (*row.roots, row.key)

    def _publish(
        self, sink: Sink, runs: Mapping[str, Run], failed: set[Root], missed: set[Root]
    ) -> None:
        """Exactly once rows of failed records stay out; at least once those of refused ones, and
        where a row may be of several records, the others are those that the sink was to read. Which
        rows a sink has of a record that it may have ``missed`` rows of is not known: they come
        again."""
        run = runs[sink.name]
        acked = {root for _, _, root in run.acked}
        if self.plan.exactly_once:
            self._shown[sink.name][self.round] = self._visible(run.rows, failed)
            if self._visible(run.rows, failed) != run.rows and not acked & failed:
                self.notes.add("withheld from a sink that read nothing of what failed")
        else:
            refused = {root for root, _, _ in run.fails}
            is_read_again = refused and sink.reads in self.plan.merging
            staged = runs[sink.reads].delivered if is_read_again else run.rows
            rows = [row for row in staged if not row.roots & refused]
            if any(row.roots & refused and min(row.roots) not in refused for row in run.rows):
                self.notes.add("withheld for another than the first record of a row")
            self._shown[sink.name][self.round] = rows
        for identity, times in Counter(
            self._identity(sink, row)
            for row in self._shown[sink.name].get(self.round, [])
            if not row.roots & missed
        ).items():
            self._delivered[sink.name][identity] += times

    def _visible(self, rows: Iterable[Row], failed: set[Root]) -> list[Row]:
        """The rows of records of which nothing failed."""
        return [row for row in rows if not row.roots & failed]


def _rivals(runs: Mapping[str, Run]) -> Iterator[str]:
    """Of which fails of one record one alone counts."""
    fails = [
        (root, place, reason == REPEATED, shared, reason)
        for place, run in enumerate(runs.values())
        for root, reason, shared in run.fails
    ]
    for fail, other in permutations(fails, 2):
        if fail[0] == other[0] and fail[1:] < other[1:]:
            differs = [a != b for a, b in zip(fail, other, strict=True)]
            kinds = ("", "at two steps", "and repeated", "alone and with others", "for two reasons")
            yield f"failed {kinds[differs.index(True)]}"


def outcomes(plan: Plan) -> Iterator[str]:
    """What becomes of a plan's records, in words."""
    oracle = Oracle(plan, [*plan.reads])
    while oracle.round == 0 or oracle.failed:
        for step, reason, whose in oracle.batch().failed.values():
            yield f"{whose}: {reason.split(' by ')[0]}"
            if ", " in step:
                yield "several readers named"
    yield from oracle.notes


@dataclass(frozen=True, order=True)
class Break:
    """Hops that share a step, where the edges of a record do not agree. ``merging``: at or after a
    whole stage; ``alone``: something is missing of the record before that, too. ``others``: whether
    other readers are wrong, too; ``late``: whether one of these comes before the one named."""

    merging: bool
    place: int
    step: str
    reason: str
    alone: bool
    others: bool
    late: bool


class Naming:
    """Where each record failed, and why, by its edges one by one.

    What a step failed of a record alone is named first. Then what was lost or acked too often: hops
    that share a step are one component, whose first reader that acked another number of edges than
    it was to get is named. What a step failed with others is named where nothing of the record is
    missing before its rows are united with others.
    """

    def __init__(self, plan: Plan, order: Sequence[str], runs: Mapping[str, Run]):
        self._plan, self._order, self._runs = plan, list(order), runs
        self._place = {name: place for place, name in enumerate(self._order)}
        self._explicit = {stage.name for stage in plan.stages if stage.acks == "explicit"}
        self._components = self._united()
        self._emitted, self._acked = self._edges()
        self.notes: set[str] = set()  # what there was to it, in words

    def verdicts(self) -> dict[Root, Failure]:
        """Of each failed record where it failed, why, and whose failure it is."""
        own, shared = self._fails(shared=False), self._fails(shared=True)
        verdicts = {}
        for root in {*self._emitted, *self._acked, *own, *shared}:
            breaks = sorted(self._breaks(root))
            if root in own:
                verdicts[root] = *own[root], OWN
            elif root in shared and not any(break_.alone for break_ in breaks):
                verdicts[root] = *shared[root], SHARED
            elif breaks:
                first, alone = breaks[0], any(break_.alone for break_ in breaks)
                whose = OWN if not first.merging else NEITHER if alone else SHARED
                verdicts[root] = first.step, first.reason, whose
                kinds = {"two readers wrong": first.others, "a later reader named": first.late}
                self.notes.update(word for word, is_so in kinds.items() if is_so)
        return verdicts

    def missed(self, step: str) -> set[Root]:
        """The records of which a step may not have acked each row once: unless it acked each edge
        that it was to get, those where something is wrong with any reader that shares its input."""
        roots = {*self._emitted, *self._acked}
        if all(eq(*self._due_and_got(root, [step])) for root in roots):
            return set()
        (consumers,) = (some for some in self._components if step in some)
        return {root for root in roots if ne(*self._due_and_got(root, consumers))}

    def _fails(self, *, shared: bool) -> dict[Root, tuple[str, str]]:
        """What steps failed: of each record at the first, for the first reason by name, but that a
        step repeated it last."""
        least: dict[Root, tuple[int, bool, str]] = {}
        for step, run in self._runs.items():
            for root, reason, with_others in run.fails:
                if with_others == shared:
                    rank = (self._place[step], reason == REPEATED, reason)
                    least[root] = min(rank, least.get(root, rank))
        return {root: (self._order[place], reason) for root, (place, _, reason) in least.items()}

    def _united(self) -> list[list[str]]:
        """Readers that share an input, in order, those of each component."""
        components: list[list[str]] = []
        for name in self._order:
            reads = set(self._plan.reads[name])
            same = [some for some in components if reads & self._producers(some)]
            components = [some for some in components if some not in same]
            if reads:
                components.append([*(edge for some in same for edge in some), name])
        return [sorted(some, key=self._place.__getitem__) for some in components]

    def _producers(self, consumers: Iterable[str]) -> set[str]:
        return {producer for name in consumers for producer in self._plan.reads[name]}

    def _edges(self) -> tuple[dict[Root, Counter[Edge]], dict[Root, Counter[Edge]]]:
        emitted: dict[Root, Counter[Edge]] = defaultdict(Counter)
        acked: dict[Root, Counter[Edge]] = defaultdict(Counter)
        for consumer, producers in self._plan.reads.items():
            for producer in producers:
                for row in self._runs[producer].delivered:
                    for root in row.roots:
                        emitted[root][row, consumer, root] += 1
        for run in self._runs.values():
            for edge, times in run.acked.items():
                acked[edge[2]][edge] += times
        return emitted, acked

    def _breaks(self, root: Root) -> Iterable[Break]:
        """The components whose edges of a record do not agree."""
        for consumers in self._components:
            due, got = self._due_and_got(root, consumers)
            if due != got:
                yield self._break(root, consumers, due, got)

    def _due_and_got(self, root: Root, consumers: list[str]) -> tuple[Counter[Edge], Counter[Edge]]:
        """The edges of a record that were emitted to some steps, and those that they acked."""
        due, got = (
            Counter({edge: n for edge, n in edges[root].items() if edge[1] in consumers})
            for edges in (self._emitted, self._acked)
        )
        return due, got

    def _wrong_number(self, root: Root, consumer: str) -> bool:
        """Whether a step acked another number of edges of a record than it was to get."""
        due, got = self._due_and_got(root, [consumer])
        return due.total() != got.total()

    def _break(
        self, root: Root, consumers: list[str], due: Counter[Edge], got: Counter[Edge]
    ) -> Break:
        """What is wrong in a component, and whose fault it is."""
        several = consumers if len(consumers) > 1 else []
        wrong = [name for name in several if self._wrong_number(root, name)]
        # Of several that are wrong the first to which the record came by itself.
        rank = lambda name: (self._comes_united(root, name), self._place[name])  # noqa: E731
        culprits = [min(wrong, key=rank)] if wrong else consumers
        step = ", ".join(culprits)
        if due.total() > got.total():
            explicit = self._explicit & set(culprits)
            reason = f"not acked by {step}" if explicit else "lost"
        elif due.total() < got.total():
            reason = "acked too often"
        else:
            reason = "one lost and another acked too often"
        hops = [(p, c) for c in consumers for p in self._plan.reads[c]]
        return Break(
            any(self._merges(*hop) for hop in hops if hop[1] in culprits),
            min(self._place[name] for name in consumers),
            step,
            reason,
            any(not self._merges(*hop) for hop in hops if hop[1] in (wrong or consumers)),
            len(wrong) > 1,
            bool(wrong) and culprits != wrong[:1],
        )

    def _merges(self, producer: str, consumer: str) -> bool:
        """Whether rows of several records are made or read there."""
        return bool({producer, consumer} & self._plan.merging)

    def _comes_united(self, root: Root, consumer: str) -> bool:
        """Whether what a step gets of a record, or makes of it, is united with others."""
        touched = [
            producer
            for producer in self._plan.reads[consumer]
            if any(root in row.roots for row in self._runs[producer].rows)
        ]
        return any(self._merges(producer, consumer) for producer in touched)
