"""SQL for the present state of a failed message m, and for why its last attempt r failed."""

# In words.
REASON = "failure_reason(r.cause, r.step, r.reason)"
STATE = """
    CASE WHEN m.status = 'quarantined' THEN
           CASE WHEN EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
                THEN 'accepted' ELSE 'quarantined' END
         WHEN m.status = 'failed' AND m.not_before > now() THEN 'waiting'
         WHEN m.status = 'failed' AND m.given_up THEN 'given_up'
         ELSE m.status::text END
"""
# Its source s, and what any step does, in its original b.
STEPS = """
    JOIN batch_step s ON s.batch_id = b.batch_id AND s.name = m.source
    CROSS JOIN LATERAL (
      SELECT bool_or(merges) AS merges, bool_or(incremental) AS incremental
      FROM batch_step t WHERE t.batch_id = b.batch_id) AS any_step
"""
# Whether the step where it failed joins.
JOINS = """
    EXISTS (SELECT FROM batch_step j WHERE j.batch_id = b.batch_id AND j.name = r.step
            AND j.declaration ->> 'joins' = 'true')
"""
# Whether its source finds it by its key: f is its content, if that is kept.
REREADS = """
    (s.rereads AND NOT any_step.merges AND CASE
      WHEN f.message_id IS NULL THEN true WHEN f.key IS NULL THEN false
      ELSE NOT jsonb_path_exists(f.key, '$.* ? (@ == null)') END)
"""
# Whether it is of a batch: it began in it, failed in it, or is being replayed by it, wherever else
# it has failed since.
OF_BATCH = """
    (m.original_batch_id = cast(:batch_id AS bigint)
     OR m.replay_batch_id = cast(:batch_id AS bigint) AND m.status = 'replaying'
     OR EXISTS (SELECT FROM failed_root q
                WHERE q.message_id = m.message_id AND q.batch_id = cast(:batch_id AS bigint)))
    AND m.original_batch_id = (SELECT o.family_id FROM batch o WHERE o.batch_id = :batch_id)
"""
# Who has given it up.
ACCEPTED_BY = """
    CASE WHEN m.status = 'quarantined' THEN (
      SELECT c.accepted_by FROM accepted_root a JOIN acceptance c USING (acceptance_id)
      WHERE a.root_id = m.root_id) END
"""
