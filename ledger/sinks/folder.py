"""Parts common to the sinks that are folders of files."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import DeclarationError, InputError, StageError
from ledger.sinks.options import SinkOptions, names_of, require_dedup, require_different
from ledger.storage.folders import require_writable

if TYPE_CHECKING:
    from ledger.settings import Settings

BATCH_FOLDER = "ackledger_batch"  # in a folder of Parquet files: ackledger_batch=<id>
STAGING_FOLDER = "_staging"  # beside those of batches: what is not published yet


@dataclass(frozen=True)
class FolderSink(SinkOptions):
    """A sink that writes to a folder, ``path``.

    ``rebalance``: bring the rows of each folder of ``partition_by`` together before writing, so
    that a batch leaves one file per folder.
    """

    path: str
    _: KW_ONLY
    partition_by: tuple[str, ...] = ()
    rebalance: bool = True
    key = ()
    replaces_intervals = False
    in_place = False

    @property
    def place(self) -> str:
        return f"path {self.path!r}"

    @property
    def identity(self) -> str:
        """The path in a normalized form. See ``Sink``."""
        path = self.path.rstrip("/")
        return normpath(without_file_scheme(path)) if is_local(path) else path

    def location(self, settings: "Settings") -> str:
        """Return the folder as an absolute path or a URL, its name in lineage."""
        return settings.output_path(self.path)

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_by", names_of(self.partition_by))
        require_dedup(self.path, self.dedup)
        require_different(f"partition_by of {self.path!r}", self.partition_by)
        for name in self.partition_by:
            if not name or name.startswith(("_", ".")) or "`" in name:
                raise DeclarationError(
                    f"partition_by of {self.path!r}: {name!r} cannot name folders, for readers "
                    "skip those that begin with _ or a dot, and SQL quotes names by backticks: "
                    "rename the column in the stage before the sink"
                )


def file_problems(names: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each reason why files cannot have these columns, or be partitioned by
    ``names``.
    """
    if not columns:
        yield "expected columns, found none: select some in the stage before the sink"
        return
    for name in names:
        if name not in columns:
            yield (
                f"it is partitioned by {name!r}, which its input lacks; it has"
                f" {', '.join(columns)}: hand the column on, or change partition_by"
            )
    if names and set(columns) <= set(names):
        yield (
            f"it is partitioned by all of its columns, {', '.join(names)}: files need at least one"
            " column more"
        )


def require_file_columns(sink: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise StageError unless files can have these columns, and be partitioned by ``names``."""
    for problem in file_problems(names, columns):
        raise StageError(f"{sink}: {problem}")


def require_room(path: str) -> None:
    """Raise an error unless the folder, or its nearest existing parent, can be written to. Creates
    no folder. At a URL, a file is created and deleted.
    """
    if not is_local(path):
        require_writable(path, "the path of the sink, or ACKLEDGER_OUTPUT,")
        return
    place = next(parent for parent in (Path(path), *Path(path).parents) if os.path.exists(parent))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        fault = "closed to this user" if place.is_dir() else "no folder"
        raise InputError(
            f"{path} cannot be written to: {place} is {fault}. "
            "Make it writable, or change the sink's path or ACKLEDGER_OUTPUT"
        )
