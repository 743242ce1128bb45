"""Posts deltas: COPY into the batch's own partition, and last the row of its bucket, in one
transaction.

The bucket's key refuses a second writer: a task that runs twice posts once.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
import psycopg2

from ledger.core.text import cut, storable
from ledger.databases.timeouts import KEEPALIVES
from ledger.deltas.binary_copy import HEADER, TRAILER, Columns, Stream, encode
from ledger.deltas.kernel import Deltas, Fails

NO_REASON = "no reason given"
CHUNK_BYTES = 1 << 16  # handed to the connection at once; its default, 8 KiB, costs a tenth more
CHUNK_ROWS = 1 << 16
FAIL_ROWS = 1_000  # with their texts

_DELTA = "batch_id, step_run_id, root_id, delta, acked, emitted_edges, acked_edges"
_FAIL = "batch_id, step_run_id, root_id, reason, detail, shared"
_MESSAGE = "batch_id, step_run_id, root_id, message_id"
_OPTIONS = (
    "-c role=ledger_writer -c lock_timeout=60s -c idle_in_transaction_session_timeout=10min "
    "-c synchronous_commit=on"
)


@dataclass(frozen=True)
class Posted:
    """What was posted: ``rows`` deltas, their XOR, that of the edges acked alone, edges emitted and
    acked, and roots failed.
    """

    rows: int = 0
    delta_xor: int = 0
    acked_xor: int = 0
    emitted_edges: int = 0
    acked_edges: int = 0
    failed_roots: int = 0

    def __add__(self, other: "Posted") -> "Posted":
        return Posted(
            self.rows + other.rows,
            self.delta_xor ^ other.delta_xor,
            self.acked_xor ^ other.acked_xor,
            self.emitted_edges + other.emitted_edges,
            self.acked_edges + other.acked_edges,
            self.failed_roots + other.failed_roots,
        )

    @classmethod
    def of(cls, deltas: Deltas) -> "Posted":
        """What there is to post."""
        return cls(
            len(deltas.root),
            int(np.bitwise_xor.reduce(deltas.delta)) if len(deltas.root) else 0,
            int(np.bitwise_xor.reduce(deltas.acked)) if len(deltas.root) else 0,
            int(deltas.emitted_edges.sum()),
            int(deltas.acked_edges.sum()),
            sum(len(fails.root) for fails in deltas.fails),
        )


def post_bucket(
    dsn: str, batch_id: int, run_id: int, bucket: int, parts: Iterable[Deltas]
) -> Posted:
    """Post from a task of its own, part by part; the second writer of a bucket changes nothing."""
    with closing(_connect(dsn)) as connection:
        with connection.cursor() as cursor:
            posted = _copied(cursor, batch_id, run_id, parts)
            try:
                _put_bucket(cursor, run_id, bucket, posted)
            except psycopg2.errors.UniqueViolation:
                connection.rollback()  # another attempt of this task was first, with the same rows
                return posted
        connection.commit()
    return posted


def post(cursor: Any, batch_id: int, run_id: int, bucket: int, deltas: Deltas) -> Posted:
    """COPY all within the caller's transaction, then the bucket's row."""
    posted = _copied(cursor, batch_id, run_id, [deltas])
    _put_bucket(cursor, run_id, bucket, posted)
    return posted


def _copied(cursor: Any, batch_id: int, run_id: int, parts: Iterable[Deltas]) -> Posted:
    posted, fails, messages = Posted(), list[Fails](), list[bytes]()
    raised: list[Exception] = []

    def guarded_parts() -> Iterator[Deltas]:
        try:
            yield from parts
        except Exception as exc:  # of a file, not of the COPY, as which psycopg2 would raise it
            raised.append(exc)
            raise

    def chunks() -> Iterator[bytes]:
        nonlocal posted
        yield HEADER
        for part in guarded_parts():
            posted += Posted.of(part)
            fails.extend(part.fails)
            if part.message is not None:
                columns: Columns = {"batch": batch_id, "run": run_id, "root": part.root}
                messages.append(encode({**columns, "message": part.message}))
            yield from _encoded(batch_id, run_id, part)
        yield TRAILER

    # Into the batch's own partition: routed through the parent it takes a fifth longer.
    statement = f"COPY {partition(batch_id)} ({_DELTA}) FROM STDIN (FORMAT binary)"
    try:
        cursor.copy_expert(statement, Stream(chunks()), CHUNK_BYTES)
    except psycopg2.Error as exc:
        raise raised[0] if raised else exc from None
    post_fails(cursor, batch_id, run_id, fails)
    if messages:
        statement = f"COPY replay_root ({_MESSAGE}) FROM STDIN (FORMAT binary)"
        cursor.copy_expert(statement, Stream([HEADER, *messages, TRAILER]))
    return posted


def _put_bucket(cursor: Any, run_id: int, bucket: int, posted: Posted) -> None:
    statement = "INSERT INTO step_run_bucket (step_run_id, bucket, rows) VALUES (%s, %s, %s)"
    cursor.execute(statement, (run_id, bucket, posted.rows))


def post_fails(cursor: Any, batch_id: int, run_id: int, fails: Sequence[Fails]) -> None:
    """COPY the roots that fail, with their reasons."""
    if any(len(some.root) for some in fails):
        lines = Stream(_fail_lines(batch_id, run_id, fails))
        cursor.copy_expert(f"COPY root_fail ({_FAIL}) FROM STDIN (FORMAT csv)", lines)


def _fail_lines(batch_id: int, run_id: int, fails: Sequence[Fails]) -> Iterator[bytes]:
    """Lines of CSV, a few at a time: the texts are in memory once already."""
    for some in fails:
        # COPY takes "" for NULL.
        reasons = [cut(storable(word)) or NO_REASON for word in some.words]
        for start in range(0, len(some.root), FAIL_ROWS):
            rows = slice(start, start + FAIL_ROWS)
            root, reason, shared = (
                column[rows].tolist() for column in (some.root, some.reason, some.shared)
            )
            details = some.details[rows] if some.details else [None] * len(root)
            lines = StringIO()
            writer = csv.writer(lines)
            for number, code, detail, flag in zip(root, reason, details, shared, strict=True):
                stored = None if detail is None else storable(detail)
                writer.writerow([batch_id, run_id, number, reasons[code], stored, flag])
            yield lines.getvalue().encode()


def partition(batch_id: int) -> str:
    """The table of a batch's deltas."""
    return f"ledger_delta_{batch_id}"


def _encoded(batch_id: int, run_id: int, deltas: Deltas) -> Iterator[bytes]:
    for start in range(0, len(deltas.root), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        yield encode(
            {
                "batch": batch_id,
                "run": run_id,
                "root": deltas.root[rows],
                "delta": deltas.delta[rows],
                "acked": deltas.acked[rows],
                "emitted_edges": deltas.emitted_edges[rows],
                "acked_edges": deltas.acked_edges[rows],
            }
        )


def _connect(dsn: str) -> Any:
    """A connection that notices a dead peer: a half-open one would hold its bucket's lock."""
    return psycopg2.connect(
        dsn,
        options=_OPTIONS,
        connect_timeout=30,
        **KEEPALIVES,
    )
