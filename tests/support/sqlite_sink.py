"""A sink of another kind, written against ``ledger.sinks.base`` alone: a table of a SQLite file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ledger.errors import FencedError, StageError, UnavailableError
from ledger.settings import Settings
from ledger.sinks.base import Delivery, Refusal, SinkPlan, require_staged
from ledger.sinks.options import Dedup
from ledger.sinks.staged_files import record_batches, staged_schema, user_schema

TYPES = {pa.int32(): "INTEGER", pa.int64(): "INTEGER", pa.float64(): "REAL", pa.string(): "TEXT"}


@dataclass(frozen=True)
class SqliteSink:
    """A table of a SQLite file; each row has the batch that published it, ``ackledger_batch``."""

    path: str
    table: str
    dedup: Dedup = "none"
    partition_by = ()
    key = ()
    replaces_intervals = False
    in_place = False

    @property
    def place(self) -> str:
        return f"table {self.table!r} of {self.path!r}"

    @property
    def identity(self) -> str:
        return f"sqlite {self.path} {self.table}"

    def publisher(self, settings: Settings, pipeline: str, name: str) -> "SqlitePublisher":
        staging = f"{settings.storage_root()}/{pipeline}/{name}"
        return SqlitePublisher(settings.output_path(self.path), self.table, staging)


@dataclass(frozen=True)
class SqlitePublisher:
    """Rows and the record of what is published, ``ackledger_commit``, commit together."""

    path: str
    table: str
    staging_root: str
    keeps_tracking = True

    def staging(self, batch_id: int, version: int) -> str:
        return f"{self.staging_root}/batch={batch_id}/run={version}"

    def plan(self, schema: pa.Schema | None, delivery: Delivery | None) -> SinkPlan:
        if not Path(self.path).parent.is_dir():
            raise UnavailableError(f"{self.path}: expected its folder, found none: make it")
        if schema is None:
            return SinkPlan()
        columns, problems = _columns(user_schema(schema))
        there: dict[str, str] = {}
        if Path(self.path).exists():
            with self._transaction(keep=False) as connection:
                there = self._there(connection)
        problems += [
            f"expected column {name!r} of {kind}, found {there.get(name, 'none')}: change the stage"
            " before the sink, or the table"
            for name, kind in columns.items()
            if there and there.get(name) != kind
        ]
        refusals = [] if problems or delivery is None else self._refused(delivery)
        return SinkPlan(problems=tuple(problems), refusals=tuple(refusals))

    def _refused(self, delivery: Delivery) -> list[Refusal]:
        """The rows that the table refuses, which are inserted and rolled back."""
        refusals = []
        with self._transaction(keep=False) as connection:
            self._make_room(connection, delivery)
            for position, (statement, row) in enumerate(self._inserts(delivery)):
                try:
                    connection.execute(statement, row)
                except sqlite3.IntegrityError as exc:
                    refusals.append(Refusal(position, str(exc)))
        return refusals

    def publish(self, delivery: Delivery) -> None:
        with self._transaction() as connection:
            newest = self._version(connection, delivery)
            if newest == delivery.version:
                return
            _require_newest(delivery, newest)
            require_staged(delivery)
            self._make_room(connection, delivery)
            for statement, row in self._inserts(delivery):
                connection.execute(statement, row)
            self._record(connection, delivery)

    def _version(self, connection: sqlite3.Connection, delivery: Delivery) -> float | None:
        """What the record has of the batch: a version, infinity once another batch replaced it."""
        row = connection.execute(
            "SELECT version FROM ackledger_commit WHERE sink = ? AND batch_id = ?",
            (delivery.sink, delivery.batch_id),
        ).fetchone()
        return None if row is None else float(row[0])

    def _record(self, connection: sqlite3.Connection, delivery: Delivery) -> None:
        versions = dict.fromkeys(delivery.replaces, float("inf"))
        connection.executemany(
            "INSERT OR REPLACE INTO ackledger_commit VALUES (?, ?, ?)",
            [
                (delivery.sink, batch, version)
                for batch, version in {**versions, delivery.batch_id: delivery.version}.items()
            ],
        )

    def _make_room(self, connection: sqlite3.Connection, delivery: Delivery) -> None:
        """Make the table if it is missing, and remove the rows that the delivery replaces."""
        schema = staged_schema(delivery.files)
        if schema is not None:
            columns = {**_columns(schema)[0], "ackledger_batch": "INTEGER"}
            listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
            connection.execute(f'CREATE TABLE IF NOT EXISTS "{self.table}" ({listed})')
        if self._there(connection):
            connection.executemany(
                f'DELETE FROM "{self.table}" WHERE ackledger_batch = ?',
                [(batch,) for batch in (*delivery.replaces, delivery.batch_id)],
            )

    def _inserts(self, delivery: Delivery) -> Iterator[tuple[str, tuple[object, ...]]]:
        """A statement and its values for each row of the delivery."""
        schema = staged_schema(delivery.files)
        if schema is None:
            return
        columns = [*schema.names, "ackledger_batch"]
        listed = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join("?" for _ in columns)
        statement = f'INSERT INTO "{self.table}" ({listed}) VALUES ({values})'
        for batch in record_batches(delivery.files, schema):
            for row in batch.to_pylist():
                yield statement, (*row.values(), delivery.batch_id)

    def _there(self, connection: sqlite3.Connection) -> dict[str, str]:
        """The columns of the table; none if it is yet to be made."""
        result = connection.execute(f'PRAGMA table_info("{self.table}")')
        return {name: kind for _, name, kind, *_ in result}

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction that no other writer shares; ``keep``: commit it."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS ackledger_commit "
                "(sink TEXT, batch_id INTEGER, version NUMERIC, PRIMARY KEY (sink, batch_id))"
            )
            yield connection
            end(connection, keep)
        except sqlite3.IntegrityError as exc:
            raise StageError(f"table {self.table!r} refuses a row: {exc}: fix the stage") from exc
        except sqlite3.OperationalError as exc:
            raise UnavailableError(f"{self.path}: {exc}: run it again") from exc
        finally:
            connection.close()


def end(connection: sqlite3.Connection, keep: bool) -> None:
    """The instant at which readers see what a transaction did."""
    connection.execute("COMMIT" if keep else "ROLLBACK")


def _columns(schema: pa.Schema) -> tuple[dict[str, str], list[str]]:
    """The table's columns for those of ``schema``, and why it cannot hold the others."""
    problems = [
        f"column {field.name!r}: expected one of {', '.join(map(str, TYPES))}, found {field.type}:"
        " cast it in the stage before the sink"
        for field in schema
        if field.type not in TYPES
    ]
    return {field.name: TYPES.get(field.type, "") for field in schema}, problems


def _require_newest(delivery: Delivery, newest: float | None) -> None:
    if newest is not None and newest > delivery.version:
        raise FencedError(
            f"sink {delivery.sink}: run {delivery.version} of batch {delivery.batch_id} comes "
            "after a newer one, or after a batch that replaced it. Nothing is lost: stop"
        )
