"""State of each sink's rows of a batch: published, withheld, or waiting, and for what."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from ledger.batch.advice.actions import Action, Advice
from ledger.batch.advice.batches import publish
from ledger.core.commands import ackledger
from ledger.core.states import BatchStatus
from ledger.core.text import quantity
from ledger.store.queries.sinks import SinkRows


class SinkState(StrEnum):
    """State of a sink's rows of a batch.

    ``PARTIAL``: published without rows of failed records, or as an early result of a combine.
    ``DUE``: ``ackledger publish`` publishes them.
    ``WAITING``: they wait for failed records.
    ``IN_ORDER``: they wait for a state over batches.
    """

    PUBLISHED = "published"
    PARTIAL = "partly published"
    DUE = "due"
    WAITING = "waiting"
    IN_ORDER = "waiting for its state"
    UNDECIDED = "undecided"
    REPLACED = "replaced"
    NOTHING = "nothing to publish"

    @property
    def is_final(self) -> bool:
        """Whether no more rows of the batch are to be published."""
        return self in (SinkState.PUBLISHED, SinkState.REPLACED, SinkState.NOTHING)


def state_of(row: SinkRows) -> SinkState:
    """Return the state of a sink's rows."""
    status = BatchStatus(row.status)
    is_published = row.state == "published"
    if status is BatchStatus.SUPERSEDED and not is_published:
        return SinkState.REPLACED
    if not status.decided and not is_published:
        return SinkState.NOTHING if status is BatchStatus.ABANDONED else SinkState.UNDECIDED
    if not is_published and (row.due or row.state in ("decided", "ready")):
        return SinkState.DUE
    if is_published or row.other_batch_id is not None:
        is_partial = row.failed > 0 and (bool(row.withheld_rows) or row.early or row.whole)
        return SinkState.PARTIAL if is_partial else SinkState.PUBLISHED
    if row.state is not None:
        return SinkState.REPLACED
    if row.stateful:
        return SinkState.IN_ORDER
    is_kept_waiting = row.failed > 0 and (row.after or row.holds)
    return SinkState.WAITING if is_kept_waiting else SinkState.NOTHING


def of_sink(row: SinkRows, target: str) -> Advice:
    """Return a sentence on a sink's rows, and the command that releases those that are withheld."""
    state = state_of(row)
    because = f"sink {row.sink}: {_WORDS[state](row)}"
    if state is SinkState.DUE:
        return Advice(because, publish(target, row.batch_id, "Publish it", None))
    if state in (SinkState.WAITING, SinkState.PARTIAL) and row.failed:
        again = Action("Replay them", ackledger("replay", target, batch=row.original_id))
        see = Action("List the failed records", ackledger("failed", batch=row.original_id))
        return Advice(because, (again if row.replayable else see,))
    return Advice(because)


def of_sinks(rows: Sequence[SinkRows]) -> Advice | None:
    """Return a sentence on the sinks that have not published all rows of a batch; None: all have.
    Sinks of states are left out, because they have their own sentence.
    """
    states = {row.sink: state_of(row) for row in rows}
    names = [
        sink
        for sink, state in states.items()
        if not state.is_final and state is not SinkState.IN_ORDER
    ]
    if not names:
        return None
    have = "sink {} has" if len(names) == 1 else "sinks {} have"
    because = f"batch {rows[0].batch_id}: {have.format(', '.join(names))} not published all rows"
    return Advice(because, (Action("See why", ackledger("status", batch=rows[0].batch_id)),))


def _published(row: SinkRows) -> str:
    if row.state == "published":
        left_out = f", without {_rows(row.withheld_rows)} of failed records"
        return f"published {_rows(row.published_rows)}{left_out if row.withheld_rows else ''}"
    return f"published {_rows(row.other_rows)} with batch {row.other_batch_id}"


def _partly_published(row: SinkRows) -> str:
    if row.early or not (row.withheld_rows or row.whole):
        return f"{_published(row)}, a partial result. The complete one waits for {_failed(row)}"
    withheld = f", withheld {_rows(row.withheld_rows)} of failed records"
    published = f"published {_rows(row.published_rows)}{withheld if row.withheld_rows else ''}"
    if not row.whole:
        return published
    return f"{published}. They lack {_failed(row)}, until a replay replaces them"


def _waits(row: SinkRows) -> str:
    held = "" if row.staged_rows is None else f", withheld {_rows(row.staged_rows)}"
    because = ' (publish="complete")' if row.holds else ""
    return f"published nothing{held}. It waits for {_failed(row)}{because}"


def _failed(row: SinkRows) -> str:
    return f"{quantity(row.failed, 'failed record')} of batch {row.original_id}"


def _rows(number: int | None) -> str:
    return quantity(number or 0, "row")


_WORDS: dict[SinkState, Callable[[SinkRows], str]] = {
    SinkState.PUBLISHED: _published,
    SinkState.PARTIAL: _partly_published,
    SinkState.DUE: lambda row: "not published yet; no failed record blocks it",
    SinkState.WAITING: _waits,
    SinkState.IN_ORDER: lambda row: "published nothing. It waits for the state of this batch",
    SinkState.UNDECIDED: lambda row: "published nothing. It waits until the batch is settled",
    SinkState.REPLACED: lambda row: "its rows were replaced by those of a later batch or run",
    SinkState.NOTHING: lambda row: "published nothing, and has nothing to publish",
}
