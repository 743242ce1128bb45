"""Commands about records: ``failed``, ``explain``, ``trace``, ``quarantine``."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ledger.batch.advice.records import status_in_words
from ledger.batch.manual_actions import quarantine
from ledger.batch.records.explain import Explanation, explain
from ledger.batch.records.failed_records import (
    FailedMessage,
    failed_records,
    matching_numbers,
    read_failed,
)
from ledger.cli import causes, tables
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

_ROWS = 10  # of one step that came out of one row
_STYLES = {"passed on": "green", "acked": "green", "failed": "red", "lost": "red"}
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
        str | None,
        typer.Option(help="Only what has this cause, or a reason like this SQL pattern."),
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
    if output is not None:
        written = read_failed(database, filters, where, partial(_export, output))
        show({"file": str(output), "records": written}, as_json, tables.fact_lines)
    elif records or where is not None:
        _list_records(database, filters, where, limit, as_json)
    elif as_json:
        show(causes.rows_of(database, filters), True, tables.failures)
    else:
        causes.print_causes(database, filters)


@app.command("explain", epilog=example("explain 28677", "explain \"order_id = 'O7'\""))
def explain_record(records: Records, as_json: Json = False) -> None:
    """Explain a record: content, where it was lost, what to do."""
    database = connect(Settings())
    if records.isdecimal():
        total, explanations = 1, [asdict(explain(database, int(records)))]
        show(explanations[0], as_json, _explained)
    else:
        numbers, total = matching_numbers(database, records, _EXPLAINED)
        explanations = [asdict(explain(database, number)) for number in numbers]
        show(explanations, as_json, lambda all: Group(*map(_explained, all)))
    if as_json:
        return
    causes.print_legend(database, explanations)
    if total > len(explanations):
        out.print(f"{total - len(explanations)} more match: ackledger failed --records --where ...")


@app.command("trace", epilog=example("trace 28677", "trace 28677 --attempt 1"))
def trace_record(
    record: Annotated[int, typer.Argument(help=RECORD_HELP)],
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt, from 1, instead of the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rows derived from a record, step by step."""
    from ledger.batch.records.trace import trace  # numpy and pyarrow take longer than most commands

    show(asdict(trace(connect(Settings()), record, attempt)), as_json, _traced)


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
    show({**facts, "next": ". ".join(done.next) or None}, as_json, tables.fact_lines)


def _list_records(
    database: Database, filters: Mapping[str, Any], where: str | None, limit: int, as_json: bool
) -> None:
    """Print the failed records one by one. For those without a key, their lines in the source
    files are read: each file once for each source.
    """
    page, total = failed_records(database, filters, where, limit)
    records = [_record(row) for row in page]
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
    if not records and not as_json:
        out.print(causes.nothing(database, filters, where), soft_wrap=True)
        return
    # The layout of a record only locates its line.
    shown = [{name: row[name] for name in row if name != "layout"} for row in records]
    show({"total": total, "records": shown}, as_json, listed)
    if not as_json:
        causes.print_legend(database, records)
        causes.print_sampled(database, filters, records)


def _record(row: FailedMessage) -> dict[str, Any]:
    fields = asdict(row)
    return {"record": fields.pop("message_id"), **fields}


def _read_as(record: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the file of a record, and the source that read it."""
    return record["source_file"], record["pipeline"], record["source"]


def _export(path: Path, messages: Iterable[FailedMessage]) -> int:
    """Write records to a file of the kind that its name ends in, and return how many. Raises
    InputError for another ending, or if the file cannot be written.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"--output {path}: expected a name that ends in .csv or .parquet")
    rows = []
    for record in map(_record, messages):
        cells = [record[name] for name in _COLUMNS]
        rows.append([json.dumps(cell) if isinstance(cell, dict) else cell for cell in cells])
    try:
        if path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(_COLUMNS)
                writer.writerows(rows)
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            numbers = {"record", "batch_id", "attempts", "source_row"}
            kinds = [pa.int64() if name in numbers else pa.string() for name in _COLUMNS]
            columns = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
            arrays = [pa.array(cells, kind) for cells, kind in zip(columns, kinds, strict=True)]
            pq.write_table(pa.table(arrays, names=list(_COLUMNS)), path)
    except OSError as exc:
        raise InputError(f"--output {path}: it cannot be written: {exc.strerror}") from exc
    return len(rows)


def _explained(data: Mapping[str, Any]) -> RenderableType:
    """Return an explanation as a table of facts, the attempts, and the next steps."""
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
    lines = []
    for tried in explanation.attempts:
        broke = f" at {tried['step']}: {tried['reason']}" if tried["step"] else ""
        when = f"batch {tried['batch_id']}, {tried['decided_at']:{_MINUTE}}"
        lines.append(f"attempt {tried['attempt']}  {tried['outcome']}{broke} ({when})")
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
    """Return the place in a source file at which a record was read; None: it was read from no
    file.
    """
    if explanation.source_file is None or explanation.source_row is None:
        return explanation.source_file
    if explanation.source_line is not None:
        return f"{explanation.source_file}:{explanation.source_line}"
    return f"{explanation.source_file}, record {explanation.source_row}"


def _traced(data: Mapping[str, Any]) -> RenderableType:
    head = f"record {data['record']} of {data['pipeline']}: {data['verdict']}"
    place = f"attempt {data['attempt']} of {data['attempts']}, batch {data['batch_id']}"
    tree = Tree(_branch_label(data["tree"]))
    _grow(tree, data["tree"])
    failed = f"failed at {data['failed_at']}: {data['reason']}"
    return Group(
        Text(f"{head} ({place})", style="bold"),
        *([] if data["failed_at"] is None else [Text(failed, style="red")]),
        tree,
        tables.line(f"why, and what to do: {ackledger('explain', data['record'])}", "yellow"),
    )


def _grow(tree: Tree, row: Mapping[str, Any]) -> None:
    """Add the branches of a row to a tree: of each step the first ``_ROWS``."""
    for step, rows in groupby(row["branches"], key=lambda branch: branch["step"]):
        branches = list(rows)
        for branch in branches[:_ROWS]:
            _grow(tree.add(_branch_label(branch)), branch)
        if len(branches) > _ROWS:
            tree.add(Text(f"{len(branches) - _ROWS:,} more rows of {step}: --json has them"))


def _branch_label(branch: Mapping[str, Any]) -> Text:
    fate = str(branch["fate"])
    text = Text(branch["step"], style="bold")
    text.append(f"  {fate}", style=f"not bold {_STYLES.get(fate, 'yellow')}")
    if branch["reason"] is not None:
        text.append(f": {branch['reason']}", style="not bold")
    if branch["content"] is not None:
        text.append(f"  {branch['content']}", style="not bold")
    if branch["repeated"]:
        text.append("  (its branches are above)", style="not bold")
    return text
