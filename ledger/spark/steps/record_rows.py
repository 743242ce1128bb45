"""The output of a record stage for a batch of records: rows, drops and failures, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ledger.core.text import as_reason
from ledger.deltas.rows import Longs

_NO_ROW = -1


class RowMark(NamedTuple):
    """Stands where a record has no row: for one that it dropped, or for all if it failed.

    ``record``: its number in the batch; ``before``: how many rows of the batch precede the mark.
    """

    record: int
    before: int
    reason: str
    failed: bool


@dataclass(frozen=True)
class RowLayout:
    """The order of rows and marks in an output of ``length``.

    ``records``: for each place in the output the number of its record; None if each record has one
    row and no more.
    ``rows``: for each place the number of its row, negative for the next of ``marks``; None without
    marks.
    """

    length: int
    records: Longs | None = None
    rows: Longs | None = None
    marks: Sequence[RowMark] = ()

    def of_records(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns with a value for each record, repeated for each of its rows and marks."""
        if self.records is None:
            return list(columns)
        numbers = pa.array(self.records)
        return [column.take(numbers) for column in columns]

    def of_rows(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns with a value for each row; null where there is a mark."""
        if self.rows is None:
            return list(columns)
        numbers = pa.array(self.rows, mask=self.rows == _NO_ROW)
        return [column.take(numbers) for column in columns]

    def reasons(self, failed: bool) -> pa.Array:
        """Return the reasons of the records that failed, or else of the drops; null elsewhere."""
        if self.rows is None or all(mark.failed is not failed for mark in self.marks):
            return pa.nulls(self.length, pa.string())
        texts = {reason: as_reason(reason) for reason in {mark.reason for mark in self.marks}}
        reasons: list[str | None] = [None] * self.length
        places = np.flatnonzero(self.rows == _NO_ROW).tolist()
        for place, mark in zip(places, self.marks, strict=True):
            if mark.failed is failed:
                reasons[place] = texts[mark.reason]
        return pa.array(reasons, pa.string())


class RecordOutput:
    """The rows and marks of a batch's records, which end one after the other.

    ``values``: of all rows in one list, ``width`` values a row; ``ends``: its length at the end of
    each record. A flat list costs less than a tuple a row, and a slice of it is a column.
    ``one_each``: whether each record so far has one row.
    """

    def __init__(self, width: int):
        self.values: list[Any] = []
        self.ends: list[int] = []
        self.marks: list[RowMark] = []
        self.one_each = True
        self._width = width

    def columns(self, count: int) -> list[list[Any]]:
        """Return the values of each of the first ``count`` columns."""
        return [self.values[place :: self._width] for place in range(count)]

    def drop(self, reason: str) -> None:
        """Note a drop of the record that has not ended."""
        self._mark(reason, failed=False)

    def fail(self, reason: str) -> None:
        """Discard the rows and drops of the record that has not ended: it failed."""
        del self.values[self.ends[-1] if self.ends else 0 :]
        while self.has_drop():
            self.marks.pop()
        self._mark(reason, failed=True)

    def has_drop(self) -> bool:
        """Whether the record that has not ended has a drop."""
        return bool(self.marks) and self.marks[-1].record == len(self.ends)

    def layout(self, misfits: Mapping[int, str]) -> RowLayout:
        """Return the order of rows and marks in the output.

        ``misfits``: reasons by the number of the row; a record fails with the first of its rows'
        reasons.
        """
        whole = not self.marks and not misfits
        if whole and self.one_each:
            return RowLayout(len(self.ends))
        ends = np.array(self.ends, np.int64) // self._width
        records = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))  # of each row
        if whole:
            return RowLayout(len(records), records)
        failures = dict[int, RowMark]()
        for row in sorted(misfits):
            record = int(records[row])
            failures.setdefault(record, RowMark(record, row, misfits[row], failed=True))
        others = [mark for mark in self.marks if mark.record not in failures]
        marks = sorted([*others, *failures.values()], key=attrgetter("record"))
        rows = np.flatnonzero(~np.isin(records, list(failures)))
        places = np.searchsorted(rows, [mark.before for mark in marks])
        return RowLayout(
            len(rows) + len(marks),
            np.insert(records[rows], places, [mark.record for mark in marks]),
            np.insert(rows, places, _NO_ROW),
            marks,
        )

    def _mark(self, reason: str, failed: bool) -> None:
        before = len(self.values) // self._width
        self.marks.append(RowMark(len(self.ends), before, reason, failed))
