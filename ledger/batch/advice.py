"""What a run says of its batch at its end: one sentence, and the commands that follow from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ledger.batch.holds import as_text
from ledger.batch.remedies import Case, State, next_steps, said_status
from ledger.batch.summary import Summary
from ledger.core.commands import ANY_TARGET, CLEAR_WITHHOLD
from ledger.core.states import BatchStatus, Outcome

# Exit codes: nothing is decided; records failed; quarantined records are not accepted.
ERROR, INCOMPLETE, QUARANTINED = 1, 3, 4


@dataclass(frozen=True)
class Advice:
    """``because``: what is missing. ``commands``: what each is for, and the command as it is
    typed. ``by_cause``: likewise, those that bring in the records of a cause, or end their batch
    without them.
    """

    because: str
    commands: tuple[tuple[str, str], ...] = ()
    by_cause: tuple[tuple[str, str], ...] = ()

    @property
    def every(self) -> tuple[tuple[str, str], ...]:
        """All commands."""
        return self.commands + self.by_cause

    @property
    def lines(self) -> list[str]:
        """What is missing, then a line for each command."""
        return [self.because, *(f"{what}: {how}" for what, how in self.every)]

    def __str__(self) -> str:
        return ". ".join(self.lines)


def advise(summary: Summary, target: str | None = None) -> Advice | None:
    """What to say of a batch; None if every record is acked. ``target``: of its pipeline, where the
    ledger may not know it.
    """
    name, target = f"batch {summary.batch_id}", target or summary.target or ANY_TARGET
    if not summary.status.decided:
        return Advice(f"{name} is {summary.status.words}. {summary.stands}", summary.ways)
    unpublished = [one for one in summary.undone if one.incomplete]
    if unpublished:
        return Advice(
            f"{name}: {'; '.join(unpublished[0].sentences)}",
            (
                ("Publish it", f"ackledger publish {target} --batch {summary.batch_id}"),
                ("In Airflow", CLEAR_WITHHOLD),
            ),
        )
    if summary.status is BatchStatus.SUPERSEDED:
        return None
    return _of_records(summary, name, target)


def _of_records(summary: Summary, name: str, target: str) -> Advice | None:
    """What to say of records that are not acked."""
    sentences = [*_lost(summary)]
    if not sentences:
        return None
    see = ("See them", f"ackledger failed --records --batch {summary.original_id}")
    return Advice(f"{name}: {'; '.join(sentences)}", (see,), _by_cause(summary, target))


def _lost(summary: Summary) -> Iterator[str]:
    roots, policy = summary.roots, summary.policy
    if policy.tolerated:
        yield (
            f"{policy.lost:,} of {policy.records:,} records of batch {summary.original_id} are "
            f"tolerated (tolerate={policy.tolerate:.4g}): they are failed or quarantined, and are "
            "replayed as ever"
        )
        return
    if roots.failed:
        yield f"{roots.failed:,} of {roots.total:,} records failed"
    if summary.unaccepted:
        yield f"{summary.unaccepted:,} of {roots.total:,} records are quarantined and not accepted"
    if summary.accepted:
        yield accepted_in_words(summary.accepted, summary.accepted_by, roots.total)


def accepted_in_words(accepted: int, by: Mapping[str, int], total: int) -> str:
    """Who has given up how many of the records of a batch."""
    names = ", ".join(name if len(by) == 1 else f"{name} ({by[name]:,})" for name in by)
    return f"{accepted:,} of {total:,} records accepted by {names or 'a person'}"


def _by_cause(summary: Summary, target: str) -> tuple[tuple[str, str], ...]:
    """For each cause how its records come in, or how the batch gets done without them."""
    number, found = summary.original_id, list[tuple[str, str]]()
    cases = [(count, replace(case, target=target)) for count, case in summary.cases]
    for count, case in cases:
        found += _of_case(count, case)
    states = {case.state for _, case in cases}
    if State.FAILED in states:
        found.append(("In Airflow", _trigger("ledger_replay", f'{{"batch": {number}}}')))
    if State.QUARANTINED in states:
        found.append(("Or accept what is quarantined", f'ackledger accept {number} --reason "..."'))
        form = f'{{"batch": {number}, "reason": "..."}}'
        found.append(("In Airflow", _trigger("ledger_accept", form)))
    return tuple(found)


def _of_case(count: int, case: Case) -> Iterator[tuple[str, str]]:
    """The first thing to do about the records of a case that has a command."""
    head = f"{count:,} at {case.step}"
    what, command = next_steps(case)[0]
    if command is not None:
        yield f"{head}: {what}", command
    else:
        then, command = next_steps(case)[1]
        assert command is not None
        yield f"{head}: {what}; {then}", command


def _trigger(dag: str, conf: str) -> str:
    return f"airflow dags trigger {dag} --conf '{conf}'"


def report(summary: Summary, failures: Sequence[Any], target: str | None = None) -> list[str]:
    """The whole of it, line by line: counts, ``failures`` by step and reason, what to do."""
    roots, advice = summary.roots, advise(summary, target)
    lines = [
        f"batch {summary.batch_id} of {summary.pipeline} ({summary.kind}): {summary.outcome}",
        (
            f"{roots.total:,} records: {roots.acked:,} acked, {roots.failed:,} failed, "
            f"{summary.unaccepted:,} quarantined, {summary.accepted:,} accepted, "
            f"{roots.pending:,} pending"
        ),
        *_table(failures),
        *as_text(summary.preview),
        *summary.waits,
    ]
    if advice is not None:
        lines += advice.lines
    return lines


def _table(failures: Sequence[Any]) -> list[str]:
    """Failed records by step and reason, in columns."""
    if not failures:
        return []
    rows = [("step", "reason", "status", "records")]
    rows += [
        (one.step, one.reason, said_status(one.status, one.accepted_by), f"{one.records:,}")
        for one in failures
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    return [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]))
        for row in rows
    ]


def exit_code(summary: Summary) -> int:
    """What a command that ran the batch ends with; 0: it is complete."""
    if summary.outcome is Outcome.COMPLETE:
        return 0
    if not summary.status.decided:
        return ERROR
    return QUARANTINED if summary.outcome is Outcome.QUARANTINED else INCOMPLETE
