"""What a run's fold came to, wherever it was done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.core.text import quantity
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.edges import Edges
from ledger.deltas.fold_files import FoldFiles, TaskReport
from ledger.deltas.kernel import Deltas, Fails
from ledger.deltas.portions import Folded
from ledger.deltas.posted import Posted
from ledger.deltas.root_files import RootFile
from ledger.deltas.stored import Seen


@dataclass(frozen=True)
class Frame:
    """Rows that a sink acks because it read them, as it read them: see
    ``ledger.spark.frames.inputs.root_rows``. ``size``: how many there are.
    """

    rows: DataFrame
    edges: Edges
    size: int


@dataclass(frozen=True)
class FoldOutcome:
    """What a run's fold came to. ``roots``: how many deltas of roots were folded. ``posted``: their
    rows are those of the ledger once all is ready to be committed.

    ``pending``: deltas that are posted in the transaction that commits the run; all others are
    there before it. ``files``: of tasks, whose deltas are not posted yet. ``root_files``: what is
    added to each root, where the ledger has spans. ``fails``: roots that fail, beside those of the
    deltas. ``proved``: of a tracked sink, whether it took each row of its input once.
    """

    run: OpenedRun
    posted: Posted = field(default_factory=Posted)
    wrote: Seen = field(default_factory=Seen)
    read_carried: int = 0
    with_rows: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    roots: int = 0
    pending: Sequence[Deltas] = ()
    files: Sequence[FoldFiles] = ()
    root_files: Sequence[RootFile] = ()
    fails: Sequence[Fails] = ()
    proved: bool | None = None

    @classmethod
    def of(cls, run: OpenedRun, folded: Sequence[Folded]) -> "FoldOutcome":
        """What folded rows come to; all of their deltas are pending."""
        outcome = reduce(cls.__add__, (_outcome(run, some) for some in folded), cls(run))
        return replace(outcome, pending=[some.deltas for some in folded])

    @classmethod
    def of_reports(cls, run: OpenedRun, reports: Sequence[TaskReport]) -> "FoldOutcome":
        """What tasks report."""
        outcome = reduce(cls.__add__, (_reported(run, some) for some in reports), cls(run))
        files = [report.files for report in reports]
        roots = [some.roots for some in files if some.roots is not None]
        return replace(outcome, files=files, root_files=roots)

    def post(self, connection: Connection) -> None:
        """Post what is pending, in the transaction that commits the run."""
        batch_id = self.run.batch.batch_id
        with raw_cursor(connection) as cursor:
            for deltas in self.pending:
                posting.post(cursor, batch_id, self.run.run_id, deltas)
            posting.post_fails(cursor, batch_id, self.run.run_id, self.fails)

    def __add__(self, other: "FoldOutcome") -> "FoldOutcome":
        drops = {
            reason: self.drops.get(reason, 0) + other.drops.get(reason, 0)
            for reason in {*self.drops, *other.drops}
        }
        return replace(
            self,
            posted=self.posted + other.posted,
            wrote=self.wrote + other.wrote,
            read_carried=self.read_carried + other.read_carried,
            with_rows=self.with_rows + other.with_rows,
            drops=drops,
            roots=self.roots + other.roots,
            pending=[*self.pending, *other.pending],
            files=[*self.files, *other.files],
            root_files=[*self.root_files, *other.root_files],
        )


def _outcome(run: OpenedRun, folded: Folded) -> FoldOutcome:
    deltas = folded.deltas
    return FoldOutcome(
        run,
        Posted.of(deltas),
        folded.wrote,
        folded.read_carried,
        deltas.with_rows,
        dict(deltas.drops),
        folded.roots,
    )


def _reported(run: OpenedRun, report: TaskReport) -> FoldOutcome:
    return FoldOutcome(
        run,
        report.posted,
        report.wrote,
        report.read_carried,
        report.with_rows,
        report.drops,
        report.roots,
    )


def ways_in_words(ways: Iterable[tuple[int, str]]) -> str:
    """How many files were folded in which way, for the log."""
    return "; ".join(f"{quantity(count, 'file')} {way}" for count, way in ways if count)
