"""What the page of a record has."""

from dataclasses import asdict
from typing import Any

from ledger.batch.explain import explained
from ledger.batch.trace import trace
from ledger.errors import InputError
from ledger.store.connection import Database
from ledger.store.queries import pages


def record(database: Database, number: int) -> dict[str, Any]:
    """As ``ackledger explain`` has it, by what the ledger holds: storage and sources may be out of
    reach here.
    """
    return asdict(explained(database, number))


def pipeline_of(database: Database, number: int) -> str:
    """Raises InputError if there is no such record."""
    found = database.transact(lambda c: pages.pipeline_of_record(c, number))
    if found is None:
        raise InputError(f"record {number} is not in the ledger")
    return found


def tree(database: Database, number: int, attempt: int | None) -> dict[str, Any]:
    """As ``ackledger trace`` has it."""
    return asdict(trace(database, number, attempt))
