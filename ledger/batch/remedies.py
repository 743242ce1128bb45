"""What to do about failed records: from what they are by now, and from the cause of their failure,
to a sentence and a command that can be pasted. Whoever names a next step has it from here.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ledger.core import commands
from ledger.core.commands import ANY_TARGET
from ledger.core.run_request import Interval, moment

# What for, and the command; None: the sentence is all.
Step = tuple[str, str | None]


class State(StrEnum):
    """What records are by now. ``WAITING``: for their next replay. ``KEPT_BACK``: with a unit."""

    FAILED = "failed"
    WAITING = "waiting"
    KEPT_BACK = "kept_back"
    REPLAYING = "replaying"
    QUARANTINED = "quarantined"
    ACCEPTED = "accepted"


class Cause(StrEnum):
    """Why records failed last: they did not parse, a stage rejected them, a sink refused them, a
    step lost them, a step was late, or their unit lacks a record.
    """

    UNPARSED = "unparsed"
    REJECTED = "rejected"
    REFUSED = "refused"
    LOST = "lost"
    LATE = "late"
    UNIT = "unit"


# What a replay has to be told to take records that are no longer just failed.
_TAKEN_BY = {
    State.KEPT_BACK: "kept_back",
    State.QUARANTINED: "quarantined",
    State.ACCEPTED: "accepted",
}


@dataclass(frozen=True)
class Case:
    """A failed record, or the failed records of a batch that have the same cause.

    ``reason``: that of all of them. ``rereads``: their source finds a record again by its key.
    ``reprocesses``: the interval can be run again. ``others``: the batch has other cases.
    ``joins``: the step has several inputs, or references.
    ``record``: the number of the one record. ``due_at``: of their next replay.
    ``replay_batch_id``: the replay that has them.
    """

    target: str | None
    batch_id: int
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    dag_id: str
    step: str
    cause: Cause
    state: State
    rereads: bool
    reprocesses: bool
    reason: str | None = None
    others: bool = False
    record: int | None = None
    joins: bool = False
    due_at: datetime | None = None
    replay_batch_id: int | None = None

    @classmethod
    def of(cls, row: Any) -> "Case":
        """The case of a row of ``reports.failed_cases``."""
        fields = {name: value for name, value in row._mapping.items() if name != "records"}
        return cls(**{**fields, "cause": Cause(row.cause), "state": State(row.state)})

    @property
    def those(self) -> str:
        """The record, or the records, in a sentence."""
        return "the records" if self.record is None else "the record"

    @property
    def them(self) -> str:
        """The record, or the records, once they are named."""
        return "them" if self.record is None else "it"


def remedies(case: Case) -> list[str]:
    """What to do, and the commands, one a line."""
    lines = []
    for what, command in next_steps(case):
        if command is None:
            lines.append(what)
        elif command.startswith("airflow ") or what.startswith("if "):
            lines.append(f"{what}: {command}" if what else command)
        else:
            lines += [f"{what}:", command]
    return lines


def next_steps(case: Case) -> tuple[Step, ...]:
    """What to do about a case: the first is what brings its records in."""
    if case.state is State.REPLAYING:
        command = f"ackledger status --batch {case.replay_batch_id}"
        return ((f"wait for the replay of {case.those}", command),)
    if case.state is State.WAITING:
        assert case.due_at is not None
        due = f"{case.due_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        return ((f"{case.those} can be replayed from {due} on (replay_backoff)", None), _end(case))
    if case.state is State.ACCEPTED:
        again = f"nothing, a person gave {case.them} up; to process {case.them} after all"
        return ((again, replay_command(case)),)
    return (*_ways_in(case), _end(case))


def _end(case: Case) -> Step:
    """How the batch gets done without the records."""
    if case.state is State.QUARANTINED:
        accept = f'ackledger accept {case.batch_id} --reason "..."'
        return "if what is quarantined of its batch may stay out", accept
    they = "they" if case.record is None else "it"
    which = [str(case.record)]
    if case.record is None:
        which = [f"--batch {case.batch_id}", f"--step {shlex.quote(case.step)}"]
    command = f'ackledger quarantine {" ".join(which)} --reason "..."'
    return f"if {they} can never be right", command


def _ways_in(case: Case) -> Iterator[Step]:
    """How the records come in after all, by the cause of their failure."""
    correct = f"fix {case.those} in the source, then"
    again = f"{correct} read {case.those} again, by key"
    whole = f"{correct} run the whole interval again"
    match case.cause:
        case Cause.UNPARSED:
            if case.rereads:
                yield from _replays(case, again, from_source=True)
            elif case.reprocesses:
                yield from _reprocess(case, whole)
            else:
                yield f"its source is read once: deliver {case.those} again, corrected", None
            schema = "if the schema was wrong instead, fix that and replay"
            yield next(_replays(case, schema))
        case Cause.REJECTED:
            rule = f"{case.step} rejected {case.them}{_because(case)}: change its rule, then replay"
            yield from _replays(case, f"{rule} {case.those}")
            if case.rereads:
                yield next(_replays(case, f"or {again}", from_source=True))
            elif case.reprocesses:
                yield next(_reprocess(case, f"or {whole}"))
        case Cause.REFUSED:
            fit = "change what it takes, or the stage before it, then replay"
            what = f"{case.step} refused {case.them}{_because(case)}: {fit} {case.those}"
            yield from _replays(case, what)
        case Cause.LATE:
            late = f"{case.step} did not commit in time, which is no fault of {case.those}: replay"
            yield from _replays(case, f"{late} {case.them} once it can run")
        case Cause.UNIT:
            yield from _replays(case, f"replay {case.those}, whose unit lacks a record since")
        case _:
            joined = ", or what it joins" if case.joins else ""
            yield from _replays(case, f"fix {case.step}{joined}, then replay {case.those}")


def said_status(status: str, accepted_by: str | None) -> str:
    """What a record is by now, as people read it: a person's decision by name."""
    return status if accepted_by is None else f"accepted by {accepted_by}"


def _because(case: Case) -> str:
    return "" if case.reason is None else f" ({case.reason})"


def _replays(case: Case, what: str, *, from_source: bool = False) -> Iterator[Step]:
    """The command that replays the records, and the DAG's run that does."""
    yield what, replay_command(case, from_source=from_source)
    if case.dag_id:
        yield "", _trigger(case, {"replay_of": case.batch_id, **_selection(case, from_source)})


def replay_command(case: Case, *, from_source: bool = False) -> str:
    """The command that replays the records."""
    words = [f"ackledger replay {case.target or ANY_TARGET} --batch {case.batch_id}"]
    for name, value in _selection(case, from_source).items():
        option = f"--{name.replace('_', '-')}"
        words.append(option if value is True else f"{option} {shlex.quote(str(value))}")
    return " ".join(words)


def _selection(case: Case, from_source: bool) -> dict[str, Any]:
    """What a replay is told, to take these records and no others."""
    chosen: dict[str, Any] = {} if case.record is None else {"record": case.record}
    chosen |= {"step": case.step} if case.others else {}
    chosen |= {"from_source": True} if from_source else {}
    return chosen | ({_TAKEN_BY[case.state]: True} if case.state in _TAKEN_BY else {})


def _reprocess(case: Case, what: str) -> Iterator[Step]:
    yield what, reprocess_command(case)
    if case.dag_id:
        bounds = {
            "interval_start": moment(case.interval_start),
            "interval_end": moment(case.interval_end),
        }
        yield "", _trigger(case, {**bounds, **case.params, "reprocess": True})


def reprocess_command(case: Case) -> str:
    """The command that runs the interval of the records again."""
    interval = Interval(case.interval_start, case.interval_end, case.params)
    return commands.run(case.target or ANY_TARGET, interval, "--reprocess")


def _trigger(case: Case, conf: Mapping[str, Any]) -> str:
    return f"airflow dags trigger {case.dag_id} --conf {shlex.quote(json.dumps(conf))}"
