"""What a replay finds, and what it leaves out, before it is opened."""

from typing import Any

from sqlalchemy import Connection, Row

from ledger.batch.filters import require_names
from ledger.batch.replays import check_replayable
from ledger.core.run_request import Selection
from ledger.pipeline.pipeline import Pipeline
from ledger.store.connection import Database
from ledger.store.queries import batches, pages, replays

_DAY, _MINUTE = "%Y-%m-%d", "%Y-%m-%d %H:%M %Z"


def require_match(
    database: Database, pipeline: Pipeline, batch_id: int | None, selection: Selection
) -> None:
    """Raise LedgerError where a replay finds nothing because the ledger knows no such batch, step
    or the like, or because the batch cannot be replayed.
    """
    asked = {**selection.as_json(), "batch_id": batch_id}

    def work(connection: Connection) -> None:
        require_names(connection, {**asked, "pipeline": pipeline.name})
        if batch_id is not None:
            check_replayable(connection, pipeline, batch_id, None)

    if any(value is not None for value in asked.values()):
        database.transact(work)


def left_out(
    database: Database, pipeline: str | None, batch_id: int | None, selection: Selection
) -> list[str]:
    """Of the quarantined records that match, those that a person gave up: a sentence for each
    decision.
    """
    if not selection.leaves_out_accepted:
        return []
    asked = (pipeline, batch_id, selection.as_json())
    rows = database.transact(lambda c: replays.left_out(c, *asked, batches.database_now(c)))
    return [_decision(row) for row in rows]


def _decision(row: Row[Any]) -> str:
    those = "1 record is" if row.records == 1 else f"{row.records:,} records are"
    return (
        f"batch {row.batch_id}: {those} left out, accepted by {row.accepted_by} on"
        f" {row.accepted_at:{_DAY}}: {row.reason}. With --accepted a replay takes them"
    )


def nothing_to_replay(database: Database, batch_id: int | None) -> str:
    """Why a replay finds nothing, of one batch or of all."""
    nothing = "nothing to replay: no failed record matches, or is due"
    if batch_id is None:
        return f"{nothing}; see 'ackledger failed'"
    row = database.transact(lambda c: pages.not_due(c, batch_id))
    until = f"{row.not_before:{_MINUTE}}" if row.later else ""
    others = (
        (row.replaying, "being replayed"),
        (row.later, f"waiting until {until} (replay_backoff)"),
        (row.kept_back, "kept back with their unit, which --kept-back takes"),
    )
    counts = ", ".join(f"{count:,} {state}" for count, state in others if count)
    return f"{nothing} ({counts})" if counts else nothing
