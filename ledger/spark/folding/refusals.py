"""Why the ledger did not take a run's deltas."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from ledger.batch.step_runs import OpenedRun
from ledger.core.commands import ackledger
from ledger.deltas import posting
from ledger.errors import FencedError, LedgerError, UnavailableError


@contextmanager
def refusing(run: OpenedRun, *kinds: type[Exception]) -> Iterator[None]:
    """Raise what an error of these kinds in the block means for a run; itself if that is nothing
    known.
    """
    try:
        yield
    except kinds as exc:
        refusal = refused(run, exc)
        if refusal is None:
            raise
        raise refusal from exc


def refused(run: OpenedRun, exc: Exception) -> LedgerError | None:
    """What an error means that a posting raised, here or in a task, whose text has the driver's;
    None: something else.
    """
    text = str(exc)
    if isinstance(exc, psycopg2.Error):
        text = f"psycopg2.{type(exc).__name__}: {text}"
    batch_id = run.batch.batch_id
    if f'UndefinedTable: relation "{posting.partition(batch_id)}"' in text:
        return FencedError(
            f"batch {batch_id} was decided and its deltas were removed: run {run.run_id} "
            "comes too late and changes nothing. See what became of it:"
            f" {ackledger('status', batch=batch_id)}"
        )
    reason = unavailable(text)
    if reason is None:
        return None
    return UnavailableError(
        f"the ledger did not take the deltas of run {run.run_id}: {reason}. Run the step again"
    )


def unavailable(text: str) -> str | None:
    """What the database said, if it was away, stopped, locked or full."""
    for name, words in reversed(re.findall(r"psycopg2\.(?:errors\.)?(\w+): (.*)", text)):
        kind = getattr(psycopg2.errors, name, None) or getattr(psycopg2, name, None)
        if kind and issubclass(kind, psycopg2.OperationalError | psycopg2.InterfaceError):
            return str(words).strip()
    return None
