"""Foreign keys of a table: a violated one stops the publication; the error names key and rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ledger.core.text import quantity
from ledger.databases.driver_errors import code_of, first_line
from ledger.databases.identifiers import literal_name, quoted
from ledger.errors import StageError, quote
from ledger.sinks.base import Delivery
from ledger.sinks.postgres.table import BATCH, STAGE, TablePlace, execute_literally

_VIOLATED = ("23503", "23001")  # SQLSTATE; the second of ON DELETE RESTRICT
_MOST = 5  # values of a key that a message shows


_MISSING = (
    "Add the rows that are missing, or declare the sink that publishes them before this one, or"
    " drop the foreign key; then publish again"
)
_REFERRED_TO = (
    "Rows that leave the table with this batch are still referred to: publish again once the sink"
    " of the table that refers to them has published, and declare its foreign key DEFERRABLE, so"
    " that a row may be replaced by one of the same key"
)


@dataclass(frozen=True)
class _ForeignKey:
    """A foreign key: ``columns`` refer to the columns ``partners`` of a table. ``own``: whether it
    is the same table.
    """

    name: str
    schema: str
    table: str
    own: bool
    is_full: bool
    columns: Sequence[str]
    partners: Sequence[str]


@contextmanager
def check_at_end(
    connection: Connection,
    place: TablePlace,
    columns: Sequence[str],
    gone: Sequence[int],
    delivery: Delivery,
) -> Iterator[None]:
    """Check all deferrable foreign keys at the end of the block.

    ``columns``: the columns of the staged rows.
    ``gone``: batches whose rows leave the table within the block.

    Raises StageError, which names keys and rows, if a key is violated.
    """
    connection.exec_driver_sql("SAVEPOINT staged")
    try:
        connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")
        yield
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    except DBAPIError as exc:
        if code_of(exc) not in _VIOLATED:
            raise
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT staged")
        violations = _violations(connection, place, columns, gone)
        advice = _MISSING if violations or not gone else _REFERRED_TO
        detail = getattr(getattr(exc.orig, "diag", None), "message_detail", None) or ""
        message = quote(f"{first_line(exc)}: {detail}".rstrip(": ."))
        raise StageError(
            f"sink {delivery.sink!r}: {place} does not take batch {delivery.batch_id}:"
            f" {'; '.join(violations or [message])}. Nothing of the batch is"
            f" published there. {advice}"
        ) from exc


def _violations(
    connection: Connection, place: TablePlace, columns: Sequence[str], gone: Sequence[int]
) -> list[str]:
    """Return a sentence for each foreign key that staged rows violate, with the first values. Keys
    of columns that were not staged are skipped, and so are keys into a table that this user may not
    read completely.
    """
    violations = []
    for row in connection.execute(_KEYS, {"oid": place.oid, "columns": list(columns)}).all():
        key = _ForeignKey(**row._mapping)
        orphans = _orphans(connection, key, gone)
        if orphans:
            *_, distinct, rows = orphans[0]
            values = ", ".join(f"({', '.join(map(str, orphan[:-2]))})" for orphan in orphans)
            more = f" and {distinct - len(orphans):,} more" if distinct > len(orphans) else ""
            refer = quantity(int(rows), "row refers", "rows refer")
            violations.append(
                f'foreign key "{key.name}": {quoted(key.schema)}.{quoted(key.table)} lacks what'
                f" {refer} to: ({', '.join(map(quoted, key.columns))}) = {quote(values)}{more}"
            )
    return violations


def _orphans(
    connection: Connection, key: _ForeignKey, gone: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return the first values of staged rows that refer to a missing row. The last two items of
    each tuple are the numbers of such values, and of such rows.
    """
    columns = [f"s.{literal_name(name)}" for name in key.columns]
    pairs = zip(columns, key.partners, strict=True)
    same = " AND ".join(f"r.{literal_name(partner)} = {column}" for column, partner in pairs)
    stays = f" AND (r.{BATCH} = ANY ('{{{','.join(map(str, gone))}}}')) IS NOT TRUE"
    table = f"{literal_name(key.schema)}.{literal_name(key.table)}"
    partner = f"EXISTS (SELECT FROM {table} r WHERE {same}{stays if key.own else ''})"
    if key.own:
        partner += f" OR EXISTS (SELECT FROM pg_temp.{STAGE} r WHERE {same})"
    listed = ", ".join(columns)
    nulls = f"num_nulls({listed})"
    mixed = f" OR {nulls} BETWEEN 1 AND {len(columns) - 1}" if key.is_full else ""
    statement = f"""
        SELECT {listed}, count(*) OVER (), sum(count(*)) OVER () FROM pg_temp.{STAGE} s
        WHERE {nulls} = 0 AND NOT ({partner}){mixed}
        GROUP BY {listed} ORDER BY {listed} LIMIT {_MOST}
    """
    return [tuple(row) for row in execute_literally(connection, statement)]


# Of a partitioned table that is referenced there is a constraint for each partition besides.
_KEYS = text("""
SELECT * FROM (
  SELECT c.conname AS name, n.nspname AS schema, r.relname AS table,
         c.confrelid = c.conrelid AS own, c.confmatchtype = 'f' AS is_full,
         ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (attnum, number)
               JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
               ORDER BY number) AS columns,
         ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (attnum, number)
               JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum
               ORDER BY number) AS partners
  FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid
  JOIN pg_namespace n ON n.oid = r.relnamespace
  WHERE c.conrelid = :oid AND c.contype = 'f'
    AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.confrelid, 'SELECT')
    AND NOT row_security_active(c.confrelid)
    AND NOT EXISTS (
      SELECT FROM pg_constraint p WHERE p.oid = c.conparentid AND p.conrelid = c.conrelid)
) k WHERE columns <@ cast(:columns AS text[]) ORDER BY name
""")
