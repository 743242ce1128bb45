"""The outcome of a run's fold, in the driver or in the executors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.core.text import quantity
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.edges import Edges
from ledger.deltas.fold_files import FoldFiles, FoldSums, TaskReport
from ledger.deltas.kernel import Deltas, Fails
from ledger.deltas.portions import Folded
from ledger.deltas.root_files import RootFile


@dataclass(frozen=True)
class Frame:
    """Rows that a sink acks because it read them, as it read them: see
    ``ledger.spark.frames.inputs.root_rows``. ``size``: how many there are.
    """

    rows: DataFrame
    edges: Edges
    size: int


@dataclass(frozen=True)
class FoldOutcome(FoldSums):
    """The outcome of a run's fold.

    ``posted``: its ``rows`` are those of the ledger once everything is ready to be committed.
    ``pending``: deltas to post in the transaction that commits the run; all others are posted
    before.
    ``files``: the files of tasks whose deltas are not posted yet.
    ``root_files``: files of what is added to each root, where the ledger has spans.
    ``fails``: roots that fail, beside those of the deltas.
    ``proved``: for a tracked sink, whether it is proved that it took each row of its input once.
    """

    run: OpenedRun
    pending: Sequence[Deltas] = ()
    files: Sequence[FoldFiles] = ()
    root_files: Sequence[RootFile] = ()
    fails: Sequence[Fails] = ()
    proved: bool | None = None

    @classmethod
    def of(cls, run: OpenedRun, folded: Sequence[Folded]) -> "FoldOutcome":
        """Return the outcome of folded rows; all of their deltas are pending."""
        outcome = cls(run, pending=[some.deltas for some in folded])
        return reduce(cls.plus, map(FoldSums.of_part, folded), outcome)

    @classmethod
    def of_reports(cls, run: OpenedRun, reports: Sequence[TaskReport]) -> "FoldOutcome":
        """Return the outcome that tasks report; their deltas are in files."""
        files = [report.files for report in reports]
        roots = [some.roots for some in files if some.roots is not None]
        return reduce(cls.plus, reports, cls(run, files=files, root_files=roots))

    def post(self, connection: Connection) -> None:
        """Post what is pending, in the transaction that commits the run."""
        run, batch_id = self.run, self.run.batch.batch_id
        with raw_cursor(connection) as cursor:
            for deltas in self.pending:
                posting.post(cursor, batch_id, run.run_id, deltas, masks=run.masks)
            posting.post_fails(cursor, batch_id, run.run_id, self.fails, masks=run.masks)

    def __add__(self, other: "FoldOutcome") -> "FoldOutcome":
        return replace(
            self.plus(other),
            pending=[*self.pending, *other.pending],
            files=[*self.files, *other.files],
            root_files=[*self.root_files, *other.root_files],
        )


def ways_in_words(ways: Iterable[tuple[int, str]]) -> str:
    """Return how many files were folded in which way, for the log."""
    return "; ".join(f"{quantity(count, 'file')} {way}" for count, way in ways if count)
