"""Report of a run on its batch: a sentence, and the commands that follow from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ledger.batch.advice.actions import Action, Advice
from ledger.batch.advice.batches import publish
from ledger.batch.advice.records import by_cause, status_in_words
from ledger.batch.advice.sinks import of_sink
from ledger.batch.holds import as_text
from ledger.batch.outcome.summary import Summary
from ledger.batch.records.failures import ON_HOLD
from ledger.core.commands import ACCEPT_DAG, ANY_TARGET, CLEAR_SETTLE, ackledger
from ledger.core.states import BatchStatus, Outcome
from ledger.store.queries.failures import FailureSummary

# Exit codes: nothing is decided; records failed; quarantined records are not accepted.
ERROR, INCOMPLETE, QUARANTINED = 1, 3, 4


def advise(
    summary: Summary, target: str | None = None, accept_dag: str = ACCEPT_DAG
) -> Advice | None:
    """Return the advice on a batch; None if nothing of it is unpublished, tolerated, failed,
    quarantined or accepted, or if it is superseded and no publication of it is incomplete.
    ``target``: MODULE:PIPELINE, for a ledger that may not know it. ``accept_dag``: the DAG whose
    form accepts records of this ledger.
    """
    name, target = f"batch {summary.batch_id}", target or summary.target or ANY_TARGET
    if summary.stands is not None:
        stands = summary.stands
        return replace(stands, because=f"{name} is {summary.status.words}. {stands.because}")
    cases = [replace(case, target=target, accept_dag=accept_dag) for case in summary.cases]
    actions = tuple(chain(*by_cause(cases)))
    unpublished = [work for work in summary.pending if work.incomplete]
    if unpublished:
        because = f"{name}: {'; '.join(unpublished[0].sentences)}"
        first = publish(target, summary.batch_id, "Publish it", CLEAR_SETTLE)
        return Advice(because, first + actions)
    if summary.status is BatchStatus.SUPERSEDED:
        return None
    lost = [*_lost_records(summary)]
    if not lost:
        return None
    see = Action("See them", ackledger("failed", records=True, batch=summary.original_id))
    return Advice(f"{name}: {'; '.join(lost)}", (see, *actions))


def sink_advice(summary: Summary, target: str | None = None) -> list[Advice]:
    """Return the advice on each sink of a batch: its published rows, and the command that releases
    the others. ``target``: as for ``advise``.
    """
    target = target or summary.target or ANY_TARGET
    return [of_sink(row, target) for row in summary.sinks]


def _lost_records(summary: Summary) -> Iterator[str]:
    """Say how many records of a batch are tolerated, failed, quarantined or accepted."""
    roots, policy = summary.roots, summary.policy
    if policy.tolerated:
        yield (
            f"{policy.lost:,} of {policy.records:,} records of batch {summary.original_id} are "
            f"tolerated (allow_failed={policy.allow_failed:.4g}): they are failed or "
            "quarantined, and are replayed as ever"
        )
        return
    if roots.failed:
        yield f"{roots.failed:,} of {roots.total:,} records failed"
    if summary.unaccepted:
        yield f"{summary.unaccepted:,} of {roots.total:,} records are quarantined and not accepted"
    if summary.accepted:
        yield accepted_in_words(summary.accepted, summary.accepted_by, roots.total)


def accepted_in_words(accepted: int, by: Mapping[str, int], total: int) -> str:
    """Return in words who has accepted how many of the records of a batch."""
    names = ", ".join(name if len(by) == 1 else f"{name} ({by[name]:,})" for name in by)
    return f"{accepted:,} of {total:,} records accepted by {names or 'a person'}"


def report(
    summary: Summary,
    failures: Sequence[FailureSummary],
    target: str | None = None,
    accept_dag: str = ACCEPT_DAG,
) -> list[str]:
    """Return the lines of the report: counts, ``failures`` by step and reason, the published rows
    of each sink, and what to do. ``target`` and ``accept_dag`` are those of ``advise``.
    """
    roots, advice = summary.roots, advise(summary, target, accept_dag)
    lines = [
        f"batch {summary.batch_id} of {summary.pipeline} ({summary.kind}): {summary.outcome}",
        (
            f"{roots.total:,} records: {roots.acked:,} acked, {roots.failed:,} failed, "
            f"{summary.unaccepted:,} quarantined, {summary.accepted:,} accepted, "
            f"{roots.pending:,} pending"
        ),
        *_table(failures),
        *as_text(summary.preview),
        *(str(advice) for advice in sink_advice(summary, target)),
        *summary.waits,
        *summary.notes,
    ]
    if advice is not None:
        lines += advice.lines
    return lines


def _table(failures: Sequence[FailureSummary]) -> list[str]:
    """Return failed records by step and reason as text, in columns."""
    rows = [
        (row.step, row.reason, status_in_words(row.status, row.accepted_by), f"{row.records:,}")
        for row in failures
        if row.status != ON_HOLD  # which the preview has
    ]
    if not rows:
        return []
    rows.insert(0, ("step", "reason", "status", "records"))
    first, second, third, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [f"{a:{first}}  {b:{second}}  {c:{third}}  {count}" for a, b, c, count in rows]


def exit_code(summary: Summary) -> int:
    """Return the exit code of a command that ran the batch; 0: it is complete."""
    if summary.outcome is Outcome.COMPLETE:
        return 0
    if not summary.status.decided:
        return ERROR
    return QUARANTINED if summary.outcome is Outcome.QUARANTINED else INCOMPLETE
