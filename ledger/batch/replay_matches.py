"""Matches of a replay before it is opened: the records that it finds, and those it leaves out."""

from sqlalchemy import Connection

from ledger.batch.advice.records import (
    NOTHING_LEFT,
    OPTIONS,
    RecordState,
    state_of,
    status_in_words,
)
from ledger.batch.records.filters import require_names
from ledger.batch.replays import check_replayable
from ledger.core.run_request import Selection
from ledger.pipeline.pipeline import Pipeline
from ledger.store.connection import Database
from ledger.store.queries import acceptances, batches, records, replays
from ledger.store.queries.replays import DueRecords

_DAY, _MINUTE = "%Y-%m-%d", "%Y-%m-%d %H:%M %Z"


def require_match(
    database: Database, pipeline: Pipeline, batch_id: int | None, selection: Selection
) -> None:
    """Raise LedgerError if a replay finds nothing because the ledger knows no such batch, step or
    the like, or because the batch cannot be replayed.
    """
    asked = {**selection.as_json(), "batch_id": batch_id}

    def work(connection: Connection) -> None:
        require_names(connection, {**asked, "pipeline": pipeline.name})
        if batch_id is not None:
            check_replayable(connection, pipeline, batch_id, None)

    if any(value is not None for value in asked.values()):
        database.transact(work)


def originals_of(
    database: Database, pipeline: Pipeline, batch_id: int | None, selection: Selection, base: str
) -> list[int]:
    """Return batches with failed records that match, and those that this run began to replay
    before.
    """
    begun = database.transact(lambda c: replays.unfinished_replays(c, pipeline.name, base))
    matching = matching_messages(database, pipeline.name, batch_id, selection)
    if not matching and not begun:
        require_match(database, pipeline, batch_id, selection)
    return sorted({*(row.batch_id for row in matching), *begun})


def matching_messages(
    database: Database, pipeline: str | None, batch_id: int | None, selection: Selection
) -> list[DueRecords]:
    """Return failed records that match and are due, by batch, step and reason."""
    asked = (pipeline, batch_id, selection.as_json())
    return database.transact(lambda c: replays.count_due(c, *asked, batches.database_now(c)))


def left_out(
    database: Database, pipeline: str | None, batch_id: int | None, selection: Selection
) -> list[str]:
    """Return the quarantined records that match and that a person accepted, a sentence for each
    decision.
    """
    if not selection.leaves_out_accepted:
        return []
    asked = (pipeline, batch_id, selection.as_json())
    rows = database.transact(lambda c: replays.left_out(c, *asked, batches.database_now(c)))
    return [
        f"batch {row.batch_id}:"
        f" {'1 record is' if row.records == 1 else f'{row.records:,} records are'} left out,"
        f" accepted by {row.accepted_by} on {row.accepted_at:{_DAY}}: {row.reason}."
        " With --accepted a replay takes them"
        for row in rows
    ]


def nothing_to_replay(database: Database, batch_id: int | None, selection: Selection) -> str:
    """Return why a replay of one record, of one batch, or of all batches finds nothing."""
    if selection.record is not None:
        number = selection.record
        state = database.transact(lambda c: _state(c, number, selection))
        return f"nothing to replay: record {number} is {state}"
    nothing = "nothing to replay: no failed record matches, or is due"
    if batch_id is None:
        return f"{nothing}; see 'ackledger failed'"
    waiting = database.transact(lambda c: replays.waiting_records(c, batch_id))
    people = database.transact(lambda c: acceptances.by_person(c, batch_id))
    until = f"{waiting.not_before:{_MINUTE}}" if waiting.later else ""
    quarantined = waiting.quarantined - sum(people.values())
    leaves_out = selection.quarantined or selection.accepted
    others = (
        (waiting.due if leaves_out else 0, "failed, which --quarantined and --accepted leave out"),
        (waiting.replaying, "being replayed"),
        (waiting.later, f"waiting until {until} (replay_backoff)"),
        (0 if selection.quarantined else quarantined, "quarantined, which --quarantined takes"),
        *(
            (0 if selection.accepted else count, f"accepted by {name}, which --accepted takes")
            for name, count in people.items()
        ),
    )
    counts = ", ".join(f"{count:,} {state}" for count, state in others if count > 0)
    return f"{nothing} ({counts})" if counts else nothing


def _state(connection: Connection, number: int, selection: Selection) -> str:
    """Return the state of a record that a replay does not take, and the option that takes it."""
    record = records.failed_record(connection, number)
    if record is None:
        emitted = records.emitted_root(connection, number).status
        return f"{emitted}, and has not failed: a replay takes failed records"
    state = state_of(record)
    if state in NOTHING_LEFT:
        return f"{state}: {NOTHING_LEFT[state]}"
    if state is RecordState.WAITING:
        return f"waiting until {record.due_at:{_MINUTE}} (replay_backoff)"
    if state is RecordState.REPLAYING:
        return f"being replayed by batch {record.replay_batch_id}"
    in_words = status_in_words(record.status, record.accepted_by)
    if state not in OPTIONS or getattr(selection, state):
        return f"{in_words}, which other options leave out"
    return f"{in_words}, which --{state} takes"
