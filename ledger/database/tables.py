"""All tables of the ledger. The migrations build them; a test keeps the two equal."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from ledger import states

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)


def _enum(members: type[StrEnum], name: str) -> Enum:
    return Enum(*(member.value for member in members), name=name, metadata=metadata)


batch_status = _enum(states.BatchStatus, "batch_state")
batch_kind = _enum(states.BatchKind, "batch_kind")
run_state = _enum(states.RunState, "run_state")
message_status = _enum(states.MessageStatus, "message_status")
attempt_number = Sequence("attempt_number", metadata=metadata)


def _moment(
    name: str, comment: str, *, nullable: bool = False, now: bool = False
) -> Column[datetime]:
    default = func.now() if now else None
    return Column(
        name, DateTime(timezone=True), nullable=nullable, server_default=default, comment=comment
    )


def _key(
    name: str, target: str, comment: str, *, primary: bool = False, nullable: bool = False
) -> Column[int]:
    return Column(
        name,
        BigInteger,
        ForeignKey(target),
        primary_key=primary,
        nullable=nullable,
        comment=comment,
    )


def _shared() -> Column[bool]:
    return Column(
        "shared",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether the row that failed comes from several records: a failure of their unit.",
    )


pipeline = Table(
    "pipeline",
    metadata,
    Column(
        "pipeline_id",
        BigInteger,
        Identity(always=True),
        primary_key=True,
        comment="Number of the pipeline.",
    ),
    Column("name", Text, nullable=False, unique=True, comment="Name given in its declaration."),
    Column(
        "message_timeout_seconds",
        Float,
        nullable=False,
        comment="A batch expires this long after a run failed or its lease lapsed.",
    ),
    Column(
        "max_replays",
        Integer,
        nullable=False,
        comment="Own failed replays after which a message is quarantined.",
    ),
    Column(
        "auto_replay",
        Boolean,
        nullable=False,
        comment="Whether the sweeper asks for replays by itself.",
    ),
    Column(
        "max_batch_age_seconds",
        Float,
        nullable=False,
        comment="A batch expires at this age, whatever happens.",
    ),
    Column(
        "max_failed_ratio",
        Float,
        comment="Share of own failures above which a batch is held for a person; null: never.",
    ),
    Column(
        "on_quarantine",
        Text,
        nullable=False,
        server_default=text("'fail'"),
        comment="What a run does while quarantined records of its batch are not accepted: fail or warn.",
    ),
    Column(
        "tolerate",
        Float,
        nullable=False,
        server_default=text("0"),
        comment="Share of records, failed and quarantined, up to which a run succeeds all the same.",
    ),
    Column(
        "replay_limit",
        Integer,
        comment="Messages that one replay batch takes at most; null: all.",
    ),
    Column(
        "replay_backoff_seconds",
        Float,
        nullable=False,
        comment="Wait before a message's first replay; each failed replay doubles it.",
    ),
    Column(
        "replay_backoff_cap_seconds",
        Float,
        nullable=False,
        comment="Longest wait before a replay.",
    ),
    Column(
        "target",
        Text,
        comment="MODULE:PIPELINE where it is declared, for commands; null: no global.",
    ),
    _moment("created_at", "When the ledger first saw it.", now=True),
    comment="One row per declared pipeline, with the policy that its last batch was opened with.",
)

batch = Table(
    "batch",
    metadata,
    Column(
        "batch_id",
        BigInteger,
        Identity(always=True),
        primary_key=True,
        comment="Number of the batch.",
    ),
    _key("pipeline_id", "pipeline.pipeline_id", "Pipeline that it is a run of."),
    Column("kind", batch_kind, nullable=False, comment="Original, or replay of one original."),
    _key(
        "original_batch_id",
        "batch.batch_id",
        "The original that a replay belongs to; null for an original.",
        nullable=True,
    ),
    Column(
        "dag_id", Text, nullable=False, comment="Airflow's DAG; empty for a run without Airflow."
    ),
    Column(
        "run_id",
        Text,
        nullable=False,
        comment="Airflow's run id, or the one given on the command line.",
    ),
    Column("status", batch_status, nullable=False, comment="open, settled, abandoned or held."),
    _moment("interval_start", "Start of the interval that it reads, inclusive."),
    _moment("interval_end", "End of the interval that it reads, exclusive."),
    Column(
        "params", JSONB, nullable=False, comment="Parameters of the run, for the path templates."
    ),
    Column(
        "selection",
        JSONB,
        comment="What a replay selects of its original's failed messages; null for an original.",
    ),
    Column(
        "ackers", Integer, nullable=False, comment="Parallel ledger writers; 0: tracking is off."
    ),
    Column("topology", JSONB, nullable=False, comment="Steps in order: name, kind, reads."),
    _moment("opened_at", "When it was opened, the last time.", now=True),
    _moment("settled_at", "When its roots were decided.", nullable=True),
    Column("held_reason", Text, comment="Why a check stopped its settlement, while it is held."),
    Column("roots", BigInteger, comment="Roots decided at settlement."),
    Column("failed_roots", BigInteger, comment="Roots of it that failed at settlement."),
    Column(
        "released",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether a person let it settle above max_failed_ratio.",
    ),
    _key(
        "replaces_batch_id",
        "batch.batch_id",
        "The original over the same interval that it was opened to replace.",
        nullable=True,
    ),
    Column(
        "guarantee",
        Text,
        nullable=False,
        comment="exactly_once: sinks show what is acked, after settlement; at_least_once: all, at once.",
    ),
    Column(
        "settle",
        Text,
        nullable=False,
        comment="publish_acked: what is acked is shown once the batch is settled; hold: once no message of it, or of its replays, is failed any more.",
    ),
    _moment(
        "woken_at",
        "When units of it whose records were given up were asked for again; null: not yet.",
        nullable=True,
    ),
    UniqueConstraint("pipeline_id", "dag_id", "run_id"),
    Index(None, "status", postgresql_where=text("status = 'open'")),
    Index(
        "batch_combining_idx",
        "settled_at",
        postgresql_where=text("topology @> '[{\"after\": true}]'::jsonb"),
    ),
    Index(None, "original_batch_id"),
    Index(None, "replaces_batch_id", postgresql_where=text("replaces_batch_id IS NOT NULL")),
    comment="One run of a pipeline over one interval: scheduled, manual, backfill or replay.",
)

root_counter = Table(
    "root_counter",
    metadata,
    Column(
        "single",
        Boolean,
        primary_key=True,
        server_default=text("true"),
        comment="Always true: there is one row.",
    ),
    Column(
        "next_root",
        BigInteger,
        nullable=False,
        comment="First root id that no emit run has reserved.",
    ),
    CheckConstraint("single", name="one_row"),
    comment="Where the next range of root ids starts.",
)

stage_run = Table(
    "stage_run",
    metadata,
    Column(
        "stage_run_id",
        BigInteger,
        Identity(always=True),
        primary_key=True,
        comment="Number of the run; all it writes carries it.",
    ),
    _key("batch_id", "batch.batch_id", "Batch that it works for."),
    Column("stage", Text, nullable=False, comment="Source, stage or sink by name."),
    Column(
        "state",
        run_state,
        nullable=False,
        comment="running, committed, failed, fenced or superseded.",
    ),
    Column(
        "attempt_id",
        UUID(as_uuid=True),
        nullable=False,
        comment="The attempt: a task instance's id, or a command's.",
    ),
    Column(
        "attempt_number",
        BigInteger,
        nullable=False,
        server_default=attempt_number.next_value(),
        comment="Drawn when a command or a task began: the greatest is the newest.",
    ),
    Column("try_number", Integer, comment="Airflow's try number, shown only; null of a command."),
    _moment("opened_at", "When it began.", now=True),
    _moment("lease_until", "A living driver renews this; past it the run counts as dead."),
    _moment("closed_at", "When it committed, failed or was fenced.", nullable=True),
    Column("input_rows", BigInteger, comment="Rows that it read."),
    Column("output_rows", BigInteger, comment="Rows that it wrote and passed on."),
    Column(
        "failed_rows", BigInteger, comment="Rows that it failed explicitly, or could not parse."
    ),
    Column("duplicate_rows", BigInteger, comment="Rows that a sink dropped as already delivered."),
    Column("delta_rows", BigInteger, comment="Deltas that it posted."),
    Column("delta_xor", BigInteger, comment="XOR over the deltas that it posted."),
    Column("emitted_edges", BigInteger, comment="Edges that it emitted."),
    Column("acked_edges", BigInteger, comment="Edges that it acked."),
    Column("failure", Text, comment="Why it failed."),
    UniqueConstraint("batch_id", "stage", "attempt_id"),
    comment="One attempt of one source, stage or sink of one batch.",
)
Index(
    "stage_run_one_running_key",
    stage_run.c.batch_id,
    stage_run.c.stage,
    unique=True,
    postgresql_where=text("state = 'running'"),
)
Index(
    "stage_run_one_committed_key",
    stage_run.c.batch_id,
    stage_run.c.stage,
    unique=True,
    postgresql_where=text("state = 'committed'"),
)

batch_source = Table(
    "batch_source",
    metadata,
    _key("batch_id", "batch.batch_id", "Batch that reads.", primary=True),
    Column("source", Text, primary_key=True, comment="Source by name."),
    _key("pipeline_id", "pipeline.pipeline_id", "Pipeline of the batch."),
    Column("path", Text, nullable=False, comment="The path as rendered for this batch."),
    _moment("interval_start", "Start of the claimed interval, inclusive."),
    _moment("interval_end", "End of the claimed interval, exclusive."),
    Column(
        "claimed",
        Boolean,
        nullable=False,
        comment="Whether the interval is claimed by this batch; false for replays and once abandoned.",
    ),
    _key("emit_run_id", "stage_run.stage_run_id", "The committed emit run.", nullable=True),
    Column("first_root", BigInteger, comment="First root id of the emit run."),
    Column("roots", BigInteger, comment="How many roots; their ids are dense."),
    _moment(
        "notified_at",
        "When the source was told what became of its messages; null: not yet.",
        nullable=True,
    ),
    Column(
        "quota",
        BigInteger,
        comment="Most records that it may emit (max_pending less what was pending); null: any number.",
    ),
    Column(
        "rest",
        BigInteger,
        comment="Records of its snapshot beyond the quota, which other batches emit.",
    ),
    _key(
        "rest_of_batch_id",
        "batch.batch_id",
        "Batch whose rest this one emits; null: it reads the source.",
        nullable=True,
    ),
    Column(
        "first_position",
        BigInteger,
        comment="Position in that batch's snapshot at which it begins.",
    ),
    Column(
        "claimed_after",
        Text,
        comment="Cursor of a table: claimed are the rows above; null: from the start.",
    ),
    Column(
        "claimed_upto",
        Text,
        comment="Cursor of a table: claimed are the rows up to and with this; null: none.",
    ),
    Index(None, "rest_of_batch_id", postgresql_where=text("rest_of_batch_id IS NOT NULL")),
    Index(
        "batch_source_claim_key",
        "pipeline_id",
        "source",
        "interval_start",
        "interval_end",
        unique=True,
        postgresql_where=text("claimed"),
    ),
    Index(None, "first_root"),
    comment="What a batch claims of each source, and the range of roots that it emitted.",
)

claimed_file = Table(
    "claimed_file",
    metadata,
    _key("pipeline_id", "pipeline.pipeline_id", "Pipeline that reads.", primary=True),
    Column("source", Text, primary_key=True, comment="Source by name."),
    Column("path", Text, primary_key=True, comment="Path or URL."),
    Column(
        "bytes",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Size when it was claimed.",
    ),
    Column(
        "modified_at",
        DateTime(timezone=True),
        primary_key=True,
        comment="When it was last modified then.",
    ),
    Column("digest", Text, comment="SHA-256 of a small file's content; null: not looked at."),
    Column(
        "claimed_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
        comment="When it was claimed.",
    ),
    _key("batch_id", "batch.batch_id", "Batch that reads it."),
    Index(None, "batch_id"),
    comment="Files that incremental sources have claimed: each content once. An abandoned batch gives them back.",
)

stage_run_input = Table(
    "stage_run_input",
    metadata,
    _key("stage_run_id", "stage_run.stage_run_id", "Run that reads.", primary=True),
    _key("input_run_id", "stage_run.stage_run_id", "Run whose output it read.", primary=True),
    Index(None, "input_run_id"),
    comment="Which run read which committed run.",
)

stage_run_file = Table(
    "stage_run_file",
    metadata,
    _key("stage_run_id", "stage_run.stage_run_id", "Run that wrote the file.", primary=True),
    Column(
        "first_position",
        BigInteger,
        primary_key=True,
        comment="Position of the file's first row; positions are dense over the run.",
    ),
    Column("path", Text, primary_key=True, comment="Path or URL."),
    Column("bytes", BigInteger, nullable=False, comment="Size in bytes."),
    Column("rows", BigInteger, nullable=False, comment="Rows by the Parquet footer."),
    comment="Manifest of a committed output.",
)

stage_run_drop = Table(
    "stage_run_drop",
    metadata,
    _key("stage_run_id", "stage_run.stage_run_id", "Run that dropped.", primary=True),
    Column("reason", Text, primary_key=True, comment="Reason code."),
    Column("records", BigInteger, nullable=False, comment="Rows of its input."),
    comment="What each run acked without an output, by reason.",
)

stage_run_bucket = Table(
    "stage_run_bucket",
    metadata,
    _key("stage_run_id", "stage_run.stage_run_id", "Run that posts.", primary=True),
    Column(
        "bucket",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Number of the posting task: its key refuses a second writer.",
    ),
    Column("rows", BigInteger, nullable=False, comment="Deltas posted by it."),
    comment="Which buckets of a run's deltas are posted, written in the transaction of their COPY.",
)

ledger_delta = Table(
    "ledger_delta",
    metadata,
    Column("batch_id", BigInteger, nullable=False, comment="Batch; one partition each."),
    Column(
        "stage_run_id",
        BigInteger,
        nullable=False,
        comment="Run that posted; counts only once that is committed.",
    ),
    Column("root_id", BigInteger, nullable=False, comment="Root."),
    Column(
        "delta",
        BigInteger,
        nullable=False,
        comment="XOR of the input edges acked and the output edges emitted.",
    ),
    Column(
        "acked",
        BigInteger,
        nullable=False,
        comment="XOR of the input edges acked; delta # acked is what was emitted.",
    ),
    Column("emitted_edges", Integer, nullable=False, comment="Edges emitted."),
    Column("acked_edges", Integer, nullable=False, comment="Edges acked."),
    comment="What each run adds to each root's ack value. BIT_XOR(delta) per root is 0 once all is acked.",
    postgresql_partition_by="LIST (batch_id)",
)

root_fail = Table(
    "root_fail",
    metadata,
    Column("batch_id", BigInteger, nullable=False, comment="Batch."),
    Column("stage_run_id", BigInteger, nullable=False, comment="Run that failed the root."),
    Column("root_id", BigInteger, nullable=False, comment="Root."),
    Column("reason", Text, nullable=False, comment="Reason given."),
    Column("detail", Text, comment="Raw text of a record that did not parse."),
    _shared(),
    Index(None, "batch_id"),
    comment="Explicit fails of open batches; settlement moves them to failed_root.",
)

replay_root = Table(
    "replay_root",
    metadata,
    Column("batch_id", BigInteger, nullable=False, comment="Replay batch."),
    Column("stage_run_id", BigInteger, nullable=False, comment="Emit run of the replay."),
    Column("root_id", BigInteger, nullable=False, comment="Root of this attempt."),
    Column("message_id", BigInteger, nullable=False, comment="Message that it is an attempt of."),
    Index(None, "batch_id"),
    Index(None, "message_id"),
    Index(None, "root_id"),
    comment="Which message each root of a replay is an attempt of. In an original the root is the message.",
)

# Of what comes by the hundred thousand no foreign key is checked row by row: a settlement writes
# both tables from joins with the rows that they would refer to.
failed_message = Table(
    "failed_message",
    metadata,
    Column(
        "message_id",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Root id of the message's first attempt.",
    ),
    Column("original_batch_id", BigInteger, nullable=False, comment="Batch of that first attempt."),
    Column("source", Text, nullable=False, comment="Source that it came from."),
    Column(
        "status",
        message_status,
        nullable=False,
        comment="failed, replaying, recovered or quarantined.",
    ),
    Column("root_id", BigInteger, nullable=False, comment="Root of its last failed attempt."),
    Column("attempts", Integer, nullable=False, comment="Attempts that failed."),
    Column(
        "failed_replays",
        Integer,
        nullable=False,
        comment="Replays that failed through the message's own fault.",
    ),
    Column(
        "replay_batch_id",
        BigInteger,
        comment="Open replay that claims it, or the one that recovered it.",
    ),
    _moment("updated_at", "Last change of its status.", now=True),
    _moment("not_before", "Replays that open earlier leave it out; null: at once.", nullable=True),
    Column(
        "unit_failures",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="How often a row of several records, this one among them, failed.",
    ),
    Column(
        "before_claim",
        JSONB,
        comment="What a replay found when it claimed the message, to be restored if it is abandoned.",
    ),
    CheckConstraint("status <> 'replaying' OR replay_batch_id IS NOT NULL", name="claimed"),
    Index(None, "original_batch_id", "status"),
    Index(None, "replay_batch_id", postgresql_where=text("replay_batch_id IS NOT NULL")),
    comment="Every message that failed at least once. One replay at most claims it: there is one row and one claim.",
)

acceptance = Table(
    "acceptance",
    metadata,
    Column(
        "acceptance_id",
        BigInteger,
        Identity(always=True),
        primary_key=True,
        comment="Number of the acceptance.",
    ),
    _key(
        "batch_id",
        "batch.batch_id",
        "Original whose quarantined records, those of its replays included, it names.",
    ),
    _moment("accepted_at", "When.", now=True),
    Column("accepted_by", Text, nullable=False, comment="Who."),
    Column("reason", Text, comment="Why, in the words of that person."),
    comment="Each time that a person accepted quarantined records of a batch, or gave up failed ones.",
)

accepted_root = Table(
    "accepted_root",
    metadata,
    Column(
        "root_id",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Root of the attempt with which a record was quarantined: a later failure is not accepted.",
    ),
    _key("acceptance_id", "acceptance.acceptance_id", "The acceptance that names it."),
    comment="Quarantined records that were accepted, by the attempt that failed last.",
)

failed_root = Table(
    "failed_root",
    metadata,
    Column(
        "root_id", BigInteger, primary_key=True, autoincrement=False, comment="Root that failed."
    ),
    Column("message_id", BigInteger, nullable=False, comment="Message that it is an attempt of."),
    Column("batch_id", BigInteger, nullable=False, comment="Batch that it failed in."),
    Column("attempt", Integer, nullable=False, comment="1 for the original, then counted up."),
    Column("stage", Text, nullable=False, comment="Source, stage or sink where it broke."),
    Column("reason", Text, nullable=False, comment="Why, in words that group."),
    Column("detail", Text, comment="What else is known: raw text, counts of edges."),
    Column(
        "residue",
        BigInteger,
        nullable=False,
        comment="Its ack value at settlement: XOR of what was not acked.",
    ),
    Column(
        "own_failure",
        Boolean,
        nullable=False,
        comment="False if a stage never committed: no fault of the message.",
    ),
    _moment("failed_at", "When it was settled.", now=True),
    _shared(),
    Index(None, "message_id"),
    Index(None, "batch_id"),
    comment="Every failed attempt of every message: where and why. Never changed.",
)

failed_payload = Table(
    "failed_payload",
    metadata,
    Column(
        "message_id",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Message, once for all its attempts.",
    ),
    Column("batch_id", BigInteger, nullable=False, comment="Batch of its first attempt."),
    Column(
        "root_id",
        BigInteger,
        nullable=False,
        comment="Root of the attempt that had this content: the first, or one that read it again.",
    ),
    Column(
        "key",
        JSONB,
        comment="Values of the source's key columns; null: the source declares none.",
    ),
    Column(
        "content",
        Text,
        nullable=False,
        comment="JSON of its fields, or raw text of what did not parse; at most 10,000 characters.",
    ),
    Column(
        "parsed",
        Boolean,
        nullable=False,
        comment="Whether content is the JSON of its fields, and whole.",
    ),
    Column("source_file", Text, comment="File that it was read from, if it was one."),
    Column(
        "source_row",
        BigInteger,
        comment="Its number among the file's records, from 1; null: not known.",
    ),
    Index(None, "batch_id"),
    comment="Content of each record that failed, copied from its snapshot.",
)

given_up = Table(
    "given_up",
    metadata,
    Column("message_id", BigInteger, nullable=False, comment="Message that was quarantined."),
    Column("reason", Text, nullable=False, comment="Why, in the person's words."),
    Column("given_up_by", Text, nullable=False, comment="Who did it."),
    _moment("given_up_at", "When.", now=True),
    Index(None, "message_id"),
    comment="Records that a person moved to quarantine, with the reason. Never changed.",
)

publication = Table(
    "publication",
    metadata,
    _key("batch_id", "batch.batch_id", "Batch whose rows are to be shown.", primary=True),
    Column("sink", Text, primary_key=True, comment="Sink by name."),
    _key("stage_run_id", "stage_run.stage_run_id", "The sink's run that staged them."),
    _moment("decided_at", "When it was decided, in the transaction of a settlement.", now=True),
    Column(
        "ready",
        Boolean,
        nullable=False,
        comment="Whether the files hold just what is to be shown: nothing failed, or it is left out.",
    ),
    Column(
        "folder",
        Text,
        comment="Folder of the files without what is withheld; null: as they were staged.",
    ),
    Column(
        "files",
        JSONB,
        comment="Those files: path, bytes, rows, first_position; null: as they were staged.",
    ),
    Column("rows", BigInteger, comment="Rows to be shown; null until it is ready."),
    _moment("published_at", "When the sink had shown them; null: not yet.", nullable=True),
    _moment(
        "replaced_at",
        "When a batch that reprocesses the interval took their place; null: it has not.",
        nullable=True,
    ),
    Index(
        "publication_pending_idx",
        "batch_id",
        postgresql_where=text("published_at IS NULL AND replaced_at IS NULL"),
    ),
    comment="What each sink is to show of a settled batch, and whether it does.",
)

sink_replacement = Table(
    "sink_replacement",
    metadata,
    _key("stage_run_id", "stage_run.stage_run_id", "The sink's run.", primary=True),
    _key(
        "replaced_batch_id",
        "batch.batch_id",
        "Batch whose rows go when those of the run are shown.",
        primary=True,
    ),
    comment="Whose rows a sink's run brings again: a replay of units that had been shown already.",
)

checkpoint = Table(
    "checkpoint",
    metadata,
    _key("pipeline_id", "pipeline.pipeline_id", "Pipeline.", primary=True),
    Column("stage", Text, primary_key=True, comment="Stateful stage or source by name."),
    _key(
        "batch_id",
        "batch.batch_id",
        "Batch whose rows the state has taken in; of a source the one that it has read for.",
        primary=True,
    ),
    _key(
        "stage_run_id",
        "stage_run.stage_run_id",
        "The run that made it, each from the one before: the greatest made the current state.",
    ),
    Column(
        "snapshot",
        JSONB,
        comment="What its commit returned; null for a function, whose state is the files of the run.",
    ),
    _moment(
        "committed_at",
        "When the state was committed, with what its sinks show, or with the source's records.",
        now=True,
    ),
    _moment(
        "acked_at",
        "When the stage or source was told that the batch is committed as a whole; null: it was not.",
        nullable=True,
    ),
    _moment(
        "removed_at",
        "When the files of the run were removed, a later state being acked; null: they are there.",
        nullable=True,
    ),
    UniqueConstraint("stage_run_id"),
    comment="The state that a stateful stage or source has committed with each batch.",
)

replaced_folder = Table(
    "replaced_folder",
    metadata,
    _key("batch_id", "batch.batch_id", "Batch that replaces it.", primary=True),
    Column("path", Text, primary_key=True, comment="Folder of an earlier delivery."),
    Column("sink", Text, nullable=False, comment="Sink by name."),
    comment="Folders of sinks that go once the batch that replaces them is settled.",
)

dedup_filter = Table(
    "dedup_filter",
    metadata,
    _key(
        "stage_run_id",
        "stage_run.stage_run_id",
        "Sink run whose rows it holds; counts once that is committed.",
        primary=True,
    ),
    Column(
        "key",
        ARRAY(Text),
        nullable=False,
        comment="Key columns; empty: the identity is message, row and ordinal.",
    ),
    Column(
        "capacity",
        BigInteger,
        nullable=False,
        comment="Entries that the filter may hold at its error rate.",
    ),
    Column("error_rate", Float, nullable=False, comment="Chance of a false maybe when full."),
    Column("entries", BigInteger, nullable=False, comment="Entries in it."),
    Column("filter", LargeBinary, nullable=False, comment="pybloom-live's serialized filter."),
    comment="Bloom filters of what each sink run delivered.",
)
