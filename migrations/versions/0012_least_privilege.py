"""Each role may do what its statements do, and no more; raw text of records has a role of its own.

Revision: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# ledger_sql is the login of queries that users write. It has no password: PostgreSQL refuses it
# wherever it asks for one, until somebody gives it one.
ROLES = """
DO $$
DECLARE role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY['ledger_payload_reader', 'ledger_sql'] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
        EXECUTE format('CREATE ROLE %I %s', role_name,
                       CASE role_name WHEN 'ledger_sql' THEN 'LOGIN' ELSE 'NOLOGIN' END);
      END IF;
      IF NOT pg_has_role(role_name, 'ledger_reader', 'MEMBER') THEN
        EXECUTE format('GRANT ledger_reader TO %I', role_name);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;  -- another database of this server was migrated at the same moment
    END;
  END LOOP;
  -- Since PostgreSQL 16 who creates a role may grant it, and is no more than that.
  IF NOT pg_has_role(current_user, 'ledger_payload_reader', 'MEMBER')
     OR NOT pg_has_role(current_user, 'ledger_payload_reader', 'USAGE')
        AND pg_has_role(current_user, 'ledger_payload_reader', 'MEMBER WITH ADMIN OPTION') THEN
    EXECUTE format('GRANT ledger_payload_reader TO %I', current_user);
  END IF;
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
"""

# What the writer updates, by column. Where nothing is named, rows are only inserted.
UPDATED: dict[str, str] = {
    "pipeline": """message_timeout_seconds, max_batch_age_seconds, max_replays, max_failed_ratio,
        replay_limit, replay_backoff_seconds, replay_backoff_cap_seconds, auto_replay""",
    "batch": """status, held_reason, opened_at, settled_at, roots, failed_roots, released,
        woken_at""",
    "batch_source": """claimed, quota, rest, rest_of_batch_id, first_position, claimed_after,
        claimed_upto, emit_run_id, first_root, roots, notified_at""",
    "stage_run": """state, lease_until, closed_at, failure, input_rows, output_rows, failed_rows,
        duplicate_rows, delta_rows, delta_xor, emitted_edges, acked_edges""",
    "stage_run_input": "",
    "stage_run_file": "",
    "stage_run_bucket": "",
    "stage_run_drop": "",
    "root_fail": "",
    "replay_root": "",
    "failed_message": """status, root_id, attempts, failed_replays, unit_failures,
        replay_batch_id, not_before, before_claim, updated_at""",
    "failed_root": "",
    "dedup_filter": "",
    "claimed_file": "",
    "replaced_folder": "",
    "publication": "ready, folder, files, rows, published_at, replaced_at",
    "sink_replacement": "",
    "checkpoint": "acked_at, removed_at",
}
# Folders that are yet to be removed: a list of work, from which what is done is deleted.
DELETED = ("replaced_folder",)

# Raw text of records, and filters of their keys, are not for every reader. Of these tables the
# reader sees the columns named.
READ: dict[str, str] = {
    "failed_root": """root_id, message_id, batch_id, attempt, stage, reason, residue, own_failure,
        failed_at, shared""",
    "root_fail": "batch_id, stage_run_id, root_id, reason, shared",
    "dedup_filter": "stage_run_id, key, capacity, error_rate, entries",
}

FUNCTIONS: dict[str, tuple[str, str]] = {
    "reserve_roots(count bigint)": (
        "Reserves so many root ids; the first of them. The counter only goes up.",
        """
        RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
        DECLARE first bigint;
        BEGIN
          IF count IS NULL OR count <= 0 THEN
            RAISE EXCEPTION 'expected a positive number of roots, found %', count;
          END IF;
          UPDATE root_counter SET next_root = next_root + count
          RETURNING next_root - count INTO first;
          RETURN first;
        END $$
        """,
    ),
    "forget_fails(batch bigint)": (
        "Removes the explicit fails of a decided batch: failed_root has them. Of no other batch. "
        "At least once those of its sinks stay: they say which rows a sink has left out.",
        """
        RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
          DELETE FROM root_fail f USING batch b
          WHERE f.batch_id = batch AND b.batch_id = f.batch_id AND b.status NOT IN ('open', 'held')
            AND NOT (b.guarantee = 'at_least_once' AND EXISTS (
              SELECT FROM stage_run r
              WHERE r.stage_run_id = f.stage_run_id AND r.state = 'committed'
                AND jsonb_path_exists(b.topology, '$[*] ? (@.name == $name && @.kind == "sink")',
                                      jsonb_build_object('name', r.stage))))
        $$
        """,
    ),
    "release_files(batch bigint)": (
        "Removes the claims of files of an abandoned batch. Of no other batch.",
        """
        RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
          DELETE FROM claimed_file f USING batch b
          WHERE f.batch_id = batch AND b.batch_id = f.batch_id AND b.status = 'abandoned'
        $$
        """,
    ),
    "take_over_states(runs bigint[])": (
        "Removes the states that these runs committed for abandoned batches; how many.",
        """
        RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
          WITH gone AS (
            DELETE FROM checkpoint c USING batch b
            WHERE b.batch_id = c.batch_id AND b.status = 'abandoned' AND c.stage_run_id = ANY (runs)
            RETURNING 1
          )
          SELECT count(*) FROM gone
        $$
        """,
    ),
}

CLEAR = """
CREATE OR REPLACE FUNCTION clear_partition(batch bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '200ms' AS $$
BEGIN
  {guard}EXECUTE format('TRUNCATE %I', 'ledger_delta_' || batch);
  RETURN true;
EXCEPTION WHEN lock_not_available OR undefined_table THEN
  RETURN false;  -- a straggler still posts into it: the sweeper drops it later
END $$
"""
GUARD = """IF EXISTS (SELECT FROM batch b WHERE b.batch_id = clear_partition.batch
             AND b.status IN ('open', 'held')) THEN
    RAISE EXCEPTION 'batch % is not decided: its deltas are the evidence', batch;
  END IF;
  """

# What the writer may update of a row ends with its state: a decided batch keeps its verdict, a run
# that ended its record, a delivery its files and moments. Texts, because a value of an enum cannot
# be used where it is added.
REFUSE = """
CREATE FUNCTION refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is history: % may not change it', TG_TABLE_NAME, current_user
    USING ERRCODE = 'insufficient_privilege';
END $$
"""
REFUSE_COMMENT = "Refuses an update by the writer of what is decided."
VERDICT = "opened_at, settled_at, roots, failed_roots, held_reason, released"
RECORD = """lease_until, closed_at, failure, input_rows, output_rows, failed_rows, duplicate_rows,
    delta_rows, delta_xor, emitted_edges, acked_edges"""

DELIVERED = "published_at, ready, folder, files, rows"


def _of(row: str, columns: str) -> str:
    return "(" + ", ".join(f"{row}.{name.strip()}" for name in columns.split(",")) + ")"


TRIGGERS = {
    "batch": f"""
        OLD.status::text IN ('settled', 'superseded')
        AND (NEW.status::text NOT IN (OLD.status::text, 'superseded')
             OR {_of("NEW", VERDICT)} IS DISTINCT FROM {_of("OLD", VERDICT)})
    """,
    "stage_run": f"""
        OLD.state::text <> 'running'
        AND (NEW.state <> OLD.state
             AND (OLD.state::text, NEW.state::text) <> ('committed', 'superseded')
             OR {_of("NEW", RECORD)} IS DISTINCT FROM {_of("OLD", RECORD)})
    """,
    "publication": f"""(
        OLD.published_at IS NOT NULL
        AND {_of("NEW", DELIVERED)} IS DISTINCT FROM {_of("OLD", DELIVERED)}
        OR OLD.replaced_at IS NOT NULL AND NEW.replaced_at IS DISTINCT FROM OLD.replaced_at
    )""",
    "checkpoint": "OLD.acked_at IS NOT NULL AND NEW.acked_at IS DISTINCT FROM OLD.acked_at",
    "failed_message": """(
        NEW.status <> OLD.status AND (OLD.status::text, NEW.status::text) NOT IN (
          ('failed', 'replaying'), ('failed', 'quarantined'), ('failed', 'superseded'),
          ('quarantined', 'replaying'),
          ('replaying', 'failed'), ('replaying', 'quarantined'), ('replaying', 'recovered'),
          ('recovered', 'failed'), ('recovered', 'quarantined'))
        OR (NEW.attempts <> OLD.attempts OR NEW.root_id <> OLD.root_id)
           AND NOT (NEW.attempts = OLD.attempts + 1
                    AND OLD.status::text IN ('replaying', 'recovered')
                    AND NEW.status::text IN ('failed', 'quarantined'))
        OR NEW.replay_batch_id IS NULL AND NEW.status::text = 'replaying'
        OR NEW.status <> OLD.status AND NEW.status::text = 'recovered'
           AND NEW.replay_batch_id IS DISTINCT FROM OLD.replay_batch_id
    )""",
}
# After a row is changed: before, each row would be locked by itself, and these change by the million.
AFTER = ("failed_message",)

# What a decided batch emitted is what its verdict counts.
EMIT = "emit_run_id, first_root, roots, rest"
REFUSE_EMIT = """
CREATE FUNCTION refuse_another_emit() RETURNS trigger
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM batch b WHERE b.batch_id = OLD.batch_id
             AND b.status::text IN ('settled', 'superseded')) THEN
    RAISE EXCEPTION '% is history: % may not change it', TG_TABLE_NAME, current_user
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NEW;
END $$
"""
REFUSE_EMIT_COMMENT = "Refuses an update by the writer of what a decided batch emitted."
# Everybody who is not the owner: a login that is a member of ledger_writer need not take on its role.
BY_A_WRITER = "NOT pg_has_role(current_user, 'ledger_owner', 'USAGE')"

# The views that had the raw text: {detail} stands where it was.
DETAIL = """
SELECT f.root_id, f.message_id, f.batch_id, p.name AS pipeline, b.kind, b.interval_start,
       b.interval_end, m.source, f.stage, f.reason, {detail} f.attempt, m.attempts, m.status,
       f.own_failure, f.residue, m.original_batch_id, f.failed_at
FROM failed_root f
JOIN failed_message m USING (message_id)
JOIN batch b ON b.batch_id = f.batch_id
JOIN pipeline p USING (pipeline_id)
"""
QUARANTINE = """
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, b.interval_start,
       b.interval_end, f.stage, f.reason, {detail} m.attempts, m.updated_at AS quarantined_at
FROM failed_message m
JOIN failed_root f ON f.root_id = m.root_id
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
WHERE m.status = 'quarantined'
"""
HELD = """
SELECT m.message_id, p.name AS pipeline, m.source, m.original_batch_id, f.stage, f.reason,
       {detail} m.unit_failures
FROM failed_message m
JOIN failed_root f USING (root_id)
JOIN batch b ON b.batch_id = m.original_batch_id
JOIN pipeline p USING (pipeline_id)
WHERE m.status = 'failed' AND m.not_before = 'infinity'
"""
TEXT_OR_COUNTS = "Raw text of what did not parse, or counts of edges."
VIEWS: dict[str, tuple[str, str, dict[str, str]]] = {
    "failed_root_detail": (
        "Every failed attempt of every record: where, why, and what became of the record.",
        DETAIL,
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
            "detail": TEXT_OR_COUNTS,
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
        QUARANTINE,
        {
            "message_id": "The record: root id of its first attempt.",
            "pipeline": "Pipeline by name.",
            "source": "Source that it came from.",
            "original_batch_id": "Batch of its first attempt.",
            "interval_start": "Start of that batch's interval, inclusive.",
            "interval_end": "End of that batch's interval, exclusive.",
            "stage": "Where its last attempt broke.",
            "reason": "Why.",
            "detail": TEXT_OR_COUNTS,
            "attempts": "Attempts that failed.",
            "quarantined_at": "When it was given up.",
        },
    ),
    "held_record": (
        "Failed records that no replay takes by itself any more: their unit failed too often.",
        HELD,
        {
            "message_id": "The record across its attempts.",
            "pipeline": "Pipeline by name.",
            "source": "Source that it came from.",
            "original_batch_id": "Batch of its first attempt.",
            "stage": "Where it broke last.",
            "reason": "Why.",
            "detail": "What else is known.",
            "unit_failures": "How often a row of several records, this one among them, failed.",
        },
    ),
}

PAYLOAD_COMMENT = (
    "What is known of each failed attempt beyond its reason, raw text of the record included. "
    "For ledger_payload_reader only."
)
PAYLOAD = """
SELECT f.root_id, f.message_id, f.batch_id, p.name AS pipeline, m.source, f.stage, f.reason,
       f.detail, m.status
FROM failed_root f
JOIN failed_message m USING (message_id)
JOIN batch b ON b.batch_id = f.batch_id
JOIN pipeline p USING (pipeline_id)
"""
PAYLOAD_COLUMNS = {
    "root_id": "Root of the attempt.",
    "message_id": "The record across its attempts.",
    "batch_id": "Batch that the attempt failed in.",
    "pipeline": "Pipeline by name.",
    "source": "Source that it came from.",
    "stage": "Where it broke.",
    "reason": "Why.",
    "detail": TEXT_OR_COUNTS,
    "status": "What became of the record: failed, replaying, recovered or quarantined.",
}

ROOT_STATE_COMMENT = (
    "State of one root by its id, without generating all others; no row if it was never emitted."
)
ROOT_STATE = """
CREATE FUNCTION root_state(root bigint)
RETURNS TABLE (root_id bigint, message_id bigint, batch_id bigint, pipeline text, source text,
               status text, stage text, reason text{column})
LANGUAGE sql STABLE AS $$
  SELECT root, coalesce(m.message_id, rr.message_id, root), b.batch_id, p.name, s.source,
         CASE WHEN b.status::text NOT IN ('settled', 'superseded') THEN 'pending'
              WHEN f.root_id IS NULL AND (b.kind = 'replay' OR m.message_id IS NULL) THEN 'acked'
              ELSE m.status::text END,
         f.stage, f.reason{detail}
  FROM batch_source s
  JOIN batch b ON b.batch_id = s.batch_id
  JOIN pipeline p ON p.pipeline_id = b.pipeline_id
  LEFT JOIN failed_root f ON f.root_id = root
  LEFT JOIN failed_message m
    ON m.message_id = coalesce(f.message_id, CASE WHEN b.kind = 'original' THEN root END)
  LEFT JOIN replay_root rr ON rr.root_id = root AND rr.stage_run_id = s.emit_run_id
  WHERE s.emit_run_id IS NOT NULL AND s.first_root <= root AND root < s.first_root + s.roots
$$
"""


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _view(name: str, comment: str, query: str, columns: dict[str, str], readers: str) -> None:
    op.execute(f"CREATE VIEW {name} AS {query}")
    op.execute(f"COMMENT ON VIEW {name} IS {_literal(comment)}")
    for column, meaning in columns.items():
        op.execute(f"COMMENT ON COLUMN {name}.{column} IS {_literal(meaning)}")
    op.execute(f"GRANT SELECT ON {name} TO {readers}")
    op.execute(f"ALTER VIEW {name} OWNER TO ledger_owner")


def _details(*, shown: bool) -> None:
    """Make the views and ``root_state`` anew, with the raw text or without."""
    for name, (comment, query, columns) in VIEWS.items():
        op.execute(f"DROP VIEW {name}")
        kept = {column: text for column, text in columns.items() if shown or column != "detail"}
        given = query.format(detail="f.detail," if shown else "")
        _view(name, comment, given, kept, "ledger_reader, ledger_writer")
    op.execute("DROP FUNCTION root_state(bigint)")
    extra = {"column": ", detail text", "detail": ", f.detail"} if shown else {}
    op.execute(ROOT_STATE.format(**{"column": "", "detail": "", **extra}))
    op.execute(f"COMMENT ON FUNCTION root_state(bigint) IS {_literal(ROOT_STATE_COMMENT)}")
    op.execute("ALTER FUNCTION root_state(bigint) OWNER TO ledger_owner")


def _functions() -> None:
    for signature, (comment, body) in FUNCTIONS.items():
        name, _, argument = signature.removesuffix(")").partition("(")
        call = f"{name}({argument.split()[1]})"
        op.execute(f"CREATE FUNCTION {signature} {body}")
        op.execute(f"COMMENT ON FUNCTION {call} IS {_literal(comment)}")
        op.execute(f"REVOKE ALL ON FUNCTION {call} FROM PUBLIC")
        op.execute(f"GRANT EXECUTE ON FUNCTION {call} TO ledger_writer")
        op.execute(f"ALTER FUNCTION {call} OWNER TO ledger_owner")
    op.execute(CLEAR.format(guard=GUARD))


def _triggers() -> None:
    for name, body, comment in (
        ("refuse_rewriting", REFUSE, REFUSE_COMMENT),
        ("refuse_another_emit", REFUSE_EMIT, REFUSE_EMIT_COMMENT),
    ):
        op.execute(body)
        op.execute(f"COMMENT ON FUNCTION {name}() IS {_literal(comment)}")
        op.execute(f"ALTER FUNCTION {name}() OWNER TO ledger_owner")
    for table, rewrites in TRIGGERS.items():
        moment = "AFTER" if table in AFTER else "BEFORE"
        _trigger(table, moment, rewrites, "refuse_rewriting")
    other = f"{_of('NEW', EMIT)} IS DISTINCT FROM {_of('OLD', EMIT)}"
    _trigger("batch_source", "BEFORE", other, "refuse_another_emit")


def _trigger(table: str, moment: str, rewrites: str, function: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_history {moment} UPDATE ON {table} FOR EACH ROW "
        f"WHEN ({rewrites} AND {BY_A_WRITER}) EXECUTE FUNCTION {function}()"
    )


def upgrade() -> None:
    op.execute(ROLES)
    _functions()
    _triggers()
    op.execute("REVOKE INSERT, UPDATE, DELETE ON root_counter FROM ledger_writer")
    for table, columns in UPDATED.items():
        op.execute(f"REVOKE UPDATE, DELETE ON {table} FROM ledger_writer")
        if columns:
            op.execute(f"GRANT UPDATE ({columns}) ON {table} TO ledger_writer")
    for table in DELETED:
        op.execute(f"GRANT DELETE ON {table} TO ledger_writer")
    _details(shown=False)
    for table, columns in READ.items():
        op.execute(f"REVOKE SELECT ON {table} FROM ledger_reader")
        op.execute(f"GRANT SELECT ({columns}) ON {table} TO ledger_reader")
        op.execute(f"GRANT SELECT ON {table} TO ledger_payload_reader")
    _view("failed_root_payload", PAYLOAD_COMMENT, PAYLOAD, PAYLOAD_COLUMNS, "ledger_payload_reader")


def downgrade() -> None:
    # The roles stay: they belong to the server, and other databases may use them.
    op.execute("DROP VIEW failed_root_payload")
    for table in READ:
        op.execute(f"REVOKE SELECT ON {table} FROM ledger_reader, ledger_payload_reader")
        op.execute(f"GRANT SELECT ON {table} TO ledger_reader")
    _details(shown=True)
    for table in (*UPDATED, "root_counter"):
        op.execute(f"GRANT INSERT, UPDATE, DELETE ON {table} TO ledger_writer")
    op.execute(CLEAR.format(guard=""))
    for table in (*TRIGGERS, "batch_source"):
        op.execute(f"DROP TRIGGER {table}_history ON {table}")
    op.execute("DROP FUNCTION refuse_rewriting()")
    op.execute("DROP FUNCTION refuse_another_emit()")
    for signature in FUNCTIONS:
        name, _, argument = signature.removesuffix(")").partition("(")
        op.execute(f"DROP FUNCTION {name}({argument.split()[1]})")
