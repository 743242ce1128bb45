"""Summary of a batch: its records by state, its steps, and the outcome that a run reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ledger.batch import follow_ups
from ledger.batch.advice.actions import Advice
from ledger.batch.advice.records import Case
from ledger.batch.follow_ups import Pending
from ledger.batch.holds import failures_of
from ledger.batch.one_plans import how_it_ran
from ledger.batch.outcome.unusual import unusual_drops
from ledger.batch.recovery import stands_at
from ledger.core.states import BatchStatus, Outcome
from ledger.store.connection import Database
from ledger.store.queries import acceptances, batches, failures, reports, sinks
from ledger.store.queries.sinks import SinkRows


@dataclass(frozen=True)
class RootCounts:
    """Records by state; total = acked + failed + quarantined + pending."""

    total: int
    acked: int
    failed: int
    quarantined: int
    pending: int


@dataclass(frozen=True)
class Policy:
    """The pipeline's rule for records that are not acked: see ``Pipeline``.

    ``lost``: number of failed and quarantined records of the original and its replays.
    ``records``: number of all their records.
    """

    allow_failed: float
    lost: int
    records: int

    @property
    def tolerated(self) -> bool:
        """Whether records are lost, and no more of them than are tolerated."""
        return self.lost > 0 and self.lost / self.records <= self.allow_failed


@dataclass(frozen=True)
class Summary:
    """State of one batch.

    ``steps``: the newest run of each step, with its rows and seconds.
    ``original_id``: the batch itself, or the original that it replays.
    ``accepted``: number of quarantined records that were accepted; ``accepted_by``: number by
    person.
    ``pending``: pending work of the follow-ups.
    ``cases``: records that are failed or wait in quarantine, by cause.
    ``stands``: why the batch is undecided, and how to go on; None: it is decided.
    ``preview``: failures that a batch on hold would record, by step and reason.
    ``target``: MODULE:PIPELINE, if the ledger knows it.
    ``sinks``: published rows of each sink.
    ``notes``: sentences on its steps for a person.
    """

    batch_id: int
    pipeline: str
    kind: str
    status: BatchStatus
    roots: RootCounts
    steps: list[dict[str, Any]]
    held_reason: str | None
    original_id: int
    accepted: int
    policy: Policy
    pending: tuple[Pending, ...] = ()
    cases: tuple[Case, ...] = ()
    stands: Advice | None = None
    preview: tuple[dict[str, Any], ...] = ()
    accepted_by: Mapping[str, int] = field(default_factory=dict)
    target: str | None = None
    sinks: tuple[SinkRows, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The outcome that a run reports. Nothing else depends on it: follow-ups and replays have
        their own conditions.
        """
        if not self.status.decided or any(work.incomplete for work in self.pending):
            return Outcome.INCOMPLETE
        if self.status is BatchStatus.SUPERSEDED or self.policy.tolerated:
            return Outcome.COMPLETE
        if self.roots.failed:
            return Outcome.INCOMPLETE
        return Outcome.QUARANTINED if self.unaccepted else Outcome.COMPLETE

    @property
    def waits(self) -> tuple[str, ...]:
        """Pending work that a complete batch may still have, in sentences: each state that it is
        not in.
        """
        return tuple(chain(*(work.sentences for work in self.pending if not work.incomplete)))

    @property
    def unaccepted(self) -> int:
        """Quarantined records that are not accepted."""
        return self.roots.quarantined - self.accepted


def summarize(database: Database, batch_id: int) -> Summary:
    """Return the summary of one batch, as of now."""
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    row = database.transact(lambda c: reports.batch_counts(c, batch_id))
    family = database.transact(lambda c: reports.batch_counts(c, batch.original_id))
    lost = family.failed + family.quarantined
    steps = database.transact(lambda c: reports.step_table(c, batch_id))
    cases = database.transact(lambda c: failures.cases(c, {"batch_id": batch_id}, Case.of))
    undecided = not BatchStatus(row.status).decided
    return Summary(
        batch_id,
        row.pipeline,
        row.kind,
        BatchStatus(row.status),
        RootCounts(row.total, row.acked, row.failed, row.quarantined, row.pending),
        [
            {
                "name": step.step,
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
        batch.original_id,
        row.accepted,
        Policy(batch.allow_failed, lost, family.total),
        database.transact(lambda c: follow_ups.pending(c, batch_id)),
        tuple(cases),
        database.transact(lambda c: stands_at(c, batch)) if undecided else None,
        database.transact(lambda c: failures_of(c, batch_id)) if undecided else (),
        database.transact(lambda c: acceptances.by_person(c, batch_id)),
        batch.target,
        tuple(database.transact(lambda c: sinks.of_batch(c, batch_id))),
        (
            *(
                f"source {step.step}: no record has column {name}: it is null in all of them"
                for step in steps
                for name in step.null_columns or ()
            ),
            *database.transact(lambda c: unusual_drops(c, batch_id)),
            *database.transact(lambda c: how_it_ran(c, batch_id)),
        ),
    )
