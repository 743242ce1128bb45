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
    """Mark in place of a row: a drop of a record, or the failure of a record.

    ``record``: the record's number in the batch.
    ``before``: the number of the batch's rows before the mark.
    """

    record: int
    before: int
    reason: str
    failed: bool


@dataclass(frozen=True)
class RowLayout:
    """The order of rows and marks in an output of ``length``.

    ``records``: for each place in the output, the number of its record. None: each record has
    exactly one row.
    ``rows``: for each place, the number of its row, or a negative number for the next mark. None:
    there are no marks.
    """

    length: int
    records: Longs | None = None
    rows: Longs | None = None
    marks: Sequence[RowMark] = ()

    def of_records(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Spread columns with a value per record over the output: each value is repeated for the
        record's rows and marks.
        """
        if self.records is None:
            return list(columns)
        numbers = pa.array(self.records)
        return [column.take(numbers) for column in columns]

    def of_rows(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Spread columns with a value per row over the output. Marks get null."""
        if self.rows is None:
            return list(columns)
        numbers = pa.array(self.rows, mask=self.rows == _NO_ROW)
        return [column.take(numbers) for column in columns]

    def reasons(self, failed: bool) -> pa.Array:
        """Return the reasons in a column of the output: of failures if ``failed``, else of drops;
        null elsewhere.
        """
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
    """The rows and marks of a batch of records, added record by record.

    ``values``: the values of all rows in one list, ``width`` values per row. That costs less than a
    tuple per row, and a slice of it is a column.
    ``ends``: the length of ``values`` at the end of each record.
    ``one_each``: whether each record so far has exactly one row.
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
        """Add a drop of the current record."""
        self._mark(reason, failed=False)

    def fail(self, reason: str) -> None:
        """Mark the current record as failed, and discard its rows and drops."""
        del self.values[self.ends[-1] if self.ends else 0 :]
        while self.has_drop():
            self.marks.pop()
        self._mark(reason, failed=True)

    def has_drop(self) -> bool:
        """Return whether the current record has a drop."""
        return bool(self.marks) and self.marks[-1].record == len(self.ends)

    def layout(self, misfits: Mapping[int, str]) -> RowLayout:
        """Return the order of rows and marks in the output.

        ``misfits``: reasons by the number of the row. A record with such rows fails with the first
        reason.
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
