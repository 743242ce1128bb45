"""Content of failed records: copied from the snapshot of their batch into the ledger, without
Spark.

A settlement may not reach the storage, so the copy follows it, in a process that reads the storage:
the run, its task ``settle``, or the next ``publish``, ``replay`` or ``explain``.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ledger.core.redaction import NOTHING, Redaction, as_text, is_masked
from ledger.storage.manifest import Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import batches, holds, payloads, redactions, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.payloads import EmittedRecords

if TYPE_CHECKING:
    from ledger.batch.records.snapshots import Payload

_CHUNK = 20_000  # records a transaction
_NO_CONTENT = "The batch's records were read from it: restore it, or run the interval again"

_log = logging.getLogger(__name__)


def keep_payloads(database: Database, batch_id: int) -> int:
    """Copy the content of the failed records of a batch's family that is not kept yet, and return
    for how many. Content that a replay has read again replaces the earlier content. For a batch on
    hold, the content of the records in its preview is copied.

    Before that, the rows of records of a version are copied beside its description, so that a
    replay does not need the version. Safe to repeat, and to run twice at once. Raises
    LostFileError unless the snapshot's files are as they were written, and the error of the storage
    if it is out of reach.
    """
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    redact = database.transact(lambda c: redactions.of_pipeline(c, batch.pipeline))
    written = 0
    for question, number, write in (
        (holds.without_content, batch_id, holds.keep_content),
        (payloads.missing, batch.original_id, payloads.insert),
        (payloads.read_again, batch.original_id, payloads.replace),
    ):
        for emitted in database.transact(partial(question, batch_id=number)):
            reader = database.transact(partial(batches.get_batch, batch_id=emitted.batch_id))
            if question is payloads.missing:
                from ledger.batch.records.failed_rows import copy_rows

                copy_rows(_manifest(database, emitted), emitted)
            for rows in _chunks(_read(database, reader, emitted, redact)):
                written += database.transact(partial(write, rows=rows))
    return written


def try_to_keep(database: Database, batch_id: int) -> None:
    """Copy content as ``keep_payloads`` does, but log an error instead of raising it; the view
    ``pending_follow_up`` then has a row. A verdict and its follow-ups never wait for content.
    """
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
    """Call ``try_to_keep`` for every batch without the content of some failed records."""
    for batch_id in database.transact(lambda c: payloads.missing_batches(c, pipeline)):
        try_to_keep(database, batch_id)


def failed_keys(
    database: Database, original_id: int, source: str, names: Sequence[str]
) -> list[tuple[int, list[str | None], bool]]:
    """Return the messages of an original's source: the message, the values of these columns as
    text, null if they are not known, and whether it parsed. They come from the snapshot if the
    ledger has a mask or a pseudonym for one of them, whatever the pipeline redacts by now.
    """
    rows = database.transact(lambda c: payloads.failed_keys(c, original_id, source, names))
    if not any(is_masked(value) for _, key, _ in rows for value in key):
        return rows
    original = database.transact(lambda c: batches.get_batch(c, original_id))
    emits = database.transact(lambda c: payloads.of_source(c, original_id, source))
    contents = (record for each in emits for record in _copied(database, original, each))
    return [_keyed(record, names) for record in contents]


def _keyed(payload: "Payload", names: Sequence[str]) -> tuple[int, list[str | None], bool]:
    fields = json.loads(payload.content) if payload.parsed else {}
    fields |= json.loads(payload.key or "{}")
    values = [fields.get(name) for name in names]
    return payload.message_id, [None if v is None else as_text(v) for v in values], payload.parsed


def _copied(database: Database, batch: Batch, emitted: EmittedRecords) -> Iterator["Payload"]:
    """Return the content of the records of a batch's emit, without a mask. Of a version it is that
    of the copied rows, if all are copied, because the version's files may be gone.
    """
    from ledger.batch.records import failed_rows

    paths = failed_rows.copied(_manifest(database, emitted), emitted.roots)
    if not paths:
        return _read(database, batch, emitted, NOTHING)
    source = next(step for step in batch.topology if step.name == emitted.source)
    return failed_rows.copied_payloads(batch.original_id, emitted, paths, source)


def _read(
    database: Database, batch: Batch, emitted: EmittedRecords, redact: Redaction
) -> Iterator["Payload"]:
    """Yield the content of the records of a batch's emit, from its snapshot."""
    # Its libraries take longer to load than most commands take.
    from ledger.batch.records import snapshots

    manifest = _manifest(database, emitted)
    check_files(snapshots.needed_for(manifest, emitted), _NO_CONTENT)
    source = next(step for step in batch.topology if step.name == emitted.source)
    return snapshots.payloads(batch.original_id, emitted, manifest.files, source, redact)


def _manifest(database: Database, emitted: EmittedRecords) -> Manifest:
    return Manifest(database.transact(partial(runs.files, run_id=emitted.emit_run_id)))


def _chunks(contents: Iterator["Payload"]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    for payload in contents:
        rows.append(tuple(vars(payload).values()))
        if len(rows) == _CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows
