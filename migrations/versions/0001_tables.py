"""Tables.

Revision: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "ledger_delta",
        sa.Column(
            "batch_id", sa.BigInteger(), nullable=False, comment="Batch; one partition each."
        ),
        sa.Column(
            "stage_run_id",
            sa.BigInteger(),
            nullable=False,
            comment="Run that posted; counts only once that is committed.",
        ),
        sa.Column("root_id", sa.BigInteger(), nullable=False, comment="Root."),
        sa.Column(
            "delta",
            sa.BigInteger(),
            nullable=False,
            comment="XOR of the input edges acked and the output edges emitted.",
        ),
        sa.Column(
            "acked",
            sa.BigInteger(),
            nullable=False,
            comment="XOR of the input edges acked; delta # acked is what was emitted.",
        ),
        sa.Column("emitted_edges", sa.Integer(), nullable=False, comment="Edges emitted."),
        sa.Column("acked_edges", sa.Integer(), nullable=False, comment="Edges acked."),
        comment="What each run adds to each root's ack value. BIT_XOR(delta) per root is 0 once all is acked.",
        postgresql_partition_by="LIST (batch_id)",
    )
    op.create_table(
        "pipeline",
        sa.Column(
            "pipeline_id",
            sa.BigInteger(),
            sa.Identity(always=True),
            nullable=False,
            comment="Number of the pipeline.",
        ),
        sa.Column("name", sa.Text(), nullable=False, comment="Name given in its declaration."),
        sa.Column(
            "message_timeout_seconds",
            sa.Float(),
            nullable=False,
            comment="A batch expires this long after a run failed or its lease lapsed.",
        ),
        sa.Column(
            "max_replays",
            sa.Integer(),
            nullable=False,
            comment="Own failed replays after which a message is quarantined.",
        ),
        sa.Column(
            "auto_replay",
            sa.Boolean(),
            nullable=False,
            comment="Whether the sweeper asks for replays by itself.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When the ledger first saw it.",
        ),
        sa.PrimaryKeyConstraint("pipeline_id", name=op.f("pipeline_pkey")),
        sa.UniqueConstraint("name", name=op.f("pipeline_name_key")),
        comment="One row per declared pipeline, with the policy that its last batch was opened with.",
    )
    op.create_table(
        "replay_root",
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Replay batch."),
        sa.Column(
            "stage_run_id", sa.BigInteger(), nullable=False, comment="Emit run of the replay."
        ),
        sa.Column("root_id", sa.BigInteger(), nullable=False, comment="Root of this attempt."),
        sa.Column(
            "message_id",
            sa.BigInteger(),
            nullable=False,
            comment="Message that it is an attempt of.",
        ),
        comment="Which message each root of a replay is an attempt of. In an original the root is the message.",
    )
    op.create_index(op.f("replay_root_batch_id_idx"), "replay_root", ["batch_id"], unique=False)
    op.create_index(op.f("replay_root_message_id_idx"), "replay_root", ["message_id"], unique=False)
    op.create_index(op.f("replay_root_root_id_idx"), "replay_root", ["root_id"], unique=False)
    op.create_table(
        "root_counter",
        sa.Column(
            "single",
            sa.Boolean(),
            server_default=sa.text("true"),
            nullable=False,
            comment="Always true: there is one row.",
        ),
        sa.Column(
            "next_root",
            sa.BigInteger(),
            nullable=False,
            comment="First root id that no emit run has reserved.",
        ),
        sa.CheckConstraint("single", name=op.f("root_counter_one_row_check")),
        sa.PrimaryKeyConstraint("single", name=op.f("root_counter_pkey")),
        comment="Where the next range of root ids starts.",
    )
    op.create_table(
        "root_fail",
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch."),
        sa.Column(
            "stage_run_id", sa.BigInteger(), nullable=False, comment="Run that failed the root."
        ),
        sa.Column("root_id", sa.BigInteger(), nullable=False, comment="Root."),
        sa.Column("reason", sa.Text(), nullable=False, comment="Reason given."),
        sa.Column(
            "detail", sa.Text(), nullable=True, comment="Raw text of a record that did not parse."
        ),
        comment="Explicit fails of open batches; settlement moves them to failed_root.",
    )
    op.create_index(op.f("root_fail_batch_id_idx"), "root_fail", ["batch_id"], unique=False)
    op.create_table(
        "batch",
        sa.Column(
            "batch_id",
            sa.BigInteger(),
            sa.Identity(always=True),
            nullable=False,
            comment="Number of the batch.",
        ),
        sa.Column(
            "pipeline_id", sa.BigInteger(), nullable=False, comment="Pipeline that it is a run of."
        ),
        sa.Column(
            "kind",
            sa.Enum("original", "replay", name="batch_kind"),
            nullable=False,
            comment="Original, or replay of one original.",
        ),
        sa.Column(
            "original_batch_id",
            sa.BigInteger(),
            nullable=True,
            comment="The original that a replay belongs to; null for an original.",
        ),
        sa.Column(
            "dag_id",
            sa.Text(),
            nullable=False,
            comment="Airflow's DAG; empty for a run without Airflow.",
        ),
        sa.Column(
            "run_id",
            sa.Text(),
            nullable=False,
            comment="Airflow's run id, or the one given on the command line.",
        ),
        sa.Column(
            "status",
            sa.Enum("open", "settled", "abandoned", "held", name="batch_state"),
            nullable=False,
            comment="open, settled, abandoned or held.",
        ),
        sa.Column(
            "interval_start",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Start of the interval that it reads, inclusive.",
        ),
        sa.Column(
            "interval_end",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="End of the interval that it reads, exclusive.",
        ),
        sa.Column(
            "params",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Parameters of the run, for the path templates.",
        ),
        sa.Column(
            "selection",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="What a replay selects of its original's failed messages; null for an original.",
        ),
        sa.Column(
            "ackers",
            sa.Integer(),
            nullable=False,
            comment="Parallel ledger writers; 0: tracking is off.",
        ),
        sa.Column(
            "topology",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Steps in order: name, kind, reads.",
        ),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was opened, the last time.",
        ),
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When its roots were decided.",
        ),
        sa.Column(
            "held_reason",
            sa.Text(),
            nullable=True,
            comment="Why a check stopped its settlement, while it is held.",
        ),
        sa.Column("roots", sa.BigInteger(), nullable=True, comment="Roots decided at settlement."),
        sa.Column(
            "failed_roots",
            sa.BigInteger(),
            nullable=True,
            comment="Roots of it that failed at settlement.",
        ),
        sa.ForeignKeyConstraint(
            ["original_batch_id"], ["batch.batch_id"], name=op.f("batch_original_batch_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["pipeline_id"], ["pipeline.pipeline_id"], name=op.f("batch_pipeline_id_fkey")
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("batch_pkey")),
        sa.UniqueConstraint(
            "pipeline_id", "dag_id", "run_id", name=op.f("batch_pipeline_id_dag_id_run_id_key")
        ),
        comment="One run of a pipeline over one interval: scheduled, manual, backfill or replay.",
    )
    op.create_index(
        op.f("batch_original_batch_id_idx"), "batch", ["original_batch_id"], unique=False
    )
    op.create_index(
        op.f("batch_status_idx"),
        "batch",
        ["status"],
        unique=False,
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_table(
        "failed_message",
        sa.Column(
            "message_id",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="Root id of the message's first attempt.",
        ),
        sa.Column(
            "original_batch_id",
            sa.BigInteger(),
            nullable=False,
            comment="Batch of that first attempt.",
        ),
        sa.Column("source", sa.Text(), nullable=False, comment="Source that it came from."),
        sa.Column(
            "status",
            sa.Enum("failed", "replaying", "recovered", "quarantined", name="message_status"),
            nullable=False,
            comment="failed, replaying, recovered or quarantined.",
        ),
        sa.Column(
            "root_id", sa.BigInteger(), nullable=False, comment="Root of its last failed attempt."
        ),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="Attempts that failed."),
        sa.Column(
            "failed_replays",
            sa.Integer(),
            nullable=False,
            comment="Replays that failed through the message's own fault.",
        ),
        sa.Column(
            "replay_batch_id",
            sa.BigInteger(),
            nullable=True,
            comment="Open replay that claims it, or the one that recovered it.",
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="Last change of its status.",
        ),
        sa.CheckConstraint(
            "status <> 'replaying' OR replay_batch_id IS NOT NULL",
            name=op.f("failed_message_claimed_check"),
        ),
        sa.PrimaryKeyConstraint("message_id", name=op.f("failed_message_pkey")),
        comment="Every message that failed at least once. One replay at most claims it: there is one row and one claim.",
    )
    op.create_index(
        op.f("failed_message_original_batch_id_status_idx"),
        "failed_message",
        ["original_batch_id", "status"],
        unique=False,
    )
    op.create_index(
        op.f("failed_message_replay_batch_id_idx"),
        "failed_message",
        ["replay_batch_id"],
        unique=False,
        postgresql_where=sa.text("replay_batch_id IS NOT NULL"),
    )
    op.create_table(
        "stage_run",
        sa.Column(
            "stage_run_id",
            sa.BigInteger(),
            sa.Identity(always=True),
            nullable=False,
            comment="Number of the run; all it writes carries it.",
        ),
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch that it works for."),
        sa.Column("stage", sa.Text(), nullable=False, comment="Source, stage or sink by name."),
        sa.Column(
            "state",
            sa.Enum("running", "committed", "failed", "fenced", "superseded", name="run_state"),
            nullable=False,
            comment="running, committed, failed, fenced or superseded.",
        ),
        sa.Column(
            "attempt_id",
            sa.UUID(),
            nullable=False,
            comment="Id of the task instance (UUIDv7): the greatest is the newest attempt.",
        ),
        sa.Column(
            "try_number", sa.Integer(), nullable=False, comment="Airflow's try number, shown only."
        ),
        sa.Column(
            "opened_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it began.",
        ),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="A living driver renews this; past it the run counts as dead.",
        ),
        sa.Column(
            "closed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it committed, failed or was fenced.",
        ),
        sa.Column("input_rows", sa.BigInteger(), nullable=True, comment="Rows that it read."),
        sa.Column(
            "output_rows",
            sa.BigInteger(),
            nullable=True,
            comment="Rows that it wrote and passed on.",
        ),
        sa.Column(
            "failed_rows",
            sa.BigInteger(),
            nullable=True,
            comment="Rows that it failed explicitly, or could not parse.",
        ),
        sa.Column(
            "duplicate_rows",
            sa.BigInteger(),
            nullable=True,
            comment="Rows that a sink dropped as already delivered.",
        ),
        sa.Column("delta_rows", sa.BigInteger(), nullable=True, comment="Deltas that it posted."),
        sa.Column(
            "delta_xor",
            sa.BigInteger(),
            nullable=True,
            comment="XOR over the deltas that it posted.",
        ),
        sa.Column(
            "emitted_edges", sa.BigInteger(), nullable=True, comment="Edges that it emitted."
        ),
        sa.Column("acked_edges", sa.BigInteger(), nullable=True, comment="Edges that it acked."),
        sa.Column("failure", sa.Text(), nullable=True, comment="Why it failed."),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batch.batch_id"], name=op.f("stage_run_batch_id_fkey")
        ),
        sa.PrimaryKeyConstraint("stage_run_id", name=op.f("stage_run_pkey")),
        sa.UniqueConstraint(
            "batch_id", "stage", "attempt_id", name=op.f("stage_run_batch_id_stage_attempt_id_key")
        ),
        comment="One attempt of one source, stage or sink of one batch.",
    )
    op.create_index(
        "stage_run_one_committed_key",
        "stage_run",
        ["batch_id", "stage"],
        unique=True,
        postgresql_where=sa.text("state = 'committed'"),
    )
    op.create_index(
        "stage_run_one_running_key",
        "stage_run",
        ["batch_id", "stage"],
        unique=True,
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "batch_source",
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch that reads."),
        sa.Column("source", sa.Text(), nullable=False, comment="Source by name."),
        sa.Column("pipeline_id", sa.BigInteger(), nullable=False, comment="Pipeline of the batch."),
        sa.Column(
            "path", sa.Text(), nullable=False, comment="The path as rendered for this batch."
        ),
        sa.Column(
            "interval_start",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Start of the claimed interval, inclusive.",
        ),
        sa.Column(
            "interval_end",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="End of the claimed interval, exclusive.",
        ),
        sa.Column(
            "claimed",
            sa.Boolean(),
            nullable=False,
            comment="Whether the interval is claimed by this batch; false for replays and once abandoned.",
        ),
        sa.Column("emit_run_id", sa.BigInteger(), nullable=True, comment="The committed emit run."),
        sa.Column(
            "first_root", sa.BigInteger(), nullable=True, comment="First root id of the emit run."
        ),
        sa.Column(
            "roots", sa.BigInteger(), nullable=True, comment="How many roots; their ids are dense."
        ),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batch.batch_id"], name=op.f("batch_source_batch_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["emit_run_id"], ["stage_run.stage_run_id"], name=op.f("batch_source_emit_run_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["pipeline_id"], ["pipeline.pipeline_id"], name=op.f("batch_source_pipeline_id_fkey")
        ),
        sa.PrimaryKeyConstraint("batch_id", "source", name=op.f("batch_source_pkey")),
        comment="What a batch claims of each source, and the range of roots that it emitted.",
    )
    op.create_index(
        "batch_source_claim_key",
        "batch_source",
        ["pipeline_id", "source", "interval_start", "interval_end"],
        unique=True,
        postgresql_where=sa.text("claimed"),
    )
    op.create_index(
        op.f("batch_source_first_root_idx"), "batch_source", ["first_root"], unique=False
    )
    op.create_table(
        "dedup_filter",
        sa.Column(
            "stage_run_id",
            sa.BigInteger(),
            nullable=False,
            comment="Sink run whose rows it holds; counts once that is committed.",
        ),
        sa.Column(
            "key",
            sa.ARRAY(sa.Text()),
            nullable=False,
            comment="Key columns; empty: the identity is message, row and ordinal.",
        ),
        sa.Column(
            "capacity",
            sa.BigInteger(),
            nullable=False,
            comment="Entries that the filter may hold at its error rate.",
        ),
        sa.Column(
            "error_rate", sa.Float(), nullable=False, comment="Chance of a false maybe when full."
        ),
        sa.Column("entries", sa.BigInteger(), nullable=False, comment="Entries in it."),
        sa.Column(
            "filter", sa.LargeBinary(), nullable=False, comment="pybloom-live's serialized filter."
        ),
        sa.ForeignKeyConstraint(
            ["stage_run_id"],
            ["stage_run.stage_run_id"],
            name=op.f("dedup_filter_stage_run_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("stage_run_id", name=op.f("dedup_filter_pkey")),
        comment="Bloom filters of what each sink run delivered.",
    )
    op.create_table(
        "failed_root",
        sa.Column(
            "root_id",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="Root that failed.",
        ),
        sa.Column(
            "message_id",
            sa.BigInteger(),
            nullable=False,
            comment="Message that it is an attempt of.",
        ),
        sa.Column("batch_id", sa.BigInteger(), nullable=False, comment="Batch that it failed in."),
        sa.Column(
            "attempt", sa.Integer(), nullable=False, comment="1 for the original, then counted up."
        ),
        sa.Column(
            "stage", sa.Text(), nullable=False, comment="Source, stage or sink where it broke."
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why, in words that group."),
        sa.Column(
            "detail",
            sa.Text(),
            nullable=True,
            comment="What else is known: raw text, counts of edges.",
        ),
        sa.Column(
            "residue",
            sa.BigInteger(),
            nullable=False,
            comment="Its ack value at settlement: XOR of what was not acked.",
        ),
        sa.Column(
            "own_failure",
            sa.Boolean(),
            nullable=False,
            comment="False if a stage never committed: no fault of the message.",
        ),
        sa.Column(
            "failed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was settled.",
        ),
        sa.PrimaryKeyConstraint("root_id", name=op.f("failed_root_pkey")),
        comment="Every failed attempt of every message: where and why. Never changed.",
    )
    op.create_index(op.f("failed_root_batch_id_idx"), "failed_root", ["batch_id"], unique=False)
    op.create_index(op.f("failed_root_message_id_idx"), "failed_root", ["message_id"], unique=False)
    op.create_table(
        "stage_run_bucket",
        sa.Column("stage_run_id", sa.BigInteger(), nullable=False, comment="Run that posts."),
        sa.Column(
            "bucket",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="Number of the posting task: its key refuses a second writer.",
        ),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="Deltas posted by it."),
        sa.ForeignKeyConstraint(
            ["stage_run_id"],
            ["stage_run.stage_run_id"],
            name=op.f("stage_run_bucket_stage_run_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("stage_run_id", "bucket", name=op.f("stage_run_bucket_pkey")),
        comment="Which buckets of a run's deltas are posted, written in the transaction of their COPY.",
    )
    op.create_table(
        "stage_run_file",
        sa.Column(
            "stage_run_id", sa.BigInteger(), nullable=False, comment="Run that wrote the file."
        ),
        sa.Column(
            "first_position",
            sa.BigInteger(),
            nullable=False,
            comment="Position of the file's first row; positions are dense over the run.",
        ),
        sa.Column("path", sa.Text(), nullable=False, comment="Path or URL."),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="Size in bytes."),
        sa.Column("rows", sa.BigInteger(), nullable=False, comment="Rows by the Parquet footer."),
        sa.ForeignKeyConstraint(
            ["stage_run_id"],
            ["stage_run.stage_run_id"],
            name=op.f("stage_run_file_stage_run_id_fkey"),
        ),
        sa.PrimaryKeyConstraint(
            "stage_run_id", "first_position", "path", name=op.f("stage_run_file_pkey")
        ),
        comment="Manifest of a committed output.",
    )
    op.create_table(
        "stage_run_input",
        sa.Column("stage_run_id", sa.BigInteger(), nullable=False, comment="Run that reads."),
        sa.Column(
            "input_run_id", sa.BigInteger(), nullable=False, comment="Run whose output it read."
        ),
        sa.ForeignKeyConstraint(
            ["input_run_id"],
            ["stage_run.stage_run_id"],
            name=op.f("stage_run_input_input_run_id_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["stage_run_id"],
            ["stage_run.stage_run_id"],
            name=op.f("stage_run_input_stage_run_id_fkey"),
        ),
        sa.PrimaryKeyConstraint("stage_run_id", "input_run_id", name=op.f("stage_run_input_pkey")),
        comment="Which run read which committed run.",
    )
    op.create_index(
        op.f("stage_run_input_input_run_id_idx"), "stage_run_input", ["input_run_id"], unique=False
    )


def downgrade() -> None:

    op.drop_index(op.f("stage_run_input_input_run_id_idx"), table_name="stage_run_input")
    op.drop_table("stage_run_input")
    op.drop_table("stage_run_file")
    op.drop_table("stage_run_bucket")
    op.drop_index(op.f("failed_root_message_id_idx"), table_name="failed_root")
    op.drop_index(op.f("failed_root_batch_id_idx"), table_name="failed_root")
    op.drop_table("failed_root")
    op.drop_table("dedup_filter")
    op.drop_index(op.f("batch_source_first_root_idx"), table_name="batch_source")
    op.drop_index(
        "batch_source_claim_key", table_name="batch_source", postgresql_where=sa.text("claimed")
    )
    op.drop_table("batch_source")
    op.drop_index(
        "stage_run_one_running_key",
        table_name="stage_run",
        postgresql_where=sa.text("state = 'running'"),
    )
    op.drop_index(
        "stage_run_one_committed_key",
        table_name="stage_run",
        postgresql_where=sa.text("state = 'committed'"),
    )
    op.drop_table("stage_run")
    op.drop_index(op.f("failed_message_replay_batch_id_idx"), table_name="failed_message")
    op.drop_index(op.f("failed_message_original_batch_id_status_idx"), table_name="failed_message")
    op.drop_table("failed_message")
    op.drop_index(
        op.f("batch_status_idx"), table_name="batch", postgresql_where=sa.text("status = 'open'")
    )
    op.drop_index(op.f("batch_original_batch_id_idx"), table_name="batch")
    op.drop_table("batch")
    op.drop_index(op.f("root_fail_batch_id_idx"), table_name="root_fail")
    op.drop_table("root_fail")
    op.drop_table("root_counter")
    op.drop_index(op.f("replay_root_root_id_idx"), table_name="replay_root")
    op.drop_index(op.f("replay_root_message_id_idx"), table_name="replay_root")
    op.drop_index(op.f("replay_root_batch_id_idx"), table_name="replay_root")
    op.drop_table("replay_root")
    op.drop_table("pipeline")
    op.drop_table("ledger_delta")
    for enum in ("batch_state", "batch_kind", "run_state", "message_status"):
        op.execute(f"DROP TYPE {enum}")
