-- A history of settled batches. benchmarks/history.py fills the temporary tables `given` (one row)
-- and `shape_step` (the declared steps of each shape of pipeline), then runs this.
--
-- Batch n is of pipeline (n - 1) % pipelines + 1. Ten batches of a pipeline in a row show what can
-- become of records; batch_plan.role names which of it a batch is:
--   replayed, then its replay   four of five failed records recovered, the others quarantined
--   open                        records are failed: the interval is incomplete
--   superseded, then reprocess  read again by a batch that replaced it
--   aside                       failed records moved to quarantine by a person, and so accepted
--   clean                       nothing failed

CREATE FUNCTION pg_temp.pick(n bigint, choices bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT (hashint8extended(n, current_setting('history.seed')::bigint) & 9223372036854775807)
         % choices
$$;

INSERT INTO pipeline
  (name, message_timeout, max_replays, auto_replay, max_batch_age, allow_failed, replay_backoff,
   replay_backoff_cap, created_at)
SELECT d.name, '1h', 1, d.auto_replay, '7d', 0, '0', '1d', g.until - interval '400 days'
FROM declared d, given g ORDER BY d.number;

CREATE TEMP TABLE batch_plan ON COMMIT DROP AS
WITH numbered AS (
  SELECT n, (n - 1) % g.pipelines + 1 AS number, (n - 1) / g.pipelines AS place, g.*
  FROM given g, generate_series(1, g.batches) AS n
), placed AS (
  SELECT b.*, d.shape, p.pipeline_id, p.name AS pipeline, d.auto_replay,
         CASE place % 10
           WHEN 0 THEN CASE WHEN n + pipelines <= batches THEN 'replayed' ELSE 'open' END
           WHEN 1 THEN 'replay'
           WHEN 2 THEN CASE WHEN n + pipelines <= batches THEN 'replayed' ELSE 'open' END
           WHEN 3 THEN 'replay'
           WHEN 4 THEN 'open'
           -- A state cannot give back what it has taken in: such a pipeline reprocesses nothing.
           WHEN 5 THEN CASE WHEN d.shape <> 2 AND n + pipelines <= batches THEN 'superseded'
                            ELSE 'aside' END
           WHEN 6 THEN CASE WHEN d.shape <> 2 THEN 'reprocess' ELSE 'aside' END
           WHEN 7 THEN 'aside'
           ELSE 'clean' END AS role
  FROM numbered b JOIN declared d USING (number) JOIN pipeline p ON p.name = d.name
), weighed AS (
  -- A few batches have a thousand times as many failures as most.
  SELECT *, sum(weight) OVER (ORDER BY n) AS upto, sum(weight) OVER () AS total,
         count(*) FILTER (WHERE weight > 0) OVER () AS failing
  FROM (SELECT *, CASE WHEN role IN ('clean', 'replay') THEN 0
                       ELSE 1000000 / (1 + pg_temp.pick(n, 1000)) END AS weight FROM placed) w
), counted AS (
  SELECT *, CASE WHEN weight > 0 THEN 1 ELSE 0 END
            + floor(upto * (failed - failing) / total)::bigint
            - floor((upto - weight) * (failed - failing) / total)::bigint AS messages
  FROM weighed
), rooted AS (
  SELECT c.*, coalesce(o.messages, 1000 + pg_temp.pick(-c.n, 2000) + 20 * c.messages) AS roots,
         o.messages AS claimed,
         -- Days follow each other without a gap: a replay or reprocess has that of its original.
         (c.place / 10) * CASE WHEN c.shape = 2 THEN 8 ELSE 7 END
         + CASE WHEN c.shape = 2 THEN (ARRAY[0, 0, 1, 1, 2, 3, 4, 5, 6, 7])[c.place % 10 + 1]
                ELSE (ARRAY[0, 0, 1, 1, 2, 3, 3, 4, 5, 6])[c.place % 10 + 1] END AS day,
         c.until + (c.place - (c.batches - 1) / c.pipelines - 1) * interval '1 day'
         + c.number * interval '1 minute' AS opened_at
  FROM counted c
  LEFT JOIN counted o ON c.role = 'replay' AND o.n = c.n - c.pipelines
)
SELECT n, number, place, shape, pipeline_id, pipeline, auto_replay, role, messages, roots, claimed,
       n + last_batch AS batch_id,
       CASE WHEN role IN ('replay', 'reprocess') THEN n + last_batch - pipelines END AS before_id,
       CASE WHEN role = 'replay' THEN claimed / 5 ELSE messages END AS failed_roots,
       CASE WHEN role = 'replay' THEN 0 ELSE (roots - messages) / 50 END AS dropped,
       first_root + sum((roots + 4095) / 4096 * 4096) OVER (ORDER BY n)::bigint
       - (roots + 4095) / 4096 * 4096 AS first_root,
       date_trunc('day', until - ((batches - 1) / pipelines + 2) * interval '1 day')
       + day * interval '1 day' AS interval_start,
       opened_at, opened_at + (120 + pg_temp.pick(n, 600)) * interval '1 second' AS settled_at
FROM rooted;
CREATE UNIQUE INDEX ON batch_plan (n);
CREATE UNIQUE INDEX ON batch_plan (batch_id);
ANALYZE batch_plan;

INSERT INTO batch
  (batch_id, pipeline_id, steps_version, kind, original_batch_id, dag_id, run_id, status, interval_start,
   interval_end, params, selection, tracking, opened_at, settled_at, roots, failed_roots,
   replaces_batch_id, guarantee, publish, followed_at)
OVERRIDING SYSTEM VALUE
SELECT batch_id, pipeline_id, 1,
       (CASE role WHEN 'replay' THEN 'replay' ELSE 'original' END)::batch_kind,
       CASE role WHEN 'replay' THEN before_id END, pipeline,
       CASE role WHEN 'replay' THEN format('replay_%s__asked', before_id) ELSE 'scheduled__' END
       || to_char(interval_start, 'YYYY-MM-DD')
       || CASE role WHEN 'reprocess' THEN '__reprocess' ELSE '' END,
       (CASE role WHEN 'superseded' THEN 'superseded' ELSE 'settled' END)::batch_state,
       interval_start, interval_start + interval '1 day', '{}',
       CASE role WHEN 'replay' THEN '{}'::jsonb END, true, opened_at, settled_at, roots, failed_roots,
       CASE role WHEN 'reprocess' THEN before_id END, 'exactly_once', 'settled',
       settled_at + interval '2 hours'
FROM batch_plan ORDER BY n;

INSERT INTO declared_step (pipeline_id, version, number, declaration)
SELECT p.pipeline_id, 1, s.number, s.declaration
FROM declared d JOIN pipeline p USING (name) JOIN shape_step s USING (shape) ORDER BY 1, s.number;

-- What each step read and wrote. Records fail where they are read, in cleaned, and, lost without a
-- word, in priced; those of a replay in priced alone.
CREATE TEMP TABLE ran ON COMMIT DROP AS
SELECT row_number() OVER (ORDER BY m.n, s.number) + g.last_run AS step_run_id, m.n, m.batch_id,
       m.pipeline, m.shape, s.number, s.declaration ->> 'name' AS step,
       s.declaration ->> 'kind' AS kind,
       s.declaration @> '{"after": true}' AS after, m.dropped,
       m.opened_at + s.number * interval '15 seconds' AS opened_at,
       CASE WHEN s.number <= 1 THEN m.roots
            WHEN s.number = 2 THEN m.roots - f.at_source
            WHEN s.number = 3 THEN m.roots - f.at_source - f.at_cleaned - m.dropped
            ELSE m.roots - m.failed_roots - m.dropped END AS input_rows,
       CASE s.number WHEN 1 THEN m.roots - f.at_source
            WHEN 2 THEN m.roots - f.at_source - f.at_cleaned - m.dropped
            ELSE m.roots - m.failed_roots - m.dropped END AS output_rows,
       CASE s.number WHEN 1 THEN f.at_source WHEN 2 THEN f.at_cleaned ELSE 0 END AS failed_rows,
       CASE s.number WHEN 3 THEN f.lost ELSE 0 END AS lost
FROM batch_plan m JOIN shape_step s USING (shape) CROSS JOIN given g
CROSS JOIN LATERAL (
  SELECT CASE m.role WHEN 'replay' THEN 0 ELSE (m.messages + 2) / 3 END AS at_source,
         CASE m.role WHEN 'replay' THEN 0 ELSE (m.messages + 1) / 3 END AS at_cleaned,
         CASE m.role WHEN 'replay' THEN m.failed_roots ELSE m.messages / 3 END AS lost
) f
-- A combine runs in the last batch of a family of which nothing is failed.
WHERE m.shape <> 1 OR s.number <= 4 OR m.role IN ('replay', 'reprocess', 'aside', 'clean');
CREATE UNIQUE INDEX ON ran (batch_id, step);
ANALYZE ran;

INSERT INTO step_run
  (step_run_id, batch_id, step, state, attempt_id, attempt_number, try_number, opened_at,
   lease_until, closed_at, input_rows, output_rows, failed_rows, duplicate_rows, delta_rows,
   delta_xor, emitted_edges, acked_edges, folder, files)
OVERRIDING SYSTEM VALUE
SELECT step_run_id, batch_id, step, 'committed', md5(step_run_id::text)::uuid,
       nextval('attempt_number'), 1, opened_at, opened_at + interval '1 minute',
       opened_at + (5 + pg_temp.pick(step_run_id, 9)) * interval '1 second', input_rows,
       output_rows, failed_rows, 0, CASE WHEN after THEN 0 ELSE input_rows END,
       CASE WHEN after THEN 0 ELSE hashint8extended(step_run_id, 0) END,
       CASE WHEN kind IN ('source', 'stage') THEN output_rows ELSE 0 END,
       CASE WHEN after OR kind = 'source' THEN 0 ELSE input_rows - lost END,
       format('/storage/%s/%s/batch=%s/run=%s', pipeline, step, batch_id, step_run_id),
       jsonb_build_array(jsonb_build_object(
         'name', 'part-00000.parquet', 'bytes', 1000 + 40 * output_rows, 'rows', output_rows))
FROM ran ORDER BY step_run_id;

INSERT INTO step_run_input (step_run_id, input_run_id)
SELECT r.step_run_id, i.step_run_id
FROM ran r JOIN shape_step s USING (shape, number)
JOIN ran i ON i.batch_id = r.batch_id AND s.declaration -> 'reads' ? i.step
ORDER BY r.step_run_id;

INSERT INTO step_run_drop (step_run_id, reason, records)
SELECT step_run_id, 'cancelled', dropped FROM ran WHERE number = 2 AND dropped > 0 ORDER BY 1;

INSERT INTO batch_source
  (batch_id, source, pipeline_id, path, interval_start, interval_end, claimed, emit_run_id,
   first_root, roots, span, notified_at)
SELECT m.batch_id, 'orders', m.pipeline_id,
       format('/data/%s/%s.csv', m.pipeline, to_char(m.interval_start, 'YYYY-MM-DD')),
       m.interval_start, m.interval_start + interval '1 day',
       m.role NOT IN ('replay', 'superseded'), r.step_run_id, m.first_root, m.roots, 1,
       m.settled_at + interval '1 minute'
FROM batch_plan m JOIN ran r ON r.batch_id = m.batch_id AND r.number = 1 ORDER BY m.n;

INSERT INTO publication
  (step_run_id, batch_id, sink, decided_at, ready, rows, published_at, replaced_at)
SELECT r.step_run_id, r.batch_id, r.step, m.settled_at, true, r.output_rows,
       m.settled_at + interval '10 seconds',
       CASE WHEN m.role = 'superseded' THEN a.settled_at
            WHEN m.shape = 2 AND r.after THEN a.settled_at + interval '10 seconds' END
FROM ran r JOIN batch_plan m USING (batch_id) CROSS JOIN given g
LEFT JOIN batch_plan a ON a.n = m.n + g.pipelines
WHERE r.kind = 'sink' ORDER BY 1;

-- One state of a pipeline is published at a time.
INSERT INTO sink_replacement (step_run_id, replaced_batch_id)
SELECT r.step_run_id, b.batch_id
FROM ran r JOIN batch_plan m USING (batch_id) CROSS JOIN given g
JOIN batch_plan b ON b.n = m.n - g.pipelines
WHERE m.shape = 2 AND r.after AND r.kind = 'sink' ORDER BY 1;

INSERT INTO checkpoint
  (pipeline_id, step, batch_id, step_run_id, committed_at, acked_at)
SELECT m.pipeline_id, r.step, m.batch_id, r.step_run_id, m.settled_at, m.settled_at
FROM ran r JOIN batch_plan m USING (batch_id)
WHERE r.kind = 'stateful' ORDER BY r.step_run_id;
UPDATE step_run s SET files_removed_at = a.settled_at
FROM ran r JOIN batch_plan m USING (batch_id) CROSS JOIN given g
JOIN batch_plan a ON a.n = m.n + g.pipelines
WHERE r.kind = 'stateful' AND s.step_run_id = r.step_run_id;

INSERT INTO replay_root (batch_id, step_run_id, root_id, message_id)
SELECT m.batch_id, r.step_run_id, m.first_root + i, o.first_root + 20 * i
FROM batch_plan m JOIN ran r ON r.batch_id = m.batch_id AND r.number = 1
JOIN batch_plan o ON o.batch_id = m.before_id
CROSS JOIN LATERAL generate_series(0, m.claimed - 1) AS i
WHERE m.role = 'replay' ORDER BY m.n, i;

INSERT INTO failed_message
  (message_id, original_batch_id, source, status, root_id, attempts, failed_replays,
   replay_batch_id, updated_at)
SELECT m.first_root + 20 * i, m.batch_id, 'orders',
       -- Where the sweeper asks for replays, none are left.
       (CASE WHEN m.role = 'open' AND NOT m.auto_replay THEN 'failed' WHEN m.role = 'superseded' THEN 'superseded'
             WHEN m.role = 'replayed' AND i % 5 <> 4 THEN 'recovered'
             ELSE 'quarantined' END)::message_status,
       CASE WHEN m.role = 'replayed' AND i % 5 = 4 THEN r.first_root + i
            ELSE m.first_root + 20 * i END,
       CASE WHEN m.role = 'replayed' AND i % 5 = 4 THEN 2 ELSE 1 END,
       CASE WHEN m.role = 'replayed' AND i % 5 = 4 THEN 1 ELSE 0 END,
       CASE WHEN m.role = 'replayed' AND i % 5 <> 4 THEN r.batch_id END,
       coalesce(r.settled_at, m.settled_at)
FROM batch_plan m CROSS JOIN given g
LEFT JOIN batch_plan r ON m.role = 'replayed' AND r.n = m.n + g.pipelines
CROSS JOIN LATERAL generate_series(0, m.messages - 1) AS i
ORDER BY m.n, i;

INSERT INTO message_claim (batch_id, message_id, status, failed_replays, given_up)
SELECT batch_id, message_id, 'failed', 0, false FROM replay_root;

CREATE TEMP TABLE cause (
  place int, number int, step text, cause failure_cause, reason text, emitted bigint, acked bigint
) ON COMMIT DROP;
INSERT INTO cause VALUES
  (0, 0, 'orders', 'unparsed', 'amount: not a number', NULL, NULL),
  (0, 1, 'orders', 'unparsed', 'more fields than columns', NULL, NULL),
  (0, 2, 'orders', 'unparsed', 'order_id: missing', NULL, NULL),
  (1, 0, 'cleaned', 'rejected', 'negative amount', NULL, NULL),
  (1, 1, 'cleaned', 'rejected', 'no such customer', NULL, NULL),
  (1, 2, 'cleaned', 'rejected', 'customer is blocked', NULL, NULL),
  (2, 0, 'priced', 'lost', NULL, 1, 0),
  (2, 1, 'priced', 'lost', NULL, 1, 0),
  (2, 2, 'priced', 'doubled', NULL, 1, 2);

INSERT INTO failed_root
  (root_id, message_id, batch_id, attempt, step, cause, reason, producers, emitted_edges,
   acked_edges, residue, own_failure, failed_at)
SELECT m.first_root + 20 * i, m.first_root + 20 * i, m.batch_id, 1, c.step, c.cause, c.reason,
       CASE WHEN c.emitted > 0 THEN 'cleaned' END, c.emitted, c.acked,
       hashint8extended(m.first_root + i, 0), true, m.settled_at
FROM batch_plan m CROSS JOIN LATERAL generate_series(0, m.messages - 1) AS i
JOIN cause c ON c.place = i % 3 AND c.number = m.n % 3
ORDER BY m.n, i;
INSERT INTO failed_root
  (root_id, message_id, batch_id, attempt, step, cause, reason, producers, emitted_edges,
   acked_edges, residue, own_failure, failed_at)
SELECT m.first_root + i, o.first_root + 20 * i, m.batch_id, 2, c.step, c.cause, c.reason,
       CASE WHEN c.emitted > 0 THEN 'cleaned' END, c.emitted, c.acked,
       hashint8extended(m.first_root + i, 0), true, m.settled_at
FROM batch_plan m JOIN batch_plan o ON o.batch_id = m.before_id
CROSS JOIN LATERAL generate_series(4, m.claimed - 1, 5) AS i
JOIN cause c ON c.place = 2 AND c.number = m.n % 3
WHERE m.role = 'replay' ORDER BY m.n, i;

INSERT INTO failed_payload
  (message_id, batch_id, root_id, key, content, parsed, source_file, source_row)
SELECT m.first_root + 20 * i, m.batch_id, m.first_root + 20 * i,
       jsonb_build_object('order_id', f.order_id),
       CASE WHEN i % 3 = 0 THEN concat_ws(',', f.order_id, f.customer, 'n/a')
            ELSE format('{"order_id": "%s", "customer": "%s", "amount": "%s"}', f.order_id,
                        f.customer, f.amount) END,
       i % 3 > 0, s.path, 20 * i + 1
FROM batch_plan m JOIN batch_source s USING (batch_id)
CROSS JOIN LATERAL generate_series(0, m.messages - 1) AS i
CROSS JOIN LATERAL (
  SELECT 'O' || m.first_root + 20 * i AS order_id, 'C' || pg_temp.pick(i, 5000) AS customer,
         pg_temp.pick(m.first_root + i, 10000) AS amount
) f
ORDER BY m.n, i;

-- A person moved all of some batches to quarantine, and accepted half of what replays quarantined.
INSERT INTO acceptance (batch_id, accepted_at, accepted_by, reason)
SELECT m.batch_id, m.settled_at + interval '3 days', 'analyst',
       CASE m.role WHEN 'replayed' THEN 'too few to matter' ELSE 'test orders' END
FROM batch_plan m
WHERE m.role IN ('aside', 'reprocess') OR m.role = 'replayed' AND m.place / 10 % 2 = 0 ORDER BY m.n;
INSERT INTO accepted_root (root_id, acceptance_id)
SELECT f.root_id, a.acceptance_id
FROM acceptance a JOIN batch_plan m USING (batch_id)
JOIN failed_message f ON f.original_batch_id = m.batch_id AND f.status = 'quarantined'
ORDER BY f.message_id;
INSERT INTO manual_quarantine (message_id, reason, quarantined_by, quarantined_at)
SELECT f.message_id, 'test orders', 'analyst', m.settled_at + interval '3 days'
FROM batch_plan m JOIN failed_message f ON f.original_batch_id = m.batch_id
WHERE m.role IN ('aside', 'reprocess') ORDER BY f.message_id;

UPDATE root_counter SET next_root = (
  SELECT max(first_root + (roots + 4095) / 4096 * 4096) FROM batch_plan);
SELECT setval(pg_get_serial_sequence('batch', 'batch_id'), max(batch_id)) FROM batch_plan;
SELECT setval(pg_get_serial_sequence('step_run', 'step_run_id'), max(step_run_id)) FROM ran;
DROP FUNCTION pg_temp.pick(bigint, bigint);
