"""Statements on a target's own record: which version of which batch each sink has published there.

The record, ``ackledger_commit``, is in the schema of the table, so that both are restored or
dropped together. Its entries commit together with their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from ledger.errors import IntegrityError
from ledger.sinks.base import Delivery
from ledger.sinks.postgres.table import RECORD, TablePlace, lock

NEVER = 0  # the version of a batch that was replaced before it was published


@dataclass(frozen=True)
class Commit:
    """An entry of the record: a batch of a sink. With ``replaced_by``, it has no rows any more."""

    version: int
    interval_start: datetime | None
    original_id: int | None
    rows: int
    replaced_by: int | None


def open_record(connection: Connection, place: TablePlace) -> sa.Table:
    """Return the record beside the table of ``place``; create it if it is missing."""
    record = _record(place.schema)
    if not _exists(connection, record):
        lock(connection, f"record {place.schema}")  # two that make it at once collide
        if not _exists(connection, record):
            record.create(connection)
    return record


def find_record(connection: Connection, place: TablePlace) -> sa.Table | None:
    """Return the record beside the table of ``place``; None if nothing was ever published there."""
    record = _record(place.schema)
    return record if _exists(connection, record) else None


def of_this_ledger(connection: Connection, record: sa.Table, delivery: Delivery) -> Delivery:
    """Return the delivery, without batches to replace whose numbers belong to another ledger in
    this record.

    Raises IntegrityError unless all batches of other ledgers for this sink are older, because rows
    have only the number of their batch.
    """
    of = record.c
    others = (of.sink == delivery.sink, of.pipeline_since != delivery.pipeline_since)
    other = connection.execute(sa.select(sa.func.max(of.batch_id)).where(*others)).scalar()
    if other is None:
        return delivery
    if other >= delivery.original_id:
        raise IntegrityError(
            f"sink {delivery.sink!r}: expected no batch of another ledger from"
            f" {delivery.original_id} on, found {other} in {RECORD}, which this ledger did not"
            " write: another one wrote there, or this one was set up again. Nothing was changed."
            " Run 'ackledger db restored', which moves the numbers of this one past those, then"
            " reprocess the interval; or choose another table and schema; or delete that record"
            " with its rows and publish again"
        )
    statement = sa.select(of.batch_id).where(*others, of.batch_id.in_(delivery.replaces))
    theirs = set(connection.execute(statement).scalars())
    return replace(delivery, replaces=tuple(id_ for id_ in delivery.replaces if id_ not in theirs))


def find_commit(connection: Connection, record: sa.Table, delivery: Delivery) -> Commit | None:
    """Return the record's entry for the delivery's batch; None if there is none."""
    of = record.c
    statement = sa.select(
        of.version, of.interval_start, of.original_id, of.rows, of.replaced_by
    ).where(of.sink == delivery.sink, of.batch_id == delivery.batch_id)
    row = connection.execute(statement).first()
    return None if row is None else Commit(*row)


def other_sink(
    connection: Connection, record: sa.Table, place: TablePlace, delivery: Delivery
) -> str | None:
    """Return another sink whose rows of this batch are in the table; None if there is none. The
    table's batch column cannot tell the rows of two sinks apart.
    """
    of = record.c
    statement = sa.select(of.sink).where(
        of.table_name == place.name,
        of.batch_id == delivery.batch_id,
        of.sink != delivery.sink,
        _is_published(record),
    )
    return connection.execute(statement).scalar()


def newest_family(connection: Connection, record: sa.Table, delivery: Delivery) -> int | None:
    """Return the newest family that the sink ever published over the delivery's interval."""
    statement = sa.select(sa.func.max(record.c.original_id)).where(_same_interval(record, delivery))
    return connection.execute(statement).scalar()


def older_families(connection: Connection, record: sa.Table, delivery: Delivery) -> list[int]:
    """Return batches of other families that the sink has published over the delivery's interval."""
    statement = sa.select(record.c.batch_id).where(
        _same_interval(record, delivery),
        record.c.original_id < delivery.original_id,
        _is_published(record),
    )
    return list(connection.execute(statement).scalars())


def published_of(
    connection: Connection, record: sa.Table, sink: str, batches: Sequence[int]
) -> list[int]:
    """Return those of the batches that the sink has published in some version."""
    statement = sa.select(record.c.batch_id).where(
        record.c.sink == sink, record.c.batch_id.in_(batches), _is_published(record)
    )
    return list(connection.execute(statement).scalars())


def newer_batches(
    connection: Connection, record: sa.Table, place: TablePlace, delivery: Delivery
) -> list[int]:
    """Return the batches, of any sink, whose rows in the table are newer than the delivery's.
    Batches of its own sink count even if the table had another name then.
    """
    of = record.c
    age = sa.tuple_(of.interval_start, of.original_id, of.batch_id)
    own = sa.tuple_(
        sa.literal(delivery.interval_start, of.interval_start.type),
        sa.literal(delivery.original_id, sa.BigInteger),
        sa.literal(delivery.batch_id, sa.BigInteger),
    )
    there = sa.or_(of.table_name == place.name, of.sink == delivery.sink)
    statement = sa.select(of.batch_id).where(there, _is_published(record), age > own)
    return list(connection.execute(statement).scalars())


def mark_replaced(
    connection: Connection,
    record: sa.Table,
    place: TablePlace,
    delivery: Delivery,
    batches: Sequence[int],
) -> None:
    """Record that the delivery's batch replaces others, even those that were never published."""
    if not batches:
        return
    same = {
        "sink": delivery.sink,
        "version": NEVER,
        "rows": 0,
        "pipeline_since": delivery.pipeline_since,
        "table_name": place.name,
        "replaced_by": delivery.batch_id,
    }
    statement = insert(record).values([{**same, "batch_id": batch} for batch in batches])
    by = sa.func.coalesce(record.c.replaced_by, statement.excluded.replaced_by)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["sink", "batch_id"], set_={"replaced_by": by}
        )
    )


def put_commit(
    connection: Connection, record: sa.Table, place: TablePlace, delivery: Delivery
) -> None:
    """Record that the table holds this version of the batch."""
    values = {
        "version": delivery.version,
        "interval_start": delivery.interval_start,
        "interval_end": delivery.interval_end,
        "original_id": delivery.original_id,
        "rows": delivery.rows,
        "pipeline_since": delivery.pipeline_since,
        "table_name": place.name,
        "committed_at": sa.func.now(),
    }
    statement = insert(record).values(sink=delivery.sink, batch_id=delivery.batch_id, **values)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["sink", "batch_id"], set_=values)
    )


def _record(schema: str) -> sa.Table:
    return sa.Table(
        RECORD,
        sa.MetaData(),
        sa.Column("sink", sa.Text, primary_key=True, comment="<pipeline>.<sink>."),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column(
            "pipeline_since", sa.TIMESTAMP(timezone=True), nullable=False,
            comment="When the ledger first saw the pipeline: the batch is of that ledger.",
        ),
        sa.Column(
            "version", sa.BigInteger, nullable=False,
            comment="The step run whose rows are published; 0: replaced before any was.",
        ),
        sa.Column("interval_start", sa.TIMESTAMP(timezone=True)),
        sa.Column("interval_end", sa.TIMESTAMP(timezone=True)),
        sa.Column("original_id", sa.BigInteger, comment="The family: greater is newer."),
        sa.Column("rows", sa.BigInteger, nullable=False, comment="Rows delivered."),
        sa.Column("table_name", sa.Text, nullable=False, comment="In this schema."),
        sa.Column("replaced_by", sa.BigInteger, comment="The batch that took its rows away."),
        sa.Column(
            "committed_at",
            sa.TIMESTAMP(timezone=True),
            nullable=False,
            server_default=sa.func.now(),
        ),
        schema=schema,
        comment="ackledger: batches that sinks have published here; commits with their rows",
    )  # fmt: skip


def _exists(connection: Connection, record: sa.Table) -> bool:
    return sa.inspect(connection).has_table(RECORD, schema=record.schema)


def _is_published(record: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(record.c.replaced_by.is_(None), record.c.version > NEVER)


def _same_interval(record: sa.Table, delivery: Delivery) -> sa.ColumnElement[bool]:
    return sa.and_(
        record.c.sink == delivery.sink,
        record.c.interval_start == delivery.interval_start,
        record.c.interval_end.is_not_distinct_from(delivery.interval_end),
    )
