"""All that a ledger holds, as text: to look for what must not be there."""

from sqlalchemy import text

from ledger.store.connection import Database

_NAMES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'ackledger'::regnamespace AND relkind IN ('r', 'p', 'v') ORDER BY relname
"""


def everything(database: Database) -> dict[str, str]:
    """Every row of every table and view, by its name; bytes as hexadecimal digits."""
    contents = {}
    with database.plain.connect() as connection:
        for name in connection.execute(text(_NAMES)).scalars().all():
            rows = connection.exec_driver_sql(f'SELECT t::text FROM "{name}" t').scalars()
            contents[name] = "\n".join(rows)
    return contents


def holding(database: Database, mark: str) -> dict[str, str]:
    """The tables and views that hold a text, in whatever case, each with the first line of it."""
    needles = (mark.lower(), mark.encode().hex())
    lines = (
        (name, line) for name, rows in everything(database).items() for line in rows.splitlines()
    )
    return {name: line for name, line in lines if any(needle in line.lower() for needle in needles)}
