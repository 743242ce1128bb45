"""The sweeper: decides batches that can be decided, fails expired ones, and removes the deltas of
decided ones.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection

from ledger.batch.settlement import Settlement, settle_once
from ledger.databases.driver_errors import translated
from ledger.errors import LedgerError
from ledger.store.connection import Database
from ledger.store.queries import batches, following, replays, upkeep
from ledger.store.queries.replays import ReplayRequest

NOTED_AT_ONCE = 100  # batches that are locked in one transaction, with their pipelines
# How long a run has to finish its follow-ups by itself.
OVERDUE_AFTER = timedelta(minutes=15)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OverdueFollowUp:
    """A settled batch with an overdue follow-up, and its DAG. ``target``: MODULE:PIPELINE, if the
    ledger knows it.
    """

    batch_id: int
    dag_id: str
    target: str | None = None


@dataclass(frozen=True)
class Swept:
    """Result of a sweep.

    ``settlements``: the settlement of each open batch that was looked at.
    ``replays``: automatic replays that are due.
    ``overdue``: batches with an overdue follow-up.
    ``errors``: why a batch could not be settled, by batch; the other batches were still looked at.
    """

    settlements: tuple[Settlement, ...]
    replays: tuple[ReplayRequest, ...]
    overdue: tuple[OverdueFollowUp, ...]
    errors: dict[int, str]


def sweep_once(
    database: Database, *, now: datetime | None = None, vacuum_after_seconds: float = 600
) -> Swept:
    """Settle all open batches that can be decided at ``now`` (default: the database's clock), find
    due replays and overdue follow-ups, and delete the deltas of decided batches. Return what was
    settled and found. Several sweeps may run at once.

    ``vacuum_after_seconds``: do not vacuum a table again within this time.
    """
    settled, errors = [], {}
    for batch_id in database.transact(batches.open_batches):
        try:
            settlement = settle_once(database, batch_id, now=now, skip_locked=True)
        except LedgerError as exc:  # the other batches do not wait for this one
            errors[batch_id] = str(exc)
            continue
        if settlement is not None:
            settled.append(settlement)
    instant = now or database.transact(batches.database_now)
    asking = database.transact(lambda c: replays.automatic_replays(c, instant))

    def note(connection: Connection, numbers: list[int]) -> None:
        following.note(connection, following.lock(connection, numbers))

    # No sweep looks at a batch with nothing pending again unless its records change.
    done = database.transact(following.done)
    for first in range(0, len(done), NOTED_AT_ONCE):
        database.transact(partial(note, numbers=done[first : first + NOTED_AT_ONCE]))

    def look(connection: Connection) -> list[OverdueFollowUp]:
        numbers = following.overdue(connection, instant - OVERDUE_AFTER)
        rows = [batches.get_batch(connection, number) for number in numbers]
        return [OverdueFollowUp(row.batch_id, row.dag_id, row.target) for row in rows]

    overdue = database.transact(look)
    for batch_id in database.transact(upkeep.decided_with_deltas):
        database.transact(partial(upkeep.remove_deltas, batch_id=batch_id))
    _vacuum(database, vacuum_after_seconds)
    database.transact(upkeep.note_sweep)
    return Swept(tuple(settled), tuple(asking), tuple(overdue), errors)


def _vacuum(database: Database, after_seconds: float) -> None:
    """Vacuum the tables that have dead rows, as the login, which has the owner's rights. A table
    that cannot be vacuumed waits for the next sweep.
    """
    for table in database.transact(lambda c: upkeep.tables_with_dead_rows(c, after_seconds)):
        try:
            with translated(database), database.autocommit.connect() as connection:
                upkeep.vacuum(connection, table)
        except LedgerError as exc:
            _log.warning("table %s is left for the next sweep to vacuum: %s", table, exc)
