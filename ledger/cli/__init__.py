"""The ``ackledger`` command."""

import sys

import typer

from ledger.cli import (  # noqa: F401  # each registers its commands
    auditing,
    backfilling,
    checking,
    failing,
    inspecting,
    maintaining,
    records,
    retaining,
    running,
    starting,
    tracing,
)
from ledger.cli.base import app, fail
from ledger.cli.failing import fail_with


def main() -> None:
    """Run the command; an error is one clear line and exit code 1."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        fail("interrupted")
    except Exception as exc:  # click's usage errors, and any of a pipeline's own code
        show = getattr(exc, "show", None)
        if show is None:
            fail_with(exc)
        show()
        sys.exit(1)
    sys.exit(code or 0)  # of typer.Exit; a command itself returns None
