"""The outcome of a run's fold, in the driver or in the executors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.edges import Edges
from ledger.deltas.fold_files import FoldFiles, FoldSums, TaskReport
from ledger.deltas.kernel import Deltas, Fails
from ledger.deltas.root_files import RootFile


@dataclass(frozen=True)
class Frame:
    """Rows that a sink acks because it has read them, as a frame: see
    ``ledger.spark.frames.inputs.root_rows``. ``size``: the number of rows.
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
    def of_reports(cls, run: OpenedRun, reports: Sequence[TaskReport]) -> "FoldOutcome":
        """Return the outcome for the reports of tasks."""
        outcome = cls(
            run,
            pending=[deltas for report in reports for deltas in report.deltas],
            files=[report.files for report in reports if report.files.posted],
            root_files=[report.files.roots for report in reports if report.files.roots is not None],
        )
        return reduce(cls.plus, reports, outcome)

    def post(self, connection: Connection) -> None:
        """Post the pending deltas, in the transaction that commits the run."""
        run, batch_id = self.run, self.run.batch.batch_id
        with raw_cursor(connection) as cursor:
            for deltas in self.pending:
                posting.post(cursor, batch_id, run.run_id, deltas, masks=run.masks)
            posting.post_fails(cursor, batch_id, run.run_id, self.fails, masks=run.masks)
