"""What became of a batch: counts by state, steps, and whether it is complete."""

from dataclasses import dataclass
from typing import Any

from ledger.database.connection import Database
from ledger.queries import claims, combines, publications, reports
from ledger.remedies import Case, remedy
from ledger.state_runs import waits_for
from ledger.states import BatchStatus


@dataclass(frozen=True)
class RootCounts:
    """Records by state; total = acked + failed + quarantined + pending."""

    total: int
    acked: int
    failed: int
    quarantined: int
    pending: int


@dataclass(frozen=True)
class Summary:
    """One batch as ``batch_status`` and ``stage_progress`` have it. ``seconds`` per step. ``unread``:
    records of its interval that further batches are to read (``max_pending``). ``unpublished``: sinks that
    are yet to show what is decided of it. ``uncombined``: a combine of it is due. ``waits``: of each state over
    batches that it is not in, what that waits for. ``remedies``: what its failed records need, by cause."""

    batch_id: int
    pipeline: str
    kind: str
    status: BatchStatus
    roots: RootCounts
    stages: list[dict[str, Any]]
    held_reason: str | None
    unread: int = 0
    unpublished: int = 0
    uncombined: bool = False
    waits: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Decided, every record acked or quarantined, or replaced with its batch, and what is acked shown."""
        shown = self.unpublished == 0 and not self.uncombined
        return self.status.decided and self.roots.failed == 0 and shown

    @property
    def complete(self) -> bool:
        """Done, and nothing of its interval is left to read."""
        return self.done and self.unread == 0

    def incomplete_because(self) -> str:
        """One sentence: what is missing and what to do about it."""
        if self.done:
            return (
                f"batch {self.batch_id}: {self.unread} records of its interval wait for further batches (max_pending): "
                "run the same interval again, under another run id, until none is left"
            )
        if self.unpublished or self.uncombined:
            left = f"{self.unpublished} sinks" if self.unpublished else "combines"
            return (
                f"batch {self.batch_id}: {left} are yet to show what is acked of it: "
                "ackledger publish MODULE:PIPELINE, or in Airflow clear its task withhold and those behind it"
            )
        if self.status is BatchStatus.SETTLED:
            return (
                f"batch {self.batch_id}: {self.roots.failed} of {self.roots.total} records failed. See which and why: "
                f"ackledger failed --batch {self.batch_id} --records. {'; '.join(self.remedies)}"
            )
        reason = f" ({self.held_reason})" if self.held_reason else ""
        return f"batch {self.batch_id} is {self.status}{reason}: its steps have to run again"


def summarize(database: Database, batch_id: int) -> Summary:
    """The summary of one batch, as of now."""
    row = database.transact(lambda c: reports.batch_counts(c, batch_id))
    steps = database.transact(lambda c: reports.stage_table(c, batch_id))
    return Summary(
        batch_id,
        row.pipeline,
        row.kind,
        BatchStatus(row.status),
        RootCounts(row.total, row.acked, row.failed, row.quarantined, row.pending),
        [
            {
                "name": step.stage,
                "kind": step.kind,
                "state": step.state,
                "input": step.input_rows,
                "output": step.output_rows,
                "failed": step.failed_rows,
                "duplicates": step.duplicate_rows,
                "seconds": round(step.seconds, 2),
            }
            for step in steps
        ],
        row.held_reason,
        database.transact(lambda c: claims.unread(c, batch_id)),
        database.transact(lambda c: publications.unpublished(c, batch_id)),
        database.transact(lambda c: combines.combine_is_due(c, batch_id)),
        tuple(database.transact(lambda c: waits_for(c, batch_id))),
        tuple(
            remedy(row.records, Case.of(row))
            for row in database.transact(lambda c: reports.failed_cases(c, None, batch_id))
        ),
    )
