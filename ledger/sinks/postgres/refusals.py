"""Find the staged rows that a table of PostgreSQL refuses, before anything is decided."""

from collections.abc import Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.core.column_names import ROOT, ROOTS
from ledger.errors import StageError, quote
from ledger.sinks.base import Refusal
from ledger.sinks.postgres import table as target
from ledger.sinks.postgres import trial as target_trial
from ledger.sinks.postgres.copy_text import repeated_keys, to_csv
from ledger.sinks.postgres.fit import new_columns
from ledger.sinks.postgres.table import TablePlace
from ledger.sinks.staged_files import record_batches
from ledger.storage.manifest import DataFile

MOST_REFUSED = 10_000  # rows; more of them are a broken stage or table, and each costs 17 attempts


class Trial:
    """Inserts staged rows into a table that is made like the sink's, in a transaction of its own.

    ``gone``: batches whose rows leave the sink's table when these rows are published.
    """

    def __init__(
        self, connection: Connection, place: TablePlace, schema: pa.Schema, key: Sequence[str]
    ):
        self._connection = connection
        self._place = place
        self._schema = schema
        self._key = key
        self._refusals: dict[int, Refusal] = {}
        self._failing: list[int] = []  # records of rows that were refused on their way in
        self._types_only = place.oid is not None and target_trial.rewrites(connection, place)

    def refusals(
        self, files: Sequence[DataFile], batch_id: int, gone: Sequence[int]
    ) -> list[Refusal]:
        """Return the rows of the files that the table refuses. Raises StageError if there are more
        than 10,000.

        Foreign keys, and effects of triggers, are only checked by the publication.
        """
        connection, place, most = self._connection, self._place, MOST_REFUSED + 1
        self._load(files, batch_id)
        target_trial.analyze(connection)
        target_trial.remove(connection, [], self._failing)
        looked_up = [target_trial.odd_keys(connection, self._key, most)]
        if place.oid is not None and not self._types_only:
            looked_up.append(target_trial.duplicates(connection, place, self._key, gone, most))
        for reason, positions in chain.from_iterable(looked_up):
            if positions:
                self._note(positions, reason, reason)
                target_trial.remove(connection, positions, [])
        return [refusal for _, refusal in sorted(self._refusals.items())]

    def _load(self, files: Sequence[DataFile], batch_id: int) -> None:
        """Create the trial table, and copy the rows of the files into it, except refused ones."""
        connection, place = self._connection, self._place
        if place.oid is None:
            columns = new_columns(place, self._schema, self._key)
            trial = target_trial.make_new_trial(connection, columns, batch_id)
        else:
            trial = target_trial.make_trial(
                connection, place, batch_id, types_only=self._types_only
            )
        self._trial = target.find_table(connection, trial)
        constraints = target_trial.constraint_names(connection, trial)
        self._names = constraints.union(self._schema.names)
        position = 0
        for batch in record_batches(files, self._schema, tracking=True):
            numbers = pa.array(range(position, position + batch.num_rows), pa.int64())
            rows = batch.select(self._schema.names).append_column(target_trial.ROW, numbers)
            rows = rows.append_column(target_trial.RECORDS, _records(batch))
            self._try(self._without_repeated_keys(rows))
            position += batch.num_rows

    def _without_repeated_keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse the rows in which a JSON object has a key twice, and return the other rows."""
        refused: set[int] = set()
        for reason, numbers in repeated_keys(rows, self._trial):
            for number in set(numbers) - refused:
                self._refuse(rows.slice(number, 1), reason, reason)
            refused.update(numbers)
        return rows.take([n for n in range(rows.num_rows) if n not in refused]) if refused else rows

    def _refuse(self, row: pa.RecordBatch, reason: str, masked: str) -> None:
        """Record a refused row, and the records that fail with it."""
        self._note([row.column(target_trial.ROW)[0].as_py()], reason, masked)
        records = row.column(target_trial.RECORDS)[0].as_py() or []
        self._failing += [record for record in records if record is not None]

    def _try(self, rows: pa.RecordBatch) -> None:
        """Insert the rows. Find refused rows by halving."""
        error: StageError | DBAPIError | None
        try:
            text = to_csv(rows, self._trial)
        except StageError as exc:
            error = exc
        else:
            error = target_trial.try_copy(self._connection, text, rows.schema.names)
        if error is None:
            return
        if rows.num_rows > 1:
            middle = rows.num_rows // 2
            self._try(rows.slice(0, middle))
            self._try(rows.slice(middle))
        elif isinstance(error, StageError):
            self._refuse(rows, str(error), str(error))  # it names only the column
        else:
            message = target_trial.server_message(error, self._place)
            self._refuse(rows, message, target_trial.without_values(error, self._names))

    def _note(self, positions: list[int], reason: str, masked: str) -> None:
        self._refusals |= {place: Refusal(place, reason, masked) for place in positions}
        if len(self._refusals) > MOST_REFUSED:
            raise StageError(
                f"the sink's table {self._place} refuses more than {MOST_REFUSED:,} rows, the last "
                f"with: {quote(reason, masked)}. The stage or the table is probably broken: fix it,"
                " then run the sink again"
            )


def _records(rows: pa.RecordBatch) -> pa.Array:
    """Return the list of records that fail with each row; null if none do."""
    kind = pa.list_(pa.int64())
    lists = []
    for name in (ROOTS, ROOT):
        if name in rows.schema.names:
            column = rows[name]
            if pa.types.is_integer(column.type):  # a list of each number
                offsets = pa.array(range(len(column) + 1), pa.int32())
                values = column.cast(pa.int64())
                column = pa.ListArray.from_arrays(offsets, values, mask=values.is_null())
            lists.append(column.cast(kind))
    return pc.coalesce(*lists) if lists else pa.nulls(rows.num_rows, kind)
