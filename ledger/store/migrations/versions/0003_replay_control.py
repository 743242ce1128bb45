"""Hard cap on a batch's age, circuit breaker, budget and backoff of replays, drops, notices.

Revision: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

POLICY = (
    ("max_batch_age_seconds", sa.Float(), "604800", "A batch expires at this age, whatever happens."),
    ("max_failed_ratio", sa.Float(), None, "Share of own failures above which a batch is held for a person; null: never."),
    ("replay_limit", sa.Integer(), None, "Messages that one replay batch takes at most; null: all."),
    ("replay_backoff_seconds", sa.Float(), "0", "Wait before a message's first replay; each failed replay doubles it."),
    ("replay_backoff_cap_seconds", sa.Float(), "86400", "Longest wait before a replay."),
)  # fmt: skip

DROPS_COMMENT = "Records that a stage dropped on purpose: acked without an output, by reason."
DROPS = """
SELECT r.batch_id, p.name AS pipeline, r.stage, d.reason, d.records
FROM step_run_drop d
JOIN step_run r ON r.step_run_id = d.step_run_id AND r.state = 'committed'
JOIN batch b ON b.batch_id = r.batch_id
JOIN pipeline p USING (pipeline_id)
"""
DROPS_COLUMNS = {
    "batch_id": "Number of the batch.",
    "pipeline": "Pipeline by name.",
    "stage": "Stage that dropped them.",
    "reason": "Reason code given by the stage; 'read' for what an on_read stage swallowed.",
    "records": "Rows of the stage's input that were dropped.",
}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def upgrade() -> None:
    for name, kind, default, comment in POLICY:
        op.add_column(
            "pipeline",
            sa.Column(
                name, kind, nullable=default is None, server_default=default, comment=comment
            ),
        )
    op.add_column(
        "batch",
        sa.Column(
            "released",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="Whether a person let it settle above max_failed_ratio.",
        ),
    )
    op.add_column(
        "failed_message",
        sa.Column(
            "not_before",
            sa.DateTime(timezone=True),
            comment="Replays that open earlier leave it out; null: at once.",
        ),
    )
    op.add_column(
        "batch_source",
        sa.Column(
            "notified_at",
            sa.DateTime(timezone=True),
            comment="When the source was told what became of its messages; null: not yet.",
        ),
    )
    op.create_table(
        "step_run_drop",
        sa.Column("step_run_id", sa.BigInteger(), nullable=False, comment="Run that dropped."),
        sa.Column("reason", sa.Text(), nullable=False, comment="Reason code."),
        sa.Column("records", sa.BigInteger(), nullable=False, comment="Rows of its input."),
        sa.ForeignKeyConstraint(
            ["step_run_id"],
            ["step_run.step_run_id"],
            name=op.f("step_run_drop_step_run_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("step_run_id", "reason", name=op.f("step_run_drop_pkey")),
        comment="What each run acked without an output, by reason.",
    )
    op.execute(f"CREATE VIEW stage_drops AS {DROPS}")
    op.execute(f"COMMENT ON VIEW stage_drops IS {_literal(DROPS_COMMENT)}")
    for column, meaning in DROPS_COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN stage_drops.{column} IS {_literal(meaning)}")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON step_run_drop TO ledger_writer")
    op.execute("GRANT SELECT ON step_run_drop, stage_drops TO ledger_reader")
    op.execute("GRANT SELECT ON stage_drops TO ledger_writer")
    op.execute("ALTER TABLE step_run_drop OWNER TO ledger_owner")
    op.execute("ALTER VIEW stage_drops OWNER TO ledger_owner")


def downgrade() -> None:
    op.execute("DROP VIEW stage_drops")
    op.drop_table("step_run_drop")
    op.drop_column("failed_message", "not_before")
    op.drop_column("batch", "released")
    op.drop_column("batch_source", "notified_at")
    for name, *_ in POLICY:
        op.drop_column("pipeline", name)
