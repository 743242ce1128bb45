"""Compares what the ledger says of a file's records with what a right loader reads of the file."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

Row = tuple[str, ...]
_NOTHING = "missing"
_OF_WINDOWS = {code: bytes([code]).decode("cp1252", "replace") for code in range(0x80, 0xA0)}


@dataclass(frozen=True)
class Failed:
    """A record that the ledger lists, with its reason."""

    reason: str


@dataclass
class Verdict:
    """How the records of a file compare with the ``rows`` of its clean one.

    ``exact``: acked with the very content. ``failed``: listed by name. ``wrong``: acked with
    another content. ``lost``: neither acked nor failed. ``rewritten``: acked with the content that
    the file has, where the clean file has another one by a rule of its own. ``beyond``: records
    that the clean file leaves out. ``refused``: why the whole file was, if it was; its rows count
    nowhere else then. ``reasons``: of the records that are listed. ``shown``: of each row that is
    wrong or lost what is known.
    """

    rows: int
    exact: int = 0
    failed: int = 0
    wrong: int = 0
    lost: int = 0
    rewritten: int = 0
    beyond: int = 0
    refused: str | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)


def compare(
    records: Sequence[Row | Failed | None],
    rows: Sequence[Row],
    contents: Counter[Row],
    mistaken: Collection[Row] = (),
) -> Verdict:
    """The verdict on a file whose ``records`` stand in its order; None is one of no outcome.

    ``contents``: what the file has by another reader. A record that the clean file leaves out may
    be acked with that alone, and no more often. ``mistaken``: rows that the clean file has wrong.
    """
    verdict = Verdict(len(rows))
    left = contents.copy()
    for record, row in _pairs(records, rows):
        if isinstance(record, tuple):
            left[record] -= 1
        if record is None:
            verdict.lost += 1
            verdict.shown.append(f"neither acked nor failed: {row}")
        elif isinstance(record, Failed):
            verdict.failed += row is not None
            verdict.beyond += row is None
            verdict.reasons[record.reason] += 1
        elif record == row:
            verdict.exact += 1
        elif row is None and left[record] >= 0:
            verdict.beyond += 1
        elif row is not None and left[record] >= 0 and _is_cleaned(record, row, mistaken):
            verdict.rewritten += 1
        else:
            verdict.wrong += 1
            verdict.shown.append(f"acked: {record}; expected: {row}")
    return verdict


def _is_cleaned(record: Row, row: Row, mistaken: Collection[Row]) -> bool:
    return row in mistaken or _cleaned(record) == _cleaned(row)


def _cleaned(row: Row) -> Row:
    """A row as the benchmark's authors cleaned some: without blanks around values, with characters
    for the bytes of Windows that had become control characters, and without the word for nothing.
    """
    values = (value.translate(_OF_WINDOWS).strip() for value in row)
    return tuple("" if value == _NOTHING else value for value in values)


def _pairs(
    records: Sequence[Row | Failed | None], rows: Sequence[Row]
) -> list[tuple[Row | Failed | None, Row | None]]:
    """Each record with its row. Where there are not as many of both, those of equal content are
    paired first, and what stands between them in order.
    """
    if len(records) == len(rows):
        return list(zip(records, rows, strict=True))
    pairs: list[tuple[Row | Failed | None, Row | None]] = []
    for _, start, end, first, last in SequenceMatcher(
        None, records, rows, autojunk=False
    ).get_opcodes():
        own, due = list(records[start:end]), list(rows[first:last])
        most = max(len(own), len(due))
        missing: list[None] = [None] * most
        pairs += zip([*own, *missing][:most], [*due, *missing][:most], strict=True)
    return pairs
