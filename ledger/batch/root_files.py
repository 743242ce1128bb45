"""Removal of the root files of decided batches: nothing needs them any more."""

import logging
from collections.abc import Sequence

from ledger.core.probes import reached
from ledger.errors import LedgerError
from ledger.storage.folders import (
    Size,
    reachable,
    remove_run_folder,
    require_own_folder,
    size_of,
)
from ledger.store.connection import Database
from ledger.store.queries import retention
from ledger.store.queries.retention import RunWithRootFiles

_log = logging.getLogger(__name__)


def remove_root_files(database: Database, batch_id: int) -> None:
    """Remove the root files of a decided or abandoned batch, if this process can access them;
    retention removes the rest.
    """
    reached("root files pending")
    removed = []
    try:
        for run in database.transact(lambda c: retention.ended_with_root_files(c, batch_id)):
            try:
                if reachable(run.root_files):
                    remove(run)
                    removed.append(run)
            except Exception as exc:  # of whichever file system
                where = run.root_files
                _log.warning("root files of run %s in %s stay: %s", run.step_run_id, where, exc)
        note_removed(database, removed)
    except LedgerError as exc:  # the batch is decided, whatever becomes of its files
        _log.warning("root files of batch %s are left for gc: %s", batch_id, exc)


def remove(run: RunWithRootFiles, *, dry_run: bool = False) -> Size:
    """Remove the root files of a run, and return their size."""
    require_own_folder(run.root_files, run.step_run_id)
    size = size_of(run.root_files)
    if not dry_run:
        remove_run_folder(run.root_files, run.step_run_id)
        reached("root files removed", run.root_files)
    return size


def note_removed(database: Database, rows: Sequence[RunWithRootFiles]) -> None:
    """Note that the root files of these runs are gone."""
    if rows:
        run_ids = [run.step_run_id for run in rows]
        database.transact(lambda c: retention.forget_root_files(c, run_ids))
