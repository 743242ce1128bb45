"""Alembic's environment: runs on the connection that ``ledger.store.upgrade`` hands over."""

from alembic import context

from ledger.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
