"""The declaration of a Delta Lake table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.delta_paths import require_openable
from ledger.core.requirements import require_package
from ledger.sinks.base import Publisher
from ledger.sinks.folder import FolderSink

if TYPE_CHECKING:
    from ledger.settings import Settings


@dataclass(frozen=True)
class DeltaSink(FolderSink):
    """A Delta Lake table; made by the first batch.

    Each batch is staged under ``<path>/_ackledger/`` and committed in place by one entry of the
    table's log, so every reader of Delta sees it whole or not at all. Relative paths start from
    ``ACKLEDGER_OUTPUT``.
    """

    in_place = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_openable(self.path)

    def publisher(self, settings: "Settings", pipeline: str, name: str) -> Publisher:
        from ledger.sinks.delta.publisher import DeltaPublisher

        require_package("deltalake", f"sink {name!r}, a DeltaSink,")
        return DeltaPublisher(settings.output_path(self.path), self.partition_by)
