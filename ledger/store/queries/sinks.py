"""The statement about each sink's rows of a batch."""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of


@dataclass(frozen=True)
class SinkRows:
    """One sink of a batch, and its published rows.

    ``state``: state of its publication, as in ``sink_publication``; None: nothing is decided.
    ``published_rows``: None until they are counted.
    ``staged_rows``: None: its step is not committed.
    ``other_batch_id``: a replay, or the original, whose publication a combine's sink shows.
    ``failed``: number of failed records that it waits for or lacks. It lacks those that failed at a
    step that feeds it. If it withholds rows, it lacks those of all sources that feed it.
    ``replayable``: whether a replay would take some of these now.
    ``due``: whether ``ackledger publish`` goes on with it.
    ``holds``: whether its batch publishes nothing while a record is failed.
    ``early``: whether it reads a partial combine.
    ``whole``: whether a replay of its batch replaces all rows.
    """

    sink: str
    batch_id: int
    original_id: int
    status: str
    after: bool
    stateful: bool
    holds: bool
    early: bool
    whole: bool
    staged_rows: int | None
    state: str | None
    published_rows: int | None
    withheld_rows: int | None
    other_batch_id: int | None
    other_rows: int | None
    failed: int
    replayable: bool
    due: bool


def of_batch(connection: Connection, batch_id: int) -> list[SinkRows]:
    """Return the sinks of a batch, in order."""
    statement = text("""
        WITH RECURSIVE feeding (sink, step) AS (
          SELECT name, name FROM batch_step WHERE batch_id = :id AND kind = 'sink'
          UNION
          SELECT f.sink, r.step FROM feeding f
          JOIN batch_step t ON t.batch_id = :id AND t.name = f.step
          CROSS JOIN LATERAL jsonb_array_elements_text(t.declaration -> 'reads') r (step)
        )
        SELECT s.name AS sink, b.batch_id, b.family_id AS original_id, b.status::text AS status,
               s.after, s.stateful,
               b.publish = 'complete' AS holds,
               EXISTS (SELECT FROM batch_step c WHERE c.batch_id = s.batch_id AND c.partial
                       AND s.declaration -> 'reads' ? c.name) AND b.publish <> 'complete' AS early,
               w.whole,
               r.output_rows AS staged_rows, x.state, x.rows AS published_rows, x.withheld_rows,
               o.batch_id AS other_batch_id, o.rows AS other_rows,
               m.failed, m.replayable,
               EXISTS (SELECT FROM pending_follow_up f WHERE f.family_id = b.family_id
                       AND f.follow_up IN ('combine', 'state') AND f.since IS NOT NULL
                       AND (f.step = s.name OR s.declaration -> 'reads' ? f.step)) AS due
        FROM batch_step s
        JOIN batch b USING (batch_id)
        CROSS JOIN (SELECT coalesce(bool_or(merges), false) AS whole
                    FROM batch_step WHERE batch_id = :id) w
        LEFT JOIN step_run r
          ON r.batch_id = s.batch_id AND r.step = s.name AND r.state = 'committed'
        LEFT JOIN LATERAL (
          SELECT p.state, p.rows, p.withheld_rows FROM sink_publication p
          WHERE p.batch_id = s.batch_id AND p.sink = s.name
          ORDER BY p.state = 'published' DESC, p.step_run_id DESC LIMIT 1) x ON true
        LEFT JOIN LATERAL (
          SELECT p.batch_id, p.rows FROM batch f JOIN publication p USING (batch_id)
          WHERE s.after AND f.family_id = b.family_id AND f.batch_id <> b.batch_id
            AND p.sink = s.name AND p.published_at IS NOT NULL AND p.replaced_at IS NULL
          ORDER BY p.published_at DESC LIMIT 1) o ON true
        CROSS JOIN LATERAL (
          SELECT count(*) AS failed,
                 coalesce(bool_or(m.status = 'failed'
                                  AND coalesce(m.not_before <= now(), true)), false) AS replayable
          FROM failed_message m
          WHERE m.original_batch_id = b.family_id AND m.status IN ('failed', 'replaying')
            AND CASE
              WHEN b.publish = 'complete' THEN true
              WHEN s.after THEN coalesce(s.declaration -> 'awaits' ? m.source, true)
              ELSE EXISTS (
                SELECT FROM feeding f
                WHERE f.sink = s.name
                  AND f.step = CASE WHEN w.whole AND coalesce(x.withheld_rows, 0) = 0
                    THEN (SELECT q.step FROM failed_root q WHERE q.root_id = m.root_id)
                    ELSE m.source END) END) m
        WHERE s.batch_id = :id AND s.kind = 'sink' ORDER BY s.number
    """)
    return all_of(SinkRows, connection.execute(statement, {"id": batch_id}))
