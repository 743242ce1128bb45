"""Too many failures: a batch is put on hold, and keeps a preview of what its settlement, which is
rolled back, had computed.

The preview is for a person who decides. It is no verdict: no record changes its state by it, no
replay takes anything from it, and it is removed in the transaction that ends the hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from ledger.errors import TooManyFailedError
from ledger.store.connection import Database
from ledger.store.queries import holds
from ledger.store.queries import settlement as queries
from ledger.store.queries.batches import Batch

# Stands above what a batch on hold would record.
UNDECIDED = "On hold: not decided. These records would fail:"


@dataclass(frozen=True)
class Preview:
    """What a settlement would have recorded. ``failures``: by source, step and reason, the most
    first. ``sample``: of each the first records.
    """

    failures: Sequence[Mapping[str, Any]]
    sample: Sequence[Mapping[str, Any]]


class OverLimitError(TooManyFailedError):
    """Carries the preview out of the transaction that it rolls back."""

    def __init__(self, message: str, preview: Preview) -> None:
        super().__init__(message)
        self.preview = preview


def check_limit(connection: Connection, batch: Batch) -> None:
    """Raise OverLimitError if more of a batch's records newly failed, through their own fault, than
    its pipeline's ``max_failed_ratio`` allows.

    A record that an earlier batch of the family has failed counts there, and a replay's failures
    are measured by the original's records: a replay of what can never come right is no broken step.
    """
    limit = batch.max_failed_ratio
    if limit is None or batch.released:
        return
    failed, roots, step = holds.new_failures(connection, batch.batch_id, batch.original_id)
    records = roots or queries.total_roots(connection, batch.batch_id)
    if failed <= limit * records:
        return
    preview = Preview(*holds.computed_failures(connection, batch.batch_id, batch.original_id))
    counted = _counted(batch, failed, records)
    raise OverLimitError(f"{counted}. Most failed at {step}", preview)


def _counted(batch: Batch, failed: int, records: int) -> str:
    limit = f"the limit is {batch.max_failed_ratio or 0:.4%}".rstrip("%").rstrip("0").rstrip(".")
    limit += " % (max_failed_ratio)"
    if batch.original_id == batch.batch_id:
        return f"{failed:,} of {records:,} records failed; {limit}"
    return (
        f"{failed:,} records failed that had not failed before; batch {batch.original_id}, which"
        f" is replayed, has {records:,}, and {limit}"
    )


def keep(connection: Connection, batch_id: int, preview: Preview) -> None:
    """Keep the preview of a batch that this transaction puts on hold."""
    holds.insert(connection, batch_id, preview.failures, preview.sample)


def failures_of(connection: Connection, batch_id: int) -> tuple[dict[str, Any], ...]:
    """What the batch would record if it is on hold: source, step, reason, records; the most
    first."""
    return tuple(map(asdict, holds.preview(connection, batch_id)))


def lines(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """A preview as text, a line for each step and reason."""
    return [
        f"{failure['records']:,} at {failure['step']}: {failure['reason']}" for failure in failures
    ]


def as_text(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """A preview with its heading; nothing of a batch that has none."""
    return [UNDECIDED, *(f"  {line}" for line in lines(failures))] if failures else []


def preview_of(database: Database, batch_id: int) -> list[str]:
    """The preview of a batch, as text for a log."""
    return as_text(database.transact(lambda c: failures_of(c, batch_id)))
