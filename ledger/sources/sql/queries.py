"""Statements on the tables that pipelines read: the safe bound, claims, and the rows."""

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ledger.core.text import quantity
from ledger.errors import InputError, NotReadyError, quote
from ledger.sources.sql.connection import SourceTable, asking, connected, find_table
from ledger.sources.sql.cursor import Range, TimestampForm, Value, timestamp_form
from ledger.sources.sql.source import SqlSource
from ledger.sources.sql.writers import (
    POLL_SECONDS,
    Relations,
    RunningTransaction,
    clock,
    drawn_value,
    find_relations,
    outwait,
    transactions,
    writers,
)

ROWS_PER_FETCH = 10_000


def safe_bound(source: SqlSource, now: datetime, wait_seconds: float = 30) -> Value | None:
    """Return the greatest cursor value up to which no more rows can appear; None: no row is safe.

    A later transaction must read the rows. Call this outside of any transaction on the same
    database, or it waits for the caller.

    Raises NotReadyError if a transaction may still bring such rows, InputError if the cursor does
    not separate new rows, UnavailableError if the database does not answer.

    ``now``: an aware datetime, from which ``lag`` counts back.
    ``wait_seconds``: how long to wait for transactions that run on the source.
    """
    with connected(source) as connection:
        with asking(connection):
            table = find_table(connection, source, [source.cursor])
            form = timestamp_form(table)
            limit = _latest_by_lag(table, form, now)
            _refuse_nulls(connection, table)
            if form is not None:
                _refuse_unreachable(connection, table, form, now)
            relations, blind = _sight(connection, table, form)
        if relations is not None and form is None:
            return _numbered(connection, table, relations, wait_seconds)
        if relations is not None and form is not None:
            return _timed(connection, table, relations, form, limit, wait_seconds)
        if blind is not None and limit is None:
            raise InputError(
                f"{source.shown}: {blind}, so how far the rows are complete is unknown: declare a "
                'cursor that is a timestamp, and a lag such as lag="10m" that no transaction '
                "outlasts"
            )
        with asking(connection):
            return _greatest(connection, table, limit)


def reach(
    source: SqlSource, after: Value | None, bound: Value | None, most: int | None
) -> Value | None:
    """Return the cursor value up to which there are at most ``most`` rows, of those with ``after``
    < cursor <= ``bound``; None: there are none.

    ``after`` None: from the start; ``most`` None: no limit. Rows with one value stay together: if
    the first value has more than ``most`` rows, that value is returned. Raises InputError when all
    rows are below ``after`` and new ones may come there.
    """
    if bound is None:
        return None
    with _table(source) as (connection, table):
        within = _between(table, after, bound)
        first = connection.execute(sa.select(sa.func.min(table.cursor)).where(*within)).scalar()
        if first is None:
            _require_ahead(connection, table, after)
            return None
        if most is None:
            return bound
        ordered = sa.select(table.cursor).where(*within).order_by(table.cursor)
        beyond = connection.execute(ordered.offset(most).limit(1)).scalar()
        if beyond is None:
            return bound
        below = sa.select(sa.func.max(table.cursor)).where(*within, table.cursor < beyond)
        reached = connection.execute(below).scalar()
        return _checked(source, first if reached is None else reached)


def _require_ahead(connection: Connection, table: SourceTable, after: Value | None) -> None:
    """Raise InputError if the greatest value is below ``after`` and new rows may come below it too.

    They come above ``after`` if the sequence has reached it, or if the cursor is a time; then rows
    were only deleted.
    """
    if after is None or timestamp_form(table) is not None:
        return
    greatest = sa.select(sa.func.max(table.cursor).label("value")).subquery()
    below = sa.select(greatest.c.value).where(greatest.c.value < after)
    top = connection.execute(below).scalar()
    if top is None:
        return
    drawn = drawn_value(connection, table)
    last = None if drawn is None else drawn.last
    if last is not None and isinstance(after, int | Decimal) and last >= after:
        return
    source, hint = table.source, ""
    if drawn is None:
        hint = ". If rows at its end were deleted, it is read on once there are greater ones"
    elif not drawn.is_readable:
        hint = (
            f". If rows at its end were deleted: GRANT SELECT ON SEQUENCE {drawn.sequence} to this"
            " user, so that it sees that the next ones are greater"
        )
    raise InputError(
        f"{source.shown}: expected rows with {source.cursor!r} above {quote(after)}, up to which it"
        f" was read, found none, and {quote(top)} as the greatest: the table was emptied, or"
        " restored, and counts from an earlier value again. Declare the source under a new name,"
        f" which reads all that is there{hint}"
    )


def slices(source: SqlSource, after: Value | None, bound: Value, parts: int) -> list[Range]:
    """Split (after, bound] into at most ``parts`` ranges (after, upto] of about equal rows, in
    order.

    Rows with one cursor value are in one range.
    """
    with _table(source) as (connection, table):
        number = sa.func.ntile(parts).over(order_by=table.cursor).label("part")
        cut = sa.select(table.cursor.label("value"), number).where(*_between(table, after, bound))
        parted = cut.subquery()
        statement = (
            sa.select(sa.func.max(parted.c.value)).group_by(parted.c.part).order_by(parted.c.part)
        )
        ends = list(dict.fromkeys(connection.execute(statement).scalars()))[:-1]
    starts = [after, *ends]
    return list(zip(starts, [*ends, bound], strict=True))


def require_columns(source: SqlSource, columns: Sequence[str]) -> SourceTable:
    """Return the source's table. Raises InputError unless it is there and has these columns."""
    with connected(source) as connection, asking(connection):
        return find_table(connection, source, columns)


def rows(
    source: SqlSource,
    columns: Sequence[str],
    after: Value | None,
    upto: Value,
    texts: Collection[str] = (),
) -> Generator[Sequence[Sequence[Any]], None, None]:
    """Stream the rows with ``after`` < cursor <= ``upto``, in lists.

    ``texts``: the columns that are declared STRING.
    """
    with connected(source, stream=True) as connection:
        table = find_table(connection, source, [*columns, source.cursor])
        read = [table.read_as(name, is_text=name in texts) for name in columns]
        statement = sa.select(*read).select_from(table.clause).where(*_between(table, after, upto))
        streamed = connection.execution_options(stream_results=True, yield_per=ROWS_PER_FETCH)
        yield from streamed.execute(statement).partitions()


def _latest_by_lag(table: SourceTable, form: TimestampForm | None, now: datetime) -> Value | None:
    """Return the greatest cursor value that ``lag`` allows, the time ``now`` minus the lag; None:
    the source has no lag. Raises InputError if the cursor is not a timestamp.
    """
    lag = table.source.lag_seconds
    if lag is None:
        return None
    if form is None:
        raise InputError(
            f"{table.source.shown}: lag {table.source.lag!r} needs a cursor that is a timestamp,"
            f" found {table.source.cursor!r} of type {table.declared[table.source.cursor]}: leave"
            " out the lag, or choose another cursor"
        )
    return form.at(now - timedelta(seconds=lag))


def _refuse_nulls(connection: Connection, table: SourceTable) -> None:
    if table.source.cursor in table.required:
        return
    nulls = sa.select(sa.func.count()).select_from(table.clause).where(table.cursor.is_(None))
    without = connection.execute(nulls).scalar_one()
    if without:
        raise InputError(
            f"{table.source.shown}: {quantity(without, 'row')} without a value in the cursor"
            f" {table.source.cursor!r} would never be read: give each a value and make the column"
            " NOT NULL, or choose another cursor"
        )


def _refuse_unreachable(
    connection: Connection, table: SourceTable, form: TimestampForm, now: datetime
) -> None:
    """Raise InputError if rows have a time that never comes, or that Python cannot hold."""
    last = form.last(now)
    outside = table.cursor > (last if table.typed else last.isoformat())
    if table.dialect == "postgresql":
        outside |= table.cursor < sa.literal_column("'0001-01-01'")
    greatest = sa.cast(sa.func.max(table.cursor), sa.String)
    number, value = connection.execute(sa.select(sa.func.count(), greatest).where(outside)).one()
    if number:
        raise InputError(
            f"{table.source.shown}: {quantity(number, 'row')} would not be read. The greatest value"
            f" of the cursor {table.source.cursor!r} is {quote(value)}: expected times from the"
            f" year 1 to {last}, two days from now. Correct these rows, or choose another cursor"
        )


def _sight(
    connection: Connection, table: SourceTable, form: TimestampForm | None
) -> tuple[Relations | None, str | None]:
    """Return the relations that writers lock, and None; or None, and why their locks cannot be
    seen.

    Both are None if the locks do not matter.
    """
    dialect = connection.dialect.name
    if dialect == "postgresql":
        relations = find_relations(connection, table)
        return (relations, None) if relations.blind is None else (None, relations.blind)
    if dialect == "sqlite" and form is None:
        return None, None  # it has one writer at a time: what comes later is greater
    return None, f"the running transactions of {dialect} are not seen"


def _numbered(
    connection: Connection, table: SourceTable, relations: Relations, wait_seconds: float
) -> Value | None:
    """Return the safe bound of a cursor of numbers or text; None: there is no row. Raises
    NotReadyError if writers have not ended after ``wait_seconds``.

    Writers of values below the greatest visible one hold a lock by now, or have ended.
    """
    with asking(connection):
        top = _greatest(connection, table, None)
    if top is None:
        return None
    left = outwait(connection, lambda: writers(connection, relations), wait_seconds)
    if left:
        raise _not_ready(table, left)
    with asking(connection):
        _require_drawn(connection, table, top)
    return top


def _require_drawn(connection: Connection, table: SourceTable, top: Value) -> None:
    """Raise InputError if ``top`` was set by hand, above what the cursor's sequence has drawn."""
    drawn = drawn_value(connection, table)
    if drawn is None or drawn.last is None or not isinstance(top, int | Decimal):
        return
    if top > drawn.last:
        shown = quote(top)
        raise InputError(
            f"{table.source.shown}: a row has {shown} in the cursor {table.source.cursor!r}, but"
            f" its sequence {drawn.sequence} has only come to {quote(drawn.last)}: rows to come"
            " would have smaller values and never be read. Correct the row, or let the sequence go"
            f" on above it: SELECT setval('{drawn.sequence}', {shown}). If writers always set the"
            f" column themselves, remove the sequence: ALTER TABLE {table.source.table} ALTER"
            f" {table.source.cursor} DROP DEFAULT, then DROP SEQUENCE {drawn.sequence}; of an"
            " identity column DROP IDENTITY. Or choose another cursor"
        )


def _timed(
    connection: Connection,
    table: SourceTable,
    relations: Relations,
    form: TimestampForm,
    limit: Any,
    wait_seconds: float,
) -> Value | None:
    """Return the safe bound of a cursor of timestamps; None: there is no row below all running
    transactions. Raises NotReadyError if a transaction whose begin is not visible has not ended
    after ``wait_seconds``.

    A transaction that began before the greatest visible timestamp is still listed, or has ended.
    """
    with asking(connection):
        past: Any = form.before(clock(connection))
    limit = past if limit is None else min(limit, past)
    time.sleep(POLL_SECONDS)  # one that has just begun has not published at once
    with asking(connection):
        top: Any = _greatest(connection, table, limit)
    if top is None:
        return None

    def earlier() -> list[RunningTransaction]:
        candidates = transactions(connection, relations)
        return [
            writer
            for writer in candidates
            if writer.started is None or form.before(writer.started) < top
        ]

    left = outwait(connection, earlier, wait_seconds)
    if any(writer.started is None for writer in left):
        raise _not_ready(table, [writer for writer in left if writer.started is None])
    if not left:
        return _checked(table.source, top)
    with asking(connection):
        return _greatest(
            connection, table, min(form.before(writer.started) for writer in left if writer.started)
        )


def _not_ready(table: SourceTable, left: list[RunningTransaction]) -> NotReadyError:
    hint = ""
    if any(writer.started is None and writer.pid is not None for writer in left):
        hint = ". Grant pg_read_all_stats to this user so that it sees when they began"
    return NotReadyError(
        f"{table.source.shown}: {len(left)} transaction(s) may still bring rows below those that"
        f" are visible ({', '.join(map(str, left))}): nothing was taken, the next run"
        f" takes the rows; end a transaction that hangs{hint}"
    )


def _greatest(connection: Connection, table: SourceTable, limit: Any) -> Value | None:
    """Return the greatest cursor value, at most ``limit`` if there is one."""
    maximum = sa.func.max(table.cursor)
    statement = sa.select(maximum)
    if limit is not None:
        if not table.typed:
            limit = _as_stored(table, connection.execute(statement).scalar(), limit)
        statement = statement.where(table.cursor <= limit)
    top = connection.execute(statement).scalar()
    return None if top is None else _checked(table.source, top)


def _as_stored(table: SourceTable, top: object, limit: date) -> str:
    """Return a timestamp as text with the separator of the time that SQLite's rows have. ``top``: a
    value of these rows. Raises InputError if it is no text.
    """
    if top is not None and not isinstance(top, str):
        raise InputError(
            f"{table.source.shown}: expected timestamps as text in cursor {table.source.cursor!r}, "
            f"found {quote(repr(top))}: choose another cursor, or store the text of"
            " datetime.isoformat()"
        )
    if not isinstance(limit, datetime):
        return limit.isoformat()
    return limit.isoformat("T" if top and top[10:11] == "T" else " ", "microseconds")


def _checked(source: SqlSource, value: object) -> Value:
    """Return the value. Raises InputError unless it can be ordered and stored in the ledger."""
    is_orderable = isinstance(value, int | Decimal | date | str) and not isinstance(value, bool)
    if not is_orderable or (isinstance(value, Decimal) and not value.is_finite()):
        raise InputError(
            f"{source.shown}: cursor {source.cursor!r} has the value {quote(repr(value))}: expected"
            " an integer, a finite numeric, a date, a timestamp or text: correct the row or choose"
            " another cursor"
        )
    return value  # type: ignore[return-value]


def _between(table: SourceTable, after: Value | None, upto: Value) -> list[sa.ColumnElement[bool]]:
    above = [] if after is None else [table.cursor > after]
    return [*above, table.cursor <= upto]


@contextmanager
def _table(source: SqlSource) -> Iterator[tuple[Connection, SourceTable]]:
    with connected(source) as connection, asking(connection):
        yield connection, find_table(connection, source, [source.cursor])
