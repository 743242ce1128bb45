"""Statements on the tables that sinks write to: what they are, and the rows of a batch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError

from ledger.databases.driver_errors import Trouble, raw_cursor, trouble_of
from ledger.databases.identifiers import PLAIN, literal_name, quoted
from ledger.errors import ConfigurationError, NotReadyError

RECORD = "ackledger_commit"
BATCH = "ackledger_batch"
STAGE = "ackledger_stage"  # of this transaction alone, in pg_temp
TURN_SECONDS = 600  # how long to wait for other publishes into the table
CHUNK_BYTES = 1 << 18  # handed to the connection at once


@dataclass(frozen=True)
class TablePlace:
    """Place of a sink's table, which may not exist yet. ``oid``: None if there is no table of this
    name.
    """

    schema: str
    name: str
    oid: int | None

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def sql(self) -> str:
        """The name for use in SQL, each part quoted."""
        return f"{literal_name(self.schema)}.{literal_name(self.name)}"


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table, from the database's catalog.

    ``type``: the type as it is shown in messages.
    ``base``: the type's own name, resolved if it is a domain.
    ``element``: the type of an array's elements.
    ``category``: as in pg_type; for an array, that of its elements.
    ``required``: neither null nor omitted values are allowed.
    ``writable``: values can be inserted.
    """

    name: str
    type: str
    base: str
    category: str
    element: str | None
    modifier: int
    required: bool
    writable: bool

    @property
    def most_characters(self) -> int | None:
        """The greatest length of a varchar, or of each varchar in an array; None if there is no
        limit.
        """
        is_varchar = (self.element or self.base) == "varchar"
        return self.modifier - 4 if is_varchar and self.modifier >= 0 else None


@dataclass(frozen=True)
class TargetTable:
    """A table, and its unique sets of columns. ``kind``: as in pg_class."""

    place: TablePlace
    kind: str
    columns: Mapping[str, TargetColumn]
    unique: frozenset[frozenset[str]]


def execute_literally(connection: Connection, statement: str) -> sa.CursorResult[Any]:
    """Execute a statement that contains names or texts of the catalog, without taking a percent
    sign or a colon in them for a parameter.
    """
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def type_name(kind: sa.types.TypeEngine[Any]) -> str:
    """Return a type as a declaration writes it."""
    return str(kind.compile(PLAIN)).lower()


def find_place(connection: Connection, table: str) -> TablePlace:
    """Return the place where ``table`` (``name`` or ``schema.name``) is, or would be created.
    Raises ConfigurationError if its schema does not exist.
    """
    schema_name, _, name = table.rpartition(".")
    path = ".".join(literal_name(part) for part in (schema_name, name) if part)
    row = connection.execute(
        text("""
        SELECT n.nspname AS schema, c.relname AS name, c.oid FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:path)
        """),
        {"path": path},
    ).first()
    if row is not None:
        return TablePlace(row.schema, row.name, row.oid)
    statement = text(
        "SELECT nspname FROM pg_namespace WHERE nspname = coalesce(cast(:given AS name),"
        " current_schema())"
    )
    schema = connection.execute(statement, {"given": schema_name or None}).scalar()
    if schema is None:
        raise ConfigurationError(
            f"table {table!r}: its schema is missing, or this user may not see it: "
            f"CREATE SCHEMA {quoted(schema_name) if schema_name else 'public'}"
        )
    return TablePlace(schema, name, None)


def take_turn(connection: Connection, sink: str, place: TablePlace) -> None:
    """Wait until no other transaction publishes as ``sink`` or into its table. The lock lasts until
    the end of the transaction.

    Raises NotReadyError after 10 minutes.
    """
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{TURN_SECONDS}s'")
    try:
        # Everyone takes the sink's first, and waits for nothing while holding a table's.
        for name in (f"sink {sink}", f"table {place}"):
            lock(connection, name)
    except OperationalError as exc:
        if trouble_of(exc) is not Trouble.LOCKED:
            raise
        raise NotReadyError(
            f"sink {sink!r}: another publish into {place} has run for {TURN_SECONDS} s: wait for "
            "it, or end its session (in pg_locks its locktype is 'advisory'), then run this again"
        ) from exc
    connection.exec_driver_sql("SET LOCAL lock_timeout = '60s'")


def find_table(connection: Connection, place: TablePlace) -> TargetTable:
    """Return the table of ``place`` as it is now."""
    keys = {"oid": place.oid}
    kind = connection.execute(text("SELECT relkind::text FROM pg_class WHERE oid = :oid"), keys)
    columns = text("""
        SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, b.typname AS base,
               coalesce(e.typcategory, b.typcategory)::text AS category, e.typname AS element,
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier,
               (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = ''
                 AND t.typdefault IS NULL AS required,
               a.attgenerated = '' AND a.attidentity <> 'a' AS writable
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
        LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
        WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    """)
    unique = text("""
        SELECT array_agg(a.attname::text) FROM pg_index i
        CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, number)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = :oid AND i.indisunique AND i.indisvalid AND i.indimmediate
          AND i.indpred IS NULL AND i.indexprs IS NULL AND k.number <= i.indnkeyatts
        GROUP BY i.indexrelid
    """)
    fields = [TargetColumn(**row._mapping) for row in connection.execute(columns, keys)]
    return TargetTable(
        place,
        kind.scalar_one(),
        {column.name: column for column in fields},
        frozenset(frozenset(names) for names in connection.execute(unique, keys).scalars()),
    )


def require_rights(connection: Connection, place: TablePlace) -> None:
    """Raise ConfigurationError, with the GRANT to run, unless this user has the rights that a
    publication needs.
    """
    asked = text("""
        SELECT current_user AS me, current_database() AS here, c.relname AS name,
               CASE WHEN c.oid IS NULL THEN has_schema_privilege(:schema, 'CREATE')
                    ELSE has_table_privilege(c.oid, 'SELECT')
                      AND has_table_privilege(c.oid, 'INSERT')
                     AND has_table_privilege(c.oid, 'UPDATE')
                       AND has_table_privilege(c.oid, 'DELETE')
               END AND has_database_privilege(current_database(), 'TEMPORARY') AS allowed
        FROM unnest(cast(:names AS text[])) WITH ORDINALITY AS wanted (name, number)
        LEFT JOIN pg_class c ON c.relname = wanted.name
             AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = :schema)
        ORDER BY number
    """)
    keys = {"schema": place.schema, "names": [place.name, RECORD]}
    for me, here, name, allowed in connection.execute(asked, keys):
        if not allowed:
            need = (
                f"SELECT, INSERT, UPDATE, DELETE ON {quoted(place.schema)}.{quoted(name)}"
                if name
                else f"CREATE ON SCHEMA {quoted(place.schema)}"
            )
            raise ConfigurationError(
                f"user {me!r} may not write to {place}: GRANT {need} TO {quoted(me)}; "
                f"GRANT TEMPORARY ON DATABASE {quoted(here)} TO {quoted(me)}"
            )


def create_table(
    connection: Connection,
    place: TablePlace,
    columns: Mapping[str, sa.types.TypeEngine[Any]],
    key: Sequence[str],
) -> TablePlace:
    """Create the sink's table with the ledger's own column, and a primary key over ``key`` if there
    is one. Return its place.
    """
    table = sa.Table(place.name, sa.MetaData(), schema=place.schema)
    batch = add_columns(table, columns, key)
    # A batch's rows lie together: an index of a few pages finds them.
    options: dict[str, Any] = {"using": "brin", "with": {"autosummarize": "on"}}
    sa.Index(None, batch, **{f"postgresql_{name}": value for name, value in options.items()})
    table.create(connection)
    return find_place(connection, f"{place.schema}.{place.name}")


def add_columns(
    table: sa.Table, columns: Mapping[str, sa.types.TypeEngine[Any]], key: Sequence[str]
) -> sa.Column[int]:
    """Add the columns of a sink's table to a table. Return the ledger's own column."""
    for name, kind in columns.items():
        table.append_column(sa.Column(name, kind, primary_key=name in key, autoincrement=False))
    about = f"Which batch of ackledger published the row: batch_id in {RECORD}."
    batch = sa.Column(BATCH, sa.BigInteger, nullable=False, comment=about)
    table.append_column(batch)
    return batch


def stage(connection: Connection, place: TablePlace, columns: Iterable[str]) -> None:
    """Create the transaction's staging table, with ``columns`` of the sink's table."""
    execute_literally(
        connection,
        f"CREATE TEMPORARY TABLE {STAGE} ON COMMIT DROP AS SELECT"
        f" {', '.join(map(literal_name, columns))} FROM {place.sql} WITH NO DATA",
    )


def copy(connection: Connection, rows: bytes) -> int:
    """Insert rows in CSV into the staging table. Return the number that the database counted."""
    with raw_cursor(connection) as cursor:
        statement = f"COPY pg_temp.{STAGE} FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
        cursor.copy_expert(statement, BytesIO(rows), CHUNK_BYTES)
        return int(cursor.rowcount)


def odd_key(connection: Connection, key: Sequence[str]) -> tuple[tuple[Any, ...], int] | None:
    """Return a key that several staged rows have, or that has a null, and the number of its rows;
    None if there is none.
    """
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in key]
    count = sa.func.count()
    odd = sa.or_(count > 1, *(column.is_(None) for column in columns))
    shown = [sa.cast(column, sa.Text) for column in columns]
    statement = (
        sa.select(count, *shown).select_from(_staged([])).group_by(*columns).having(odd).limit(1)
    )
    row = connection.execute(statement).first()
    return None if row is None else (tuple(row[1:]), row[0])


def remove_batches(connection: Connection, place: TablePlace, batches: Sequence[int]) -> None:
    """Delete all rows that these batches published. Raises ConfigurationError if cascading foreign
    keys, row security or triggers would delete other rows as well, or keep some of these.
    """
    if not batches:
        return
    target = _target(place, [])
    own = target.c[BATCH].in_(batches)
    row = connection.execute(_REMOVAL, {"oid": place.oid}).one()
    which = f"{place}: rows of batches {', '.join(map(str, sorted(batches)))} are to be replaced, "
    if row.cascading:
        raise ConfigurationError(
            f"{which}and the foreign key {row.cascading} deletes or changes the rows that refer to"
            " them: declare it ON DELETE NO ACTION DEFERRABLE, then publish again"
        )
    if row.is_secured:
        raise ConfigurationError(
            f"{which}and row security may hide some of them from {row.me}: publish as the table's"
            " owner, or as a user with BYPASSRLS"
        )
    connection.execute(sa.delete(target).where(own))
    if row.is_guarded and connection.execute(sa.select(target.c[BATCH]).where(own)).first():
        raise ConfigurationError(
            f"{which}and a trigger or rule of the table keeps them: remove it, then publish again"
        )


# A key of a partitioned table is each partition's, too, and a trigger may be a partition's alone.
_REMOVAL = text("""
SELECT current_user AS me, row_security_active(cast(:oid AS oid)) AS is_secured,
       (SELECT format('%I of %s', conname, conrelid::regclass) FROM pg_constraint
        WHERE confrelid = :oid AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')
        ORDER BY conname LIMIT 1) AS cascading,
       EXISTS (SELECT FROM pg_rewrite WHERE ev_class = :oid AND ev_type = '4')
       OR EXISTS (
         SELECT FROM pg_trigger WHERE NOT tgisinternal AND tgtype & 8 = 8 AND tgtype & 66 <> 0
           AND (tgrelid = :oid OR tgrelid IN (SELECT relid FROM pg_partition_tree(:oid)))
       ) AS is_guarded
""")


def count_newer(
    connection: Connection, place: TablePlace, key: Sequence[str], newer: Sequence[int]
) -> int:
    """Return the number of staged rows whose key is in a row that one of the ``newer`` batches
    published.
    """
    staged, target = _staged(key), _target(place, key)
    equal = sa.and_(*(staged.c[name] == target.c[name] for name in key))
    count = sa.select(sa.func.count()).select_from(staged.join(target, equal))
    return int(connection.execute(count.where(target.c[BATCH].in_(newer))).scalar_one())


def insert_stage(
    connection: Connection, place: TablePlace, columns: Sequence[str], batch_id: int
) -> int:
    """Insert the staged rows into the table. Return the number of inserted rows."""
    staged, target = _staged(columns), _target(place, columns)
    rows = sa.select(*staged.c, sa.literal(batch_id, sa.BigInteger))
    statement = sa.insert(target).from_select([*columns, BATCH], rows, include_defaults=False)
    return connection.execute(statement).rowcount


def merge_stage(
    connection: Connection,
    place: TablePlace,
    columns: Sequence[str],
    key: Sequence[str],
    batch_id: int,
    newer: Sequence[int],
) -> int:
    """Insert the staged rows, or update the rows with an equal key. Rows that one of the ``newer``
    batches published are not updated. Return the number of inserted and updated rows.
    """
    staged, target = _staged(columns), _target(place, columns)
    rows = sa.select(*staged.c, sa.literal(batch_id, sa.BigInteger))
    statement = insert(target).from_select([*columns, BATCH], rows, include_defaults=False)
    values = {name: statement.excluded[name] for name in [*columns, BATCH]}
    older = sa.or_(target.c[BATCH].is_(None), target.c[BATCH].not_in(newer)) if newer else None
    merged = statement.on_conflict_do_update(index_elements=list(key), set_=values, where=older)
    return connection.execute(merged).rowcount


def _target(place: TablePlace, columns: Sequence[str]) -> sa.TableClause:
    names = [*columns, BATCH]
    return sa.table(place.name, *(sa.column(name) for name in names), schema=place.schema)


def _staged(columns: Sequence[str]) -> sa.TableClause:
    return sa.table(STAGE, *(sa.column(name) for name in columns), schema="pg_temp")


def lock(connection: Connection, name: str) -> None:
    """Wait for the lock of this name. It lasts until the end of the transaction."""
    statement = text("SELECT pg_advisory_xact_lock(hashtextextended('ackledger ' || :name, 0))")
    connection.execute(statement, {"name": name})
