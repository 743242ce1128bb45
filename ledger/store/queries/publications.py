"""Statements about publications of sinks: decided, ready, carried out and replaced."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, text

from ledger.store.queries.failures import REASON
from ledger.store.queries.rows import all_of, first_of

# The batches whose rows a batch takes the place of in its sinks: the family that it was opened to
# replace, and whatever that one was opened to replace; of a replay of a whole batch those of its
# own family that were settled before it.
_REPLACED = """
WITH RECURSIVE chain AS (
  SELECT o.replaces_batch_id AS batch_id FROM batch b JOIN batch o ON o.batch_id = b.family_id
  WHERE b.batch_id = :id AND o.replaces_batch_id IS NOT NULL
  UNION
  SELECT b.replaces_batch_id FROM batch b JOIN chain USING (batch_id)
  WHERE b.replaces_batch_id IS NOT NULL
)
SELECT b.batch_id FROM batch b JOIN chain c ON c.batch_id = b.family_id
UNION
SELECT o.batch_id FROM batch b JOIN batch o USING (family_id)
WHERE b.batch_id = :id AND b.kind = 'replay' AND o.status = 'settled'
  AND (b.settled_at IS NULL OR o.settled_at < b.settled_at)
  AND EXISTS (SELECT FROM batch_step t WHERE t.batch_id = :id AND t.merges)
"""

# Decide what has not been decided of it yet: ``ready``: of each run, whether its files are just
# what is to be published.
_DECIDE = """
INSERT INTO publication (batch_id, sink, step_run_id, ready, rows)
SELECT r.batch_id, r.step, r.step_run_id, c.ready, CASE WHEN c.ready THEN r.output_rows END
FROM step_run r
JOIN batch b USING (batch_id)
JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.step
CROSS JOIN LATERAL (SELECT {ready} AS ready) c
WHERE {condition} AND r.state = 'committed' AND s.kind = 'sink' AND NOT s.after
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class PendingPublication:
    """A publication of a sink's run that is decided, but not yet carried out.

    ``folder``, ``files``: the rows to publish. None: exactly the rows that the run has staged.
    ``input_run_id``: the run that the sink's run has read.
    """

    batch_id: int
    original_id: int
    sink: str
    step_run_id: int
    ready: bool
    folder: str | None
    files: list[dict[str, Any]] | None
    input_run_id: int


@dataclass(frozen=True)
class FailedRoot:
    """A root that failed in a batch."""

    root_id: int
    step: str
    reason: str


def decide(connection: Connection, family_id: int) -> int:
    """Decide that the sinks publish the settled batches of a family, each batch's staged output of
    the committed run, and return the number of publications. Of a family that is replayed as a
    whole only the batch that was settled last is published.

    A publication is ready if nothing has to be withheld: nothing of the batch failed; at least
    once, the sink refused nothing; or the sink ran in one plan with its stages, so it has no row of
    a failed record.
    """
    ready = (
        "b.failed_roots = 0 OR r.one_plan_id IS NOT NULL AND r.acks_proved AND r.failed_rows = 0"
        " OR b.guarantee = 'at_least_once' AND r.failed_rows = 0"
    )
    condition = "b.family_id = :id AND b.status = 'settled' AND NOT is_outdated(b.batch_id)"
    statement = _DECIDE.format(ready=ready, condition=condition)
    return connection.execute(text(statement), {"id": family_id}).rowcount


def decide_untouched(connection: Connection, batch_id: int, reached: Collection[str]) -> int:
    """Decide, within a settlement, the publications of sinks that acked no row of a root that
    fails, and return how many there are.

    ``reached``: the steps that acked such a row. The other sinks publish exactly their staged
    output.
    """
    condition = "b.batch_id = :id AND r.step <> ALL (cast(:reached AS text[]))"
    statement = _DECIDE.format(ready="true", condition=condition)
    keys = {"id": batch_id, "reached": sorted(reached)}
    return connection.execute(text(statement), keys).rowcount


def planned_sinks(connection: Connection, batch_id: int, steps: Collection[str]) -> list[str]:
    """Return which of these steps are sinks that ran in one plan with their stages. What such a
    sink has staged does not say which record a row comes from.
    """
    statement = text("""
        SELECT r.step FROM step_run r
        JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.step AND s.kind = 'sink'
        WHERE r.batch_id = :id AND r.state = 'committed' AND r.one_plan_id IS NOT NULL
          AND r.step = ANY (cast(:steps AS text[])) ORDER BY r.step
    """)
    keys = {"id": batch_id, "steps": sorted(steps)}
    return list(connection.execute(statement, keys).scalars())


def decide_at_commit(connection: Connection, run_id: int) -> None:
    """Decide that a sink publishes the staged output of its run, whatever happens to the batch. The
    staged output of an earlier run no longer counts; if it was published, this output replaces it.
    """
    statement = text("""
        INSERT INTO publication (batch_id, sink, step_run_id, ready, rows)
        SELECT batch_id, step, step_run_id, true, output_rows FROM step_run
        WHERE step_run_id = :run
    """)
    connection.execute(statement, {"run": run_id})


# The other batches of which a sink publishes one result at a time: of a combine those of the
# family, of a state those of the pipeline.
_BESIDE = {
    "family": "o.family_id = b.family_id",
    "pipeline": "o.pipeline_id = b.pipeline_id",
}
_OTHERS = """
FROM step_run r
JOIN batch b USING (batch_id)
JOIN batch o ON {} AND o.batch_id <> b.batch_id
JOIN publication x ON x.batch_id = o.batch_id AND x.sink = r.step
WHERE r.step_run_id = :run AND x.replaced_at IS NULL
"""


def replaced_results(
    connection: Connection, run_id: int, of: Literal["family", "pipeline"]
) -> list[int]:
    """Return the batches whose result a sink's run replaces: what it has published, or was going to
    publish, ``of`` the family or of the pipeline, and whatever the latter would have replaced.
    """
    statement = text(f"""
        WITH others AS (SELECT x.* {_OTHERS.format(_BESIDE[of])})
        SELECT batch_id FROM others
        UNION
        SELECT s.replaced_batch_id FROM others JOIN sink_replacement s USING (step_run_id)
        WHERE published_at IS NULL
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"run": run_id}).scalars())


def decide_result(connection: Connection, run_id: int, of: Literal["family", "pipeline"]) -> None:
    """Decide that a sink publishes the result that its run has staged, in place of
    ``replaced_results``, and cancel those of them that are not published.
    """
    decide_at_commit(connection, run_id)
    replaced = replaced_results(connection, run_id, of)
    statement = text("""
        INSERT INTO sink_replacement (step_run_id, replaced_batch_id)
        SELECT :run, unnest(cast(:batches AS bigint[]))
    """)
    connection.execute(statement, {"run": run_id, "batches": replaced})
    statement = text(f"""
        UPDATE publication SET replaced_at = now() WHERE published_at IS NULL
        AND step_run_id IN (SELECT x.step_run_id {_OTHERS.format(_BESIDE[of])})
    """)
    connection.execute(statement, {"run": run_id})


def open_failures(connection: Connection, original_id: int) -> int:
    """Return how many messages of an original are failed or being replayed."""
    statement = text("SELECT count(*) FROM open_failure WHERE original_batch_id = :id")
    return int(connection.execute(statement, {"id": original_id}).scalar_one())


def supersede(connection: Connection, batch_id: int) -> int:
    """Cancel the publications that are decided and not carried out of the batches that ``batch_id``
    replaces, and return how many.
    """
    statement = text(f"""
        UPDATE publication SET replaced_at = now()
        WHERE published_at IS NULL AND replaced_at IS NULL AND batch_id IN ({_REPLACED})
    """)
    return connection.execute(statement, {"id": batch_id}).rowcount


def supersede_outdated(connection: Connection, family_id: int) -> int:
    """Cancel the publications that are decided and not carried out of batches whose place a later
    replay of the whole batch has taken, and return how many.
    """
    statement = text("""
        UPDATE publication SET replaced_at = now()
        WHERE published_at IS NULL AND replaced_at IS NULL AND batch_id IN
          (SELECT b.batch_id FROM batch b
           WHERE b.family_id = :id AND b.status = 'settled' AND is_outdated(b.batch_id))
    """)
    return connection.execute(statement, {"id": family_id}).rowcount


def has_earlier(connection: Connection, batch_id: int, sink: str, run_id: int) -> bool:
    """Return whether a publication of an earlier run of the sink for the batch was ever decided."""
    statement = text("""
        SELECT EXISTS (SELECT FROM publication
                       WHERE batch_id = :batch_id AND sink = :sink AND step_run_id < :run)
    """)
    keys = {"batch_id": batch_id, "sink": sink, "run": run_id}
    return bool(connection.execute(statement, keys).scalar_one())


_PENDING = """
SELECT x.batch_id, x.sink, x.step_run_id, x.ready, x.folder, x.files, i.input_run_id,
       b.family_id AS original_id
FROM pending_publication x
JOIN batch b USING (batch_id)
JOIN step_run_input i USING (step_run_id)
"""


def pending(connection: Connection, batch_id: int) -> list[PendingPublication]:
    """Return the publications of a batch's family that are decided and not carried out, oldest
    batch first.
    """
    statement = text(f"""
        {_PENDING} WHERE b.family_id = (SELECT family_id FROM batch WHERE batch_id = :id)
        ORDER BY x.batch_id, x.sink
    """)
    return all_of(PendingPublication, connection.execute(statement, {"id": batch_id}))


# The publications of a sink for one batch, all of them or none: of two runs one is published at a
# time.
_LOCK = """
WITH own AS (
  SELECT x.step_run_id FROM publication x JOIN publication o USING (batch_id, sink)
  WHERE o.step_run_id = :run
), locked AS (
  SELECT step_run_id FROM publication WHERE step_run_id IN (SELECT step_run_id FROM own)
  FOR UPDATE SKIP LOCKED
)
SELECT 1 WHERE (SELECT count(*) FROM own) = (SELECT count(*) FROM locked)
"""


def lock_pending(connection: Connection, run_id: int) -> PendingPublication | None:
    """Lock the pending publication of a sink's run for the transaction, with those of its other
    runs for the batch, and return it. None if it is published or replaced, or if another
    transaction has locked one of them.
    """
    statement = text(f"{_PENDING} WHERE x.step_run_id = :run")
    keys = {"run": run_id}
    if connection.execute(text(_LOCK), keys).first() is None:
        return None
    return first_of(PendingPublication, connection.execute(statement, keys))


def states(connection: Connection, batch_id: int) -> dict[int, str]:
    """Return the states in ``sink_publication`` of all runs of a batch's sinks, by run."""
    statement = text("SELECT step_run_id, state FROM sink_publication WHERE batch_id = :id")
    return {row.step_run_id: row.state for row in connection.execute(statement, {"id": batch_id})}


def set_ready(
    connection: Connection, run_id: int, folder: str, files: list[dict[str, Any]]
) -> bool:
    """Set the files with exactly the rows to publish; return False if others were set already."""
    statement = text("""
        UPDATE pending_publication
        SET ready = true, folder = :folder, files = cast(:files AS jsonb), rows = :rows
        WHERE step_run_id = :run AND NOT ready
    """)
    rows = sum(file["rows"] for file in files)
    keys = {"run": run_id, "folder": folder, "files": json.dumps(files), "rows": rows}
    return connection.execute(statement, keys).rowcount == 1


def set_published(connection: Connection, run_id: int) -> None:
    """Note that the staged output of a sink's run is published, in place of that of its earlier
    runs for the batch.
    """
    statement = text("UPDATE publication SET published_at = now() WHERE step_run_id = :run")
    connection.execute(statement, {"run": run_id})
    statement = text("""
        UPDATE publication x SET replaced_at = now() FROM publication o
        WHERE o.step_run_id = :run AND (x.batch_id, x.sink) = (o.batch_id, o.sink)
          AND x.step_run_id < :run AND x.replaced_at IS NULL
    """)
    connection.execute(statement, {"run": run_id})


def replaced_batches(connection: Connection, batch_id: int, run_id: int) -> list[int]:
    """Return the batches whose rows the sink's run of a batch replaces: batches that the batch
    reprocesses; the batches before it of a family that is replayed as a whole; and settled batches
    of its family whose rows in the sink, if any, are of a superseded run, as their records are
    replayed.
    """
    statement = text(f"""
        {_REPLACED}
        UNION SELECT replaced_batch_id FROM sink_replacement WHERE step_run_id = :run
        UNION
        SELECT x.batch_id
        FROM step_run own
        JOIN batch b ON b.batch_id = own.batch_id
        JOIN batch o ON o.family_id = b.family_id AND o.batch_id <> b.batch_id
        JOIN publication x ON x.batch_id = o.batch_id AND x.sink = own.step
        JOIN step_run r ON r.step_run_id = x.step_run_id
        WHERE own.step_run_id = :run AND o.status IN ('settled', 'abandoned')
          AND r.state = 'superseded'
          AND x.replaced_at IS NULL
          AND NOT EXISTS (SELECT FROM step_run c WHERE c.batch_id = o.batch_id
                          AND c.step = own.step AND c.state = 'committed')
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"id": batch_id, "run": run_id}).scalars())


def failed_roots(connection: Connection, batch_id: int) -> list[FailedRoot]:
    """Return the roots that failed in a batch, in order of their numbers."""
    statement = text(f"""
        SELECT r.root_id, r.step, {REASON} AS reason FROM failed_root r WHERE r.batch_id = :id
        ORDER BY 1
    """)
    return all_of(FailedRoot, connection.execute(statement, {"id": batch_id}))


def set_replaced(connection: Connection, batch_ids: Sequence[int], sink: str) -> None:
    """Note that rows of these batches are no longer in the sink."""
    statement = text("""
        UPDATE publication SET replaced_at = now()
        WHERE batch_id = ANY(:ids) AND sink = :sink AND replaced_at IS NULL
    """)
    connection.execute(statement, {"ids": list(batch_ids), "sink": sink})
