"""What a failed message m is by now, and why its last attempt r failed, as ``advice`` distinguishes
cases."""

# The last attempt's step s. Where no stage and no sink reported a failure, the counts of rows did.
CAUSE = """
    CASE WHEN r.step = m.source THEN 'unparsed'
         WHEN r.reason = 'did not commit in time' THEN 'late'
         WHEN r.reason = 'its unit had a record that was quarantined' THEN 'unit'
         WHEN r.detail ~ '^-?[0-9]+ rows? from .+, -?[0-9]+ acked(; |$)' THEN 'lost'
         WHEN EXISTS (SELECT FROM batch_step s WHERE s.batch_id = r.batch_id
                      AND s.name = r.step AND s.kind = 'sink') THEN 'refused'
         ELSE 'rejected' END
"""
STATE = """
    CASE WHEN m.status = 'quarantined' THEN
           CASE WHEN EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
                THEN 'accepted' ELSE 'quarantined' END
         WHEN m.status = 'failed' AND m.not_before = 'infinity' THEN 'kept_back'
         WHEN m.status = 'failed' AND m.not_before > now() THEN 'waiting'
         ELSE m.status::text END
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
