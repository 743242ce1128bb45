"""How a command fails: one line, with the traceback before it if ``--verbose`` asks for that."""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from ledger.cli.base import app, err, fail
from ledger.errors import FencedError
from ledger.queries.batches import Batch
from ledger.recovery import run_again
from ledger.settings import VERBOSE, verbose
from ledger.spark.failures import explained, one_line

Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", envvar=VERBOSE, help="Show the traceback of an error."),
]


@app.callback()
def options(asked: Verbose = False) -> None:
    """Options of every command."""
    if asked:
        os.environ[VERBOSE] = "1"  # which the processes of Spark inherit


def fail_with(exc: Exception) -> NoReturn:
    """Print what failed in one line and exit with 1."""
    if verbose():
        err.print("".join(traceback.format_exception(exc)), markup=False, highlight=False)
    fail(one_line(exc))
    raise AssertionError("fail exits")


@contextmanager
def going_on(batch: Batch, target: str, step: Callable[[], str]) -> Iterator[None]:
    """Say of what fails in here in which batch and ``step`` that was, and the command that goes
    on."""
    try:
        yield
    except FencedError:
        raise
    except Exception as exc:
        what = f"batch {batch.batch_id} (run id {batch.run_id}) failed at {step()}"
        advice = f"To go on: {run_again(batch, target=target)}"
        raise explained(exc, what, advice) from exc
