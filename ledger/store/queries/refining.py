"""Statements of a settlement about single roots. A span's first root has the span's number, so only
this module asks about single roots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import IO

import numpy as np
from sqlalchemy import Connection, text

from ledger.databases.driver_errors import raw_cursor
from ledger.deltas.binary_copy import decode
from ledger.deltas.kernel import Deltas
from ledger.deltas.rows import Longs
from ledger.store.queries.rows import all_of

COLUMNS = ("step_run_id", "root_id", "delta", "acked", "emitted_edges", "acked_edges")
_COMMITTED = "SELECT step_run_id FROM step_run WHERE batch_id = {id} AND state = 'committed'"
# A root that no source has stands for itself.
_UNEVEN = f"""
COPY (
  WITH source AS (
    SELECT first_root, first_root + roots AS after, span FROM batch_source
    WHERE batch_id = %(id)s
  ), root AS (
    SELECT root_id FROM ledger_delta
    WHERE batch_id = %(id)s AND step_run_id IN ({_COMMITTED.format(id="%(id)s")})
    GROUP BY root_id
    HAVING bit_xor(delta) <> 0 OR sum(emitted_edges) <> sum(acked_edges)
    UNION ALL
    SELECT root_id FROM root_fail
    WHERE batch_id = %(id)s AND step_run_id IN ({_COMMITTED.format(id="%(id)s")})
  )
  SELECT DISTINCT coalesce(root_id & ~(span - 1), root_id)
  FROM root LEFT JOIN source ON root_id >= first_root AND root_id < after
) TO STDOUT (FORMAT binary)
"""
# A root whose rows are even has no step here, until a run's word is added that it failed.
SETTLING = """
CREATE TEMP TABLE settling (
  root_id bigint NOT NULL, residue bigint NOT NULL, step text, cause failure_cause,
  producers text, emitted_edges bigint, acked_edges bigint, wrong_at text,
  own_failure boolean NOT NULL, shared boolean NOT NULL, incomplete boolean NOT NULL,
  missed_by text[], reason text, operation text, place text, detail text
) ON COMMIT DROP
"""

_FILL = """
COPY settling (root_id, residue, step, cause, producers, emitted_edges, acked_edges, wrong_at,
               own_failure, shared, incomplete, missed_by) FROM STDIN (FORMAT binary)
"""


@dataclass(frozen=True)
class CommittedRun:
    """A committed run of a batch that counts.

    ``root_files``: the folder of its deltas by root; None if it recorded none.
    ``acks_proved``: whether the run of a sink proved that it took each row of its input once.
    """

    step_run_id: int
    step: str
    root_files: str | None
    acks_proved: bool = False


def uneven_spans(connection: Connection, batch_id: int) -> Longs:
    """Return the first roots of the spans that are not balanced over all committed runs, or in
    which one of these runs failed a root. Sorted.
    """
    (spans,) = _copied(connection, _UNEVEN, {"id": batch_id}, 1)
    return np.sort(spans)


def committed(connection: Connection, batch_id: int) -> list[CommittedRun]:
    """Return the runs of a batch that count, oldest first."""
    statement = text("""
        SELECT step_run_id, step, root_files, coalesce(acks_proved, false) AS acks_proved
        FROM step_run WHERE batch_id = :id AND state = 'committed' ORDER BY step_run_id
    """)
    return all_of(CommittedRun, connection.execute(statement, {"id": batch_id}))


def posted(
    connection: Connection, batch_id: int, run_ids: Sequence[int], span_roots: Longs
) -> dict[int, Deltas]:
    """Return the deltas that each of these runs of a batch has posted for spans, one row for each
    span, by its first root.
    """
    asked = """
        COPY (
          SELECT step_run_id, root_id, bit_xor(delta), bit_xor(acked), sum(emitted_edges)::bigint,
                 sum(acked_edges)::bigint
          FROM ledger_delta
          WHERE batch_id = %s AND step_run_id = ANY (%s) AND root_id = ANY (cast(%s AS bigint[]))
          GROUP BY step_run_id, root_id
        ) TO STDOUT (FORMAT binary)
    """
    # As one literal: a list of a hundred thousand is parsed item by item.
    values = (batch_id, list(run_ids), f"{{{','.join(map(str, span_roots.tolist()))}}}")
    run, *columns = _copied(connection, asked, values)
    return {
        int(number): Deltas(*(column[run == number] for column in columns))
        for number in np.unique(run)
    }


def failed_roots(connection: Connection, batch_id: int, first: int, last: int) -> Longs:
    """Return the roots in a range that a committed run failed explicitly, by themselves or with
    others.
    """
    asked = """
        COPY (
          SELECT DISTINCT f.root_id FROM root_fail f JOIN step_run r USING (step_run_id)
          WHERE f.batch_id = %(id)s AND r.batch_id = %(id)s AND r.state = 'committed'
            AND f.root_id BETWEEN %(first)s AND %(last)s
        ) TO STDOUT (FORMAT binary)
    """
    values: dict[str, object] = {"id": batch_id, "first": first, "last": last}
    (roots,) = _copied(connection, asked, values, 1)
    return np.sort(roots)


def _copied(
    connection: Connection,
    statement: str,
    values: tuple[object, ...] | dict[str, object],
    columns: int = len(COLUMNS),
) -> list[Longs]:
    """Return this many columns of bigint from the output of a COPY."""
    stream = BytesIO()
    with raw_cursor(connection) as cursor:
        cursor.copy_expert(cursor.mogrify(statement, values), stream)
    return decode(stream.getvalue(), columns)


def fill(connection: Connection, rows: IO[bytes]) -> None:
    """Fill ``settling`` with the roots that are not even or failed, as PostgreSQL's binary COPY has
    them.
    """
    connection.execute(text(SETTLING))
    rows.seek(0)
    with raw_cursor(connection) as cursor:
        cursor.copy_expert(_FILL, rows)
    connection.execute(text("ANALYZE settling (root_id, step)"))


def failed_without_rows(connection: Connection, batch_id: int) -> int:
    """Return how many roots a committed run failed explicitly that are not in ``settling``: whether
    a sink acked a row of them is not known.
    """
    statement = text(f"""
        SELECT count(DISTINCT f.root_id) FROM root_fail f
        WHERE f.batch_id = :id AND f.step_run_id IN ({_COMMITTED.format(id=":id")})
          AND NOT EXISTS (SELECT FROM settling s WHERE s.root_id = f.root_id)
    """)
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def unnamed_roots(connection: Connection) -> int:
    """Return how many roots in ``settling`` broke at no step, although no run failed them
    explicitly.
    """
    statement = text("SELECT count(*) FROM settling WHERE step IS NULL")
    return int(connection.execute(statement).scalar_one())
