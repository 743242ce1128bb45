"""What failed records contain: copied from the snapshot of their batch into the ledger, without
Spark.

The settlement decides where the storage may be out of reach, so the copy follows it, in a process
that reads the storage: the run, its task ``settle``, or the next ``publish``, ``replay`` or
``explain``.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Row

from ledger.storage.manifest import Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import batches, payloads, runs
from ledger.store.queries.batches import Batch

_CHUNK = 20_000  # records a transaction
_NO_CONTENT = "The batch's records were read from it: restore it, or run the interval again"

_log = logging.getLogger(__name__)


def keep_payloads(database: Database, batch_id: int) -> int:
    """Copy the content of the failed records of a batch's family that is not kept yet; of how many.
    What a replay has read again takes the place of what was read before.

    Safe to repeat, and to run twice at once. Raises LostFileError unless the snapshot's files are
    as they were written, and whatever their storage raises where it is out of reach.
    """
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    original = database.transact(lambda c: batches.get_batch(c, batch.original_id))
    missing = database.transact(lambda c: payloads.missing(c, original.batch_id))
    kept = _copy(database, original, missing, payloads.insert)
    for again in database.transact(lambda c: payloads.read_again(c, original.batch_id)):
        replay = database.transact(partial(batches.get_batch, batch_id=again.batch_id))
        _copy(database, replay, [again], payloads.replace)
    return kept


def try_to_keep(database: Database, batch_id: int) -> None:
    """As ``keep_payloads``; what goes wrong is logged, and ``payload_missing`` names the batch: a
    verdict and what follows it never wait for content."""
    try:
        keep_payloads(database, batch_id)
    except Exception as exc:
        _log.warning(
            "batch %s: the content of its failed records is not kept yet: %s. Run 'ackledger "
            "explain' for a record of it, or replay it, where the storage can be read",
            batch_id,
            exc,
        )


def keep_all(database: Database, pipeline: str | None) -> None:
    """``try_to_keep`` for every batch that misses content."""
    for batch_id in database.transact(lambda c: payloads.missing_batches(c, pipeline)):
        try_to_keep(database, batch_id)


def _copy(
    database: Database,
    batch: Batch,
    sources: Sequence[Row[Any]],
    write: Callable[..., int],
) -> int:
    """Copy content from the snapshots of a batch; of how many records."""
    if not sources:
        return 0
    from ledger.batch import snapshots  # its libraries take longer to load than most commands take

    layouts, written = {step["name"]: step for step in batch.topology}, 0
    for source in sources:
        files = database.transact(partial(runs.files, run_id=source.emit_run_id))
        check_files(Manifest(files), _NO_CONTENT)
        found = snapshots.payloads(batch.original_id, source, files, layouts.get(source.source, {}))
        for rows in _chunks(found):
            written += database.transact(partial(write, rows=rows))
    return written


def _chunks(found: Iterator[Any]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    for one in found:
        rows.append(tuple(vars(one).values()))
        if len(rows) == _CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows
