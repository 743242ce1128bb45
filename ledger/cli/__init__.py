"""The ``ackledger`` command."""

import sys

import typer

from ledger.cli import (  # noqa: F401  # each registers its commands
    audit,
    backfill,
    batches,
    database,
    projects,
    records,
    removal,
    runs,
)
from ledger.cli.base import app, fail, fail_with


def main() -> None:
    """Run the command; an error is one clear line and exit code 1, or 2 of ``audit``."""
    error_code = audit.NOT_COMPLETE if audit.is_audit(sys.argv[1:]) else 1
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        fail("interrupted", error_code)
    except Exception as exc:  # click's usage errors, and any of a pipeline's own code
        show = getattr(exc, "show", None)
        if show is None:
            fail_with(exc, error_code)
        show()
        sys.exit(error_code)
    sys.exit(code or 0)  # of typer.Exit; a command itself returns None
