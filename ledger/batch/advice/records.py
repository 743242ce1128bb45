"""Advice on records, by their state and by the cause of their failure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ledger.batch.advice.actions import IN_AIRFLOW, Action, Actions
from ledger.core import commands
from ledger.core.commands import ACCEPT_DAG, ANY_TARGET, REASON, ackledger, trigger
from ledger.core.run_request import Interval
from ledger.core.states import FailureCause
from ledger.core.text import quantity

_CASES = 3  # causes with their commands, at once


class RecordState(StrEnum):
    """State of records.

    ``WAITING``: they wait for the time of their next replay.
    ``GIVEN_UP``: the next replay of their whole batch leaves them out.
    """

    ACKED = "acked"
    FAILED = "failed"
    WAITING = "waiting"
    GIVEN_UP = "given_up"
    REPLAYING = "replaying"
    QUARANTINED = "quarantined"
    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    SUPERSEDED = "superseded"
    FORGOTTEN = "forgotten"


def state_of(row: Any) -> RecordState:
    """Return the state of a row of ``records.failed_record``."""
    if row.batch_status == "superseded":
        return RecordState.SUPERSEDED
    if row.forgotten_at is not None and row.status == "quarantined":
        return RecordState.FORGOTTEN
    return RecordState(row.state)


# Of records for which nothing is pending: why.
NOTHING_LEFT = {
    RecordState.ACKED: "it is acked by every step",
    RecordState.RECOVERED: "a replay has processed it to every sink",
    RecordState.SUPERSEDED: "another batch replaced this one and has read its interval again",
    RecordState.FORGOTTEN: "its content was removed on request, and it is never replayed",
}
# States of records that are no longer just failed: a replay takes them by the option of that name.
OPTIONS = (RecordState.QUARANTINED, RecordState.ACCEPTED)
# What a replay of records needs first, by the cause of their failure; of the others, lost rows.
_REPLAYS = {
    FailureCause.UNPARSED: "if the schema was wrong instead, fix that and replay",
    **dict.fromkeys(
        (FailureCause.REJECTED, FailureCause.REPEATED),
        "{step} rejected {them}{why}: change its rule, then replay {those}",
    ),
    FailureCause.REFUSED: "{step} refused {them}{why}: change what it takes, or the stage before"
    " it, then replay {those}",
    FailureCause.LATE: "{step} did not commit in time, which is no fault of {those}: replay {them}"
    " once it can run",
}
_LOST = "fix {step}{joined}, then replay {those}"


@dataclass(frozen=True)
class Case:
    """A failed record, or the failed records of a batch that have the same cause.

    ``reason``: the reason of all of them.
    ``rereads``: whether their source finds a record again by its key.
    ``whole``: whether a replay takes their whole batch.
    ``reprocesses``: whether the interval can be run again.
    ``others``: whether the batch has other cases.
    ``joins``: whether the step has several inputs, or references.
    ``records``: number of records.
    ``record``: number by which the ledger knows the record, if the case is a single one.
    ``due_at``: time of their next replay.
    ``replay_batch_id``: the replay that is processing them.
    ``expired_at``: time at which retention removed the files of their batch.
    ``accept_dag``: the DAG whose form accepts records of this ledger.
    """

    target: str | None
    batch_id: int
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    dag_id: str
    step: str
    cause: FailureCause
    state: RecordState
    rereads: bool
    reprocesses: bool
    whole: bool = False
    reason: str | None = None
    others: bool = False
    records: int = 1
    record: int | None = None
    joins: bool = False
    due_at: datetime | None = None
    replay_batch_id: int | None = None
    expired_at: datetime | None = None
    accept_dag: str = ACCEPT_DAG

    @classmethod
    def of(cls, cause: str, state: str, **others: Any) -> "Case":
        """Return the case of a row of ``failures.cases``, column by column."""
        return cls(cause=FailureCause(cause), state=RecordState(state), **others)

    def in_words(self, sentence: str) -> str:
        """Return a sentence whose placeholders, such as ``{those}``, are filled in for these
        records, or for the single one.
        """
        is_one = self.record is not None
        return sentence.format(
            step=self.step,
            those="the record" if is_one else "the records",
            them="it" if is_one else "them",
            they="it" if is_one else "they",
            why="" if self.reason is None else f" ({' '.join(self.reason.split())})",
            joined=", or what it joins" if self.joins else "",
        )


def by_cause(cases: Sequence[Case]) -> list[Actions]:
    """Return the actions for each case. The first action of a case begins with its batch, step and
    number of records.

    Only the first cases are included; one more action points to the others.
    """
    actions: list[Actions] = []
    for case in cases[:_CASES]:
        first, *others = of_records(case)
        records = quantity(case.records, "record")
        head = f"batch {case.batch_id}, {records} at {case.step}: {first.what}"
        actions.append((Action(head, first.command), *others))
    if len(cases) > _CASES:
        case = cases[_CASES]
        more = quantity(len(cases) - _CASES, "more cause")
        command = ackledger("failed", batch=case.batch_id, step=case.step)
        actions.append((Action(f"{more}, first batch {case.batch_id} at {case.step}", command),))
    return actions


def of_records(case: Case) -> Actions:
    """Return the actions for a case. The first action gets its records processed."""
    if case.state in NOTHING_LEFT:
        return (Action(f"nothing: {NOTHING_LEFT[case.state]}"),)
    if case.state is RecordState.REPLAYING:
        status = ackledger("status", batch=case.replay_batch_id)
        return (Action(case.in_words("wait for the replay of {those}"), status),)
    if case.expired_at is not None:
        gone = f"the files of the batch were removed by retention on {case.expired_at:%Y-%m-%d}:"
        return (*_from_source(case, gone), *_ends(case))
    if case.state is RecordState.WAITING:
        assert case.due_at is not None
        due = f"{case.due_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        waits = case.in_words("{those} can be replayed from ") + f"{due} on (replay_backoff)"
        return (Action(waits), *_ends(case))
    if case.state is RecordState.GIVEN_UP:
        without = "no replay is left of {those}: to go on without {them}, replay the batch"
        return tuple(_replays(case, case.in_words(without)))
    if case.state is RecordState.ACCEPTED:
        after_all = "nothing, a person gave {them} up; to process {them} after all"
        return tuple(_replays(case, case.in_words(after_all)))
    return (*_ways_in(case), *_ends(case))


def _ways_in(case: Case) -> Iterator[Action]:
    """Yield the actions that get the records processed, depending on the cause of their failure."""
    correct = case.in_words("fix {those} in the source, then")
    if case.cause is FailureCause.UNPARSED:
        yield from _from_source(case, correct)
    yield from _replays(case, case.in_words(_REPLAYS.get(case.cause, _LOST)))
    is_rejected = case.cause in (FailureCause.REJECTED, FailureCause.REPEATED)
    if is_rejected and (case.rereads or case.reprocesses):
        yield from _from_source(case, f"or {correct}")


def _from_source(case: Case, before: str) -> Iterator[Action]:
    """Yield the actions that read the records from their source again."""
    if case.rereads:
        what = case.in_words("read {those} again, by key")
        yield from _replays(case, f"{before} {what}", from_source=True)
    elif case.reprocesses:
        interval = Interval(case.interval_start, case.interval_end, case.params)
        again = commands.run(case.target or ANY_TARGET, interval, "--reprocess")
        yield Action(f"{before} run the whole interval again", again)
        if case.dag_id:
            yield Action(IN_AIRFLOW, commands.reprocess_in_airflow(case.dag_id, interval))
    else:
        what = case.in_words("deliver {those} again, corrected, because the source is read once")
        yield Action(f"{before} {what}")


def _replays(case: Case, what: str, *, from_source: bool = False) -> Iterator[Action]:
    """Yield the command that replays these records and no others, and the run of the DAG that
    does.
    """
    selection: dict[str, Any] = {} if case.record is None else {"record": case.record}
    selection |= {"step": case.step} if case.others else {}
    selection |= {"from_source": True} if from_source else {}
    selection |= {case.state.value: True} if case.state in OPTIONS else {}
    target = case.target or ANY_TARGET
    what += ", with the whole batch" if case.whole else ""
    yield Action(what, ackledger("replay", target, batch=case.batch_id, **selection))
    if case.dag_id:
        conf = {"replay_of": case.batch_id, **selection}
        yield Action(IN_AIRFLOW, trigger(case.dag_id, conf))


def _ends(case: Case) -> Iterator[Action]:
    """Yield the actions that give the records up: accept them if they are quarantined, otherwise
    quarantine them.
    """
    if case.state is RecordState.QUARANTINED:
        accept = f"{ackledger('accept', case.batch_id)} {REASON}"
        yield Action("if what is quarantined of its batch may stay out", accept)
        if case.dag_id:
            form = {"batch": case.batch_id, "reason": "..."}
            yield Action(IN_AIRFLOW, trigger(case.accept_dag, form))
    elif case.state is not RecordState.ACCEPTED:
        those: dict[str, Any] = {"batch": case.batch_id, "step": case.step}
        number = () if case.record is None else (case.record,)
        command = ackledger("quarantine", *number, **({} if number else those))
        yield Action(case.in_words("if {they} can never be right"), f"{command} {REASON}")


def status_in_words(status: str, accepted_by: str | None) -> str:
    """Return the status of a record in words: for an accepted one, the person who accepted it."""
    return status if accepted_by is None else f"accepted by {accepted_by}"
