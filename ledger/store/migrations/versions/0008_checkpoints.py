"""States over batches: which batch's state is committed, and what the others wait for.

Revision: 0008
Revises: 0007
"""

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

VIEW_COMMENT = (
    "The states over batches: which are committed, which is due, and what the others wait for."
)

# The first batch, in order, whose state is not committed is due, or holds up all others. A batch stands where
# its number places it; with settle='hold' a replay stands with its original, whose rows it completes, and units that are asked for again without
# a record that was given up are among them. What the
# first one lacks is looked up behind the window, which would ask for it anew for every row.
VIEW = """
WITH queue AS (
  SELECT b.batch_id, p.name AS pipeline, step ->> 'name' AS stage, c.step_run_id, c.snapshot, c.committed_at, c.acked_at,
         c.batch_id IS NOT NULL AS committed,
         CASE WHEN b.settle = 'hold' THEN coalesce(b.original_batch_id, b.batch_id) ELSE b.batch_id END AS place
  FROM batch b JOIN pipeline p USING (pipeline_id) CROSS JOIN LATERAL jsonb_array_elements(b.topology) AS step
  LEFT JOIN checkpoint c ON c.pipeline_id = b.pipeline_id AND c.batch_id = b.batch_id AND c.stage = step ->> 'name'
  WHERE b.topology @> '[{"kind": "stateful"}]' AND step ->> 'kind' = 'stateful'
    AND (c.batch_id IS NOT NULL OR b.status NOT IN ('abandoned', 'superseded'))
), headed AS (
  SELECT queue.*, first_value(batch_id) OVER (PARTITION BY pipeline, stage ORDER BY committed, place, batch_id) AS head
  FROM queue
)
SELECT h.batch_id, h.pipeline, h.stage,
       CASE WHEN h.committed THEN 'committed' WHEN h.batch_id = h.head AND o.obstacle IS NULL THEN 'due' ELSE 'waiting' END AS state,
       CASE WHEN h.batch_id <> h.head OR o.obstacle IS NOT NULL THEN o.batch_id END AS waits_for_batch_id,
       CASE WHEN h.batch_id <> h.head AND o.obstacle IS NULL AND NOT h.committed THEN 'its state is due'
            ELSE o.obstacle END AS waits_because,
       h.step_run_id, h.snapshot, h.committed_at, h.acked_at
FROM headed h LEFT JOIN LATERAL (
  SELECT b.batch_id,
         CASE WHEN b.status <> 'settled' THEN 'it is ' || b.status
              WHEN EXISTS (
                SELECT FROM batch r WHERE r.status IN ('open', 'held') AND r.replaces_batch_id IN (
                  SELECT coalesce(b.original_batch_id, b.batch_id)
                  UNION SELECT s.rest_of_batch_id FROM batch_source s WHERE s.batch_id = coalesce(b.original_batch_id, b.batch_id)))
                THEN 'it is being replaced'
              WHEN b.settle = 'hold' AND EXISTS (
                SELECT FROM failed_message m WHERE m.original_batch_id = coalesce(b.original_batch_id, b.batch_id)
                AND m.status IN ('failed', 'replaying'))
                THEN 'records of it are failed, and its pipeline has settle="hold"'
              WHEN b.settle = 'hold' AND EXISTS (
                SELECT FROM batch f WHERE coalesce(b.original_batch_id, b.batch_id) IN (f.batch_id, f.original_batch_id)
                AND f.status = 'settled' AND f.woken_at IS NULL AND jsonb_path_exists(f.topology, '$[*].unit')
                AND EXISTS (SELECT FROM failed_root r JOIN failed_message m USING (message_id)
                            WHERE r.batch_id = f.batch_id AND m.status = 'quarantined' AND m.root_id = r.root_id))
                THEN 'units of it are yet to be asked for again without the records that were given up'
         END AS obstacle
  FROM batch b WHERE b.batch_id = h.head
) o ON NOT h.committed
"""
VIEW_COLUMNS = {
    "batch_id": "Number of the batch.",
    "pipeline": "Pipeline by name.",
    "stage": "Stateful stage by name.",
    "state": "committed; due: to be done next; waiting: for an earlier batch, or for its own settlement.",
    "waits_for_batch_id": "The batch that holds it up, maybe itself; null if nothing does.",
    "waits_because": "What that batch lacks.",
    "step_run_id": "The run that made the state; the greatest of a stage made the current one.",
    "snapshot": "What the stage's commit returned; null for a function, whose state is the files of the run.",
    "committed_at": "When the state was committed; null: it is not.",
    "acked_at": "When the stage was told that the batch is committed as a whole; null: it was not.",
}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _moment(name: str, comment: str, *, now: bool = False) -> "sa.Column[datetime]":
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=not now,
        server_default=sa.func.now() if now else None,
        comment=comment,
    )


def upgrade() -> None:
    op.create_table(
        "checkpoint",
        sa.Column(
            "pipeline_id",
            sa.BigInteger(),
            sa.ForeignKey("pipeline.pipeline_id"),
            nullable=False,
            comment="Pipeline.",
        ),
        sa.Column("stage", sa.Text(), nullable=False, comment="Stateful stage by name."),
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            sa.ForeignKey("batch.batch_id"),
            nullable=False,
            comment="Batch whose rows the state has taken in.",
        ),
        sa.Column(
            "step_run_id",
            sa.BigInteger(),
            sa.ForeignKey("step_run.step_run_id"),
            nullable=False,
            comment="The run that made it, each from the one before: the greatest made the current state.",
        ),
        sa.Column(
            "snapshot",
            postgresql.JSONB(),
            comment="What the stage's commit returned; null for a function, whose state is the files of the run.",
        ),
        _moment(
            "committed_at", "When the state was committed, with what its sinks show.", now=True
        ),
        _moment(
            "acked_at",
            "When the stage was told that the batch is committed as a whole; null: it was not.",
        ),
        _moment(
            "removed_at",
            "When the files of the run were removed, a later state being acked; null: they are there.",
        ),
        sa.PrimaryKeyConstraint("pipeline_id", "stage", "batch_id", name="checkpoint_pkey"),
        sa.UniqueConstraint("step_run_id", name="checkpoint_step_run_id_key"),
        comment="The state over batches that a stateful stage has committed with each batch.",
    )
    op.create_index(
        "batch_replaces_batch_id_idx",
        "batch",
        ["replaces_batch_id"],
        postgresql_where=sa.text("replaces_batch_id IS NOT NULL"),
    )
    op.execute("ALTER TABLE checkpoint OWNER TO ledger_owner")
    op.execute("GRANT SELECT ON checkpoint TO ledger_reader")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON checkpoint TO ledger_writer")
    op.execute(f"CREATE VIEW state_progress AS {VIEW}")
    op.execute(f"COMMENT ON VIEW state_progress IS {_literal(VIEW_COMMENT)}")
    for name, comment in VIEW_COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN state_progress.{name} IS {_literal(comment)}")
    op.execute("GRANT SELECT ON state_progress TO ledger_reader, ledger_writer")
    op.execute("ALTER VIEW state_progress OWNER TO ledger_owner")


def downgrade() -> None:
    op.execute("DROP VIEW state_progress")
    op.drop_index("batch_replaces_batch_id_idx", "batch")
    op.drop_table("checkpoint")
