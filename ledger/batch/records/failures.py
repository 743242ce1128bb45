"""Failed and quarantined records by step and reason, and those that would fail of batches on
hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from ledger.batch.advice.records import Case
from ledger.batch.records.filters import require_names
from ledger.batch.recovery import on_hold
from ledger.store.connection import Database
from ledger.store.queries import batches, holds
from ledger.store.queries import failures as queries
from ledger.store.queries.failures import FailureSummary

ON_HOLD = holds.ON_HOLD
SAMPLE = holds.SAMPLE
_ANY = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))


def failures(database: Database, filters: Mapping[str, Any]) -> list[FailureSummary]:
    """Return failed records by step and reason, and those that would fail of batches on hold.

    ``filters``: as for ``queries.summaries``; an omitted one matches any record. Raises InputError
    if there are none, and the ledger knows no such batch, step or the like.
    """

    def look(connection: Connection) -> list[FailureSummary]:
        rows = queries.summaries(connection, {**_ANY, **filters})
        if not filters.get("recovered"):
            rows += holds.failures(connection, filters)
        if not rows:
            require_names(connection, {**_ANY, **filters})
        return rows

    return database.transact(look, engine=database.reader)


def cases(database: Database, filters: Mapping[str, Any]) -> list[Case]:
    """Return failed and quarantined records, by cause. ``filters``: as for ``failures``."""
    return database.transact(
        lambda c: queries.cases(c, filters, Case.of), engine=database.payload_reader
    )


def holds_of(database: Database, batch_ids: Sequence[int]) -> list[str]:
    """Return for each of these batches that is on hold why, and what to do."""

    def look(connection: Connection) -> list[str]:
        numbers = holds.batches_on_hold(connection, batch_ids)
        return [on_hold(connection, batches.get_batch(connection, number)) for number in numbers]

    return database.transact(look, engine=database.reader)
