"""The sweeper: decides what can be decided, fails what expired, and removes decided partitions."""

from dataclasses import dataclass
from datetime import datetime

from ledger.database.connection import Database, translated
from ledger.errors import UnavailableError
from ledger.queries import batches, replays
from ledger.queries import settlement as queries
from ledger.settlement import Settlement, settle_once


@dataclass(frozen=True)
class SweepOptions:
    """``drop_lock_timeout``: how long a clean-up may wait for writers before it is left for later."""

    drop_lock_timeout: str = "2s"


@dataclass(frozen=True)
class ReplayWish:
    """A batch whose pipeline asks for automatic replay, with the number of its failed messages."""

    batch_id: int
    pipeline: str
    messages: int


@dataclass(frozen=True)
class Swept:
    """``settlements``: of each open batch looked at. ``dropped``: partitions removed."""

    settlements: tuple[Settlement, ...]
    dropped: tuple[int, ...]
    replays: tuple[ReplayWish, ...]


def sweep_once(
    database: Database, options: SweepOptions | None = None, *, now: datetime | None = None
) -> Swept:
    """One sweep at ``now`` (default: the database's clock). Any number may run at once."""
    found = database.transact(batches.open_batches)
    settled = [settle_once(database, batch_id, now=now, skip_locked=True) for batch_id in found]
    dropped = _drop_decided(database, options or SweepOptions())
    wishes = database.transact(replays.automatic_replays)
    return Swept(
        tuple(one for one in settled if one is not None),
        tuple(dropped),
        tuple(ReplayWish(row.batch_id, row.pipeline, row.messages) for row in wishes),
    )


def _drop_decided(database: Database, options: SweepOptions) -> list[int]:
    """Detach and drop the partitions of decided batches, outside a transaction, as the owner."""
    dropped = []
    for batch_id in database.transact(queries.decided_partitions):
        try:
            with translated(database), database.owner.connect() as plain:
                connection = plain.execution_options(isolation_level="AUTOCOMMIT")
                queries.wait_at_most(connection, options.drop_lock_timeout)
                queries.detach_partition(connection, batch_id)
                queries.drop_partition(connection, batch_id)
            dropped.append(batch_id)
        except UnavailableError:
            continue  # somebody still writes there, or another sweeper drops it: the next sweep will
    return dropped
