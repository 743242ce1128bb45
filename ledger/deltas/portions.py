"""Portions of a run to fold, file by file: the rows that it wrote, the rows that it read, or the
records that it emitted.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.core.column_names import (
    ANCHORS,
    DROPPED,
    ERROR,
    FAILED,
    MESSAGE,
    PARENT,
    POSITION,
    RAW,
    ROOT,
)
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import (
    Deltas,
    Fails,
    Messages,
    fold_output,
    fold_read,
    fold_source,
)
from ledger.deltas.rows import NONE, Flags, Longs, Rows
from ledger.deltas.stored import (
    Checksum,
    Part,
    anchored_rows,
    parts_of,
    read_windows,
    texts_of,
)
from ledger.deltas.windows import Apply, Windowed
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import read_row_group, stored_file

MOST_DETAIL = 10_000  # characters of raw text kept in the ledger; the snapshot has all of it
ANCHORED = (ROOT, ANCHORS, FAILED, DROPPED)  # columns for a row's owner, and whether it goes on
FEW = 1_000  # records whose text is cut at a time
_NOTHING = Checksum()


@dataclass(frozen=True)
class Folded:
    """Deltas of some rows. ``wrote``: checksum of the rows that the run itself wrote."""

    deltas: Deltas
    wrote: Checksum = _NOTHING


class Portion(Protocol):
    """Files of one run, and what is to be folded of them."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All of them."""

    @property
    def size(self) -> int:
        """Number of rows to fold."""

    @property
    def by_input(self) -> bool:
        """Whether rows of one input have to be folded together, in whatever file they lie."""

    def by_window(self, file: DataFile) -> Iterator[Folded]:
        """Fold a file by itself, window by window. If ``by_input``, its stretches are ``in_order``,
        so that the rows of each input come together.
        """

    def gathered(self, files: Sequence[DataFile], each: Apply = map) -> Iterator[Folded]:
        """Fold files together, in whatever order their rows are."""


@dataclass(frozen=True)
class Output(Windowed):
    """Rows that a run wrote. ``own``: folds them into deltas, and acks what the stage does not ack
    by reading. ``size``: number of rows, or of anchors where a row may have several.
    """

    files: Sequence[DataFile]
    own: Callable[[Rows, Edges], Deltas]
    edges: Edges
    size: int
    by_input = True

    def parts(self, file: DataFile) -> Iterator[Part]:
        """The rows of a file as they lie, window by window."""
        return parts_of(file, self.edges.inputs)

    def fold_table(self, table: pa.Table) -> Folded:
        """Fold rows on their way from their files, one for each anchor, with ``POSITION``."""
        rows, _ = anchored_rows(table, table[POSITION].to_numpy(), self.edges.inputs)
        return self.fold(Part(rows, _NOTHING))

    def fold(self, part: Part) -> Folded:
        """Fold the rows by the stage's way of acking."""
        return Folded(self.own(part.rows, self.edges), part.seen)


@dataclass(frozen=True)
class Reading(Windowed):
    """Rows of a run's input, each of which it acks because it was read. ``number``: of several
    inputs which one it is. ``roots``: of a source's snapshot, those of its first records.
    """

    files: Sequence[DataFile]
    edges: Edges
    size: int
    number: int | None = None
    roots: range | None = None
    by_input = False

    def parts(self, file: DataFile) -> Iterator[Part]:
        """The rows of a file that go on to the run's step, window by window."""
        for table, position in read_windows(file, ANCHORED if self.roots is None else (ERROR,)):
            yield self._part(table, position)

    def fold(self, part: Part) -> Folded:
        """Each row is acked."""
        return Folded(fold_read(part.rows, self.edges))

    def _part(self, table: pa.Table, position: Longs) -> Part:
        if self.roots is None:
            rows, _ = anchored_rows(table, position)
        else:
            position = position[position < len(self.roots)]
            errors = table[ERROR].slice(0, len(position))
            failed = None if errors.null_count == len(errors) else texts_of(errors)
            rows = Rows(position + self.roots.start, position, position, failed=failed)
        if rows.goes_on is not None:
            rows = rows.take(rows.goes_on)
        number = None
        if self.number is not None:
            number = np.full(len(rows), self.number, np.int32)
        # An input row's position is what its reader has as parent.
        return Part(Rows(rows.root, rows.position, rows.position, number), _NOTHING)


def fold_rows_read(table: pa.Table, edges: Edges) -> Folded:
    """Rows as a run of one input has read them, each of which it acks: ``ROOT``, ``PARENT``."""
    root, parent = table[ROOT].to_numpy(), table[PARENT].to_numpy()
    return Folded(fold_read(Rows(root, parent, parent), edges))


@dataclass(frozen=True)
class Records:
    """Records that a source emitted: the first ``roots`` records of its files, whose roots begin at
    ``first_root``. All records in the files count as written. ``keeps_text``: whether the raw text
    of records that did not parse is kept.
    """

    files: Sequence[DataFile]
    first_root: int
    roots: int
    edges: Edges
    keeps_text: bool = True

    by_input = False

    @property
    def size(self) -> int:
        """Records."""
        return self.roots

    def by_window(self, file: DataFile) -> Iterator[Folded]:
        """One delta a record; one that did not parse fails, with its raw text. A window of the
        ledger's columns is in memory, and of raw text a row group.
        """
        for table, position in read_windows(file, (ERROR, MESSAGE)):
            yield self._fold(file, table, position)

    def gathered(self, files: Sequence[DataFile], each: Apply = map) -> Iterator[Folded]:
        """Fold several files, which have no record in common: one window at a time, without the
        threads of ``each``.
        """
        return chain.from_iterable(map(self.by_window, files))

    def _fold(self, file: DataFile, table: pa.Table, position: Longs) -> Folded:
        seen = Checksum(len(table))
        position = position[position < self.roots]
        root = position + self.first_root
        table = table.slice(0, len(position))
        errors = None
        if ERROR in table.column_names and table[ERROR].null_count < len(table):
            errors = texts_of(table[ERROR])
        deltas = fold_source(root, position, self.edges, errors)
        if errors is not None and self.keeps_text:
            row = int(position[0]) - file.first_position
            details = _details(file, row, errors.codes != NONE)
            deltas = replace(
                deltas, fails=[replace(fails, details=details) for fails in deltas.fails]
            )
        if MESSAGE in table.column_names:
            deltas = replace(deltas, messages=[Messages(root, table[MESSAGE].to_numpy())])
        return Folded(deltas, seen)


def _details(file: DataFile, first: int, failing: Flags) -> list[str | None]:
    """The raw text of the failing ones among records of a file, from its row ``first`` on."""
    details: list[str | None] = []
    with stored_file(file.path) as stored:
        begin = -first  # of a row group, counted from the first of the records
        for group in range(stored.metadata.num_row_groups):
            end = begin + stored.metadata.row_group(group).num_rows
            of_group = failing[max(begin, 0) : max(end, 0)]
            if of_group.any():
                details += _texts(stored, group, max(-begin, 0), of_group)
            begin = end
    return details


def _texts(stored: pq.ParquetFile, group: int, first: int, failing: Flags) -> Iterator[str | None]:
    """Return the raw texts of the failing ones among records of a row group, from its row ``first``
    on; only one group is in memory, and a few texts at a time are objects of Python.
    """
    table = read_row_group(stored, group, [RAW]).slice(first, len(failing))
    for batch in table.filter(pa.array(failing)).to_batches(FEW):
        yield from map(_text, batch.column(0).to_pylist())


def _text(raw: bytes | str | None) -> str | None:
    """The beginning of raw text as it can be shown; base64 if it is not UTF-8."""
    if raw is None or isinstance(raw, str):
        return raw and raw[:MOST_DETAIL]
    try:
        return raw.decode()[:MOST_DETAIL]
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(raw).decode()}"[:MOST_DETAIL]


def refused(root: Longs, reasons: pa.Array, shared: pa.Array | None) -> Fails:
    """Records that fail at a sink, one row for each that it refuses: of several reasons the
    first by name, one of its own before a shared one.
    """
    texts = texts_of(reasons)
    flags = None if shared is None else shared.to_numpy(zero_copy_only=False)
    rows = Rows(root, root, root, shared=flags, failed=texts)
    (fails,) = fold_output(rows, Edges(0, "", (), {})).fails
    return fails
