"""Input rows of a stage that no output row comes from: record which it lost, drop the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ledger.batch.step_runs import OpenedRun, OperationLoss, posting_ahead
from ledger.core.column_names import ANCHORS, DROPPED, INPUT, PARENT, PREFIX, ROOT
from ledger.deltas import posting
from ledger.deltas.fold_files import new_path
from ledger.deltas.portions import Portion
from ledger.deltas.rows import Longs
from ledger.deltas.stored import checksum
from ledger.deltas.table_writer import TableWriter
from ledger.deltas.unarrived import UnarrivedRows, unarrived_rows
from ledger.lineage.carry import Following
from ledger.pipeline.steps import StageStep
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.job import Job
from ledger.spark.steps.lost_at import RowLoss, find_losses
from ledger.spark.tracking import StageFiles, edges_to, output_portion, readings
from ledger.storage.manifest import take_manifest
from ledger.storage.parquet import spark_metadata


@dataclass(frozen=True)
class Followed:
    """The call of a stage's function, and what it returned: its output, and the frames of its
    marks.
    """

    following: Following
    frames: Sequence[DataFrame]


@dataclass
class StageLosses:
    """Input rows of a stage's run that no output row comes from.

    They are looked for once the output is folded, and only if it acks fewer edges than its inputs
    have.

    ``schema``: of the rows as they are stored.
    ``written``: the output, to which the rows that are dropped on purpose are added.
    """

    job: Job
    run: OpenedRun
    step: StageStep
    schema: StructType
    followed: Followed | None
    written: list[StageFiles]
    _losses: list[tuple[RowLoss, list[UnarrivedRows]]] = field(default_factory=list)

    def drops_of(self, outcome: FoldOutcome) -> Sequence[Portion]:
        """Find out at which operations rows were lost, if some were, and write those that are
        dropped on purpose. Returns what is to be folded of these.
        """
        edges = sum(edges_to(self.job, name, read) for name, read in self.run.inputs.items())
        if (
            self.followed is None
            or self.step.acks != "on_emit"
            or not self.run.batch.tracking
            or outcome.posted.acked_edges >= edges
        ):
            return ()
        output = output_portion(self.job, self.run, self.step, self.written[0])
        return self.attribute_losses([*unarrived_rows(readings(self.job, self.run), output)])

    def attribute_losses(self, missing: Sequence[UnarrivedRows]) -> Sequence[Portion]:
        """Find the operations of the stage at which these input rows were lost, and keep the result
        for ``record``. If some operations drop rows on purpose, write those rows, and return their
        portion to be folded, else nothing.
        """
        assert self.followed is not None
        positions = {each.input: np.unique(each.position) for each in missing}
        losses = find_losses(
            self.followed.following,
            self.followed.frames,
            {number: rows for number, rows in positions.items() if len(rows)},
            drops=self.step.filters == "dropped",
            expected=self.step.expected,
        )
        by_input = {each.input: each for each in missing}
        self._losses = [
            (each, [by_input[number].among(rows) for number, rows in each.rows.items()])
            for each in losses
        ]
        drops = [(each, rows) for each, rows in self._losses if each.is_drop]
        if not drops:
            return ()
        marks, folder = self._marks(drops), f"{self.job.folder(self.run)}/dropped"
        with TableWriter(
            new_path(folder, "part"), marks.schema, spark_metadata(self.schema)
        ) as writer:
            writer.write(marks.columns)
            writer.finish()
        edges = sum(len(some.root) for _, rows in drops for some in rows)
        self.written.append(StageFiles(take_manifest(folder), checksum(marks), anchors=edges))
        return [output_portion(self.job, self.run, self.step, self.written[-1])]

    def record(self) -> list[OperationLoss]:
        """Post which roots were lost at which operation, ahead of the run's commit, and return what
        that commits.
        """
        losses = [(each, rows) for each, rows in self._losses if not each.is_drop]
        if losses:
            roots = [np.concatenate([some.root for some in rows]) for _, rows in losses]
            with posting_ahead(self.job.database, self.run) as cursor:
                for some, number in _first_of_each(roots):
                    batch_id, run_id = self.run.batch.batch_id, self.run.run_id
                    posting.post_lost(cursor, batch_id, run_id, some, number)
        return [
            OperationLoss(
                each.text,
                each.operation or None,
                each.place or None,
                sum(len(np.unique(some.position)) for some in rows),
                is_drop=each.is_drop,
            )
            for each, rows in self._losses
        ]

    def _marks(self, drops: Sequence[tuple[RowLoss, list[UnarrivedRows]]]) -> pa.Table:
        """Return the rows that are dropped on purpose as they are stored: their anchors, and why.
        They have none of the user's columns.
        """
        names = list(self.run.inputs)
        tables = []
        for loss, inputs in drops:
            for rows in inputs:
                columns = {ROOT: pa.array(rows.root), PARENT: pa.array(rows.position)}
                if len(names) > 1:
                    columns[INPUT] = pa.repeat(names[rows.input], len(rows.root))
                if ANCHORS in self.schema.names:
                    columns = {ANCHORS: _lists(rows.position, columns)}
                size = len(next(iter(columns.values())))
                tables.append(pa.table({**columns, DROPPED: pa.repeat(loss.text, size)}))
        return pa.concat_tables(tables).combine_chunks()


def _lists(positions: Longs, columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the anchors of each row as a list. The anchors of a row are next to each other."""
    fields = {name.removeprefix(PREFIX): column for name, column in columns.items()}
    anchors = pa.StructArray.from_arrays([*fields.values()], [*fields])
    starts = np.flatnonzero(np.diff(positions, prepend=-1))
    offsets = pa.array(np.append(starts, len(positions)), pa.int32())
    return pa.ListArray.from_arrays(offsets, anchors)


def _first_of_each(roots: Sequence[Longs]) -> Iterator[tuple[Longs, int]]:
    """Yield distinct roots with the number, from 1, of the first array that has them."""
    seen = np.empty(0, np.int64)
    for number, some in enumerate(roots, 1):
        new = np.setdiff1d(some, seen)
        seen = np.union1d(seen, new)
        yield new, number
