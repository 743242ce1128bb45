"""Which of two attempts is newer is said by a number that the ledger draws, not by a client's
clock.

Revision: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Of attempt_id and try_number, before and now.
ATTEMPT = (
    "Id of the task instance (UUIDv7): the greatest is the newest attempt.",
    "The attempt: a task instance's id, or a command's.",
)
TRY = ("Airflow's try number, shown only.", "Airflow's try number, shown only; null of a command.")
NUMBER = "Drawn when a command or a task began: the greatest is the newest."


def upgrade() -> None:
    op.execute("CREATE SEQUENCE attempt_number")
    op.execute("COMMENT ON SEQUENCE attempt_number IS 'Numbers of attempts.'")
    op.execute("GRANT USAGE ON SEQUENCE attempt_number TO ledger_writer")
    op.add_column("step_run", sa.Column("attempt_number", sa.BigInteger(), comment=NUMBER))
    op.execute("UPDATE step_run SET attempt_number = step_run_id")
    op.execute(
        "SELECT setval('attempt_number', (SELECT coalesce(max(step_run_id), 0) + 1 FROM "
        "step_run), false)"
    )
    op.alter_column(
        "step_run",
        "attempt_number",
        nullable=False,
        server_default=sa.text("nextval('attempt_number')"),
    )
    op.alter_column("step_run", "try_number", nullable=True, comment=TRY[1])
    op.alter_column("step_run", "attempt_id", comment=ATTEMPT[1])
    op.execute(
        "UPDATE step_run r SET try_number = NULL FROM batch b "
        "WHERE b.batch_id = r.batch_id AND b.dag_id = ''"
    )


def downgrade() -> None:
    op.execute("UPDATE step_run SET try_number = 1 WHERE try_number IS NULL")
    op.alter_column("step_run", "attempt_id", comment=ATTEMPT[0])
    op.alter_column("step_run", "try_number", nullable=False, comment=TRY[0])
    op.drop_column("step_run", "attempt_number")
    op.execute("DROP SEQUENCE attempt_number")
