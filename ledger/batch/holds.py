"""Hold a batch with too many failures, and keep a preview of the failures that its settlement had
computed before it was rolled back.

The preview is for a person who decides. It is no verdict: it changes no record's state, no replay
takes anything from it, and it is removed in the transaction that ends the hold.
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
    """Failures that a settlement would have recorded.

    ``failures``: counts by source, step and reason, the largest first.
    ``sample``: the first records of each.
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
    its pipeline's ``hold_above`` allows. A batch that a person has released passes.

    A record that failed in an earlier batch of the family does not count again. A replay's failures
    are measured by the original's number of records, because a replay of records that can never be
    right is no sign of a broken step.
    """
    limit = batch.hold_above
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
    limit = f"the limit is {batch.hold_above or 0:.4%}".rstrip("%").rstrip("0").rstrip(".")
    limit += " % (hold_above)"
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
    """Return the failures that a batch on hold would record, the largest counts first: source,
    step, reason, records. Empty for any other batch.
    """
    return tuple(map(asdict, holds.preview(connection, batch_id)))


def lines(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a preview as text, one line for each step and reason."""
    return [
        f"{failure['records']:,} at {failure['step']}: {failure['reason']}" for failure in failures
    ]


def as_text(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a preview with its heading; empty for a batch without a preview."""
    return [UNDECIDED, *(f"  {line}" for line in lines(failures))] if failures else []


def preview_of(database: Database, batch_id: int) -> list[str]:
    """Return the preview of a batch, as text for a log."""
    return as_text(database.transact(lambda c: failures_of(c, batch_id)))
