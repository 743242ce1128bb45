"""Find transactions of a PostgreSQL source that may still bring rows, by its lock table.

An insert locks its table before it draws a value of a sequence, and drawing locks the sequence;
both locks last until the transaction ends. A transaction that holds neither will draw values above
all that are visible. A timestamp is the start of its transaction, whenever that takes the lock. For
a cursor of timestamps, every transaction that began before counts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.errors import InputError
from ledger.sources.sql.connection import APPLICATION, SourceTable, asking

POLL_SECONDS = 0.2
_BY_CODE_POINT = ("C", "POSIX", "ucs_basic", "C.UTF-8", "C.utf8", "pg_c_utf8")

_HERE = "(SELECT oid FROM pg_database WHERE datname = current_database())"
_HOLDERS = f"""
    SELECT DISTINCT l.virtualtransaction AS transaction, l.pid, a.xact_start AS started,
           (SELECT min(p.gid) FROM pg_locks x
             JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
            WHERE l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction) AS gid
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.database = {_HERE} AND l.granted
      AND l.relation = ANY (cast(:relations AS oid[]))
      AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                     'AccessExclusiveLock')
      AND l.pid IS DISTINCT FROM pg_backend_pid()
"""
# Every transaction holds a lock of its own; without rights others show no more than this. A
# prepared one cannot write any more, so it counts only if it has written.
_RUNNING = f"""
    SELECT l.virtualtransaction AS transaction, l.pid, a.xact_start AS started, NULL AS gid
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.virtualxid = l.virtualtransaction AND l.granted
      AND a.datid = {_HERE} AND l.pid <> pg_backend_pid()
        AND a.application_name IS DISTINCT FROM :own
      AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'parallel worker', 'walsender')
    UNION ALL SELECT * FROM ({_HOLDERS}) held WHERE held.pid IS NULL
"""


@dataclass(frozen=True)
class RunningTransaction:
    """A transaction that runs on the source.

    ``started``: None if this user may not see it.
    ``pid``, ``gid``: a prepared transaction has no ``pid`` and a ``gid``.
    """

    transaction: str
    pid: int | None
    started: datetime | None
    gid: str | None

    def __str__(self) -> str:
        if self.pid is None:
            return f"prepared transaction {self.gid!r}"
        since = "" if self.started is None else f" since {self.started.isoformat()}"
        return f"pid {self.pid}{since}"


@dataclass(frozen=True)
class Relations:
    """A table with its partitions and heirs, and the sequences of the cursor's values.

    ``blind``: why the locks of its writers cannot be seen; None if they can.
    """

    oids: tuple[int, ...]
    blind: str | None


@dataclass(frozen=True)
class DrawnValue:
    """The last value that a sequence gave.

    None if it gave none, or if this user may not read it.
    """

    sequence: str
    is_readable: bool
    last: int | None


def find_relations(connection: Connection, table: SourceTable) -> Relations:
    """Return the relations that writers of the table lock.

    Raises InputError when the cursor's sequence hands out values out of order, or when the database
    does not sort the cursor's texts by code point.
    """
    source = table.source
    relation = connection.execute(
        text("""
        SELECT c.oid, c.relkind::text, pg_is_in_recovery() AS standby
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = :table AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND (n.nspname = :schema OR cast(:schema AS text) IS NULL AND pg_table_is_visible(c.oid))
        """),
        {"table": source.table_name, "schema": source.schema_name},
    ).one()
    _check_collation(connection, table, relation.oid)
    descendants = text("""
        WITH RECURSIVE tree (oid) AS (
          SELECT cast(:root AS oid)
          UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid
        ) SELECT oid FROM tree
    """)
    tree = [row.oid for row in connection.execute(descendants, {"root": relation.oid})]
    sequences = _sequences(connection, table, tree)
    blind = None
    if relation.standby:
        blind = "a standby does not show the transactions of its primary"
    elif relation.relkind not in ("r", "p"):
        blind = "writers of the tables behind a view or a foreign table are not seen"
    elif is_subscribed(connection, tree):
        blind = "its rows come by logical replication, later than their values were drawn"
    return Relations((*tree, *sequences), blind)


def _check_collation(connection: Connection, table: SourceTable, oid: int) -> None:
    """Raise InputError unless the database sorts a cursor of text by code point.

    Python does so when it puts claims in order.
    """
    collation = connection.execute(
        text("""
        SELECT CASE WHEN c.collname <> 'default' THEN c.collname
                    ELSE CASE to_jsonb(d) ->> 'datlocprovider' WHEN 'i' THEN 'ICU of the database'
                      WHEN 'b' THEN 'C'
                         ELSE d.datcollate END END AS name
        FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
        JOIN pg_database d ON d.datname = current_database()
        WHERE a.attrelid = :oid AND a.attname = :cursor
        """),
        {"oid": oid, "cursor": table.source.cursor},
    ).first()
    if collation is not None and collation.name not in _BY_CODE_POINT:
        raise InputError(
            f"{table.source.shown}: cursor {table.source.cursor!r} is text in collation"
            f' {collation.name}, expected "C": declare the column COLLATE "C", or choose a number'
            " or a timestamp"
        )


def clock(connection: Connection) -> datetime:
    """Return the time on the source's own clock."""
    instant = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    assert isinstance(instant, datetime)
    return instant


def writers(connection: Connection, relations: Relations) -> list[RunningTransaction]:
    """Return the transactions that write to the table or have drawn from its sequence."""
    rows = connection.execute(text(_HOLDERS), {"relations": list(relations.oids)})
    return [RunningTransaction(*row) for row in rows]


def transactions(connection: Connection, relations: Relations) -> list[RunningTransaction]:
    """Return all transactions of the database that may write to the table, now or later."""
    keys = {"relations": list(relations.oids), "own": APPLICATION}
    return [RunningTransaction(*row) for row in connection.execute(text(_RUNNING), keys)]


def outwait(
    connection: Connection, look: Callable[[], Sequence[RunningTransaction]], wait_seconds: float
) -> list[RunningTransaction]:
    """Wait until the transactions that ``look`` returns at first have ended; return those that are
    left.

    All prepared transactions are waited for, because preparing one changes its name.

    ``wait_seconds``: how long to wait at most.
    """
    deadline = time.monotonic() + wait_seconds
    with asking(connection):
        left = list(look())
    first = {writer.transaction for writer in left}
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        with asking(connection):
            left = [
                writer for writer in look() if writer.transaction in first or writer.pid is None
            ]
    return left


def drawn_value(connection: Connection, table: SourceTable) -> DrawnValue | None:
    """Return the last value that the cursor's sequence gave; None: no sequence is seen."""
    if connection.dialect.name != "postgresql":
        return None
    statement = text("""
        SELECT name, is_readable, CASE WHEN is_readable THEN pg_sequence_last_value(oid) END AS last
        FROM (SELECT seqrelid AS oid, cast(cast(seqrelid AS regclass) AS text) AS name,
                     has_sequence_privilege(seqrelid, 'SELECT') AS is_readable
              FROM pg_sequence WHERE seqrelid = ANY (cast(:relations AS oid[]))) s
    """)
    oids = find_relations(connection, table).oids
    row = connection.execute(statement, {"relations": list(oids)}).first()
    return None if row is None else DrawnValue(*row)


def _sequences(connection: Connection, table: SourceTable, tree: list[int]) -> list[int]:
    """Return the sequences that the cursor's default draws from, or that belong to its column.

    Raises InputError for sequences whose values do not grow with every insert.
    """
    statement = text("""
        SELECT s.seqrelid AS oid, s.seqrelid::regclass::text AS name, s.seqcache AS cache,
               s.seqincrement AS increment, s.seqcycle AS cycle
        FROM pg_sequence s WHERE s.seqrelid IN (
          SELECT d.refobjid FROM pg_attribute a
          JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
          JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
                          AND d.refclassid = 'pg_class'::regclass
          WHERE a.attrelid = ANY (cast(:tree AS oid[])) AND a.attname = :column
          UNION
          SELECT d.objid FROM pg_attribute a
          JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
                          AND d.refobjsubid = a.attnum AND d.classid = 'pg_class'::regclass
                          AND d.deptype IN ('a', 'i')
          WHERE a.attrelid = ANY (cast(:tree AS oid[])) AND a.attname = :column
        ) ORDER BY name
    """)
    rows = connection.execute(statement, {"tree": tree, "column": table.source.cursor}).all()
    where = f"{table.source.shown}: cursor {table.source.cursor!r}"
    if len(rows) > 1:
        raise InputError(
            f"{where} draws from several sequences ({', '.join(row.name for row in rows)}), whose "
            "values do not grow with every insert: let all draw from one, or choose another cursor"
        )
    for row in rows:
        if row.cache > 1:
            raise InputError(
                f"{where} draws from {row.name} with CACHE {row.cache}: each session keeps values "
                f"and writes them later, so rows would be missed: ALTER SEQUENCE {row.name} CACHE 1"
            )
        if row.increment < 0 or row.cycle:
            raise InputError(
                f"{where} draws from {row.name}, which counts down or in a cycle: expected values "
                "that grow: alter the sequence or choose another cursor"
            )
    return [row.oid for row in rows]


def is_subscribed(connection: Connection, tree: list[int]) -> bool:
    """Return whether another server's rows are replicated into one of these tables."""
    statement = text(
        "SELECT EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = ANY (cast(:tree AS oid[])))"
    )
    return bool(connection.execute(statement, {"tree": tree}).scalar_one())
