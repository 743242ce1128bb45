"""The publisher of PostgreSQL sinks: one transaction in the target has a batch and its record.

Each row carries the batch that published it, in ``ackledger_batch``; the table ``ackledger_commit``
beside the sink's knows the rest of a batch, so one column does for all modes:

append            rows are added
upsert            rows replace those with an equal key, unless these are of a newer batch: of a
                  later interval, of a newer family over it, or of a later batch of the family.
                  A row without a batch, there before ackledger, is older than all. What was
                  overwritten is gone: when a newer row is removed with its batch, the older one
                  does not come back
replace_interval  a family replaces older families over its interval; within the family rows
                  are added. A family that comes after a newer one is refused
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
from sqlalchemy import Connection, Table

from ledger.core.probes import reached
from ledger.databases.addresses import postgresql, resolved
from ledger.errors import DeclarationError, FencedError, IntegrityError, StageError, quote
from ledger.sinks.base import (
    WHERE_STAGED_FILES_ARE_LOST,
    Delivery,
    Publisher,
    SinkPlan,
    require_staged,
)
from ledger.sinks.postgres import foreign_keys
from ledger.sinks.postgres import record as target_record
from ledger.sinks.postgres import table as target
from ledger.sinks.postgres.connection import transact, transaction
from ledger.sinks.postgres.copy_text import to_csv
from ledger.sinks.postgres.fit import new_columns, problems, require_fit
from ledger.sinks.postgres.record import Commit
from ledger.sinks.postgres.refusals import Trial
from ledger.sinks.postgres.table import TablePlace, TargetTable
from ledger.sinks.staged_files import record_batches, staged_schema, user_schema


class PostgresPublisher(Publisher):
    """Publishes to a table of a PostgreSQL database. Connections are opened when needed, and
    closed.

    ``table``: may be ``schema.table``.
    ``key``: for upsert, the columns that identify a row of the table.
    ``mode``: ``append``, ``upsert`` or ``replace_interval``.
    ``staging_root``: the folder below which files are staged.

    Raises ConfigurationError for an invalid url.
    """

    keeps_tracking = True

    def __init__(self, url: str, table: str, *, key: tuple[str, ...], mode: str, staging_root: str):
        what = f"the sink of table {table!r}"
        self._url = postgresql(resolved(url, what), f"the url of {what}")
        self._table = table
        self._key = key
        self._mode = mode
        self._staging_root = staging_root.rstrip("/")

    def staging(self, batch_id: int, version: int) -> str:
        """Return the folder in which one run stages its files."""
        return f"{self._staging_root}/batch={batch_id}/run={version}"

    def plan(self, schema: pa.Schema | None, delivery: Delivery | None) -> SinkPlan:
        """Return the sink's plan, see ``Publisher``. The rows are tried against the table's types,
        NOT NULL, CHECK and unique keys. Not tried: foreign keys, effects of triggers, exclusion
        constraints and missing partitions.

        Raises ConfigurationError if this user lacks a right that a publication needs.
        """
        columns = None if schema is None else user_schema(schema)
        with transaction(self._url) as connection:
            place = target.find_place(connection, self._table)
            table = None if place.oid is None else target.find_table(connection, place)
            if wrong := problems(table, columns, self._key):
                return SinkPlan(tuple(wrong))
            target.require_rights(connection, place)
            staged = None if delivery is None else staged_schema(delivery.files)
            if delivery is None or staged is None:
                return SinkPlan()
            gone = self._batches_to_remove(connection, place, delivery)
            trial = Trial(connection, place, staged, self._key)
            return SinkPlan(refusals=tuple(trial.refusals(delivery.files, delivery.batch_id, gone)))

    def publish(self, delivery: Delivery) -> None:
        """Publish the delivery once; see ``ledger.sinks.base``.

        Raises StageError if the table refuses the rows, for example by a foreign key;
        IntegrityError if files or rows are not as recorded; FencedError if something newer is
        published; and UnavailableError if the target does not answer.
        """
        transact(self._url, lambda connection: self._publish(connection, delivery))

    def _batches_to_remove(
        self, connection: Connection, place: TablePlace, delivery: Delivery
    ) -> list[int]:
        """Return the batches whose rows the delivery removes from the table. Raises IntegrityError
        if another ledger has published batches of these numbers.
        """
        record = target_record.find_record(connection, place)
        if record is None:
            return []
        delivery = target_record.of_this_ledger(connection, record, delivery)
        batches = {*delivery.replaces, delivery.batch_id}
        if self._mode == "replace_interval":
            batches.update(target_record.older_families(connection, record, delivery))
        return target_record.published_of(connection, record, delivery.sink, sorted(batches))

    def _publish(self, connection: Connection, delivery: Delivery) -> None:
        place = target.find_place(connection, self._table)
        target.take_turn(connection, delivery.sink, place)
        record = target_record.open_record(connection, place)
        delivery = target_record.of_this_ledger(connection, record, delivery)
        if not is_due(target_record.find_commit(connection, record, delivery), delivery):
            return
        replaced = self._replaced(connection, record, place, delivery)
        require_staged(delivery)
        schema = staged_schema(delivery.files)  # None without files: then no table is made
        place = target.find_place(connection, self._table)
        if place.oid is None and schema is not None:
            new = new_columns(place, schema, self._key)
            place = target.create_table(connection, place, new, self._key)
        if place.oid is not None:
            table = target.find_table(connection, place)
            if schema is not None:
                require_fit(place, table, schema, self._key)
                _stage(connection, table, schema, delivery)
            columns = [] if schema is None else list(schema.names)
            batches = [*replaced, delivery.batch_id]
            there = target_record.published_of(connection, record, delivery.sink, batches)
            with foreign_keys.check_at_end(connection, place, columns, there, delivery):
                target.remove_batches(connection, place, there)
                if columns:
                    self._merge(connection, record, place, columns, delivery)
        target_record.mark_replaced(connection, record, place, delivery, replaced)
        target_record.put_commit(connection, record, place, delivery)
        reached("writing table", delivery.sink)

    def _replaced(
        self, connection: Connection, record: Table, place: TablePlace, delivery: Delivery
    ) -> list[int]:
        """Return the batches that the delivery replaces. Raises FencedError or DeclarationError if
        it may not be published.
        """
        other = target_record.other_sink(connection, record, place, delivery)
        if other is not None:
            raise DeclarationError(
                f"sink {delivery.sink!r}: {place} has rows of batch {delivery.batch_id} from sink "
                f"{other!r}, and could not tell them apart: give each sink a table of its own"
            )
        if self._mode != "replace_interval":
            return list(delivery.replaces)
        newest = target_record.newest_family(connection, record, delivery)
        if newest is not None and newest > delivery.original_id:
            raise FencedError(
                f"sink {delivery.sink!r}: batch {delivery.batch_id} is of family"
                f" {delivery.original_id}, and the newer family {newest} has replaced its interval"
                f" from {delivery.interval_start.isoformat()} on: there is nothing to do"
            )
        older = target_record.older_families(connection, record, delivery)
        return sorted({*delivery.replaces, *older})

    def _merge(
        self,
        connection: Connection,
        record: Table,
        place: TablePlace,
        columns: list[str],
        delivery: Delivery,
    ) -> None:
        """Insert the staged rows, or merge them by key, as ``mode`` says."""
        if self._mode == "upsert":
            self._require_keys(connection, delivery)
            newer = target_record.newer_batches(connection, record, place, delivery)
            ids = (delivery.batch_id, newer)
            taken = target.merge_stage(connection, place, columns, self._key, *ids)
            if taken != delivery.rows:
                taken += target.count_newer(connection, place, self._key, newer)
        else:
            taken = target.insert_stage(connection, place, columns, delivery.batch_id)
        if taken != delivery.rows:
            raise IntegrityError(
                f"{place} took {taken} of {delivery.rows} rows of batch {delivery.batch_id}: a"
                " trigger or a rule drops rows: remove it, then publish again"
            )

    def _require_keys(self, connection: Connection, delivery: Delivery) -> None:
        """Raise StageError if a staged row has no key, or shares its key with another."""
        odd = target.odd_key(connection, self._key)
        if odd is None:
            return
        values, rows = odd
        key = ", ".join("null" if value is None else repr(value) for value in values)
        problem = (
            f"sink {delivery.sink!r}: {rows} row(s) of batch {delivery.batch_id} have the key "
            f"({', '.join(self._key)}) = {quote(f'({key})')}"
        )
        if None in values:
            raise StageError(
                f"{problem}: expected no null in it: fill or drop these rows in the stage before"
                " the sink"
            )
        raise StageError(
            f"{problem}: expected one, for no order says which is the newest: leave one in the"
            " stage before the sink"
        )


def is_due(commit: Commit | None, delivery: Delivery) -> bool:
    """Return whether the delivery still has to be published. ``commit``: the entry of its batch in
    the target's record.

    Raises FencedError if something newer is published, and IntegrityError if the entry belongs to
    another batch.
    """
    assert delivery.interval_start.tzinfo is not None
    assert delivery.batch_id not in delivery.replaces
    what = f"sink {delivery.sink!r}: version {delivery.version} of batch {delivery.batch_id}"
    if commit is None:
        return True
    if commit.replaced_by is not None:
        raise FencedError(
            f"{what}: batch {commit.replaced_by} has replaced it: there is nothing to do"
        )
    same = (commit.interval_start, commit.original_id) == (
        delivery.interval_start,
        delivery.original_id,
    )
    if not same or (commit.version == delivery.version and commit.rows != delivery.rows):
        raise IntegrityError(
            f"{what}: expected {delivery.rows} rows of family {delivery.original_id} from"
            f" {delivery.interval_start.isoformat()} on, found {commit.rows} rows of version"
            f" {commit.version}, family {commit.original_id}, {commit.interval_start} in"
            " ackledger_commit: this ledger was restored from an older backup, and gave the"
            " number again. Delete that record with its rows (docs/how-to/backup.md), then publish"
            " again"
        )
    if commit.version > delivery.version:
        raise FencedError(
            f"{what}: version {commit.version} is published, which is newer: there is nothing to do"
        )
    return commit.version < delivery.version


def _stage(
    connection: Connection, table: TargetTable, schema: pa.Schema, delivery: Delivery
) -> None:
    """Copy the rows of all files into a temporary table of the transaction. The plan of the sink's
    run has already tried them. Raises IntegrityError if their number is not the recorded one.
    """
    target.stage(connection, table.place, schema.names)
    staged = 0
    with (
        closing(record_batches(delivery.files, schema)) as batches,
        ThreadPoolExecutor(1) as pool,
    ):
        pieces = (to_csv(rows, table) for rows in batches)
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)  # the next piece, while this one is sent
            staged += target.copy(connection, piece)
    if staged != delivery.rows:
        raise IntegrityError(
            f"sink {delivery.sink!r}: expected {delivery.rows} rows of batch {delivery.batch_id} in"
            f" {delivery.folder}, found {staged}."
            f" {WHERE_STAGED_FILES_ARE_LOST}"
        )
