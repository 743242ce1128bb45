"""What a sink owes the ledger: each row that it reads is acked, in its files or dropped as
delivered before.
"""

from functools import cached_property
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import POSITION, ROOT, ROOTS
from ledger.deltas.edges import edge_text
from ledger.pipeline.steps import SinkStep
from ledger.spark.folding.fold import fold, fold_here
from ledger.spark.folding.outcome import Frame, Outcome
from ledger.spark.frames.inputs import root_rows
from ledger.spark.job import Job, Witness, require_equal
from ledger.spark.tracking import edges_of, edges_to, readings

OWN = "own"  # rows that a sink has read, and not taken over from an earlier batch


class SinkTracking(Protocol):
    """What of a sink's run is folded and checked. ``wrote``: witness of the rows that its writer
    gets, which counts those of the run's ``OWN``.
    """

    wrote: Witness

    def fold(self, rows: DataFrame, held: int) -> Outcome:
        """Fold what the sink acks. ``rows``: what it reads. ``held``: how many it has in its files
        or has dropped. Raises IntegrityError unless it has read just these.
        """


class UntrackedSink:
    """Of a run without ackers, and of a sink downstream of the last tracked stage: nothing."""

    def __init__(self, run: OpenedRun) -> None:
        self.wrote = Witness(counting={OWN: _own})
        self._run = run

    def fold(self, rows: DataFrame, held: int) -> Outcome:
        """Nothing."""
        return Outcome(self._run)


class AcksRows:
    """Of a tracked sink. Where the writer got each row of the input once, the input's own files
    say what is acked: the XOR and the number of the edges that passed by on their way to the
    writer are those of the files. Otherwise, as with rows that other batches delivered, the rows
    are read once more as the sink reads them.
    """

    def __init__(self, job: Job, run: OpenedRun) -> None:
        self._job, self._run = job, run
        self.wrote = Witness(mixing=self._mixed, counting={OWN: _own, "edges": self._counted})

    def fold(self, rows: DataFrame, held: int) -> Outcome:
        """See ``SinkTracking``."""
        outcome = None
        if self.wrote.counted["edges"] == self._edges:
            outcome = fold_here(
                self._job, self._run, readings(self._job, self._run), self._is_proved
            )
        return self._as_read(rows, held) if outcome is None else outcome

    def _as_read(self, rows: DataFrame, held: int) -> Outcome:
        read = Witness()
        anchors = ROOTS if ROOTS in rows.columns else ROOT
        watched = root_rows(read.watch(rows.select(anchors, POSITION)))

        def check(outcome: Outcome) -> None:
            require_equal(f"rows read by {self._run.step}", read.rows, held)

        frame = Frame(watched, edges_of(self._job, self._run), self._edges)
        return fold(self._job, self._run, [frame], check)

    def _is_proved(self, outcome: Outcome) -> bool:
        """Whether the edges of the input's files are those of the rows that were written."""
        posted = outcome.posted
        wrote = self.wrote.counted["edges"], self.wrote.seen[1]
        return wrote == (posted.acked_edges, posted.acked_xor)

    @cached_property
    def _edges(self) -> int:
        """How many edges the input has to the sink."""
        ((name, read),) = self._run.inputs.items()
        return edges_to(self._job, name, read)

    def _edge(self, root: Column) -> Column:
        text = edge_text(self._run.input_run.step_run_id, self._run.step)
        return F.xxhash64(F.lit(text), root, F.col(POSITION))

    def _mixed(self, frame: DataFrame) -> Column:
        """XOR of the edges of all rows; a row without a root has none."""
        if ROOTS not in frame.columns:
            root = F.col(ROOT)
            return F.bit_xor(F.when(root.isNotNull(), self._edge(root)))
        nothing = F.lit(0).cast("bigint")
        of_row = F.aggregate(ROOTS, nothing, lambda xor, root: xor.bitwiseXOR(self._edge(root)))
        return F.bit_xor(of_row)

    def _counted(self, frame: DataFrame) -> Column:
        """How many edges all rows have."""
        if ROOTS not in frame.columns:
            return F.count(ROOT)
        return F.coalesce(F.sum(F.size(ROOTS)), F.lit(0))


def _own(frame: DataFrame) -> Column:
    return F.count(POSITION)


def sink_tracking(job: Job, run: OpenedRun, step: SinkStep) -> SinkTracking:
    """What a sink owes the ledger in a run."""
    if run.batch.ackers == 0 or not job.pipeline.graph.tracks(step.reads):
        return UntrackedSink(run)
    return AcksRows(job, run)
