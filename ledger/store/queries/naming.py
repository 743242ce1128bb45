"""Statements that name where each failed root broke: what its runs emitted and acked, hop by hop.

Part of a settlement, like ``ledger.store.queries.settlement``: ``settling`` has the failed
roots, ``settling_run`` what each run did with them.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, text

from ledger.core.verdict import Hop
from ledger.store.queries import refining

# Its own statement: what an UPDATE reads is never scanned in parallel.
EMITTED_AND_ACKED = """
CREATE TEMP TABLE settling_run ON COMMIT DROP AS
SELECT f.*, r.step
FROM (
  SELECT d.root_id, d.step_run_id, bit_xor(d.delta # d.acked) AS emitted, bit_xor(d.acked) AS acked,
         sum(d.emitted_edges)::bigint AS emitted_edges, sum(d.acked_edges)::bigint AS acked_edges
  FROM ({rows}) d
  JOIN (SELECT root_id FROM settling UNION SELECT root_id FROM root_fail
    WHERE batch_id = :id) s USING (root_id)
  GROUP BY d.root_id, d.step_run_id
) f
JOIN step_run r ON r.step_run_id = f.step_run_id AND r.batch_id = :id AND r.state = 'committed'
"""


def collect_rows(connection: Connection, batch_id: int, *, spanned: bool) -> bool:
    """Fill ``settling_run`` with what each run emitted and acked of the roots that fail or may:
    all that is still to be asked of the deltas, which are not reread. False, and no such
    table, if there are none. ``spanned``: as ``refining.by_root`` has it.
    """
    some = (
        "SELECT EXISTS (SELECT FROM settling) OR EXISTS (SELECT FROM root_fail WHERE batch_id ="
        " :id)"
    )
    if not connection.execute(text(some), {"id": batch_id}).scalar_one():
        return False
    connection.execute(text("ANALYZE settling (root_id, step)"))
    statement = EMITTED_AND_ACKED.format(rows=refining.by_root(spanned))
    connection.execute(text(statement), {"id": batch_id})
    connection.execute(text("ANALYZE settling_run (root_id, step)"))
    return True


BREAKS = """
CREATE TEMP TABLE settling_break ON COMMIT DROP AS
WITH hop AS (
  SELECT * FROM unnest(cast(:producers AS text[]), cast(:consumers AS text[]),
                       cast(:components AS int[])) AS h (producer, consumer, component)
), role AS (
  SELECT DISTINCT component, producer AS step, true AS emits FROM hop
  UNION ALL SELECT DISTINCT component, consumer, false FROM hop
)
SELECT root_id, component, emitted_edges, acked_edges
FROM (
  SELECT s.root_id, r.component,
         bit_xor(CASE WHEN r.emits THEN s.emitted ELSE s.acked END) AS residue,
         sum(CASE WHEN r.emits THEN s.emitted_edges ELSE 0 END)::bigint AS emitted_edges,
         sum(CASE WHEN r.emits THEN 0 ELSE s.acked_edges END)::bigint AS acked_edges
  FROM settling_run s JOIN role r USING (step) GROUP BY s.root_id, r.component
) t
WHERE residue <> 0 OR emitted_edges <> acked_edges
"""


def collect_breaks(connection: Connection, hops: Sequence[Hop]) -> None:
    """Fill ``settling_break`` with the components of hops where each root broke: what their
    producers emitted differs, as XOR or as a count, from what their consumers acked.
    """
    connection.execute(text(BREAKS), _columns(hops))
    connection.execute(text("ANALYZE settling_break (root_id, component)"))


def _columns(hops: Sequence[Hop]) -> dict[str, list[int] | list[str]]:
    return {
        "producers": [hop.producer for hop in hops],
        "consumers": [hop.consumer for hop in hops],
        "components": [hop.component for hop in hops],
    }


NAME_HOPS = """
WITH hop AS (
  SELECT *, ARRAY[producer, consumer] && cast(:merging AS text[]) AS merging
  FROM unnest(cast(:ordinals AS int[]), cast(:producers AS text[]), cast(:consumers AS text[]),
              cast(:fanouts AS int[]), cast(:components AS int[]))
       AS h (ordinal, producer, consumer, fanout, component)
), component AS (
  SELECT component, min(ordinal) AS ordinal, count(DISTINCT consumer) AS readers,
         string_agg(DISTINCT producer, ', ') AS producers,
         (SELECT array_agg(consumer ORDER BY first) FROM (
            SELECT consumer, min(ordinal) AS first FROM hop h WHERE h.component = hop.component
            GROUP BY 1) c) AS consumers
  FROM hop GROUP BY component
), broken AS (
  SELECT b.*, k.producers, k.consumers, k.readers, k.ordinal
  FROM settling_break b JOIN component k USING (component)
  JOIN settling u ON u.root_id = b.root_id AND u.step IS NULL
), uneven AS (
  -- Of several with a wrong count one that did commit is to blame: the others never had their turn.
  SELECT due.root_id, due.component,
         array_agg(due.consumer ORDER BY due.ordinal) AS consumers,
         array_agg(due.consumer
           ORDER BY due.consumer = ANY (cast(:uncommitted AS text[])), due.merging,
             due.ordinal) AS blame
  FROM (
    SELECT p.root_id, h.component, h.consumer, bool_or(h.merging) AS merging,
           min(h.ordinal) AS ordinal, sum(p.emitted_edges / h.fanout) AS edges
    FROM settling_run p JOIN hop h ON h.producer = p.step JOIN component k USING (component)
    WHERE k.readers > 1 GROUP BY 1, 2, 3
  ) due
  LEFT JOIN settling_run c ON c.root_id = due.root_id AND c.step = due.consumer
  WHERE due.edges <> coalesce(c.acked_edges, 0)
  GROUP BY due.root_id, due.component
), blamed AS (
  SELECT b.*, coalesce(u.blame[1:1], b.consumers) AS culprits, u.consumers AS wrong
  FROM broken b LEFT JOIN uneven u USING (root_id, component)
), shape AS (
  -- Roots that broke alike are judged at once: there are few ways to break, and many roots.
  SELECT component, emitted_edges, acked_edges, culprits, wrong,
         min(ordinal) AS ordinal, min(producers) AS producers, array_agg(root_id) AS roots,
         coalesce(wrong, min(consumers)) AS concerned
  FROM blamed GROUP BY component, emitted_edges, acked_edges, culprits, wrong
), judged AS MATERIALIZED (
  SELECT s.*, s.culprits && cast(:uncommitted AS text[]) AS late,
         EXISTS (SELECT FROM hop h WHERE h.consumer = ANY (s.culprits) AND h.merging) AS merging,
         EXISTS (SELECT FROM hop h
           WHERE h.consumer = ANY (s.concerned) AND NOT h.merging) AS recordwise
  FROM shape s
), verdict AS MATERIALIZED (
  SELECT roots, ordinal, merging, late, recordwise, array_to_string(culprits, ', ') AS step,
         CASE WHEN late THEN 'did not commit in time'
              WHEN emitted_edges > acked_edges AND culprits && cast(:explicit AS text[])
              THEN 'not acked by ' || array_to_string(culprits, ', ')
              WHEN emitted_edges > acked_edges THEN 'lost'
              WHEN emitted_edges < acked_edges THEN 'acked too often'
              ELSE 'one lost and another acked too often' END AS reason,
         format('%s edges from %s, %s acked', emitted_edges, producers, acked_edges)
         || CASE WHEN cardinality(wrong) > 1 THEN '; wrong at ' || array_to_string(wrong, ', ')
           ELSE '' END AS detail
  FROM judged
), named AS (
  -- What a root lost by itself counts, whatever others lost with it; else the first hop.
  SELECT DISTINCT ON (root_id) root_id, merging, late, step, reason, detail,
         bool_or(recordwise) OVER (PARTITION BY root_id) AS incomplete
  FROM verdict, unnest(roots) AS r (root_id) ORDER BY root_id, merging OR late, ordinal
)
UPDATE settling s SET
  step = b.step, reason = b.reason, detail = b.detail,
  own_failure = NOT b.merging AND NOT b.late,
  shared = b.merging AND NOT b.late AND NOT b.incomplete,
  incomplete = b.incomplete
FROM named b WHERE b.root_id = s.root_id
"""


def name_hops(
    connection: Connection,
    hops: Sequence[Hop],
    uncommitted: Sequence[str],
    explicit: Sequence[str],
    merging: Sequence[str],
) -> None:
    """Name, for each root without an explicit fail, the first step where it broke.

    Of several consumers with a wrong count the first that committed is named, and the others in
    the detail. ``uncommitted``: steps that never committed; a root that broke there failed through
    no fault of its own. ``explicit``: stages that ack by themselves, so what is missing there was
    not acked rather than lost. ``merging``: whole stages and those after them; what is lost there
    may be for want of another record, so it is a failure of the unit, unless the root is
    incomplete: something of it is missing before them, too.
    """
    others = {
        "ordinals": [hop.ordinal for hop in hops],
        "fanouts": [hop.fanout for hop in hops],
        "uncommitted": list(uncommitted),
        "explicit": list(explicit),
        "merging": list(merging),
    }
    connection.execute(text(NAME_HOPS), {**_columns(hops), **others})


NOTE_MISSED = """
UPDATE settling s SET missed_by = m.sinks
FROM (
  SELECT root_id, array_agg(sink ORDER BY sink) AS sinks
  FROM settling_break
  JOIN unnest(cast(:sinks AS text[]), cast(:components AS int[])) AS i (sink, component)
    USING (component)
  GROUP BY root_id
) m WHERE m.root_id = s.root_id
"""


def note_missed(connection: Connection, sinks: Mapping[str, int]) -> None:
    """Note, of each failed root, the ``sinks`` that may not have got each of its rows once: those
    that did not prove it of their input as a whole, in a component where the root broke, wherever
    it is named. ``sinks``: with the component of each.
    """
    keys = {"sinks": list(sinks), "components": list(sinks.values())}
    connection.execute(text(NOTE_MISSED), keys)


def unnamed_roots(connection: Connection) -> int:
    """Roots in ``settling`` for which no broken hop was found: deltas that fit no producer."""
    return int(
        connection.execute(text("SELECT count(*) FROM settling WHERE step IS NULL")).scalar_one()
    )
