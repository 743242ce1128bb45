"""Alembic's environment: runs on the connection that ``ledger.store.upgrade`` hands over, or
prints what it would run there.
"""

from alembic import context

from ledger.store.revisions import SCHEMA

# A login that may make no schema may migrate one that exists, which IF NOT EXISTS would refuse.
_MAKE_SCHEMA = f"""
DO $$ BEGIN
  IF to_regnamespace('{SCHEMA}') IS NULL THEN
    CREATE SCHEMA {SCHEMA};
  END IF;
END $$
"""

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", version_table_schema=SCHEMA)
else:
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, version_table_schema=SCHEMA)
with context.begin_transaction():
    context.execute(_MAKE_SCHEMA)
    context.execute(f"SET LOCAL search_path = {SCHEMA}")
    context.run_migrations()
