"""Statements about what sinks are to publish of settled batches, and what they do show."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

# The batches whose rows a batch takes the place of in its sinks: the family that it was opened to
# replace, with the further parts of its interval, and whatever that one was opened to replace.
_REPLACED = """
WITH RECURSIVE chain AS (
  SELECT o.replaces_batch_id AS batch_id FROM batch b JOIN batch o ON o.batch_id = b.family_id
  WHERE b.batch_id = :id AND o.replaces_batch_id IS NOT NULL
  UNION
  SELECT b.replaces_batch_id FROM batch b JOIN chain USING (batch_id)
  WHERE b.replaces_batch_id IS NOT NULL
), part AS (
  SELECT batch_id FROM chain
  UNION SELECT s.batch_id FROM batch_source s JOIN chain c ON s.rest_of_batch_id = c.batch_id
)
SELECT b.batch_id FROM batch b JOIN part p ON p.batch_id = b.family_id
"""

# What the sinks of a batch staged that are published once it is settled.
_STAGED = """
FROM step_run r JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.stage
WHERE r.batch_id = :id AND r.state = 'committed' AND s.kind = 'sink' AND NOT s.after
"""


def decide(connection: Connection, batch_id: int, *, clean: bool) -> int:
    """Decide that the sinks show a settled batch, each what its committed run staged; how many.

    ``clean``: nothing of it failed, so the staged files are what is to be shown. What was
    decided stays.
    """
    statement = text(f"""
        INSERT INTO publication (batch_id, sink, step_run_id, ready, rows)
        SELECT r.batch_id, r.stage, r.step_run_id, :clean, CASE WHEN :clean THEN r.output_rows END
        {_STAGED}
        ON CONFLICT DO NOTHING
    """)
    return connection.execute(statement, {"id": batch_id, "clean": clean}).rowcount


def decide_untouched(connection: Connection, batch_id: int) -> int:
    """Within a settlement, for the sinks that acked no row of the roots in ``settling``: what
    they staged is what is to be published; how many. Where rows are withheld by unit that says
    nothing.
    """
    statement = text(f"""
        INSERT INTO publication (batch_id, sink, step_run_id, ready, rows)
        SELECT r.batch_id, r.stage, r.step_run_id, true, r.output_rows
        {_STAGED} AND NOT s.units
          AND r.step_run_id NOT IN (
            SELECT d.step_run_id FROM settling_run d JOIN settling s USING (root_id)
            WHERE d.acked_edges > 0)
    """)
    return connection.execute(statement, {"id": batch_id}).rowcount


def settled_family(connection: Connection, original_id: int) -> Sequence[Row[Any]]:
    """Settled batches of a family that run exactly once: batch_id, whether nothing of them
    failed (clean).
    """
    statement = text("""
        SELECT b.batch_id, b.failed_roots = 0 AS clean FROM batch b
        WHERE b.family_id = :id AND b.status = 'settled' AND b.guarantee = 'exactly_once'
        ORDER BY 1
    """)
    return connection.execute(statement, {"id": original_id}).all()


def open_failures(connection: Connection, original_id: int) -> int:
    """Messages of an original that are failed or being replayed."""
    statement = text("""
        SELECT count(*) FROM failed_message
        WHERE original_batch_id = :id AND status IN ('failed', 'replaying')
    """)
    return int(connection.execute(statement, {"id": original_id}).scalar_one())


def supersede(connection: Connection, batch_id: int) -> int:
    """What is decided and not published of the batches that ``batch_id`` replaces never will be;
    how many.
    """
    statement = text(f"""
        UPDATE publication SET replaced_at = now()
        WHERE published_at IS NULL AND replaced_at IS NULL AND batch_id IN ({_REPLACED})
    """)
    return connection.execute(statement, {"id": batch_id}).rowcount


# A settled batch f in which records of units were given up, and nobody has asked yet for the units
# without them.
_ASLEEP = """
f.status = 'settled' AND f.guarantee = 'exactly_once' AND f.woken_at IS NULL AND f.failed_roots > 0
AND EXISTS (SELECT FROM batch_step s WHERE s.batch_id = f.batch_id AND s.whole)
AND EXISTS (SELECT FROM failed_root r JOIN failed_message m USING (message_id)
            WHERE r.batch_id = f.batch_id AND m.status = 'quarantined' AND m.root_id = r.root_id)
"""

_PENDING = """
SELECT x.batch_id, x.sink, x.step_run_id, x.ready, x.folder, x.files, x.rows, i.input_run_id,
       b.family_id AS original_id, b.interval_start, b.interval_end,
       p.name AS pipeline
FROM pending_publication x
JOIN batch b USING (batch_id)
JOIN pipeline p USING (pipeline_id)
JOIN step_run_input i USING (step_run_id)
"""


def pending(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """What is decided and not published of a batch's family: batch_id, sink, step_run_id, ready,
    folder, files, rows, input_run_id, original_id, interval_start, interval_end, pipeline;
    oldest batch first.
    """
    statement = text(f"""
        {_PENDING} WHERE b.family_id = (SELECT family_id FROM batch WHERE batch_id = :id)
        ORDER BY x.batch_id, x.sink
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def lock_pending(connection: Connection, batch_id: int, sink: str) -> Row[Any] | None:
    """The pending publication, locked for the transaction; None if it is published, replaced, or
    somebody else is at it.
    """
    statement = text(
        f"{_PENDING} WHERE x.batch_id = :id AND x.sink = :sink FOR UPDATE OF x SKIP LOCKED"
    )
    return connection.execute(statement, {"id": batch_id, "sink": sink}).first()


def state(connection: Connection, batch_id: int, sink: str) -> str:
    """What ``sink_publication`` says of it."""
    statement = text("SELECT state FROM sink_publication WHERE batch_id = :id AND sink = :sink")
    return str(connection.execute(statement, {"id": batch_id, "sink": sink}).scalar_one())


def set_ready(
    connection: Connection, batch_id: int, sink: str, folder: str, files: list[dict[str, Any]]
) -> bool:
    """The files that hold just what is to be published; False if others were named already."""
    statement = text("""
        UPDATE pending_publication
        SET ready = true, folder = :folder, files = cast(:files AS jsonb), rows = :rows
        WHERE batch_id = :id AND sink = :sink AND NOT ready
    """)
    rows = sum(file["rows"] for file in files)
    keys = {
        "id": batch_id,
        "sink": sink,
        "folder": folder,
        "files": json.dumps(files),
        "rows": rows,
    }
    return connection.execute(statement, keys).rowcount == 1


def set_staged_anew(
    connection: Connection,
    row: Row[Any],
    folder: str,
    files: list[dict[str, Any]],
) -> bool:
    """Other files, in place of lost ones, of a pending publication; False if it has others by
    now."""
    statement = text("""
        UPDATE pending_publication SET folder = :folder, files = cast(:files AS jsonb)
        WHERE batch_id = :id AND sink = :sink AND ready
          AND folder IS NOT DISTINCT FROM cast(:before AS text)
    """)
    keys = {"id": row.batch_id, "sink": row.sink, "folder": folder, "before": row.folder}
    return connection.execute(statement, {**keys, "files": json.dumps(files)}).rowcount == 1


def set_published(connection: Connection, batch_id: int, sink: str) -> None:
    """The sink has published the batch."""
    connection.execute(
        text("UPDATE publication SET published_at = now() WHERE batch_id = :id AND sink = :sink"),
        {"id": batch_id, "sink": sink},
    )


def replaced_batches(connection: Connection, batch_id: int, run_id: int) -> list[int]:
    """Batches whose rows the sink's run of a batch takes the place of: those that the batch
    reprocesses, and those of its family whose units it brings again.
    """
    statement = text(f"""
        {_REPLACED} UNION SELECT replaced_batch_id FROM sink_replacement WHERE step_run_id = :run
          ORDER BY 1
    """)
    found = connection.execute(statement, {"id": batch_id, "run": run_id})
    return [row.batch_id for row in found]


def note_brought_again(connection: Connection, run_id: int, batch_ids: Sequence[int]) -> None:
    """The batches of its family whose rows a sink's run brings again."""
    for batch_id in batch_ids:
        connection.execute(
            text(
                "INSERT INTO sink_replacement (step_run_id, replaced_batch_id) VALUES (:run,"
                " :batch)"
            ),
            {"run": run_id, "batch": batch_id},
        )


def failed_roots(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """Roots that failed in a batch: root_id, source, stage, and whether their message had, or is
    to have, a further attempt (live): it was not given up with this one.
    """
    statement = text("""
        SELECT r.root_id, m.source, r.stage,
               NOT (m.status = 'quarantined' AND m.root_id = r.root_id) AS live
        FROM failed_root r JOIN failed_message m USING (message_id) WHERE r.batch_id = :id
        ORDER BY 1
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def set_replaced(connection: Connection, batch_ids: Sequence[int], sink: str) -> None:
    """The sink shows these batches no longer."""
    connection.execute(
        text("""
        UPDATE publication SET replaced_at = now()
        WHERE batch_id = ANY(:ids) AND sink = :sink AND replaced_at IS NULL
        """),
        {"ids": list(batch_ids), "sink": sink},
    )


def unpublished(connection: Connection, batch_id: int) -> int:
    """Sinks that are yet to publish what is decided of a batch."""
    statement = text("SELECT count(*) FROM pending_publication WHERE batch_id = :id")
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def waiting(connection: Connection, pipeline: str, batch_id: int | None) -> list[int]:
    """Batches of a pipeline, or the one, of which something is decided and not published, or units
    are to be asked for again."""
    statement = text(f"""
        SELECT x.batch_id FROM pending_publication x
        JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND (cast(:id AS bigint) IS NULL OR x.batch_id = :id)
        UNION
        SELECT f.batch_id FROM batch f JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND (cast(:id AS bigint) IS NULL OR f.batch_id = :id) AND {_ASLEEP}
        ORDER BY 1
    """)
    found = connection.execute(statement, {"pipeline": pipeline, "id": batch_id})
    return [row.batch_id for row in found]


def unpublished_of(connection: Connection, holder: int, batch_id: int, sink: str) -> bool:
    """Whether a sink is yet to publish the batch that has the interval of which ``batch_id``
    read a part, be it that nothing is decided of that one yet, for records of it are failed
    (settle="hold").
    """
    statement = text("""
        SELECT EXISTS (
          SELECT FROM batch h
          JOIN step_run r ON r.batch_id = h.batch_id AND r.stage = :sink AND r.state = 'committed'
          LEFT JOIN publication x ON x.batch_id = h.batch_id AND x.sink = r.stage
          WHERE h.batch_id = :holder AND h.status = 'settled' AND h.guarantee = 'exactly_once'
            AND x.published_at IS NULL AND x.replaced_at IS NULL
            AND :holder <> (SELECT family_id FROM batch WHERE batch_id = :id))
    """)
    keys = {"holder": holder, "id": batch_id, "sink": sink}
    return bool(connection.execute(statement, keys).scalar_one())


def units_to_rebuild(connection: Connection, batch_id: int) -> list[int]:
    """Settled batches of a batch's family in which records of units were given up, and nobody
    has asked yet for the units without them.
    """
    statement = text(f"""
        SELECT f.batch_id FROM batch b JOIN batch f USING (family_id)
        WHERE b.batch_id = :id AND {_ASLEEP}
        ORDER BY 1
    """)
    return [row.batch_id for row in connection.execute(statement, {"id": batch_id})]


def set_woken(connection: Connection, batch_id: int) -> None:
    """Units of a batch whose records were given up are asked for."""
    connection.execute(
        text("UPDATE batch SET woken_at = now() WHERE batch_id = :id"), {"id": batch_id}
    )


def cancel(connection: Connection, batch_id: int, sink: str) -> None:
    """A sink never publishes a batch: what it was to publish anew failed again, and what is
    published stays.
    """
    connection.execute(
        text("""
        UPDATE publication SET replaced_at = now()
        WHERE batch_id = :id AND sink = :sink AND published_at IS NULL AND replaced_at IS NULL
          AND NOT ready
        """),
        {"id": batch_id, "sink": sink},
    )


def republished(connection: Connection, run_id: int) -> bool:
    """Whether a sink's run brings rows again that earlier batches of its family have shown."""
    statement = text("SELECT EXISTS (SELECT FROM sink_replacement WHERE step_run_id = :run)")
    return bool(connection.execute(statement, {"run": run_id}).scalar_one())


def overdue(connection: Connection, before: datetime) -> Sequence[Row[Any]]:
    """Batches of a DAG of which something was decided before a moment and is not published, or
    settled before it and has units that nobody has asked for again: batch_id, dag_id.
    """
    statement = text(f"""
        SELECT b.batch_id, b.dag_id FROM pending_publication x JOIN batch b USING (batch_id)
        WHERE x.decided_at < :before AND b.dag_id <> ''
        UNION
        SELECT f.batch_id, f.dag_id FROM batch f
        WHERE {_ASLEEP} AND f.settled_at < :before AND f.dag_id <> ''
        ORDER BY 1
    """)
    return connection.execute(statement, {"before": before}).all()
