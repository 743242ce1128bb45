"""Statements about the root files of runs, which nothing needs once their batch is decided."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of


@dataclass(frozen=True)
class RunWithRootFiles:
    """A run whose root files are not removed. ``root_files``: their folder."""

    step_run_id: int
    batch_id: int
    root_files: str


_RUN = """
SELECT r.step_run_id, r.batch_id, r.root_files
FROM step_run r JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
WHERE r.root_files IS NOT NULL
"""
# Its driver has nothing more to write.
_ENDED = "r.state IN ('committed', 'superseded')"


def ended_of(connection: Connection, batch_id: int) -> list[RunWithRootFiles]:
    """Return the runs of a batch that have written all their root files, if it is decided or
    abandoned.
    """
    statement = text(f"""
        {_RUN} AND r.batch_id = :id AND b.status NOT IN ('open', 'held') AND {_ENDED}
        ORDER BY r.step_run_id
    """)
    return all_of(RunWithRootFiles, connection.execute(statement, {"id": batch_id}))


def unneeded(
    connection: Connection,
    pipeline: str | None,
    families: Sequence[int] | None,
    before: datetime,
) -> list[RunWithRootFiles]:
    """Return the runs with root files that nothing needs: all runs of decided and abandoned
    batches, and runs of other batches that will never count. A run that did not commit may still
    write, until nothing has happened to it since ``before``.

    ``pipeline``, ``families``: only runs of these.
    """
    statement = text(f"""
        {_RUN}
          AND (b.status NOT IN ('open', 'held') AND {_ENDED}
               OR r.state = 'superseded'
               OR r.state IN ('failed', 'fenced')
                 AND coalesce(r.closed_at, r.lease_until) < :before)
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
          AND (cast(:families AS bigint[]) IS NULL OR b.family_id = ANY (:families))
        ORDER BY r.step_run_id
    """)
    family_ids = None if families is None else list(families)
    keys = {"pipeline": pipeline, "families": family_ids, "before": before}
    return all_of(RunWithRootFiles, connection.execute(statement, keys))


def forget(connection: Connection, run_ids: Sequence[int]) -> None:
    """Note that the root files of these runs are gone."""
    connection.execute(
        text("""
        UPDATE step_run SET root_files = NULL WHERE step_run_id = ANY (cast(:ids AS bigint[]))
        """),
        {"ids": list(run_ids)},
    )
