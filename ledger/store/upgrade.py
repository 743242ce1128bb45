"""Migrations: Alembic, driven from code so that no ini file is needed.

Every command, task and driver asks how far the schema is. Alembic takes longer to import than
that takes to answer, so it is imported where something is migrated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING

from ledger.databases.driver_errors import translated
from ledger.errors import ConfigurationError, InputError, UnavailableError
from ledger.settings import Settings
from ledger.store.connection import Database, require_server
from ledger.store.revisions import SCHEMA, folder, head, is_known

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATION_LOCK = 7_225_355  # any constant: two upgrades at once wait for each other
# What a printed migration begins with.
_GUARD = """
SELECT pg_advisory_xact_lock({lock});

DO $$ BEGIN
  IF (SELECT version_num FROM {schema}.alembic_version) IS DISTINCT FROM '{start}' THEN
    RAISE EXCEPTION 'expected a ledger at revision {start}, found %',
      (SELECT version_num FROM {schema}.alembic_version);
  END IF;
END $$;
"""


def connect(settings: Settings) -> Database:
    """Return the ledger's database, ready for use: reachable, recent enough, migrated.

    The embedded database is migrated here. A server of ``ACKLEDGER_DATABASE_URL`` may have other
    users, so ConfigurationError advises to run ``ackledger db upgrade``.
    """
    database = Database.from_settings(settings)
    if settings.database_url is None:
        revision = database.revision()
        if revision is None or (revision != head() and is_known(revision)):
            upgrade(database)
    database.check()
    return database


@dataclass(frozen=True)
class DatabaseState:
    """State of the ledger's database.

    ``server``: ``embedded`` or ``given``.
    ``pid``: process of the embedded server.
    ``ready``: whether it answers, at the ``expected`` revision.
    ``problem``: what is wrong otherwise.
    """

    server: str
    database: str
    state: str
    revision: str | None
    expected: str
    ready: bool
    pid: int | None = None
    problem: str | None = None


def state_of(settings: Settings) -> DatabaseState:
    """Return the state of the ledger's database as it is now; starts and changes nothing."""
    if settings.database_url is not None:
        return _state("given", Database(settings.database_url))
    from ledger.store import embedded

    server = embedded.running(settings.home)
    if server is None:
        place = str(settings.home.expanduser().absolute() / "postgres")
        return DatabaseState("embedded", place, "stopped", None, head(), ready=False)
    return replace(_state("embedded", Database(server.url)), pid=server.pid)


def _state(server: str, database: Database) -> DatabaseState:
    state = DatabaseState(server, database.shown, "running", None, head(), ready=False)
    try:
        state = replace(state, revision=database.revision())
        database.check()
    except UnavailableError as exc:
        return replace(state, state="no answer", problem=str(exc))
    except ConfigurationError as exc:
        return replace(state, problem=str(exc))
    finally:
        database.dispose()
    return replace(state, ready=True)


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema up to ``revision``; safe to run twice and by two at once."""
    from alembic import command

    _migrate(database, lambda config: command.upgrade(config, revision))


def upgrade_sql(start: str | None = None) -> str:
    """Return a script of one transaction for psql. It migrates a ledger that is at revision
    ``start``, and fails at any other; without ``start`` it makes the schema of a new ledger. Raises
    InputError if there is no such revision.
    """
    from alembic import command

    if start is not None and not is_known(start):
        raise InputError(
            f"expected a revision that this ackledger knows (its newest is {head()}), found"
            f" {start!r}: use the revision that 'ackledger db status' shows; if it is newer,"
            " install that ackledger"
        )
    if start == head():
        return f"-- Revision {start} is the newest: there is nothing to migrate."
    script = StringIO()
    config = _config()
    config.output_buffer = script
    command.upgrade(config, f"{start or 'base'}:head", sql=True)
    if start is None:
        return script.getvalue()
    begin, rest = script.getvalue().split("BEGIN;\n", 1)
    return f"{begin}BEGIN;\n{_GUARD.format(lock=_MIGRATION_LOCK, start=start, schema=SCHEMA)}{rest}"


def downgrade(database: Database, revision: str) -> None:
    """Bring the schema down to ``revision``; ``base`` removes everything."""
    from alembic import command

    _migrate(database, lambda config: command.downgrade(config, revision))


def _migrate(database: Database, act: Callable[["Config"], None]) -> None:
    config = _config()
    with translated(database), database.plain.begin() as connection:
        require_server(connection)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        config.attributes["connection"] = connection
        act(config)


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder()))
    return config
