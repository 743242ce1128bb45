-- Views: what users query. docs/sql.md has their comments, and a test keeps the two equal.

CREATE VIEW step_run_file AS
SELECT r.step_run_id, f.first_position, coalesce(r.folder || '/' || f.name, f.path) AS path,
       f.bytes, f.rows
FROM step_run r
CROSS JOIN LATERAL (
  SELECT name, path, bytes, rows,
         sum(rows) OVER (ORDER BY number)::bigint - rows AS first_position
  FROM ROWS FROM (
    jsonb_to_recordset(r.files) AS (name text, path text, bytes bigint, rows bigint)
  ) WITH ORDINALITY AS file (name, path, bytes, rows, number)
) f;
COMMENT ON VIEW step_run_file IS 'Manifest of each committed output.';
COMMENT ON COLUMN step_run_file.step_run_id IS 'Run that wrote the file.';
COMMENT ON COLUMN step_run_file.first_position IS
  'Position of the file''s first row; positions are dense over the run.';
COMMENT ON COLUMN step_run_file.path IS 'Path or URL.';
COMMENT ON COLUMN step_run_file.bytes IS 'Size in bytes.';
COMMENT ON COLUMN step_run_file.rows IS 'Rows by the Parquet footer.';

CREATE VIEW batch_status AS
SELECT b.batch_id, p.name AS pipeline, b.kind, b.original_batch_id, b.status,
       b.interval_start, b.interval_end, t.total,
       CASE WHEN b.status IN ('settled', 'superseded')
            THEN t.total - f.failed - f.quarantined - f.superseded ELSE 0 END AS acked,
       f.recovered, f.failed, f.replaying, f.quarantined,
       CASE WHEN b.status IN ('settled', 'superseded') THEN 0 ELSE t.total END AS pending,
       b.opened_at, b.settled_at, b.dag_id, b.run_id, b.held_reason, f.superseded,
       b.replaces_batch_id, f.accepted, b.files_expired_at
FROM batch b
JOIN pipeline p USING (pipeline_id)
CROSS JOIN LATERAL (
  SELECT coalesce(b.roots, sum(s.roots), 0)::bigint AS total
  FROM batch_source s WHERE s.batch_id = b.batch_id
) t
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
         count(*) FILTER (WHERE m.status = 'replaying') AS replaying,
         count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
         count(*) FILTER (WHERE m.status = 'recovered') AS recovered,
         count(*) FILTER (WHERE m.status = 'superseded') AS superseded,
         count(a.root_id) FILTER (WHERE m.status = 'quarantined') AS accepted
  FROM (
    SELECT o.status, o.root_id FROM failed_message o
    WHERE b.kind = 'original' AND o.original_batch_id = b.batch_id
    UNION ALL
    SELECT o.status, o.root_id FROM failed_root r JOIN failed_message o USING (message_id)
    WHERE b.kind = 'replay' AND r.batch_id = b.batch_id
  ) m
  LEFT JOIN accepted_root a ON a.root_id = m.root_id
) f;
COMMENT ON VIEW batch_status IS
  'Every batch with its counts. The states are disjoint by message: total = acked + failed + '
  'quarantined + pending, and superseded once another batch replaced this one.';
COMMENT ON COLUMN batch_status.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN batch_status.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN batch_status.kind IS 'original or replay.';
COMMENT ON COLUMN batch_status.original_batch_id IS 'The original that a replay belongs to.';
COMMENT ON COLUMN batch_status.status IS 'open, settled, abandoned, held or superseded.';
COMMENT ON COLUMN batch_status.interval_start IS 'Start of its interval, inclusive.';
COMMENT ON COLUMN batch_status.interval_end IS 'End of its interval, exclusive.';
COMMENT ON COLUMN batch_status.total IS 'Records that its sources emitted.';
COMMENT ON COLUMN batch_status.acked IS
  'Records processed to every sink, those recovered by a replay included.';
COMMENT ON COLUMN batch_status.recovered IS 'Of the acked: failed once, acked in a later replay.';
COMMENT ON COLUMN batch_status.failed IS
  'Records failed and not recovered, those in an open replay included.';
COMMENT ON COLUMN batch_status.replaying IS 'Of the failed: claimed by an open replay.';
COMMENT ON COLUMN batch_status.quarantined IS 'Records quarantined, with their reason.';
COMMENT ON COLUMN batch_status.pending IS 'Records not decided yet.';
COMMENT ON COLUMN batch_status.opened_at IS 'When it was opened.';
COMMENT ON COLUMN batch_status.settled_at IS 'When it was decided.';
COMMENT ON COLUMN batch_status.dag_id IS 'Airflow''s DAG; empty without Airflow.';
COMMENT ON COLUMN batch_status.run_id IS 'Airflow''s run id, or the one given on the command line.';
COMMENT ON COLUMN batch_status.held_reason IS 'Why a check stopped its settlement.';
COMMENT ON COLUMN batch_status.superseded IS
  'Records that had failed when another batch replaced this one.';
COMMENT ON COLUMN batch_status.replaces_batch_id IS 'The original that it was opened to replace.';
COMMENT ON COLUMN batch_status.accepted IS 'Of the quarantined: accepted by a person.';
COMMENT ON COLUMN batch_status.files_expired_at IS
  'When retention decided that its files go: nothing of it is replayed since; null: they are kept.';

CREATE VIEW root_status AS
SELECT s.first_root + n.number AS root_id,
       coalesce(m.message_id, rr.message_id, s.first_root + n.number) AS message_id,
       b.batch_id, p.name AS pipeline, s.source,
       CASE WHEN b.status NOT IN ('settled', 'superseded') THEN 'pending'
            WHEN f.root_id IS NULL AND (b.kind = 'replay' OR m.message_id IS NULL) THEN 'acked'
            ELSE m.status::text END AS status,
       f.step, failure_reason(f.cause, f.step, f.reason) AS reason
FROM batch_source s
JOIN batch b USING (batch_id)
JOIN pipeline p ON p.pipeline_id = b.pipeline_id
CROSS JOIN LATERAL generate_series(0, s.roots - 1) AS n (number)
LEFT JOIN failed_root f ON f.root_id = s.first_root + n.number
LEFT JOIN failed_message m
  ON m.message_id = coalesce(
       f.message_id, CASE WHEN b.kind = 'original' THEN s.first_root + n.number END)
LEFT JOIN replay_root rr ON rr.root_id = s.first_root + n.number AND rr.step_run_id = s.emit_run_id
WHERE s.emit_run_id IS NOT NULL;
COMMENT ON VIEW root_status IS
  'Every root of every batch; acked ones are generated from the batch''s range. For one root use '
  'root_state(root).';
COMMENT ON COLUMN root_status.root_id IS 'Root: one attempt of one source record.';
COMMENT ON COLUMN root_status.message_id IS 'The record across its attempts: root id of the first.';
COMMENT ON COLUMN root_status.batch_id IS 'Batch of the attempt.';
COMMENT ON COLUMN root_status.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN root_status.source IS 'Source that emitted it.';
COMMENT ON COLUMN root_status.status IS
  'pending, acked, failed, replaying, recovered, quarantined or superseded.';
COMMENT ON COLUMN root_status.step IS 'Where it broke, if it failed.';
COMMENT ON COLUMN root_status.reason IS 'Why, if it failed.';

CREATE VIEW step_progress AS
SELECT s.batch_id, p.name AS pipeline, s.number, r.step, s.kind, r.state, r.step_run_id,
       r.try_number, r.input_rows, r.output_rows, r.failed_rows, r.duplicate_rows,
       r.null_columns, extract(epoch FROM coalesce(r.closed_at, now()) - r.opened_at)::float AS seconds,
       r.lease_until, r.failure, o.steps AS one_plan
FROM batch_step s
CROSS JOIN LATERAL (
  SELECT * FROM step_run n WHERE n.batch_id = s.batch_id AND n.step = s.name
  ORDER BY n.step_run_id DESC LIMIT 1
) r
JOIN batch b ON b.batch_id = s.batch_id
JOIN pipeline p USING (pipeline_id)
LEFT JOIN one_plan o USING (one_plan_id);
COMMENT ON VIEW step_progress IS 'The newest run of every step of every batch.';
COMMENT ON COLUMN step_progress.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN step_progress.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN step_progress.number IS 'Place in the pipeline''s order, from 1.';
COMMENT ON COLUMN step_progress.step IS 'Step by name.';
COMMENT ON COLUMN step_progress.kind IS
  'source, stage, sink, combine or stateful.';
COMMENT ON COLUMN step_progress.state IS 'running, committed, failed, fenced or superseded.';
COMMENT ON COLUMN step_progress.step_run_id IS 'Number of the run.';
COMMENT ON COLUMN step_progress.try_number IS 'Airflow''s try number.';
COMMENT ON COLUMN step_progress.input_rows IS 'Rows read.';
COMMENT ON COLUMN step_progress.output_rows IS 'Rows written and passed on.';
COMMENT ON COLUMN step_progress.failed_rows IS 'Rows failed explicitly, or not parsed.';
COMMENT ON COLUMN step_progress.duplicate_rows IS 'Rows that a sink dropped as already delivered.';
COMMENT ON COLUMN step_progress.null_columns IS
  'Columns of a source that no record has, and that are null in all of them.';
COMMENT ON COLUMN step_progress.seconds IS 'Seconds that it took, or takes so far.';
COMMENT ON COLUMN step_progress.lease_until IS 'Past this a running run counts as dead.';
COMMENT ON COLUMN step_progress.failure IS 'Why it failed.';
COMMENT ON COLUMN step_progress.one_plan IS
  'Steps with which it ran as one plan, of which only the last wrote its rows; null: it ran alone.';

CREATE VIEW pending_root AS
SELECT p.batch_id, p.root_id, p.ack_value, p.open_edges,
       coalesce((
         SELECT least(s.span, s.first_root + s.roots - p.root_id) FROM batch_source s
         WHERE s.batch_id = p.batch_id
           AND p.root_id >= s.first_root AND p.root_id < s.first_root + s.roots
       ), 1) AS roots
FROM (
  SELECT d.batch_id, d.root_id, bit_xor(d.delta) AS ack_value,
         sum(d.emitted_edges) - sum(d.acked_edges) AS open_edges
  FROM ledger_delta d
  JOIN batch b ON b.batch_id = d.batch_id AND b.status IN ('open', 'held')
  JOIN step_run r ON r.step_run_id = d.step_run_id AND r.state = 'committed'
  GROUP BY d.batch_id, d.root_id
  HAVING bit_xor(d.delta) <> 0 OR sum(d.emitted_edges) <> sum(d.acked_edges)
) p;
COMMENT ON VIEW pending_root IS
  'Roots of open batches whose ack value so far is not 0: not processed yet. Where roots share rows: '
  'spans that are not 0.';
COMMENT ON COLUMN pending_root.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN pending_root.root_id IS 'Root; of a span the first one.';
COMMENT ON COLUMN pending_root.ack_value IS 'XOR of all deltas committed so far.';
COMMENT ON COLUMN pending_root.open_edges IS 'Edges emitted and not acked.';
COMMENT ON COLUMN pending_root.roots IS 'How many roots the row is of: 1, or those of a span.';

CREATE VIEW replay_history AS
SELECT m.message_id, d.attempt, d.batch_id, d.root_id, d.outcome, d.step, d.reason, d.decided_at
FROM failed_message m
CROSS JOIN LATERAL (
  SELECT (row_number() OVER (ORDER BY root_id))::integer AS attempt, t.*
  FROM (
    SELECT f.batch_id, f.root_id, 'failed' AS outcome, f.step,
           failure_reason(f.cause, f.step, f.reason) AS reason, f.failed_at AS decided_at
    FROM failed_root f WHERE f.message_id = m.message_id
    UNION ALL
    SELECT b.batch_id, m.message_id, 'acked', NULL, NULL, b.settled_at
    FROM batch b
    WHERE b.batch_id = m.original_batch_id
      AND NOT EXISTS (SELECT FROM failed_root f WHERE f.root_id = m.message_id)
    UNION ALL
    SELECT b.batch_id, r.root_id, 'acked', NULL, NULL, b.settled_at
    FROM replay_root r
    JOIN batch_source s ON s.batch_id = r.batch_id AND s.emit_run_id = r.step_run_id
    JOIN batch b ON b.batch_id = r.batch_id AND b.status IN ('settled', 'superseded')
    WHERE r.message_id = m.message_id
      AND NOT EXISTS (SELECT FROM failed_root f WHERE f.root_id = r.root_id)
  ) AS t
) AS d;
COMMENT ON VIEW replay_history IS
  'Every decided attempt of every record that failed at least once.';
COMMENT ON COLUMN replay_history.message_id IS 'The record across its attempts.';
COMMENT ON COLUMN replay_history.attempt IS 'Number of the attempt, from 1.';
COMMENT ON COLUMN replay_history.batch_id IS 'Batch of the attempt.';
COMMENT ON COLUMN replay_history.root_id IS 'Root of the attempt.';
COMMENT ON COLUMN replay_history.outcome IS 'failed or acked.';
COMMENT ON COLUMN replay_history.step IS 'Where it broke.';
COMMENT ON COLUMN replay_history.reason IS 'Why: also the reason of the replay that followed.';
COMMENT ON COLUMN replay_history.decided_at IS 'When that batch was settled.';

CREATE VIEW step_drops AS
SELECT r.batch_id, p.name AS pipeline, r.step, d.reason, d.records, d.operation, d.place
FROM step_run_drop d
JOIN step_run r ON r.step_run_id = d.step_run_id AND r.state = 'committed'
JOIN batch b ON b.batch_id = r.batch_id
JOIN pipeline p USING (pipeline_id);
COMMENT ON VIEW step_drops IS
  'Records that a stage dropped on purpose: acked without an output, by reason.';
COMMENT ON COLUMN step_drops.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN step_drops.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN step_drops.step IS 'Stage that dropped them.';
COMMENT ON COLUMN step_drops.reason IS
  'Reason code given by the stage; ''no output'' for what an on_read stage read and did not emit; '
  'operation, line and reason of what an operation dropped, such as a filter.';
COMMENT ON COLUMN step_drops.records IS 'Rows of the stage''s input that were dropped.';
COMMENT ON COLUMN step_drops.operation IS 'Operation that dropped them; null: the stage said so.';
COMMENT ON COLUMN step_drops.place IS 'Its line, as file:line.';

CREATE VIEW step_losses AS
SELECT r.batch_id, p.name AS pipeline, r.step, l.operation, l.place, l.reason, l.records
FROM step_run_loss l
JOIN step_run r ON r.step_run_id = l.step_run_id AND r.state = 'committed'
JOIN batch b ON b.batch_id = r.batch_id
JOIN pipeline p USING (pipeline_id);
COMMENT ON VIEW step_losses IS 'Records that a stage lost, by the operation that lost them.';
COMMENT ON COLUMN step_losses.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN step_losses.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN step_losses.step IS 'Stage that lost them.';
COMMENT ON COLUMN step_losses.operation IS 'Operation that lost them; null: not known.';
COMMENT ON COLUMN step_losses.place IS 'Its line, as file:line.';
COMMENT ON COLUMN step_losses.reason IS 'Operation, line and reason in words.';
COMMENT ON COLUMN step_losses.records IS 'Rows of the stage''s input that were lost.';

CREATE VIEW open_failure AS
SELECT message_id, original_batch_id, source
FROM failed_message
WHERE status IN ('failed', 'replaying');
COMMENT ON VIEW open_failure IS
  'Records that are failed or being replayed: neither acked nor quarantined yet.';
COMMENT ON COLUMN open_failure.message_id IS 'The record across its attempts.';
COMMENT ON COLUMN open_failure.original_batch_id IS 'Batch of its first attempt.';
COMMENT ON COLUMN open_failure.source IS 'Source that it came from.';

CREATE VIEW source_progress AS
SELECT s.batch_id, s.source,
       b.status IN ('settled', 'superseded')
       AND (SELECT true FROM open_failure m
            WHERE m.original_batch_id = b.batch_id AND m.source = s.source LIMIT 1) IS NULL
         AS finished
FROM batch_source s JOIN batch b USING (batch_id);
COMMENT ON VIEW source_progress IS 'Whether what a batch claimed of a source is processed.';
COMMENT ON COLUMN source_progress.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN source_progress.source IS 'Source by name.';
COMMENT ON COLUMN source_progress.finished IS
  'Whether every record that it claimed is acked or quarantined.';

CREATE VIEW source_file AS
SELECT p.name AS pipeline, f.source, f.path, f.bytes, f.modified_at, f.batch_id, s.finished
FROM claimed_file f
JOIN source_progress s ON s.batch_id = f.batch_id AND s.source = f.source
JOIN pipeline p ON p.pipeline_id = f.pipeline_id;
COMMENT ON VIEW source_file IS
  'Files that incremental sources have claimed, by the batch that reads them.';
COMMENT ON COLUMN source_file.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN source_file.source IS 'Source by name.';
COMMENT ON COLUMN source_file.path IS 'Path or URL.';
COMMENT ON COLUMN source_file.bytes IS 'Size in bytes when it was claimed.';
COMMENT ON COLUMN source_file.modified_at IS 'When it was last modified then.';
COMMENT ON COLUMN source_file.batch_id IS 'Batch that reads it.';
COMMENT ON COLUMN source_file.finished IS
  'Whether every record of that batch''s source is acked or quarantined.';

CREATE VIEW source_position AS
WITH state AS (
  SELECT s.pipeline_id, s.source, s.claimed, s.interval_start, s.interval_end, s.claim_number,
         s.claim_end, g.finished
  FROM batch_source s JOIN source_progress g USING (batch_id, source)
), walked AS (
  SELECT pipeline_id, source, claim_number AS place, finished AS follows,
         regexp_replace(claim_end #>> '{}', '^(int|decimal|date|datetime|str):', '') AS position
  FROM state WHERE claim_number IS NOT NULL
  UNION ALL
  SELECT pipeline_id, source, row_number() OVER along,
         finished AND coalesce(interval_start = lag(interval_end) OVER along, true),
         to_char(interval_end AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')
  FROM state WHERE claimed
  WINDOW along AS (PARTITION BY pipeline_id, source ORDER BY interval_start, interval_end)
), reached AS (
  SELECT *, bool_and(follows) OVER (PARTITION BY pipeline_id, source ORDER BY place) AS unbroken
  FROM walked
)
SELECT DISTINCT ON (p.name, r.source) p.name AS pipeline, r.source, r.position
FROM reached r JOIN pipeline p USING (pipeline_id)
WHERE r.unbroken ORDER BY p.name, r.source, r.place DESC;
COMMENT ON VIEW source_position IS
  'How far each source is processed without a gap, from its first claim on: everything up to the '
  'position is acked or quarantined. For outsiders; reading never starts there.';
COMMENT ON COLUMN source_position.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN source_position.source IS 'Source by name.';
COMMENT ON COLUMN source_position.position IS
  'As text: a table''s cursor value, inclusive; an offset of a source of your own, without int: or '
  'another of a cursor''s kinds before it; or the end of an interval, exclusive (UTC).';

CREATE VIEW pending_publication AS
SELECT batch_id, sink, step_run_id, decided_at, ready, folder, files, rows
FROM publication x
WHERE published_at IS NULL AND replaced_at IS NULL
  AND EXISTS (SELECT FROM step_run r WHERE r.step_run_id = x.step_run_id AND r.state = 'committed');
COMMENT ON VIEW pending_publication IS
  'What is decided, and neither published nor superseded: the sinks are yet to publish it.';
COMMENT ON COLUMN pending_publication.batch_id IS 'Batch whose rows are to be published.';
COMMENT ON COLUMN pending_publication.sink IS 'Sink by name.';
COMMENT ON COLUMN pending_publication.step_run_id IS 'The sink''s run that staged them.';
COMMENT ON COLUMN pending_publication.decided_at IS 'When it was decided.';
COMMENT ON COLUMN pending_publication.ready IS
  'Whether the files hold just what is to be published: nothing failed, or it is left out.';
COMMENT ON COLUMN pending_publication.folder IS
  'Folder of the files without what is withheld; null: as they were staged.';
COMMENT ON COLUMN pending_publication.files IS
  'Those files: path, bytes, rows, first_position; null: as they were staged.';
COMMENT ON COLUMN pending_publication.rows IS 'Rows to be published; null until it is ready.';

CREATE VIEW state_progress AS
SELECT c.batch_id, p.name AS pipeline, c.step, 'committed' AS state,
       NULL::bigint AS waits_for_batch_id, NULL::text AS waits_because, c.step_run_id, c.snapshot,
       c.committed_at, c.acked_at
FROM checkpoint c JOIN pipeline p USING (pipeline_id)
UNION ALL
SELECT h.batch_id, h.pipeline, h.step,
       CASE WHEN h.batch_id = h.head AND o.obstacle IS NULL THEN 'due' ELSE 'waiting' END,
       CASE WHEN h.batch_id <> h.head OR o.obstacle IS NOT NULL THEN o.batch_id END,
       CASE WHEN h.batch_id <> h.head AND o.obstacle IS NULL THEN 'state_due'
            ELSE o.obstacle END,
       NULL, NULL, NULL, NULL
FROM (
  SELECT b.batch_id, p.name AS pipeline, s.name AS step,
         first_value(b.batch_id) OVER (
           PARTITION BY p.name, s.name
           ORDER BY CASE WHEN b.publish = 'complete' THEN b.family_id ELSE b.batch_id END, b.batch_id
         ) AS head
  FROM batch b
  JOIN pipeline p USING (pipeline_id)
  JOIN batch_step s ON s.batch_id = b.batch_id AND s.kind = 'stateful'
  WHERE b.followed_at IS NULL AND b.status IN ('open', 'held', 'settled')
    AND NOT (b.status = 'settled' AND EXISTS (
      SELECT FROM batch_step i
      WHERE i.batch_id = b.batch_id AND s.declaration -> 'reads' ? i.name
        AND NOT EXISTS (SELECT FROM step_run r WHERE r.batch_id = b.batch_id AND r.step = i.name
                        AND r.state = 'committed')))
    AND NOT is_outdated(b.batch_id)
    AND NOT EXISTS (
      SELECT FROM checkpoint c WHERE c.pipeline_id = b.pipeline_id AND c.batch_id = b.batch_id
                                 AND c.step = s.name)
) h CROSS JOIN LATERAL (
  SELECT b.batch_id,
         CASE WHEN b.status <> 'settled' THEN 'undecided'
              WHEN EXISTS (
                SELECT FROM batch r
                WHERE r.status IN ('open', 'held') AND r.replaces_batch_id = b.family_id)
                THEN 'being_replaced'
              WHEN b.publish = 'complete' AND EXISTS (
                SELECT FROM open_failure m WHERE m.original_batch_id = b.family_id)
                THEN 'records_failed'
         END AS obstacle
  FROM batch b WHERE b.batch_id = h.head
) o;
COMMENT ON VIEW state_progress IS
  'The states over batches: which are committed, which is due, and what the others wait for.';
COMMENT ON COLUMN state_progress.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN state_progress.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN state_progress.step IS 'Stateful stage by name.';
COMMENT ON COLUMN state_progress.state IS
  'committed; due: to be done next; waiting: for an earlier batch, or for its own settlement.';
COMMENT ON COLUMN state_progress.waits_for_batch_id IS
  'The batch that holds it up, maybe itself; null if nothing does.';
COMMENT ON COLUMN state_progress.waits_because IS
  'What that batch lacks: undecided; being_replaced; records_failed (publish="complete"); '
  'state_due.';
COMMENT ON COLUMN state_progress.step_run_id IS
  'The run that made the state; the greatest of a stage made the current one.';
COMMENT ON COLUMN state_progress.snapshot IS
  'What the stage''s commit returned; null for a function, whose state is the files of the run.';
COMMENT ON COLUMN state_progress.committed_at IS 'When the state was committed; null: it is not.';
COMMENT ON COLUMN state_progress.acked_at IS
  'When the stage was notified that the batch is committed as a whole; null: it was not.';

-- A publication may be pending of a batch that is not decided. The rest is looked up batch by batch,
-- without those that a sweep noted as followed.
CREATE VIEW pending_follow_up AS
SELECT b.batch_id, b.family_id, p.name AS pipeline, b.dag_id, 'publish' AS follow_up,
       x.sink AS step,
       CASE WHEN b.status = 'settled' THEN greatest(x.decided_at, b.settled_at) END AS since
FROM pending_publication x
JOIN batch b USING (batch_id)
JOIN pipeline p USING (pipeline_id)
UNION ALL
SELECT b.batch_id, b.family_id, p.name, b.dag_id, f.follow_up, f.step, f.since
FROM batch b
JOIN pipeline p USING (pipeline_id)
CROSS JOIN LATERAL (
  SELECT 'notify' AS follow_up, s.source AS step, b.settled_at AS since
  FROM batch_source s JOIN batch_step t ON t.batch_id = s.batch_id AND t.name = s.source
  WHERE s.batch_id = b.batch_id AND s.notified_at IS NULL AND t.notice
  UNION ALL
  -- Only the batch that is next can be overdue, and only in a state that the pipeline still has.
  SELECT 'state', s.name, CASE
    WHEN (b.batch_id, s.name) IN (
        SELECT g.batch_id, g.step FROM state_progress g WHERE g.state = 'due')
      AND EXISTS (
        SELECT FROM batch_step t WHERE t.name = s.name AND t.kind = 'stateful' AND t.batch_id = (
          SELECT max(l.batch_id) FROM batch l WHERE l.pipeline_id = b.pipeline_id))
    THEN greatest(b.settled_at,
      (SELECT max(c.committed_at) FROM checkpoint c
       WHERE c.pipeline_id = b.pipeline_id AND c.step = s.name),
      (SELECT r.lease_until FROM step_run r
       WHERE r.batch_id = b.batch_id AND r.step = s.name AND r.state = 'running')) END
  FROM batch_step s
  WHERE s.batch_id = b.batch_id AND s.kind = 'stateful' AND b.status = 'settled'
    AND NOT EXISTS (
      SELECT FROM batch_step i
      WHERE i.batch_id = b.batch_id AND s.declaration -> 'reads' ? i.name
        AND NOT EXISTS (SELECT FROM step_run r WHERE r.batch_id = b.batch_id AND r.step = i.name
                        AND r.state = 'committed'))
    AND NOT is_outdated(b.batch_id)
    AND NOT EXISTS (
      SELECT FROM checkpoint c
      WHERE c.pipeline_id = b.pipeline_id AND c.batch_id = b.batch_id AND c.step = s.name)
  UNION ALL
  -- In the last batch of its family: a combine, once no record of the sources that it awaits, of
  -- any source if it names none or its batch holds, is failed, or at once if it is partial and what
  -- is acked is published; a sink of a combine that has run.
  SELECT 'combine', s.name, b.settled_at
  FROM batch_step s
  WHERE s.batch_id = b.batch_id AND b.status = 'settled' AND s.after AND NOT s.stateful
    AND NOT EXISTS (SELECT FROM batch l WHERE l.family_id = b.family_id AND l.status = 'settled'
                    AND (l.settled_at, l.batch_id) > (b.settled_at, b.batch_id))
    AND NOT EXISTS (SELECT FROM step_run r WHERE r.batch_id = b.batch_id AND r.step = s.name
                    AND r.state = 'committed')
    AND CASE
      WHEN s.kind = 'sink' THEN EXISTS (
        SELECT FROM step_run r WHERE r.batch_id = b.batch_id AND s.declaration -> 'reads' ? r.step
          AND r.state = 'committed')
      ELSE (s.partial AND b.publish <> 'complete'
        OR NOT EXISTS (SELECT FROM open_failure m WHERE m.original_batch_id = b.family_id
                       AND (b.publish = 'complete'
                            OR coalesce(s.declaration -> 'awaits' ? m.source, true))))
        AND NOT EXISTS (
          SELECT FROM batch_step i
          WHERE i.batch_id = b.batch_id AND s.declaration -> 'reads' ? i.name
            AND NOT EXISTS (
              SELECT FROM step_run r JOIN batch f USING (batch_id)
              WHERE f.family_id = b.family_id AND f.status = 'settled' AND r.step = i.name
                AND r.state = 'committed'))
    END
  UNION ALL
  SELECT 'replay', NULL, NULL
  WHERE p.auto_replay AND EXISTS (
    SELECT FROM failed_message m
    WHERE m.original_batch_id = b.batch_id AND m.status = 'failed')
  UNION ALL
  SELECT 'keep', NULL, NULL
  WHERE EXISTS (
    SELECT FROM failed_message m LEFT JOIN failed_payload c USING (message_id)
    WHERE m.original_batch_id = b.batch_id
      AND (c.message_id IS NULL OR c.forgotten_at IS NULL
        AND c.root_id < m.root_id AND EXISTS (
          SELECT FROM failed_root r JOIN batch t ON t.batch_id = r.batch_id
          WHERE r.message_id = m.message_id AND r.root_id > c.root_id AND r.step <> m.source
            AND t.selection ? 'from_source')))
) f
WHERE b.followed_at IS NULL AND b.status IN ('settled', 'superseded');
COMMENT ON VIEW pending_follow_up IS
  'What is pending of what follows the settlement of a batch: a row for each step that is to do it.';
COMMENT ON COLUMN pending_follow_up.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN pending_follow_up.family_id IS
  'The original of its family: itself, or the one that it replays.';
COMMENT ON COLUMN pending_follow_up.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN pending_follow_up.dag_id IS 'Airflow''s DAG; empty without Airflow.';
COMMENT ON COLUMN pending_follow_up.follow_up IS
  'publish; combine; state; notify: a source, of what became of its records; keep: content of '
  'failed records, which is not copied, or was read again since; replay: failed records, by the '
  'sweeper.';
COMMENT ON COLUMN pending_follow_up.step IS
  'Sink, combine, source or stateful stage by name; null: no single step does it.';
COMMENT ON COLUMN pending_follow_up.since IS
  'Since when it counts as overdue: the settlement, or a later decision to publish; of a state that is '
  'due the last of the settlement, the commit before it and the end of its run''s lease; null: it does '
  'not.';

CREATE VIEW sink_publication AS
SELECT x.batch_id, p.name AS pipeline, x.sink, x.step_run_id,
       CASE WHEN x.replaced_at IS NOT NULL THEN 'replaced'
            WHEN x.published_at IS NOT NULL THEN 'published'
            WHEN r.state <> 'committed' THEN 'superseded'
            WHEN x.ready THEN 'ready' ELSE 'decided' END AS state,
       x.decided_at, x.published_at, x.replaced_at, x.rows,
       r.output_rows - x.rows AS withheld_rows
FROM publication x
JOIN batch b USING (batch_id)
JOIN pipeline p USING (pipeline_id)
JOIN step_run r USING (step_run_id);
COMMENT ON VIEW sink_publication IS
  'What sinks have published, or are to publish, by batch.';
COMMENT ON COLUMN sink_publication.batch_id IS 'Number of the batch.';
COMMENT ON COLUMN sink_publication.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN sink_publication.sink IS 'Sink by name.';
COMMENT ON COLUMN sink_publication.step_run_id IS 'The sink''s run that staged the rows.';
COMMENT ON COLUMN sink_publication.state IS
  'decided: rows of failed records are yet to be left out; ready; published; replaced: by a later '
  'batch or run, published or not; superseded: never published, for its run counts no more.';
COMMENT ON COLUMN sink_publication.decided_at IS
  'When it was decided that this batch is to be published.';
COMMENT ON COLUMN sink_publication.published_at IS 'When it was visible to readers; null: not yet.';
COMMENT ON COLUMN sink_publication.replaced_at IS
  'When rows of a later batch or run took their place; null: they have not.';
COMMENT ON COLUMN sink_publication.rows IS 'Rows to be published; null until that is known.';
COMMENT ON COLUMN sink_publication.withheld_rows IS
  'Rows staged and not published: those of records that failed.';

CREATE VIEW failed_root_detail AS
SELECT f.root_id, f.message_id, f.batch_id, p.name AS pipeline, b.kind, b.interval_start,
       b.interval_end, m.source, f.step, f.cause,
       failure_reason(f.cause, f.step, f.reason) AS reason, f.operation, f.place, f.producers,
       f.emitted_edges, f.acked_edges, f.wrong_at, f.attempt, m.attempts, m.status, f.own_failure, f.residue,
       m.original_batch_id, f.failed_at, f.detail
FROM failed_root f
JOIN failed_message m USING (message_id)
JOIN batch b ON b.batch_id = f.batch_id
JOIN pipeline p USING (pipeline_id);
COMMENT ON VIEW failed_root_detail IS
  'Every failed attempt of every record: where, why, and what became of the record.';
COMMENT ON COLUMN failed_root_detail.root_id IS 'Root of the attempt.';
COMMENT ON COLUMN failed_root_detail.message_id IS 'The record across its attempts.';
COMMENT ON COLUMN failed_root_detail.batch_id IS 'Batch that the attempt failed in.';
COMMENT ON COLUMN failed_root_detail.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN failed_root_detail.kind IS 'original or replay.';
COMMENT ON COLUMN failed_root_detail.interval_start IS 'Start of the batch''s interval, inclusive.';
COMMENT ON COLUMN failed_root_detail.interval_end IS 'End of the batch''s interval, exclusive.';
COMMENT ON COLUMN failed_root_detail.source IS 'Source that it came from.';
COMMENT ON COLUMN failed_root_detail.step IS 'Where it broke.';
COMMENT ON COLUMN failed_root_detail.cause IS
  'unparsed: its source could not read it; rejected: a stage failed it; refused: a sink did; '
  'repeated: the stage has more than one row for an input; unacked: the stage acks by itself, and '
  'did not; lost; doubled: acked too often; swapped: one row lost, another acked too often; late: '
  'the step did not commit.';
COMMENT ON COLUMN failed_root_detail.reason IS
  'Why: what the source, stage or sink said of it, or the cause in words.';
COMMENT ON COLUMN failed_root_detail.operation IS
  'Operation of the stage that lost it, such as inner join; null: not known, or not lost.';
COMMENT ON COLUMN failed_root_detail.place IS 'Line of that operation, as file:line.';
COMMENT ON COLUMN failed_root_detail.producers IS
  'Of rows that do not add up: the steps that emitted them to the step; null otherwise.';
COMMENT ON COLUMN failed_root_detail.emitted_edges IS 'Of these: how many were emitted.';
COMMENT ON COLUMN failed_root_detail.acked_edges IS 'Of these: how many were acked.';
COMMENT ON COLUMN failed_root_detail.wrong_at IS
  'The steps that acked another number than they had to, if several read the same rows.';
COMMENT ON COLUMN failed_root_detail.attempt IS 'Number of this attempt among those that failed, from 1.';
COMMENT ON COLUMN failed_root_detail.attempts IS 'Attempts that failed so far.';
COMMENT ON COLUMN failed_root_detail.status IS
  'What became of the record: failed, replaying, recovered, quarantined or superseded.';
COMMENT ON COLUMN failed_root_detail.own_failure IS
  'False if a step never committed: no fault of the record.';
COMMENT ON COLUMN failed_root_detail.residue IS 'Its ack value at settlement.';
COMMENT ON COLUMN failed_root_detail.original_batch_id IS 'Batch of the record''s first attempt.';
COMMENT ON COLUMN failed_root_detail.failed_at IS 'When it was settled.';
COMMENT ON COLUMN failed_root_detail.detail IS
  'Raw text of what did not parse. For ledger_payload_reader only, so a reader lists the columns.';

CREATE VIEW quarantine AS
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, b.interval_start,
       b.interval_end, f.step, f.cause, failure_reason(f.cause, f.step, f.reason) AS reason,
       m.attempts, m.updated_at AS quarantined_at, c.accepted_by
FROM failed_message m
JOIN failed_root f ON f.root_id = m.root_id
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
LEFT JOIN accepted_root a ON a.root_id = m.root_id
LEFT JOIN acceptance c USING (acceptance_id)
WHERE m.status = 'quarantined';
COMMENT ON VIEW quarantine IS
  'Quarantined records, each with the reason of its last failure.';
COMMENT ON COLUMN quarantine.message_id IS 'The record: root id of its first attempt.';
COMMENT ON COLUMN quarantine.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN quarantine.source IS 'Source that it came from.';
COMMENT ON COLUMN quarantine.original_batch_id IS 'Batch of its first attempt.';
COMMENT ON COLUMN quarantine.interval_start IS 'Start of that batch''s interval, inclusive.';
COMMENT ON COLUMN quarantine.interval_end IS 'End of that batch''s interval, exclusive.';
COMMENT ON COLUMN quarantine.step IS 'Where its last attempt broke.';
COMMENT ON COLUMN quarantine.cause IS 'The kind of failure, as in failed_root_detail.';
COMMENT ON COLUMN quarantine.reason IS 'Why.';
COMMENT ON COLUMN quarantine.attempts IS 'Attempts that failed.';
COMMENT ON COLUMN quarantine.quarantined_at IS 'When it was quarantined.';
COMMENT ON COLUMN quarantine.accepted_by IS
  'Who gave it up, by accepting it or by quarantining it by hand; null: it waits for that.';

CREATE VIEW hold_preview AS
SELECT h.batch_id, p.name AS pipeline, h.source, h.step, h.reason, h.records,
       (SELECT min(s.message_id) FROM hold_sample s
        WHERE s.batch_id = h.batch_id AND s.number = h.number) AS example_record
FROM hold_failure h
JOIN batch b ON b.batch_id = h.batch_id AND b.status = 'held'
JOIN pipeline p USING (pipeline_id);
COMMENT ON VIEW hold_preview IS
  'What would fail if a batch on hold were settled, by step and reason; nothing of it is decided.';
COMMENT ON COLUMN hold_preview.batch_id IS 'Batch on hold.';
COMMENT ON COLUMN hold_preview.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN hold_preview.source IS 'Source that the records came from.';
COMMENT ON COLUMN hold_preview.step IS 'Where they would fail.';
COMMENT ON COLUMN hold_preview.reason IS 'Why.';
COMMENT ON COLUMN hold_preview.records IS 'How many records.';
COMMENT ON COLUMN hold_preview.example_record IS 'Number of one of them.';

CREATE VIEW accepted_record AS
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, f.step,
       failure_reason(f.cause, f.step, f.reason) AS reason, c.accepted_at, c.accepted_by,
       c.reason AS accepted_because
FROM accepted_root a
JOIN acceptance c USING (acceptance_id)
JOIN failed_message m ON m.root_id = a.root_id AND m.status = 'quarantined'
JOIN failed_root f ON f.root_id = a.root_id
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id);
COMMENT ON VIEW accepted_record IS 'Quarantined records that a person has accepted.';
COMMENT ON COLUMN accepted_record.message_id IS 'The record: root id of its first attempt.';
COMMENT ON COLUMN accepted_record.pipeline IS 'Pipeline by name.';
COMMENT ON COLUMN accepted_record.source IS 'Source that it came from.';
COMMENT ON COLUMN accepted_record.original_batch_id IS 'Batch of its first attempt.';
COMMENT ON COLUMN accepted_record.step IS 'Where its last attempt broke.';
COMMENT ON COLUMN accepted_record.reason IS 'Why.';
COMMENT ON COLUMN accepted_record.accepted_at IS 'When it was accepted.';
COMMENT ON COLUMN accepted_record.accepted_by IS 'Who accepted it.';
COMMENT ON COLUMN accepted_record.accepted_because IS 'The reason that was given.';
