"""Content of a batch's page: where its rows went, its lost records, and the possible actions."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from ledger.batch.outcome.report import advise
from ledger.batch.outcome.summary import Summary, summarize
from ledger.batch.pages.flow import flow
from ledger.batch.pages.overview import PageBatch, page_batches
from ledger.core.commands import ACCEPT_DAG
from ledger.core.run_request import Selection
from ledger.core.states import BatchKind, BatchStatus, HoldCause
from ledger.errors import InputError, NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import batches, pages, records, replays, reports
from ledger.store.queries import failures as queries
from ledger.store.queries.batches import Batch
from ledger.store.queries.failures import FailureGroup
from ledger.store.queries.pages import Publication
from ledger.store.queries.records import ListedRecord
from ledger.store.queries.replays import DueRecords, LeftOut, WaitingRecords

_GROUPS = 50  # causes that a preview lets a person choose from
_FAMILY = 101  # an original and its latest replays


@dataclass(frozen=True)
class BatchPage:
    """Content of the page of a batch.

    ``batch``: the batch with its counts.
    ``family``: its original and the latest replays.
    ``today``: the original with its counts, which include those of its replays.
    ``outcome``, ``because``, ``commands``, ``waits``: as a run reports them.
    ``steps``, ``edges``: see ``flow``.
    ``failures``: counts by step and reason, the first of ``groups``.
    ``preview``: failures that a batch on hold would record, by step and reason.
    ``publications``: publications by sink.
    ``can``: the actions that make sense.
    """

    today: PageBatch
    batch: PageBatch
    family: list[PageBatch]
    steps: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    failures: list[FailureGroup]
    groups: int
    preview: list[dict[str, Any]]
    publications: list[Publication]
    can: list[str]
    outcome: str
    because: str | None
    commands: list[list[str | None]]
    waits: list[str]


@dataclass(frozen=True)
class RecordsPage:
    """Records that failed in a batch, one page of them.

    ``next``: ``after`` of the next page; None: this is the last page.
    """

    records: list[ListedRecord]
    next: int | None


@dataclass(frozen=True)
class ReplayPreview:
    """A replay that could be started, and the records that it would take.

    ``records``: number of records that would be replayed, at most ``limit``.
    ``match``: number of records that match and are due.
    ``groups``: the largest groups of these by step and reason; ``more``: number of the other
    groups.
    ``steps``: steps that would run.
    ``whole``: whether all other records of the batch run again with them.
    ``batch_id``: the original.
    ``dag_id``, ``conf``: the run of Airflow that would do it.
    ``left_out``: quarantined records that match and that a person accepted.
    ``waiting``: all records of the original that no replay has recovered.
    """

    records: int
    match: int
    limit: int | None
    groups: list[DueRecords]
    more: int
    steps: list[str]
    whole: bool
    batch_id: int
    dag_id: str
    conf: dict[str, Any]
    left_out: list[LeftOut]
    waiting: WaitingRecords


def original_of(database: Database, number: int) -> Batch:
    """Return the original of a batch. Raises NotReadyError if there is no such batch; the message
    does not list the batches, which not every user may see.
    """
    try:
        return database.transact(
            lambda c: batches.get_batch(c, batches.get_batch(c, number).original_id)
        )
    except InputError as exc:
        raise NotReadyError(f"batch {number} is not in the ledger") from exc


def pipeline_of_record(database: Database, number: int) -> str:
    """Return the pipeline of a record. Raises InputError if there is no such record."""
    name = database.transact(lambda c: pages.pipeline_of_record(c, number))
    if name is None:
        raise InputError(f"record {number} is not in the ledger")
    return name


def batch(database: Database, number: int, accept_dag: str = ACCEPT_DAG) -> BatchPage:
    """Return the content of the page of a batch. Raises InputError if there is no such batch.

    ``accept_dag``: the DAG whose form accepts records of this ledger.
    """
    summary = summarize(database, number)
    advice = advise(summary, accept_dag=accept_dag)

    def work(connection: Connection) -> BatchPage:
        itself = batches.get_batch(connection, number)
        related = reports.family(connection, number, _FAMILY)
        family = page_batches(connection, [number, *related])
        counted = queries.groups(connection, number)
        failures = [row for row in counted if row.reason is not None]
        # Of a batch on hold, the records that would be missing.
        losses: list[dict[str, Any]] = [
            *({**asdict(row), "missing": row.missing} for row in counted if row.reason is None),
            *({**row, "missing": row["records"]} for row in summary.preview),
        ]
        steps, edges = flow(
            itself.topology,
            summary.steps,
            losses,
            [asdict(row) for row in pages.drops(connection, number)],
            pages.followed(connection, number),
        )
        return BatchPage(
            today=family[itself.original_id],
            batch=family[number],
            family=list(family.values()),
            steps=steps,
            edges=edges,
            failures=failures,
            groups=failures[0].groups if failures else 0,
            preview=list(summary.preview),
            publications=pages.published(connection, number),
            can=_possible_actions(summary),
            outcome=str(summary.outcome),
            because=advice.because if advice else None,
            commands=[[action.what, action.command] for action in advice.actions] if advice else [],
            waits=[*summary.waits, *summary.notes],
        )

    return database.transact(work)


def _possible_actions(summary: Summary) -> list[str]:
    """Return the actions that make sense for a batch: for a settled original replay, retry (of
    quarantined records) and accept; for a batch that too many failures put on hold, release. The
    records of a replay belong to its original.
    """
    if summary.preview:
        return ["release"]
    if summary.status is not BatchStatus.SETTLED or summary.kind != BatchKind.ORIGINAL:
        return []
    actions = ["replay"] if summary.roots.failed else []
    return actions + (["retry", "accept"] if summary.unaccepted else [])


def failed(database: Database, number: int, filters: Mapping[str, Any]) -> RecordsPage:
    """Return a page of the records that failed in a batch; of a batch on hold, a page of the
    sampled records that would fail.
    """

    def work(connection: Connection) -> list[ListedRecord]:
        pages.limit_time(connection)
        on_hold = batches.get_batch(connection, number).held_for is HoldCause.FAILURES
        return records.page(connection, number, filters, on_hold=on_hold)

    rows = database.transact(work)
    page = rows[: records.PAGE]
    return RecordsPage(page, page[-1].root_id if len(rows) > records.PAGE else None)


def replay(database: Database, number: int, request: Selection) -> ReplayPreview:
    """Return a preview of a replay of these records of a batch, or of its original."""

    def work(connection: Connection) -> ReplayPreview:
        asked = batches.get_batch(connection, number)
        original = batches.get_batch(connection, asked.original_id)
        selection = request.as_json()
        if request.reason is not None:  # a pattern that matches only this reason
            selection["reason"] = re.sub(r"([\\%_])", r"\\\1", request.reason)
        now = batches.database_now(connection)
        keys = (None, original.batch_id, selection, now)
        groups = replays.count_due(connection, *keys)
        left_out = replays.left_out(connection, *keys) if request.leaves_out_accepted else []
        match = sum(row.records for row in groups)
        limit = None if original.is_whole else original.replay_limit
        return ReplayPreview(
            records=match if limit is None else min(match, limit),
            match=match,
            limit=limit,
            groups=groups[:_GROUPS],
            more=max(0, len(groups) - _GROUPS),
            steps=[step.name for step in original.steps],
            whole=original.is_whole,
            batch_id=original.batch_id,
            dag_id=original.replay_dag,
            conf={"replay_of": original.batch_id, **selection},
            left_out=left_out,
            waiting=replays.waiting_records(connection, original.batch_id),
        )

    return database.transact(work)
