"""Statements of a settlement: all set-based, all within the transaction that holds the batch's
lock.

They hand rows to each other through the temporary table ``settling``, one row per failed root.
"""

from sqlalchemy import Connection, text

from ledger.errors import MASK


def tune(connection: Connection) -> None:
    """Set the planner for large sets until ``plan_as_usual``: hash in memory, and no nested loops.
    Statements must restrict joined tables to the batch, or all history would be read.

    The batch's deltas and ``settling`` are newer than the planner's statistics, from which it would
    choose nested loops. Naming 15,000 broken hops took 49 s with nested loops, and takes 0.3 s with
    hash joins.
    """
    connection.execute(text("SET LOCAL work_mem = '256MB'"))
    connection.execute(text("SET LOCAL enable_nestloop = off"))
    connection.execute(text("SET LOCAL jit = off"))


def plan_as_usual(connection: Connection) -> None:
    """Reset the planner for the rest of this transaction, for the few rows of a batch among all."""
    connection.execute(text("SET LOCAL enable_nestloop TO DEFAULT"))


def uneven_runs(connection: Connection, batch_id: int) -> list[tuple[str, int, str, str]]:
    """Return committed runs whose deltas in the ledger are not those that they recorded when they
    committed, and runs of sources without one delta for each span of their reserved range. A span
    is a single root where no roots share a row.

    Each comes with its step, what the run recorded and what the ledger has: rows, XOR, emitted and
    acked edges, and for a source its spans, by the first and the last of them.
    """
    statement = text("""
        SELECT * FROM (
          SELECT r.step, r.step_run_id,
                 (r.delta_rows, r.delta_xor, r.emitted_edges, r.acked_edges, s.spans, s.first_root,
                  s.first_root + (s.spans - 1) * s.span)::text AS recorded,
                 (coalesce(f.rows, 0), coalesce(f.delta_xor, 0), coalesce(f.emitted, 0),
                  coalesce(f.acked, 0),
                  CASE WHEN s.spans IS NULL THEN NULL WHEN s.span = 1 THEN coalesce(f.rows, 0)
                    ELSE (SELECT count(DISTINCT d.root_id) FROM ledger_delta d  -- it may recur
                          WHERE d.batch_id = :id AND d.step_run_id = s.emit_run_id) END,
                  CASE WHEN s.spans IS NOT NULL THEN coalesce(f.first, s.first_root) END,
                  CASE WHEN s.spans IS NOT NULL
                    THEN coalesce(f.last, s.first_root - s.span) END)::text AS posted
          FROM step_run r
          LEFT JOIN (
            SELECT emit_run_id, first_root, span, (roots + span - 1) / span AS spans
            FROM batch_source WHERE batch_id = :id
          ) s ON s.emit_run_id = r.step_run_id
          LEFT JOIN (
            SELECT step_run_id, count(*) AS rows, bit_xor(delta) AS delta_xor,
                   sum(emitted_edges) AS emitted, sum(acked_edges) AS acked, min(root_id) AS first,
                   max(root_id) AS last
            FROM ledger_delta WHERE batch_id = :id GROUP BY step_run_id
          ) f ON f.step_run_id = r.step_run_id
          WHERE r.batch_id = :id AND r.state = 'committed'
        ) compared WHERE recorded <> posted
    """)
    rows = connection.execute(statement, {"id": batch_id})
    return [(row.step, row.step_run_id, row.recorded, row.posted) for row in rows]


def stale_readers(connection: Connection, batch_id: int) -> list[tuple[str, str]]:
    """Return the steps whose committed run read a run that is no longer committed, each with the
    step of that run.
    """
    statement = text("""
        SELECT r.step AS reader, i.step AS input
        FROM step_run r
        JOIN step_run_input x USING (step_run_id)
        JOIN step_run i ON i.step_run_id = x.input_run_id
        WHERE r.batch_id = :id AND r.state = 'committed' AND i.state <> 'committed'
    """)
    return [(row.reader, row.input) for row in connection.execute(statement, {"id": batch_id})]


def total_roots(connection: Connection, batch_id: int) -> int:
    """Return how many roots the batch's committed emit runs emitted."""
    statement = text("SELECT coalesce(sum(roots), 0) FROM batch_source WHERE batch_id = :id")
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def add_explicit_fails(connection: Connection, batch_id: int, *, shared: bool) -> None:
    """Note where and why a committed run failed roots explicitly, by themselves or ``shared`` with
    others. A fail of a root by itself wins over what was found.

    Of several fails of one root the earliest step's counts, and of a step's reasons the first by
    name. That the step repeated the root, for which it gives no reason, counts only without another
    reason. Shared fails come last, and do not change roots that failed by themselves or are
    ``incomplete``.
    """
    statement = text("""
        WITH fail AS (
          SELECT DISTINCT ON (f.root_id) f.root_id, t.name AS step, f.reason, f.detail, f.shared,
                 (CASE WHEN f.reason IS NULL THEN 'repeated' WHEN t.kind = 'source' THEN 'unparsed'
                    WHEN t.kind = 'sink' THEN 'refused' ELSE 'rejected' END)::failure_cause AS cause
          FROM root_fail f JOIN step_run r USING (step_run_id)
          JOIN batch_step t ON t.batch_id = :id AND t.name = r.step
          WHERE f.batch_id = :id AND r.batch_id = :id AND r.state = 'committed'
            AND f.shared = :shared
          ORDER BY f.root_id, t.number, f.reason NULLS LAST
        )
        UPDATE settling s SET step = f.step, cause = f.cause, reason = f.reason, detail = f.detail,
               producers = NULL, emitted_edges = NULL, acked_edges = NULL, wrong_at = NULL,
               own_failure = NOT f.shared, shared = f.shared, incomplete = false
        FROM fail f
        WHERE f.root_id = s.root_id AND NOT (f.shared AND (s.own_failure OR s.incomplete))
    """)
    connection.execute(statement, {"id": batch_id, "shared": shared})


def name_losses(connection: Connection, batch_id: int) -> None:
    """Note the operation of a stage that lost each root, where the stage's run has found it."""
    statement = text("""
        UPDATE settling s SET reason = l.reason, operation = l.operation, place = l.place
        FROM lost_root o JOIN step_run r USING (step_run_id)
        JOIN step_run_loss l ON l.step_run_id = o.step_run_id AND l.number = o.number
        WHERE o.batch_id = :id AND r.batch_id = :id AND r.state = 'committed'
          AND o.root_id = s.root_id AND r.step = s.step AND s.cause = 'lost'
    """)
    connection.execute(statement, {"id": batch_id})


# A record that failed with others may do so because of them: it has two replays more. The record
# at fault is given up first, and the others have a turn without it.
GRACE = 2
# Of a failure s after n failed replays: whether the budget of its record is used up. The next
# replay of a whole batch leaves that record out, and quarantines it: until then, published rows may
# lack others for its sake. One that its source could not read has touched no other.
_SPENT = f"""
  (s.cause <> 'late' AND x.n >= :max_replays + CASE WHEN s.own_failure THEN 0 ELSE {GRACE} END)
"""
_STATUS = f"""
  (CASE WHEN {_SPENT} AND (NOT :whole OR s.cause = 'unparsed') THEN 'quarantined'
        ELSE 'failed' END)::message_status
"""


def record_failures_of_original(
    connection: Connection, batch_id: int, max_replays: int, *, whole: bool
) -> int:
    """Insert a new ``failed_message`` for each failed root of an original batch, and return how
    many. ``whole``: whether it is replayed as a whole.
    """
    statement = text(f"""
        INSERT INTO failed_message
          (message_id, original_batch_id, source, status, root_id, attempts, failed_replays,
           given_up)
        SELECT s.root_id, :id, b.source, {_STATUS}, s.root_id, 1, 0, :whole AND {_SPENT}
        FROM settling s
        JOIN batch_source b ON b.batch_id = :id AND s.root_id >= b.first_root
          AND s.root_id < b.first_root + b.roots
        CROSS JOIN (SELECT 0 AS n) x
        ORDER BY s.root_id  -- an index grows at its end
    """)
    keys = {"id": batch_id, "max_replays": max_replays, "whole": whole}
    return connection.execute(statement, keys).rowcount


def record_failures_of_replay(
    connection: Connection, batch_id: int, original_id: int, max_replays: int, *, whole: bool
) -> int:
    """Record the messages that failed in a replay as failed, or as quarantined if their budget is
    used up, and return how many. ``whole``: whether it replays a whole batch. A message that had
    been acked or recovered counts as failed then, because the replay replaces its rows.
    """
    statement = text(f"""
        INSERT INTO failed_message AS m
          (message_id, original_batch_id, source, status, root_id, attempts, failed_replays,
           given_up)
        SELECT r.message_id, :original, b.source, {_STATUS}, s.root_id,
               coalesce(k.attempts, 0) + 1, x.n, :whole AND {_SPENT}
        FROM settling s
        JOIN replay_root r ON r.root_id = s.root_id AND r.batch_id = :id
        JOIN batch_source b ON b.batch_id = :id AND b.emit_run_id = r.step_run_id
        LEFT JOIN failed_message k ON k.message_id = r.message_id
          AND k.original_batch_id = :original
        CROSS JOIN LATERAL (
          SELECT coalesce(k.failed_replays + (s.cause <> 'late')::int, 0) AS n) x
        WHERE k.message_id IS NULL OR k.status = 'recovered'
           OR k.status = 'replaying' AND k.replay_batch_id = :id
        ORDER BY r.message_id
        ON CONFLICT (message_id) DO UPDATE SET
          status = excluded.status, root_id = excluded.root_id, attempts = excluded.attempts,
          failed_replays = excluded.failed_replays, given_up = excluded.given_up,
          replay_batch_id = NULL, not_before = NULL, updated_at = now()
    """)
    keys = {"id": batch_id, "original": original_id, "max_replays": max_replays, "whole": whole}
    return connection.execute(statement, keys).rowcount


def recover_rest_of_replay(connection: Connection, batch_id: int) -> int:
    """Mark the messages of a replay that did not fail again as recovered, those that it left out as
    quarantined, and return how many.
    """
    statement = text("""
        UPDATE failed_message SET updated_at = now(),
               status = (CASE WHEN given_up THEN 'quarantined' ELSE 'recovered' END)::message_status
        WHERE replay_batch_id = :id AND status = 'replaying'
    """)
    return connection.execute(statement, {"id": batch_id}).rowcount


def record_attempts(connection: Connection, batch_id: int) -> int:
    """Keep permanently where and why each root failed, and return how many. For a forgotten
    message, which a replay of its batch includes, the reason is masked: it may quote the message.
    """
    statement = text("""
        INSERT INTO failed_root
          (root_id, message_id, batch_id, attempt, step, cause, reason, operation, place, detail,
           producers, emitted_edges, acked_edges, wrong_at, residue, own_failure, shared, missed_by)
        SELECT s.root_id, m.message_id, :id, m.attempts, s.step, s.cause,
               CASE WHEN f.message_id IS NULL OR s.reason IS NULL THEN s.reason ELSE :mask END,
               s.operation, s.place, CASE WHEN f.message_id IS NULL THEN s.detail END,
               s.producers, s.emitted_edges, s.acked_edges, s.wrong_at, s.residue,
               s.own_failure, s.shared, s.missed_by
        FROM settling s JOIN failed_message m ON m.root_id = s.root_id
        LEFT JOIN failed_payload f ON f.message_id = m.message_id AND f.forgotten_at IS NOT NULL
          AND f.batch_id = (SELECT family_id FROM batch WHERE batch_id = :id)
        WHERE m.original_batch_id = (SELECT family_id FROM batch WHERE batch_id = :id)
        ORDER BY s.root_id
    """)
    return connection.execute(statement, {"id": batch_id, "mask": MASK}).rowcount


def mark_settled(connection: Connection, batch_id: int, roots: int, failed: int) -> bool:
    """Mark an open batch as settled; return False if it was not open.

    It is settled after all others of its family, even if the clock was set back since.
    """
    statement = text("""
        UPDATE batch b SET status = 'settled', roots = :roots, failed_roots = :failed,
          settled_at = greatest(clock_timestamp(), (
            SELECT max(o.settled_at) + interval '1 microsecond' FROM batch o
            WHERE o.family_id = b.family_id))
        WHERE b.batch_id = :id AND b.status = 'open'
    """)
    keys = {"id": batch_id, "roots": roots, "failed": failed}
    return connection.execute(statement, keys).rowcount == 1


def release_messages(connection: Connection, batch_id: int) -> None:
    """Give back the messages that an abandoned replay claimed, as it found them."""
    statement = text("""
        UPDATE failed_message m SET replay_batch_id = NULL, updated_at = now(),
               status = c.status, not_before = c.not_before, failed_replays = c.failed_replays,
               given_up = c.given_up
        FROM message_claim c
        WHERE m.replay_batch_id = :id AND m.status = 'replaying'
          AND c.batch_id = :id AND c.message_id = m.message_id
    """)
    connection.execute(statement, {"id": batch_id})
