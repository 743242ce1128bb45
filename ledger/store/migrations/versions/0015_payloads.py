"""What failed records contain, who stopped the retries of one, and where a pipeline is declared.

Revision: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

MISSING = """
SELECT m.original_batch_id AS batch_id, p.name AS pipeline, count(*) AS records
FROM failed_message m
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
LEFT JOIN failed_payload f ON f.message_id = m.message_id
WHERE f.message_id IS NULL OR f.root_id < m.root_id AND EXISTS (
  SELECT FROM failed_root r JOIN batch t ON t.batch_id = r.batch_id
  WHERE r.root_id = m.root_id AND r.stage <> m.source AND t.selection ? 'from_source')
GROUP BY 1, 2
"""
MISSING_COMMENT = (
    "Batches with failed records whose content is not kept yet, or was read again since: publish,"
    " replay or explain copies it."
)
MISSING_COLUMNS = {
    "batch_id": "Original batch of the records.",
    "pipeline": "Pipeline by name.",
    "records": "Failed records without content, or with that of an earlier attempt.",
}


def upgrade() -> None:
    op.add_column(
        "pipeline",
        sa.Column(
            "target",
            sa.Text(),
            comment="MODULE:PIPELINE where it is declared, for commands; null: no global.",
        ),
    )
    op.create_table(
        "failed_payload",
        sa.Column(
            "message_id",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="Message, once for all its attempts.",
        ),
        sa.Column(
            "batch_id", sa.BigInteger(), nullable=False, comment="Batch of its first attempt."
        ),
        sa.Column(
            "root_id",
            sa.BigInteger(),
            nullable=False,
            comment="Root of the attempt that had this content: the first, or one that read it again.",
        ),
        sa.Column(
            "key",
            postgresql.JSONB(),
            comment="Values of the source's key columns; null: the source declares none.",
        ),
        sa.Column(
            "content",
            sa.Text(),
            nullable=False,
            comment="JSON of its fields, or raw text of what did not parse; at most 10,000 characters.",
        ),
        sa.Column(
            "parsed",
            sa.Boolean(),
            nullable=False,
            comment="Whether content is the JSON of its fields, and whole.",
        ),
        sa.Column("source_file", sa.Text(), comment="File that it was read from, if it was one."),
        sa.Column(
            "source_row",
            sa.BigInteger(),
            comment="Its number among the file's records, from 1; null: not known.",
        ),
        sa.PrimaryKeyConstraint("message_id", name=op.f("failed_payload_pkey")),
        comment="Content of each record that failed, copied from its snapshot.",
    )
    op.create_index(op.f("failed_payload_batch_id_idx"), "failed_payload", ["batch_id"])
    op.create_table(
        "given_up",
        sa.Column(
            "message_id", sa.BigInteger(), nullable=False, comment="Message that was quarantined."
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, in the person's words."),
        sa.Column("given_up_by", sa.Text(), nullable=False, comment="Who did it."),
        sa.Column(
            "given_up_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.now(),
            comment="When.",
        ),
        comment="Records that a person moved to quarantine, with the reason. Never changed.",
    )
    op.create_index(op.f("given_up_message_id_idx"), "given_up", ["message_id"])
    # Content is not for everybody who may count: ledger_reader gets no grant on failed_payload.
    op.execute(
        "GRANT SELECT, INSERT, UPDATE (root_id, content, parsed, key) ON failed_payload "
        "TO ledger_writer"
    )
    op.execute("GRANT SELECT ON failed_payload TO ledger_payload_reader")
    op.execute("GRANT UPDATE (target) ON pipeline TO ledger_writer")
    op.execute("GRANT SELECT, INSERT ON given_up TO ledger_writer")
    op.execute("GRANT SELECT ON given_up TO ledger_reader")
    for table in ("failed_payload", "given_up"):
        op.execute(f"ALTER TABLE {table} OWNER TO ledger_owner")
    op.execute(f"CREATE VIEW payload_missing AS {MISSING}")
    op.execute(f"COMMENT ON VIEW payload_missing IS {_literal(MISSING_COMMENT)}")
    for column, meaning in MISSING_COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN payload_missing.{column} IS {_literal(meaning)}")
    op.execute("GRANT SELECT ON payload_missing TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW payload_missing OWNER TO ledger_owner")


def downgrade() -> None:
    op.execute("DROP VIEW payload_missing")
    op.drop_table("given_up")
    op.drop_table("failed_payload")
    op.drop_column("pipeline", "target")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
