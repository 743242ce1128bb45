"""Tracking of a sink: it acks each row that it reads, written or dropped as delivered before."""

from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import POSITION, ROOT, ROOTS
from ledger.deltas.edges import edge_text
from ledger.deltas.stored import Checksum
from ledger.pipeline.steps import SinkStep
from ledger.spark.folding.fold import UnprovedError, fold
from ledger.spark.folding.outcome import FoldOutcome, Frame
from ledger.spark.frames.inputs import root_rows
from ledger.spark.frames.misplaced import counting_misplaced
from ledger.spark.job import Job, Witness, require_equal
from ledger.spark.tracking import edges_of, edges_to, readings


class SinkTracking:
    """Folds and checks the acks of a sink's run.

    A sink takes a row to write it or to drop it. If XOR and number of edges prove that it took each
    row of its input once, the acks are folded from the input's own files. Otherwise the rows are
    read once more as the sink reads them. They have to be the rows that it took, because a reading
    by itself does not show what the writer got.

    Without tracking, or downstream of the last tracked stage, nothing is folded.

    ``wrote``: witness of the rows that the sink's writer gets. It counts the misplaced ones.
    """

    def __init__(self, job: Job, run: OpenedRun, step: SinkStep) -> None:
        self._job, self._run = job, run
        self._folds = run.batch.tracking and job.pipeline.graph.tracks(step.reads)
        mixing = self._mixed if self._folds else None
        self.wrote = Witness(mixing=mixing, counting=counting_misplaced(step))

    def tally(self, dropped: DataFrame | None) -> Checksum:
        """Return the checksum of the rows that are dropped because other batches delivered them.

        ``dropped``: these rows; None if there are none.
        """
        if dropped is None:
            return Checksum()
        mixed = self._mixed(dropped) if self._folds else ()
        (row,) = dropped.agg(F.count(F.lit(1)), *mixed).collect()
        return Checksum(*(value or 0 for value in row))

    def fold(self, rows: DataFrame, dropped: Checksum) -> FoldOutcome:
        """Fold the acks of the sink, and return the outcome.

        ``rows``: the rows that the sink reads.
        ``dropped``: the checksum of the rows that it dropped.

        Raises IntegrityError unless the rows read are the rows written and the rows dropped.
        """
        if not self._folds:
            return FoldOutcome(self._run)
        taken = self.wrote.checksum + dropped

        def prove(outcome: FoldOutcome) -> None:
            if (taken.xor, taken.sum) != (outcome.posted.acked_xor, outcome.posted.acked_edges):
                raise UnprovedError

        # A row without a root has no edge: only the number of rows shows it.
        if (taken.rows, taken.sum) == (self._run.input_run.output_rows, self._edges):
            with suppress(UnprovedError):
                outcome = fold(self._job, self._run, readings(self._job, self._run), prove)
                return replace(outcome, proved=True)

        read = Witness(mixing=self._mixed)
        anchors = ROOTS if ROOTS in rows.columns else ROOT
        watched = root_rows(read.watch(rows.select(anchors, POSITION)))

        def check(outcome: FoldOutcome) -> None:
            what = f"rows read by {self._run.step} in run {self._run.run_id} (sum: tracked rows)"
            require_equal(what, taken, read.checksum)

        frame = Frame(watched, edges_of(self._job, self._run), self._edges)
        return replace(fold(self._job, self._run, [frame], check), proved=False)

    @cached_property
    def _edges(self) -> int:
        """Number of edges from the input to the sink."""
        ((name, read),) = self._run.inputs.items()
        return edges_to(self._job, name, read)

    def _edge(self, root: Column) -> Column:
        text = edge_text(self._run.input_run.step_run_id, self._run.step)
        return F.xxhash64(F.lit(text), root, F.col(POSITION))

    def _mixed(self, frame: DataFrame) -> tuple[Column, Column]:
        """Return XOR and number of the edges of all rows. A row without a root has no edge."""
        if ROOTS not in frame.columns:
            root = F.col(ROOT)
            return F.bit_xor(F.when(root.isNotNull(), self._edge(root))), F.count(ROOT)
        nothing = F.lit(0).cast("bigint")
        of_row = F.aggregate(ROOTS, nothing, lambda xor, root: xor.bitwiseXOR(self._edge(root)))
        # Of null ``size`` is -1 without ANSI, ``array_size`` is null.
        return F.bit_xor(of_row), F.sum(F.array_size(ROOTS))
