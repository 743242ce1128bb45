"""Portions of a run to fold, file by file: the rows that it wrote, the rows that it read, or the
records that it emitted.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from ledger.deltas.hashing import SEED, hash_longs
from ledger.deltas.kernel import (
    Deltas,
    Fails,
    Messages,
    fold_emitted,
    fold_output,
    fold_read,
    fold_source,
)
from ledger.deltas.rows import NONE, Flags, Longs, Rows
from ledger.deltas.stored import (
    Checksum,
    Part,
    anchored_rows,
    borders,
    joined,
    parts_of,
    read_windows,
    texts_of,
)
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import read_row_group, stored_file

MOST_DETAIL = 10_000  # characters of raw text kept in the ledger; the snapshot has all of it
ANCHORED = (ROOT, ANCHORS, FAILED, DROPPED)  # columns for a row's owner, and whether it goes on
FEW = 1_000  # records whose text is cut at a time
Apply = Callable[..., Iterable[Any]]  # a function to each of several values: map, or a pool's
_NOTHING = Checksum()


@dataclass(frozen=True)
class Folded:
    """Deltas of some rows. ``wrote``: the checksum of these rows if the run itself wrote them, else
    empty.
    """

    deltas: Deltas
    wrote: Checksum = _NOTHING


@dataclass(frozen=True)
class Output:
    """Rows that a run wrote. Rows that come from one input have to be folded together, even if they
    are in different files.

    ``own``: the function that folds rows into deltas. It acks their inputs unless the stage acks on
    read.
    ``size``: the number of rows, or of anchors where a row may have several.
    """

    files: Sequence[DataFile]
    own: Callable[[Rows, Edges], Deltas]
    edges: Edges
    size: int

    def parts(self, file: DataFile) -> Iterator[Part]:
        """Yield the rows of a file in stored order, window by window."""
        return parts_of(file, self.edges.inputs)

    def fold_file(self, file: DataFile) -> Iterator[Folded]:
        """Fold one file in memory. No other file may have rows that come from its inputs."""
        return self.fold_together([file])

    def fold_together(self, files: Sequence[DataFile], each: Apply = map) -> Iterator[Folded]:
        """Fold several files as one, in memory: read all rows in any order, split them by root into
        parts of about a window, and fold each part.

        ``each``: maps a function over the files, then over the parts.
        """

        def ordered(file: DataFile) -> list[Part]:
            return [part.ordered() for part in self.parts(file)]

        pieces = [piece for of_file in each(ordered, files) for piece in of_file]
        if pieces:
            places = borders(pieces)
            parts = zip(*(piece.split(places) for piece in pieces), strict=True)
            yield from each(lambda part: self.fold(joined(part)), parts)

    def fold_table(self, table: pa.Table) -> Folded:
        """Fold rows that another task has read from files: a row per anchor, with ``POSITION``."""
        rows, _ = anchored_rows(table, table[POSITION].to_numpy(), self.edges.inputs)
        return self.fold(Part(rows, _NOTHING))

    def fold(self, part: Part) -> Folded:
        """Fold rows with the function ``own``, which acks as the stage's ``acks`` says."""
        return Folded(self.own(part.rows, self.edges), part.checksum)


@dataclass(frozen=True)
class Reading:
    """Rows that a run read from one input, and acks because it read them.

    ``number``: the input's number, if the run has several inputs.
    ``roots``: the roots of a source snapshot's tracked records, which come first in its files.
    """

    files: Sequence[DataFile]
    edges: Edges
    size: int
    number: int | None = None
    roots: range | None = None

    def fold_file(self, file: DataFile) -> Iterator[Folded]:
        """Fold one file window by window, with its rows in any order. A root whose rows are in
        several windows has a delta in each.
        """
        return map(self.fold, self.parts(file))

    def parts(self, file: DataFile) -> Iterator[Part]:
        """Yield the rows of a file that go on to the run's step, window by window."""
        for table, position in read_windows(file, ANCHORED if self.roots is None else (ERROR,)):
            yield self._part(table, position)

    def fold(self, part: Part) -> Folded:
        """Fold rows that are all acked."""
        return Folded(fold_read(part.rows, self.edges))

    def _part(self, table: pa.Table, position: Longs) -> Part:
        if self.roots is None:
            rows, _ = anchored_rows(table, position)
        else:
            position = position[position < len(self.roots)]
            failed = None
            if ERROR in table.column_names:  # none in the files of a version
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


@dataclass(frozen=True)
class PassedOn(Reading):
    """Rows of a plan's input that arrived at its end. A stage within the plan acks each and emits
    it, at the position that the row has in that input. A sink at its end acks each.

    ``absent``: positions of the rows that did not arrive, ascending.
    """

    absent: Longs = field(default_factory=lambda: np.empty(0, np.int64))

    def fold(self, part: Part) -> Folded:
        """Ack and emit each row that arrived. The checksum of these rows counts as written by the
        run.
        """
        rows = part.rows
        if len(self.absent):
            rows = rows.take(~np.isin(rows.position, self.absent, kind="sort"))
        hashes = hash_longs(rows.parent, hash_longs(rows.root, SEED))
        return Folded(fold_emitted(rows, self.edges), Checksum.of(hashes))


def fold_in_plan(output: Rows, edges: Edges, *, emits_one: bool = False) -> Deltas:
    """Fold rows that a stage within a plan wrote, with ``fold_emitted``. The rows emit their edges
    at the positions of the plan's input.
    """
    return fold_emitted(replace(output, position=output.parent), edges, emits_one=emits_one)


def fold_rows_read(table: pa.Table, edges: Edges) -> Folded:
    """Fold rows that a run has read from its only input, and acks. ``table``: columns ``ROOT`` and
    ``PARENT``.
    """
    root, parent = table[ROOT].to_numpy(), table[PARENT].to_numpy()
    return Folded(fold_read(Rows(root, parent, parent), edges))


@dataclass(frozen=True)
class Records:
    """Records that a source emitted: the first ``roots`` records of its files. Their roots are
    numbered from ``first_root``. All records in the files count as written.

    ``keeps_text``: keep the raw text of records that did not parse.
    """

    files: Sequence[DataFile]
    first_root: int
    roots: int
    edges: Edges
    keeps_text: bool = True

    @property
    def size(self) -> int:
        """Number of records to fold."""
        return self.roots

    def fold_file(self, file: DataFile) -> Iterator[Folded]:
        """Fold one delta per record. A record that did not parse fails, with its raw text. Memory
        holds one window of the ledger's columns, and the raw text of one row group.
        """
        for table, position in read_windows(file, (ERROR, MESSAGE)):
            yield self._fold(file, table, position)

    def _fold(self, file: DataFile, table: pa.Table, position: Longs) -> Folded:
        wrote = Checksum(len(table))
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
        return Folded(deltas, wrote)


# A portion of a run's files. All rows of a portion are folded in the same way.
Portion = Output | Reading | Records


def _details(file: DataFile, first: int, failing: Flags) -> list[str | None]:
    """Return the raw texts of the ``failing`` records of a file, counted from row ``first``."""
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
    """Yield the raw texts of the ``failing`` records of a row group, counted from row ``first``.
    Only a few texts at a time are Python objects.
    """
    table = read_row_group(stored, group, [RAW]).slice(first, len(failing))
    for batch in table.filter(pa.array(failing)).to_batches(FEW):
        yield from map(_text, batch.column(0).to_pylist())


def _text(raw: bytes | str | None) -> str | None:
    """Return the beginning of a raw text as it can be shown; base64 if it is not UTF-8."""
    if raw is None or isinstance(raw, str):
        return raw and raw[:MOST_DETAIL]
    try:
        return raw.decode()[:MOST_DETAIL]
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(raw).decode()}"[:MOST_DETAIL]


def refused(root: Longs, reasons: pa.Array, shared: pa.Array | None) -> Fails:
    """Return the records that fail because a sink refuses their rows. Of several reasons for a
    record, its own come before shared ones; then the first in alphabetical order counts.
    """
    texts = texts_of(reasons)
    flags = None if shared is None else shared.to_numpy(zero_copy_only=False)
    rows = Rows(root, root, root, shared=flags, failed=texts)
    (fails,) = fold_output(rows, Edges(0, "", (), {})).fails
    return fails
