"""Commands that remove: ``gc`` files that nothing needs any more, ``forget`` the content of
records.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ledger.batch.advice.batches import of_need
from ledger.batch.advice.records import status_in_words
from ledger.batch.records.failed_records import conditions_of, require_fields
from ledger.batch.records.filters import require_pipeline
from ledger.batch.records.forgetting import (
    Forgotten,
    Holding,
    holding,
    key_values,
    matching,
    named,
)
from ledger.batch.records.forgetting import forget as forget_records
from ledger.batch.upkeep.retention import Collected, GcOptions, gc_once
from ledger.cli import tables
from ledger.cli.base import Json, PipelineName, Records, app, err, example, show
from ledger.core.declarations import keep_seconds
from ledger.core.text import quantity
from ledger.errors import DeclarationError, InputError
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.upgrade import connect

if TYPE_CHECKING:
    from ledger.batch.records.held_values import HoldingFile

_SHOWN = 20  # records
_PUBLISHED = "rows in its sinks, which are yours to delete"
_SOURCE = "its source, if that is kept, which is yours, too"


@app.command(epilog=example("gc --dry-run", "gc --pipeline flights --keep 30d"))
def gc(
    pipeline: PipelineName = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Instead of what pipelines declare, for example 30d; at least 1d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be removed, and how much.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove files that nothing needs any more; safe at any time.

    Of pipelines that declare keep.
    """
    try:
        seconds = None if keep is None else keep_seconds("--keep", keep)
    except DeclarationError as exc:
        raise InputError(str(exc)) from exc
    options = GcOptions(pipeline, keep_seconds=seconds, dry_run=dry_run)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20))
    bar = Progress(
        *columns, MofNCompleteColumn(), console=err, transient=True, disable=not err.is_terminal
    )
    with bar:
        task = bar.add_task("looking at batches", total=None)
        collected = gc_once(
            _of_pipeline(pipeline),
            options,
            on_progress=lambda what, done, of: bar.update(
                task, description=what, completed=done, total=of
            ),
        )
    data = {**asdict(collected), "total": asdict(collected.total)}
    show(data, as_json, lambda _: _collected(collected))
    if collected.errors:
        raise typer.Exit(1)


def _of_pipeline(name: str | None) -> Database:
    """Connect to the ledger. Raises InputError if it does not know the pipeline of this name."""
    database = connect(Settings())
    if name is not None:
        database.transact(lambda c: require_pipeline(c, name))
    return database


def _collected(report: Collected) -> RenderableType:
    """Return the removed files and bytes by kind, and the old batches that are kept, and why."""
    removed = [
        {"kind": kind, "files": size.files, "size": decimal(size.bytes)}
        for kind, size in report.removed.items()
        if size.files
    ]
    verb = "would be removed" if report.dry_run else "removed"
    total = f"{quantity(report.total.files, 'file')}, {decimal(report.total.bytes)}, {verb}"
    parts: list[RenderableType] = [
        *([tables.rows(removed)] if removed else []),
        tables.line(f"{total}; batches that expired: {len(report.expired):,}"),
    ]
    counts = Counter((batch.pipeline, batch.need) for batch in report.needed)
    firsts = {(batch.pipeline, batch.need): batch.batch_id for batch in reversed(report.needed)}
    for (pipeline, need), batches in counts.items():
        first = firsts[pipeline, need]
        target = next(batch.target for batch in report.needed if batch.pipeline == pipeline)
        why = of_need(need, target, first)
        held = quantity(batches, "batch", "batches")
        text = f"{pipeline}: {held} kept, from batch {first} on: {why}"
        parts.append(tables.line(text, "yellow"))
    for batch_id, error in report.errors.items():
        parts.append(tables.line(f"batch {batch_id}: {error}", "red"))
    return Group(*parts)


@app.command(epilog=example("forget 28677", "forget \"customer = 'C7'\" --dry-run"))
def forget(
    records: Records,
    pipeline: PipelineName = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files", help="Remove the files of their batches, too, where nothing needs them."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the records, and what holds them.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask, as scripts need: it cannot be reversed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what failed records contain, permanently.

    Counts and verdicts stay as they are.
    """
    from ledger.batch.records.held_values import (
        files_with,  # loads pyarrow, which other commands spare
    )

    database = _of_pipeline(pipeline)
    by_number = records.isdecimal()
    if by_number:
        matches = named(database, int(records))
        sought = key_values(database, int(records))
    else:
        conditions = conditions_of(database, pipeline, records)
        equal = [condition for condition in conditions if condition.operator == "="]
        sought = [
            (condition.name, condition.value) for condition in equal if condition.value is not None
        ]
        matches = matching(database, pipeline, conditions)
        if not matches:
            require_fields(database, pipeline, conditions)
    values = [value for _, value in sought]
    left = holding(database, [row.record for row in matches])
    done = Forgotten(tuple(matches), tuple(left))
    searched = _FileSearch(sought, files_with(database, pipeline, values), by_key=by_number)
    if not dry_run and matches:
        if not yes:
            _confirm(Group(_forgotten(done, searched, dry_run=True), _held(done, searched)))
        done = forget_records(database, matches, files=files)
        searched = replace(searched, files=files_with(database, pipeline, values))
    data = {**asdict(done), "searched": bool(values), "files": [asdict(f) for f in searched.files]}
    both = Group(_forgotten(done, searched, dry_run), _held(done, searched))
    show(data, as_json, lambda _: both)


@dataclass(frozen=True)
class _FileSearch:
    """Result of a search for forgotten values in the stored files.

    ``values``: pairs of column and value. Empty: no file was searched.
    ``files``: the files that contain all values, each in any column, or that cannot be read.
    ``by_key``: whether the values are a record's key.
    """

    values: Sequence[tuple[str, str]]
    files: "Sequence[HoldingFile]"
    by_key: bool

    @property
    def for_what(self) -> str:
        """The values as a condition."""
        return " AND ".join(f"{name} = '{value}'" for name, value in self.values)


def _held(done: Forgotten, searched: _FileSearch) -> RenderableType:
    """Return the files that have the values, when they go, and the sinks that may have them."""
    if not searched.values:
        return tables.line(
            "files were not searched: name the person, ackledger forget \"... = '...'\""
        )
    of_what = f"files that have {searched.for_what}, in any column"
    parts = [tables.line(f"{of_what}: {len(searched.files):,}", "yellow")]
    for file in searched.files:
        until = "kept until you remove it: its pipeline declares no keep"
        if file.keep_seconds is not None:
            days = file.keep_seconds / 86_400
            until = f"ackledger gc removes it {days:g} days after the last act on its batch"
            until += ", once nothing needs it"
        parts.append(
            tables.line(f"{file.path} (batch {file.batch_id} of {file.pipeline}): {until}")
        )
    if searched.by_key:
        also = "a file without the key is not among them: search for what else names the person"
        parts.append(tables.line(f"{also}, ackledger forget \"... = '...'\""))
    others = {file.batch_id: file.pipeline for file in searched.files if file.published}
    for batch_id in sorted(others.keys() - {batch.batch_id for batch in done.holding}):
        sinks = f"batch {batch_id} of {others[batch_id]} may have {_PUBLISHED}"
        parts.append(tables.line(sinks, "yellow"))
    return Group(*parts)


def _confirm(planned: RenderableType) -> None:
    """Print the plan and ask the user. Raises InputError without a terminal."""
    if not sys.stdin.isatty():
        raise InputError(
            "what is forgotten cannot be brought back, so forget asks first, and there is"
            " no terminal here to answer. See what it would do with --dry-run, then add --yes"
        )
    err.print(planned, crop=False)
    typer.confirm("Forget them? This cannot be reversed", abort=True, err=True)


def _forgotten(done: Forgotten, searched: _FileSearch, dry_run: bool) -> RenderableType:
    """Return the forgotten records, and the batches that may still hold them."""
    if not done.records:
        return tables.line("no record that failed matches. Of others the ledger has counts alone")
    them = "it" if len(done.records) == 1 else "them"
    verb = "would be forgotten" if dry_run else f"forgotten: the ledger has no content of {them}"
    listed = [
        {
            "record": record.record,
            "pipeline": record.pipeline,
            "batch_id": record.batch_id,
            "status": status_in_words(record.status, record.accepted_by),
        }
        for record in done.records[:_SHOWN]
    ]
    parts: list[RenderableType] = [
        tables.labelled(listed),
        tables.line(f"{quantity(len(done.records), 'record')} {verb}"),
    ]
    if done.collected is not None:
        parts.append(_collected(done.collected))
    parts += [tables.line(_holds(batch, searched), "yellow") for batch in done.holding]
    return Group(*parts)


def _holds(batch: Holding, searched: _FileSearch) -> str:
    """Return a line on where a batch may still hold forgotten records, and how that ends."""
    parts = []
    if batch.files:
        until = "until you remove them: its pipeline declares no keep"
        if batch.keep_seconds is not None:
            until = "until ackledger gc removes them"
        parts.append(f"{quantity(batch.files, 'file')}, {decimal(batch.bytes)}, {until}")
        if searched.values:
            matches = sum(file.batch_id == batch.batch_id for file in searched.files)
            have = f"{matches:,} {'has' if matches == 1 else 'have'} it, listed below"
            parts.append(f"searched for {searched.for_what}: {have if matches else 'none has it'}")
    if batch.published:
        parts.append(_PUBLISHED)
    parts.append(_SOURCE)
    return f"batch {batch.batch_id} of {batch.pipeline} may hold them: {'; '.join(parts)}"
