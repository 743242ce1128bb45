-- Each role may do what its statements do, and no more.

-- The writer reads what statements of jobs and services read, and how far the schema is. Views for
-- people alone, and what the owner's functions look at for it, are not among that.
GRANT SELECT ON
  pipeline, declared_step, batch, batch_step, one_plan, step_run, step_run_input, step_run_file,
  step_run_drop, step_run_loss, batch_source, claimed_file, last_sweep, ledger_delta, root_fail,
  lost_root, replay_root,
  failed_message, message_claim, failed_root, failed_payload, manual_quarantine, acceptance, accepted_root,
  hold_failure, hold_sample,
  publication, sink_replacement, dedup_filter, checkpoint, redaction_key, alembic_version,
  batch_status, step_progress, replay_history, open_failure, pending_publication,
  pending_follow_up, sink_publication, state_progress
  TO ledger_writer;
-- It inserts rows. What it may update it may by column, and it deletes nothing: what goes, goes by
-- functions of the owner.
GRANT INSERT ON
  pipeline, declared_step, batch, one_plan, step_run, step_run_input, step_run_drop, step_run_loss,
  batch_source, claimed_file, last_sweep, ledger_delta, root_fail, lost_root, replay_root,
  failed_message, message_claim, failed_root, failed_payload, manual_quarantine, acceptance, accepted_root,
  hold_failure, hold_sample,
  publication,
  sink_replacement, dedup_filter, checkpoint
  TO ledger_writer;
GRANT UPDATE (
  message_timeout, max_batch_age, max_replays, hold_above, allow_failed,
  replay_limit, replay_backoff, replay_backoff_cap, auto_replay, target,
  redact, keep
) ON pipeline TO ledger_writer;
GRANT UPDATE (
  status, steps_version, held_for, held_reason, opened_at, settled_at, roots, failed_roots, released,
  first_attempt, followed_at, files_expired_at, files_removed_at
) ON batch TO ledger_writer;
GRANT UPDATE (
  state, lease_until, closed_at, failure, unread_run_ids, input_rows, output_rows, failed_rows,
  duplicate_rows, null_columns, delta_rows, delta_xor, emitted_edges, acked_edges, acks_proved, folder, files, root_files,
  files_removed_at, one_plan_id
) ON step_run TO ledger_writer;
GRANT UPDATE (accepted, rejected) ON one_plan TO ledger_writer;
GRANT UPDATE (
  claimed, claim_number, claim_start, claim_end, claim_records, committed_at, emit_run_id,
  first_root, roots, span, notified_at
) ON batch_source TO ledger_writer;
GRANT UPDATE (
  status, root_id, attempts, failed_replays, given_up, replay_batch_id, not_before,
  updated_at
) ON failed_message TO ledger_writer;
GRANT UPDATE (status, not_before, failed_replays, given_up) ON message_claim TO ledger_writer;
GRANT UPDATE (root_id, content, parsed, key) ON failed_payload TO ledger_writer;
GRANT UPDATE (key, content, parsed, source_file, source_row) ON hold_sample TO ledger_writer;
GRANT UPDATE (published_at, replaced_at) ON publication TO ledger_writer;
GRANT UPDATE (ready, folder, files, rows) ON pending_publication TO ledger_writer;
GRANT UPDATE (acked_at) ON checkpoint TO ledger_writer;
GRANT UPDATE (swept_at) ON last_sweep TO ledger_writer;
GRANT USAGE ON SEQUENCE attempt_number TO ledger_writer;
REVOKE EXECUTE ON FUNCTION
  reserve_roots(bigint, bigint), remove_deltas(bigint), forget_fails(bigint),
  release_files(bigint), remove_filters(bigint),
  forget_records(bigint[]), end_hold()
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
  reserve_roots(bigint, bigint), remove_deltas(bigint), forget_fails(bigint),
  release_files(bigint), remove_filters(bigint),
  forget_records(bigint[]), end_hold()
  TO ledger_writer;

-- The reader sees states, reasons and ids.
GRANT SELECT ON
  pipeline, declared_step, batch, batch_step, one_plan, step_run, step_run_input, step_run_file,
  step_run_drop, step_run_loss, batch_source, claimed_file, root_counter, last_sweep, ledger_delta,
  lost_root, replay_root,
  failed_message, message_claim, manual_quarantine, acceptance, accepted_root, hold_failure,
  publication,
  sink_replacement, checkpoint, alembic_version,
  batch_status, root_status, step_progress, pending_root, replay_history, step_drops, step_losses,
  open_failure, source_progress, source_file, source_position, pending_publication,
  pending_follow_up, sink_publication, state_progress, quarantine,
  hold_preview, accepted_record
  TO ledger_reader;
GRANT SELECT (batch_id, step_run_id, root_id, reason, shared, number) ON root_fail TO ledger_reader;
GRANT SELECT (
  root_id, message_id, batch_id, attempt, step, cause, reason, operation, place, producers,
  emitted_edges, acked_edges, wrong_at, residue, own_failure, failed_at, shared, missed_by
) ON failed_root TO ledger_reader;
GRANT SELECT (
  root_id, message_id, batch_id, pipeline, kind, interval_start, interval_end, source, step, cause,
  reason, operation, place, producers, emitted_edges, acked_edges, wrong_at, attempt, attempts,
  status, own_failure,
  residue, original_batch_id, failed_at
) ON failed_root_detail TO ledger_reader;
GRANT SELECT (root_id, message_id, batch_id, number) ON hold_sample TO ledger_reader;
GRANT SELECT (step_run_id, key, capacity, error_rate, entries) ON dedup_filter TO ledger_reader;

-- Raw text of records, and filters of their keys, are for a role of its own.
GRANT SELECT ON
  root_fail, failed_root, failed_payload, hold_sample, dedup_filter, failed_root_detail
  TO ledger_payload_reader;
