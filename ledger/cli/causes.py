"""Failed records by cause, and what each cause needs: the end of ``failed`` and ``run``."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text
from sqlalchemy import Row

from ledger.batch.filters import require_names
from ledger.batch.remedies import Case, remedies
from ledger.cli import held, masks, tables
from ledger.cli.base import out
from ledger.core.text import quantity
from ledger.store.connection import Database
from ledger.store.queries import reports

_CASES = 3  # causes with their commands, at once
_ANY = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))


def print_causes(database: Database, chosen: Mapping[str, Any]) -> None:
    """Failed and quarantined records by step and reason, then what each cause needs."""
    rows = failures(database, chosen)
    if not rows:
        out.print(nothing(database, chosen), soft_wrap=True)
        return
    out.print(tables.failures(rows), crop=False)
    masks.print_legend(database, rows)
    held.print_ways(database, [row for row in rows if row.get("status") == held.STATUS])
    for head, *commands in advice(database, chosen):
        out.print(Text(head, style="yellow"))
        for command in commands:  # in a line that can be pasted
            out.print(Text(f"  {command}", style="yellow"), soft_wrap=True)


def failures(database: Database, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Failed and quarantined records by step and reason, and those that would fail of batches on
    hold.
    """
    rows = database.transact(
        lambda c: reports.failures(c, {**_ANY, **chosen}), engine=database.reader
    )
    shown = [*(dict(row._mapping) for row in rows), *held.failures(database, chosen)]
    if not shown:
        database.transact(lambda c: require_names(c, {**_ANY, **chosen}), engine=database.reader)
    return shown


def nothing(database: Database, chosen: Mapping[str, Any], where: str | None = None) -> str:
    """What is said where no failed record matches: of what there is none, and which command lists
    others. ``where``: a condition on fields."""
    words = {
        "pipeline": " of pipeline {}",
        "batch_id": " of batch {}",
        "step": " at {}",
        "reason": " for a reason like '{}'",
    }
    of, at = (
        "".join(words[name].format(chosen[name]) for name in names if chosen.get(name) is not None)
        for names in (("pipeline", "batch_id"), ("step", "reason"))
    )
    matching = "" if where is None else f", with {where}"
    sentence = f"no record{of} is failed or quarantined{at}{matching}"
    wider: list[dict[str, Any]] = [{}] if of or at or matching else []
    if chosen.get("batch_id") is not None and (at or matching):
        wider.insert(0, {"batch_id": chosen["batch_id"]})
    for scope in wider:
        if failures(database, scope):
            batch = "".join(f" --batch {number}" for number in scope.values())
            return f"{sentence}; see 'ackledger failed{batch}'"
    return sentence


def advice(database: Database, chosen: Mapping[str, Any]) -> Iterator[list[str]]:
    """What the failed records of each cause need: what to do, then a line for each command."""
    cases = database.transact(
        lambda c: reports.failed_cases(c, chosen), engine=database.payload_reader
    )
    yield from map(_advice, cases[:_CASES])
    if len(cases) > _CASES:
        yield _more_cases(cases[_CASES:])


def _more_cases(cases: Sequence[Row[Any]]) -> list[str]:
    """Where the advice is that did not fit."""
    where = f"batch {cases[0].batch_id} at {cases[0].step}"
    how = f"ackledger failed --batch {cases[0].batch_id} --step {shlex.quote(cases[0].step)}"
    return [f"{quantity(len(cases), 'more cause')}, first {where}:", how]


def _advice(case: Row[Any]) -> list[str]:
    """What the failed records of one cause need."""
    what, *commands = remedies(Case.of(case))
    records = quantity(case.records, "record")
    return [f"batch {case.batch_id}, {records} at {case.step}: {what}", *commands]
