"""Post deltas: one transaction per bucket, from the executors, refused if it has happened before."""

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial, reduce
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import numpy as np
import psycopg2
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from ledger.errors import FencedError, UnavailableError
from ledger.spark.binary_copy import HEADER, TRAILER, Stream, encode
from ledger.spark.fold import SAME
from ledger.spark.session import SPARK_ERRORS, session_conf

NO_REASON = "no reason given"
CHUNK_BYTES = 1 << 16  # handed to the connection at once; its default, 8 KiB, costs a tenth more
MOST_DETAIL = 10_000  # characters of raw text kept in the ledger; the snapshot has all of it

_NUMBERS = {
    "root": np.int64,
    "delta": np.int64,
    "acked": np.int64,
    "emitted_edges": np.int32,
    "acked_edges": np.int32,
}
_DELTA = "batch_id, stage_run_id, root_id, delta, acked, emitted_edges, acked_edges"
_FAIL = "batch_id, stage_run_id, root_id, reason, detail, shared"
_MESSAGE = "batch_id, stage_run_id, root_id, message_id"
_OPTIONS = (
    "-c role=ledger_writer -c lock_timeout=60s -c idle_in_transaction_session_timeout=10min "
    "-c synchronous_commit=on"
)


@dataclass(frozen=True)
class Posted:
    """What was posted: ``rows`` deltas, their XOR, edges emitted and acked, roots with emitted edges, roots failed."""

    rows: int = 0
    delta_xor: int = 0
    emitted_edges: int = 0
    emitted_roots: int = 0
    acked_edges: int = 0
    failed_roots: int = 0

    def __add__(self, other: "Posted") -> "Posted":
        return Posted(
            self.rows + other.rows,
            self.delta_xor ^ other.delta_xor,
            self.emitted_edges + other.emitted_edges,
            self.emitted_roots + other.emitted_roots,
            self.acked_edges + other.acked_edges,
            self.failed_roots + other.failed_roots,
        )


_SCHEMA = ", ".join(f"{field.name} bigint" for field in fields(Posted))


def post(
    fold: DataFrame,
    *,
    database_dsn: str,
    batch_id: int,
    run_id: int,
    buckets: int,
) -> Posted:
    """Post a fold (see ``ledger.spark.fold``) in at most ``buckets`` by root; what was posted.

    The job is started once: a retry of the whole could cut buckets differently. Spark may run each
    task as often as it likes. The address travels in the task's closure, never in an argument.
    Raises UnavailableError when the database does not answer, FencedError when the batch was
    decided and its partition is gone.
    """
    same = {one.name: one.metadata[SAME] for one in fold.schema if SAME in one.metadata}
    task = partial(_post_bucket, database_dsn, batch_id, run_id, same)
    # Most folds end in an exchange by root, which these options cut into just ``buckets`` tasks. The
    # others have one row a root as it is, and their tasks take several files each.
    options = {
        "spark.sql.shuffle.partitions": str(buckets),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    with session_conf(fold.sparkSession, options):
        try:
            rows = fold.drop(*same).coalesce(buckets).mapInArrow(task, _SCHEMA).collect()
        except SPARK_ERRORS as exc:
            if f'UndefinedTable: relation "{_partition(batch_id)}"' in str(exc):
                raise FencedError(
                    f"batch {batch_id} was decided and its deltas were removed: run {run_id} "
                    "comes too late and "
                    f"changes nothing. See what became of it: ackledger status --batch {batch_id}"
                ) from exc
            reason = _unavailable(exc)
            if reason is None:
                raise
            raise UnavailableError(
                f"the ledger did not take the deltas of run {run_id}: {reason}. Run the step again"
            ) from exc
    return reduce(Posted.__add__, [Posted(**row.asDict()) for row in rows], Posted())


def _partition(batch_id: int) -> str:
    return f"ledger_delta_{batch_id}"


def _unavailable(exc: Exception) -> str | None:
    """What the database said, if a task failed because it was away, stopped, locked or full."""
    for name, said in reversed(re.findall(r"psycopg2\.(?:errors\.)?(\w+): (.*)", str(exc))):
        kind = getattr(psycopg2.errors, name, None) or getattr(psycopg2, name, None)
        if kind and issubclass(kind, psycopg2.OperationalError | psycopg2.InterfaceError):
            return str(said).strip()
    return None


def _post_bucket(
    dsn: str,
    batch_id: int,
    run_id: int,
    same: Mapping[str, int],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """One task: all its rows in one transaction, whose last statement is the bucket's own row."""
    context = TaskContext.get()
    assert context is not None
    # Deltas stream; what else belongs to the rows waits, on disk if there is much of it.
    with (
        SpooledTemporaryFile(16 << 20, "w+", newline="") as fails,
        SpooledTemporaryFile(16 << 20, "w+b") as messages,
        closing(_connect(dsn)) as connection,
    ):
        bucket = _Bucket(batch_id, run_id, context.partitionId(), same, batches, fails, messages)
        posted = bucket.post(connection)
    yield pa.RecordBatch.from_pylist([asdict(posted)])


def _connect(dsn: str) -> Any:
    """A connection that notices a dead peer: a half-open one would hold its bucket's lock."""
    return psycopg2.connect(
        dsn,
        options=_OPTIONS,
        connect_timeout=30,
        keepalives=1,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )


class _Bucket:
    """The rows of one task on their way into the ledger."""

    def __init__(
        self,
        batch_id: int,
        run_id: int,
        number: int,
        same: Mapping[str, int],
        batches: Iterator[pa.RecordBatch],
        fails: IO[str],
        messages: IO[bytes],
    ):
        self._batch_id = batch_id
        self._run_id = run_id
        self._number = number
        self._same = same
        self._batches = batches
        self._posted = Posted()
        self._fails = fails
        self._messages = messages

    def post(self, connection: Any) -> Posted:
        """COPY everything, then the bucket's row; the second writer of a bucket changes nothing."""
        with connection.cursor() as cursor:
            deltas = Stream(chain([HEADER], map(self._encode, self._batches), [TRAILER]))
            # Into the batch's own partition: routed through the parent it takes a fifth longer.
            statement = f"COPY {_partition(self._batch_id)} ({_DELTA}) FROM STDIN (FORMAT binary)"
            cursor.copy_expert(statement, deltas, CHUNK_BYTES)
            if self._fails.tell():
                self._fails.seek(0)
                cursor.copy_expert(f"COPY root_fail ({_FAIL}) FROM STDIN (FORMAT csv)", self._fails)
            if self._messages.tell():
                parts = [HEADER, self._rewound(), TRAILER]
                statement = f"COPY replay_root ({_MESSAGE}) FROM STDIN (FORMAT binary)"
                cursor.copy_expert(statement, Stream(parts))
            try:
                cursor.execute(
                    "INSERT INTO stage_run_bucket (stage_run_id, bucket, rows) VALUES (%s, %s, %s)",
                    (self._run_id, self._number, self._posted.rows),
                )
            except psycopg2.errors.UniqueViolation:
                connection.rollback()  # another attempt of this task was first, with the same rows
            else:
                connection.commit()
        return self._posted

    def _rewound(self) -> bytes:
        self._messages.seek(0)
        return self._messages.read()

    def _encode(self, batch: pa.RecordBatch) -> bytes:
        """The deltas of one Arrow batch in COPY's format; fails and messages are put aside."""
        column = {
            name: np.full(batch.num_rows, self._same[name], kind)
            if name in self._same
            else batch.column(name).to_numpy(zero_copy_only=False)
            for name, kind in _NUMBERS.items()
        }
        fails = self._put_fails(batch) if "reason" in batch.schema.names else 0
        if "message" in batch.schema.names:
            message = batch.column("message").to_numpy(zero_copy_only=False)
            self._messages.write(
                encode({**self._keys(), "root": column["root"], "message": message})
            )
        self._posted += Posted(
            batch.num_rows,
            int(np.bitwise_xor.reduce(column["delta"])) if batch.num_rows else 0,
            int(column["emitted_edges"].sum(dtype=np.int64)),
            int(np.count_nonzero(column["emitted_edges"])),
            int(column["acked_edges"].sum(dtype=np.int64)),
            fails,
        )
        return encode({**self._keys(), **column})

    def _keys(self) -> dict[str, int]:
        return {"batch": self._batch_id, "run": self._run_id}

    def _put_fails(self, batch: pa.RecordBatch) -> int:
        """Put the roots with a reason aside; how many."""
        writer = csv.writer(self._fails)
        failed = batch.filter(batch.column("reason").is_valid())
        kept = [
            name for name in ("root", "reason", "detail", "shared") if name in failed.schema.names
        ]
        rows = failed.select(kept).to_pylist()
        for row in rows:
            detail = None if row["detail"] is None else _storable(row["detail"])[:MOST_DETAIL]
            reason = _storable(row["reason"]) or NO_REASON  # in COPY's CSV an empty text is NULL
            shared = bool(row.get("shared"))
            writer.writerow([self._batch_id, self._run_id, row["root"], reason, detail, shared])
        return len(rows)


def _storable(text: str) -> str:
    """Text as PostgreSQL can keep it: it has no NUL character."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
