"""How a command fails: one line, with the traceback before it if ``--verbose`` asks for that."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ledger.cli.base import err, fail
from ledger.database.connection import Database
from ledger.errors import FencedError
from ledger.queries.batches import Batch
from ledger.recovery import run_again
from ledger.settings import verbose
from ledger.settlement import abandon
from ledger.spark.failures import explained, noted


def fail_with(exc: Exception) -> NoReturn:
    """Print what failed in one line, with the command that goes on where one was noted, and exit with 1."""
    if verbose():
        err.print("".join(traceback.format_exception(exc)), markup=False, highlight=False)
    fail(noted(exc))
    raise AssertionError("fail exits")


@contextmanager
def going_on(
    database: Database, batch: Batch, target: str, step: Callable[[], str]
) -> Iterator[None]:
    """Say of what fails in here in which batch and ``step`` that was, and the command that goes on.

    A batch of which nothing is committed gives back what it claimed."""
    try:
        yield
    except FencedError:
        raise
    except BaseException as exc:
        reason = f"its run failed before anything was committed: {type(exc).__name__}"
        abandoned = abandon(database, batch.batch_id, reason)
        if not isinstance(exc, Exception):
            raise
        what = f"batch {batch.batch_id} (run id {batch.run_id}) failed at {step()}"
        freed = f"Batch {batch.batch_id} is abandoned and claims nothing. " if abandoned else ""
        advice = f"{freed}To go on: {run_again(batch, target=target)}"
        raise explained(exc, what, advice) from exc
