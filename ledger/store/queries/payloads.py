"""Statements about the content of failed records."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from ledger.databases.driver_errors import raw_cursor
from ledger.store.queries.rows import all_of

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_CONTENT = "message_id, batch_id, root_id, key, content, parsed, source_file, source_row"


@dataclass(frozen=True)
class EmittedRecords:
    """Records that one emit of a batch has read: messages and their roots, in the order of the
    roots.

    ``first_root``: the first root of everything that the emit has read.
    """

    batch_id: int
    source: str
    emit_run_id: int
    first_root: int
    messages: list[int]
    roots: list[int]


def by_emit(connection: Connection, records: str, **keys: Any) -> list[EmittedRecords]:
    """Return records by the batch and source that read them. ``records``: a SELECT of message_id,
    root_id, batch_id.
    """
    statement = text(f"""
        SELECT s.batch_id, s.source, s.emit_run_id, s.first_root,
               array_agg(x.message_id ORDER BY x.root_id) AS messages,
               array_agg(x.root_id ORDER BY x.root_id) AS roots
        FROM ({records}) x
        JOIN batch_source s ON s.batch_id = x.batch_id AND x.root_id >= s.first_root
                           AND x.root_id < s.first_root + s.roots
        WHERE s.emit_run_id IS NOT NULL GROUP BY s.batch_id, s.source ORDER BY 1, 2
    """)
    return all_of(EmittedRecords, connection.execute(statement, keys))


_OF_ORIGINAL = """
    SELECT m.message_id, m.message_id AS root_id, m.original_batch_id AS batch_id
    FROM failed_message m WHERE
"""
# Of the messages of an original, the last attempt that found each in its source again, and failed
# further on: the message contains what that one read.
_READ_AGAIN = """
    SELECT DISTINCT ON (r.message_id) r.message_id, r.root_id, r.batch_id
    FROM batch b JOIN failed_root r USING (batch_id) JOIN failed_message m USING (message_id)
    WHERE b.family_id = :original AND b.selection ? 'from_source' AND r.step <> m.source
    ORDER BY r.message_id, r.root_id DESC
"""


def missing(connection: Connection, batch_id: int) -> list[EmittedRecords]:
    """Return the messages of an original whose content is not kept."""
    records = f"""{_OF_ORIGINAL} m.original_batch_id = :id
      AND NOT EXISTS (SELECT FROM failed_payload f WHERE f.message_id = m.message_id)"""
    return by_emit(connection, records, id=batch_id)


def of_source(connection: Connection, batch_id: int, source: str) -> list[EmittedRecords]:
    """Return the messages of an original's source."""
    records = f"{_OF_ORIGINAL} m.original_batch_id = :id AND m.source = :source"
    return by_emit(connection, records, id=batch_id, source=source)


def claimed(
    connection: Connection, replay_batch_id: int, original_id: int, source: str
) -> list[EmittedRecords]:
    """Return the messages that a replay has claimed of a source, each with the attempt that read
    its content.
    """
    records = f"""
        SELECT m.message_id, coalesce(x.root_id, m.message_id) AS root_id,
               coalesce(x.batch_id, m.original_batch_id) AS batch_id
        FROM failed_message m LEFT JOIN ({_READ_AGAIN}) x USING (message_id)
        WHERE m.replay_batch_id = :replay AND m.source = :source AND m.status = 'replaying'
    """
    keys = {"replay": replay_batch_id, "original": original_id, "source": source}
    return by_emit(connection, records, **keys)


def read_again(connection: Connection, batch_id: int) -> list[EmittedRecords]:
    """Return the messages of an original that a replay has read again, and whose kept content is
    that of an earlier attempt.
    """
    records = f"""
        SELECT x.* FROM ({_READ_AGAIN}) x
        JOIN failed_payload f ON f.message_id = x.message_id AND f.root_id < x.root_id
          AND f.forgotten_at IS NULL
    """
    return by_emit(connection, records, original=batch_id)


def missing_batches(connection: Connection, pipeline: str | None) -> list[int]:
    """Return batches with failed records whose content is not kept yet: originals, and batches on
    hold.
    """
    statement = text("""
        SELECT batch_id FROM pending_follow_up
        WHERE follow_up = 'keep'
          AND (cast(:pipeline AS text) IS NULL OR pipeline = :pipeline)
        UNION
        SELECT b.batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE b.status = 'held' AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
          AND EXISTS (SELECT FROM hold_sample h
                      WHERE h.batch_id = b.batch_id AND h.content IS NULL)
        ORDER BY batch_id
    """)
    return list(connection.execute(statement, {"pipeline": pipeline}).scalars())


def insert(connection: Connection, rows: Sequence[Sequence[Any]]) -> int:
    """Insert content of failed records, and return the number of inserted rows. A message whose
    content is already stored, or was forgotten, is skipped. Columns as in ``Payload``.
    """
    copy_content(connection, rows)
    statement = text(
        "INSERT INTO failed_payload SELECT * FROM kept_payload ON CONFLICT (message_id) DO NOTHING"
    )
    return connection.execute(statement).rowcount


def replace(connection: Connection, rows: Sequence[Sequence[Any]]) -> int:
    """Replace stored content by the content of a later attempt, and return the number of rows.
    Content that was forgotten, or is of the same or a later attempt, stays. Columns as in
    ``Payload``.
    """
    copy_content(connection, rows)
    statement = text("""
        UPDATE failed_payload f SET root_id = k.root_id, content = k.content, parsed = k.parsed,
          key = k.key
        FROM kept_payload k
        WHERE k.message_id = f.message_id AND f.root_id < k.root_id AND f.forgotten_at IS NULL
    """)
    return connection.execute(statement).rowcount


def copy_content(connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
    """Copy content to the temporary table ``kept_payload``. Columns as in ``Payload``."""
    connection.execute(text("CREATE TEMP TABLE kept_payload (LIKE failed_payload) ON COMMIT DROP"))
    lines = io.StringIO("".join("\t".join(map(copied_field, row)) + "\n" for row in rows))
    with raw_cursor(connection) as cursor:
        cursor.copy_expert(f"COPY kept_payload ({_CONTENT}) FROM STDIN", lines)


def failed_keys(
    connection: Connection, batch_id: int, source: str, names: Sequence[str]
) -> list[tuple[int, list[str | None], bool]]:
    """Return the messages of an original's source, with the values of these columns as text, null
    if they are not known, and whether it parsed.
    """
    statement = text("""
        SELECT m.message_id, ARRAY(
          SELECT coalesce(f.key ->> u.name, CASE WHEN f.parsed THEN f.content::jsonb ->> u.name END)
          FROM unnest(cast(:names AS text[])) WITH ORDINALITY AS u (name, place)
          ORDER BY u.place) AS key, coalesce(f.parsed, false) AS parsed
        FROM failed_message m LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE m.original_batch_id = :id AND m.source = :source ORDER BY 1
    """)
    keys = {"id": batch_id, "source": source, "names": list(names)}
    return [(row.message_id, row.key, row.parsed) for row in connection.execute(statement, keys)]


def claimed_contents(connection: Connection, batch_id: int, source: str) -> dict[int, str]:
    """Return the messages that a replay has claimed of a source, in order, each with its kept
    content; empty: none is kept.
    """
    statement = text("""
        SELECT m.message_id, coalesce(f.content, '') AS content
        FROM failed_message m LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE m.replay_batch_id = :id AND m.source = :source AND m.status = 'replaying' ORDER BY 1
    """)
    rows = connection.execute(statement, {"id": batch_id, "source": source})
    return {row.message_id: row.content for row in rows}


def copied_field(value: Any) -> str:
    """Return a value as COPY reads it from text."""
    if value is None:
        return "\\N"
    return value.translate(_ESCAPES) if isinstance(value, str) else str(value)
