"""Failures of rows of several records, units held for a person, batches that replace another.

Revision: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SHARED = "Whether the row that failed comes from several records: a failure of their unit."

# Of an original every record of it counts that failed in it or in a replay of its unit.
STATUS = """
SELECT b.batch_id, p.name AS pipeline, b.kind, b.original_batch_id, b.status,
       b.interval_start, b.interval_end, t.total,
       CASE WHEN b.status::text IN ('settled', 'superseded')
            THEN t.total - f.failed - f.quarantined - f.superseded ELSE 0 END AS acked,
       f.recovered, f.failed, f.replaying, f.quarantined,
       CASE WHEN b.status::text IN ('settled', 'superseded') THEN 0 ELSE t.total END AS pending,
       b.opened_at, b.settled_at, b.dag_id, b.run_id, b.held_reason, f.superseded, b.replaces_batch_id
FROM batch b
JOIN pipeline p USING (pipeline_id)
CROSS JOIN LATERAL (
  SELECT coalesce(b.roots, sum(s.roots), 0)::bigint AS total FROM batch_source s WHERE s.batch_id = b.batch_id
) t
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
         count(*) FILTER (WHERE m.status = 'replaying') AS replaying,
         count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
         count(*) FILTER (WHERE m.status = 'recovered') AS recovered,
         count(*) FILTER (WHERE m.status::text = 'superseded') AS superseded
  FROM (
    SELECT o.status FROM failed_message o WHERE b.kind = 'original' AND o.original_batch_id = b.batch_id
    UNION ALL
    SELECT o.status FROM failed_root r JOIN failed_message o USING (message_id)
    WHERE b.kind = 'replay' AND r.batch_id = b.batch_id
  ) m
) f
"""
STATUS_BEFORE = """
SELECT b.batch_id, p.name AS pipeline, b.kind, b.original_batch_id, b.status,
       b.interval_start, b.interval_end, t.total,
       CASE WHEN b.status = 'settled' THEN t.total - f.failed - f.quarantined ELSE 0 END AS acked,
       f.recovered, f.failed, f.replaying, f.quarantined,
       CASE WHEN b.status = 'settled' THEN 0 ELSE t.total END AS pending,
       b.opened_at, b.settled_at, b.dag_id, b.run_id, b.held_reason
FROM batch b
JOIN pipeline p USING (pipeline_id)
CROSS JOIN LATERAL (
  SELECT coalesce(b.roots, sum(s.roots), 0)::bigint AS total FROM batch_source s WHERE s.batch_id = b.batch_id
) t
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
         count(*) FILTER (WHERE m.status = 'replaying') AS replaying,
         count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
         count(*) FILTER (WHERE m.status = 'recovered') AS recovered
  FROM failed_root r JOIN failed_message m USING (message_id) WHERE r.batch_id = b.batch_id
) f
"""
STATUS_COMMENT = (
    "Every batch with its counts. The states are disjoint by message: "
    "total = acked + failed + quarantined + pending, and superseded once another batch replaced this one."
)
STATUS_COMMENT_BEFORE = (
    "Every batch with its counts. The states are disjoint by message: "
    "total = acked + failed + quarantined + pending."
)
STATUS_COLUMNS = {
    "batch_id": "Number of the batch.",
    "pipeline": "Pipeline by name.",
    "kind": "original or replay.",
    "original_batch_id": "The original that a replay belongs to.",
    "status": "open, settled, abandoned, held or superseded.",
    "interval_start": "Start of its interval, inclusive.",
    "interval_end": "End of its interval, exclusive.",
    "total": "Records that its sources emitted.",
    "acked": "Records processed to every sink, those recovered by a replay included.",
    "recovered": "Of the acked: failed once, acked in a later replay.",
    "failed": "Records failed and not recovered, those in an open replay included.",
    "replaying": "Of the failed: claimed by an open replay.",
    "quarantined": "Records given up after max_replays, kept with their reason.",
    "pending": "Records not decided yet.",
    "opened_at": "When it was opened.",
    "settled_at": "When it was decided.",
    "dag_id": "Airflow's DAG; empty without Airflow.",
    "run_id": "Airflow's run id, or the one given on the command line.",
    "held_reason": "Why a check stopped its settlement.",
    "superseded": "Records that had failed when another batch replaced this one.",
    "replaces_batch_id": "The original that it was opened to replace.",
}

HELD_COMMENT = (
    "Failed records that no replay takes by itself any more: their unit failed too often."
)
HELD = """
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, f.stage, f.reason, f.detail, m.unit_failures
FROM failed_message m
JOIN failed_root f USING (root_id)
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
WHERE m.status = 'failed' AND m.not_before = 'infinity'
"""
HELD_COLUMNS = {
    "message_id": "The record across its attempts.",
    "pipeline": "Pipeline by name.",
    "source": "Source that it came from.",
    "original_batch_id": "Batch of its first attempt.",
    "stage": "Where it broke last.",
    "reason": "Why.",
    "detail": "What else is known.",
    "unit_failures": "How often a row of several records, this one among them, failed.",
}

# A pending root is one of a batch that is not decided: superseded is decided. A record that failed only in
# a later replay of its unit is not acked in its original either.
ROOT_STATUS = """
SELECT s.first_root + n.number AS root_id,
       coalesce(m.message_id, rr.message_id, s.first_root + n.number) AS message_id,
       b.batch_id, p.name AS pipeline, s.source,
       CASE WHEN b.status::text {undecided} THEN 'pending'
            WHEN {acked} THEN 'acked' ELSE m.status::text END AS status,
       f.stage, f.reason
FROM batch_source s
JOIN batch b USING (batch_id)
JOIN pipeline p ON p.pipeline_id = b.pipeline_id
CROSS JOIN LATERAL generate_series(0, s.roots - 1) AS n (number)
LEFT JOIN failed_root f ON f.root_id = s.first_root + n.number
LEFT JOIN failed_message m ON m.message_id = {message}
LEFT JOIN replay_root rr ON rr.root_id = s.first_root + n.number AND rr.step_run_id = s.emit_run_id
WHERE s.emit_run_id IS NOT NULL
"""
ROOT_STATE = """
CREATE OR REPLACE FUNCTION root_state(root bigint)
RETURNS TABLE (root_id bigint, message_id bigint, batch_id bigint, pipeline text, source text,
               status text, stage text, reason text, detail text)
LANGUAGE sql STABLE AS $$
  SELECT root, coalesce(m.message_id, rr.message_id, root), b.batch_id, p.name, s.source,
         CASE WHEN b.status::text {undecided} THEN 'pending'
              WHEN {acked} THEN 'acked' ELSE m.status::text END,
         f.stage, f.reason, f.detail
  FROM batch_source s
  JOIN batch b ON b.batch_id = s.batch_id
  JOIN pipeline p ON p.pipeline_id = b.pipeline_id
  LEFT JOIN failed_root f ON f.root_id = root
  LEFT JOIN failed_message m ON m.message_id = {message}
  LEFT JOIN replay_root rr ON rr.root_id = root AND rr.step_run_id = s.emit_run_id
  WHERE s.emit_run_id IS NOT NULL AND s.first_root <= root AND root < s.first_root + s.roots
$$
"""
NOW = {
    "undecided": "NOT IN ('settled', 'superseded')",
    "acked": "f.root_id IS NULL AND (b.kind = 'replay' OR m.message_id IS NULL)",
}
BEFORE = {"undecided": "<> 'settled'", "acked": "f.root_id IS NULL", "message": "f.message_id"}
OWN = "coalesce(f.message_id, CASE WHEN b.kind = 'original' THEN {} END)"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _describe(view: str, comment: str, columns: dict[str, str]) -> None:
    op.execute(f"COMMENT ON VIEW {view} IS {_literal(comment)}")
    for column, meaning in columns.items():
        op.execute(f"COMMENT ON COLUMN {view}.{column} IS {_literal(meaning)}")


def upgrade() -> None:
    op.execute("ALTER TYPE batch_state ADD VALUE IF NOT EXISTS 'superseded'")
    op.execute("ALTER TYPE message_status ADD VALUE IF NOT EXISTS 'superseded'")
    flag = {"nullable": False, "server_default": sa.text("false"), "comment": SHARED}
    op.add_column("root_fail", sa.Column("shared", sa.Boolean(), **flag))
    op.add_column("failed_root", sa.Column("shared", sa.Boolean(), **flag))
    op.add_column(
        "failed_message",
        sa.Column(
            "unit_failures",
            sa.Integer(),
            nullable=False,
            server_default=sa.text("0"),
            comment="How often a row of several records, this one among them, failed.",
        ),
    )
    op.add_column(
        "failed_message",
        sa.Column(
            "before_claim",
            postgresql.JSONB(),
            comment="What a replay found when it claimed the message, to be restored if it is abandoned.",
        ),
    )
    op.create_table(
        "replaced_folder",
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch that replaces it."),
        sa.Column("path", sa.Text(), nullable=False, comment="Folder of an earlier delivery."),
        sa.Column("sink", sa.Text(), nullable=False, comment="Sink by name."),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batch.batch_id"], name=op.f("replaced_folder_batch_id_fkey")
        ),
        sa.PrimaryKeyConstraint("batch_id", "path", name=op.f("replaced_folder_pkey")),
        comment="Folders of sinks that go once the batch that replaces them is settled.",
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON replaced_folder TO ledger_writer")
    op.execute("GRANT SELECT ON replaced_folder TO ledger_reader")
    op.execute("ALTER TABLE replaced_folder OWNER TO ledger_owner")
    op.add_column(
        "batch",
        sa.Column(
            "replaces_batch_id",
            sa.BigInteger(),
            comment="The original over the same interval that it was opened to replace.",
        ),
    )
    op.create_foreign_key(
        op.f("batch_replaces_batch_id_fkey"), "batch", "batch", ["replaces_batch_id"], ["batch_id"]
    )
    op.execute(f"CREATE OR REPLACE VIEW batch_status AS {STATUS}")
    _describe("batch_status", STATUS_COMMENT, STATUS_COLUMNS)
    op.execute(f"CREATE VIEW held_record AS {HELD}")
    _describe("held_record", HELD_COMMENT, HELD_COLUMNS)
    op.execute("GRANT SELECT ON held_record TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW held_record OWNER TO ledger_owner")
    op.execute(
        f"CREATE OR REPLACE VIEW root_status AS {ROOT_STATUS.format(**NOW, message=OWN.format('s.first_root + n.number'))}"
    )
    op.execute(ROOT_STATE.format(**NOW, message=OWN.format("root")))


def downgrade() -> None:
    # The enums keep their new value: PostgreSQL cannot take one away, and nothing has it any more.
    op.execute("DROP VIEW held_record")
    op.execute("DROP VIEW batch_status")
    op.execute(f"CREATE VIEW batch_status AS {STATUS_BEFORE}")
    old = {
        name: text
        for name, text in STATUS_COLUMNS.items()
        if not name.startswith(("superseded", "replaces"))
    }
    _describe("batch_status", STATUS_COMMENT_BEFORE, old)
    op.execute("GRANT SELECT ON batch_status TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW batch_status OWNER TO ledger_owner")
    op.execute(f"CREATE OR REPLACE VIEW root_status AS {ROOT_STATUS.format(**BEFORE)}")
    op.execute(ROOT_STATE.format(**BEFORE))
    op.drop_constraint(op.f("batch_replaces_batch_id_fkey"), "batch", type_="foreignkey")
    op.drop_column("batch", "replaces_batch_id")
    op.drop_table("replaced_folder")
    op.drop_column("failed_message", "before_claim")
    op.drop_column("failed_message", "unit_failures")
    op.drop_column("failed_root", "shared")
    op.drop_column("root_fail", "shared")
