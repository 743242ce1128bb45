"""Records that a batch reads of its source for the first time."""

from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import DataFrame

from ledger.core.paths import literal
from ledger.sources.base import Claim
from ledger.sources.listing import require_unchanged
from ledger.spark.origins.base import Origin
from ledger.spark.origins.snapshot import Snapshot


@dataclass(frozen=True)
class FromClaim(Origin):
    """Records that the batch has claimed of its source."""

    claim: Claim

    def read(self) -> DataFrame:
        """The claimed records. Raises InputError if a claimed file has changed since."""
        return self.reader.records(self._claimed)

    def write(self, snapshot: Snapshot) -> None:
        """Write the records to a snapshot.

        The source's reader writes them where it can, unless they are tracked by an expression.
        """
        if self.step.track is not None or not snapshot.written_by(self.reader, self._claimed):
            super().write(snapshot)

    def check(self, snapshot: Snapshot) -> None:
        """The files are as they were claimed, and the reader misses nothing."""
        require_unchanged(self.step.name, self._claimed.files)
        self.reader.check_unchanged(self.step.name)
        self.reader.check_read(self.step.name, snapshot.rows, lambda: self._stored(snapshot))

    @cached_property
    def _claimed(self) -> Claim:
        """The claim with its files as they were before they were read."""
        return replace(self.claim, files=tuple(require_unchanged(self.step.name, self.claim.files)))

    def _stored(self, snapshot: Snapshot) -> DataFrame:
        return self.job.spark.read.parquet(*literal([snapshot.folder]))
