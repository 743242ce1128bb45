"""Statements about batches that ``hold_above`` holds: their number of failed records, and the
preview of their failures, which is kept while the batch is on hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.core.conditions import Comparison
from ledger.store.queries.failures import REASON, FailureSummary
from ledger.store.queries.payloads import EmittedRecords, by_emit, copy_content
from ledger.store.queries.records import FailedMessage, conditions_sql
from ledger.store.queries.rows import all_of, first_of

REASONS = 100  # by source and step; rarer ones are counted together
ON_HOLD = "on hold"  # the status of records that would fail
SAMPLE = 100  # records of a reason
LARGEST_SAMPLE = 2_000  # records of a batch


def new_failures(
    connection: Connection, batch_id: int, original_id: int
) -> tuple[int, int | None, str | None]:
    """Return, within the settlement of a batch and after its failures are recorded, how many of its
    records failed through their own fault and had not failed so in an earlier batch of its family;
    the number of the original's roots, null while that is not settled; and the step where most of
    them failed.
    """
    statement = text("""
        WITH own AS MATERIALIZED (
          SELECT r.step FROM failed_root r
          WHERE r.batch_id = :batch AND r.own_failure AND NOT EXISTS (
            SELECT FROM failed_root e
            WHERE e.message_id = r.message_id AND e.own_failure AND e.batch_id = ANY (ARRAY(
              SELECT batch_id FROM batch WHERE family_id = :original AND batch_id <> :batch)))
        )
        SELECT (SELECT count(*) FROM own) AS failed, b.roots,
               (SELECT step FROM own GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1) AS step
        FROM batch b WHERE b.batch_id = :original
    """)
    row = connection.execute(statement, {"batch": batch_id, "original": original_id}).one()
    return row.failed, row.roots, row.step


_REASONS = f"""
    CREATE TEMP TABLE hold_reason ON COMMIT DROP AS
    SELECT source, step, reason, records, CASE WHEN place <= :most THEN place
             ELSE :most + dense_rank() OVER (ORDER BY source, step) END AS number
    FROM (
      SELECT m.source, r.step, {REASON} AS reason, count(*) AS records,
             row_number() OVER (ORDER BY count(*) DESC, r.step, m.source, {REASON}) AS place
      FROM failed_root r JOIN failed_message m USING (message_id)
      WHERE r.batch_id = :batch AND m.original_batch_id = :original
      GROUP BY 1, 2, 3
    ) counted
"""


def computed_failures(
    connection: Connection, batch_id: int, original_id: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return, within a settlement that will be rolled back, its failures in the form of
    ``hold_failure``, and the first records of each in the form of ``hold_sample``.
    """
    keys = {"batch": batch_id, "original": original_id}
    connection.execute(text(_REASONS), {**keys, "most": REASONS})
    failures = text("""
        SELECT number, source, step, sum(records)::bigint AS records,
               CASE WHEN count(*) = 1 THEN min(reason)
                    ELSE count(*) || ' rarer reasons' END AS reason
        FROM hold_reason GROUP BY number, source, step ORDER BY number
    """)
    sample = text(f"""
        WITH failure AS MATERIALIZED (  -- joined first: sources and reasons are few, records many
          SELECT r.root_id, r.message_id, m.source, r.step, {REASON} AS reason
          FROM failed_root r JOIN failed_message m USING (message_id)
          WHERE r.batch_id = :batch AND m.original_batch_id = :original
        )
        SELECT number, root_id, message_id FROM (
          SELECT h.number, f.root_id, f.message_id,
                 row_number() OVER (PARTITION BY h.number ORDER BY f.root_id) AS place
          FROM failure f JOIN hold_reason h USING (source, step, reason)
        ) numbered WHERE place <= :each ORDER BY place, number LIMIT :most
    """)
    sizes = {"each": SAMPLE, "most": LARGEST_SAMPLE}
    return (
        [dict(row) for row in connection.execute(failures).mappings()],
        [dict(row) for row in connection.execute(sample, {**keys, **sizes}).mappings()],
    )


def insert(
    connection: Connection,
    batch_id: int,
    failures: Sequence[Mapping[str, Any]],
    sample: Sequence[Mapping[str, Any]],
) -> None:
    """Keep the preview of a batch that was put on hold. The transaction that ends the hold removes
    it.
    """
    statement = text("""
        INSERT INTO hold_failure (batch_id, number, source, step, reason, records)
        VALUES (:batch_id, :number, :source, :step, :reason, :records)
    """)
    connection.execute(statement, [{"batch_id": batch_id, **failure} for failure in failures])
    statement = text("""
        INSERT INTO hold_sample (root_id, message_id, batch_id, number)
        SELECT * FROM unnest(cast(:roots AS bigint[]), cast(:messages AS bigint[]),
                             cast(:batches AS bigint[]), cast(:numbers AS int[]))
    """)
    keys = {
        "roots": [record["root_id"] for record in sample],
        "messages": [record["message_id"] for record in sample],
        "batches": [batch_id] * len(sample),
        "numbers": [record["number"] for record in sample],
    }
    connection.execute(statement, keys)


@dataclass(frozen=True)
class WouldFail:
    """Records that would fail if their batch, which is on hold, were settled."""

    source: str
    step: str
    reason: str
    records: int


@dataclass(frozen=True)
class SampledRecord(FailedMessage):
    """A record in the preview of a batch on hold."""

    root_id: int
    interval_start: datetime
    interval_end: datetime


def failures(connection: Connection, selection: Mapping[str, Any]) -> list[FailureSummary]:
    """Return the failures that batches on hold would record, by batch, most records first.

    ``selection``: as for ``failures.summaries``; an omitted key matches any.
    """
    statement = text(f"""
        SELECT h.batch_id, p.name AS pipeline, h.step, h.reason, h.records,
               '{ON_HOLD}' AS status, NULL AS accepted_by,
               (SELECT min(s.message_id) FROM hold_sample s
                WHERE s.batch_id = h.batch_id AND s.number = h.number) AS example_record
        {_FAILURES} {_MATCHING} ORDER BY h.batch_id, h.number
    """)
    return all_of(FailureSummary, connection.execute(statement, {**_ANY, **selection}))


def preview(connection: Connection, batch_id: int) -> list[WouldFail]:
    """Return the failures that a batch would record, most records first; nothing unless it is on
    hold.
    """
    statement = text("""
        SELECT h.source, h.step, h.reason, h.records
        FROM hold_failure h JOIN batch b USING (batch_id)
        WHERE h.batch_id = :id AND b.status = 'held' ORDER BY h.number
    """)
    return all_of(WouldFail, connection.execute(statement, {"id": batch_id}))


_ANY = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))
_FAILURES = """
    FROM hold_failure h
    JOIN batch b ON b.batch_id = h.batch_id
    JOIN pipeline p USING (pipeline_id)
"""
_MATCHING = """
    WHERE b.status = 'held' AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
      AND (cast(:batch_id AS bigint) IS NULL OR :batch_id IN (b.batch_id, b.family_id))
      AND (cast(:step AS text) IS NULL OR h.step = :step)
      AND (cast(:reason AS text) IS NULL OR h.reason LIKE :reason)
"""
_COLUMNS = f"""
    f.message_id, h.batch_id, p.name AS pipeline, h.source, h.step, h.reason,
    '{ON_HOLD}' AS status, null AS accepted_by, 0 AS attempts, f.key, f.source_file, f.source_row,
    f.content, f.parsed, (SELECT s.declaration -> 'layout' FROM batch_step s
                          WHERE s.batch_id = b.batch_id AND s.name = h.source) AS layout
"""
_SAMPLE = f"""
    {_FAILURES} JOIN hold_sample f ON f.batch_id = h.batch_id AND f.number = h.number {_MATCHING}
"""


def sample(
    connection: Connection,
    selection: Mapping[str, Any],
    conditions: Sequence[Comparison],
    limit: int | None,
) -> list[FailedMessage]:
    """Return the records of batches on hold that would fail, in the form in which
    ``records.matches`` returns failed ones; only the sampled ones of each batch.
    """
    where, keys = conditions_sql(conditions)
    statement = text(f"SELECT {_COLUMNS} {_SAMPLE}{where} ORDER BY f.root_id LIMIT :limit")
    keys = {**_ANY, **selection, **keys, "limit": limit}
    return all_of(FailedMessage, connection.execute(statement, keys))


def record(connection: Connection, number: int) -> SampledRecord | None:
    """Return a sampled record of a batch on hold, by a root or its message."""
    statement = text(f"""
        SELECT {_COLUMNS}, f.root_id, b.interval_start, b.interval_end
        {_SAMPLE} AND (f.root_id = :number OR f.message_id = :number)
    """)
    keys = {**_ANY, "number": number}
    return first_of(SampledRecord, connection.execute(statement, keys))


def batches_on_hold(connection: Connection, batch_ids: Sequence[int]) -> list[int]:
    """Return those of these batches that are on hold."""
    statement = text("""
        SELECT batch_id FROM batch
        WHERE status = 'held' AND batch_id = ANY (cast(:ids AS bigint[])) ORDER BY 1
    """)
    return list(connection.execute(statement, {"ids": list(batch_ids)}).scalars())


def without_content(connection: Connection, batch_id: int) -> list[EmittedRecords]:
    """Return the sampled records of a batch on hold whose content is not copied yet."""
    records = """
        SELECT h.message_id, h.root_id, h.batch_id FROM hold_sample h
        WHERE h.batch_id = :id AND h.content IS NULL AND NOT EXISTS (
          SELECT FROM failed_payload f
          WHERE f.message_id = h.message_id AND f.forgotten_at IS NOT NULL)
    """
    return by_emit(connection, records, id=batch_id)


def keep_content(connection: Connection, rows: Sequence[Sequence[Any]]) -> int:
    """Keep the content of sampled records, and return for how many. ``rows``: as for
    ``payloads.insert``. A replay's snapshot does not have the place of a record in its file.
    """
    copy_content(connection, rows)
    statement = text("""
        UPDATE hold_sample h SET key = k.key, content = k.content, parsed = k.parsed,
          source_file = k.source_file,
          source_row = CASE b.kind WHEN 'original' THEN k.source_row END
        FROM kept_payload k, batch b
        WHERE h.root_id = k.root_id AND b.batch_id = h.batch_id
    """)
    return connection.execute(statement).rowcount
