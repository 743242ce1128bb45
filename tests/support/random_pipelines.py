"""Pipelines at random, by number: what their steps do to which rows, and what goes wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from tests.support.random_flow import Misread, Run, Stage, emit, read, run_stage

UNITS = 5
LETTERS = "abcdefgh"
NOTHING = Misread()
# Whether a stage is whole, and the guarantee: each of these in turn.
KINDS = (
    (False, "exactly_once"),
    (False, "at_least_once"),
    (True, "exactly_once"),
    (True, "at_least_once"),
    (False, "at_least_once"),
    (True, "at_least_once"),
    (True, "exactly_once"),
    (False, "exactly_once"),
)
WHOLE = ("total", "gather", "latest", "join")
# Places of ledger.core.probes where a driver may die, by what it does there.
PLACES = {
    "run opened": "run",
    "files written": "run",
    "deltas posted": "run",
    "committing run": "run",
    "run committed": "run",
    "refined": "settlement",
    "settling": "settlement",
    "settled": "settlement",
    "withholding": "publication",
    "publishing": "publication",
    "published": "publication",
}


@dataclass(frozen=True)
class Source:
    """A source: number and unit, a value that several have, of each of its records. Keys begin with
    ``letter``.
    """

    name: str
    letter: str
    records: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sink:
    """A sink. ``kind``: parquet, delta or postgres. ``dedup``: none, exact, bloom or keyed.
    ``refuses``: keys of rows that its table does not take until it is repaired."""

    name: str
    reads: str
    kind: str = "parquet"
    dedup: str = "none"
    refuses: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Death:
    """Where the driver dies: the ``nth`` time that it reaches ``place``; ``silent``: no process
    reports that its run failed."""

    place: str
    nth: int
    silent: bool


@dataclass(frozen=True)
class Plan:
    """A pipeline, and what goes wrong in it.

    ``misreads``: by step, rows that it does not get, or gets again. ``lasting``: steps whose faults
    are still there in the first replay. ``combined``, ``carried``: the steps that a combine and a
    state read. ``again``: a step that runs a second time. ``whole``: whether a stage is, so that a
    replay takes the whole batch. ``hold``: whether nothing is published while a record is failed.
    """

    number: int
    whole: bool
    guarantee: str
    sources: tuple[Source, ...]
    stages: tuple[Stage, ...] = ()
    sinks: tuple[Sink, ...] = ()
    misreads: Mapping[str, Misread] = field(default_factory=dict)
    lasting: frozenset[str] = frozenset()
    combined: str | None = None
    carried: str | None = None
    death: Death | None = None
    again: str | None = None
    hold: bool = False
    max_replays: int = 5

    @property
    def exactly_once(self) -> bool:
        """Whether nothing of a failed record is published."""
        return self.guarantee == "exactly_once"

    @property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """What each step up to the settlement reads."""
        return {
            **{source.name: () for source in self.sources},
            **{stage.name: stage.reads for stage in self.stages},
            **{sink.name: (sink.reads,) for sink in self.sinks},
        }

    @property
    def merging(self) -> set[str]:
        """Whole stages and those after them."""
        names: set[str] = set()
        for stage in self.stages:
            if stage.whole or names & set(stage.reads):
                names.add(stage.name)
        return names

    def is_faulty(self, step: str, round_: int) -> bool:
        """Whether a step's faults are there: in the batch itself, which is round 0, and if they
        last in its first replay."""
        return round_ == 0 or (round_ == 1 and step in self.lasting)

    def misread(self, step: str, round_: int) -> Misread:
        """What a step does not get, or gets again."""
        return self.misreads.get(step, NOTHING) if self.is_faulty(step, round_) else NOTHING

    def stage_run(self, stage: Stage, runs: Mapping[str, Run], round_: int) -> Run:
        """A stage's run on the runs of its inputs."""
        reading = read(runs, stage.reads, self.misread(stage.name, round_))
        delivered = read(runs, stage.reads, NOTHING)
        return run_stage(stage, reading, delivered, self.is_faulty(stage.name, round_))


def plan_of(number: int) -> Plan:
    """The plan of a number: always the same, and some of its records fail."""
    for attempt in count():
        plan = _Drawing(number, Random(f"{number}.{attempt}")).plan()
        if plan is not None:
            return plan
    raise AssertionError


class _Drawing:
    """Draws a plan step by step, and runs each step on what came before it, so that what goes wrong
    hits rows that are there."""

    def __init__(self, number: int, random: Random):
        self.random = random
        whole, guarantee = KINDS[number % len(KINDS)]
        self.plan_ = Plan(number, whole, guarantee, ())
        # Few records fail where each takes others with it.
        self.faults = 0.35 if whole else 1.0
        self.runs: dict[str, Run] = {}
        self.origins: dict[str, set[str]] = {}
        self.unread: list[str] = []

    def plan(self) -> Plan | None:
        """All of it; None if nothing of it goes wrong, or it grew too large."""
        for n in range(self.random.choice((1, 2))):
            self._add_source(n)
        many = self.random.randint(3, 5)
        whole_at = self.random.randrange(1, many) if self.plan_.whole else None
        for n in range(many):
            again = bool(self.plan_.merging)
            whole = n == whole_at or (again and self._maybe(0.2))
            self._add_stage(LETTERS[n], whole)
        if self._maybe(0.3):
            self.unread.append(self.random.choice([stage.name for stage in self.plan_.stages]))
        self._add_followers()
        for n, name in enumerate(self.unread):
            self._add_sink(f"sink{n}", name)
        self._add_trouble()
        large = any(len(run.rows) > 250 for run in self.runs.values())
        return None if large or not self._fails() else self.plan_

    def _maybe(self, share: float) -> bool:
        return self.random.random() < share

    def _some(self, keys: Sequence[str], most: int = 2) -> list[str]:
        """A few of these keys."""
        ordered = sorted(set(keys))
        return self.random.sample(ordered, min(len(ordered), self.random.randint(1, most)))

    def _set(self, **changes: object) -> None:
        self.plan_ = replace(self.plan_, **changes)  # type: ignore[arg-type]

    def _add_source(self, n: int) -> None:
        first, many = 100 * n, self.random.randint(9, 14)
        records = tuple((id, id % UNITS) for id in range(first, first + many))
        source = Source(f"source{n}", "xy"[n], records)
        self._set(sources=(*self.plan_.sources, source))
        self.runs[source.name] = emit(source.name, records, source.letter)
        self.origins[source.name] = {source.name}
        self.unread.append(source.name)

    def _inputs(self, many: int) -> list[str]:
        """Steps to read: mostly such that nothing reads yet, else there is a fan-out."""
        names, drawn = list(self.runs), []
        for _ in range(many):
            fresh = [name for name in self.unread if name not in drawn]
            pool = fresh if fresh and self._maybe(0.7) else [n for n in names if n not in drawn]
            drawn.append(self.random.choice(pool))
        return drawn

    def _covering(self) -> list[str]:
        """One or two steps that together go back to every source."""
        everything = {source.name for source in self.plan_.sources}
        singles = [[name] for name, origin in self.origins.items() if origin == everything]
        pairs = [
            [run, other]
            for run in self.runs
            for other in self.runs
            if run != other and self.origins[run] | self.origins[other] == everything
        ]
        pairs = [pair for pair in pairs if set(pair) & set(self.unread)] or pairs
        return self.random.choice(singles if singles and self._maybe(0.5) else pairs or singles)

    def _add_stage(self, letter: str, whole: bool) -> None:
        several = len(self.runs) > 1 and self._maybe(0.4)
        reads = self._covering() if whole else self._inputs(1 + several)
        merging = bool(self.plan_.merging & set(reads)) or whole
        form = self._form(reads, whole)
        acks = self.random.choice(("on_emit", "on_emit", "explicit", "on_read"))
        single = form in ("frame", "record") and not merging and self._maybe(0.35)
        small = sum(len(self.runs[name].delivered) for name in reads) <= 60
        stage = Stage(
            name=f"stage_{letter}",
            reads=tuple(reads),
            form=form,
            acks="on_emit" if form != "frame" else acks,
            emits="one" if single else "any",
            copies=self.random.choice((1, 2, 3))
            if form in ("frame", "record") and small and not single
            else 1,
            letter=letter if form in ("frame", "record") and self._maybe(0.5) else "",
            files=self.random.choice((0, 0, 2, 3)) if form != "record" else 0,
        )
        self._misread(stage.name, stage.reads, double=single or stage.acks == "on_read")
        stage = self._with_fates(stage)
        self._set(stages=(*self.plan_.stages, stage))
        self.runs[stage.name] = self.plan_.stage_run(stage, self.runs, 0)
        self.origins[stage.name] = set().union(*(self.origins[name] for name in reads))
        self.unread = [name for name in self.unread if name not in reads] + [stage.name]

    def _form(self, reads: Sequence[str], whole: bool) -> str:
        if not whole:
            return "record" if len(reads) == 1 and self._maybe(0.3) else "frame"
        left, other = (len(self.runs[name].delivered) for name in (reads[0], reads[-1]))
        if len(reads) == 2 and left * other <= 150 * UNITS and self._maybe(0.6):
            return "join"
        return self.random.choice(WHOLE[:3])

    def _misread(self, step: str, reads: Sequence[str], double: bool) -> None:
        """Rows that the step does not get, or gets again: at times one of either."""
        keys = [row.key for name in reads for row in self.runs[name].delivered]
        both = self._maybe(0.2 * self.faults)
        lost = self._some(keys, 1) if keys and (both or self._maybe(0.15 * self.faults)) else []
        others = [key for key in keys if key not in lost]
        # Of a pair, one that is of the same record if there is one.
        kin = [key for key in others if lost and key.split(".")[0] == lost[0].split(".")[0]]
        double &= bool(others) and (both or self._maybe(0.15 * self.faults))
        again = self._some(kin or others, 1) if double else []
        times = self.random.choice((2, 2, 3))
        if lost or again:
            misread = Misread(frozenset(lost), frozenset(again), times)
            self._set(misreads={**self.plan_.misreads, step: misread})

    def _with_fates(self, stage: Stage) -> Stage:
        """The stage with what becomes of some of its rows."""
        reading = read(self.runs, stage.reads, self.plan_.misread(stage.name, 0))
        keys = [row.key for _, row in reading]
        lawful, faults = _fates_of(stage)
        if stage.whole:
            outputs = run_stage(stage, reading, reading, faulty=False).delivered
            drawn = (
                dict.fromkeys(self._some(keys, 1), "lost")
                if keys and self._maybe(0.5 * self.faults)
                else {}
            )
            if outputs and self._maybe(0.5 * self.faults):
                drawn |= dict.fromkeys(self._some([row.key for row in outputs], 1), "failed")
            return replace(stage, faults=drawn)
        permanent = self._drawn(keys, lawful, 0.35)
        left = [key for key in keys if key not in permanent]
        return replace(stage, lawful=permanent, faults=self._drawn(left, faults, 0.3 * self.faults))

    def _drawn(self, keys: Sequence[str], fates: Sequence[str], share: float) -> dict[str, str]:
        drawn: dict[str, str] = {}
        for fate in fates:
            free = [key for key in keys if key not in drawn]
            if free and self._maybe(share):
                drawn |= dict.fromkeys(self._some(free), fate)
        return drawn

    def _add_followers(self) -> None:
        """A combine and a state, which with a whole stage needs ``hold``, so exactly once."""
        names = [stage.name for stage in self.plan_.stages]
        if self.plan_.whole:
            hold = self.plan_.exactly_once and self._maybe(0.5)
            self._set(hold=hold, max_replays=self.random.choice((0, 1, 5)))
        for follower in ("combined", "carried"):
            is_possible = follower == "combined" or self.plan_.hold or not self.plan_.whole
            if is_possible and self._maybe(0.5):
                self._set(**{follower: self.random.choice(names)})
        # Now and then a combine or a state is all that reads a step.
        followed = {self.plan_.combined, self.plan_.carried}
        if len(self.unread) > 1 and self._maybe(0.5):
            left = [name for name in self.unread if name not in followed]
            self.unread = left or self.unread

    def _add_sink(self, name: str, reads: str) -> None:
        self._misread(name, (reads,), double=True)
        choices = ("none",)
        if not self.plan_.whole:
            choices = ("none", "keyed") if self.plan_.exactly_once else ("exact", "bloom", "keyed")
            choices = (*choices, "none")
        sink = Sink(
            name,
            reads,
            self.random.choice(("parquet", "parquet", "delta", "postgres")),
            self.random.choice(choices),
        )
        reading = read(self.runs, (reads,), self.plan_.misread(name, 0))
        if sink.kind != "parquet" and reading and self._maybe(0.7 * self.faults):
            refused = self._some([row.key for _, row in reading])
            sink = replace(sink, refuses=frozenset(refused))
        self._set(sinks=(*self.plan_.sinks, sink))

    def _add_trouble(self) -> None:
        """What lasts, where the driver dies, and what runs a second time."""
        names = list(self.plan_.reads)
        if self._maybe(0.35):
            self._set(lasting=frozenset(name for name in names if self._maybe(0.4)))
        if self._maybe(0.6):
            place = self.random.choice([place for place in PLACES if self._times(place)])
            nth = self.random.randint(1, min(4, self._times(place)))
            self._set(death=Death(place, nth, self._maybe(0.5)))
        if self._maybe(0.3):
            self._set(again=self.random.choice(names))

    def _times(self, place: str) -> int:
        """How often a driver is sure to reach a place in the batch itself."""
        plan = self.plan_
        if PLACES[place] == "settlement":
            return 1
        if place == "deltas posted":
            inputs = [self.runs[sink.reads].delivered for sink in plan.sinks]
            outputs = [run.rows for run in self.runs.values()]
            return sum(map(bool, [*inputs, *outputs]))
        if plan.hold and PLACES[place] == "publication":
            return 0
        if place == "withholding":
            return sum(bool(sink.refuses) for sink in plan.sinks)
        return len(plan.sinks if PLACES[place] == "publication" else plan.reads)

    def _fails(self) -> bool:
        """Whether some record fails: its edges are not what was acked, or a step failed it."""
        plan = self.plan_
        on_read = {stage.name for stage in plan.stages if stage.acks == "on_read"}
        refused = any(sink.refuses for sink in plan.sinks)
        noticed = bool(plan.misreads.keys() - on_read)
        return refused or noticed or any(run.fails for run in self.runs.values())


def _fates_of(stage: Stage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What may become of rows of a stage that takes one at a time, permanently and as a fault."""
    single = stage.emits == "one"
    repeated = ("repeated",) if single else ()
    twice = () if single else ("twice",)
    if stage.form == "record":
        return ("dropped", *twice), ("lost", "failed", *repeated)
    faults = ("lost", "failed", "half", "marked", "beside", *repeated)
    if stage.acks == "on_read":  # what it does not hand on is meant
        return ("dropped", "lost", *twice), faults[1:]
    if stage.acks == "explicit":
        return ("dropped", "acked", *twice), faults
    return ("dropped", *twice), faults


def features(plan: Plan) -> Iterator[str]:
    """What there is to a plan, in words."""
    readers = [name for names in plan.reads.values() for name in names]
    for stage in plan.stages:
        yield from (stage.form, f"acks={stage.acks}", f"emits={stage.emits}")
        yield from (f"lawful {fate}" for fate in stage.lawful.values())
        kind = "whole" if stage.whole else f"{stage.form}, {stage.acks}, {stage.emits}"
        yield from (f"fault {fate}: {kind}" for fate in stage.faults.values())
        if stage.acks == "on_read" and stage.name in plan.misreads:
            yield "on_read misreads"
        if stage.files:
            yield "shuffled"
        if stage.copies > 1:
            yield "explode"
        if len(stage.reads) > 1:
            yield "several inputs"
            origins = [_origins(plan, name) for name in stage.reads]
            yield "diamond" if origins[0] & origins[1] else "union of sources"
    if any(many > 1 for many in map(readers.count, readers)):
        yield "fan-out"
    if plan.merging:
        yield "several anchors"
    for sink in plan.sinks:
        yield from (sink.kind, f"dedup={sink.dedup}")
        if sink.refuses:
            yield f"refused by {sink.kind}"
    for misread in plan.misreads.values():
        if misread.lost:
            yield "row lost"
        if misread.again:
            yield f"row {misread.times} times"
        if misread.lost and misread.again:
            yield "one lost and another again"
    followers = {"combine": plan.combined, "state": plan.carried, "again": plan.again}
    yield from (name for name, value in followers.items() if value)
    if plan.lasting:
        yield "two replays"
    if plan.death is not None:
        yield f"death in a {PLACES[plan.death.place]}"
    kind = f", whole, hold={plan.hold}, max_replays={plan.max_replays}" if plan.whole else ""
    yield from (f"{plan.guarantee}{kind}", f"{len(plan.sources)} sources")


def _origins(plan: Plan, name: str) -> set[str]:
    """The sources that a step goes back to."""
    before = plan.reads[name]
    return set().union(*(_origins(plan, step) for step in before)) if before else {name}
