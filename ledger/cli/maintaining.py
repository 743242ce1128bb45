"""Commands that look after the ledger: ``db``, ``sweep``, ``settle``, ``restart``, ``release``,
``accept``.
"""

from dataclasses import asdict
from typing import Annotated

import typer

from ledger.batch.acceptance import accept as accept_batch
from ledger.batch.interventions import release as release_batch
from ledger.batch.interventions import restart as restart_batch
from ledger.batch.settlement import settle_once
from ledger.batch.upkeep.restored import restored
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.cli import tables
from ledger.cli.base import BATCH, Json, app, db, example, in_user_words, show, user
from ledger.core.states import BatchStatus
from ledger.errors import InputError
from ledger.settings import Settings
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
    show({"database": database.shown, "revision": head()}, as_json, tables.facts)


@db.command("start", epilog=example("db start"))
def db_start(as_json: Json = False) -> None:
    """Start the embedded server, with its schema up to date."""
    database = connect(_embedded())
    show({"database": database.shown, "state": "running"}, as_json, tables.facts)


@db.command("stop", epilog=example("db stop"))
def db_stop(as_json: Json = False) -> None:
    """Stop the embedded server, until a command needs it."""
    from ledger.store import embedded

    settings = _embedded()
    ran = embedded.stop(settings.home)
    facts = {"home": str(settings.home), "state": "stopped", "did_run": ran}
    show(facts, as_json, tables.facts)


@db.command("status", epilog=example("db status"))
def db_status(as_json: Json = False) -> None:
    """Show where the ledger is, and whether it is ready.

    Starts nothing. Exit code 1 if it is not ready.
    """
    state = state_of(Settings())
    show(asdict(state), as_json, tables.facts)
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
    """The settings, if the ledger is in the embedded server. Raises InputError if it is not."""
    settings = Settings()
    if settings.database_url is not None:
        raise InputError(
            "the ledger is in the server of ACKLEDGER_DATABASE_URL, and this command starts and"
            " stops only the embedded one: use the server's own tools, or unset the variable"
        )
    return settings


@app.command(epilog=example("sweep"))
def sweep(as_json: Json = False) -> None:
    """Settle what is due and fail what expired; safe at any time."""
    swept = sweep_once(connect(Settings()))
    settlements = [in_user_words(asdict(settlement)) for settlement in swept.settlements]
    show({**asdict(swept), "settlements": settlements}, as_json, tables.sweep)
    if swept.errors:
        raise typer.Exit(1)


@app.command(epilog=example("settle 7"))
def settle(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Decide one batch, if it is due; safe at any time.

    As the sweeper does, which leaves a batch open that "needs refinement" if it does not see its
    storage: run this where the storage is seen.
    """
    settled = settle_once(connect(Settings()), batch)
    assert settled is not None
    show(in_user_words(asdict(settled)), as_json, tables.released)
    if not settled.status.decided:
        raise typer.Exit(1)


@app.command(epilog=example("restart 7"))
def restart(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Run all steps of an open batch again, when it runs next.

    A batch whose step failed goes on at that step. Restart it if you fixed a step before that
    one, or what a source reads. It is on hold until its run begins again, and what its steps did
    before does not count. A driver that began before runs none of its steps any more.
    """
    advice = restart_batch(connect(Settings()), batch)
    facts = {"batch_id": batch, "status": BatchStatus.HELD.words, "next": str(advice)}
    show(facts, as_json, tables.facts)


@app.command(epilog=example("release 7"))
def release(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Let a batch settle that is on hold for too many failures."""
    released = release_batch(connect(Settings()), batch)
    show(in_user_words(asdict(released)), as_json, tables.released)
    if released.status is not BatchStatus.SETTLED:
        raise typer.Exit(1)


@app.command(epilog=example("accept 12 --reason 'planes that were never registered'"))
def accept(
    batch: Annotated[int, BATCH],
    reason: Annotated[str, typer.Option(help="Why they may stay out; kept in the ledger.")],
    as_json: Json = False,
) -> None:
    """Accept quarantined records of a batch: it is then complete.

    Records whose replays are used up wait in quarantine for this. 'quarantine' gives failed
    records up before that, and accepts them at once. What is quarantined later, or again after a
    replay, is not accepted.
    """
    accepted = accept_batch(connect(Settings()), batch, by=user(), reason=reason)
    facts = asdict(accepted)
    show({**facts, "next": "; ".join(accepted.next) or None}, as_json, tables.facts)
