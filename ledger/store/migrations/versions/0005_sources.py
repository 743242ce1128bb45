"""What incremental sources claim, how much a batch may emit, and what it leaves to others.

Revision: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COLUMNS = (
    ("quota", sa.BigInteger(), "Most records that it may emit (max_pending less what was pending); null: any number."),
    ("rest", sa.BigInteger(), "Records of its snapshot beyond the quota, which other batches emit."),
    ("rest_of_batch_id", sa.BigInteger(), "Batch whose rest this one emits; null: it reads the source."),
    ("first_position", sa.BigInteger(), "Position in that batch's snapshot at which it begins."),
    ("claimed_after", sa.Text(), "Cursor of a table: claimed are the rows above; null: from the start."),
    ("claimed_upto", sa.Text(), "Cursor of a table: claimed are the rows up to and with this; null: none."),
)  # fmt: skip

# Whether every record of a source in a batch is acked or quarantined, those that it left to others too.
FINISHED = """
b.status::text IN ('settled', 'superseded')
AND NOT EXISTS (SELECT FROM failed_message m WHERE m.original_batch_id = b.batch_id AND m.source = s.source
                AND m.status IN ('failed', 'replaying'))
AND (coalesce(s.rest, 0) = 0
     OR s.rest <= (SELECT coalesce(sum(r.roots), 0) FROM batch_source r JOIN batch rb ON rb.batch_id = r.batch_id
                   WHERE r.rest_of_batch_id = s.batch_id AND r.source = s.source
                     AND rb.status::text IN ('settled', 'superseded'))
     AND NOT EXISTS (SELECT FROM batch_source r JOIN failed_message m
                     ON m.original_batch_id = r.batch_id AND m.source = r.source AND m.status IN ('failed', 'replaying')
                     WHERE r.rest_of_batch_id = s.batch_id AND r.source = s.source))
"""
FILES_COMMENT = "Files that incremental sources have claimed, by the batch that reads them."
FILES = f"""
SELECT p.name AS pipeline, f.source, f.path, f.bytes, f.modified_at, f.batch_id, {FINISHED} AS finished
FROM claimed_file f
JOIN batch_source s ON s.batch_id = f.batch_id AND s.source = f.source
JOIN batch b ON b.batch_id = f.batch_id
JOIN pipeline p ON p.pipeline_id = f.pipeline_id
"""
FILES_COLUMNS = {
    "pipeline": "Pipeline by name.",
    "source": "Source by name.",
    "path": "Path or URL.",
    "bytes": "Size in bytes when it was claimed.",
    "modified_at": "When it was last modified then.",
    "batch_id": "Batch that reads it.",
    "finished": "Whether every record of that batch's source is acked or quarantined.",
}

POSITION_COMMENT = (
    "How far each source is processed without a gap, from its first claim on: everything up to the position is "
    "acked or quarantined. For outsiders; reading never starts there."
)
# A claim of a cursor begins where another ends, an interval of a schedule too: the walk ends at the first
# that does not, or is not finished. A cursor value is kept as its kind, a colon, and the value.
POSITION = f"""
WITH state AS (
  SELECT s.pipeline_id, s.source, s.claimed, s.interval_start, s.interval_end, s.claimed_after, s.claimed_upto,
         split_part(s.claimed_upto, ':', 1) AS kind,
         substr(s.claimed_upto, strpos(s.claimed_upto, ':') + 1) AS upto, {FINISHED} AS finished
  FROM batch_source s JOIN batch b ON b.batch_id = s.batch_id
), cursors AS (
  SELECT pipeline_id, source, claimed_after, claimed_upto, upto, finished,
         CASE WHEN kind IN ('int', 'decimal') THEN upto::numeric
              WHEN kind IN ('date', 'datetime') THEN extract(epoch FROM upto::timestamp) END AS number
  FROM state WHERE claimed_upto IS NOT NULL
), walked AS (
  SELECT pipeline_id, source, upto AS position, row_number() OVER along AS place,
         finished AND claimed_after IS NOT DISTINCT FROM lag(claimed_upto) OVER along AS follows
  FROM cursors WINDOW along AS (PARTITION BY pipeline_id, source ORDER BY number, upto COLLATE "C")
  UNION ALL
  SELECT pipeline_id, source, to_char(interval_end AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"'),
         row_number() OVER along,
         finished AND coalesce(interval_start = lag(interval_end) OVER along, true)
  FROM state WHERE claimed
  WINDOW along AS (PARTITION BY pipeline_id, source ORDER BY interval_start, interval_end)
), reached AS (
  SELECT *, bool_and(follows) OVER (PARTITION BY pipeline_id, source ORDER BY place) AS unbroken FROM walked
)
SELECT DISTINCT ON (p.name, r.source) p.name AS pipeline, r.source, r.position
FROM reached r JOIN pipeline p USING (pipeline_id)
WHERE r.unbroken ORDER BY p.name, r.source, r.place DESC
"""
POSITION_COLUMNS = {
    "pipeline": "Pipeline by name.",
    "source": "Source by name.",
    "position": "A table's cursor value, inclusive, or the end of an interval, exclusive (UTC), as text.",
}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _view(name: str, query: str, comment: str, columns: dict[str, str]) -> None:
    op.execute(f"CREATE VIEW {name} AS {query}")
    op.execute(f"COMMENT ON VIEW {name} IS {_literal(comment)}")
    for column, meaning in columns.items():
        op.execute(f"COMMENT ON COLUMN {name}.{column} IS {_literal(meaning)}")
    op.execute(f"GRANT SELECT ON {name} TO ledger_reader, ledger_writer")
    op.execute(f"ALTER VIEW {name} OWNER TO ledger_owner")


def upgrade() -> None:
    for name, kind, comment in COLUMNS:
        op.add_column("batch_source", sa.Column(name, kind, comment=comment))
    op.create_foreign_key(
        op.f("batch_source_rest_of_batch_id_fkey"),
        "batch_source",
        "batch",
        ["rest_of_batch_id"],
        ["batch_id"],
    )
    op.create_index(
        op.f("batch_source_rest_of_batch_id_idx"),
        "batch_source",
        ["rest_of_batch_id"],
        postgresql_where=sa.text("rest_of_batch_id IS NOT NULL"),
    )
    op.create_table(
        "claimed_file",
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="Pipeline that reads."),
        sa.Column("source", sa.Text(), nullable=False, comment="Source by name."),
        sa.Column("path", sa.Text(), nullable=False, comment="Path or URL."),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="Size when it was claimed."),
        sa.Column(
            "modified_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="When it was last modified then.",
        ),
        sa.Column(
            "digest", sa.Text(), comment="SHA-256 of a small file's content; null: not looked at."
        ),
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch that reads it."),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batch.batch_id"], name=op.f("claimed_file_batch_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["pipeline_id"], ["pipeline.pipeline_id"], name=op.f("claimed_file_pipeline_id_fkey")
        ),
        sa.PrimaryKeyConstraint(
            "pipeline_id", "source", "path", "bytes", "modified_at", name=op.f("claimed_file_pkey")
        ),
        comment="Files that incremental sources have claimed: each content once. An abandoned batch gives them back.",
    )
    op.create_index(op.f("claimed_file_batch_id_idx"), "claimed_file", ["batch_id"])
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON claimed_file TO ledger_writer")
    op.execute("GRANT SELECT ON claimed_file TO ledger_reader")
    op.execute("ALTER TABLE claimed_file OWNER TO ledger_owner")
    _view("source_file", FILES, FILES_COMMENT, FILES_COLUMNS)
    _view("source_position", POSITION, POSITION_COMMENT, POSITION_COLUMNS)


def downgrade() -> None:
    op.execute("DROP VIEW source_position")
    op.execute("DROP VIEW source_file")
    op.drop_table("claimed_file")
    op.drop_index(op.f("batch_source_rest_of_batch_id_idx"), "batch_source")
    op.drop_constraint(
        op.f("batch_source_rest_of_batch_id_fkey"), "batch_source", type_="foreignkey"
    )
    for name, *_ in COLUMNS:
        op.drop_column("batch_source", name)
