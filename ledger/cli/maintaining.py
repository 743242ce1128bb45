"""Commands that look after the ledger: ``db``, ``sweep``, ``release``."""

from dataclasses import asdict

import typer

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
