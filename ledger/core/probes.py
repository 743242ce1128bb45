"""Probes: named places in a batch's life, where a test watches, loses a file or kills the process.

In production there is no listener, and ``reached`` does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, str], None]

# What is done at each place, and what is not. "-ing": within the transaction that does it.
PLACES = {
    # A batch is opened.
    "sources asked": "The sources have reported what the batch is to take; nothing is claimed.",
    "opening batch": "The batch and its claims are inserted.",
    "claiming messages": "A replay has claimed its failed messages.",
    # A step runs.
    "before run": "The batch is open; the run of one of its steps is opened next.",
    "run opened": "The run is open; nothing is read.",
    "files written": "All files are in the folder; none is counted.",
    "posting deltas": "A part of the run's deltas is posted next, ahead of the commit.",
    "deltas posted": "All of the run's deltas are posted; the run is not committed.",
    "committing run": "The run is recorded as committed.",
    "run committed": "The run counts.",
    # The batch is settled.
    "before settlement": "The steps have run; nothing is decided.",
    "refined": "What the runs add to single roots is read; nothing is decided.",
    "settling": "Every record is acked or failed, and the sinks' publications are decided.",
    "before hold": "Too many records failed, which is rolled back; the open batch is locked.",
    "holding": "The batch is on hold, with a preview of what failed.",
    "root files pending": "The batch is decided; its root files are removed next.",
    "root files removed": "A run's root files are removed; that is not recorded.",
    "settled": "The batch is decided; nothing of what follows has begun.",
    # Failed records are withheld from a sink.
    "withholding": "The files without rows of failed records are recorded for one sink.",
    "sink withheld": "One sink is ready to publish.",
    "withheld": "Every sink is ready to publish.",
    # A sink publishes.
    "publishing": "The sink is about to publish: readers see what they saw before.",
    "files listed": "A Delta sink has kept the list of the files that it is to add.",
    "table created": "A Delta sink has created its table; no row is in it.",
    "folder hidden": "A Parquet sink has hidden the folders that are replaced.",
    "folder renamed": "A Parquet sink has renamed the staged folder to its final name.",
    "writing table": "A PostgreSQL sink has written rows and its own record.",
    "published": "Readers see the rows; the ledger does not know.",
    "recording publication": "The ledger has recorded that the sink has published.",
    "recording replacement": "The ledger has recorded whose rows are replaced.",
    "batch published": "Every sink of the call has published.",
    # What follows is decided, too.
    "deciding publication": "The publication of a combine's or a state's sink is decided.",
    # A state advances.
    "batch read": "The state's run has planned what it reads.",
    "batch finished": "finish_batch has returned.",
    "before state's rows": "The state is computed or planned; its rows are not written.",
    "before snapshot": "The state's rows are staged; commit of its hooks is called next.",
    "snapshot taken": "commit of the hooks has returned; the ledger has not committed.",
    "before state's commit": "All of the state is written; the ledger has not committed.",
    "inserting checkpoint": "The checkpoint is inserted.",
    # A source, or the hooks of a state, are notified.
    "before acks": "ack_commit of a state, or commit of a source, is called next, where it is due.",
    "ack returned": "That has returned; it is not recorded.",
    "recording ack": "The ledger has recorded the call.",
    "acks notified": "on_ack has returned; on_fail is called next.",
    "source notified": "on_ack and on_fail have returned; that is not recorded.",
    "notice recorded": "The ledger has recorded that the source was notified.",
    # Old files are removed.
    "before state's removal": "The files of an older state are removed next.",
    "state removed": "The files of an older state are removed; that is not recorded.",
    "expiring files": "The files of a family are marked as expired.",
    "files expired": "The files of families are expired; none is removed.",
    "folder removed": "The folder of a run is removed by retention; that is not recorded.",
    # Something fails.
    "before failure": "A run has raised; it is marked failed next.",
}

_listener: Listener | None = None


def reached(place: str, of: str = "") -> None:
    """Report that the process is at one of ``PLACES``. ``of``: the step, the sink or the folder."""
    assert place in PLACES, f"expected one of ledger.core.probes.PLACES, found {place!r}"
    if _listener is not None:
        _listener(place, of)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener(place, of)`` at every place that this process reaches in the block, after
    earlier listeners. Its errors are raised at the place.
    """
    global _listener
    earlier = _listener

    def both(place: str, of: str) -> None:
        if earlier is not None:
            earlier(place, of)
        listener(place, of)

    _listener = both
    try:
        yield
    finally:
        _listener = earlier
