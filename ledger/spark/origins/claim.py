"""Records that a batch reads of its source for the first time."""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from ledger.sources.base import Claim
from ledger.sources.listing import unchanged
from ledger.spark.frames.anchors import carries_unit
from ledger.spark.origins.base import Origin
from ledger.spark.origins.snapshot import Snapshot
from ledger.spark.units.units import with_unit


@dataclass(frozen=True)
class FromClaim(Origin):
    """What the batch has claimed of its source."""

    claim: Claim

    def read(self) -> DataFrame:
        """The claimed records. Raises InputError if a claimed file has changed since."""
        return with_unit(self.job, self.step, self.reader.records(self._claimed()))

    def write(self, snapshot: Snapshot) -> None:
        """As of ``Origin``; the source's reader does it where it can, if nothing more has to be
        known of the records."""
        is_plain = self.step.track is None and not carries_unit(self.job.pipeline, self.step.name)
        if not (is_plain and snapshot.written_by(self.reader, self._claimed())):
            super().write(snapshot)

    def check(self, snapshot: Snapshot) -> None:
        """The files are as they were claimed, and the reader misses nothing."""
        self.reader.check_read(self.step.name, snapshot.rows, lambda: self._stored(snapshot))

    def _claimed(self) -> Claim:
        """The claim with its files as they are now, which its reader compares once it is done."""
        return replace(self.claim, files=tuple(unchanged(self.step.name, self.claim.files)))

    def _stored(self, snapshot: Snapshot) -> DataFrame:
        return self.job.spark.read.parquet(snapshot.folder)
