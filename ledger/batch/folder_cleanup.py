"""Remove the folders of sinks that settled batches have replaced: a replay of units, a reprocess.

They are noted in the transaction that commits the sink's run and go once its batch is settled, so
a batch that is given up has replaced nothing, and whoever dies in between, the next one goes on. A
reprocess that is given up has its own folders noted instead: what it was to replace is still there.
"""

import logging
from functools import partial

from sqlalchemy import Connection

from ledger.core.probes import reached
from ledger.store.connection import Database
from ledger.store.queries import batches
from ledger.store.queries import dedup as queries

_log = logging.getLogger(__name__)


def remove_replaced(database: Database, batch_id: int | None = None) -> list[str]:
    """Remove what can be removed, of one batch or of all; the folders.

    It never fails: a folder that resists, or cannot be seen from here, is left for the next time.
    """
    removed = []
    for row in database.transact(lambda c: queries.replaced_folders(c, batch_id)):
        try:
            if database.transact(partial(_remove, batch_id=row.batch_id, path=row.path)):
                removed.append(str(row.path))
        except Exception as exc:  # of whichever file system: what is settled stays settled
            _log.warning("folder %s, replaced by batch %s, stays: %s", row.path, row.batch_id, exc)
    return removed


def _remove(connection: Connection, batch_id: int, path: str) -> bool:
    """Remove a folder under the lock of the batch that says so, which might open again; whether
    it did.
    """
    import fsspec

    reached("before folder's removal", path)
    batches.lock_batch(connection, batch_id)
    if path not in [row.path for row in queries.replaced_folders(connection, batch_id)]:
        return False
    fs, name = fsspec.core.url_to_fs(path)
    if not fs.exists(name.rsplit("/", 1)[0]):
        raise FileNotFoundError("the sink's folder cannot be seen from here")
    if fs.exists(name):
        fs.rm(name, recursive=True)
    reached("folder removed", path)
    queries.forget_replaced(connection, batch_id, path)
    return True
