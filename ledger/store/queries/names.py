"""Statements about the names by which people choose records: pipelines, steps, reasons."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

from ledger.store.queries.causes import REASON

_MOST = 100  # reasons that a name is compared with

# Batches b of a pipeline, of a batch's family, or all.
_BATCHES = """
    FROM batch b JOIN pipeline p USING (pipeline_id)
    WHERE (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
      AND (cast(:batch_id AS bigint) IS NULL OR b.family_id =
        (SELECT o.family_id FROM batch o WHERE o.batch_id = :batch_id))
"""


def pipelines(connection: Connection) -> list[str]:
    """Return all pipelines."""
    return list(connection.execute(text("SELECT name FROM pipeline ORDER BY 1")).scalars())


def steps(connection: Connection, scope: Mapping[str, Any], kind: str | None = None) -> list[str]:
    """Return the steps, or those of a ``kind``, that batches of ``scope`` have had: pipeline,
    batch_id.
    """
    statement = text(f"""
        SELECT DISTINCT s.name FROM batch_step s
        WHERE s.batch_id IN (SELECT b.batch_id {_BATCHES})
          AND (cast(:kind AS text) IS NULL OR s.kind = :kind) ORDER BY 1
    """)
    return list(connection.execute(statement, {**scope, "kind": kind}).scalars())


def has_reason(connection: Connection, scope: Mapping[str, Any], pattern: str) -> bool:
    """Return whether a record of ``scope`` has ever failed for a reason like this SQL pattern."""
    statement = text(f"""
        SELECT EXISTS (SELECT FROM failed_root r
          WHERE {REASON} LIKE :pattern AND r.batch_id IN (SELECT b.batch_id {_BATCHES}))
    """)
    return bool(connection.execute(statement, {**scope, "pattern": pattern}).scalar_one())


def reasons(connection: Connection, scope: Mapping[str, Any]) -> list[str]:
    """Return the most frequent reasons for which records of ``scope`` have failed, most first."""
    statement = text(f"""
        SELECT {REASON} FROM failed_root r WHERE r.batch_id IN (SELECT b.batch_id {_BATCHES})
        GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT :most
    """)
    return list(connection.execute(statement, {**scope, "most": _MOST}).scalars())
