"""Remove the folders of sinks that settled batches have replaced: a replay of units, a reprocess.

They are noted in the transaction that commits the sink's run and go once its batch is settled, so
a batch that is given up has replaced nothing, and whoever dies in between, the next one goes on.
"""

import logging

from ledger.database.connection import Database
from ledger.queries import dedup as queries

_log = logging.getLogger(__name__)


def remove_replaced(database: Database) -> list[str]:
    """Remove what can be removed; the folders. One that resists is left for the next time."""
    import fsspec

    removed = []
    for row in database.transact(queries.replaced_folders):
        fs, path = fsspec.core.url_to_fs(row.path)
        try:
            if fs.exists(path):
                fs.rm(path, recursive=True)
        except OSError as exc:
            _log.warning("folder %s, replaced by batch %s, stays: %s", row.path, row.batch_id, exc)
            continue
        _forget(database, row.batch_id, row.path)
        removed.append(str(row.path))
    return removed


def _forget(database: Database, batch_id: int, path: str) -> None:
    database.transact(lambda c: queries.forget_replaced(c, batch_id, path))
