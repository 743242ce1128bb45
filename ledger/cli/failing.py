"""Failures of commands: one line, with the traceback before it if ``--verbose`` asks for that."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ledger.batch.interventions import abandon
from ledger.batch.outcome.readings import Batch
from ledger.batch.recovery import restarts_of
from ledger.cli.base import err, fail
from ledger.errors import FencedError, LedgerError
from ledger.settings import verbose
from ledger.spark.failures import explained, noted
from ledger.store.connection import Database


def fail_with(exc: Exception, code: int = 1) -> NoReturn:
    """Print what failed in one line, with the command that goes on where one was noted, or in a
    line for each thing that is wrong, and exit with a code.
    """
    if verbose():
        err.print("".join(traceback.format_exception(exc)), highlight=False)
    fail("\n  ".join(exc.lines) if isinstance(exc, LedgerError) and exc.lines else noted(exc), code)
    raise AssertionError("fail exits")


@contextmanager
def going_on(
    database: Database, batch: Batch, ways: str, step: Callable[[], str]
) -> Iterator[None]:
    """Add to an error or interrupt of this block its batch, its ``step``, and the ``ways`` to go
    on.

    A batch gives back what it claimed if nothing of it is committed or runs elsewhere."""
    try:
        yield
    except FencedError:
        raise
    except (Exception, KeyboardInterrupt) as exc:
        freed = _freed(database, batch, exc)
        what = f"batch {batch.batch_id} (run id {batch.run_id})"
        advice = f"{freed}{ways}"
        if isinstance(exc, Exception):
            others = () if freed else restarts_of(database, batch.batch_id)
            advice = ". ".join([advice, *map(str, others)])
            raise explained(exc, f"{what} failed at {step()}", advice) from exc
        raise LedgerError(f"{what} was interrupted at {step()}. {advice}") from exc


def _freed(database: Database, batch: Batch, exc: BaseException) -> str:
    """Return the sentence about the batch's claim. A failed release of the claim hides no error."""
    reason = f"its run failed before anything was committed: {type(exc).__name__}"
    try:
        abandoned = abandon(database, batch.batch_id, reason)
    except LedgerError:
        return ""
    return f"Batch {batch.batch_id} is abandoned and claims nothing. " if abandoned else ""
