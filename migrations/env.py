"""Alembic's environment: runs on the connection that ``ledger.database.upgrade`` hands over."""

from alembic import context

from ledger.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
