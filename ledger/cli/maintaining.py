"""Commands that look after the ledger: ``db``, ``sweep``, ``release``, ``accept``."""

import getpass
import os
from dataclasses import asdict
from typing import Annotated

import typer

from ledger.acceptance import accept as accept_batch
from ledger.cli import tables
from ledger.cli.base import Json, app, connect, db, show
from ledger.database.connection import Database
from ledger.settings import Settings
from ledger.settlement import release as release_batch
from ledger.states import BatchStatus
from ledger.sweeper import sweep_once


@db.command("upgrade")
def db_upgrade(as_json: Json = False) -> None:
    """Create or migrate the ledger's schema; safe to repeat."""
    from ledger.database.upgrade import head, upgrade

    database = Database.from_settings(Settings())
    upgrade(database)
    show({"database": database.shown, "revision": head()}, as_json, tables.facts)


@app.command()
def sweep(as_json: Json = False) -> None:
    """Decide what can be decided, fail what expired, clean up; safe to run at any time."""
    swept = sweep_once(connect(Settings()))
    show(asdict(swept), as_json, tables.sweep)
    if swept.errors:
        raise typer.Exit(1)


@app.command()
def release(batch: int, as_json: Json = False) -> None:
    """Let a batch settle that is held because too many of its records failed."""
    released = release_batch(connect(Settings()), batch)
    show(asdict(released), as_json, tables.facts)
    if released.status is not BatchStatus.SETTLED:
        raise typer.Exit(1)


@app.command()
def accept(
    batch: int,
    reason: Annotated[
        str | None, typer.Option(help="Why they may stay out; kept in the ledger.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Accept the records of a batch that are quarantined: its runs are then complete.

    For example: ackledger accept 12 --reason "planes that were never registered". What is
    quarantined later, or again after a replay, is not accepted.
    """
    accepted = accept_batch(connect(Settings()), batch, by=_user(), reason=reason)
    show(asdict(accepted), as_json, tables.facts)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"uid {os.getuid()}"
