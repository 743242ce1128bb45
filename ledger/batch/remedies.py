"""What to do about failed records, as commands that can be pasted."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ledger.core import commands
from ledger.core.commands import ANY_TARGET
from ledger.core.run_request import Interval, moment


@dataclass(frozen=True)
class Case:
    """A failed record, or the failed records of a batch that have the same cause.

    ``at_source``: they did not parse. ``rereads``: their source finds a record again by its key.
    ``reprocesses``: the interval can be run again. ``record``: the number of the one record.
    ``held``: with their unit, which failed too often.
    """

    target: str | None
    batch_id: int
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    dag_id: str
    step: str
    at_source: bool
    rereads: bool
    reprocesses: bool
    record: int | None = None
    held: bool = False

    @classmethod
    def of(cls, row: Any) -> "Case":
        """The case of a row of ``reports.failed_cases``."""
        return cls(**{name: value for name, value in row._mapping.items() if name != "records"})


def remedy(count: int, case: Case) -> str:
    """What the failed records of one cause need, in one line."""
    what, command = remedies(case)[:2]
    return f"{count} at {case.step}: {what} {command}"


def remedies(case: Case) -> list[str]:
    """What to fix, and the commands, one a line."""
    one = case.record is not None
    those = "the record" if one else "the records"
    quarantine = _line("ackledger quarantine", *_which(case), '--reason "..."')
    if not case.at_source:
        return [
            f"fix {case.step}, or what it joins, then replay {those}:",
            *_replays(case),
            f"if {'it' if one else 'they'} can never be right: {quarantine}",
        ]
    return [
        *_reread(case, those, quarantine),
        f"if the schema was wrong instead, fix that and replay: {_replays(case)[0]}",
    ]


def _reread(case: Case, those: str, quarantine: str) -> list[str]:
    """How the corrected records come in, and how the wrong ones go."""
    if not case.rereads and not case.reprocesses:
        head = f"its source is read once: deliver {those}, corrected, anew, and quarantine the old:"
        return [head, quarantine]
    never = f"if {'they' if case.record is None else 'it'} can never be right: {quarantine}"
    if case.rereads:
        head = f"fix {those} in the source, then read {those} again, by key:"
        return [head, *_replays(case, from_source=True), never]
    head = f"fix {those} in the source, then run the whole interval again:"
    return [head, *_reprocess(case), never]


def _replays(case: Case, *, from_source: bool = False) -> list[str]:
    chosen = [
        f"--batch {case.batch_id}",
        *([] if case.record is None else [f"--record {case.record}"]),
    ]
    again = [*(["--from-source"] if from_source else []), *(["--held"] if case.held else [])]
    made = [_line("ackledger replay", case.target or ANY_TARGET, *chosen, *again)]
    if case.dag_id:
        conf: dict[str, Any] = {"replay_of": case.batch_id}
        conf |= {"record": case.record} if case.record is not None else {}
        conf |= {"from_source": True} if from_source else {}
        conf |= {"held": True} if case.held else {}
        given = shlex.quote(json.dumps(conf))
        made.append(_line("airflow dags trigger", case.dag_id, f"--conf {given}"))
    return made


def _reprocess(case: Case) -> list[str]:
    interval = Interval(case.interval_start, case.interval_end, case.params)
    made = [commands.run(case.target or ANY_TARGET, interval, "--reprocess")]
    if case.dag_id:
        bounds = {
            "interval_start": moment(case.interval_start),
            "interval_end": moment(case.interval_end),
        }
        given = shlex.quote(json.dumps({**bounds, **case.params, "reprocess": True}))
        made.append(_line("airflow dags trigger", case.dag_id, f"--conf {given}"))
    return made


def _which(case: Case) -> Sequence[str]:
    if case.record is not None:
        return [str(case.record)]
    return [f"--batch {case.batch_id}", f"--step {shlex.quote(case.step)}"]


def _line(*words: str) -> str:
    return " ".join(words)
