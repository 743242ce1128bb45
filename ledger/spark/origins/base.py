"""The base class of the origins that records of a source's run come from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import SourceReader
from ledger.spark.job import Job
from ledger.spark.origins.snapshot import Snapshot


@dataclass(frozen=True)
class Origin(ABC):
    """The place that the records of one run of a source come from. ``reader``: reads the source."""

    job: Job
    run: OpenedRun
    step: SourceStep
    reader: SourceReader

    @property
    def track(self) -> str | None:
        """The expression that selects the records to track; None: all."""
        return self.step.track

    @abstractmethod
    def read(self) -> DataFrame:
        """The records, none dropped, as ``SourceReader.records`` has them; in a replay with
        ``MESSAGE``. Lazy.
        """

    def write(self, snapshot: Snapshot) -> None:
        """Write the records to a snapshot."""
        snapshot.write(self.read())

    def check(self, snapshot: Snapshot) -> None:
        """Raise InputError unless the snapshot has all that was there to read."""
        return  # what was stored once is complete

    def complete(self, connection: Connection) -> None:
        """The last act of the commit's transaction."""
        return
