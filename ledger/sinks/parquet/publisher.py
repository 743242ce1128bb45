"""A folder of Parquet files: a batch is published by renaming the folder that it was staged in."""

import re
from contextlib import suppress
from dataclasses import dataclass

import fsspec
import pyarrow as pa

from ledger.core.probes import reached
from ledger.errors import ConfigurationError, StageError
from ledger.sinks.base import Delivery, Refusal, Rule, require_staged
from ledger.sinks.folder import BATCH_FOLDER as BATCH
from ledger.sinks.folder import STAGING_FOLDER as STAGING


@dataclass(frozen=True)
class ParquetPublisher:
    """The sink's own record of a batch is its folder, ``<path>/ackledger_batch=<id>``.

    ``path``: absolute or a URL. A local rename is atomic; on an object store it is a copy, file by
    file, and a reader may see a part. What a delivery replaces is moved aside first, folder by
    folder, and the new one is published then: for an instant a reader sees less, never both.
    """

    path: str
    keeps_tracking = False

    def look(self, schema: pa.Schema | None) -> None:
        if schema is not None:
            self.check(schema)

    def check(self, schema: pa.Schema, *, by_row: bool = False) -> None:
        """Each folder has its own schema: all fits but what the folders' names would hide. Raises
        StageError."""
        for name in schema.names:
            if name.lower() == BATCH:
                raise StageError(
                    f"the sink's folder {self.path} has a folder {BATCH}=<id> for each batch, "
                    f"whose value readers would take for column {name!r}: rename the column in the "
                    "stage before the sink"
                )

    def rules(self, delivery: Delivery) -> tuple[Rule, ...]:
        """None."""
        return ()

    def refused(self, delivery: Delivery) -> list[Refusal]:
        """None."""
        return []

    def staging(self, batch_id: int, version: int) -> str:
        """Beside the folders that are published."""
        return f"{self._place(batch_id)}/run={version}"

    def publish(self, delivery: Delivery) -> None:
        """See ``Publisher``; an earlier run's folder of the batch is replaced. When the new one
        cannot be published, what was moved aside is restored.

        Two may be at it, if one hung and lost its lock: the one that finds the staged folder gone
        restores nothing.
        """
        final = self._folder(delivery.batch_id)
        if not self._has_published(delivery):
            # Looked at before the files are: what is there later may be this very version.
            earlier = [delivery.batch_id] if self._exists(final) else []
            if earlier and delivery.is_first:
                self._require_own(delivery)
            require_staged(delivery)
            # First what is staged of the others: who is late with one of them publishes it no more.
            for batch_id in delivery.replaces:
                self._move(self._place(batch_id), self._aside(f"staged-{batch_id}", delivery))
            for name, folder in self._staged(delivery).items():
                if 0 < _run_of(name) < delivery.version:
                    self._remove(folder)
            aside = [
                batch_id
                for batch_id in (*delivery.replaces, *earlier)
                if self._hide(batch_id, delivery)
            ]
            reached("folder hidden", delivery.sink)
            try:
                self._rename(delivery.folder, final)
            except OSError:
                if self._exists(delivery.folder):
                    for batch_id in aside:
                        self._rename(self._hidden(batch_id, delivery), self._folder(batch_id))
                raise
            reached("folder renamed", delivery.sink)
        self._clean(delivery)

    def _clean(self, delivery: Delivery) -> None:
        """Remove runs that did not count, and what was moved aside. What a newer run has staged
        stays.
        """
        for name, folder in self._staged(delivery).items():
            if _run_of(name) <= delivery.version:
                self._remove(folder)
        with suppress(OSError):  # another run has begun to stage there
            self._fs.rmdir(self._place(delivery.batch_id))

    def _staged(self, delivery: Delivery) -> dict[str, str]:
        """What is staged of a batch, by name."""
        place = self._place(delivery.batch_id)
        paths = self._fs.ls(place, detail=False) if self._exists(place) else []
        return {path.rstrip("/").rpartition("/")[2]: path for path in paths}

    def _folder(self, batch_id: int) -> str:
        return f"{self.path}/{BATCH}={batch_id}"

    def _place(self, batch_id: int) -> str:
        return f"{self.path}/{STAGING}/batch={batch_id}"

    def _has_published(self, delivery: Delivery) -> bool:
        """Whether the batch's folder is this very version: it has all its files, whose names Spark
        gave to no other; where it has none, what was staged is gone from its place."""
        final = self._folder(delivery.batch_id)
        if not self._exists(final):
            return False
        names = [file.path.removeprefix(delivery.folder) for file in delivery.files]
        if not names:
            return not self._exists(delivery.folder)
        return all(self._exists(final + name) for name in names)

    def _require_own(self, delivery: Delivery) -> None:
        """Raise ConfigurationError if the batch's folder has files of no version that the ledger
        knows. Those of this very version are there where a copy of them was interrupted."""
        final = self._folder(delivery.batch_id)
        own = {file.path.rpartition("/")[2] for file in delivery.files}
        names = {path.rpartition("/")[2] for path in self._fs.find(final)}
        if strange := sorted(name for name in names - own if name.endswith(".parquet")):
            raise ConfigurationError(
                f"{final}: expected no folder, found {strange[0]} in it, which this ledger has not"
                f" published for batch {delivery.batch_id}: it was restored from an older backup,"
                " or another one writes here. Nothing was changed. Move the folder away, run what"
                " is in it again if the ledger does not know it (docs/how-to/backup.md), then"
                " publish again"
            )

    def _hide(self, batch_id: int, delivery: Delivery) -> bool:
        """Move a batch's folder aside; whether there was one."""
        return self._move(self._folder(batch_id), self._hidden(batch_id, delivery))

    def _hidden(self, batch_id: int, delivery: Delivery) -> str:
        return self._aside(f"batch={batch_id}", delivery)

    def _aside(self, name: str, delivery: Delivery) -> str:
        return f"{self._place(delivery.batch_id)}/replaced/{name}"

    def _move(self, folder: str, aside: str) -> bool:
        """Move a folder, in place of what an attempt that died had moved there; whether there was
        one."""
        if not self._exists(folder):
            return False
        self._remove(aside)
        self._rename(folder, aside)
        return True

    def _rename(self, before: str, after: str) -> None:
        fs = self._fs
        fs.makedirs(after.rsplit("/", 1)[0], exist_ok=True)
        fs.mv(before, after, recursive=True)

    def _remove(self, folder: str) -> None:
        if self._exists(folder):
            self._fs.rm(folder, recursive=True)

    def _exists(self, folder: str) -> bool:
        return bool(self._fs.exists(folder))

    @property
    def _fs(self) -> fsspec.AbstractFileSystem:
        return fsspec.core.url_to_fs(self.path)[0]


def _run_of(name: str) -> int:
    """The version that staged a folder of this name, or withheld rows into it; 0: it is no
    run's."""
    of_run = re.match(r"(?:run=|kept-)(\d+)", name)
    return int(of_run[1]) if of_run else 0
