"""Quarantined records that a person accepts, and what a pipeline says of those nobody accepted.

Revision: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

ON_QUARANTINE = (
    "What a run does while quarantined records of its batch are not accepted: fail or warn."
)
TOLERATE = "Share of records, failed and quarantined, up to which a run succeeds all the same."
BY_ROOT = (
    "Root of the attempt with which a record was quarantined: a later failure is not accepted."
)

# {column}, {count}: how many of the quarantined records are accepted.
STATUS = """
SELECT b.batch_id, p.name AS pipeline, b.kind, b.original_batch_id, b.status,
       b.interval_start, b.interval_end, t.total,
       CASE WHEN b.status::text IN ('settled', 'superseded')
            THEN t.total - f.failed - f.quarantined - f.superseded ELSE 0 END AS acked,
       f.recovered, f.failed, f.replaying, f.quarantined,
       CASE WHEN b.status::text IN ('settled', 'superseded') THEN 0 ELSE t.total END AS pending,
       b.opened_at, b.settled_at, b.dag_id, b.run_id, b.held_reason, f.superseded,
       b.replaces_batch_id{column}
FROM batch b
JOIN pipeline p USING (pipeline_id)
CROSS JOIN LATERAL (
  SELECT coalesce(b.roots, sum(s.roots), 0)::bigint AS total
  FROM batch_source s WHERE s.batch_id = b.batch_id
) t
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
         count(*) FILTER (WHERE m.status = 'replaying') AS replaying,
         count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
         count(*) FILTER (WHERE m.status = 'recovered') AS recovered,
         count(*) FILTER (WHERE m.status::text = 'superseded') AS superseded{count}
  FROM (
    SELECT o.status, o.root_id FROM failed_message o
    WHERE b.kind = 'original' AND o.original_batch_id = b.batch_id
    UNION ALL
    SELECT o.status, o.root_id FROM failed_root r JOIN failed_message o USING (message_id)
    WHERE b.kind = 'replay' AND r.batch_id = b.batch_id
  ) m{join}
) f
"""
NOW = {
    "column": ", f.accepted",
    "count": ",\n         count(a.root_id) FILTER (WHERE m.status = 'quarantined') AS accepted",
    "join": "\n  LEFT JOIN accepted_root a ON a.root_id = m.root_id",
}
BEFORE = dict.fromkeys(NOW, "")
ACCEPTED = "Of the quarantined: accepted by a person."

RECORDS = """
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, f.stage, f.reason,
       c.accepted_at, c.accepted_by, c.reason AS accepted_because
FROM accepted_root a
JOIN acceptance c USING (acceptance_id)
JOIN failed_message m ON m.root_id = a.root_id AND m.status = 'quarantined'
JOIN failed_root f ON f.root_id = a.root_id
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
"""
RECORDS_COMMENT = "Quarantined records that a person has accepted."
RECORDS_COLUMNS = {
    "message_id": "The record: root id of its first attempt.",
    "pipeline": "Pipeline by name.",
    "source": "Source that it came from.",
    "original_batch_id": "Batch of its first attempt.",
    "stage": "Where its last attempt broke.",
    "reason": "Why.",
    "accepted_at": "When it was accepted.",
    "accepted_by": "Who accepted it.",
    "accepted_because": "The reason that was given.",
}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def upgrade() -> None:
    _add_policy()
    _create_tables()
    op.execute(f"CREATE OR REPLACE VIEW batch_status AS {STATUS.format(**NOW)}")
    op.execute(f"COMMENT ON COLUMN batch_status.accepted IS {_literal(ACCEPTED)}")
    op.execute(f"CREATE VIEW accepted_record AS {RECORDS}")
    op.execute(f"COMMENT ON VIEW accepted_record IS {_literal(RECORDS_COMMENT)}")
    for column, meaning in RECORDS_COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN accepted_record.{column} IS {_literal(meaning)}")
    op.execute("GRANT SELECT ON accepted_record TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW accepted_record OWNER TO ledger_owner")


def _add_policy() -> None:
    given = {"nullable": False}
    fail = {**given, "server_default": sa.text("'fail'"), "comment": ON_QUARANTINE}
    op.add_column("pipeline", sa.Column("on_quarantine", sa.Text(), **fail))
    none = {**given, "server_default": sa.text("0"), "comment": TOLERATE}
    op.add_column("pipeline", sa.Column("tolerate", sa.Float(), **none))
    op.execute("GRANT UPDATE (on_quarantine, tolerate) ON pipeline TO ledger_writer")


def _create_tables() -> None:
    op.create_table(
        "acceptance",
        sa.Column(
            "acceptance_id",
            sa.BigInteger(),
            sa.Identity(always=True),
            nullable=False,
            comment="Number of the acceptance.",
        ),
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            nullable=False,
            comment="Original whose quarantined records, those of its replays included, it names.",
        ),
        sa.Column(
            "accepted_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
            comment="When.",
        ),
        sa.Column("accepted_by", sa.Text(), nullable=False, comment="Who."),
        sa.Column("reason", sa.Text(), comment="Why, in the words of that person."),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batch.batch_id"], name=op.f("acceptance_batch_id_fkey")
        ),
        sa.PrimaryKeyConstraint("acceptance_id", name=op.f("acceptance_pkey")),
        comment="Each time that a person accepted quarantined records of a batch, or gave up failed ones.",
    )
    op.create_table(
        "accepted_root",
        sa.Column("root_id", sa.BigInteger(), autoincrement=False, nullable=False, comment=BY_ROOT),
        sa.Column(
            "acceptance_id",
            sa.BigInteger(),
            nullable=False,
            comment="The acceptance that names it.",
        ),
        sa.ForeignKeyConstraint(
            ["acceptance_id"],
            ["acceptance.acceptance_id"],
            name=op.f("accepted_root_acceptance_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("root_id", name=op.f("accepted_root_pkey")),
        comment="Quarantined records that were accepted, by the attempt that failed last.",
    )
    for table in ("acceptance", "accepted_root"):
        op.execute(f"GRANT SELECT, INSERT ON {table} TO ledger_writer")
        op.execute(f"GRANT SELECT ON {table} TO ledger_reader")
        op.execute(f"ALTER TABLE {table} OWNER TO ledger_owner")


def downgrade() -> None:
    op.execute("DROP VIEW accepted_record")
    kept = _comments("batch_status")
    op.execute("DROP VIEW batch_status")
    op.execute(f"CREATE VIEW batch_status AS {STATUS.format(**BEFORE)}")
    for statement in kept:
        op.execute(sa.text(statement).execution_options(no_parameters=True))
    op.execute("GRANT SELECT ON batch_status TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW batch_status OWNER TO ledger_owner")
    op.drop_table("accepted_root")
    op.drop_table("acceptance")
    op.drop_column("pipeline", "tolerate")
    op.drop_column("pipeline", "on_quarantine")


def _comments(view: str) -> list[str]:
    """The statements that give a view, made anew, the comments that it has, but for ``accepted``."""
    found = op.get_bind().execute(
        sa.text("""
        SELECT format('COMMENT ON VIEW %I IS %L', c.relname, obj_description(c.oid)) AS statement
        FROM pg_class c WHERE c.oid = cast(:view AS regclass)
        UNION ALL
        SELECT format('COMMENT ON COLUMN %I.%I IS %L', c.relname, a.attname,
                      col_description(c.oid, a.attnum))
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.oid = cast(:view AS regclass) AND a.attname <> 'accepted'
        """),
        {"view": view},
    )
    return [row.statement for row in found]
