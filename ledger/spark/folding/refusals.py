"""Why the ledger did not take a run's deltas."""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg2.errors import UndefinedTable
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from ledger.batch.step_runs import OpenedRun
from ledger.core.commands import ackledger
from ledger.databases.driver_errors import first_line
from ledger.deltas import posting
from ledger.errors import FencedError, LedgerError, UnavailableError


@contextmanager
def refusing(run: OpenedRun) -> Iterator[None]:
    """Raise what an error of the database in the block means for a run; itself if that is nothing
    known.
    """
    try:
        yield
    except DBAPIError as exc:
        refusal = _refused(run, exc)
        if refusal is None:
            raise
        raise refusal from exc


def _refused(run: OpenedRun, exc: DBAPIError) -> LedgerError | None:
    batch_id, reason = run.batch.batch_id, first_line(exc)
    is_undefined = isinstance(exc.orig, UndefinedTable)
    if is_undefined and f'relation "{posting.partition(batch_id)}"' in reason:
        return FencedError(
            f"batch {batch_id} was decided and its deltas were removed: run {run.run_id} "
            "comes too late and changes nothing. See what became of it:"
            f" {ackledger('status', batch=batch_id)}"
        )
    if not isinstance(exc, OperationalError | InterfaceError):
        return None
    return UnavailableError(
        f"the ledger did not take the deltas of run {run.run_id}: {reason}. Run the step again"
    )
