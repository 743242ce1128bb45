-- The tables, by family. Each table and each column has a comment.

CREATE TYPE batch_state AS ENUM ('open', 'settled', 'abandoned', 'held', 'superseded');
CREATE TYPE batch_kind AS ENUM ('original', 'replay');
CREATE TYPE run_state AS ENUM ('running', 'committed', 'failed', 'fenced', 'superseded');
CREATE TYPE message_status AS ENUM (
  'failed', 'replaying', 'recovered', 'quarantined', 'superseded');
CREATE TYPE failure_cause AS ENUM (
  'unparsed', 'rejected', 'refused', 'repeated', 'unacked', 'lost', 'doubled', 'swapped', 'late');
CREATE TYPE guarantee AS ENUM ('exactly_once', 'at_least_once');
CREATE TYPE publish_policy AS ENUM ('settled', 'complete');
CREATE TYPE hold_cause AS ENUM ('check', 'failures', 'restart');
CREATE SEQUENCE attempt_number;
COMMENT ON SEQUENCE attempt_number IS 'Numbers of attempts.';


-- Pipelines and batches.

CREATE TABLE pipeline (
  pipeline_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE,
  message_timeout interval NOT NULL,
  max_replays integer NOT NULL,
  auto_replay boolean NOT NULL,
  max_batch_age interval NOT NULL,
  hold_above double precision,
  allow_failed double precision NOT NULL DEFAULT 0,
  replay_limit integer,
  replay_backoff interval NOT NULL,
  replay_backoff_cap interval NOT NULL,
  keep interval,
  target text,
  redact text[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE pipeline IS
  'One row per declared pipeline, with the policy that its last batch was opened with.';
COMMENT ON COLUMN pipeline.pipeline_id IS 'Number of the pipeline.';
COMMENT ON COLUMN pipeline.name IS 'Name given in its declaration.';
COMMENT ON COLUMN pipeline.message_timeout IS
  'A batch expires this long after a run failed or its lease lapsed.';
COMMENT ON COLUMN pipeline.max_replays IS
  'Own failed replays after which a message is quarantined.';
COMMENT ON COLUMN pipeline.auto_replay IS 'Whether the sweeper asks for replays by itself.';
COMMENT ON COLUMN pipeline.max_batch_age IS
  'A batch expires at this age, whatever happens.';
COMMENT ON COLUMN pipeline.hold_above IS
  'Share of own failures above which a batch is put on hold; null: never.';
COMMENT ON COLUMN pipeline.allow_failed IS
  'Share of records, failed and quarantined, up to which a run succeeds all the same.';
COMMENT ON COLUMN pipeline.replay_limit IS
  'Messages that one replay batch takes at most; null: all.';
COMMENT ON COLUMN pipeline.replay_backoff IS
  'Wait before a message''s first replay; each failed replay doubles it.';
COMMENT ON COLUMN pipeline.replay_backoff_cap IS 'Longest wait before a replay.';
COMMENT ON COLUMN pipeline.keep IS
  'How long files are kept once nothing needs them any more; null: permanently.';
COMMENT ON COLUMN pipeline.target IS
  'MODULE:PIPELINE where it is declared, for commands; null: no global.';
COMMENT ON COLUMN pipeline.redact IS
  'Columns whose values are masked in what is kept and shown of failed records.';
COMMENT ON COLUMN pipeline.created_at IS 'When the ledger first saw it.';

CREATE TABLE batch (
  batch_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pipeline_id bigint NOT NULL REFERENCES pipeline,
  steps_version bigint NOT NULL,
  kind batch_kind NOT NULL,
  original_batch_id bigint REFERENCES batch,
  family_id bigint NOT NULL GENERATED ALWAYS AS (coalesce(original_batch_id, batch_id)) STORED,
  dag_id text NOT NULL,
  run_id text NOT NULL,
  status batch_state NOT NULL,
  interval_start timestamptz NOT NULL,
  interval_end timestamptz NOT NULL,
  params jsonb NOT NULL,
  selection jsonb,
  tracking boolean NOT NULL,
  opened_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  held_for hold_cause,
  held_reason text,
  roots bigint,
  failed_roots bigint,
  released boolean NOT NULL DEFAULT false,
  first_attempt bigint NOT NULL DEFAULT 0,
  replaces_batch_id bigint REFERENCES batch,
  guarantee guarantee NOT NULL,
  publish publish_policy NOT NULL,
  followed_at timestamptz,
  files_expired_at timestamptz,
  files_removed_at timestamptz,
  UNIQUE (pipeline_id, dag_id, run_id),
  CONSTRAINT batch_files_expired_check
    CHECK (files_expired_at IS NULL OR status IN ('settled', 'superseded', 'abandoned'))
);
CREATE INDEX batch_pipeline_id_idx ON batch (pipeline_id, batch_id);
CREATE INDEX batch_family_id_idx ON batch (family_id);
CREATE INDEX batch_status_idx ON batch (status) WHERE status IN ('open', 'held', 'abandoned');
CREATE INDEX batch_dag_id_run_id_idx ON batch (dag_id, run_id);
CREATE INDEX batch_unfollowed_idx ON batch (batch_id)
  WHERE followed_at IS NULL AND status <> 'abandoned';
-- What gc looks at: what has its files, and what it has begun to remove.
CREATE INDEX batch_files_kept_idx ON batch (pipeline_id, opened_at) INCLUDE (family_id)
  WHERE files_expired_at IS NULL AND status IN ('settled', 'superseded');
CREATE INDEX batch_files_expired_idx ON batch (batch_id)
  WHERE files_expired_at IS NOT NULL AND files_removed_at IS NULL;
CREATE INDEX batch_replaces_batch_id_idx ON batch (replaces_batch_id)
  WHERE replaces_batch_id IS NOT NULL;
COMMENT ON TABLE batch IS
  'One run of a pipeline over one interval: scheduled, manual, backfill or replay.';
COMMENT ON COLUMN batch.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN batch.pipeline_id IS 'Pipeline that it is a run of.';
COMMENT ON COLUMN batch.steps_version IS
  'Which version of its pipeline''s steps it has: those declared when it was opened, with what its '
  'runs found of them since.';
COMMENT ON COLUMN batch.kind IS 'Original, or replay of one original.';
COMMENT ON COLUMN batch.original_batch_id IS
  'The original that a replay belongs to; null for an original.';
COMMENT ON COLUMN batch.family_id IS
  'The original of its family: itself, or the one that it replays.';
COMMENT ON COLUMN batch.dag_id IS 'Airflow''s DAG; empty for a run without Airflow.';
COMMENT ON COLUMN batch.run_id IS 'Airflow''s run id, or the one given on the command line.';
COMMENT ON COLUMN batch.status IS 'open, settled, abandoned, held or superseded.';
COMMENT ON COLUMN batch.interval_start IS 'Start of the interval that it reads, inclusive.';
COMMENT ON COLUMN batch.interval_end IS 'End of the interval that it reads, exclusive.';
COMMENT ON COLUMN batch.params IS 'Parameters of the run, for the path templates.';
COMMENT ON COLUMN batch.selection IS
  'What a replay selects of its original''s failed messages; null for an original.';
COMMENT ON COLUMN batch.tracking IS 'Whether its records are tracked.';
COMMENT ON COLUMN batch.opened_at IS 'When it was opened, the last time.';
COMMENT ON COLUMN batch.settled_at IS 'When its roots were decided.';
COMMENT ON COLUMN batch.held_for IS
  'Why it is on hold: a check failed, too many failures, or a restart; null: it is not.';
COMMENT ON COLUMN batch.held_reason IS 'Why a check stopped its settlement, while it is on hold.';
COMMENT ON COLUMN batch.roots IS 'Roots decided at settlement.';
COMMENT ON COLUMN batch.failed_roots IS 'Roots of it that failed at settlement.';
COMMENT ON COLUMN batch.released IS 'Whether a person let it settle above hold_above.';
COMMENT ON COLUMN batch.first_attempt IS
  'Attempts with a smaller number run none of its steps: it was restarted after they began.';
COMMENT ON COLUMN batch.replaces_batch_id IS
  'The original over the same interval that it was opened to replace.';
COMMENT ON COLUMN batch.guarantee IS
  'exactly_once: sinks publish what is acked, after settlement; at_least_once: all, at its commit.';
COMMENT ON COLUMN batch.publish IS
  'settled: what is acked is published once the batch is settled; complete: once no message of '
  'it, or of its replays, is failed any more.';
COMMENT ON COLUMN batch.followed_at IS
  'When a sweep found all done that follows its settlement; null: not yet, or records of its '
  'family changed since.';
COMMENT ON COLUMN batch.files_expired_at IS
  'When retention decided that its files go: from then on nothing reads them; null: they are kept.';
COMMENT ON COLUMN batch.files_removed_at IS
  'When those files were removed; null: they are there, or are being removed.';

CREATE TABLE declared_step (
  pipeline_id bigint REFERENCES pipeline,
  version bigint,
  number bigint NOT NULL,
  declaration jsonb NOT NULL,
  name text GENERATED ALWAYS AS (declaration ->> 'name') STORED,
  kind text NOT NULL GENERATED ALWAYS AS (declaration ->> 'kind') STORED,
  after boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"after": true}') STORED,
  stateful boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"stateful": true}') STORED,
  partial boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"partial": true}') STORED,
  merges boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"merges": true}') STORED,
  notice boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"notice": true}') STORED,
  incremental boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"incremental": true}') STORED,
  rereads boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"rereads": true}') STORED,
  in_place boolean NOT NULL GENERATED ALWAYS AS (declaration @> '{"in_place": true}') STORED,
  dedup_window bigint GENERATED ALWAYS AS ((declaration ->> 'dedup_window')::bigint) STORED,
  PRIMARY KEY (pipeline_id, version, name)
);
COMMENT ON TABLE declared_step IS
  'The steps of each pipeline, once for each way in which batches found them declared.';
COMMENT ON COLUMN declared_step.pipeline_id IS 'Pipeline that has the step.';
COMMENT ON COLUMN declared_step.version IS
  'From 1; a batch that finds its pipeline''s steps declared otherwise makes a new one.';
COMMENT ON COLUMN declared_step.number IS 'Its place among the steps, from 1.';
COMMENT ON COLUMN declared_step.declaration IS
  'What the ledger keeps of it: name, kind, reads, and what applies of the options below.';
COMMENT ON COLUMN declared_step.name IS 'Step by name.';
COMMENT ON COLUMN declared_step.kind IS 'source, stage, sink, combine or stateful.';
COMMENT ON COLUMN declared_step.after IS 'Whether it runs after the settlement.';
COMMENT ON COLUMN declared_step.stateful IS
  'Whether it is a state over batches or reads one: it runs in the order of the batches.';
COMMENT ON COLUMN declared_step.partial IS
  'Whether it is a combine that runs while records are failed, too, unless its batch holds.';
COMMENT ON COLUMN declared_step.merges IS
  'Whether it is a whole stage, whose rows depend on which other rows there are, or reads one: its '
  'batch is replayed as a whole.';
COMMENT ON COLUMN declared_step.notice IS
  'Whether it is a source that is notified of what became of its messages.';
COMMENT ON COLUMN declared_step.incremental IS
  'Whether it is a source whose new records each batch claims.';
COMMENT ON COLUMN declared_step.rereads IS
  'Whether it is a source whose records can be read again by their key.';
COMMENT ON COLUMN declared_step.in_place IS
  'Whether it is a sink whose readers read the files where they were staged.';
COMMENT ON COLUMN declared_step.dedup_window IS
  'Of a sink that compares its rows with those of earlier batches: with how many; -1: all.';

CREATE VIEW batch_step AS
SELECT b.batch_id, s.number, s.declaration, s.name, s.kind, s.after, s.stateful, s.partial, s.merges,
       s.notice, s.incremental, s.rereads, s.in_place, s.dedup_window
FROM batch b
JOIN declared_step s ON s.pipeline_id = b.pipeline_id AND s.version = b.steps_version;
COMMENT ON VIEW batch_step IS
  'The steps of each batch, as its pipeline declared them when it was opened, with what its runs '
  'found since.';
COMMENT ON COLUMN batch_step.batch_id IS 'Batch that has the step.';
COMMENT ON COLUMN batch_step.number IS 'Its place among the steps, from 1.';
COMMENT ON COLUMN batch_step.declaration IS
  'What the ledger keeps of it: name, kind, reads, and what applies of the options below.';
COMMENT ON COLUMN batch_step.name IS 'Step by name.';
COMMENT ON COLUMN batch_step.kind IS 'source, stage, sink, combine or stateful.';
COMMENT ON COLUMN batch_step.after IS 'Whether it runs after the settlement.';
COMMENT ON COLUMN batch_step.stateful IS
  'Whether it is a state over batches or reads one: it runs in the order of the batches.';
COMMENT ON COLUMN batch_step.partial IS
  'Whether it is a combine that runs while records are failed, too, unless its batch holds.';
COMMENT ON COLUMN batch_step.merges IS
  'Whether it is a whole stage, whose rows depend on which other rows there are, or reads one: its '
  'batch is replayed as a whole.';
COMMENT ON COLUMN batch_step.notice IS
  'Whether it is a source that is notified of what became of its messages.';
COMMENT ON COLUMN batch_step.incremental IS
  'Whether it is a source whose new records each batch claims.';
COMMENT ON COLUMN batch_step.rereads IS
  'Whether it is a source whose records can be read again by their key.';
COMMENT ON COLUMN batch_step.in_place IS
  'Whether it is a sink whose readers read the files where they were staged.';
COMMENT ON COLUMN batch_step.dedup_window IS
  'Of a sink that compares its rows with those of earlier batches: with how many; -1: all.';


-- Step runs: what each read, wrote and dropped.

CREATE TABLE one_plan (
  one_plan_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pipeline_id bigint NOT NULL REFERENCES pipeline,
  batch_id bigint NOT NULL REFERENCES batch,
  steps text[] NOT NULL,
  accepted boolean,
  rejected text,
  opened_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX one_plan_batch_id_idx ON one_plan (batch_id);
CREATE INDEX one_plan_pipeline_id_idx ON one_plan (pipeline_id, one_plan_id);
COMMENT ON TABLE one_plan IS
  'Consecutive steps of a batch that ran as one Spark job, of which only the last wrote its rows.';
COMMENT ON COLUMN one_plan.one_plan_id IS 'Number of the plan.';
COMMENT ON COLUMN one_plan.pipeline_id IS 'Pipeline of the batch.';
COMMENT ON COLUMN one_plan.batch_id IS 'Batch.';
COMMENT ON COLUMN one_plan.steps IS 'The steps, in order.';
COMMENT ON COLUMN one_plan.accepted IS
  'Whether its runs committed; false: its steps ran one by one; null: it did not end.';
COMMENT ON COLUMN one_plan.rejected IS 'Why its rows did not count; null: they did, or it did not end.';
COMMENT ON COLUMN one_plan.opened_at IS 'When it began.';

CREATE TABLE step_run (
  step_run_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  batch_id bigint NOT NULL REFERENCES batch,
  step text NOT NULL,
  state run_state NOT NULL,
  attempt_id uuid NOT NULL,
  attempt_number bigint NOT NULL DEFAULT nextval('attempt_number'),
  try_number integer,
  opened_at timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  closed_at timestamptz,
  input_rows bigint,
  output_rows bigint,
  failed_rows bigint,
  duplicate_rows bigint,
  null_columns text[],
  delta_rows bigint,
  delta_xor bigint,
  emitted_edges bigint,
  acked_edges bigint,
  acks_proved boolean,
  failure text,
  unread_run_ids bigint[],
  folder text,
  files jsonb,
  root_files text,
  files_removed_at timestamptz,
  one_plan_id bigint REFERENCES one_plan,
  UNIQUE (batch_id, step, attempt_id)
);
CREATE UNIQUE INDEX step_run_one_committed_key ON step_run (batch_id, step)
  WHERE state = 'committed';
CREATE UNIQUE INDEX step_run_one_running_key ON step_run (batch_id, step) WHERE state = 'running';
CREATE INDEX step_run_dead_idx ON step_run (batch_id)
  WHERE state IN ('failed', 'fenced', 'superseded') AND files_removed_at IS NULL;
CREATE INDEX step_run_root_files_idx ON step_run (batch_id) WHERE root_files IS NOT NULL;
COMMENT ON TABLE step_run IS 'One attempt of one step of one batch.';
COMMENT ON COLUMN step_run.step_run_id IS 'Number of the run; all it writes carries it.';
COMMENT ON COLUMN step_run.batch_id IS 'Batch that it works for.';
COMMENT ON COLUMN step_run.step IS 'Step by name.';
COMMENT ON COLUMN step_run.state IS 'running, committed, failed, fenced or superseded.';
COMMENT ON COLUMN step_run.attempt_id IS 'The attempt: a task instance''s id, or a command''s.';
COMMENT ON COLUMN step_run.attempt_number IS
  'Drawn when a command or a task began: the greatest is the newest.';
COMMENT ON COLUMN step_run.try_number IS 'Airflow''s try number, for people; null of a command.';
COMMENT ON COLUMN step_run.opened_at IS 'When it began.';
COMMENT ON COLUMN step_run.lease_until IS
  'A living driver renews this; past it the run counts as dead.';
COMMENT ON COLUMN step_run.closed_at IS 'When it committed, failed or was fenced.';
COMMENT ON COLUMN step_run.input_rows IS 'Rows that it read.';
COMMENT ON COLUMN step_run.output_rows IS 'Rows that it wrote and passed on.';
COMMENT ON COLUMN step_run.failed_rows IS 'Rows that it failed explicitly, or could not parse.';
COMMENT ON COLUMN step_run.duplicate_rows IS 'Rows that a sink dropped as already delivered.';
COMMENT ON COLUMN step_run.null_columns IS
  'Columns of a source that no record has, and that are null in all of them.';
COMMENT ON COLUMN step_run.delta_rows IS 'Deltas that it posted.';
COMMENT ON COLUMN step_run.delta_xor IS 'XOR over the deltas that it posted.';
COMMENT ON COLUMN step_run.emitted_edges IS 'Edges that it emitted.';
COMMENT ON COLUMN step_run.acked_edges IS 'Edges that it acked.';
COMMENT ON COLUMN step_run.acks_proved IS
  'Of a tracked sink: whether it took each row of its input once, by number and XOR of their edges.';
COMMENT ON COLUMN step_run.failure IS 'Why it failed.';
COMMENT ON COLUMN step_run.unread_run_ids IS
  'Runs of which it could not read a file, and failed; null: none.';
COMMENT ON COLUMN step_run.folder IS
  'Folder, or URL, that it alone writes to, noted before it writes; null: it never came to that.';
COMMENT ON COLUMN step_run.files IS
  'Manifest of its output, in order: name (below its folder; or path, of a file that lies '
  'elsewhere), bytes, rows; null: it has no files.';
COMMENT ON COLUMN step_run.root_files IS
  'Folder, or URL, of what it adds to each root, while the ledger has that by span alone; null: '
  'the ledger has all, or the batch is decided.';
COMMENT ON COLUMN step_run.files_removed_at IS
  'When its files were removed, or left to the table that they are part of; null: not yet.';
COMMENT ON COLUMN step_run.one_plan_id IS
  'The plan that it is part of: unless it is the last, its files have only the rows that did not '
  'arrive; null: it ran by itself.';

CREATE TABLE step_run_input (
  step_run_id bigint REFERENCES step_run,
  input_run_id bigint REFERENCES step_run,
  PRIMARY KEY (step_run_id, input_run_id)
);
CREATE INDEX step_run_input_input_run_id_idx ON step_run_input (input_run_id);
COMMENT ON TABLE step_run_input IS 'Which run read which committed run.';
COMMENT ON COLUMN step_run_input.step_run_id IS 'Run that reads.';
COMMENT ON COLUMN step_run_input.input_run_id IS 'Run whose output it read.';

CREATE TABLE step_run_drop (
  step_run_id bigint REFERENCES step_run,
  reason text,
  records bigint NOT NULL,
  operation text,
  place text,
  PRIMARY KEY (step_run_id, reason)
);
COMMENT ON TABLE step_run_drop IS 'What each run acked without an output, by reason.';
COMMENT ON COLUMN step_run_drop.step_run_id IS 'Run that dropped.';
COMMENT ON COLUMN step_run_drop.reason IS
  'Reason code of the stage, or operation, place and reason in words.';
COMMENT ON COLUMN step_run_drop.records IS 'Rows of its input.';
COMMENT ON COLUMN step_run_drop.operation IS
  'Operation of the stage that dropped them on purpose, such as filter; null: the stage said so.';
COMMENT ON COLUMN step_run_drop.place IS 'Its line, as file:line.';

CREATE TABLE step_run_loss (
  step_run_id bigint REFERENCES step_run,
  number bigint,
  operation text,
  place text,
  reason text NOT NULL,
  records bigint NOT NULL,
  PRIMARY KEY (step_run_id, number)
);
COMMENT ON TABLE step_run_loss IS 'What the operations of each stage lost, by line and reason.';
COMMENT ON COLUMN step_run_loss.step_run_id IS 'Run that lost them.';
COMMENT ON COLUMN step_run_loss.number IS 'Number of the loss in its run, from 1.';
COMMENT ON COLUMN step_run_loss.operation IS
  'Operation that lost them, such as inner join; null: it could not be found.';
COMMENT ON COLUMN step_run_loss.place IS 'Its line, as file:line.';
COMMENT ON COLUMN step_run_loss.reason IS 'Operation, line and reason in words.';
COMMENT ON COLUMN step_run_loss.records IS 'Rows of the run''s input.';


-- What batches claim of sources.

CREATE TABLE batch_source (
  batch_id bigint REFERENCES batch,
  source text,
  pipeline_id bigint NOT NULL REFERENCES pipeline,
  path text NOT NULL,
  interval_start timestamptz NOT NULL,
  interval_end timestamptz NOT NULL,
  claimed boolean NOT NULL,
  emit_run_id bigint REFERENCES step_run,
  first_root bigint,
  roots bigint,
  span bigint,
  notified_at timestamptz,
  claim_number bigint,
  claim_start jsonb,
  claim_end jsonb,
  claim_records bigint,
  committed_at timestamptz,
  PRIMARY KEY (batch_id, source)
);
CREATE UNIQUE INDEX batch_source_claim_key
  ON batch_source (pipeline_id, source, interval_start, interval_end) WHERE claimed;
CREATE UNIQUE INDEX batch_source_claim_number_key
  ON batch_source (pipeline_id, source, claim_number) WHERE claim_number IS NOT NULL;
CREATE INDEX batch_source_claim_end_idx ON batch_source USING hash (claim_end)
  WHERE claim_number IS NOT NULL;  -- an offset may be longer than a B-tree takes
CREATE INDEX batch_source_first_root_idx ON batch_source (first_root);
COMMENT ON TABLE batch_source IS
  'What a batch claims of each source, and the range of roots that it emitted.';
COMMENT ON COLUMN batch_source.batch_id IS 'Batch that reads.';
COMMENT ON COLUMN batch_source.source IS 'Source by name.';
COMMENT ON COLUMN batch_source.pipeline_id IS 'Pipeline of the batch.';
COMMENT ON COLUMN batch_source.path IS 'The path as rendered for this batch.';
COMMENT ON COLUMN batch_source.interval_start IS 'Start of the claimed interval, inclusive.';
COMMENT ON COLUMN batch_source.interval_end IS 'End of the claimed interval, exclusive.';
COMMENT ON COLUMN batch_source.claimed IS
  'Whether the interval is claimed by this batch; false for replays and once abandoned.';
COMMENT ON COLUMN batch_source.emit_run_id IS 'The committed emit run.';
COMMENT ON COLUMN batch_source.first_root IS 'First root id of the emit run.';
COMMENT ON COLUMN batch_source.roots IS 'How many roots; their ids are dense.';
COMMENT ON COLUMN batch_source.span IS
  'How many roots share a row of ledger_delta, a power of two; null: nothing is emitted yet.';
COMMENT ON COLUMN batch_source.notified_at IS
  'When the source was notified of what became of its messages; null: not yet.';
COMMENT ON COLUMN batch_source.claim_number IS
  'Place of the claimed range among those of its source, without a gap; null: no range. The range '
  'of an abandoned batch is its own until another batch takes it, or it is opened again.';
COMMENT ON COLUMN batch_source.claim_start IS
  'Offset after which the range begins, of a table its cursor; null: the beginning.';
COMMENT ON COLUMN batch_source.claim_end IS 'Offset up to and with which it goes.';
COMMENT ON COLUMN batch_source.claim_records IS
  'The most records that the claim may hold; null: not known before they are read.';
COMMENT ON COLUMN batch_source.committed_at IS
  'When the source was notified that its range is committed as a whole; null: it was not.';

CREATE TABLE claimed_file (
  pipeline_id bigint REFERENCES pipeline,
  source text,
  path text,
  bytes bigint,
  modified_at timestamptz,
  digest text,
  claimed_at timestamptz NOT NULL DEFAULT now(),
  batch_id bigint NOT NULL REFERENCES batch,
  PRIMARY KEY (pipeline_id, source, path, bytes, modified_at)
);
CREATE INDEX claimed_file_batch_id_idx ON claimed_file (batch_id);
COMMENT ON TABLE claimed_file IS
  'Files that incremental sources have claimed: each content once. An abandoned batch gives them '
  'back.';
COMMENT ON COLUMN claimed_file.pipeline_id IS 'Pipeline that reads.';
COMMENT ON COLUMN claimed_file.source IS 'Source by name.';
COMMENT ON COLUMN claimed_file.path IS 'Path or URL.';
COMMENT ON COLUMN claimed_file.bytes IS 'Size when it was claimed.';
COMMENT ON COLUMN claimed_file.modified_at IS 'When it was last modified then.';
COMMENT ON COLUMN claimed_file.digest IS 'SHA-256 of a small file''s content; null: not looked at.';
COMMENT ON COLUMN claimed_file.claimed_at IS 'When it was claimed.';
COMMENT ON COLUMN claimed_file.batch_id IS 'Batch that reads it.';


-- Roots and their deltas.

CREATE TABLE root_counter (
  single boolean DEFAULT true PRIMARY KEY,
  next_root bigint NOT NULL,
  CONSTRAINT root_counter_one_row_check CHECK (single)
);
COMMENT ON TABLE root_counter IS 'Where the next range of root ids starts.';
COMMENT ON COLUMN root_counter.single IS 'Always true: there is one row.';
COMMENT ON COLUMN root_counter.next_root IS 'First root id that no emit run has reserved.';
INSERT INTO root_counter (next_root) VALUES (1);

CREATE TABLE last_sweep (
  single boolean DEFAULT true PRIMARY KEY,
  swept_at timestamptz NOT NULL,
  CONSTRAINT last_sweep_one_row_check CHECK (single)
);
COMMENT ON TABLE last_sweep IS 'When the sweeper last ran; no row: never.';
COMMENT ON COLUMN last_sweep.single IS 'Always true: there is one row.';
COMMENT ON COLUMN last_sweep.swept_at IS 'When its last sweep ended.';

CREATE TABLE ledger_delta (
  batch_id bigint NOT NULL,
  step_run_id bigint NOT NULL,
  root_id bigint NOT NULL,
  delta bigint NOT NULL,
  acked bigint NOT NULL,
  emitted_edges bigint NOT NULL,
  acked_edges bigint NOT NULL
);
CREATE INDEX ledger_delta_batch_id_step_run_id_idx ON ledger_delta (batch_id, step_run_id);
COMMENT ON TABLE ledger_delta IS
  'What each run adds to a root, or span of roots. BIT_XOR(delta) of one is 0 once all is acked. A '
  'sweep removes the rows of decided batches.';
COMMENT ON COLUMN ledger_delta.batch_id IS 'Batch.';
COMMENT ON COLUMN ledger_delta.step_run_id IS
  'Run that posted; counts only once that is committed.';
COMMENT ON COLUMN ledger_delta.root_id IS
  'Root; of a source with a span above 1 the first root of a span.';
COMMENT ON COLUMN ledger_delta.delta IS
  'XOR of the input edges acked and the output edges emitted.';
COMMENT ON COLUMN ledger_delta.acked IS
  'XOR of the input edges acked; delta # acked is what was emitted.';
COMMENT ON COLUMN ledger_delta.emitted_edges IS 'Edges emitted.';
COMMENT ON COLUMN ledger_delta.acked_edges IS 'Edges acked.';

CREATE TABLE root_fail (
  batch_id bigint NOT NULL,
  step_run_id bigint NOT NULL,
  root_id bigint NOT NULL,
  reason text,
  detail text,
  shared boolean NOT NULL DEFAULT false,
  number bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (batch_id, number)
);
COMMENT ON TABLE root_fail IS
  'Explicit fails of open batches; settlement moves them to failed_root. Of a batch that ran at '
  'least once those of its sinks stay: they name the rows that a sink has left out.';
COMMENT ON COLUMN root_fail.batch_id IS 'Batch.';
COMMENT ON COLUMN root_fail.step_run_id IS 'Run that failed the root.';
COMMENT ON COLUMN root_fail.root_id IS 'Root.';
COMMENT ON COLUMN root_fail.reason IS
  'Reason given; null: none, the stage has more than one row for an input.';
COMMENT ON COLUMN root_fail.detail IS 'Raw text of a record that did not parse.';
COMMENT ON COLUMN root_fail.shared IS
  'Whether the row that failed comes from several records: all of them fail with it.';
COMMENT ON COLUMN root_fail.number IS 'Tells fails of one root apart.';

CREATE TABLE lost_root (
  batch_id bigint NOT NULL,
  step_run_id bigint NOT NULL,
  root_id bigint NOT NULL,
  number bigint NOT NULL
);
CREATE INDEX lost_root_batch_id_idx ON lost_root (batch_id);
COMMENT ON TABLE lost_root IS
  'Which roots each operation of a stage lost, while their batch is open. The settlement puts the '
  'operation of each that failed there into failed_root.';
COMMENT ON COLUMN lost_root.batch_id IS 'Batch.';
COMMENT ON COLUMN lost_root.step_run_id IS 'Run that lost the root.';
COMMENT ON COLUMN lost_root.root_id IS 'Root.';
COMMENT ON COLUMN lost_root.number IS 'The loss, as in step_run_loss.';

CREATE TABLE replay_root (
  batch_id bigint NOT NULL,
  step_run_id bigint NOT NULL,
  root_id bigint PRIMARY KEY,
  message_id bigint NOT NULL
);
CREATE INDEX replay_root_batch_id_idx ON replay_root (batch_id);
CREATE INDEX replay_root_message_id_idx ON replay_root (message_id);
COMMENT ON TABLE replay_root IS
  'Which message each root of a replay is an attempt of. In an original the root is the message.';
COMMENT ON COLUMN replay_root.batch_id IS 'Replay batch.';
COMMENT ON COLUMN replay_root.step_run_id IS 'Emit run of the replay.';
COMMENT ON COLUMN replay_root.root_id IS 'Root of this attempt.';
COMMENT ON COLUMN replay_root.message_id IS 'Message that it is an attempt of.';


-- Failed messages. They come by the hundred thousand, and a settlement writes them from joins with
-- the rows that they would refer to: no foreign key is checked row by row.

CREATE TABLE failed_message (
  message_id bigint PRIMARY KEY,
  original_batch_id bigint NOT NULL,
  source text NOT NULL,
  status message_status NOT NULL,
  root_id bigint NOT NULL,
  attempts integer NOT NULL,
  failed_replays integer NOT NULL,
  replay_batch_id bigint,
  updated_at timestamptz NOT NULL DEFAULT now(),
  not_before timestamptz,
  given_up boolean NOT NULL DEFAULT false,
  CONSTRAINT failed_message_claimed_check
    CHECK (status <> 'replaying' OR replay_batch_id IS NOT NULL)
);
CREATE INDEX failed_message_original_batch_id_status_idx
  ON failed_message (original_batch_id, status);
CREATE INDEX failed_message_status_message_id_idx ON failed_message (status, message_id);
CREATE INDEX failed_message_replay_batch_id_idx ON failed_message (replay_batch_id)
  WHERE replay_batch_id IS NOT NULL;
COMMENT ON TABLE failed_message IS
  'Every message that failed at least once. One replay at most claims it: there is one row and '
  'one claim.';
COMMENT ON COLUMN failed_message.message_id IS 'Root id of the message''s first attempt.';
COMMENT ON COLUMN failed_message.original_batch_id IS 'Batch of that first attempt.';
COMMENT ON COLUMN failed_message.source IS 'Source that it came from.';
COMMENT ON COLUMN failed_message.status IS
  'failed, replaying, recovered, quarantined or superseded.';
COMMENT ON COLUMN failed_message.root_id IS 'Root of its last failed attempt.';
COMMENT ON COLUMN failed_message.attempts IS 'Attempts that failed.';
COMMENT ON COLUMN failed_message.failed_replays IS
  'Replays in which it failed, by itself or with others; not those of which a step died.';
COMMENT ON COLUMN failed_message.replay_batch_id IS
  'Open replay that claims it, or the one that recovered it.';
COMMENT ON COLUMN failed_message.updated_at IS 'Last change of its status.';
COMMENT ON COLUMN failed_message.not_before IS
  'Replays that open earlier leave it out; null: at once.';
COMMENT ON COLUMN failed_message.given_up IS
  'Whether the next replay of its whole batch leaves it out, and quarantines it: its replays are '
  'used up, or a person quarantined it.';

CREATE TABLE message_claim (
  batch_id bigint,
  message_id bigint,
  status message_status NOT NULL,
  not_before timestamptz,
  failed_replays integer NOT NULL,
  given_up boolean NOT NULL,
  PRIMARY KEY (batch_id, message_id)
);
COMMENT ON TABLE message_claim IS
  'Which messages each replay claimed, as it found them: they are restored if it is abandoned.';
COMMENT ON COLUMN message_claim.batch_id IS 'Replay that claimed.';
COMMENT ON COLUMN message_claim.message_id IS 'Message that it claimed.';
COMMENT ON COLUMN message_claim.status IS 'As in failed_message, before the claim.';
COMMENT ON COLUMN message_claim.not_before IS 'As in failed_message, before the claim.';
COMMENT ON COLUMN message_claim.failed_replays IS 'As in failed_message, before the claim.';
COMMENT ON COLUMN message_claim.given_up IS 'As in failed_message, before the claim.';

CREATE TABLE failed_root (
  root_id bigint PRIMARY KEY,
  message_id bigint NOT NULL,
  batch_id bigint NOT NULL,
  attempt integer NOT NULL,
  cause failure_cause NOT NULL,
  step text NOT NULL,
  reason text,
  operation text,
  place text,
  detail text,
  producers text,
  wrong_at text,
  emitted_edges bigint,
  acked_edges bigint,
  residue bigint NOT NULL,
  own_failure boolean NOT NULL,
  failed_at timestamptz NOT NULL DEFAULT now(),
  shared boolean NOT NULL DEFAULT false,
  missed_by text[],
  CONSTRAINT failed_root_reason_check
    CHECK (reason IS NOT NULL OR cause NOT IN ('unparsed', 'rejected', 'refused'))
);
CREATE INDEX failed_root_batch_id_root_id_idx ON failed_root (batch_id, root_id);
CREATE INDEX failed_root_message_id_idx ON failed_root (message_id);
COMMENT ON TABLE failed_root IS
  'Every failed attempt of every message: where and why. Never changed.';
COMMENT ON COLUMN failed_root.root_id IS 'Root that failed.';
COMMENT ON COLUMN failed_root.message_id IS 'Message that it is an attempt of.';
COMMENT ON COLUMN failed_root.batch_id IS 'Batch that it failed in.';
COMMENT ON COLUMN failed_root.attempt IS '1 for the original, then counted up.';
COMMENT ON COLUMN failed_root.step IS 'Source, stage or sink where it broke.';
COMMENT ON COLUMN failed_root.cause IS
  'unparsed: its source could not read it; rejected: a stage failed it; refused: a sink did; '
  'repeated: the stage has more than one row for an input; unacked: the stage acks by itself, and '
  'did not; lost; doubled: acked too often; swapped: one row lost, another acked too often; late: '
  'the step did not commit.';
COMMENT ON COLUMN failed_root.reason IS
  'What the source, stage or sink said of it, or for a lost record the operation, its line and why; '
  'null: the cause says all. See failure_reason.';
COMMENT ON COLUMN failed_root.operation IS
  'Operation of the stage that lost it, such as inner join; null: not known, or not lost.';
COMMENT ON COLUMN failed_root.place IS 'Line of that operation, as file:line.';
COMMENT ON COLUMN failed_root.detail IS 'Raw text of a record that did not parse.';
COMMENT ON COLUMN failed_root.producers IS
  'Of rows that do not add up: the steps that emitted them to the step; null otherwise.';
COMMENT ON COLUMN failed_root.emitted_edges IS 'Of these: how many were emitted.';
COMMENT ON COLUMN failed_root.acked_edges IS 'Of these: how many were acked.';
COMMENT ON COLUMN failed_root.wrong_at IS
  'The steps that acked another number than they had to, if several read the same rows.';
COMMENT ON COLUMN failed_root.residue IS 'Its ack value at settlement: XOR of what was not acked.';
COMMENT ON COLUMN failed_root.own_failure IS
  'False if a step never committed: no fault of the message.';
COMMENT ON COLUMN failed_root.failed_at IS 'When it was settled.';
COMMENT ON COLUMN failed_root.shared IS
  'Whether the row that failed comes from several records: all of them fail with it.';
COMMENT ON COLUMN failed_root.missed_by IS
  'Sinks that may not have got each of its rows once, wherever it broke; null: none, or the '
  'batch ran exactly once.';

CREATE TABLE failed_payload (
  message_id bigint PRIMARY KEY,
  batch_id bigint NOT NULL,
  root_id bigint NOT NULL,
  key jsonb,
  content text NOT NULL,
  parsed boolean NOT NULL,
  source_file text,
  source_row bigint,
  forgotten_at timestamptz
);
CREATE INDEX failed_payload_batch_id_idx ON failed_payload (batch_id);
CREATE INDEX failed_payload_forgotten_idx ON failed_payload (batch_id)
  WHERE forgotten_at IS NOT NULL;
COMMENT ON TABLE failed_payload IS
  'Content of each record that failed, copied from its snapshot. For ledger_payload_reader only.';
COMMENT ON COLUMN failed_payload.message_id IS 'Message, once for all its attempts.';
COMMENT ON COLUMN failed_payload.batch_id IS 'Batch of its first attempt.';
COMMENT ON COLUMN failed_payload.root_id IS
  'Root of the attempt that had this content: the first, or one that read it again.';
COMMENT ON COLUMN failed_payload.key IS
  'Values of the source''s key columns, pseudonyms of redacted ones, and of all where the record '
  'did not parse and its source is redacted; null: the source declares none.';
COMMENT ON COLUMN failed_payload.content IS
  'JSON of its fields, or raw text of what did not parse; at most 10,000 characters. What is '
  'redacted is ***.';
COMMENT ON COLUMN failed_payload.parsed IS 'Whether content is the JSON of its fields, and whole.';
COMMENT ON COLUMN failed_payload.source_file IS 'File that it was read from, if it was one.';
COMMENT ON COLUMN failed_payload.source_row IS
  'Its number among the file''s records, from 1; null: not known.';
COMMENT ON COLUMN failed_payload.forgotten_at IS
  'When its content was removed on request: key and content are empty since; null: it was not.';

CREATE TABLE redaction_key (
  single boolean DEFAULT true PRIMARY KEY,
  secret bytea NOT NULL,
  CONSTRAINT redaction_key_one_row_check CHECK (single)
);
COMMENT ON TABLE redaction_key IS
  'From what the pseudonyms of redacted key columns are made. Made once, never changed.';
COMMENT ON COLUMN redaction_key.single IS 'Always true: there is one row.';
COMMENT ON COLUMN redaction_key.secret IS
  'Random bytes: who has them can test guesses of a redacted key.';
INSERT INTO redaction_key (secret)
SELECT sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));

CREATE TABLE manual_quarantine (
  message_id bigint NOT NULL,
  reason text NOT NULL,
  quarantined_by text NOT NULL,
  quarantined_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX manual_quarantine_message_id_idx ON manual_quarantine (message_id);
COMMENT ON TABLE manual_quarantine IS
  'Records that a person moved to quarantine, with the reason. Never changed.';
COMMENT ON COLUMN manual_quarantine.message_id IS 'Message that was quarantined.';
COMMENT ON COLUMN manual_quarantine.reason IS 'Why, in the person''s words.';
COMMENT ON COLUMN manual_quarantine.quarantined_by IS 'Who did it.';
COMMENT ON COLUMN manual_quarantine.quarantined_at IS 'When.';

CREATE TABLE acceptance (
  acceptance_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  batch_id bigint NOT NULL REFERENCES batch,
  accepted_at timestamptz NOT NULL DEFAULT now(),
  accepted_by text NOT NULL,
  reason text NOT NULL
);
COMMENT ON TABLE acceptance IS
  'Each time that a person accepted quarantined records of a batch, or quarantined failed ones.';
COMMENT ON COLUMN acceptance.acceptance_id IS 'Number of the acceptance.';
COMMENT ON COLUMN acceptance.batch_id IS
  'Original whose quarantined records, those of its replays included, it names.';
COMMENT ON COLUMN acceptance.accepted_at IS 'When.';
COMMENT ON COLUMN acceptance.accepted_by IS 'Who.';
COMMENT ON COLUMN acceptance.reason IS 'Why, in the words of that person.';

CREATE TABLE accepted_root (
  root_id bigint PRIMARY KEY,
  acceptance_id bigint NOT NULL REFERENCES acceptance
);
COMMENT ON TABLE accepted_root IS
  'Quarantined records that were accepted, by the attempt that failed last.';
COMMENT ON COLUMN accepted_root.root_id IS
  'Root of the attempt with which a record was quarantined: a later failure is not accepted.';
COMMENT ON COLUMN accepted_root.acceptance_id IS 'The acceptance that names it.';


-- What a settlement computed that was rolled back: what a batch on hold shows a person. It is no
-- verdict: no record changes its state by it, and it goes with the hold.

CREATE TABLE hold_failure (
  batch_id bigint NOT NULL REFERENCES batch,
  number integer NOT NULL,
  source text NOT NULL,
  step text NOT NULL,
  reason text NOT NULL,
  records bigint NOT NULL,
  PRIMARY KEY (batch_id, number)
);
COMMENT ON TABLE hold_failure IS
  'Of a batch that hold_above holds: the failures that its settlement would record, by '
  'source, step and reason. Removed once the batch is on hold no more.';
COMMENT ON COLUMN hold_failure.batch_id IS 'Batch on hold.';
COMMENT ON COLUMN hold_failure.number IS 'From 1, most records first; rare reasons last.';
COMMENT ON COLUMN hold_failure.source IS 'Source that the records came from.';
COMMENT ON COLUMN hold_failure.step IS 'Source, stage or sink where they broke.';
COMMENT ON COLUMN hold_failure.reason IS 'Why; of rare reasons how many there are.';
COMMENT ON COLUMN hold_failure.records IS 'Records that would fail.';

CREATE TABLE hold_sample (
  root_id bigint PRIMARY KEY,
  message_id bigint NOT NULL,
  batch_id bigint NOT NULL,
  number integer NOT NULL,
  key jsonb,
  content text,
  parsed boolean,
  source_file text,
  source_row bigint,
  FOREIGN KEY (batch_id, number) REFERENCES hold_failure ON DELETE CASCADE
);
CREATE INDEX hold_sample_batch_id_number_idx ON hold_sample (batch_id, number);
CREATE INDEX hold_sample_message_id_idx ON hold_sample (message_id);
COMMENT ON TABLE hold_sample IS
  'Of each row of hold_failure its first records, as failed_payload has failed ones.';
COMMENT ON COLUMN hold_sample.root_id IS 'Root that would fail.';
COMMENT ON COLUMN hold_sample.message_id IS 'Message that it is an attempt of.';
COMMENT ON COLUMN hold_sample.batch_id IS 'Batch on hold.';
COMMENT ON COLUMN hold_sample.number IS 'Row of hold_failure that it is an example of.';
COMMENT ON COLUMN hold_sample.key IS 'As in failed_payload.';
COMMENT ON COLUMN hold_sample.content IS 'As in failed_payload; null: not copied yet.';
COMMENT ON COLUMN hold_sample.parsed IS 'As in failed_payload.';
COMMENT ON COLUMN hold_sample.source_file IS 'As in failed_payload.';
COMMENT ON COLUMN hold_sample.source_row IS 'As in failed_payload.';


-- What sinks publish.

CREATE TABLE publication (
  step_run_id bigint PRIMARY KEY REFERENCES step_run,
  batch_id bigint NOT NULL REFERENCES batch,
  sink text NOT NULL,
  decided_at timestamptz NOT NULL DEFAULT now(),
  ready boolean NOT NULL,
  folder text,
  files jsonb,
  rows bigint,
  published_at timestamptz,
  replaced_at timestamptz
);
CREATE INDEX publication_batch_id_sink_idx ON publication (batch_id, sink);
CREATE INDEX publication_pending_idx ON publication (batch_id)
  WHERE published_at IS NULL AND replaced_at IS NULL;
COMMENT ON TABLE publication IS
  'What each sink is to publish of a batch, and whether it has.';
COMMENT ON COLUMN publication.step_run_id IS 'The sink''s run that staged the rows.';
COMMENT ON COLUMN publication.batch_id IS 'Batch whose rows are to be published.';
COMMENT ON COLUMN publication.sink IS 'Sink by name.';
COMMENT ON COLUMN publication.decided_at IS
  'When it was decided: when the batch settled, or, at least once, when the sink''s run committed.';
COMMENT ON COLUMN publication.ready IS
  'Whether the files hold just what is to be published: nothing failed, or it is left out.';
COMMENT ON COLUMN publication.folder IS
  'Folder of the files without what is withheld; null: as they were staged.';
COMMENT ON COLUMN publication.files IS
  'Those files: path, bytes, rows, first_position; null: as they were staged.';
COMMENT ON COLUMN publication.rows IS 'Rows to be published; null until it is ready.';
COMMENT ON COLUMN publication.published_at IS 'When they were visible to readers; null: not yet.';
COMMENT ON COLUMN publication.replaced_at IS
  'When rows of a later batch or run replaced them, or were decided instead; null: they have not.';

CREATE TABLE sink_replacement (
  step_run_id bigint REFERENCES step_run,
  replaced_batch_id bigint REFERENCES batch,
  PRIMARY KEY (step_run_id, replaced_batch_id)
);
COMMENT ON TABLE sink_replacement IS
  'Whose rows the run of a sink of a combine or a state replaces.';
COMMENT ON COLUMN sink_replacement.step_run_id IS 'The sink''s run.';
COMMENT ON COLUMN sink_replacement.replaced_batch_id IS
  'Batch whose rows are removed when those of the run are published.';

CREATE TABLE dedup_filter (
  step_run_id bigint PRIMARY KEY REFERENCES step_run,
  key text[] NOT NULL,
  capacity bigint NOT NULL,
  error_rate double precision NOT NULL,
  entries bigint NOT NULL,
  filter bytea NOT NULL
);
COMMENT ON TABLE dedup_filter IS 'Bloom filters of what each sink run delivered.';
COMMENT ON COLUMN dedup_filter.step_run_id IS
  'Sink run whose rows it holds; counts once that is committed.';
COMMENT ON COLUMN dedup_filter.key IS
  'Key columns; empty: the identity is message, row and ordinal.';
COMMENT ON COLUMN dedup_filter.capacity IS 'Entries that the filter may hold at its error rate.';
COMMENT ON COLUMN dedup_filter.error_rate IS 'Chance of a false maybe when full.';
COMMENT ON COLUMN dedup_filter.entries IS 'Entries in it.';
COMMENT ON COLUMN dedup_filter.filter IS 'pybloom-live''s serialized filter.';


-- States of stateful stages.

CREATE TABLE checkpoint (
  pipeline_id bigint REFERENCES pipeline,
  step text,
  batch_id bigint REFERENCES batch,
  step_run_id bigint NOT NULL REFERENCES step_run UNIQUE,
  snapshot jsonb,
  committed_at timestamptz NOT NULL DEFAULT now(),
  acked_at timestamptz,
  PRIMARY KEY (pipeline_id, step, batch_id)
);
COMMENT ON TABLE checkpoint IS
  'The state that a stateful stage has committed with each batch.';
COMMENT ON COLUMN checkpoint.pipeline_id IS 'Pipeline.';
COMMENT ON COLUMN checkpoint.step IS 'Stateful stage by name.';
COMMENT ON COLUMN checkpoint.batch_id IS 'Batch whose rows were applied to the state.';
COMMENT ON COLUMN checkpoint.step_run_id IS
  'The run that made it, each from the one before: the greatest made the current state.';
COMMENT ON COLUMN checkpoint.snapshot IS
  'What its commit returned; null for a function, whose state is the files of the run.';
COMMENT ON COLUMN checkpoint.committed_at IS
  'When the state was committed, with what its sinks publish.';
COMMENT ON COLUMN checkpoint.acked_at IS
  'When the stage was notified that the batch is committed as a whole; null: it was not.';
