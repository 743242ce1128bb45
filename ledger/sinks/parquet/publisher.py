"""A folder of Parquet files: a batch is published by renaming the folder that it was staged in."""

import re
from dataclasses import dataclass

import pyarrow as pa

from ledger.core.paths import is_local
from ledger.core.probes import reached
from ledger.errors import ConfigurationError
from ledger.sinks.base import Delivery, Publisher, SinkPlan, require_staged
from ledger.sinks.folder import BATCH_FOLDER as BATCH
from ledger.sinks.folder import STAGING_FOLDER as STAGING
from ledger.sinks.folder import require_room
from ledger.sinks.parquet.renaming import require_renames
from ledger.storage import stores

# Names of files of rows, as Spark gives them, and of folders of partitions.
_DATA = re.compile(r"part-\d{5}|[^_.].*(\.parquet$|=)")


@dataclass(frozen=True)
class ParquetPublisher(Publisher):
    """Publishes into a folder of Parquet files. The folder of a batch,
    ``<path>/ackledger_batch=<id>``, is also the sink's own record of it.

    ``path``: absolute, or a URL of a store that renames a folder in one step; others are refused.

    Folders that a delivery replaces are moved aside first, one by one; then the new folder is
    published. For an instant a reader sees fewer rows, but never both versions.
    """

    path: str
    keeps_tracking = False

    def plan(self, schema: pa.Schema | None, delivery: Delivery | None) -> SinkPlan:
        """See ``Publisher``. Each folder has its own schema: all fits but what the folders' names
        would hide. Raises DeclarationError or ConfigurationError where the store renames no
        folders, and ConfigurationError where others have written files and no batch is published.
        """
        if delivery is None:
            require_renames(self.path)
            if is_local(self.path):
                require_room(self.path)
            self._require_no_strangers()
        return SinkPlan(
            problems=tuple(
                f"the folder {self.path} has a folder {BATCH}=<id> for each batch, whose value"
                f" readers would take for column {name!r}: rename the column in the stage before"
                " the sink"
                for name in (schema.names if schema else ())
                if name.lower() == BATCH
            )
        )

    def staging(self, batch_id: int, version: int) -> str:
        """Return the folder in which one run stages its files, beside the published folders."""
        return f"{self._staging_of(batch_id)}/run={version}"

    def publish(self, delivery: Delivery) -> None:
        """See ``Publisher``; an earlier run's folder of the batch is replaced. When the new one
        cannot be published, what was moved aside is restored.

        Two may be at it, if one hung and lost its lock: the one that finds the staged folder gone
        restores nothing.
        """
        final = self._published_folder(delivery.batch_id)
        if not self._has_published(delivery):
            # Looked at before the files are: what is there later may be this very version.
            earlier = [delivery.batch_id] if stores.exists(final) else []
            if earlier and delivery.is_first:
                self._require_own(delivery)
            require_staged(delivery)
            # First what is staged of the others: who is late with one of them publishes it no more.
            for batch_id in delivery.replaces:
                self._move(
                    self._staging_of(batch_id), self._moved_aside(f"staged-{batch_id}", delivery)
                )
            for entry in stores.entries(self._staging_of(delivery.batch_id)):
                if 0 < _run_of(entry.name) < delivery.version:
                    self._remove(entry.path)
            # The folders that readers see now, and where each is moved to.
            moves = {
                self._published_folder(batch_id): self._moved_aside(f"batch={batch_id}", delivery)
                for batch_id in (*delivery.replaces, *earlier)
            }
            hidden = [folder for folder, aside in moves.items() if self._move(folder, aside)]
            reached("folder hidden", delivery.sink)
            try:
                self._rename(delivery.folder, final)
            except Exception:  # a store's refusal, too, is no reason to leave readers without
                if stores.exists(delivery.folder):
                    for folder in hidden:
                        self._rename(moves[folder], folder)
                raise
            reached("folder renamed", delivery.sink)
        # Runs that did not count, and what was moved aside; what a newer run has staged stays.
        for entry in stores.entries(self._staging_of(delivery.batch_id)):
            if _run_of(entry.name) <= delivery.version:
                self._remove(entry.path)
        stores.remove_empty(self._staging_of(delivery.batch_id))  # unless another run stages there

    def _require_no_strangers(self) -> None:
        """Raise ConfigurationError if the folder has data of others, as the output of a Spark job,
        and no batch yet. Files that are not data, and folders of other sinks, may be there.
        """
        names = sorted(entry.name for entry in stores.entries(self.path))
        if any(name.startswith(f"{BATCH}=") for name in names):
            return
        strangers = [name for name in names if _DATA.match(name)]
        if strangers:
            others = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
            raise ConfigurationError(
                f"{self.path}: expected a folder without data, found {strangers[0]!r}{others},"
                " which this sink has not written: readers may see these rows beside those of the"
                " batches. Name another folder in the sink, or move these files away"
            )

    def _published_folder(self, batch_id: int) -> str:
        return f"{self.path}/{BATCH}={batch_id}"

    def _staging_of(self, batch_id: int) -> str:
        return f"{self.path}/{STAGING}/batch={batch_id}"

    def _has_published(self, delivery: Delivery) -> bool:
        """Return whether the batch's folder has this version. That is so if all files of the
        version are in it, because Spark gives each file a unique name. A version without files is
        published if its staged folder is gone.
        """
        final = self._published_folder(delivery.batch_id)
        if not stores.exists(final):
            return False
        names = [file.path.removeprefix(delivery.folder) for file in delivery.files]
        if not names:
            return not stores.exists(delivery.folder)
        return all(stores.exists(final + name) for name in names)

    def _require_own(self, delivery: Delivery) -> None:
        """Raise ConfigurationError if the batch's folder has files, because they belong to no
        version that the ledger knows.
        """
        final = self._published_folder(delivery.batch_id)
        names = {entry.name for entry in stores.files_below(final)}
        if strange := sorted(name for name in names if name.endswith(".parquet")):
            raise ConfigurationError(
                f"{final}: expected no folder, found {strange[0]} in it, which this ledger has not"
                f" published for batch {delivery.batch_id}: it was restored from an older backup,"
                " or another one writes here. Nothing was changed. Move the folder away, run what"
                " is in it again if the ledger does not know it (docs/how-to/backup.md), then"
                " publish again"
            )

    def _moved_aside(self, name: str, delivery: Delivery) -> str:
        return f"{self._staging_of(delivery.batch_id)}/replaced/{name}"

    def _move(self, folder: str, aside: str) -> bool:
        """Move a folder aside, over the remains of an attempt that died. Return whether there was a
        folder.
        """
        if not stores.exists(folder):
            return False
        self._remove(aside)
        self._rename(folder, aside)
        return True

    # The next two say where a process may hang, so that tests can stop it there.
    def _rename(self, before: str, after: str) -> None:
        stores.move(before, after)

    def _remove(self, folder: str) -> None:
        stores.remove_folder(folder)


def _run_of(name: str) -> int:
    """Return the version that staged a folder of this name, or withheld rows into it; 0 if no run
    did.
    """
    of_run = re.match(r"(?:run=|kept-)(\d+)", name)
    return int(of_run[1]) if of_run else 0
