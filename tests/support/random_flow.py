"""What a random pipeline does to its records, in plain Python: rows, edges, and what each step says
of the records. Nothing of the library decides anything here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

REPEATED = "more than one row for an input"
EMPTY = "emitted nothing"
BROKEN, NO_GOOD, REFUSED = "broken", "no good", "refused"
MEANT, TOO = "meant", "meant, too"

Root = tuple[str, int]  # source, number of the record


@dataclass(eq=False)
class Row:
    """A row of a step's output. ``anchors``: root, input and the input's row. A row that failed, or
    stands for a drop or an ack, goes no further."""

    id: int
    unit: int
    key: str
    anchors: frozenset[tuple[Root, str, "Row | None"]]
    failed: str | None = None
    dropped: str | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it neither failed nor is a mark."""
        return self.failed is None and self.dropped is None

    @property
    def roots(self) -> set[Root]:
        """The records that it comes from."""
        return {root for root, _, _ in self.anchors}


Edge = tuple[Row, str, Root]  # a row on its way to a step, for one of its records
Reading = list[tuple[str, Row]]  # input and row


@dataclass(frozen=True)
class Misread:
    """Rows that a step does not get from the storage, or gets again, by key. ``times``: how often
    it gets the latter; the XOR of what three readings ack is that of one.
    """

    lost: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    times: int = 2

    def times_of(self, key: str) -> int:
        """How often a row is read."""
        return 0 if key in self.lost else self.times if key in self.again else 1


@dataclass(frozen=True)
class Stage:
    """A stage of a random pipeline.

    ``form``: ``frame`` and ``record`` take one row at a time; ``total``, ``gather``, ``join`` and
    ``latest`` are whole. ``copies``: rows for each row. ``letter``: added to each key. ``files``:
    how many its output is shuffled to; 0: none. ``lawful`` and ``faults``: what becomes of rows
    with these keys, permanently and until it is repaired.
    """

    name: str
    reads: tuple[str, ...]
    form: str = "frame"
    acks: str = "on_emit"
    emits: str = "any"
    copies: int = 1
    letter: str = ""
    files: int = 0
    lawful: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether its rows may come from several records."""
        return self.form not in ("frame", "record")

    def fates(self, faulty: bool) -> dict[str, str]:
        """What becomes of rows by key."""
        return {**self.lawful, **(self.faults if faulty else {})}

    def keys(self, key: str) -> list[str]:
        """The keys of the rows that a row becomes."""
        endings = [f".{n}" for n in range(self.copies)] if self.copies > 1 else [""]
        return [f"{key}{self.letter}{ending}" for ending in endings]


@dataclass
class Run:
    """What a step made, acked and failed: the latter as root, reason, and whether others share the
    row. ``drops``: inputs acked without an output, by reason."""

    rows: list[Row] = field(default_factory=list)
    acked: Counter[Edge] = field(default_factory=Counter)
    fails: list[tuple[Root, str, bool]] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)

    @property
    def delivered(self) -> list[Row]:
        """The rows that go on."""
        return [row for row in self.rows if row.goes_on]


def emit(source: str, records: Iterable[tuple[int, int]], letter: str) -> Run:
    """A source's run over records of number and unit."""
    return Run(
        [
            Row(id, unit, f"{letter}{id}", frozenset([((source, id), "", None)]))
            for id, unit in records
        ]
    )


def read(runs: Mapping[str, Run], reads: Sequence[str], misread: Misread) -> Reading:
    """What a step gets of its inputs."""
    return [
        (name, row)
        for name in reads
        for row in runs[name].delivered
        for _ in range(misread.times_of(row.key))
    ]


def run_stage(stage: Stage, reading: Reading, delivered: Reading, faulty: bool) -> Run:
    """A stage's run over what it read. ``delivered``: what it should have read. One that acks on
    read acks that, each row once, for it acks from the files of its inputs.
    """
    fates = stage.fates(faulty)
    rows = _FORMS[stage.form](stage, reading, fates)
    by_input: dict[tuple[Root, str, Row | None], list[Row]] = defaultdict(list)
    for row in rows:
        for anchor in row.anchors:
            by_input[anchor].append(row)
    run = Run(rows, acked_rows(stage.name, delivered))
    if stage.acks != "on_read":
        run.acked = Counter((parent, stage.name, root) for root, _, parent in by_input if parent)
    for row in rows:
        if row.failed is not None:
            run.fails += [(root, row.failed, len(row.roots) > 1) for root in row.roots]
    if stage.emits == "one":
        repeated = {
            root for (root, _, _), some in by_input.items() if sum(row.goes_on for row in some) > 1
        }
        run.fails += [(root, REPEATED, False) for root in repeated]
    for some in by_input.values():
        if all(row.dropped is not None for row in some) and min(row.dropped or "" for row in some):
            run.drops[min(row.dropped or "" for row in some)] += 1
    if stage.acks == "on_read":
        swallowed = run.acked.total() - len(by_input)
        run.drops += Counter({"no output": swallowed})
    return run


def acked_rows(step: str, reading: Reading) -> Counter[Edge]:
    """Each row acked as often as it was read."""
    return Counter((row, step, root) for _, row in reading for root in row.roots)


def _anchors(name: str, row: Row) -> frozenset[tuple[Root, str, Row | None]]:
    return frozenset((root, name, row) for root in row.roots)


def _frame(stage: Stage, reading: Reading, fates: Mapping[str, str]) -> list[Row]:
    rows = []
    for name, row in reading:
        fate, anchors = fates.get(row.key), _anchors(name, row)
        marks = {"dropped": (None, MEANT), "acked": (None, ""), "marked": (NO_GOOD, None)}
        if fate == "lost":
            continue
        if fate in marks:
            rows.append(Row(row.id, row.unit, row.key, anchors, *marks[fate]))
            if fate == "dropped":  # for another reason, too: it is one drop for the first by name
                rows.append(Row(row.id, row.unit, row.key, anchors, None, TOO))
            continue
        for n, key in enumerate(stage.keys(row.key)):
            broken = fate == "failed" or (fate == "half" and n == 0)
            for _ in range(2 if fate in ("twice", "repeated") else 1):
                rows.append(Row(row.id, row.unit, key, anchors, BROKEN if broken else None))
        if fate == "twice":  # and dropped, which counts for nothing
            rows.append(Row(row.id, row.unit, row.key, anchors, None, MEANT))
        if fate == "beside":
            rows.append(Row(row.id, row.unit, row.key, anchors, NO_GOOD))
    return rows


def _record(stage: Stage, reading: Reading, fates: Mapping[str, str]) -> list[Row]:
    rows = []
    ends = {"lost": (EMPTY, None), "failed": (BROKEN, None), "dropped": (None, MEANT)}
    for name, row in reading:
        fate, anchors = fates.get(row.key), _anchors(name, row)
        if fate in ends:
            rows.append(Row(row.id, row.unit, row.key, anchors, *ends[fate]))
            continue
        for key in stage.keys(row.key):
            for _ in range(2 if fate in ("twice", "repeated") else 1):
                rows.append(Row(row.id, row.unit, key, anchors))
    return rows


def _united(rows: Reading, key: str, fates: Mapping[str, str]) -> Row:
    """One row of several."""
    anchors = frozenset().union(*(_anchors(name, row) for name, row in rows))
    least = min(row.id for _, row in rows)
    broken = BROKEN if fates.get(key) == "failed" else None
    return Row(least, min(row.unit for _, row in rows), key, anchors, broken)


def _grouped(by: str):
    def rows_of(stage: Stage, reading: Reading, fates: Mapping[str, str]) -> list[Row]:
        own = lambda pair: getattr(pair[1], by)  # noqa: E731
        rows = sorted((pair for pair in reading if fates.get(pair[1].key) != "lost"), key=own)
        groups = [list(group) for _, group in groupby(rows, own)]
        return [
            _united(group, "+".join(sorted(row.key for _, row in group)), fates) for group in groups
        ]

    return rows_of


def _latest(stage: Stage, reading: Reading, fates: Mapping[str, str]) -> list[Row]:
    greatest: dict[int, str] = {}
    for _, row in reading:
        greatest[row.unit] = max(row.key, greatest.get(row.unit, ""))
    rows = []
    for name, row in reading:
        if fates.get(row.key) == "lost":
            continue
        if row.key < greatest[row.unit]:
            anchors = _anchors(name, row)
            rows.append(Row(row.id, row.unit, row.key, anchors, None, "superseded"))
        else:
            rows.append(_united([(name, row)], row.key, fates))
    return rows


def _join(stage: Stage, reading: Reading, fates: Mapping[str, str]) -> list[Row]:
    left, right = ([pair for pair in reading if pair[0] == name] for name in stage.reads)
    left = [pair for pair in left if fates.get(pair[1].key) != "lost"]
    rows = [
        _united([row, other], f"{row[1].key}*{other[1].key}", fates)
        for row in left
        for other in right
        if row[1].unit == other[1].unit
    ]
    for these, others in ((left, right), (right, left)):
        units = {row.unit for _, row in others}
        rows += [
            Row(row.id, row.unit, row.key, _anchors(name, row), None, "unmatched")
            for name, row in these
            if row.unit not in units
        ]
    return rows


_FORMS = {
    "frame": _frame,
    "record": _record,
    "total": _grouped("unit"),
    "gather": _grouped("id"),
    "latest": _latest,
    "join": _join,
}
