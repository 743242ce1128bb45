"""Commands of the ledger's database: ``db``, ``sql``."""

from dataclasses import asdict
from typing import Annotated

import typer

from ledger.batch.upkeep.restored import restored
from ledger.cli import tables
from ledger.cli.base import Json, app, db, example, show
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.store.asking import answer
from ledger.store.connection import Database
from ledger.store.upgrade import connect, state_of


@db.command(
    "upgrade", epilog=example("db upgrade", "db upgrade --print-sql-from 0001 > migration.sql")
)
def db_upgrade(
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql",
            help="Print the SQL of a new ledger for an administrator's psql, and run nothing.",
        ),
    ] = False,
    print_sql_from: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Print that of a migration from this revision, as 'db status' shows it.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create or migrate the ledger's schema; safe to repeat."""
    from ledger.store.revisions import head
    from ledger.store.upgrade import upgrade, upgrade_sql

    if print_sql or print_sql_from is not None:
        typer.echo(upgrade_sql(print_sql_from))
        return
    database = Database.from_settings(Settings())
    upgrade(database)
    show({"database": database.shown, "revision": head()}, as_json, tables.fact_lines)


@db.command("start", epilog=example("db start"))
def db_start(as_json: Json = False) -> None:
    """Start the embedded server, with its schema up to date."""
    database = connect(_embedded())
    show({"database": database.shown, "state": "running"}, as_json, tables.fact_lines)


@db.command("stop", epilog=example("db stop"))
def db_stop(as_json: Json = False) -> None:
    """Stop the embedded server, until a command needs it."""
    from ledger.store import embedded

    settings = _embedded()
    ran = embedded.stop(settings.home)
    facts = {"home": str(settings.home), "state": "stopped", "did_run": ran}
    show(facts, as_json, tables.fact_lines)


@db.command("status", epilog=example("db status"))
def db_status(as_json: Json = False) -> None:
    """Show where the ledger is, and whether it is ready.

    Starts nothing. Exit code 1 if it is not ready.
    """
    state = state_of(Settings())
    show(asdict(state), as_json, tables.fact_lines)
    if not state.ready:
        raise typer.Exit(1)


@db.command("restored", epilog=example("db restored"))
def db_restored(as_json: Json = False) -> None:
    """Skip numbers that were handed out after the backup that was restored.

    Moves the numbers of batches, runs and records far ahead, because sinks and storage may have
    those that the ledger gave after the backup. Run it once, before anything else runs; safe to
    repeat.
    """
    show(asdict(restored(connect(Settings()))), as_json, tables.restored)


def _embedded() -> Settings:
    """Return the settings. Raises InputError unless the ledger is in the embedded server."""
    settings = Settings()
    if settings.database_url is not None:
        raise InputError(
            "the ledger is in the server of ACKLEDGER_DATABASE_URL, and this command starts and"
            " stops only the embedded one: use the server's own tools, or unset the variable"
        )
    return settings


@app.command(epilog=example("sql 'SELECT * FROM batch_status ORDER BY batch_id'"))
def sql(
    query: Annotated[str, typer.Argument(help="One query, in quotes.")], as_json: Json = False
) -> None:
    """Query the ledger in SQL, by a login that can only read."""
    show(answer(connect(Settings()), query), as_json, tables.rows)
