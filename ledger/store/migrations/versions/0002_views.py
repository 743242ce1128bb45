"""Roles, partition functions and the documented views.

Revision: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROLES = """
DO $$
DECLARE role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY['ledger_owner', 'ledger_writer', 'ledger_reader'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;  -- another database of this server was migrated at the same moment
    END;
    -- Since PostgreSQL 16 who creates a role may grant it, and is no more than that.
    IF NOT pg_has_role(current_user, role_name, 'MEMBER')
       OR NOT pg_has_role(current_user, role_name, 'USAGE')
          AND pg_has_role(current_user, role_name, 'MEMBER WITH ADMIN OPTION') THEN
      EXECUTE format('GRANT %I TO %I', role_name, current_user);
    END IF;
  END LOOP;
END $$;
GRANT USAGE, CREATE ON SCHEMA public TO ledger_owner;
GRANT USAGE ON SCHEMA public TO ledger_writer, ledger_reader;
"""

OWNERSHIP = """
DO $$
DECLARE one record;
BEGIN
  FOR one IN SELECT c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v') LOOP
    IF one.relname = ANY (ARRAY[{names}]) THEN
      EXECUTE format('ALTER %s %I OWNER TO ledger_owner',
                     CASE one.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, one.relname);
    END IF;
  END LOOP;
END $$;
"""

TABLES = (
    "pipeline",
    "batch",
    "root_counter",
    "step_run",
    "batch_source",
    "step_run_input",
    "step_run_file",
    "step_run_bucket",
    "ledger_delta",
    "root_fail",
    "replay_root",
    "failed_message",
    "failed_root",
    "dedup_filter",
)

FUNCTIONS = """
CREATE FUNCTION open_partition(batch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE name text := 'ledger_delta_' || batch;
BEGIN
  IF to_regclass(name) IS NULL THEN
    -- CREATE ... PARTITION OF would wait for every open COPY; ATTACH does not.
    EXECUTE format('CREATE TABLE %I (LIKE ledger_delta INCLUDING COMMENTS, CHECK (batch_id = %s))', name, batch);
    EXECUTE format('ALTER TABLE ledger_delta ATTACH PARTITION %I FOR VALUES IN (%s)', name, batch);
  END IF;
END $$;
COMMENT ON FUNCTION open_partition(bigint) IS 'Makes the delta partition of a batch, as the owner, without waiting for open COPYs.';

CREATE FUNCTION clear_partition(batch bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
  EXECUTE format('TRUNCATE %I', 'ledger_delta_' || batch);
  RETURN true;
EXCEPTION WHEN lock_not_available OR undefined_table THEN
  RETURN false;  -- a straggler still posts into it: the sweeper drops it later
END $$;
COMMENT ON FUNCTION clear_partition(bigint) IS 'Empties the delta partition of a settled batch; false if somebody still writes there.';

REVOKE ALL ON FUNCTION open_partition(bigint), clear_partition(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION open_partition(bigint), clear_partition(bigint) TO ledger_writer;

CREATE FUNCTION root_state(root bigint)
RETURNS TABLE (root_id bigint, message_id bigint, batch_id bigint, pipeline text, source text,
               status text, stage text, reason text, detail text)
LANGUAGE sql STABLE AS $$
  SELECT root, coalesce(m.message_id, rr.message_id, root), b.batch_id, p.name, s.source,
         CASE WHEN b.status <> 'settled' THEN 'pending'
              WHEN f.root_id IS NULL THEN 'acked' ELSE m.status::text END,
         f.stage, f.reason, f.detail
  FROM batch_source s
  JOIN batch b ON b.batch_id = s.batch_id
  JOIN pipeline p ON p.pipeline_id = b.pipeline_id
  LEFT JOIN failed_root f ON f.root_id = root
  LEFT JOIN failed_message m ON m.message_id = f.message_id
  LEFT JOIN replay_root rr ON rr.root_id = root AND rr.step_run_id = s.emit_run_id
  WHERE s.emit_run_id IS NOT NULL AND s.first_root <= root AND root < s.first_root + s.roots
$$;
COMMENT ON FUNCTION root_state(bigint) IS 'State of one root by its id, without generating all others; no row if it was never emitted.';
"""

VIEWS: dict[str, tuple[str, str, dict[str, str]]] = {
    "batch_status": (
        "Every batch with its counts. The states are disjoint by message: total = acked + failed + quarantined + pending.",
        """
        SELECT b.batch_id, p.name AS pipeline, b.kind, b.original_batch_id, b.status,
               b.interval_start, b.interval_end, t.total,
               CASE WHEN b.status = 'settled' THEN t.total - f.failed - f.quarantined ELSE 0 END AS acked,
               f.recovered, f.failed, f.replaying, f.quarantined,
               CASE WHEN b.status = 'settled' THEN 0 ELSE t.total END AS pending,
               b.opened_at, b.settled_at, b.dag_id, b.run_id, b.held_reason
        FROM batch b
        JOIN pipeline p USING (pipeline_id)
        CROSS JOIN LATERAL (
          SELECT coalesce(b.roots, sum(s.roots), 0)::bigint AS total FROM batch_source s WHERE s.batch_id = b.batch_id
        ) t
        CROSS JOIN LATERAL (
          SELECT count(*) FILTER (WHERE m.status IN ('failed', 'replaying')) AS failed,
                 count(*) FILTER (WHERE m.status = 'replaying') AS replaying,
                 count(*) FILTER (WHERE m.status = 'quarantined') AS quarantined,
                 count(*) FILTER (WHERE m.status = 'recovered') AS recovered
          FROM failed_root r JOIN failed_message m USING (message_id) WHERE r.batch_id = b.batch_id
        ) f
        """,
        {
            "batch_id": "Number of the batch.",
            "pipeline": "Pipeline by name.",
            "kind": "original or replay.",
            "original_batch_id": "The original that a replay belongs to.",
            "status": "open, settled, abandoned or held.",
            "interval_start": "Start of its interval, inclusive.",
            "interval_end": "End of its interval, exclusive.",
            "total": "Records that its sources emitted.",
            "acked": "Records processed to every sink, those recovered by a replay included.",
            "recovered": "Of the acked: failed here, acked in a later replay.",
            "failed": "Records failed and not recovered, those in an open replay included.",
            "replaying": "Of the failed: claimed by an open replay.",
            "quarantined": "Records given up after max_replays, kept with their reason.",
            "pending": "Records not decided yet.",
            "opened_at": "When it was opened.",
            "settled_at": "When it was decided.",
            "dag_id": "Airflow's DAG; empty without Airflow.",
            "run_id": "Airflow's run id, or the one given on the command line.",
            "held_reason": "Why a check stopped its settlement.",
        },
    ),
    "root_status": (
        "Every root of every batch; acked ones are generated from the batch's range. For one root use root_state(root).",
        """
        SELECT s.first_root + n.number AS root_id,
               coalesce(m.message_id, rr.message_id, s.first_root + n.number) AS message_id,
               b.batch_id, p.name AS pipeline, s.source,
               CASE WHEN b.status <> 'settled' THEN 'pending'
                    WHEN f.root_id IS NULL THEN 'acked' ELSE m.status::text END AS status,
               f.stage, f.reason
        FROM batch_source s
        JOIN batch b USING (batch_id)
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        CROSS JOIN LATERAL generate_series(0, s.roots - 1) AS n (number)
        LEFT JOIN failed_root f ON f.root_id = s.first_root + n.number
        LEFT JOIN failed_message m ON m.message_id = f.message_id
        LEFT JOIN replay_root rr ON rr.root_id = s.first_root + n.number AND rr.step_run_id = s.emit_run_id
        WHERE s.emit_run_id IS NOT NULL
        """,
        {
            "root_id": "Root: one attempt of one source record.",
            "message_id": "The record across its attempts: root id of the first.",
            "batch_id": "Batch of the attempt.",
            "pipeline": "Pipeline by name.",
            "source": "Source that emitted it.",
            "status": "pending, acked, failed, replaying, recovered or quarantined.",
            "stage": "Where it broke, if it failed.",
            "reason": "Why, if it failed.",
        },
    ),
    "step_progress": (
        "The newest run of every source, stage and sink of every batch.",
        """
        SELECT r.batch_id, p.name AS pipeline, step.number AS step, r.stage, step.kind, r.state, r.step_run_id, r.try_number,
               r.input_rows, r.output_rows, r.failed_rows, r.duplicate_rows,
               extract(epoch FROM coalesce(r.closed_at, now()) - r.opened_at)::float AS seconds,
               r.lease_until, r.failure
        FROM (SELECT DISTINCT ON (batch_id, stage) * FROM step_run ORDER BY batch_id, stage, step_run_id DESC) r
        JOIN batch b USING (batch_id)
        JOIN pipeline p USING (pipeline_id)
        JOIN LATERAL (
          SELECT t.number, t.step ->> 'kind' AS kind
          FROM jsonb_array_elements(b.topology) WITH ORDINALITY AS t (step, number) WHERE t.step ->> 'name' = r.stage
        ) step ON true
        """,
        {
            "batch_id": "Number of the batch.",
            "pipeline": "Pipeline by name.",
            "step": "Place in the pipeline's order, from 1.",
            "stage": "Source, stage or sink by name.",
            "kind": "source, stage or sink.",
            "state": "running, committed, failed, fenced or superseded.",
            "step_run_id": "Number of the run.",
            "try_number": "Airflow's try number.",
            "input_rows": "Rows read.",
            "output_rows": "Rows written and passed on.",
            "failed_rows": "Rows failed explicitly, or not parsed.",
            "duplicate_rows": "Rows that a sink dropped as already delivered.",
            "seconds": "Seconds that it took, or takes so far.",
            "lease_until": "Past this a running run counts as dead.",
            "failure": "Why it failed.",
        },
    ),
    "pending_root": (
        "Roots of open batches whose running ack value is not 0: what is still under way.",
        """
        SELECT d.batch_id, d.root_id, bit_xor(d.delta) AS ack_value,
               sum(d.emitted_edges) - sum(d.acked_edges) AS open_edges
        FROM ledger_delta d
        JOIN batch b ON b.batch_id = d.batch_id AND b.status IN ('open', 'held')
        JOIN step_run r ON r.step_run_id = d.step_run_id AND r.state = 'committed'
        GROUP BY d.batch_id, d.root_id
        HAVING bit_xor(d.delta) <> 0 OR sum(d.emitted_edges) <> sum(d.acked_edges)
        """,
        {
            "batch_id": "Number of the batch.",
            "root_id": "Root.",
            "ack_value": "XOR of all deltas committed so far.",
            "open_edges": "Edges emitted and not acked.",
        },
    ),
    "failed_root_detail": (
        "Every failed attempt of every record: where, why, and what became of the record.",
        """
        SELECT f.root_id, f.message_id, f.batch_id, p.name AS pipeline, b.kind, b.interval_start, b.interval_end,
               m.source, f.stage, f.reason, f.detail, f.attempt, m.attempts, m.status, f.own_failure, f.residue,
               m.original_batch_id, f.failed_at
        FROM failed_root f
        JOIN failed_message m USING (message_id)
        JOIN batch b ON b.batch_id = f.batch_id
        JOIN pipeline p USING (pipeline_id)
        """,
        {
            "root_id": "Root of the attempt.",
            "message_id": "The record across its attempts.",
            "batch_id": "Batch that the attempt failed in.",
            "pipeline": "Pipeline by name.",
            "kind": "original or replay.",
            "interval_start": "Start of the batch's interval, inclusive.",
            "interval_end": "End of the batch's interval, exclusive.",
            "source": "Source that it came from.",
            "stage": "Where it broke.",
            "reason": "Why.",
            "detail": "Raw text of what did not parse, or counts of edges.",
            "attempt": "Number of this attempt, from 1.",
            "attempts": "Attempts that failed so far.",
            "status": "What became of the record: failed, replaying, recovered or quarantined.",
            "own_failure": "False if a stage never committed: no fault of the record.",
            "residue": "Its ack value at settlement.",
            "original_batch_id": "Batch of the record's first attempt.",
            "failed_at": "When it was settled.",
        },
    ),
    "quarantine": (
        "Records given up after max_replays, each with the reason of its last failure.",
        """
        SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, b.interval_start, b.interval_end,
               f.stage, f.reason, f.detail, m.attempts, m.updated_at AS quarantined_at
        FROM failed_message m
        JOIN failed_root f ON f.root_id = m.root_id
        JOIN batch b ON b.batch_id = m.original_batch_id
        JOIN pipeline p USING (pipeline_id)
        WHERE m.status = 'quarantined'
        """,
        {
            "message_id": "The record: root id of its first attempt.",
            "pipeline": "Pipeline by name.",
            "source": "Source that it came from.",
            "original_batch_id": "Batch of its first attempt.",
            "interval_start": "Start of that batch's interval, inclusive.",
            "interval_end": "End of that batch's interval, exclusive.",
            "stage": "Where its last attempt broke.",
            "reason": "Why.",
            "detail": "Raw text of what did not parse, or counts of edges.",
            "attempts": "Attempts that failed.",
            "quarantined_at": "When it was given up.",
        },
    ),
    "replay_history": (
        "Every decided attempt of every record that failed at least once.",
        """
        SELECT f.message_id, f.attempt, f.batch_id, f.root_id, 'failed' AS outcome, f.stage, f.reason, f.failed_at AS decided_at
        FROM failed_root f
        UNION ALL
        SELECT m.message_id, m.attempts + 1, b.batch_id, rr.root_id, 'acked', NULL, NULL, b.settled_at
        FROM failed_message m
        JOIN replay_root rr ON rr.message_id = m.message_id AND rr.batch_id = m.replay_batch_id
        JOIN batch_source s ON s.batch_id = rr.batch_id AND s.emit_run_id = rr.step_run_id
        JOIN batch b ON b.batch_id = rr.batch_id
        WHERE m.status = 'recovered'
        """,
        {
            "message_id": "The record across its attempts.",
            "attempt": "Number of the attempt, from 1.",
            "batch_id": "Batch of the attempt.",
            "root_id": "Root of the attempt.",
            "outcome": "failed or acked.",
            "stage": "Where it broke.",
            "reason": "Why: also the reason of the replay that followed.",
            "decided_at": "When that batch was settled.",
        },
    ),
}

GRANTS = """
GRANT SELECT, INSERT, UPDATE, DELETE ON
  pipeline, batch, root_counter, step_run, batch_source, step_run_input, step_run_file, step_run_bucket,
  root_fail, replay_root, failed_message, failed_root, dedup_filter TO ledger_writer;
GRANT SELECT, INSERT ON ledger_delta TO ledger_writer;
GRANT SELECT ON alembic_version TO ledger_writer, ledger_reader;
"""


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def upgrade() -> None:
    op.execute(ROLES)
    op.execute("INSERT INTO root_counter (next_root) VALUES (1)")
    for name, (comment, query, columns) in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")
        op.execute(f"COMMENT ON VIEW {name} IS {_literal(comment)}")
        for column, meaning in columns.items():
            op.execute(f"COMMENT ON COLUMN {name}.{column} IS {_literal(meaning)}")
    op.execute(FUNCTIONS)
    op.execute(GRANTS)
    every = ", ".join((*TABLES, *VIEWS))
    op.execute(f"GRANT SELECT ON {every} TO ledger_reader")
    op.execute(f"GRANT SELECT ON {', '.join(VIEWS)} TO ledger_writer")
    op.execute(OWNERSHIP.format(names=", ".join(_literal(name) for name in (*TABLES, *VIEWS))))
    for function in ("open_partition", "clear_partition", "root_state"):
        op.execute(f"ALTER FUNCTION {function}(bigint) OWNER TO ledger_owner")


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    for function in ("root_state", "clear_partition", "open_partition"):
        op.execute(f"DROP FUNCTION {function}(bigint)")
    op.execute("DELETE FROM root_counter")
    # The roles stay: they belong to the server, and other databases may use them.
    op.execute(f"REVOKE ALL ON {', '.join(TABLES)} FROM ledger_writer, ledger_reader")
