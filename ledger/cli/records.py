"""Commands about failed records: ``failed``, ``explain``, ``quarantine``."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ledger.batch.advice.records import status_in_words
from ledger.batch.quarantine import quarantine
from ledger.batch.records.explain import Explanation, explain
from ledger.batch.records.failed_records import (
    FailedMessage,
    failed_records,
    matching_numbers,
    read_failed,
)
from ledger.cli import causes, masks, tables
from ledger.cli.base import (
    RECORD_HELP,
    BatchNumber,
    Json,
    PipelineName,
    Records,
    Since,
    app,
    example,
    out,
    show,
    user,
)
from ledger.cli.listing import listed, place
from ledger.core.commands import ackledger
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.sources.base import Sought
from ledger.sources.registry import lines_of
from ledger.store.connection import Database
from ledger.store.upgrade import connect

_EXPLAINED = 5  # records that match a condition, at once
_MINUTE = "%Y-%m-%d %H:%M"
_COLUMNS = (
    "record", "batch_id", "pipeline", "source", "step", "reason", "status", "attempts", "key",
    "accepted_by", "source_file", "source_row", "content",
)  # fmt: skip


@app.command(epilog=example("failed", "failed --records --where \"order_id = 'O7'\""))
def failed(
    pipeline: PipelineName = None,
    batch: BatchNumber = None,
    step: Annotated[str | None, typer.Option(help="Only what failed last in this step.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Only what failed last for a reason like this SQL pattern.")
    ] = None,
    since: Annotated[datetime | None, Since] = None,
    recovered: Annotated[
        bool, typer.Option("--recovered", help="List records that a replay recovered.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="List the records, with key and content.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(help="Only records whose fields fit, for example \"order_id = 'O7'\"."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records listed at most.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all of them to FILE.csv or FILE.parquet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List failed records, by step and reason or one by one."""
    if since is not None and since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    filters = {
        "pipeline": pipeline, "batch_id": batch, "step": step, "reason": reason, "since": since,
        "recovered": recovered,
    }  # fmt: skip
    database = connect(Settings())
    if records or where is not None or output is not None:
        _records(database, filters, where, limit, output, as_json)
        return
    if as_json:
        show(causes.rows_of(database, filters), True, tables.failures)
    else:
        causes.print_causes(database, filters)


@app.command("explain", epilog=example("explain 28677", "explain \"order_id = 'O7'\""))
def explain_record(records: Records, as_json: Json = False) -> None:
    """Explain a record: content, where it was lost, what to do."""
    database = connect(Settings())
    if records.isdecimal():
        explained = asdict(explain(database, int(records)))
        show(explained, as_json, _explained)
        if not as_json:
            masks.print_legend(database, [explained])
        return
    numbers, total = matching_numbers(database, records, _EXPLAINED)
    explanations = [asdict(explain(database, number)) for number in numbers]
    show(explanations, as_json, lambda all: Group(*map(_explained, all)))
    if not as_json:
        masks.print_legend(database, explanations)
    if total > len(explanations) and not as_json:
        out.print(f"{total - len(explanations)} more match: ackledger failed --records --where ...")


@app.command("quarantine", epilog=example("quarantine 28677 --reason 'a test order'"))
def quarantine_records(
    reason: Annotated[str, typer.Option(help="Why, for those who look at the quarantine.")],
    record: Annotated[int | None, typer.Argument(help=RECORD_HELP)] = None,
    batch: BatchNumber = None,
    step: Annotated[
        str | None, typer.Option(help="Of the batch, only what failed last in this step.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give failed records up: the batch no longer waits for them.

    They are accepted at once, in your name. Records whose replays are used up are quarantined
    without anybody's word, and wait for 'accept'.
    """
    database, by = connect(Settings()), user()
    done = quarantine(database, reason, by, record=record, batch_id=batch, step=step)
    facts = asdict(done)
    show({**facts, "next": ". ".join(done.next) or None}, as_json, tables.facts)


def _records(
    database: Database,
    filters: Mapping[str, Any],
    where: str | None,
    limit: int,
    output: Path | None,
    as_json: bool,
) -> None:
    if output is not None:
        written = read_failed(database, filters, where, partial(_export, output))
        show({"file": str(output), "records": written}, as_json, tables.facts)
        return

    page, total = failed_records(database, filters, where, limit)
    records = [_record(row) for row in page]
    _add_lines(records)
    if not records and not as_json:
        out.print(causes.nothing(database, filters, where), soft_wrap=True)
        return
    show({"total": total, "records": [_shown(record) for record in records]}, as_json, listed)
    if not as_json:
        masks.print_legend(database, records)
        causes.print_sampled(database, filters, records)


def _record(row: FailedMessage) -> dict[str, Any]:
    fields = asdict(row)
    return {"record": fields.pop("message_id"), **fields}


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its layout, which only locates its line."""
    return {name: value for name, value in record.items() if name != "layout"}


def _add_lines(records: list[dict[str, Any]]) -> None:
    """The lines of records in their source files, for those without a key: one reading of each
    file by each source."""
    located = [
        record for record in records if record["key"] is None and record["source_row"] is not None
    ]
    for read in {_read_as(record) for record in located}:
        group, path = [record for record in located if _read_as(record) == read], read[0]
        lines = lines_of(
            path,
            [Sought(record["source_row"], record["content"], record["parsed"]) for record in group],
            group[0]["layout"] or {},
        )
        for record in group:
            record["source_line"] = lines.get(record["source_row"])


def _read_as(record: Mapping[str, Any]) -> tuple[str, str, str]:
    """The file of a record, and the source that read it."""
    return record["source_file"], record["pipeline"], record["source"]


def _export(path: Path, messages: Iterable[FailedMessage]) -> int:
    """Write records to a file by its ending; how many."""
    rows = (
        [json.dumps(value) if isinstance(value, dict) else value for value in _exported(row)]
        for row in messages
    )
    try:
        if path.suffix == ".csv":
            return _write_csv(path, rows)
        if path.suffix == ".parquet":
            return _write_parquet(path, rows)
    except OSError as exc:
        raise InputError(f"--output {path}: it cannot be written: {exc.strerror}") from exc
    raise InputError(f"--output {path}: expected a name that ends in .csv or .parquet")


def _exported(row: FailedMessage) -> list[Any]:
    record = _record(row)
    return [record[name] for name in _COLUMNS]


def _write_csv(path: Path, rows: Iterable[list[Any]]) -> int:
    records = list(rows)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(_COLUMNS)
        writer.writerows(records)
    return len(records)


def _write_parquet(path: Path, rows: Iterable[list[Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = {"record", "batch_id", "attempts", "source_row"}
    schema = pa.schema(
        [(name, pa.int64() if name in numbers else pa.string()) for name in _COLUMNS]
    )
    records = list(rows)
    columns = list(zip(*records, strict=True)) or [()] * len(_COLUMNS)
    pq.write_table(
        pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        ),
        path,
    )
    return len(records)


def _explained(data: Mapping[str, Any]) -> RenderableType:
    """All about one record."""
    explanation = Explanation(**data)
    facts = {
        "verdict": status_in_words(explanation.verdict, explanation.accepted_by),
        "source": f"{explanation.source} of {explanation.pipeline}, batch {explanation.batch_id}",
        "key": None if explanation.key is None else place(data),
        "read from": _read_from(explanation),
        "last seen": explanation.last_seen,
        "missing": explanation.missing,
        "content": explanation.content,
    }
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(min_width=12, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            table.add_row(f"  {name}", Text(value))
    lines = [f"attempt {_attempt(tried)}" for tried in explanation.attempts]
    lines += [
        f"{'quarantined' if row['by_hand'] else 'accepted'} by {row['accepted_by']} on"
        f" {row['accepted_at']:{_MINUTE}}: {row['reason']}"
        for row in explanation.decisions
    ]
    lines.append(f"row by row {ackledger('trace', explanation.record)}")
    steps = tables.line("\n".join(f"  {step}" for step in explanation.next), "yellow")
    return Group(
        Text(f"record {explanation.record}", style="bold"),
        table,
        Padding(Text("\n".join(lines)), (0, 0, 0, 2)),
        Text("next", style="bold"),
        steps,
    )


def _read_from(explanation: Explanation) -> str | None:
    if explanation.source_file is None or explanation.source_row is None:
        return explanation.source_file
    if explanation.source_line is not None:
        return f"{explanation.source_file}:{explanation.source_line}"
    return f"{explanation.source_file}, record {explanation.source_row}"


def _attempt(tried: Mapping[str, Any]) -> str:
    broke = f" at {tried['step']}: {tried['reason']}" if tried["step"] else ""
    when = f"{tried['decided_at']:{_MINUTE}}"
    return f"{tried['attempt']}  {tried['outcome']}{broke} (batch {tried['batch_id']}, {when})"
