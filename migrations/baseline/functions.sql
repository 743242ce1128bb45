-- What roles may do beyond their grants, as functions of the owner, and what history refuses.

CREATE FUNCTION reserve_roots(count bigint, span bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
DECLARE first bigint;
BEGIN
  IF count IS NULL OR count <= 0 THEN
    RAISE EXCEPTION 'expected a positive number of roots, found %', count;
  END IF;
  IF span IS NULL OR span <= 0 OR span & (span - 1) <> 0 THEN
    RAISE EXCEPTION 'expected a power of two as the span of roots, found %', span;
  END IF;
  UPDATE root_counter SET next_root = (next_root + span - 1) / span * span + count
  RETURNING next_root - count INTO first;
  RETURN first;
END $$;
COMMENT ON FUNCTION reserve_roots(bigint, bigint) IS
  'Reserves so many root ids from a multiple of their span on; the first of them. The counter '
  'only goes up.';

CREATE FUNCTION remove_deltas(batch bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
  DELETE FROM ledger_delta d
  WHERE d.batch_id = batch
    AND EXISTS (SELECT FROM batch b WHERE b.batch_id = batch AND b.status NOT IN ('open', 'held'))
$$;
COMMENT ON FUNCTION remove_deltas(bigint) IS
  'Removes the deltas of a decided batch: no settlement needs them any more. Of no other batch.';

CREATE FUNCTION forget_fails(batch bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
  DELETE FROM root_fail f USING batch b
  WHERE f.batch_id = batch AND b.batch_id = f.batch_id AND b.status NOT IN ('open', 'held')
    AND NOT (b.guarantee = 'at_least_once' AND EXISTS (
      SELECT FROM step_run r JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.step
      WHERE r.step_run_id = f.step_run_id AND r.state = 'committed' AND s.kind = 'sink'));
  DELETE FROM lost_root l USING batch b
  WHERE l.batch_id = batch AND b.batch_id = l.batch_id AND b.status NOT IN ('open', 'held');
  UPDATE root_fail f SET reason = '***', detail = NULL
  FROM batch b, failed_payload p, replay_root r
  WHERE f.batch_id = batch AND b.batch_id = f.batch_id AND b.status NOT IN ('open', 'held')
    AND p.batch_id = b.family_id AND p.forgotten_at IS NOT NULL
    AND r.message_id = p.message_id AND r.batch_id = f.batch_id AND f.root_id = r.root_id
$$;
COMMENT ON FUNCTION forget_fails(bigint) IS
  'Removes the explicit fails and the lost roots of a decided batch: failed_root has them. Of no other batch. At '
  'least once those of its sinks stay, of forgotten records without why: they name the rows '
  'that a sink has left out.';

CREATE FUNCTION release_files(batch bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
  DELETE FROM claimed_file f USING batch b
  WHERE f.batch_id = batch AND b.batch_id = f.batch_id AND b.status = 'abandoned'
$$;
COMMENT ON FUNCTION release_files(bigint) IS
  'Removes the claims of files of an abandoned batch. Of no other batch.';

CREATE FUNCTION remove_filters(batch bigint) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
  WITH gone AS (
    DELETE FROM dedup_filter f USING step_run r, batch b
    WHERE r.step_run_id = f.step_run_id AND b.batch_id = r.batch_id
      AND b.batch_id = batch AND b.files_expired_at IS NOT NULL
    RETURNING 1
  )
  SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION remove_filters(bigint) IS
  'Removes the Bloom filters of a batch whose files have expired; how many. Of no other batch.';

CREATE FUNCTION forget_records(messages bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
DECLARE
  decided_ids bigint[] := ARRAY(
    SELECT m.message_id FROM failed_message m
    WHERE m.message_id = ANY (messages) AND m.status NOT IN ('failed', 'replaying'));
  attempts bigint[] := ARRAY(
    SELECT unnest(decided_ids)
    UNION SELECT r.root_id FROM failed_root r WHERE r.message_id = ANY (decided_ids)
    UNION SELECT r.root_id FROM replay_root r WHERE r.message_id = ANY (decided_ids));
  batches bigint[] := ARRAY(
    SELECT b.batch_id FROM batch b WHERE b.family_id IN (
      SELECT m.original_batch_id FROM failed_message m WHERE m.message_id = ANY (decided_ids)));
BEGIN
  UPDATE failed_root r
  SET reason = '***', detail = CASE WHEN r.message_id <> ALL (decided_ids) THEN r.detail END
  WHERE (r.message_id = ANY (decided_ids) OR r.batch_id = ANY (batches) AND r.shared)
    AND r.reason IS NOT NULL;
  UPDATE root_fail f
  SET reason = '***', detail = CASE WHEN f.root_id <> ALL (attempts) THEN f.detail END
  WHERE f.batch_id = ANY (batches) AND (f.root_id = ANY (attempts) OR f.shared)
    AND f.reason IS NOT NULL;
  UPDATE step_run SET failure = '***' WHERE batch_id = ANY (batches) AND failure IS NOT NULL;
  WITH dropped AS (
    DELETE FROM step_run_drop d USING step_run r
    WHERE r.step_run_id = d.step_run_id AND r.batch_id = ANY (batches)
      AND d.reason <> concat(d.operation || ' at ' || d.place || ': ', '***')
    RETURNING d.step_run_id, concat(d.operation || ' at ' || d.place || ': ', '***') AS reason,
      d.records, d.operation, d.place
  )
  INSERT INTO step_run_drop AS d (step_run_id, reason, records, operation, place)
  SELECT step_run_id, reason, sum(records), min(operation), min(place) FROM dropped GROUP BY 1, 2
  ON CONFLICT (step_run_id, reason) DO UPDATE SET records = d.records + excluded.records;
  UPDATE step_run_loss l SET reason = concat(l.operation || ' at ' || l.place || ': ', '***')
  FROM step_run r
  WHERE r.step_run_id = l.step_run_id AND r.batch_id = ANY (batches) AND l.operation IS NOT NULL;
  UPDATE batch SET held_reason = '***' WHERE batch_id = ANY (batches) AND held_reason IS NOT NULL;
  UPDATE batch SET selection = jsonb_set(selection, '{reason}', '"***"')
  WHERE batch_id = ANY (batches) AND selection ->> 'reason' IS NOT NULL;
  UPDATE hold_failure SET reason = '***' WHERE batch_id = ANY (batches);
  DELETE FROM hold_sample WHERE message_id = ANY (decided_ids);
  UPDATE acceptance SET reason = '***' WHERE batch_id = ANY (batches);
  UPDATE manual_quarantine q SET reason = '***' FROM failed_message m
  WHERE m.message_id = q.message_id AND m.original_batch_id = ANY (batches);
  INSERT INTO failed_payload (message_id, batch_id, root_id, content, parsed, forgotten_at)
  SELECT message_id, original_batch_id, message_id, '', false, now() FROM failed_message
  WHERE message_id = ANY (decided_ids)
  ON CONFLICT (message_id) DO UPDATE SET key = NULL, content = '', parsed = false,
    source_file = NULL, source_row = NULL,
    forgotten_at = coalesce(failed_payload.forgotten_at, now());
  RETURN cardinality(decided_ids);
END $$;
COMMENT ON FUNCTION forget_records(bigint[]) IS
  'Removes what failed records contain, and every text of their families that may quote it: *** '
  'stands for each. Returns how many. Only decided records: none that is failed or being '
  'replayed.';

CREATE FUNCTION end_hold() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = ackledger, pg_temp AS $$
BEGIN
  DELETE FROM hold_failure WHERE batch_id = NEW.batch_id;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION end_hold() IS
  'Removes what a batch on hold shows, with its sample, as soon as it is on hold no more.';

CREATE FUNCTION refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is history: % may not change it', TG_TABLE_NAME, current_user
    USING ERRCODE = 'insufficient_privilege';
END $$;
COMMENT ON FUNCTION refuse_rewriting() IS 'Refuses an update by the writer of what is decided.';

CREATE FUNCTION refuse_another_source() RETURNS trigger
LANGUAGE plpgsql SET search_path = ackledger, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM batch b WHERE b.batch_id = OLD.batch_id
             AND b.status IN ('settled', 'superseded')) THEN
    RAISE EXCEPTION '% is history: % may not change it', TG_TABLE_NAME, current_user
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION refuse_another_source() IS
  'Refuses an update by the writer of what a decided batch claimed and emitted.';

CREATE FUNCTION refuse_another_step() RETURNS trigger
LANGUAGE plpgsql SET search_path = ackledger, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM batch b WHERE b.pipeline_id = NEW.pipeline_id
             AND b.steps_version = NEW.version) THEN
    RAISE EXCEPTION '% is history: % may not change it', TG_TABLE_NAME, current_user
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION refuse_another_step() IS
  'Refuses a step that the writer adds to those that batches have.';

CREATE FUNCTION failure_reason(cause failure_cause, step text, reason text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT coalesce(reason, CASE cause
    WHEN 'repeated' THEN 'more than one row for an input'
    WHEN 'unacked' THEN 'not acked by ' || step
    WHEN 'lost' THEN 'lost'
    WHEN 'doubled' THEN 'acked too often'
    WHEN 'swapped' THEN 'one lost and another acked too often'
    WHEN 'late' THEN 'did not commit in time' END)
$$;
COMMENT ON FUNCTION failure_reason(failure_cause, text, text) IS
  'Why a record failed, in words: the columns cause, step and reason of failed_root.';

CREATE FUNCTION is_outdated(number bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = ackledger, pg_temp AS $$
  SELECT EXISTS (
    SELECT FROM batch b JOIN batch l USING (family_id)
    WHERE b.batch_id = number AND l.status = 'settled'
      AND (l.settled_at, l.batch_id) > (b.settled_at, b.batch_id)
      AND EXISTS (SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.merges))
$$;
COMMENT ON FUNCTION is_outdated(bigint) IS
  'Whether a later replay of the whole batch has taken the place of a settled batch.';

CREATE FUNCTION root_state(root bigint)
RETURNS TABLE (root_id bigint, message_id bigint, batch_id bigint, pipeline text, source text,
               status text, step text, reason text)
LANGUAGE sql STABLE SET search_path = ackledger, pg_temp AS $$
  SELECT root, coalesce(m.message_id, rr.message_id, root), b.batch_id, p.name, s.source,
         CASE WHEN b.status NOT IN ('settled', 'superseded') THEN 'pending'
              WHEN f.root_id IS NULL AND (b.kind = 'replay' OR m.message_id IS NULL) THEN 'acked'
              ELSE m.status::text END,
         f.step, failure_reason(f.cause, f.step, f.reason)
  FROM (
    SELECT * FROM batch_source WHERE first_root <= root AND roots > 0
    ORDER BY first_root DESC LIMIT 1  -- ranges do not overlap
  ) s
  JOIN batch b ON b.batch_id = s.batch_id
  JOIN pipeline p ON p.pipeline_id = b.pipeline_id
  LEFT JOIN failed_root f ON f.root_id = root
  LEFT JOIN failed_message m
    ON m.message_id = coalesce(f.message_id, CASE WHEN b.kind = 'original' THEN root END)
  LEFT JOIN replay_root rr ON rr.root_id = root AND rr.step_run_id = s.emit_run_id
  WHERE root < s.first_root + s.roots
$$;
COMMENT ON FUNCTION root_state(bigint) IS
  'State of one root by its id, without generating all others; no row if it was never emitted.';

-- What the writer may update of a row ends with its state: a decided batch keeps its verdict, a run
-- that ended its record, a delivery its files and times. The writer is everybody who is not the
-- owner: a login that is a member of ledger_writer need not set its role.
CREATE TRIGGER batch_history BEFORE UPDATE ON batch FOR EACH ROW WHEN (
  OLD.status IN ('settled', 'superseded')
  AND (NEW.status NOT IN (OLD.status, 'superseded')
       OR (NEW.steps_version, NEW.opened_at, NEW.settled_at, NEW.roots, NEW.failed_roots,
           NEW.held_for, NEW.held_reason, NEW.released)
          IS DISTINCT FROM
          (OLD.steps_version, OLD.opened_at, OLD.settled_at, OLD.roots, OLD.failed_roots,
           OLD.held_for, OLD.held_reason, OLD.released))
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

CREATE TRIGGER batch_end_hold AFTER UPDATE ON batch FOR EACH ROW WHEN (
  OLD.status = 'held' AND NEW.status <> 'held'
) EXECUTE FUNCTION end_hold();

-- A folder is noted once: retention removes what it names.
CREATE TRIGGER step_run_folder BEFORE UPDATE ON step_run FOR EACH ROW WHEN (
  OLD.folder IS NOT NULL AND NEW.folder IS DISTINCT FROM OLD.folder
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

CREATE TRIGGER step_run_history BEFORE UPDATE ON step_run FOR EACH ROW WHEN (
  OLD.state <> 'running'
  AND (NEW.state <> OLD.state
       AND (OLD.state, NEW.state) <> ('committed', 'superseded')
       OR (NEW.lease_until, NEW.closed_at, NEW.failure, NEW.unread_run_ids, NEW.input_rows, NEW.output_rows,
           NEW.failed_rows, NEW.duplicate_rows, NEW.null_columns, NEW.delta_rows, NEW.delta_xor, NEW.emitted_edges,
           NEW.acked_edges, NEW.acks_proved, NEW.files, NEW.one_plan_id)
          IS DISTINCT FROM
          (OLD.lease_until, OLD.closed_at, OLD.failure, OLD.unread_run_ids, OLD.input_rows, OLD.output_rows,
           OLD.failed_rows, OLD.duplicate_rows, OLD.null_columns, OLD.delta_rows, OLD.delta_xor, OLD.emitted_edges,
           OLD.acked_edges, OLD.acks_proved, OLD.files, OLD.one_plan_id))
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

CREATE TRIGGER publication_history BEFORE UPDATE ON publication FOR EACH ROW WHEN (
  (OLD.published_at IS NOT NULL
   AND (NEW.published_at, NEW.ready, NEW.folder, NEW.files, NEW.rows)
       IS DISTINCT FROM (OLD.published_at, OLD.ready, OLD.folder, OLD.files, OLD.rows)
   OR OLD.replaced_at IS NOT NULL AND NEW.replaced_at IS DISTINCT FROM OLD.replaced_at)
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

CREATE TRIGGER checkpoint_history BEFORE UPDATE ON checkpoint FOR EACH ROW WHEN (
  OLD.acked_at IS NOT NULL AND NEW.acked_at IS DISTINCT FROM OLD.acked_at
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

-- After a row is changed: before, each row would be locked by itself, and these change by the
-- million.
CREATE TRIGGER failed_message_history AFTER UPDATE ON failed_message FOR EACH ROW WHEN (
  (NEW.status <> OLD.status AND (OLD.status, NEW.status) NOT IN (
     ('failed', 'replaying'), ('failed', 'quarantined'), ('failed', 'superseded'),
     ('quarantined', 'replaying'),
     ('replaying', 'failed'), ('replaying', 'quarantined'), ('replaying', 'recovered'),
     ('recovered', 'failed'), ('recovered', 'quarantined'))
   OR (NEW.attempts <> OLD.attempts OR NEW.root_id <> OLD.root_id)
      AND NOT (NEW.attempts = OLD.attempts + 1
               AND OLD.status IN ('replaying', 'recovered')
               AND NEW.status IN ('failed', 'quarantined'))
   OR NEW.replay_batch_id IS NULL AND NEW.status = 'replaying'
   OR NEW.status <> OLD.status AND NEW.status = 'recovered'
      AND NEW.replay_batch_id IS DISTINCT FROM OLD.replay_batch_id)
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_rewriting();

-- What a decided batch emitted is what its verdict counts, and a later batch begins where its range
-- ends.
CREATE TRIGGER batch_source_history BEFORE UPDATE ON batch_source FOR EACH ROW WHEN (
  (NEW.emit_run_id, NEW.first_root, NEW.roots, NEW.claim_number, NEW.claim_start, NEW.claim_end,
   NEW.claim_records)
  IS DISTINCT FROM
  (OLD.emit_run_id, OLD.first_root, OLD.roots, OLD.claim_number, OLD.claim_start, OLD.claim_end,
   OLD.claim_records)
  AND NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_another_source();

-- A batch has the steps that it was opened with.
CREATE TRIGGER declared_step_history BEFORE INSERT ON declared_step FOR EACH ROW WHEN (
  NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')
) EXECUTE FUNCTION refuse_another_step();
