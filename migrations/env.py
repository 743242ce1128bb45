"""Alembic's environment: runs on the connection that ``ledger.store.upgrade`` hands over, or
prints what it would run there.
"""

from alembic import context

if context.is_offline_mode():
    context.configure(dialect_name="postgresql")
else:
    context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
