"""The history of a record keeps what was acked once and failed later, with the rest of its unit.

Revision: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

VIEW = """
CREATE OR REPLACE VIEW replay_history AS
SELECT message_id, (row_number() OVER (PARTITION BY message_id ORDER BY batch_id))::integer AS attempt, batch_id,
       root_id, outcome, stage, reason, decided_at
FROM (
  SELECT message_id, batch_id, root_id, 'failed' AS outcome, stage, reason, failed_at AS decided_at FROM failed_root
  UNION ALL
  SELECT m.message_id, b.batch_id, m.message_id, 'acked', NULL, NULL, b.settled_at
  FROM failed_message m JOIN batch b ON b.batch_id = m.original_batch_id
  WHERE NOT EXISTS (SELECT FROM failed_root f WHERE f.root_id = m.message_id)
  UNION ALL
  SELECT m.message_id, b.batch_id, r.root_id, 'acked', NULL, NULL, b.settled_at
  FROM failed_message m
  JOIN replay_root r ON r.message_id = m.message_id
  JOIN batch_source s ON s.batch_id = r.batch_id AND s.emit_run_id = r.step_run_id
  JOIN batch b ON b.batch_id = r.batch_id AND b.status IN ('settled', 'superseded')
  WHERE NOT EXISTS (SELECT FROM failed_root f WHERE f.root_id = r.root_id)
) AS decided
"""
BEFORE = """
CREATE OR REPLACE VIEW replay_history AS
SELECT f.message_id, f.attempt, f.batch_id, f.root_id, 'failed' AS outcome, f.stage, f.reason, f.failed_at AS decided_at
FROM failed_root f
UNION ALL
SELECT m.message_id, m.attempts + 1, b.batch_id, rr.root_id, 'acked', NULL, NULL, b.settled_at
FROM failed_message m
JOIN replay_root rr ON rr.message_id = m.message_id AND rr.batch_id = m.replay_batch_id
JOIN batch_source s ON s.batch_id = rr.batch_id AND s.emit_run_id = rr.step_run_id
JOIN batch b ON b.batch_id = rr.batch_id
WHERE m.status = 'recovered'
"""


def upgrade() -> None:
    op.execute(VIEW)


def downgrade() -> None:
    op.execute(BEFORE)
