"""The whole schema, in SQL.

Revision: 0001
Revises:
"""

from alembic import context, op

from ledger.store.revisions import folder

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _run("roles")
    op.execute("SET LOCAL ROLE ledger_owner")
    for name in ("tables", "functions", "views"):
        _run(name)
    op.execute("SET LOCAL ROLE NONE")
    _run("grants")


def downgrade() -> None:
    _run("remove")


def _run(name: str) -> None:
    statements = (folder() / "baseline" / f"{name}.sql").read_text()
    if context.is_offline_mode():
        op.get_context().impl.static_output(statements)
        return
    # Without parameters the driver leaves "%" as it is.
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
