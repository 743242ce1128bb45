-- Everything that the baseline made, but for the roles.
DROP VIEW
  batch_step, step_run_file,
  batch_status, root_status, step_progress, pending_root, replay_history, step_drops, step_losses,
  open_failure, source_progress, source_file, source_position, pending_publication,
  pending_follow_up, sink_publication, state_progress, failed_root_detail,
  quarantine, hold_preview, accepted_record;
DROP TABLE
  pipeline, declared_step, batch, one_plan, step_run, step_run_input, step_run_drop, step_run_loss,
  batch_source, claimed_file, root_counter, last_sweep, ledger_delta, root_fail, lost_root,
  replay_root,
  failed_message, message_claim, failed_root, failed_payload, redaction_key, manual_quarantine, acceptance, accepted_root,
  hold_failure, hold_sample,
  publication,
  sink_replacement, dedup_filter, checkpoint;
DROP FUNCTION
  reserve_roots(bigint, bigint), remove_deltas(bigint), forget_fails(bigint),
  release_files(bigint), remove_filters(bigint),
  forget_records(bigint[]), root_state(bigint), is_outdated(bigint), failure_reason(failure_cause, text, text),
  refuse_rewriting(), refuse_another_source(),
  refuse_another_step(), end_hold();
DROP SEQUENCE attempt_number;
DROP TYPE batch_state, batch_kind, run_state, message_status, failure_cause, hold_cause,
  guarantee, publish_policy;
