"""Migrations: Alembic, driven from code so that no ini file is needed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from ledger.database.connection import Database, require_server, translated

_MIGRATION_LOCK = 7_225_355  # any constant: two upgrades at once wait for each other


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_folder()))
    return config


def _folder() -> Path:
    import ledger.migrations as package

    return Path(package.__path__[0])


@cache
def head() -> str:
    """The newest revision of the migrations."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema up to ``revision``; safe to run twice and by two at once."""
    _migrate(database, lambda config: command.upgrade(config, revision))


def downgrade(database: Database, revision: str) -> None:
    """Bring the schema down to ``revision``; ``base`` removes everything."""
    _migrate(database, lambda config: command.downgrade(config, revision))


def _migrate(database: Database, act: Callable[[Config], None]) -> None:
    with translated(database), database.plain.begin() as connection:
        require_server(connection)
        _lock(connection)
        config = _config()
        config.attributes["connection"] = connection
        act(config)


def _lock(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
