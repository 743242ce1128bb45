"""What to do about records: by what they are by now, and why they failed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ledger.batch.advice.actions import IN_AIRFLOW, Action, Actions
from ledger.core import commands
from ledger.core.commands import ANY_TARGET, REASON, ackledger, trigger
from ledger.core.run_request import Interval
from ledger.core.states import FailureCause
from ledger.core.text import quantity

_CASES = 3  # causes with their commands, at once


class RecordState(StrEnum):
    """What records are by now. ``WAITING``: for their next replay. ``KEPT_BACK``: with a unit."""

    ACKED = "acked"
    FAILED = "failed"
    WAITING = "waiting"
    KEPT_BACK = "kept_back"
    REPLAYING = "replaying"
    QUARANTINED = "quarantined"
    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    SUPERSEDED = "superseded"
    FORGOTTEN = "forgotten"


def state_of(row: Any) -> RecordState:
    """The state of a row of ``records.failed_record``."""
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
OPTIONS = (RecordState.KEPT_BACK, RecordState.QUARANTINED, RecordState.ACCEPTED)
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
    FailureCause.UNIT: "replay {those}, whose unit lacks a record since",
}
_LOST = "fix {step}{joined}, then replay {those}"


@dataclass(frozen=True)
class Case:
    """A failed record, or the failed records of a batch that have the same cause.

    ``reason``: that of all of them. ``rereads``: their source finds a record again by its key.
    ``reprocesses``: the interval can be run again. ``others``: the batch has other cases.
    ``joins``: the step has several inputs, or references. ``records``: how many they are.
    ``record``: the number of the one record. ``due_at``: of their next replay.
    ``replay_batch_id``: the replay that has them. ``expired_at``: when retention removed the files
    of their batch.
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
    reason: str | None = None
    others: bool = False
    records: int = 1
    record: int | None = None
    joins: bool = False
    due_at: datetime | None = None
    replay_batch_id: int | None = None
    expired_at: datetime | None = None

    @classmethod
    def of(cls, cause: str, state: str, **others: Any) -> "Case":
        """The case of a row of ``reports.failed_cases``, column by column."""
        return cls(cause=FailureCause(cause), state=RecordState(state), **others)

    def in_words(self, sentence: str) -> str:
        """A sentence about these records, or the one."""
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
    """What the records of each case need, with their number before it; of many cases the first."""
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
    """What to do about a case: the first is what brings its records in."""
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
    if case.state is RecordState.ACCEPTED:
        after_all = "nothing, a person gave {them} up; to process {them} after all"
        return tuple(_replays(case, case.in_words(after_all)))
    return (*_ways_in(case), *_ends(case))


def _ways_in(case: Case) -> Iterator[Action]:
    """How the records come in after all, by the cause of their failure."""
    correct = case.in_words("fix {those} in the source, then")
    if case.cause is FailureCause.UNPARSED:
        yield from _from_source(case, correct)
    yield from _replays(case, case.in_words(_REPLAYS.get(case.cause, _LOST)))
    is_rejected = case.cause in (FailureCause.REJECTED, FailureCause.REPEATED)
    if is_rejected and (case.rereads or case.reprocesses):
        yield from _from_source(case, f"or {correct}")


def _from_source(case: Case, before: str) -> Iterator[Action]:
    """How the records are read once more."""
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
    """The command that replays the records, and the DAG's run that does."""
    selection = _selection(case, from_source)
    target = case.target or ANY_TARGET
    yield Action(what, ackledger("replay", target, batch=case.batch_id, **selection))
    if case.dag_id:
        conf = {"replay_of": case.batch_id, **selection}
        yield Action(IN_AIRFLOW, trigger(case.dag_id, conf))


def _selection(case: Case, from_source: bool) -> dict[str, Any]:
    """The options by which a replay takes these records and no others."""
    selection: dict[str, Any] = {} if case.record is None else {"record": case.record}
    selection |= {"step": case.step} if case.others else {}
    selection |= {"from_source": True} if from_source else {}
    return selection | ({case.state.value: True} if case.state in OPTIONS else {})


def _ends(case: Case) -> Iterator[Action]:
    """How the batch gets done without the records."""
    if case.state is RecordState.QUARANTINED:
        accept = f"{ackledger('accept', case.batch_id)} {REASON}"
        yield Action("if what is quarantined of its batch may stay out", accept)
        if case.dag_id:
            form = {"batch": case.batch_id, "reason": "..."}
            yield Action(IN_AIRFLOW, trigger("ledger_accept", form))
    elif case.state is not RecordState.ACCEPTED:
        those: dict[str, Any] = {"batch": case.batch_id, "step": case.step}
        number = () if case.record is None else (case.record,)
        command = ackledger("quarantine", *number, **({} if number else those))
        yield Action(case.in_words("if {they} can never be right"), f"{command} {REASON}")


def status_in_words(status: str, accepted_by: str | None) -> str:
    """What a record is by now, as people read it: a person's decision by name."""
    return status if accepted_by is None else f"accepted by {accepted_by}"
