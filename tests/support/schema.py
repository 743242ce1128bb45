"""What the baseline makes, by its SQL and by PostgreSQL's catalogs."""

import re

from sqlalchemy import text

from ledger.store.connection import Database
from ledger.store.revisions import folder

TABLES = sorted(
    re.findall(r"^CREATE TABLE (\w+)", (folder() / "baseline" / "tables.sql").read_text(), re.M)
)
_OURS = "SELECT oid FROM pg_class WHERE relnamespace = 'ackledger'::regnamespace"
_OBJECTS = f"""
    SELECT format('%s %s', relkind, relname), relacl::text,
           CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) WHEN 'i' THEN pg_get_indexdef(oid) END
    FROM pg_class WHERE oid IN ({_OURS})
    UNION ALL
    SELECT format('%s.%s', attrelid::regclass, attname), attacl::text,
           format('%s %s %s', format_type(atttypid, atttypmod), attnotnull,
                  pg_get_expr(adbin, adrelid))
    FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND attrelid IN ({_OURS})
    UNION ALL
    SELECT oid::regprocedure::text, proacl::text, prosrc FROM pg_proc
    WHERE pronamespace = 'ackledger'::regnamespace
    UNION ALL
    SELECT format('%s %s', conrelid::regclass, conname), NULL, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE conrelid IN ({_OURS})
    UNION ALL
    SELECT format('%s %s', tgrelid::regclass, tgname), NULL, pg_get_triggerdef(oid)
    FROM pg_trigger WHERE tgrelid IN ({_OURS}) AND NOT tgisinternal
    UNION ALL
    SELECT format('%s %s', typtype, typname), typacl::text, (
      SELECT string_agg(enumlabel, ' ' ORDER BY enumsortorder) FROM pg_enum
      WHERE enumtypid = pg_type.oid)
    FROM pg_type WHERE typnamespace = 'ackledger'::regnamespace
"""


def schema(database: Database) -> dict[str, tuple[str | None, str | None]]:
    """Every object of the ledger's schema: who may do what with it, and its definition."""
    with database.plain.connect() as connection:
        rows = connection.execute(text(_OBJECTS)).all()
    return {name: (grants, result) for name, grants, result in rows}


def columns(database: Database, table: str) -> list[str]:
    """The columns of a table, in order."""
    statement = text("""
        SELECT column_name FROM information_schema.columns
        WHERE table_schema = 'ackledger' AND table_name = :table ORDER BY ordinal_position
    """)
    with database.plain.connect() as connection:
        return list(connection.execute(statement, {"table": table}).scalars())
