"""Posts deltas, fails and messages by COPY, within a transaction of the caller's.

What a run posts counts only once it is committed; the commit compares it with what was folded.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain
from typing import Any

import numpy as np
import psycopg2

from ledger.core.streams import ChunkStream
from ledger.core.text import cut, storable
from ledger.deltas.binary_copy import HEADER, TRAILER, encode
from ledger.deltas.fold_files import FAIL_ROWS
from ledger.deltas.kernel import Deltas, Fails, Messages
from ledger.deltas.rows import Longs
from ledger.errors import shown

NO_REASON = "no reason given"
CHUNK_BYTES = 1 << 16  # handed to the connection at once; its default, 8 KiB, costs a tenth more
CHUNK_ROWS = 1 << 16

_DELTA = "batch_id, step_run_id, root_id, delta, acked, emitted_edges, acked_edges"
_FAIL = "batch_id, step_run_id, root_id, reason, detail, shared"
_MESSAGE = "batch_id, step_run_id, root_id, message_id"
_LOST = "batch_id, step_run_id, root_id, number"


def post(cursor: Any, batch_id: int, run_id: int, deltas: Deltas, *, masks: bool) -> None:
    """Post deltas with their fails and messages. ``masks``: mask quoted values in the reasons."""
    into = f"COPY ledger_delta ({_DELTA}) FROM STDIN (FORMAT binary)"
    rows = _rows(batch_id, run_id, deltas.columns)
    _copy(cursor, into, rows, HEADER, TRAILER)
    post_fails(cursor, batch_id, run_id, deltas.fails, masks=masks)
    post_messages(cursor, batch_id, run_id, deltas.messages)


def post_fails(
    cursor: Any, batch_id: int, run_id: int, fails: Iterable[Fails], *, masks: bool
) -> int:
    """Post the failed roots with their reasons, and return their number. ``masks``: mask quoted
    values in the reasons.
    """
    roots = 0

    def lines() -> Iterator[bytes]:
        nonlocal roots
        for some in fails:
            roots += len(some.root)
            yield from _fail_lines(batch_id, run_id, some, masks)

    _copy(cursor, f"COPY root_fail ({_FAIL}) FROM STDIN (FORMAT csv)", lines())
    return roots


def post_lost(cursor: Any, batch_id: int, run_id: int, roots: Longs, number: int) -> None:
    """Post the roots that a run lost in one loss. ``number``: the loss's number in
    ``step_run_loss``.
    """
    rows = _rows(batch_id, run_id, (roots, np.full(len(roots), number)))
    _copy(cursor, f"COPY lost_root ({_LOST}) FROM STDIN (FORMAT binary)", rows, HEADER, TRAILER)


def post_messages(cursor: Any, batch_id: int, run_id: int, messages: Iterable[Messages]) -> None:
    """Post the roots of a replay, each with the message that it replays."""
    into = f"COPY replay_root ({_MESSAGE}) FROM STDIN (FORMAT binary)"
    rows = (_rows(batch_id, run_id, (some.root, some.message)) for some in messages)
    _copy(cursor, into, chain.from_iterable(rows), HEADER, TRAILER)


def _copy(
    cursor: Any, statement: str, chunks: Iterator[bytes], head: bytes = b"", tail: bytes = b""
) -> None:
    """COPY the chunks one at a time. Runs no COPY if there is no chunk. An error of ``chunks`` is
    raised itself, not as psycopg2's error.
    """
    raised: list[Exception] = []

    def guarded() -> Iterator[bytes]:
        try:
            yield from chunks
        except Exception as exc:  # of a file, not of the COPY, as which psycopg2 would raise it
            raised.append(exc)
            raise

    first = next(chunks, None)
    if first is None:
        return
    try:
        stream = ChunkStream(chain([head, first], guarded(), [tail]))
        cursor.copy_expert(statement, stream, CHUNK_BYTES)
    except psycopg2.Error as exc:
        raise raised[0] if raised else exc from None


def _rows(batch_id: int, run_id: int, columns: Sequence[Longs]) -> Iterator[bytes]:
    """Yield encoded rows: the batch, the run, and then ``columns``."""
    for start in range(0, len(columns[0]), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        yield encode([batch_id, run_id, *(column[rows] for column in columns)])


def _fail_lines(batch_id: int, run_id: int, fails: Fails, masks: bool) -> Iterator[bytes]:
    """Yield the failed roots as lines of CSV, a few roots at a time, because the texts are already
    in memory once. An empty reason becomes ``NO_REASON``.
    """
    # COPY takes "" for NULL.
    words = [cut(storable(shown(word, masks=masks))) for word in fails.words]
    reasons = {code: word or NO_REASON for code, word in enumerate(words)}
    for start in range(0, len(fails.root), FAIL_ROWS):
        rows = slice(start, start + FAIL_ROWS)
        root, reason, shared = (
            column[rows].tolist() for column in (fails.root, fails.reason, fails.shared)
        )
        details = fails.details[rows] if fails.details else [None] * len(root)
        lines = StringIO()
        writer = csv.writer(lines)
        for number, code, detail, flag in zip(root, reason, details, shared, strict=True):
            stored = None if detail is None else storable(detail)
            writer.writerow([batch_id, run_id, number, reasons.get(code), stored, flag])
        yield lines.getvalue().encode()
