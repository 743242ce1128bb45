"""The four assertions, over what was seen and what must be there by the seed; nothing is asked
here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, takewhile

from tests.chaos.data import Order, Row, checksum

MOST_EXAMPLES = 3


@dataclass(frozen=True, order=True)
class Total:
    """Rows by number and by the sum of their checksums: equal for equal sets, by all odds for no
    others.
    """

    rows: int = 0
    checksum: int = 0

    def __add__(self, other: "Total") -> "Total":
        return Total(self.rows + other.rows, self.checksum + other.checksum)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Total":
        """The total of given rows."""
        sums = [checksum(row) for row in rows]
        return cls(len(sums), sum(sums))


@dataclass(frozen=True)
class Update:
    """One update of the state, as its table has it: its place, the rows it applied, how many
    were before.
    """

    place: int
    added: Total
    earlier: int


@dataclass(frozen=True)
class Look:
    """What a reader saw of one sink at one instant, by day."""

    sink: str
    days: Mapping[str, Total]


@dataclass(frozen=True)
class Evidence:
    """What is there at the end, and what was seen until then.

    ``shown``: rows of each sink. ``batches``: for each batch in order, its day and the rows that
    its part of a sink holds, by sink. ``looks``, ``histories``: of the concurrent reader, oldest
    first.
    """

    shown: Mapping[str, Sequence[Row]]
    quarantined: Sequence[int]
    batches: Mapping[str, Mapping[int, tuple[str, Total]]]
    settled: Sequence[int]
    looks: Sequence[Look] = ()
    histories: Sequence[Sequence[Update]] = ()
    history: Sequence[Update] = field(default_factory=tuple)


def judge(orders: Sequence[Order], evidence: Evidence) -> dict[str, list[str]]:
    """What is wrong, by assertion: nothing is if all lists are empty."""
    return {
        "no duplicate in any sink": duplicates(evidence),
        "input = published + quarantined": unaccounted(orders, evidence),
        "the reader saw whole batches": parts(evidence),
        "the state was updated in order": disorder(evidence),
    }


def duplicates(evidence: Evidence) -> list[str]:
    """Lines of orders that a sink holds twice."""
    wrong = []
    for sink, rows in evidence.shown.items():
        twice = [
            key for key, count in Counter((row[0], row[1]) for row in rows).items() if count > 1
        ]
        wrong += _in_words(f"{sink} holds lines (order, line) more than once", twice)
    return wrong


def unaccounted(orders: Sequence[Order], evidence: Evidence) -> list[str]:
    """Orders that are neither published whole and as they are nor in quarantine, or are both."""
    wrong = []
    quarantined = set(evidence.quarantined)
    poison = {order.id for order in orders if order.poison}
    if len(evidence.quarantined) != len(quarantined):
        wrong.append("quarantine names orders more than once")
    wrong += _in_words("poison orders are not in quarantine", poison - quarantined)
    wrong += _in_words("orders are in quarantine that are not poison", quarantined - poison)
    expected = {row for order in orders if not order.poison for row in order.rows()}
    for sink, rows in evidence.shown.items():
        roots = set(rows)
        wrong += _in_words(f"{sink} lacks lines", expected - roots)
        wrong += _in_words(
            f"{sink} holds lines that no order has, or a poison one", roots - expected
        )
        published = len({row[0] for row in roots})
        if published + len(quarantined) != len(orders):
            wrong.append(
                f"{sink}: {len(orders)} in, {published} published, {len(quarantined)} in quarantine"
            )
    return wrong


def parts(evidence: Evidence) -> list[str]:
    """Times at which a sink showed of a day something else than some of its batches, each
    whole, or less than before.
    """
    if not evidence.looks:
        return ["the reader never saw anything"]
    wrong = []
    # Whichever sink keeps its rows by batch shows which rows a batch has; they have to agree.
    states, *others = evidence.batches.values()
    for other in others:
        if {key: value for key, value in other.items() if value[1].rows} != states:
            wrong.append(f"the sinks {', '.join(evidence.batches)} do not hold the same by batch")
    allowed = {
        day: _unions(total for of, total in states.values() if of == day)
        for day, _ in states.values()
    }
    most: Counter[tuple[str, str]] = Counter()
    for look in evidence.looks:
        before = {day: rows for (sink, day), rows in most.items() if sink == look.sink}
        gone = [day for day, rows in before.items() if look.days.get(day, Total()).rows < rows]
        wrong += _in_words(f"{look.sink} has less than before of days", gone)
        for day, total in look.days.items():
            most[look.sink, day] = max(most[look.sink, day], total.rows)
            if total not in allowed.get(day, ()):
                wrong.append(
                    f"{look.sink} had {total.rows} rows of {day}, which is no union of its batches"
                )
    return wrong[:MOST_EXAMPLES]


def disorder(evidence: Evidence) -> list[str]:
    """Updates of the state that are not those of the settled batches, in their order, once."""
    contents = next(iter(evidence.batches.values()))
    added = [contents.get(batch, ("", Total()))[1] for batch in evidence.settled]
    wanted = [
        Update(place + 1, total, sum(state.rows for state in added[:place]))
        for place, total in enumerate(added)
    ]
    wrong = []
    order = list(evidence.history)
    if order != wanted:
        place = 1 + _first_difference(order, wanted)
        wrong.append(f"{len(order)} updates for {len(wanted)} batches, wrong from {place} on")
    for seen in evidence.histories:
        if list(seen) != wanted[: len(seen)]:
            wrong.append(
                f"the reader saw a state of {len(seen)} updates, not the first batches in order"
            )
    lengths = [len(seen) for seen in evidence.histories]
    if lengths != sorted(lengths):
        wrong.append(f"the state went back under the reader's eyes: {lengths}")
    return wrong[:MOST_EXAMPLES]


def _unions(totals: Iterable[Total]) -> set[Total]:
    """The totals of all selections of batches of one day."""
    names = list(totals)
    return {
        sum(names_, Total())
        for size in range(len(names) + 1)
        for names_ in combinations(names, size)
    }


def _first_difference(rows: Sequence[object], wanted: Sequence[object]) -> int:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(rows, wanted, strict=False))
    return sum(1 for _ in same)


def _in_words(what: str, rows: Iterable[object]) -> list[str]:
    examples = sorted(rows, key=repr)
    if not examples:
        return []
    shown = ", ".join(map(repr, examples[:MOST_EXAMPLES]))
    return [f"{len(examples)} x {what}: {shown}"]
