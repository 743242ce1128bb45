"""Statements of a settlement about spans, of which a run has one row for all their roots.

What a settlement asks of single roots it reads by ``by_root``, and nowhere else: a span's first
root has the span's number. Rows of its roots come from the files of the runs, by way of the
temporary table ``settling_delta``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

import numpy as np
from sqlalchemy import Connection, text

from ledger.databases.driver_errors import raw_cursor
from ledger.deltas.binary_copy import decode
from ledger.deltas.kernel import Deltas
from ledger.deltas.rows import Longs
from ledger.deltas.single_roots import taking
from ledger.store.queries import runs

COLUMNS = ("step_run_id", "root_id", "delta", "acked", "emitted_edges", "acked_edges")
_LIST = ", ".join(COLUMNS)
# Whether a root is of a source whose roots share rows. A root that no source has stands for itself.
_SPANNED = """
  EXISTS (SELECT FROM batch_source s WHERE s.batch_id = :id AND s.span > 1
          AND {root} >= s.first_root AND {root} < s.first_root + s.roots)
"""
_ROWS = f"SELECT {_LIST} FROM ledger_delta d WHERE d.batch_id = :id"
_REFINED = f"""
  {_ROWS} AND NOT {_SPANNED.format(root="d.root_id")}
  UNION ALL SELECT {_LIST} FROM settling_delta
"""
_COMMITTED = "SELECT step_run_id FROM step_run WHERE batch_id = :id AND state = 'committed'"
_SPANS = f"""
WITH spanned AS (
  SELECT first_root, first_root + roots AS after, span FROM batch_source
  WHERE batch_id = :id AND span > 1
), root AS (
  SELECT root_id FROM ledger_delta
  WHERE batch_id = :id AND step_run_id IN ({_COMMITTED})
  GROUP BY root_id
  HAVING bit_xor(delta) <> 0 OR sum(emitted_edges) <> sum(acked_edges)
  UNION ALL
  SELECT root_id FROM root_fail WHERE batch_id = :id AND step_run_id IN ({_COMMITTED})
)
SELECT DISTINCT root_id & ~(span - 1) FROM root JOIN spanned ON root_id >= first_root
  AND root_id < after
ORDER BY 1
"""


@dataclass(frozen=True)
class SpannedRun:
    """A committed run. ``root_files``: the folder of what it adds to each root; None: it noted
    none.
    """

    step_run_id: int
    step: str
    root_files: str | None


def by_root(spanned: bool) -> str:
    """What each run adds to each root of the batch ``:id``. ``spanned``: some of its rows are those
    of spans, and ``settling_delta`` has what is to be known of their roots.
    """
    return _REFINED if spanned else _ROWS


def is_spanned(connection: Connection, batch_id: int) -> bool:
    """Whether some roots of a batch share the rows of a run."""
    return any(some.span > 1 for some in runs.root_ranges(connection, batch_id))


def spans(connection: Connection, batch_id: int) -> list[int]:
    """The first roots of the spans that are not even over all committed runs, or of which one of
    these failed a root.
    """
    return list(connection.execute(text(_SPANS), {"id": batch_id}).scalars())


def committed(connection: Connection, batch_id: int) -> list[SpannedRun]:
    """The runs of a batch that count, oldest first."""
    statement = text("""
        SELECT step_run_id, step, root_files FROM step_run
        WHERE batch_id = :id AND state = 'committed' ORDER BY step_run_id
    """)
    rows = connection.execute(statement, {"id": batch_id})
    return [SpannedRun(**row._mapping) for row in rows]


def posted(connection: Connection, batch_id: int, span_roots: Sequence[int]) -> dict[int, Deltas]:
    """What each run of a batch has posted of spans, by their first roots."""
    asked = f"""
        COPY (
          SELECT {_LIST} FROM ledger_delta
          WHERE batch_id = %s AND root_id = ANY (cast(%s AS bigint[]))
        ) TO STDOUT (FORMAT binary)
    """
    values = (batch_id, list(span_roots))
    run, root, delta, acked, emitted_edges, acked_edges = _copied(connection, asked, values)
    every = Deltas(root, delta, acked, emitted_edges, acked_edges)
    return {int(number): taking(every, run == number) for number in np.unique(run)}


def failed_roots(connection: Connection, batch_id: int, first: int, last: int) -> Longs:
    """The roots in a range that a committed run failed explicitly, by themselves or with others."""
    asked = """
        COPY (
          SELECT DISTINCT f.root_id FROM root_fail f JOIN step_run r USING (step_run_id)
          WHERE f.batch_id = %s AND r.state = 'committed' AND f.root_id BETWEEN %s AND %s
        ) TO STDOUT (FORMAT binary)
    """
    (roots,) = _copied(connection, asked, (batch_id, first, last), 1)
    return np.sort(roots)


def _copied(
    connection: Connection,
    statement: str,
    values: tuple[object, ...],
    columns: int = len(COLUMNS),
) -> list[Longs]:
    """So many columns of bigint, as a COPY hands them out."""
    stream = BytesIO()
    with raw_cursor(connection) as cursor:
        cursor.copy_expert(cursor.mogrify(statement, values), stream)
    return decode(stream.getvalue(), columns)


def fill(connection: Connection, rows: BinaryIO | None) -> None:
    """Fill ``settling_delta`` with the rows of single roots, as PostgreSQL's binary COPY has them;
    None: there are none.
    """
    columns = ", ".join(f"{name} bigint NOT NULL" for name in COLUMNS)
    connection.execute(text(f"CREATE TEMP TABLE settling_delta ({columns}) ON COMMIT DROP"))
    if rows is None:
        return
    rows.seek(0)
    with raw_cursor(connection) as cursor:
        cursor.copy_expert(f"COPY settling_delta ({_LIST}) FROM STDIN (FORMAT binary)", rows)
    connection.execute(text("ANALYZE settling_delta (root_id, step_run_id)"))


def failed_without_rows(connection: Connection, batch_id: int) -> int:
    """How many roots of spans a committed run failed explicitly without a row in
    ``settling_delta``: that a sink acked no row of them is not known.
    """
    statement = text(f"""
        SELECT count(DISTINCT f.root_id) FROM root_fail f
        WHERE f.batch_id = :id AND f.step_run_id IN ({_COMMITTED})
          AND {_SPANNED.format(root="f.root_id")}
          AND NOT EXISTS (SELECT FROM settling_delta d WHERE d.root_id = f.root_id)
    """)
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())
