"""What the page of a batch has: where its rows went, what is lost, and what can be done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ledger.airflow.pages.flow import flow
from ledger.airflow.pages.overview import as_batch
from ledger.batch.report import advise
from ledger.batch.summary import Summary, summarize
from ledger.core.run_request import Selection
from ledger.core.states import BatchKind, BatchStatus
from ledger.errors import NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import batches, holds, pages, replays

_GROUPS = 50  # causes that a preview lets a person choose from


@dataclass(frozen=True)
class Place:
    """Whose a batch is. ``dag_id``: the DAG whose runs replay it; the pipeline's for batches of
    the command line.
    """

    pipeline: str
    dag_id: str


def place(database: Database, number: int) -> Place:
    """Raises NotReadyError if there is no such batch."""
    found = database.transact(lambda c: pages.place(c, number))
    if found is None:
        raise NotReadyError(f"batch {number} is not in the ledger")
    return Place(found.pipeline, found.dag_id or found.pipeline)


def batch(database: Database, number: int) -> dict[str, Any]:
    """``batch``: its counts. ``family``: its original and the latest replays; ``today``: the
    original's counts, which are those of all. ``outcome``, ``because``, ``commands``, ``waits``:
    what a run reports. ``steps``, ``edges``: see ``flow``. ``failures``: by step and reason, of
    ``groups``. ``preview``: of a batch on hold what would fail, by step and reason.
    ``publications``: by sink. ``can``: which actions make sense.
    """
    summary = summarize(database, number)
    advice = advise(summary)
    actions = advice.actions if advice else ()

    def work(connection: Connection) -> dict[str, Any]:
        found = batches.get_batch(connection, number)
        family = pages.batches(connection, [number, *pages.family(connection, number)])
        counted = _rows(pages.failures(connection, number))
        preview = list(summary.preview)
        losses = [_loss(row) for row in counted if row["reason"] is None]
        losses += [{**row, "missing": row["records"]} for row in preview]  # it would be
        elsewhere = {row.step: row.batch_id for row in pages.followed(connection, number)}
        failures = [row for row in counted if row["reason"] is not None]
        dropped = _rows(pages.drops(connection, number))
        steps, edges = flow(found.topology, summary.steps, losses, dropped, elsewhere)
        return {
            "today": next(as_batch(row) for row in family if row.batch_id == found.original_id),
            "batch": next(as_batch(row) for row in family if row.batch_id == number),
            "family": [as_batch(row) for row in family],
            "steps": steps,
            "edges": edges,
            "failures": failures,
            "groups": failures[0]["groups"] if failures else 0,
            "preview": preview,
            "publications": _rows(pages.published(connection, number)),
            "can": _can(summary, pages.not_due(connection, found.original_id).kept_back),
        }

    return {
        **database.transact(work),
        "outcome": str(summary.outcome),
        "because": advice and advice.because,
        "commands": [[action.what, action.command] for action in actions],
        "waits": list(summary.waits),
    }


def _rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in found]


def _loss(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``pages.failures``, with what of it is missing now."""
    return {**row, "missing": row["failed"] + row["quarantined"] - row["accepted"]}


def _can(summary: Summary, kept_back: int) -> list[str]:
    """Of an original that counts: replay, replay kept back, retry (what is quarantined), accept;
    release of any batch that too many failures put on hold. A replay's records are its original's.
    """
    if summary.preview:
        return ["release"]
    if summary.status is not BatchStatus.SETTLED or summary.kind != BatchKind.ORIGINAL:
        return []
    found = ["replay"] if summary.roots.failed > kept_back else []
    found += ["replay kept back"] if kept_back else []
    return found + (["retry", "accept"] if summary.unaccepted else [])


def failed(database: Database, number: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A page of records that failed in a batch; of a batch on hold, of the sample of those that
    would. ``next``: what to ask for after it; None: it is the last one.
    """

    def work(connection: Connection) -> Sequence[Any]:
        pages.limit_time(connection)
        if holds.is_over_limit(connection, number):
            sampled = {name: value for name, value in chosen.items() if name != "status"}
            return holds.page(connection, number, **sampled)
        return pages.records(connection, number, **chosen)

    found = _rows(database.transact(work))
    more = len(found) > pages.PAGE
    page = found[: pages.PAGE]
    return {"records": page, "next": page[-1]["root_id"] if more else None}


def replay(database: Database, number: int, chosen: Selection) -> dict[str, Any]:
    """A preview: how many ``records`` of the original would be replayed by ``steps``, of those that
    ``match`` and are due, at most ``limit``; the most by step and reason in ``groups``, as
    ``causes_to_replay`` has them, and how many ``more`` causes there are. ``by_unit``: acked
    records may run again with them. ``dag_id`` and ``conf``: the run of Airflow that does it.
    ``not_due``: failed records of the original that no replay takes now. ``left_out``: of the
    quarantined ones those that a person gave up, by decision.
    """

    def work(connection: Connection) -> dict[str, Any]:
        asked = batches.get_batch(connection, number)
        original = batches.get_batch(connection, asked.original_id)
        selection = {**chosen.as_json(), **_literal(chosen.reason)}
        now = batches.database_now(connection)
        keys = (original.batch_id, selection, now)
        groups = replays.causes_to_replay(connection, *keys)
        left_out = replays.left_out(connection, None, *keys) if chosen.leaves_out_accepted else []
        match = sum(row.records for row in groups)
        return {
            "records": match
            if original.replay_limit is None
            else min(match, original.replay_limit),
            "match": match,
            "limit": original.replay_limit,
            "groups": _rows(groups[:_GROUPS]),
            "more": max(0, len(groups) - _GROUPS),
            "steps": [step["name"] for step in original.topology if not step.get("after")],
            "by_unit": any(step.get("merges") for step in original.topology),
            "batch_id": original.batch_id,
            "dag_id": original.dag_id or original.pipeline,
            "conf": {"replay_of": original.batch_id, **selection},
            "left_out": _rows(left_out),
            "not_due": dict(pages.not_due(connection, original.batch_id)._mapping),
        }

    return database.transact(work)


def _literal(reason: str | None) -> dict[str, str]:
    """A reason as the pattern that matches it alone."""
    if reason is None:
        return {}
    for special in ("\\", "%", "_"):
        reason = reason.replace(special, "\\" + special)
    return {"reason": reason}
