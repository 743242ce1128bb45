"""Refine: before a settlement decides, read what the runs of a batch add to single roots, where the
ledger has that by span and a span is not even or one of its roots failed.

It happens outside of the settlement's transaction, where the storage is seen, part by part, into a
local temporary file. What comes of it is for the runs that were committed: with others the
settlement asks again.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np
from sqlalchemy import Connection

from ledger.core.states import BatchStatus
from ledger.core.text import quantity
from ledger.deltas.binary_copy import HEADER, TRAILER, encode
from ledger.deltas.kernel import Deltas, united
from ledger.deltas.root_files import RootFile, read_listing, read_roots
from ledger.deltas.rows import Flags, Longs
from ledger.deltas.single_roots import (
    NOTHING,
    differences,
    is_in,
    judged,
    parts_of,
    split,
)
from ledger.deltas.spans import RootRange, Spans
from ledger.errors import IntegrityError, LostFileError, UnavailableError, UnseenFilesError
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
        rows = encode([run_id, *deltas.columns])
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

    Raises UnseenFilesError where this process does not see them, LostFileError if one is gone,
    UnavailableError if their storage does not answer, and IntegrityError if they are not what the
    ledger has by span.
    """
    parts = list(parts_of(asked.spans, asked.ranges, max(1, MOST_ROWS // len(asked.runs))))
    refinement = Refinement(asked.run_ids)
    try:
        with _spooled(asked, parts) as spool:
            for number, part in enumerate(parts):
                for run_id, deltas in _part(database, asked, number, part, spool):
                    refinement.add(run_id, deltas)
        refinement.end()
    except BaseException:
        refinement.file.close()
        raise
    return refinement


class _Spool:
    """Rows of single roots by part and run, in a local temporary file: the files of a run are read
    once, in whatever order its rows lie.
    """

    def __init__(self) -> None:
        with _writing():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the spool
        self._places: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def add(self, part: int, run_id: int, deltas: Deltas) -> None:
        """Add rows of a run in a part."""
        place = self._file.tell(), len(deltas.root)
        self._places.setdefault((part, run_id), []).append(place)
        with _writing():
            self._file.write(np.stack(deltas.columns).tobytes())
            self._file.flush()

    def rows(self, part: int, run_id: int) -> Deltas:
        """What a run adds to the roots of a part, a row a root."""
        places = self._places.get((part, run_id))
        return united([self._read(*place) for place in places]) if places else NOTHING

    def _read(self, start: int, count: int) -> Deltas:
        self._file.seek(start)
        columns = np.frombuffer(self._file.read(5 * 8 * count), np.int64).reshape(5, count)
        return Deltas(columns[0], columns[1], columns[2], columns[3], columns[4])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


def _spooled(asked: Unrefined, parts: Sequence[Longs]) -> _Spool:
    """What each run adds to the roots of the spans that are asked for, by parts of these."""
    spans, starts = Spans(asked.ranges), np.array([part[0] for part in parts], np.int64)
    first, last = _ends(asked, asked.spans)

    def is_asked(root: Longs) -> Flags:
        return is_in(spans.of(root), asked.spans)

    spool = _Spool()
    try:
        for run in asked.runs:
            files, advice = _files(asked, run), _advice(asked, run)
            with _reading(run.root_files or "", advice):
                for deltas in read_roots(files, first, last, is_asked, advice):
                    number = np.searchsorted(starts, spans.of(deltas.root), "right") - 1
                    for part, some in split(deltas, number):
                        spool.add(part, run.step_run_id, some)
    except BaseException:
        spool.__exit__()
        raise
    return spool


def _ends(asked: Unrefined, part: Longs) -> tuple[int, int]:
    """The first root of some spans, and one that is not before their last."""
    return int(part[0]), int(part[-1]) + max(some.span for some in asked.ranges) - 1


def _files(asked: Unrefined, run: SpannedRun) -> list[RootFile]:
    """The files of what a run adds to each root; none of one that noted no folder, for the ledger
    has all of its rows.
    """
    if run.root_files is None:
        return []
    if not reachable(run.root_files):
        raise UnseenFilesError(
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
        raise UnseenFilesError(f"files in {folder} could not be read: {exc}") from exc
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
    database: Database, asked: Unrefined, number: int, part: Longs, spool: _Spool
) -> Iterator[tuple[int, Deltas]]:
    """What each run adds to those roots of a part's spans that are not even, or failed."""
    spans = Spans(asked.ranges)
    first, last = _ends(asked, part)
    posted = database.transact(lambda c: queries.posted(c, asked.batch_id, part.tolist()))
    rows = []
    for run in asked.runs:
        of_run = posted.get(run.step_run_id, NOTHING)
        if run.root_files is None and len(of_run.root):
            raise LostFileError(
                f"run {run.step_run_id} of {run.step} in batch {asked.batch_id} has posted spans,"
                f" and noted no folder of what it adds to each record. {_advice(asked, run)}"
            )
        rows.append(spool.rows(number, run.step_run_id))
        _check(asked, run, of_run, rows[-1], spans)
    failed = database.transact(lambda c: queries.failed_roots(c, asked.batch_id, first, last))
    failed = failed[is_in(spans.of(failed), part)]
    yield from zip(asked.run_ids, judged(rows, failed), strict=True)


def _check(asked: Unrefined, run: SpannedRun, posted: Deltas, rows: Deltas, spans: Spans) -> None:
    """Raise IntegrityError unless the rows of a run add up, span by span, to what it has posted."""
    wrong = differences(posted, rows, spans)
    if len(wrong.root):
        first, *difference = (int(column[0]) for column in wrong.columns)
        raise IntegrityError(
            f"batch {asked.batch_id}: run {run.step_run_id} of {run.step} posted other sums than"
            f" its files in {run.root_files} have: {quantity(len(wrong.root), 'span')} differ, the"
            f" one from root {first} on by (XOR, acked XOR, emitted, acked) ="
            f" {tuple(difference)}. Run {run.step} again"
        )
