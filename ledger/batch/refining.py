"""Refine: before a settlement decides, read what the runs of a batch add to single roots, where the
ledger has that by span and a span is not even or one of its roots failed.

It happens outside of the settlement's transaction, where the storage is seen, part by part, into a
local temporary file. What comes of it is for the runs that were committed: with others the
settlement asks again.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np
from sqlalchemy import Connection

from ledger.core.states import BatchStatus
from ledger.core.text import quantity
from ledger.deltas.binary_copy import HEADER, TRAILER, encode
from ledger.deltas.kernel import Deltas
from ledger.deltas.refining import NOTHING, by_root, differences, is_in, judged, parts_of
from ledger.deltas.root_files import RootFile, read_listing, read_roots
from ledger.deltas.rows import Flags, Longs
from ledger.deltas.spans import RootRange, Spans
from ledger.errors import ConfigurationError, IntegrityError, LostFileError, UnavailableError
from ledger.storage.folders import LASTING, reachable
from ledger.store.connection import Database
from ledger.store.queries import batches
from ledger.store.queries import refining as queries
from ledger.store.queries import runs as run_queries
from ledger.store.queries.refining import SpannedRun

MOST_ROWS = 1 << 20  # of all runs that are looked at at once
LOST = "Run {step} again: batch {batch} is open, and what reads {step} runs again with it"


@dataclass(frozen=True)
class Unrefined:
    """What a settlement needs to know root by root: of these ``spans``, by their first roots, what
    each of these ``runs`` adds. ``ranges``: the roots of the batch.
    """

    batch_id: int
    runs: tuple[SpannedRun, ...]
    ranges: tuple[RootRange, ...]
    spans: Longs

    @property
    def run_ids(self) -> tuple[int, ...]:
        """The runs that are committed."""
        return tuple(run.step_run_id for run in self.runs)


class Refinement:
    """What these runs add to the roots of a batch that are not even, or failed, in a file."""

    def __init__(self, run_ids: Sequence[int]):
        self.run_ids = tuple(run_ids)
        self.rows = 0
        with _writing():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the refinement
            self._file.write(HEADER)

    def add(self, run_id: int, deltas: Deltas) -> None:
        """Add rows of a run."""
        if not len(deltas.root):
            return
        self.rows += len(deltas.root)
        columns = (
            run_id,
            deltas.root,
            deltas.delta,
            deltas.acked,
            deltas.emitted_edges,
            deltas.acked_edges,
        )
        rows = encode(dict(zip(queries.COLUMNS, columns, strict=True)))
        with _writing():
            self._file.write(rows)

    def end(self) -> None:
        """Nothing more is added."""
        with _writing():
            self._file.write(TRAILER)
            self._file.flush()

    @property
    def file(self) -> BinaryIO:
        """The rows as a COPY takes them."""
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


@contextmanager
def _writing() -> Iterator[None]:
    """Say what to do where the temporary file cannot be written in the block."""
    try:
        yield
    except OSError as exc:
        raise UnavailableError(
            f"the temporary file of a settlement could not be written to {tempfile.gettempdir()}:"
            f" {exc}. Free some space there, or set TMPDIR, then run this again"
        ) from exc


def unrefined(connection: Connection, batch_id: int) -> Unrefined | None:
    """What a settlement of a batch needs to know root by root; None: all its spans are even, and no
    root of one failed.
    """
    ranges = run_queries.root_ranges(connection, batch_id)
    if Spans(ranges).by_root:
        return None
    spans = queries.spans(connection, batch_id)
    if not spans:
        return None
    runs = queries.committed(connection, batch_id)
    return Unrefined(batch_id, tuple(runs), tuple(ranges), np.array(spans, np.int64))


def is_past(connection: Connection, asked: Unrefined) -> bool:
    """Whether the batch is decided by now, or other runs of it count."""
    batch = batches.get_batch(connection, asked.batch_id)
    runs = queries.committed(connection, asked.batch_id)
    return batch.status is not BatchStatus.OPEN or tuple(runs) != asked.runs


def refine(database: Database, asked: Unrefined) -> Refinement:
    """Read what is asked from the files of the runs.

    Raises ConfigurationError where this process does not see them, LostFileError if one is gone,
    UnavailableError if their storage does not answer, and IntegrityError if they are not what the
    ledger has by span.
    """
    files = {run.step_run_id: _files(asked, run) for run in asked.runs}
    refinement = Refinement(asked.run_ids)
    try:
        most = max(1, MOST_ROWS // len(asked.runs))
        for part in parts_of(asked.spans, asked.ranges, most):
            for run_id, deltas in _part(database, asked, part, files):
                refinement.add(run_id, deltas)
        refinement.end()
    except BaseException:
        refinement.file.close()
        raise
    return refinement


def _files(asked: Unrefined, run: SpannedRun) -> list[RootFile]:
    """The files of what a run adds to each root; none of one that noted no folder, for the ledger
    has all of its rows.
    """
    if run.root_files is None:
        return []
    if not reachable(run.root_files):
        raise ConfigurationError(
            f"{run.root_files}: expected the files of run {run.step_run_id} of {run.step}, which"
            " this machine does not see"
        )
    advice = _advice(asked, run)
    with _reading(run.root_files, advice):
        return read_listing(run.root_files, advice)


def _advice(asked: Unrefined, run: SpannedRun) -> str:
    return LOST.format(step=run.step, batch=asked.batch_id)


@contextmanager
def _reading(folder: str, advice: str) -> Iterator[None]:
    """Say of what a storage raises in the block what it means for the files in a folder."""
    try:
        yield
    except (ImportError, PermissionError) as exc:
        raise ConfigurationError(f"files in {folder} could not be read: {exc}") from exc
    except LASTING as exc:
        raise LostFileError(f"files in {folder} are gone: {exc}. {advice}") from exc
    except OSError as exc:
        raise UnavailableError(
            f"files in {folder} could not be read: {exc}. Check the storage, then run this again"
        ) from exc
    except (LookupError, TypeError, ValueError) as exc:
        raise LostFileError(
            f"files in {folder} were changed since they were written: {exc}. {advice}"
        ) from exc


def _part(
    database: Database, asked: Unrefined, part: Longs, files: Mapping[int, Sequence[RootFile]]
) -> Iterator[tuple[int, Deltas]]:
    """What each run adds to those roots of some spans that are not even, or failed."""
    spans = Spans(asked.ranges)
    first, last = int(part[0]), int(part[-1]) + max(some.span for some in asked.ranges) - 1

    def is_asked(root: Longs) -> Flags:
        return is_in(spans.of(root), part)

    posted = database.transact(lambda c: queries.posted(c, asked.batch_id, part.tolist()))
    rows = []
    for run in asked.runs:
        advice, of_run = _advice(asked, run), posted.get(run.step_run_id, NOTHING)
        if run.root_files is None and len(of_run.root):
            raise LostFileError(
                f"run {run.step_run_id} of {run.step} in batch {asked.batch_id} has posted spans,"
                f" and noted no folder of what it adds to each record. {advice}"
            )
        with _reading(run.root_files or "", advice):
            parts = read_roots(files[run.step_run_id], first, last, is_asked, advice)
            rows.append(by_root(list(parts)))
        _check(asked, run, of_run, rows[-1], spans)
    failed = database.transact(lambda c: queries.failed_roots(c, asked.batch_id, first, last))
    failed = failed[is_asked(failed)]
    yield from zip(asked.run_ids, judged(rows, failed), strict=True)


def _check(asked: Unrefined, run: SpannedRun, posted: Deltas, rows: Deltas, spans: Spans) -> None:
    """Raise IntegrityError unless the rows of a run add up, span by span, to what it has posted."""
    wrong = differences(posted, rows, spans)
    if len(wrong.root):
        difference = (
            int(wrong.delta[0]),
            int(wrong.acked[0]),
            int(wrong.emitted_edges[0]),
            int(wrong.acked_edges[0]),
        )
        raise IntegrityError(
            f"batch {asked.batch_id}: run {run.step_run_id} of {run.step} posted for the span from"
            f" {int(wrong.root[0])} on what its files in {run.root_files} do not add up"
            f" to: they differ by (XOR, acked XOR, emitted, acked) = {difference}, and in"
            f" {quantity(len(wrong.root), 'span')} of those read: run {run.step} again"
        )
