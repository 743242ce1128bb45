"""Guarantees, and what sinks are to show of settled batches.

Revision: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

GUARANTEE = "exactly_once: sinks show what is acked, after settlement; at_least_once: all, at once."
SETTLE = "publish_acked: what is acked is shown once the batch is settled; hold: once no message of it, or of its replays, is failed any more."

VIEW_COMMENT = "What sinks show, or are about to show, of settled batches that run exactly once."
VIEW = """
SELECT x.batch_id, p.name AS pipeline, x.sink,
       CASE WHEN x.replaced_at IS NOT NULL THEN 'replaced'
            WHEN x.published_at IS NOT NULL THEN 'published'
            WHEN x.ready THEN 'ready' ELSE 'decided' END AS state,
       x.decided_at, x.published_at, x.replaced_at, x.rows,
       CASE WHEN NOT EXISTS (SELECT FROM sink_replacement s WHERE s.step_run_id = x.step_run_id)
            THEN r.output_rows - x.rows END AS withheld_rows
FROM publication x
JOIN batch b USING (batch_id)
JOIN pipeline p USING (pipeline_id)
JOIN step_run r USING (step_run_id)
"""
VIEW_COLUMNS = {
    "batch_id": "Number of the batch.",
    "pipeline": "Pipeline by name.",
    "sink": "Sink by name.",
    "state": "decided: rows of failed records are yet to be left out; ready; published; replaced: by a later batch, or never shown for its sake.",
    "decided_at": "When it was decided that this batch is to be shown.",
    "published_at": "When the sink had shown it; null: not yet.",
    "replaced_at": "When a batch that reprocesses the interval took its place; null: it has not.",
    "rows": "Rows to be shown; null until that is known.",
    "withheld_rows": "Rows staged and not shown: those of records that failed, or of their unit. Null where earlier rows were brought again beside them.",
}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def upgrade() -> None:
    for name, default, comment in (
        ("guarantee", "at_least_once", GUARANTEE),
        ("settle", "publish_acked", SETTLE),
    ):
        op.add_column(
            "batch",
            sa.Column(name, sa.Text(), nullable=False, server_default=default, comment=comment),
        )
        op.alter_column("batch", name, server_default=None)
    op.add_column(
        "batch",
        sa.Column(
            "woken_at",
            sa.DateTime(timezone=True),
            comment="When units of it whose records were given up were asked for again; null: not yet.",
        ),
    )
    op.create_index(
        "batch_combining_idx",
        "batch",
        ["settled_at"],
        postgresql_where=sa.text("topology @> '[{\"after\": true}]'::jsonb"),
    )
    op.create_table(
        "publication",
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            sa.ForeignKey("batch.batch_id"),
            nullable=False,
            comment="Batch whose rows are to be shown.",
        ),
        sa.Column("sink", sa.Text(), nullable=False, comment="Sink by name."),
        sa.Column(
            "step_run_id",
            sa.BigInteger(),
            sa.ForeignKey("step_run.step_run_id"),
            nullable=False,
            comment="The sink's run that staged them.",
        ),
        sa.Column(
            "decided_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="When it was decided, in the transaction of a settlement.",
        ),
        sa.Column(
            "ready",
            sa.Boolean(),
            nullable=False,
            comment="Whether the files hold just what is to be shown: nothing failed, or it is left out.",
        ),
        sa.Column(
            "folder",
            sa.Text(),
            comment="Folder of the files without what is withheld; null: as they were staged.",
        ),
        sa.Column(
            "files",
            postgresql.JSONB(),
            comment="Those files: path, bytes, rows, first_position; null: as they were staged.",
        ),
        sa.Column("rows", sa.BigInteger(), comment="Rows to be shown; null until it is ready."),
        sa.Column(
            "published_at",
            sa.DateTime(timezone=True),
            comment="When the sink had shown them; null: not yet.",
        ),
        sa.Column(
            "replaced_at",
            sa.DateTime(timezone=True),
            comment="When a batch that reprocesses the interval took their place; null: it has not.",
        ),
        sa.PrimaryKeyConstraint("batch_id", "sink", name="publication_pkey"),
        comment="What each sink is to show of a settled batch, and whether it does.",
    )
    op.create_index(
        "publication_pending_idx",
        "publication",
        ["batch_id"],
        postgresql_where=sa.text("published_at IS NULL AND replaced_at IS NULL"),
    )
    op.create_table(
        "sink_replacement",
        sa.Column(
            "step_run_id",
            sa.BigInteger(),
            sa.ForeignKey("step_run.step_run_id"),
            nullable=False,
            comment="The sink's run.",
        ),
        sa.Column(
            "replaced_batch_id",
            sa.BigInteger(),
            sa.ForeignKey("batch.batch_id"),
            nullable=False,
            comment="Batch whose rows go when those of the run are shown.",
        ),
        sa.PrimaryKeyConstraint("step_run_id", "replaced_batch_id", name="sink_replacement_pkey"),
        comment="Whose rows a sink's run brings again: a replay of units that had been shown already.",
    )
    for table in ("publication", "sink_replacement"):
        op.execute(f"ALTER TABLE {table} OWNER TO ledger_owner")
        op.execute(f"GRANT SELECT ON {table} TO ledger_reader")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO ledger_writer")
    op.execute(f"CREATE VIEW sink_publication AS {VIEW}")
    op.execute(f"COMMENT ON VIEW sink_publication IS {_literal(VIEW_COMMENT)}")
    for name, comment in VIEW_COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN sink_publication.{name} IS {_literal(comment)}")
    op.execute("GRANT SELECT ON sink_publication TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW sink_publication OWNER TO ledger_owner")


def downgrade() -> None:
    op.execute("DROP VIEW sink_publication")
    op.drop_table("sink_replacement")
    op.drop_table("publication")
    op.drop_index("batch_combining_idx", "batch")
    op.drop_column("batch", "woken_at")
    op.drop_column("batch", "settle")
    op.drop_column("batch", "guarantee")
