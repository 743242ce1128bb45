"""Losses of an audit, and what they mean for each source."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ledger.auditing import ids as record_ids
from ledger.auditing.expected import ExpectedLoss, Key
from ledger.auditing.ids import NO_IDS, Ids
from ledger.auditing.sources import AuditSource

NOT_REPEATABLE = "may differ when computed again"
# Kinds of losses. ELSEWHERE: the records reach another output, or may do.
LOST, EXPECTED, INTENDED = "lost", "expected", "intended"
NOT_NEEDED, ELSEWHERE = "not needed", "elsewhere"
KINDS = (LOST, ELSEWHERE, EXPECTED, INTENDED, NOT_NEEDED)


@dataclass(frozen=True)
class Loss:
    """Records of one source that one operation lost for one reason.

    Attributes:
        is_intended: no row of these records is expected.
        note: why no record of the source is expected to arrive; empty: each is expected.
        is_repeatable: the operation loses the same records each time it is computed.
        ids: the ids of the records.
        outputs: the outputs that the records did not reach.
        has_arrived: the records reached another output.
        at: the identity of the plan's node, and its child whose rows were lost.
        expected: the entry for it among the losses that the user expects.
        too_many: the records of all losses that the entry is for, if they are more than it allows.
    """

    source: AuditSource
    operation: str
    place: str
    reason: str
    is_intended: bool
    ids: Ids
    note: str = ""
    is_repeatable: bool = True
    outputs: tuple[str, ...] = ()
    has_arrived: bool = False
    at: tuple[int, int] = (0, 0)
    expected: ExpectedLoss | None = None
    too_many: int = 0

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.ids)

    @property
    def text(self) -> str:
        """The reason, whether it may be another one the next time, and what was expected."""
        text = self.reason if self.is_repeatable else f"{self.reason} ({NOT_REPEATABLE})"
        if self.expected is None or not self.too_many:
            return text
        return f"{text}: {self.too_many:,} lost, at most {self.expected.at_most:,} expected"

    @property
    def key(self) -> Key:
        """The parts that identify the same loss in several runs of a job. Lines are left out,
        because they move.
        """
        file = self.place.rpartition(":")[0] or self.place
        return file, self.source.name, self.operation, self.reason

    @property
    def identity(self) -> tuple[object, ...]:
        """The parts that are equal if losses of several outputs are one loss."""
        what = (self.source.number, self.operation, self.place, self.reason, self.note)
        return (*what, self.is_intended, self.is_repeatable, self.has_arrived)

    @property
    def kind(self) -> str:
        """One of ``KINDS``. A loss counts as expected if the user's entry allows that many
        records.
        """
        if self.note:
            return NOT_NEEDED
        if self.is_intended:
            return INTENDED
        if self.has_arrived:
            return ELSEWHERE
        return LOST if self.expected is None or self.too_many else EXPECTED


@dataclass(frozen=True)
class SourceResult:
    """The records of a source that are lost, whose loss the user expects, and those that were
    dropped on purpose. All others arrived.

    Attributes:
        unplaced: lost records of which no operation is known.
        note: why no record of the source is expected to arrive; empty: each is expected.
        unknown: why it is not known which records have arrived; empty: it is known.
    """

    source: AuditSource
    lost: Ids
    intended: Ids
    unplaced: Ids
    note: str = ""
    unknown: str = ""
    expected: Ids = field(default_factory=lambda: NO_IDS)

    @classmethod
    def of(
        cls,
        source: AuditSource,
        missing: Ids,
        losses: Iterable["Loss"],
        note: str,
        unknown: str = "",
    ) -> "SourceResult":
        """Sort the missing records of a source by the losses that name them."""
        if note:
            return cls(source, NO_IDS, missing, NO_IDS, note, unknown)
        own = [each for each in losses if each.source is source and not each.has_arrived]
        loud, expected, intended = (
            record_ids.union(loss.ids for loss in own if loss.kind in kinds)
            for kinds in ((LOST,), (EXPECTED,), (INTENDED, NOT_NEEDED))
        )
        unplaced = record_ids.difference(missing, record_ids.union([loud, expected, intended]))
        expected = record_ids.difference(expected, loud)
        intended = record_ids.difference(intended, record_ids.union([loud, expected]))
        lost = record_ids.union([loud, unplaced])
        return cls(source, lost, intended, unplaced, note, unknown, expected)

    @property
    def arrived(self) -> int:
        """The number of records that have a row in the output."""
        others = len(self.lost) + len(self.intended) + len(self.expected)
        return self.source.records - others

    def with_losses(self, losses: Iterable["Loss"]) -> "SourceResult":
        """Return the result with the same records, sorted by other losses."""
        missing = record_ids.union([self.lost, self.intended, self.expected])
        return self.of(self.source, missing, losses, self.note, self.unknown)


@dataclass(frozen=True)
class OutputResult:
    """An output of a job. ``why``: the reason why its rows are not followed; empty: they are.
    ``is_final``: no other output reads it.
    """

    name: str
    place: str
    why: str
    is_final: bool


def matched(
    losses: Sequence[Loss], entries: Sequence[ExpectedLoss]
) -> tuple[Callable[[Loss], Loss], list[ExpectedLoss]]:
    """Match losses with the losses that the user expects. Return a function that adds the matching
    entry to a loss, and the entries without a loss.

    The records of all losses that match an entry count together, because these losses differ only
    in their lines.
    """
    by_key = {entry.key: entry for entry in entries}
    totals = {
        key: len(record_ids.union(each.ids for each in own)) for key, own in by_keys(losses).items()
    }

    def noted(loss: Loss) -> Loss:
        if loss.kind not in (LOST, EXPECTED):
            return loss
        entry, total = by_key.get(loss.key), totals[loss.key]
        too_many = 0 if entry is None or total <= entry.at_most else total
        return replace(loss, expected=entry, too_many=too_many)

    return noted, [entry for entry in entries if entry.key not in totals]


def by_keys(losses: Iterable[Loss]) -> dict[Key, list[Loss]]:
    """Group lost and expected losses by ``Loss.key``. Intended drops are left out."""
    keys: dict[Key, list[Loss]] = {}
    for loss in losses:
        if loss.kind in (LOST, EXPECTED):
            keys.setdefault(loss.key, []).append(loss)
    return keys
