"""Commands about failed records: ``failed``, ``explain``, ``quarantine``."""

import csv
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection, Row

from ledger.batch.explain import Explanation, explain
from ledger.batch.payloads import keep_all
from ledger.batch.quarantine import quarantine
from ledger.batch.remedies import Case, remedies
from ledger.cli import held, tables
from ledger.cli.base import BatchNumber, Json, PipelineName, app, example, out, show, user
from ledger.core import conditions
from ledger.core.commands import ANY_TARGET
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.sources.base import Sought
from ledger.sources.registry import lines_of
from ledger.store.connection import Database
from ledger.store.queries import holds, payloads, redactions, reports
from ledger.store.upgrade import connect

_EXPLAINED = 5  # records that match a condition, at once
_CASES = 3
_MINUTE = "%Y-%m-%d %H:%M"
_COLUMNS = (
    "record", "batch_id", "pipeline", "source", "step", "reason", "status", "attempts", "key",
    "source_file", "source_row", "content",
)  # fmt: skip

Where = Annotated[
    str | None,
    typer.Option(help="Only records whose fields fit, for example \"order_id = 'O7'\"."),
]


@app.command(epilog=example("failed", "failed --records --where \"order_id = 'O7'\""))
def failed(
    pipeline: PipelineName = None,
    batch: BatchNumber = None,
    step: Annotated[str | None, typer.Option(help="Only what failed last in this step.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Only what failed last for a reason like this SQL pattern.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="List the records, with key and content.")
    ] = False,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Records listed at most.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all of them to FILE.csv or FILE.parquet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show failed and quarantined records: by step and reason, or one by one."""
    chosen = {"pipeline": pipeline, "batch_id": batch, "step": step, "reason": reason}
    database = connect(Settings())
    if records or where is not None or output is not None:
        _records(database, chosen, where, limit, output, as_json)
        return
    rows = database.transact(lambda c: reports.failures(c, chosen), engine=database.reader)
    on_hold = held.failures(database, chosen)
    show([*(dict(row._mapping) for row in rows), *on_hold], as_json, tables.failures)
    if not as_json:
        held.print_ways(database, on_hold)
        cases = database.transact(
            lambda c: reports.failed_cases(c, chosen), engine=database.payload_reader
        )
        for case in cases[:_CASES]:
            out.print(_advice(case), soft_wrap=True)
        if len(cases) > _CASES:
            out.print(_more_cases(cases[_CASES:]))


@app.command("explain", epilog=example("explain 28677"))
def explain_record(
    record: Annotated[
        int | None, typer.Argument(help="Its number, as 'failed --records' shows it, or a root.")
    ] = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Explain a record: verdict, where it was last seen, what is missing, content, attempts, what
    to do."""
    database = connect(Settings())
    if (record is None) == (where is None):
        raise InputError(
            "expected one record, for example 'ackledger explain 17', or "
            "--where \"order_id = 'O7'\""
        )
    if record is not None:
        show(asdict(explain(database, record)), as_json, _explained)
        return
    numbers, total = _matching(database, where)
    found = [explain(database, number) for number in numbers]
    show([asdict(one) for one in found], as_json, lambda all: Group(*map(_explained, all)))
    if total > len(found) and not as_json:
        out.print(f"{total - len(found)} more match: ackledger failed --records --where ...")


@app.command("quarantine", epilog=example("quarantine 28677 --reason 'a test order'"))
def quarantine_records(
    reason: Annotated[str, typer.Option(help="Why, for those who look at the quarantine.")],
    record: Annotated[int | None, typer.Argument(help="Its number, or a root of it.")] = None,
    batch: BatchNumber = None,
    step: Annotated[
        str | None, typer.Option(help="Of the batch, only what failed last in this step.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Move failed records to quarantine: they will never be right, nothing waits for them."""
    database, by = connect(Settings()), user()
    done = quarantine(database, reason, by, record=record, batch_id=batch, step=step)
    target = done.target or ANY_TARGET
    then = f"ackledger publish {target} --batch {done.batch_id}"
    show(
        {**asdict(done), "next": f"what waited for them goes on with: {then}"},
        as_json,
        tables.facts,
    )


def _records(
    database: Database,
    chosen: Mapping[str, Any],
    where: str | None,
    limit: int,
    output: Path | None,
    as_json: bool,
) -> None:
    conditions_ = conditions_of(database, chosen["pipeline"], where)
    keep_all(database, chosen["pipeline"])
    if output is not None:
        written = database.transact(
            lambda c: _export(output, payloads.records(c, chosen, conditions_, None))
        )
        show({"file": str(output), "records": written}, as_json, tables.facts)
        return

    def look(connection: Connection) -> tuple[list[dict[str, Any]], int]:
        found = [_record(row) for row in payloads.records(connection, chosen, conditions_, limit)]
        total = payloads.count(connection, chosen, conditions_)
        sampled = [_record(row) for row in holds.sample(connection, chosen, conditions_, None)]
        found += sampled[: max(0, limit - len(found))]
        total += len(sampled)
        if not total and conditions_:
            check_fields(connection, chosen, conditions_)
        return found, total

    found, total = database.transact(look)
    _add_lines(found)
    show({"total": total, "records": [_shown(one) for one in found]}, as_json, _listed)
    if not as_json:
        held.print_sampled(database, chosen, found)


def _matching(database: Database, where: str | None) -> tuple[list[int], int]:
    """The first records that ever failed and that a condition names, and how many there are."""
    parsed, anything = conditions_of(database, None, where), {"ever": True}
    keep_all(database, None)

    def look(connection: Connection) -> tuple[list[int], int]:
        found = [
            row.message_id for row in payloads.records(connection, anything, parsed, _EXPLAINED)
        ]
        total = payloads.count(connection, anything, parsed)
        sampled = {row.message_id for row in holds.sample(connection, {}, parsed, None)}
        sampled = sorted(sampled.difference(found))
        found += sampled[: _EXPLAINED - len(found)]
        total += len(sampled)
        if not total:
            check_fields(connection, anything, parsed)
            raise InputError(
                f"no record that failed has {where}. Of what is acked at once the ledger keeps"
                " counts alone: look for it in the sinks, or name its root"
            )
        return found, total

    return database.transact(look)


def conditions_of(
    database: Database, pipeline: str | None, where: str | None
) -> list[conditions.Comparison]:
    """What --where says; a redacted key is found as well."""
    redacting = database.transact(lambda c: redactions.of_pipelines(c, pipeline))
    return conditions.with_pseudonyms(conditions.parse(where), redacting)


def check_fields(
    connection: Connection, chosen: Mapping[str, Any], given: Iterable[conditions.Comparison]
) -> None:
    """Raise InputError if a condition that fits nothing names a field that no record has."""
    known = payloads.known_fields(connection, chosen)
    for one in given:
        if known and one.name not in known:
            raise InputError(
                f"--where names {one.name!r}: the records have {', '.join(sorted(known))}"
            )


def _record(row: Row[Any]) -> dict[str, Any]:
    found = dict(row._mapping)
    return {"record": found.pop("message_id"), **found}


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """A record without what only finds its line."""
    return {name: value for name, value in found.items() if name != "layout"}


def _add_lines(found: list[dict[str, Any]]) -> None:
    """The lines of records in their source files, for those without a key: one reading of each
    file by each source."""
    located = [one for one in found if one["key"] is None and one["source_row"] is not None]
    for read in {_read_as(one) for one in located}:
        mine, path = [one for one in located if _read_as(one) == read], read[0]
        lines = lines_of(
            path,
            [Sought(one["source_row"], one["content"], one["parsed"]) for one in mine],
            mine[0]["layout"] or {},
        )
        for one in mine:
            one["source_line"] = lines.get(one["source_row"])


def _read_as(one: Mapping[str, Any]) -> tuple[str, str, str]:
    """The file of a record, and the source that read it."""
    return one["source_file"], one["pipeline"], one["source"]


def _export(path: Path, found: Iterable[Row[Any]]) -> int:
    """Write records to a file by its ending; how many."""
    rows = (
        [json.dumps(value) if isinstance(value, dict) else value for value in _exported(row)]
        for row in found
    )
    try:
        if path.suffix == ".csv":
            return _write_csv(path, rows)
        if path.suffix == ".parquet":
            return _write_parquet(path, rows)
    except OSError as exc:
        raise InputError(f"--output {path}: it cannot be written: {exc.strerror}") from exc
    raise InputError(f"--output {path}: expected a name that ends in .csv or .parquet")


def _exported(row: Row[Any]) -> list[Any]:
    record = _record(row)
    return [record[name] for name in _COLUMNS]


def _write_csv(path: Path, rows: Iterable[list[Any]]) -> int:
    given = list(rows)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(_COLUMNS)
        writer.writerows(given)
    return len(given)


def _write_parquet(path: Path, rows: Iterable[list[Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = {"record", "batch_id", "attempts", "source_row"}
    schema = pa.schema(
        [(name, pa.int64() if name in numbers else pa.string()) for name in _COLUMNS]
    )
    given = list(rows)
    columns = list(zip(*given, strict=True)) or [()] * len(_COLUMNS)
    pq.write_table(
        pa.table(
            [pa.array(one, kind) for one, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        ),
        path,
    )
    return len(given)


def _listed(data: Mapping[str, Any]) -> RenderableType:
    """Records, a line each: the content is cut to the terminal."""
    found, total = data["records"], data["total"]
    if not found:
        return Text("no record is failed or quarantined, or none of them matches")
    table = Table(
        header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True
    )
    table.add_column("record", no_wrap=True, justify="right")
    for name, widest in (("key or line", 30), ("step", 20), ("reason", 30), ("status", 11)):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=widest)
    table.add_column("content", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in found:
        shown = (
            _place(one),
            one["step"],
            one["reason"],
            one["status"],
            one["content"] or "not kept yet",
        )
        table.add_row(str(one["record"]), *(Text(_one_line(cell)) for cell in shown))
    more = (
        f"{len(found)} of {total} records: --limit {total} lists all, --output FILE.csv writes "
        "them to a file"
    )
    said = [Text(more)] if total > len(found) else []
    return Group(table, *said, Text(f"All about one: ackledger explain {found[0]['record']}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _place(one: Mapping[str, Any]) -> str:
    """What people know a record by: its key, else where it was read."""
    if one["key"] is not None:
        return ", ".join(f"{name}={_plain(value)}" for name, value in one["key"].items())
    if one["source_file"] is None:
        return ""
    name = Path(one["source_file"]).name
    if one.get("source_line") is not None:
        return f"{name}:{one['source_line']}"
    return name if one["source_row"] is None else f"{name} record {one['source_row']}"


def _plain(value: object) -> str:
    return "?" if value is None else str(value)


def _explained(data: Mapping[str, Any]) -> RenderableType:
    """All about one record."""
    one = Explanation(**data)
    facts = {
        "verdict": one.verdict,
        "source": f"{one.source} of {one.pipeline}, batch {one.batch_id}",
        "key": None if one.key is None else _place(data),
        "read from": _read_from(one),
        "last seen": one.last_seen,
        "missing": one.missing,
        "content": one.content,
    }
    lines = [f"  {name:<10} {value}" for name, value in facts.items() if value is not None]
    lines += [f"  attempt {_attempt(tried)}" for tried in one.attempts]
    lines += [
        f"  quarantined by {row['quarantined_by']} on {row['quarantined_at']:{_MINUTE}}: "
        + row["reason"]
        for row in one.quarantined_by_hand
    ]
    head = f"record {one.record}" + (f", now root {one.root}" if one.root != one.record else "")
    lines.append(f"  row by row ackledger trace {one.record}")
    steps = tables.line("\n".join(f"  {step}" for step in one.next), "yellow")
    return Group(
        Text(head, style="bold"), Text("\n".join(lines)), Text("next", style="bold"), steps
    )


def _read_from(one: Explanation) -> str | None:
    if one.source_file is None or one.source_row is None:
        return one.source_file
    if one.source_line is not None:
        return f"{one.source_file}:{one.source_line}"
    return f"{one.source_file}, record {one.source_row}"


def _attempt(tried: Mapping[str, Any]) -> str:
    broke = f" at {tried['step']}: {tried['reason']}" if tried["step"] else ""
    place = f"batch {tried['batch_id']}, root {tried['root_id']}"
    when = f"{tried['decided_at']:{_MINUTE}}"
    return f"{tried['attempt']}  {tried['outcome']}{broke} ({place}, {when})"


def _more_cases(cases: Sequence[Row[Any]]) -> Text:
    """Where the advice is that did not fit."""
    where = f"batch {cases[0].batch_id} at {cases[0].step}"
    how = f"ackledger failed --batch {cases[0].batch_id} --step {shlex.quote(cases[0].step)}"
    return Text(f"{len(cases)} more causes, first {where}: {how}", style="yellow")


def _advice(case: Row[Any]) -> Text:
    """What the failed records of one cause need."""
    head = f"batch {case.batch_id}, {case.records} at {case.step}: "
    return Text(head + "\n  ".join(remedies(Case.of(case))), style="yellow")
