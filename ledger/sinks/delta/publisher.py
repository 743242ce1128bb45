"""A Delta Lake table as a sink: staged files become part of it where they are, by one commit of
its log.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import cache, partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_attempt, wait_random

from ledger.core.delta_paths import require_openable
from ledger.core.probes import reached
from ledger.errors import (
    ConfigurationError,
    FencedError,
    IntegrityError,
    LedgerError,
    NotReadyError,
    StageError,
    UnavailableError,
    WaitedError,
    quote,
)
from ledger.sinks.base import Delivery, Publisher, SinkPlan, require_staged
from ledger.sinks.delta.files import TableFile, TableFolder
from ledger.sinks.delta.schema import (
    column_problems,
    require_checked,
    require_fit,
    require_plain,
    table_columns,
    table_problems,
    table_rules,
)
from ledger.sinks.folder import require_room
from ledger.sinks.staged_files import user_schema
from ledger.types.arrow import nullable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_ATTEMPTS = 60
LONGEST_PAUSE_SECONDS = 0.25
_REPLACED = 2**63 - 1  # the recorded version of a batch whose rows another batch's replaced


@dataclass(frozen=True)
class _Staged:
    """Files that a delivery adds. ``schema``: the user's columns in the files; None if there are no
    files.
    """

    files: list[TableFile]
    schema: pa.Schema | None


class DeltaPublisher(Publisher):
    """Publishes into the Delta table at ``path``, absolute or a URL, partitioned by
    ``partition_by``.

    The table's own log has the record of what is published: an application transaction
    ``ackledger/<sink>/<batch>/<pipeline_since>`` with the version, in the commit that adds the
    files. A commit is tried as the very next version of the table that was looked at, so what was
    decided still holds when it lands; a commit in between makes this look once more.
    """

    keeps_tracking = True

    def __init__(self, path: str, partition_by: tuple[str, ...]) -> None:
        require_openable(path)
        self._path = path.rstrip("/")
        self._folder = TableFolder(self._path, partition_by)
        self._partition_by = partition_by

    def plan(self, schema: pa.Schema | None, delivery: Delivery | None) -> SinkPlan:
        """See ``Publisher``; the rules are CHECK constraints, NOT NULL, and the lengths of char and
        varchar. Raises ConfigurationError unless a table is, or can be, at the path.

        With a delivery it keeps in ``_ackledger``, for ``publish``, the columns of a table that is
        still to be made, and the rules.
        """
        if delivery is None:
            require_room(self._path)
        problems = [] if schema is None else [*column_problems(schema, self._partition_by)]
        table = self._open()
        if table is None:
            if strangers := self._folder.strangers():
                raise ConfigurationError(
                    f"{self._path}: expected a Delta table or an empty folder, found"
                    f" {strangers[0]!r}, which no reader of the table would see and a vacuum would"
                    " delete: choose another path"
                )
            if delivery is not None and schema is not None:
                self._folder.write_columns(nullable(schema))
            return SinkPlan(tuple(problems))
        require_plain(table)
        problems += table_problems(table, schema, self._partition_by)
        rules = table_rules(table)
        if rules and delivery is not None:
            conditions = [rule.condition for rule in rules]
            self._folder.write_checked(delivery.batch_id, delivery.version, conditions)
        return SinkPlan(tuple(problems), rules)

    def staging(self, batch_id: int, version: int) -> str:
        """Return the folder in which a run stages its files."""
        return self._folder.staging(batch_id, version)

    def publish(self, delivery: Delivery) -> None:
        """Add the delivery's files and remove those it replaces, in one commit.

        Raises FencedError if a newer version of the batch, or a batch that replaced it, is
        published;
        IntegrityError if a file is missing, or if files to be removed were rewritten by others;
        WaitedError if others were faster every time.
        """
        trying = Retrying(
            retry=retry_if_not_result(bool),
            wait=wait_random(max=LONGEST_PAUSE_SECONDS),
            stop=stop_after_attempt(_ATTEMPTS),
        )
        try:
            trying(self._try_to_publish, delivery, cache(partial(self._staged, delivery)))
        except RetryError as exc:
            raise WaitedError(
                f"Delta table {self._path}: batch {delivery.batch_id} was not added, for others"
                f" committed before each of {_ATTEMPTS} attempts. Nothing was changed; run it again"
                " later"
            ) from exc

    def _try_to_publish(self, delivery: Delivery, staged: Callable[[], _Staged]) -> bool:
        """Commit the delivery to the current version of the table. Return False if another commit
        was faster.
        """
        table = self._open()
        if table is None:
            self._create(staged())
            reached("table created", delivery.sink)
            table = self._open()  # it may be ahead already: another publisher saw it first
            if table is None:
                return False
        published = table.transaction_version(_app_id(delivery, delivery.batch_id))
        if published == delivery.version:
            return True
        if published == _REPLACED:
            raise FencedError(
                f"sink {delivery.sink}: the rows of batch {delivery.batch_id} were replaced by"
                " those of another batch, and are not published again. Nothing is lost: stop"
            )
        if published is not None and published > delivery.version:
            raise FencedError(
                f"sink {delivery.sink}: run {published} of batch {delivery.batch_id} is published,"
                f" which is newer than run {delivery.version}. Nothing is lost: stop"
            )
        return self._commit(table, delivery, staged())

    def _staged(self, delivery: Delivery) -> _Staged:
        """Return the files to add, after checking that all exist, and storing their list."""
        require_staged(delivery)
        files = self._folder.table_files(delivery.files)
        self._folder.let_read(files)
        self._folder.write_list(delivery.batch_id, delivery.version, files)
        reached("files listed", delivery.sink)
        return _Staged(files, user_schema(self._folder.file_schema(files[0])) if files else None)

    def _open(self) -> "DeltaTable | None":
        """Return the newest version of the table; None if there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as exc:
            raise self._failed("could not be opened", exc) from exc

    def _require_files_fit(self, staged: _Staged, columns: pa.Schema, place: str) -> None:
        """Raise StageError unless staged files fit the table's columns.

        Files lack partition columns, and columns that the user has added since: these are null
        then. Spark writes everything nullable.
        """
        if staged.schema is None:
            return
        expected = [
            column
            for column in columns
            if column.name not in self._partition_by
            and (column.name in staged.schema.names or not column.nullable)
        ]
        require_fit(nullable(staged.schema), nullable(pa.schema(expected)), place)

    def _create(self, staged: _Staged) -> None:
        """Create the table, unless another process has just done so. All columns are nullable, as
        in Spark's files.
        """
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import DeltaError

        columns = self._folder.read_columns()
        if columns is None:
            raise NotReadyError(
                f"Delta table {self._path} is not there, and its columns are unknown."
                " Run the sink again: in Airflow clear the task that ran it"
            )
        self._require_files_fit(staged, columns, f"Delta table {self._path}, which is to be made")
        try:
            DeltaTable.create(
                self._path,
                columns,
                partition_by=list(self._partition_by),
                # A retry would commit these columns over those of the table that came between.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as exc:
            if not DeltaTable.is_deltatable(self._path):
                raise self._failed("could not be made", exc) from exc

    def _failed(self, what: str, exc: Exception) -> LedgerError:
        kind = UnavailableError if isinstance(exc, OSError) else ConfigurationError
        return kind(
            f"Delta table {self._path} {what}: {quote(exc)}. Fix the cause and run it again"
        )

    def _files_to_remove(self, table: "DeltaTable", delivery: Delivery) -> list[TableFile]:
        """Return the files of an older version of the batch, and of the batches that it replaces.
        Raises IntegrityError unless all of them are still in the table.
        """
        versions = {
            batch_id: table.transaction_version(_app_id(delivery, batch_id))
            for batch_id in [delivery.batch_id, *_others(delivery)]
        }
        replaced = {
            batch_id: version
            for batch_id, version in versions.items()
            if version is not None and version != _REPLACED
        }
        if not replaced:
            return []
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        active = {unquote(path) for path in paths}
        files: list[TableFile] = []
        for batch_id, version in replaced.items():
            listed = self._folder.read_list(batch_id, version)
            lost = sum(file.path not in active for file in listed)
            if lost:
                raise IntegrityError(
                    f"Delta table {self._path}: the rows of batch {batch_id} are to be replaced,"
                    f" and {lost} of the {len(listed)} files that it added are no longer in the"
                    f" table at version {table.version()}: it was compacted, deleted from,"
                    " overwritten or restored, and the rows may be in other files now. Nothing was"
                    " changed. Restore the table to a version before that and run this again. If"
                    " that is not possible, delete the batch's rows from the table, write"
                    f' {{"files": []}} to {self._folder.list_of(batch_id, version)}, and run this'
                    " again"
                )
            files += listed
        return files

    def _commit(self, table: "DeltaTable", delivery: Delivery, staged: _Staged) -> bool:
        """Commit the staged files as the table's next version. Return False if another commit was
        faster.

        The commit records as application transactions the version that it publishes, and each
        batch that it replaces, which is never published again.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        require_plain(table)
        for problem in table_problems(table, None, self._partition_by):
            raise StageError(f"rows do not fit Delta table {self._path}: {problem}")
        require_checked(table, self._folder.read_checked(delivery.batch_id, delivery.version))
        self._require_files_fit(staged, table_columns(table), f"Delta table {self._path}")
        removed = self._files_to_remove(table, delivery)
        others = _others(delivery)
        replaced = [_app_id(delivery, batch_id) for batch_id in others]
        transactions = [
            Transaction(_app_id(delivery, delivery.batch_id), delivery.version),
            *(
                Transaction(app_id, _REPLACED)
                for app_id in replaced
                if table.transaction_version(app_id) != _REPLACED
            ),
        ]
        history = f"ackledger {delivery.sink}: batch {delivery.batch_id}, run {delivery.version}"
        if others:
            history += f", replaces {', '.join(map(str, others))}"
        try:
            table.create_write_transaction(
                _actions(staged.files, removed),
                "append",
                table.schema(),
                list(self._partition_by),
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": history},
                    max_commit_retries=0,
                    app_transactions=transactions,
                ),
            )
        except (DeltaError, OSError) as exc:
            # It may have landed all the same: a checkpoint that fails comes after the commit.
            now = self._open()
            if now is None or now.version() > table.version():
                return False
            what = f"did not take the commit of batch {delivery.batch_id}"
            raise self._failed(what, exc) from exc
        return True


def _app_id(delivery: Delivery, batch_id: int) -> str:
    since = delivery.pipeline_since.astimezone(UTC)
    return f"ackledger/{delivery.sink}/{batch_id}/{since:%Y-%m-%dT%H:%M:%S.%fZ}"


def _others(delivery: Delivery) -> list[int]:
    return sorted(set(delivery.replaces) - {delivery.batch_id})


def _actions(added: list[TableFile], removed: list[TableFile]) -> "list[AddAction | RemoveAction]":
    """Return the actions of one commit. deltalake itself encodes paths. A file that is both added
    and removed stays as it is.
    """
    from deltalake.transaction import AddAction, RemoveAction

    now = int(time.time() * 1000)
    new, old = ({file.path: file for file in files} for files in (added, removed))
    return [
        *(
            RemoveAction(path, True, now, file.bytes, file.values)
            for path, file in old.items()
            if path not in new
        ),
        *(
            AddAction(path, file.bytes, file.values, now, True, f'{{"numRecords": {file.rows}}}')
            for path, file in new.items()
            if path not in old
        ),
    ]
