"""What of a run is folded, file by file: what it wrote, what it read, or the records that it
emitted.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from ledger.core.column_names import CARRIED, ERROR, MESSAGE, NAMES, PARENT, POSITION, RAW
from ledger.core.redaction import NOTHING, Redaction
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import (
    Deltas,
    Fails,
    fold_emitted,
    fold_output,
    fold_read,
    fold_source,
    united,
)
from ledger.deltas.rows import NONE, Flags, Longs, Rows
from ledger.deltas.stored import Part, Seen, Written, joined, read_columns, texts_of
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import read, stored_file

MOST_DETAIL = 10_000  # characters of raw text kept in the ledger; the snapshot has all of it
_NOTHING = Seen()


@dataclass(frozen=True)
class Folded:
    """Deltas of some rows. ``wrote``: rows of the run itself. ``read_carried``: of the rows that
    it acks because it read them those that it did not run for.
    """

    deltas: Deltas
    wrote: Seen = _NOTHING
    read_carried: int = 0

    def __add__(self, other: "Folded") -> "Folded":
        return Folded(
            united([self.deltas, other.deltas]),
            self.wrote + other.wrote,
            self.read_carried + other.read_carried,
        )


class Acks(Protocol):
    """What of its input a stage acks."""

    @property
    def by_reading(self) -> bool:
        """Whether an input is acked because it was read, whatever became of it."""

    def fold(self, rows: Rows, edges: Edges) -> Deltas:
        """Deltas of rows that the stage wrote."""


@dataclass(frozen=True)
class OnEmit:
    """An input is acked if some row comes from it, an output or a mark. ``one``: a root fails if
    more than one row goes on of one of its inputs.
    """

    one: bool = False
    by_reading = False

    def fold(self, rows: Rows, edges: Edges) -> Deltas:
        """Deltas of rows that the stage wrote."""
        return fold_emitted(rows, edges, emits_one=self.one)


@dataclass(frozen=True)
class OnRead:
    """An input is acked because it was read."""

    by_reading = True

    def fold(self, rows: Rows, edges: Edges) -> Deltas:
        """Deltas of rows that the stage wrote."""
        return fold_output(rows, edges)


class Portion(Protocol):
    """Files of one run, and what is to be folded of them."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All of them."""

    @property
    def size(self) -> int:
        """How many rows there are to fold."""

    def fold(self, files: Sequence[DataFile]) -> Folded:
        """What some of the files add."""


@dataclass(frozen=True)
class Output:
    """What a run wrote. ``size``: rows, and anchors where a row may have several."""

    files: Sequence[DataFile]
    written: Written
    acks: Acks
    edges: Edges
    size: int

    def fold(self, files: Sequence[DataFile]) -> Folded:
        """The rows that are the run's own by its way of acking; those that it took over are
        emitted.
        """
        return self._fold(joined([self.written.read(file) for file in files]))

    def fold_table(self, table: pa.Table) -> Folded:
        """The same of rows on their way from their files, one for each anchor, with
        ``POSITION``.
        """
        rows, _ = self.written.rows(table, table[POSITION].to_numpy())
        carried = None
        if CARRIED in table.column_names:
            carried = table[CARRIED].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
        return self._fold(Part(rows, _NOTHING, carried))

    def _fold(self, part: Part) -> Folded:
        own = self.acks.fold(part.fresh(), self.edges)
        if part.carried is None:
            return Folded(own, part.seen)
        taken_over = replace(fold_output(part.taken_over(), self.edges), drops={}, with_rows=0)
        return Folded(united([own, taken_over]), part.seen)


@dataclass(frozen=True)
class Reading:
    """Rows that a run acks because it read them. ``inputs``: the steps that it read."""

    inputs: tuple[str, ...]
    edges: Edges

    def fold_table(self, table: pa.Table) -> Folded:
        """Each row is acked: ``ROOT``, ``PARENT`` and, of several inputs, ``INPUT``;
        ``CARRIED`` where some may be of records that the run did not run for.
        """
        parent = table[PARENT].to_numpy()
        rows, _ = Written(self.inputs).rows(table, parent)
        carried = 0
        if CARRIED in table.column_names:
            carried = len(table) - table[CARRIED].null_count
        return Folded(fold_read(rows, self.edges), read_carried=carried)


@dataclass(frozen=True)
class Records:
    """What a source emitted: ``roots`` records from the first one on, whose roots begin at
    ``first_root``. As written count all that are in the files. The text of one that did not parse
    is kept unless it may have a column of ``redact``.
    """

    files: Sequence[DataFile]
    first_root: int
    roots: int
    edges: Edges
    redact: Redaction = NOTHING

    @property
    def size(self) -> int:
        """Records."""
        return self.roots

    def fold(self, files: Sequence[DataFile]) -> Folded:
        """One delta a record; one that did not parse fails, with its raw text."""
        parts = [self._fold(file) for file in files]
        return Folded(
            united([deltas for deltas, _ in parts]), sum((seen for _, seen in parts), _NOTHING)
        )

    def _fold(self, file: DataFile) -> tuple[Deltas, Seen]:
        table = read_columns(file, (ERROR, MESSAGE))
        seen = Seen(len(table))
        last = min(file.first_position + len(table), self.roots)
        position = np.arange(file.first_position, max(last, file.first_position))
        root = position + self.first_root
        table = table.slice(0, len(position))
        errors = None
        if ERROR in table.column_names and table[ERROR].null_count < len(table):
            errors = texts_of(table[ERROR])
        deltas = fold_source(root, position, self.edges, errors)
        if errors is not None:
            details = self._details(file, errors.codes != NONE)
            deltas = replace(deltas, fails=[replace(one, details=details) for one in deltas.fails])
        if MESSAGE in table.column_names:
            deltas = replace(deltas, message=table[MESSAGE].to_numpy())
        return deltas, seen

    def _details(self, file: DataFile, failing: Flags) -> list[str | None]:
        """The raw text of the failing records among the first of a file; None: not to be kept."""
        with stored_file(file.path) as stored:
            columns = stored.schema_arrow.names
            if self.redact.among(columns):
                return [None] * int(failing.sum())
            table = read(stored, [name for name in (RAW, NAMES) if name in columns])
        rows = table.slice(0, len(failing)).filter(pa.array(failing)).to_pylist()
        return [
            None if self.redact.may_be_in(row.get(NAMES), row[RAW]) else _text(row[RAW])
            for row in rows
        ]


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
