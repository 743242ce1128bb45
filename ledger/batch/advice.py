"""What a run says of its batch at its end: one sentence, and the commands that follow from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ledger.batch.holds import as_text
from ledger.batch.summary import Summary
from ledger.core.commands import ANY_TARGET, CLEAR_WITHHOLD
from ledger.core.states import BatchStatus, Outcome

# Exit codes: nothing is decided; records failed; quarantined records are not accepted.
ERROR, INCOMPLETE, QUARANTINED = 1, 3, 4


@dataclass(frozen=True)
class Advice:
    """``because``: what is missing. ``commands``: what each is for, and the command as it is
    typed.
    """

    because: str
    commands: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ". ".join((self.because, *(f"{what}: {how}" for what, how in self.commands)))


def advise(summary: Summary, target: str = ANY_TARGET) -> Advice | None:
    """What to say of a batch of the pipeline at ``target``; None if every record is acked."""
    name = f"batch {summary.batch_id}"
    if not summary.status.decided:
        return Advice(f"{name} is {summary.status.words}. {summary.stands}", summary.ways)
    unpublished = [one for one in summary.undone if one.incomplete and one.by_publish]
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
    """What to say of records that are not acked, or not read yet."""
    sentences = [*_lost(summary)]
    commands = _commands(summary, target) if sentences else ()
    sentences += chain(
        *(one.sentences for one in summary.undone if one.incomplete and not one.by_publish)
    )
    return Advice(f"{name}: {'; '.join(sentences)}", commands) if sentences else None


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
        yield f"{summary.accepted:,} of {roots.total:,} records are quarantined, and were accepted"


def _commands(summary: Summary, target: str) -> tuple[tuple[str, str], ...]:
    """How to see these records, to replay them once the cause is fixed, to accept them."""
    number, found = summary.original_id, []
    replay = f"ackledger replay {target} --batch {number}"
    if summary.roots.failed:
        found += [
            ("Once the cause is fixed, replay just these", replay),
            ("In Airflow", _trigger("ledger_replay", f'{{"batch": {number}}}')),
            *(("By cause", one) for one in summary.remedies),
        ]
    if summary.unaccepted:
        form = f'{{"batch": {number}, "reason": "..."}}'
        found += [
            ("Quarantined ones: replay them once the cause is fixed", f"{replay} --quarantined"),
            ("Or accept them", f'ackledger accept {number} --reason "..."'),
            ("In Airflow", _trigger("ledger_accept", form)),
        ]
    return (("See them", f"ackledger failed --records --batch {number}"), *found)


def _trigger(dag: str, conf: str) -> str:
    return f"airflow dags trigger {dag} --conf '{conf}'"


def report(summary: Summary, failures: Sequence[Any], target: str = ANY_TARGET) -> list[str]:
    """The whole of it, line by line: counts, ``failures`` by step and reason, what to do."""
    roots, advice = summary.roots, advise(summary, target)
    lines = [
        f"batch {summary.batch_id} of {summary.pipeline} ({summary.kind}): {summary.outcome}",
        (
            f"{roots.total:,} records: {roots.acked:,} acked, {roots.failed:,} failed, "
            f"{roots.quarantined:,} quarantined ({summary.accepted:,} of them accepted), "
            f"{roots.pending:,} pending"
        ),
        *_table(failures),
        *as_text(summary.preview),
        *summary.waits,
    ]
    if advice is not None:
        lines += [advice.because, *(f"{what}: {how}" for what, how in advice.commands)]
    return lines


def _table(failures: Sequence[Any]) -> list[str]:
    """Failed records by step and reason, in columns."""
    if not failures:
        return []
    rows = [("step", "reason", "status", "records")]
    rows += [(one.step, one.reason, str(one.status), f"{one.messages:,}") for one in failures]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    return [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]))
        for row in rows
    ]


def exit_code(summary: Summary) -> int:
    """What a command that ran the batch ends with; 0: its pipeline's policy is satisfied."""
    if summary.succeeds:
        return 0
    if not summary.status.decided:
        return ERROR
    return QUARANTINED if summary.outcome is Outcome.QUARANTINED else INCOMPLETE
