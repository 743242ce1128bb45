"""Create what the stack of docker-compose.yml needs before the ledger's schema, unless it is there:
Airflow's own database, and the login of ``ackledger sql``."""

from contextlib import closing

import psycopg2
from psycopg2 import sql
from sqlalchemy.engine import make_url

from ledger.settings import Settings
from ledger.store.embedded import ensure_database


def main() -> None:
    """Create them in the server of ACKLEDGER_DATABASE_URL."""
    settings = Settings()
    if settings.database_url is None:
        raise SystemExit("ACKLEDGER_DATABASE_URL is not set: expected the server of the stack")
    ensure_database(settings.database_url, "airflow")
    if settings.reader_url is not None:
        ensure_login(settings.database_url, settings.reader_url)


def ensure_login(url: str, reader_url: str) -> None:
    """Give the user of ``reader_url`` a login with that password; the migrations make it a
    reader.
    """
    reader = make_url(reader_url)
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    name = sql.Identifier(reader.username or "")
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (reader.username,))
        if cursor.fetchone() is None:
            cursor.execute(sql.SQL("CREATE ROLE {}").format(name))
        password = sql.Literal(reader.password)
        cursor.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, password))


if __name__ == "__main__":
    main()
