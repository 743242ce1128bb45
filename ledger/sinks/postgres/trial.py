"""Statements that find the rows which a sink's table would refuse, without touching the table.

The rows go into a table of the transaction's own that is made like the sink's: the server itself
reports which it does not take, and why. What such a table cannot have, unique keys, is looked up.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ledger.databases.driver_errors import code_of, first_line, raw_cursor
from ledger.databases.identifiers import literal_name, quoted
from ledger.sinks.postgres.table import (
    BATCH,
    CHUNK_BYTES,
    TablePlace,
    add_columns,
    execute_literally,
)

TRIAL = "ackledger_trial"  # of this transaction alone, in pg_temp
ROW = "ackledger_row"
# Of a row: what fails with it, and takes its other rows along; null: it is of no record.
RECORDS = "ackledger_records"
_TRIAL = f"pg_temp.{TRIAL}"
# Of SQLSTATE: values, constraints, limits of a row, and what a function of a constraint raises.
_OF_A_ROW = ("22", "23", "54", "P0")
_COLUMN = re.compile(r"^COPY .*?, column (.+?)(?:: |$)", re.MULTILINE)


def make_trial(
    connection: Connection, place: TablePlace, batch_id: int, *, types_only: bool
) -> TablePlace:
    """Make a table like the sink's, with a column for a row's position, and one for its records,
    and return its place. ``types_only``: without its constraints.
    """
    own = "" if types_only else " INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
    execute_literally(
        connection,
        f"CREATE TEMPORARY TABLE {TRIAL} (LIKE {place.sql} INCLUDING DEFAULTS{own}) ON COMMIT DROP",
    )
    if types_only:
        for name in connection.execute(_REQUIRED, {"oid": place.oid}).scalars():
            execute_literally(
                connection, f"ALTER TABLE {_TRIAL} ALTER {literal_name(name)} DROP NOT NULL"
            )
    else:
        for name, condition in connection.execute(_OF_PARTITIONS, {"oid": place.oid}).all():
            check = f"ADD CONSTRAINT {literal_name(name)} CHECK ({condition})"
            execute_literally(connection, f"ALTER TABLE {_TRIAL} {check}")
    return _finished(connection, batch_id)


def rewrites(connection: Connection, place: TablePlace) -> bool:
    """Return whether a trigger may change rows as they are inserted into the table or a partition
    of it."""
    return bool(connection.execute(_TRIGGERS, {"oid": place.oid}).scalar_one())


def make_new_trial(
    connection: Connection, columns: Mapping[str, sa.types.TypeEngine[Any]], batch_id: int
) -> TablePlace:
    """Make a trial table as ``make_trial`` does, like a table that is not made yet, without its
    key.
    """
    trial = sa.Table(
        TRIAL, sa.MetaData(), prefixes=["TEMPORARY"], postgresql_on_commit="DROP", comment=None
    )
    add_columns(trial, columns, ())
    trial.create(connection)
    return _finished(connection, batch_id)


def _finished(connection: Connection, batch_id: int) -> TablePlace:
    execute_literally(
        connection,
        f"ALTER TABLE {_TRIAL} ADD COLUMN {ROW} bigint, ADD COLUMN {RECORDS} bigint[], "
        f"ALTER COLUMN {BATCH} SET DEFAULT {int(batch_id)}",
    )
    statement = text("SELECT to_regclass(:name)::oid")
    return TablePlace(
        "pg_temp", TRIAL, connection.execute(statement, {"name": _TRIAL}).scalar_one()
    )


def constraint_names(connection: Connection, place: TablePlace) -> frozenset[str]:
    """Return the constraints of the table, and those of domains."""
    return frozenset(connection.execute(_CONSTRAINTS, {"oid": place.oid}).scalars())


def try_copy(connection: Connection, rows: bytes, columns: Iterable[str]) -> DBAPIError | None:
    """Add rows, as CSV with ``columns`` in order. Return the server's error if it refuses one of
    them: then none is added.
    """
    names = ", ".join(map(literal_name, columns))
    savepoint = connection.begin_nested()
    try:
        with raw_cursor(connection) as cursor:
            statement = f"COPY {_TRIAL} ({names}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
            cursor.copy_expert(statement, BytesIO(rows), CHUNK_BYTES)
    except DBAPIError as exc:
        savepoint.rollback()
        if code_of(exc)[:2] not in _OF_A_ROW:
            raise
        return exc
    savepoint.commit()
    return None


def without_values(exc: DBAPIError, names: Collection[str]) -> str:
    """Return the class of a server's error, and which of these columns and constraints it is about.
    Its other words may quote a row, even those that it reports as a name.
    """
    about = getattr(exc.orig, "diag", None)
    match = _COLUMN.search(getattr(about, "context", None) or "")
    reported: dict[str, str] = {
        "constraint": getattr(about, "constraint_name", None) or "",
        "column": getattr(about, "column_name", None) or (match[1] if match else ""),
    }
    parts = [f"{what} {quoted(name)}" for what, name in reported.items() if name in names]
    return f"{type(exc.orig).__name__} [{code_of(exc)}]: {', '.join(parts)}".removesuffix(": ")


def server_message(exc: DBAPIError, place: TablePlace) -> str:
    """Return the server's message, as the sink's own table would give it, with the column if it
    lacks that. All its lines are kept: a value that it quotes may have several.
    """
    about = getattr(exc.orig, "diag", None)
    message = getattr(about, "message_primary", None) or first_line(exc)
    message = message.replace(f'"{TRIAL}"', f'"{place.name}"')
    match = _COLUMN.search(getattr(about, "context", None) or "")
    if match is None or quoted(match[1]) in message or f'"{match[1]}"' in message:
        return message
    return f"{message}, column {match[1]}"


def analyze(connection: Connection) -> None:
    """Update the planner's statistics: without the number of rows it would choose nested loops."""
    execute_literally(connection, f"ANALYZE {_TRIAL}")


def remove(connection: Connection, positions: Sequence[int], records: Sequence[int]) -> None:
    """Delete refused rows, all rows of their records, and all rows of ``records``, so that they no
    longer conflict with others.
    """
    statement = text(f"""
        WITH refused AS (SELECT unnest(cast(:positions AS bigint[])) AS row),
        failing AS (
          SELECT unnest(cast(:records AS bigint[])) AS record
          UNION SELECT unnest(t.{RECORDS}) FROM {_TRIAL} t JOIN refused ON t.{ROW} = refused.row
        )
        DELETE FROM {_TRIAL} WHERE {ROW} IN (
          SELECT row FROM refused
          UNION ALL
          SELECT t.{ROW} FROM {_TRIAL} t CROSS JOIN unnest(t.{RECORDS}) AS r (record)
          JOIN failing ON failing.record = r.record)
    """)
    connection.execute(statement, {"positions": list(positions), "records": list(records)})


def odd_keys(
    connection: Connection, key: Sequence[str], most: int
) -> Iterator[tuple[str, list[int]]]:
    """Yield what is wrong with keys of an upsert, and the positions of their rows: rows that lack a
    part of the key, and rows that share it with others of these, by the server's own notion of what
    is equal. A row of no record that shares its key only with rows of records is left out, because
    those can fail.
    """
    for name in key:
        missing = f"SELECT {ROW} FROM {_TRIAL} WHERE {literal_name(name)} IS NULL"
        positions = _positions(connection, missing, most)
        yield f"null value in column {quoted(name)} of the key of the sink", positions
    if not key:
        return
    columns = ", ".join(map(literal_name, key))
    shared: dict[int, list[int]] = {}
    statement = f"""
        SELECT {ROW}, n FROM (
          SELECT {ROW}, {RECORDS}, count(*) OVER key AS n, count({RECORDS}) OVER key AS own
          FROM {_TRIAL} WINDOW key AS (PARTITION BY {columns})
        ) c WHERE n > 1 AND ({RECORDS} IS NOT NULL OR n - own > 1) ORDER BY 1 LIMIT {int(most)}
    """
    for row in execute_literally(connection, statement):
        shared.setdefault(row.n, []).append(row[0])
    for count, rows in sorted(shared.items()):
        reason = (
            f"{count} rows of the batch have this key of the sink ({', '.join(key)}), and nothing "
            "says which is the newest"
        )
        yield reason, rows


def duplicates(
    connection: Connection, place: TablePlace, key: Sequence[str], gone: Sequence[int], most: int
) -> Iterator[tuple[str, list[int]]]:
    """Yield the server's message on each unique index of the table and of its partitions, and at
    most ``most`` rows that violate it: those whose key an earlier row has, or one of the table.

    Rows without a record count as earlier: they cannot fail. ``gone``: batches whose rows make
    room. ``key``: of an upsert, where an equal key is no obstacle.
    """
    rows = connection.execute(_UNIQUE, {"oid": place.oid}).all()
    indexes = [_UniqueIndex(**row._mapping) for row in rows]
    if any((index.schema, index.table) != (place.schema, place.name) for index in indexes):
        columns = connection.execute(_PARTITIONED_BY, {"oid": place.oid}).scalar_one()
        execute_literally(connection, f"CREATE INDEX ON {_TRIAL} {columns}")
        analyze(connection)
    for index in indexes:
        if key and sorted(index.names or ()) == sorted(key) and index.predicate is None:
            continue
        positions = _positions(connection, _duplicates(index, key, gone), most)
        yield f'duplicate key value violates unique constraint "{index.name}"', positions


_REQUIRED = text("""
SELECT attname::text FROM pg_attribute
WHERE attrelid = :oid AND attnum > 0 AND attnotnull AND NOT attisdropped
""")

_CONSTRAINTS = text("""
SELECT conname::text FROM pg_constraint WHERE conrelid = :oid OR contypid <> 0
""")

# BEFORE INSERT FOR EACH ROW, and not switched off.
_TRIGGERS = text("""
SELECT EXISTS (
  SELECT FROM pg_trigger
  WHERE (tgrelid = :oid OR tgrelid IN (SELECT relid FROM pg_partition_tree(cast(:oid AS oid))))
    AND NOT tgisinternal AND tgtype & 7 = 7 AND tgenabled IN ('O', 'A'))
""")

# What a partition asks for, and the table does not; and of a table that is a partition its bounds.
_OF_PARTITIONS = text("""
WITH part AS (
  SELECT relid AS oid, coalesce(pg_get_partition_constraintdef(relid), 'true') AS bounds
  FROM pg_partition_tree(cast(:oid AS oid)) WHERE relid <> :oid
), rule AS (
  SELECT conname::text AS name, bounds, pg_get_expr(conbin, conrelid) AS condition
  FROM part JOIN pg_constraint c ON conrelid = part.oid
  WHERE contype = 'c' AND coninhcount = 0
    AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
  UNION ALL
  SELECT attname || '_not_null', bounds, format('%I IS NOT NULL', attname)
  FROM part JOIN pg_attribute a ON attrelid = part.oid
  WHERE attnum > 0 AND attnotnull AND NOT attisdropped AND NOT EXISTS (
    SELECT FROM pg_attribute t
    WHERE t.attrelid = :oid AND t.attname = a.attname AND t.attnotnull)
  UNION ALL
  SELECT 'partition_constraint', 'true', pg_get_partition_constraintdef(:oid)
  WHERE pg_get_partition_constraintdef(:oid) IS NOT NULL
)
SELECT name, string_agg(
  format('((%s) IS NOT TRUE OR (%s) IS NOT FALSE)', bounds, condition), ' AND ')
FROM rule GROUP BY name ORDER BY name
""")

# The columns, in brackets, by which rows find their partitions: one index for all of these.
_PARTITIONED_BY = text("SELECT substring(pg_get_partkeydef(:oid) from '[(].*')")

_UNIQUE = text("""
SELECT c.relname AS name, n.nspname AS schema, r.relname AS table,
       nullif(concat_ws(' AND ', pg_get_expr(i.indpred, i.indrelid),
                        pg_get_partition_constraintdef(nullif(r.oid, :oid))), '') AS predicate,
       coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false) AS equal_nulls,
       ARRAY(SELECT pg_get_indexdef(i.indexrelid, k, false)
             FROM generate_series(1, i.indnkeyatts) AS k ORDER BY k) AS parts,
       CASE WHEN i.indexprs IS NULL THEN
         ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, number)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
               WHERE k.number <= i.indnkeyatts) END AS names
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class r ON r.oid = i.indrelid
JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE i.indisunique AND i.indislive AND (r.oid = :oid OR (
  r.oid IN (SELECT relid FROM pg_partition_tree(cast(:oid AS oid))) AND NOT EXISTS (
    SELECT FROM pg_inherits WHERE inhrelid = i.indexrelid)))
ORDER BY 1
""")


@dataclass(frozen=True)
class _UniqueIndex:
    """A unique index of a table, or of a partition of it, whose bounds the ``predicate`` has then.
    ``names``: of its columns; None: it has expressions, too. ``parts``: as SQL."""

    name: str
    schema: str
    table: str
    predicate: str | None
    equal_nulls: bool
    parts: Sequence[str]
    names: Sequence[str] | None


def _duplicates(index: _UniqueIndex, key: Sequence[str], gone: Sequence[int]) -> str:
    of = TablePlace(index.schema, index.table, None).sql
    parts = [f"({part}) AS k{number}" for number, part in enumerate(index.parts)]
    names = [f"k{number}" for number in range(len(parts))]
    equal = "IS NOT DISTINCT FROM" if index.equal_nulls else "="
    where = f"WHERE {index.predicate}" if index.predicate else ""
    nulls = "" if index.equal_nulls else f"WHERE num_nulls({', '.join(names)}) = 0"
    own = [f"{literal_name(name)} AS o{number}" for number, name in enumerate(key)]
    conditions = [f"t.{name} {equal} s.{name}" for name in names]
    if own:  # of an upsert the row with an equal key is written over
        same = " AND ".join(f"t.o{number} = s.o{number}" for number in range(len(own)))
        conditions.append(f"({same}) IS NOT TRUE")
    if gone:
        ids = ", ".join(str(int(batch_id)) for batch_id in gone)
        conditions.append(f"(t.{BATCH} IN ({ids})) IS NOT TRUE")
    return f"""
        WITH s AS (
          SELECT * FROM (
            SELECT {ROW}, {RECORDS}, {", ".join([*parts, *own])} FROM {_TRIAL} {where}
          ) k {nulls}
        )
        SELECT {ROW} FROM (
          SELECT {ROW}, row_number() OVER (
            PARTITION BY {", ".join(names)} ORDER BY {RECORDS} IS NOT NULL, {ROW}) AS n
          FROM s
        ) d WHERE n > 1
        UNION
        SELECT {ROW} FROM s WHERE EXISTS (
          SELECT FROM (SELECT {BATCH}, {", ".join([*parts, *own])} FROM {of} {where}) t
          WHERE {" AND ".join(conditions)})
    """


def _positions(connection: Connection, statement: str, most: int) -> list[int]:
    rows = execute_literally(connection, f"{statement} ORDER BY 1 LIMIT {int(most)}")
    return [row[0] for row in rows]
