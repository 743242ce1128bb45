"""Sources keep states in the table of the states over batches: its comments say so.

Revision: 0010
Revises: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# By column, before and now.
COLUMNS = {
    "stage": ("Stateful stage by name.", "Stateful stage or source by name."),
    "batch_id": (
        "Batch whose rows the state has taken in.",
        "Batch whose rows the state has taken in; of a source the one that it has read for.",
    ),
    "snapshot": (
        "What the stage's commit returned; null for a function, whose state is the files of the run.",
        "What its commit returned; null for a function, whose state is the files of the run.",
    ),
    "committed_at": (
        "When the state was committed, with what its sinks show.",
        "When the state was committed, with what its sinks show, or with the source's records.",
    ),
    "acked_at": (
        "When the stage was told that the batch is committed as a whole; null: it was not.",
        "When the stage or source was told that the batch is committed as a whole; null: it was not.",
    ),
}
TABLE = (
    "The state over batches that a stateful stage has committed with each batch.",
    "The state that a stateful stage or source has committed with each batch.",
)


def upgrade() -> None:
    _comment(1)


def downgrade() -> None:
    _comment(0)


def _comment(version: int) -> None:
    op.execute(f"COMMENT ON TABLE checkpoint IS {_literal(TABLE[version])}")
    for name, comments in COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN checkpoint.{name} IS {_literal(comments[version])}")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
