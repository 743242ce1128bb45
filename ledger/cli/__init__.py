"""The ``ackledger`` command."""

import sys

import typer

from ledger.cli import inspecting, maintaining, records, running  # noqa: F401  # each registers its commands
from ledger.cli.base import app, fail
from ledger.errors import LedgerError


def main() -> None:
    """Run the command; an error is one clear line and exit code 1."""
    try:
        code = app(standalone_mode=False)
    except LedgerError as exc:
        fail(str(exc))
    except typer.Abort:
        fail("interrupted")
    except Exception as exc:  # click's usage errors, and whatever a pipeline's own code raises
        show = getattr(exc, "show", None)
        if show is None:
            raise
        show()
        sys.exit(1)
    sys.exit(code or 0)  # of typer.Exit; a command itself returns None
