"""What sinks that are folders of files have in common."""

from dataclasses import dataclass

from ledger.errors import DeclarationError
from ledger.sinks.options import SinkOptions, names_of, require_different

STAGING_FOLDER = "_staging"  # beside those of batches: what is not shown yet


@dataclass(frozen=True, kw_only=True)
class _FileOptions(SinkOptions):
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class FolderSink(_FileOptions):
    path: str

    @property
    def place(self) -> str:
        return self.path

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_by", names_of(self.partition_by))
        self.check_dedup()
        require_different(f"partition_by of {self.path!r}", self.partition_by)
        for name in self.partition_by:
            if not name or name.startswith(("_", ".")) or "`" in name:
                raise DeclarationError(
                    f"partition_by of {self.path!r}: {name!r} cannot name folders, for readers "
                    "skip those that begin with _ or a dot, and SQL quotes names by backticks: "
                    "rename the column in the stage before the sink"
                )
