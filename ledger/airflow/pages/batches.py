"""What the page of a batch has: where its rows went, what is lost, and what can be done."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from ledger.airflow.pages.flow import flow
from ledger.airflow.pages.overview import as_batch
from ledger.batch.advice import advise
from ledger.batch.summary import Summary, summarize
from ledger.core.run_request import Selection
from ledger.core.states import BatchStatus
from ledger.store.connection import Database
from ledger.store.queries import batches, pages, replays, reports


def pipeline_of(database: Database, number: int) -> str:
    """Raises NotReadyError if there is no such batch."""
    return str(database.transact(lambda c: reports.batch_counts(c, number)).pipeline)


def batch(database: Database, number: int) -> dict[str, Any]:
    """``batch``: its counts. ``family``: its original and all replays. ``outcome``, ``because``,
    ``commands``, ``waits``: what a run reports. ``steps``, ``edges``: see ``flow``. ``failures``:
    by step and reason. ``publications``: by sink. ``can``: which actions make sense.
    """
    summary = summarize(database, number)
    advice = advise(summary)

    def work(connection: Connection) -> dict[str, Any]:
        found = batches.get_batch(connection, number)
        family = pages.batches(connection, reports.family(connection, number))
        failures = [dict(row._mapping) for row in pages.failures(connection, number)]
        dropped = [dict(row._mapping) for row in pages.drops(connection, number)]
        steps, edges = flow(found.topology, summary.steps, failures, dropped)
        return {
            "batch": next(as_batch(row) for row in family if row.batch_id == number),
            "family": [as_batch(row) for row in family],
            "steps": steps,
            "edges": edges,
            "failures": failures,
            "publications": [dict(row._mapping) for row in pages.published(connection, number)],
        }

    return {
        **database.transact(work),
        "outcome": str(summary.outcome),
        "because": advice and advice.because,
        "commands": [] if advice is None else [list(one) for one in advice.commands],
        "waits": list(summary.waits),
        "can": _can(summary),
    }


def _can(summary: Summary) -> list[str]:
    """Of an original that counts: replay, take up (from quarantine), accept; release of a batch
    that is held.
    """
    if summary.status is BatchStatus.HELD:
        return ["release"]
    if summary.status is not BatchStatus.SETTLED:
        return []
    found = ["replay"] if summary.roots.failed else []
    return found + (["take up", "accept"] if summary.unaccepted else [])


def failed(database: Database, number: int, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A page of records that failed in a batch. ``next``: what to ask for after it; None: it is
    the last one.
    """

    def work(connection: Connection) -> Sequence[Any]:
        pages.limit_time(connection)
        return pages.records(connection, number, **chosen)

    found = [dict(row._mapping) for row in database.transact(work)]
    more = len(found) > pages.PAGE
    page = found[: pages.PAGE]
    return {"records": page, "next": page[-1]["root_id"] if more else None}


def replay(database: Database, number: int, chosen: Selection) -> dict[str, Any]:
    """A preview: ``records`` of the original that would be replayed by ``steps``, of them by step
    and reason in ``groups``; ``dag_id`` and ``conf``: the run of Airflow that does it.
    """

    def work(connection: Connection) -> dict[str, Any]:
        asked = batches.get_batch(connection, number)
        original = batches.get_batch(connection, asked.original_id)
        selection = {**chosen.as_json(), **_literal(chosen.reason)}
        now = batches.database_now(connection)
        groups = replays.batches_to_replay(connection, None, original.batch_id, selection, now)
        steps = [step["name"] for step in original.topology if not step.get("after")]
        return {
            "records": sum(row.messages for row in groups),
            "groups": [
                {"step": row.step, "reason": row.reason, "records": row.messages} for row in groups
            ],
            "steps": steps,
            "batch_id": original.batch_id,
            "dag_id": original.dag_id or original.pipeline,
            "conf": {"replay_of": original.batch_id, **selection},
        }

    return database.transact(work)


def _literal(reason: str | None) -> dict[str, str]:
    """A reason as the pattern that matches it alone."""
    if reason is None:
        return {}
    for special in ("\\", "%", "_"):
        reason = reason.replace(special, "\\" + special)
    return {"reason": reason}
