"""When a file was claimed: a batch that is opened again claims later than its number says.

And what failed before the record-wise steps were carried over is run again, for what was shared meant less then.

Revision: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "claimed_file",
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.now(),
            comment="When it was claimed.",
        ),
    )
    op.execute("UPDATE failed_root SET shared = false")


def downgrade() -> None:
    op.drop_column("claimed_file", "claimed_at")
