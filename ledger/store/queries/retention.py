"""Statements about files that nothing needs any more: which families expire, which of their files
have to be removed, which runs are dead, and which root files are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.core.states import Need
from ledger.storage.folders import Size
from ledger.store.queries import batches, checkpoints, dedup, records
from ledger.store.queries.rows import all_of, one_of

# Whether retention looks at a pipeline p at all, and before which time a family is old enough.
_SCOPE = """
  coalesce(make_interval(secs => :keep), p.keep) IS NOT NULL
  AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
"""
_BEFORE = """
  cast(:now AS timestamptz)
  - coalesce(make_interval(secs => :keep), p.keep)
"""

# Something happened to the family of an original f since: its time is not over.
_RECENT = f"""
  {_BEFORE} < (
    SELECT max(instant) FROM (
      SELECT greatest(m.opened_at, m.settled_at) AS instant FROM batch m
      WHERE m.family_id = f.batch_id
      UNION ALL
      SELECT coalesce(r.closed_at, r.lease_until) FROM step_run r JOIN batch m USING (batch_id)
      WHERE m.family_id = f.batch_id
      UNION ALL
      SELECT greatest(x.published_at, x.replaced_at)
      FROM publication x JOIN batch m USING (batch_id)
      WHERE m.family_id = f.batch_id
      UNION ALL
      SELECT a.accepted_at FROM acceptance a WHERE a.batch_id = f.batch_id
      UNION ALL  -- a sink that has begun may compare its rows with what has been replaced since
      SELECT n.settled_at FROM batch n WHERE n.replaces_batch_id = f.batch_id
    ) AS decided)
"""
# Why the family of an original f is kept, the first that holds: its files may be reread. A new
# reason is a condition beside its feature, or a follow-up that is pending, and its line here.
_REASONS = (
    (Need.UNDECIDED, batches.UNDECIDED),
    (Need.RECORDS_FAILED, records.RECORDS_FAILED),
    (Need.RECORDS_QUARANTINED, records.RECORDS_QUARANTINED),
    (Need.CONTENT_MISSING, "'{keep}' && w.follow_ups"),
    (Need.UNPUBLISHED, "'{publish}' && w.follow_ups"),
    (Need.COMBINE_DUE, "'{combine}' && w.follow_ups"),
    (Need.NOTICE_PENDING, "'{notify}' && w.follow_ups"),
    (Need.STATE_DUE, "'{state}' && w.follow_ups"),
    (Need.CURRENT_STATE, checkpoints.CURRENT_STATE),
    (Need.DEDUP_WINDOW, dedup.DEDUP_WINDOW),
    (Need.RECENT, _RECENT),
)
_NEED = " ".join(f"WHEN {condition} THEN '{need}'" for need, condition in _REASONS)


@dataclass(frozen=True)
class NeededFamily:
    """A family whose files may be read again.

    ``batch_id``: its original.
    ``need``: the reason.
    ``target``: MODULE:PIPELINE of its pipeline; None: not known.
    """

    batch_id: int
    pipeline: str
    need: Need
    target: str | None = None


@dataclass(frozen=True)
class RunWithFiles:
    """A run whose files are not removed.

    ``kind``: kind of the step.
    ``wrote``: whether its folder is, or was, there.
    ``left_to_table``: whether its files are part of a table that readers read.
    """

    step_run_id: int
    batch_id: int
    kind: str
    folder: str | None
    dead: bool
    wrote: bool
    in_place: bool
    left_to_table: bool


@dataclass(frozen=True)
class RunWithRootFiles:
    """A run whose root files are not removed. ``root_files``: their folder."""

    step_run_id: int
    batch_id: int
    root_files: str


def candidates(
    connection: Connection,
    pipeline: str | None,
    families: Sequence[int] | None,
    keep: float | None,
    now: datetime,
) -> list[int]:
    """Return originals with decided batches whose files are not removed and that were opened long
    enough ago, oldest first.

    ``pipeline``, ``families``: only these.
    ``keep``: seconds, instead of the pipelines' own ``keep``.
    """
    statement = text(f"""
        SELECT DISTINCT b.family_id FROM pipeline p JOIN batch b USING (pipeline_id)
        WHERE {_SCOPE} AND b.files_expired_at IS NULL AND b.status IN ('settled', 'superseded')
          AND b.opened_at < {_BEFORE}
          AND (cast(:families AS bigint[]) IS NULL OR b.family_id = ANY (:families))
        ORDER BY 1
    """)
    family_ids = None if families is None else list(families)
    keys = {"pipeline": pipeline, "families": family_ids, "keep": keep, "now": now}
    return list(connection.execute(statement, keys).scalars())


def needs(
    connection: Connection, families: Sequence[int], keep: float | None, now: datetime
) -> list[NeededFamily]:
    """Return those of these families whose files may be reread, each with the reason."""
    statement = text(f"""
        SELECT f.batch_id, p.name AS pipeline, p.target, CASE {_NEED} END AS need
        FROM batch f JOIN pipeline p USING (pipeline_id)
        CROSS JOIN LATERAL (
          SELECT array_agg(u.follow_up) AS follow_ups FROM pending_follow_up u
          WHERE u.family_id = f.batch_id) w
        WHERE f.batch_id = ANY (cast(:families AS bigint[])) ORDER BY 1
    """)
    keys = {"families": list(families), "keep": keep, "now": now}
    return [
        NeededFamily(row.batch_id, row.pipeline, Need(row.need), row.target)
        for row in connection.execute(statement, keys)
        if row.need is not None
    ]


def expire(connection: Connection, family_id: int) -> None:
    """Mark a family as expired: from now on nothing reads its files."""
    statement = text("""
        UPDATE batch SET files_expired_at = now()
        WHERE family_id = :id AND files_expired_at IS NULL
    """)
    connection.execute(statement, {"id": family_id})


def expired_batches(connection: Connection, pipeline: str | None) -> list[int]:
    """Return batches whose files have expired and are not removed."""
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE b.files_expired_at IS NOT NULL AND b.files_removed_at IS NULL
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"pipeline": pipeline}).scalars())


def batches_of(connection: Connection, families: Sequence[int]) -> list[int]:
    """Return the batches of families whose files have not expired."""
    statement = text("""
        SELECT batch_id FROM batch
        WHERE family_id = ANY (cast(:families AS bigint[])) AND files_expired_at IS NULL ORDER BY 1
    """)
    return list(connection.execute(statement, {"families": list(families)}).scalars())


# Of a sink whose readers read the files where they were staged, what was ever to be published is
# its table's: whether it was is known there alone.
_RUN = """
SELECT r.step_run_id, r.batch_id, coalesce(s.kind, 'stage') AS kind, r.folder,
       r.state IN ('failed', 'fenced', 'superseded') AS dead,
       coalesce(s.kind <> 'sink', false) OR r.files IS NOT NULL AS wrote,
       coalesce(s.in_place, false) AS in_place,
       coalesce(s.in_place, false) AND EXISTS (
         SELECT FROM publication x WHERE x.step_run_id = r.step_run_id) AS left_to_table
FROM step_run r
LEFT JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.step
"""


def runs_with_files(connection: Connection, batch_id: int) -> list[RunWithFiles]:
    """Return runs of a batch whose files are not removed."""
    statement = text(f"""
        {_RUN} WHERE r.batch_id = :id AND r.files_removed_at IS NULL ORDER BY r.step_run_id
    """)
    return all_of(RunWithFiles, connection.execute(statement, {"id": batch_id}))


def dead_runs(
    connection: Connection,
    pipeline: str | None,
    families: Sequence[int] | None,
    keep: float | None,
    before: datetime,
) -> list[RunWithFiles]:
    """Return runs that will never count, oldest first, of batches whose files have not expired and
    of which nothing has happened since ``before``. Other parameters are those of ``candidates``.
    """
    statement = text(f"""
        {_RUN}
        JOIN batch b ON b.batch_id = r.batch_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        WHERE r.state IN ('failed', 'fenced', 'superseded') AND r.files_removed_at IS NULL
          AND {_SCOPE} AND b.files_expired_at IS NULL AND b.opened_at < :before
          AND (cast(:families AS bigint[]) IS NULL OR b.family_id = ANY (:families))
          AND NOT EXISTS (
            SELECT FROM step_run o
            WHERE o.batch_id = r.batch_id AND coalesce(o.closed_at, o.lease_until) >= :before)
        ORDER BY r.step_run_id
    """)
    family_ids = None if families is None else list(families)
    keys = {"pipeline": pipeline, "families": family_ids, "keep": keep, "before": before}
    return all_of(RunWithFiles, connection.execute(statement, keys))


def size_of_filters(connection: Connection, batch_id: int) -> Size:
    """Return the size of the Bloom filters of a batch's sinks."""
    statement = text("""
        SELECT count(*) AS files, coalesce(sum(octet_length(f.filter)), 0)::bigint AS bytes
        FROM dedup_filter f JOIN step_run r USING (step_run_id) WHERE r.batch_id = :id
    """)
    return one_of(Size, connection.execute(statement, {"id": batch_id}))


def set_removed(connection: Connection, batch_id: int) -> None:
    """Note that the files of a batch are gone, and remove its filters."""
    connection.execute(text("SELECT remove_filters(:id)"), {"id": batch_id})
    connection.execute(
        text("UPDATE batch SET files_removed_at = now() WHERE batch_id = :id"), {"id": batch_id}
    )


_RUN_WITH_ROOT_FILES = """
SELECT r.step_run_id, r.batch_id, r.root_files
FROM step_run r JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
WHERE r.root_files IS NOT NULL
"""
# Its driver has nothing more to write.
_ENDED = "r.state IN ('committed', 'superseded')"


def ended_with_root_files(connection: Connection, batch_id: int) -> list[RunWithRootFiles]:
    """Return the runs of a batch that have written all their root files, if it is decided or
    abandoned.
    """
    statement = text(f"""
        {_RUN_WITH_ROOT_FILES} AND r.batch_id = :id AND b.status NOT IN ('open', 'held')
          AND {_ENDED} ORDER BY r.step_run_id
    """)
    return all_of(RunWithRootFiles, connection.execute(statement, {"id": batch_id}))


def unneeded_root_files(
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
        {_RUN_WITH_ROOT_FILES}
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


def forget_root_files(connection: Connection, run_ids: Sequence[int]) -> None:
    """Note that the root files of these runs are gone."""
    statement = text("""
        UPDATE step_run SET root_files = NULL WHERE step_run_id = ANY (cast(:ids AS bigint[]))
    """)
    connection.execute(statement, {"ids": list(run_ids)})
