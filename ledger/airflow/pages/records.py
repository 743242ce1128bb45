"""What the page of a record has."""

from dataclasses import asdict
from typing import Any

from ledger.batch.explain import explained
from ledger.batch.trace import trace
from ledger.store.connection import Database


def record(database: Database, number: int) -> dict[str, Any]:
    """As ``ackledger explain`` has it, without what ``ackledger explain`` would copy first: the
    storage may be out of reach here.
    """
    return asdict(explained(database, number))


def pipeline_of(database: Database, number: int) -> str:
    """Raises InputError if there is no such record."""
    return explained(database, number).pipeline


def tree(database: Database, number: int, attempt: int | None) -> dict[str, Any]:
    """As ``ackledger trace`` has it."""
    return asdict(trace(database, number, attempt))
