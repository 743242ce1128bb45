"""Restore of the ledger from a backup: numbers that it gave out after the backup are not given
again.
"""

from dataclasses import dataclass, field

from sqlalchemy import Connection

from ledger.store.connection import Database
from ledger.store.queries import batches, upkeep

# By how much the numbers are moved on. Nothing shows how many the ledger gave since its backup:
# files expire, and a sink may be of any kind. So each step is more than years give: ten thousand
# batches a day take 1,000 days for the first, with a hundred runs each as long for the second.
# Records stay below 2^53 for 9,000 restores, up to which a browser counts exactly.
BATCHES = 10_000_000
RUNS = 1_000_000_000
RECORDS = 1_000_000_000_000


@dataclass(frozen=True)
class Restored:
    """The numbers that come next after a restore.

    ``newest_batch``: the greatest number of a batch in the ledger; None: it has no batch.
    ``open_batches``: undecided batches, of which sinks may have more than the ledger knows.
    """

    newest_batch: int | None
    open_batches: list[int] = field(default_factory=list)
    next_batch: int = 0
    next_run: int = 0
    next_attempt: int = 0
    next_record: int = 0


def restored(database: Database) -> Restored:
    """Move the numbers of batches, runs, attempts and records on, past all that the ledger may have
    given out after the backup.

    Safe to repeat: each call moves them on once more, because a second restore of the same backup
    looks like the first.
    """

    def work(connection: Connection) -> Restored:
        newest = batches.newest_batch(connection)
        undecided = batches.undecided_batches(connection)
        return Restored(
            newest,
            undecided,
            upkeep.move_on(connection, "batch", "batch_id", BATCHES),
            upkeep.move_on(connection, "step_run", "step_run_id", RUNS),
            upkeep.move_on(connection, "step_run", "attempt_number", RUNS, "attempt_number"),
            batches.reserve_roots(connection, RECORDS, span=1) + RECORDS,
        )

    return database.transact(work, engine=database.owner)
