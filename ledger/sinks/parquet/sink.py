"""The declaration of a folder of Parquet files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import DeclarationError
from ledger.sinks.base import Publisher
from ledger.sinks.folder import BATCH_FOLDER, FolderSink
from ledger.sinks.parquet.renaming import require_renaming_scheme

if TYPE_CHECKING:
    from ledger.settings import Settings


@dataclass(frozen=True)
class ParquetSink(FolderSink):
    """A folder of Parquet files: ``<path>/ackledger_batch=<id>/<partition columns>/``.

    Each batch is staged under ``<path>/_staging/`` and published by one rename, so a reader sees a
    batch whole or not at all. An object store, which renames no folder in one step, is refused: use
    DeltaSink there. It holds the user's columns only, none of which may be ``ackledger_batch``.
    Relative paths start from ``ACKLEDGER_OUTPUT``.
    """

    def publisher(self, settings: "Settings", pipeline: str, name: str) -> Publisher:
        from ledger.sinks.parquet.publisher import ParquetPublisher

        return ParquetPublisher(settings.output_path(self.path))

    def __post_init__(self) -> None:
        super().__post_init__()
        require_renaming_scheme(self.path)
        for name in self.partition_by:
            if name.lower() == BATCH_FOLDER:
                raise DeclarationError(
                    f"partition_by of {self.path!r}: {name!r} is taken by the folder of each "
                    f"batch, {BATCH_FOLDER}=<id>: rename the column in the stage before the sink"
                )
