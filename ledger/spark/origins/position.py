"""Records of a source that keeps its own position."""

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame

from ledger.batch.source_positions import Position, commit_read
from ledger.batch.state_runs import StepOutput
from ledger.core.probes import reached
from ledger.core.stateful import StatefulSource
from ledger.spark.frames.inputs import read_stored
from ledger.spark.origins.base import Origin
from ledger.spark.origins.claim import FromClaim
from ledger.spark.steps.state import as_json
from ledger.spark.units.units import with_unit
from ledger.store.queries.runs import Emitted


@dataclass(frozen=True)
class FromRun(Origin):
    """What an earlier run of the batch has read: the position has moved, and never goes back."""

    run_id: int

    def read(self) -> DataFrame:
        """The records of that run, in today's columns."""
        return with_unit(self.job, self.step, stored_by(self, self.run_id))


@dataclass(frozen=True)
class FromPosition(FromClaim):
    """What comes after the committed position, and what abandoned batches had read. ``hooks``: the
    object that keeps the position, put there.
    """

    hooks: StatefulSource
    position: Position

    def read(self) -> DataFrame:
        """The records of abandoned batches, then those that come now."""
        new = self.reader.records(self.claimed)
        left = [stored_by(self, run_id) for run_id in self.position.left]
        return with_unit(self.job, self.step, reduce(DataFrame.unionByName, left, new))

    def commit(self, output: StepOutput, emitted: Emitted) -> None:
        """Ask the source for its state after the records, and commit both."""
        batch_id = self.run.batch.batch_id
        state = self.hooks.finish_batch(batch_id)
        snapshot = as_json(f"source {self.step.name!r}", self.hooks.commit(batch_id, state))
        reached("snapshot taken", self.step.name)
        commit_read(self.job.database, self.run, self.position, output, emitted, snapshot)


def stored_by(origin: Origin, run_id: int) -> DataFrame:
    """What a run has emitted, in today's columns."""
    return origin.reader.parse_again(read_stored(origin.job, origin.job.manifest(run_id)))
