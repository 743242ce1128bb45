"""Anchors, the records that each row of a stage comes from: their columns, counts and checks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import (
    ANCHOR,
    ANCHORS,
    DROPPED,
    FAILED,
    INPUT,
    NUMBERS,
    PARENT,
    POSITION,
    PREFIX,
    ROOT,
)
from ledger.deltas.stored import Checksum
from ledger.errors import StageError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StageStep
from ledger.spark.job import Witness


def anchor_type(step: StageStep) -> str:
    """Return the type of an anchor of one record in a stage, as Spark writes it."""
    fields = ["root:bigint", "parent:bigint"]
    fields += ["input:string"] if len(step.inputs) > 1 else []
    return f"struct<{','.join(fields)}>"


def stored_anchor(frame: DataFrame) -> list[Column]:
    """Return ``_anchor`` of a stage's output as columns that store well: a sorted list of records,
    or else the fields of one record, or of the numbers of several.
    """
    anchor = frame.schema[ANCHOR].dataType
    if isinstance(anchor, T.ArrayType):
        return [F.sort_array(ANCHOR).alias(ANCHORS)]
    assert isinstance(anchor, T.StructType)
    return [F.col(f"{ANCHOR}.{name}").alias(f"{PREFIX}{name}") for name in anchor.names]


def _goes_on(frame: DataFrame) -> Column:
    """Return whether a row is neither failed nor dropped."""
    marks = [F.col(name).isNull() for name in (FAILED, DROPPED) if name in frame.columns]
    return reduce(and_, marks, F.lit(True))


# Counts of the roots of rows. ``_BARE``: rows that come from no record. ``_MOST``: records of the
# row that has most. ``_RECORDS``: records of all rows.
_BARE, _EDGES, _MOST, _RECORDS = "bare", "edges", "most", "records"


class Rooting:
    """Counts and checks the roots of the rows in a stage's output while the rows are written.

    Counts are available after Spark's action.

    ``wrote``: witness of the rows, and of the columns that identify each row's input rows.
    ``limit``: the number of roots that a row may have. 0: the rows have neither anchors nor edges,
    because they are not tracked any more, or have only ``NUMBERS`` of their records.
    """

    def __init__(self, step: StageStep, wrote: Witness, limit: int) -> None:
        self.wrote = wrote
        self._stage, self._limit = step.name, limit

    def watch(self, frame: DataFrame) -> DataFrame:
        """Return the same frame, whose next execution is observed."""
        return self.wrote.watch(frame)

    def check(self) -> None:
        """Raise StageError if a row has no root where each needs one, or too many of them."""
        counted = self.wrote.counted
        if counted.get(_BARE):
            keeps = "rows of a reference that a union or an outer join keeps"
            if counted.keys() & {_MOST, _RECORDS}:  # a row may have several records
                keeps += ", or the total of no rows"
            raise StageError(
                f"stage {self._stage!r} returned {counted[_BARE]} rows that come from no record of"
                f" its inputs, such as {keeps}: drop those, or declare the reference as a source"
            )
        if self.most > self._limit > 0:
            raise StageError(
                f"stage {self._stage!r} returned a row of {self.most} records, max_anchors"
                f" is {self._limit}: end tracking there (acks='untracked'), or raise max_anchors of"
                " the pipeline"
            )

    @property
    def records(self) -> Checksum:
        """Checksum of the records that the rows come from."""
        return records_of(self.wrote)

    @property
    def most(self) -> int:
        """Greatest number of records of a row, where rows may have several; 0 elsewhere."""
        return self.wrote.counted.get(_MOST, 0)

    @property
    def anchors(self) -> int:
        """Approximate number of anchors of the rows: one for each row. If rows may have several
        roots, also one for each edge.
        """
        return self.wrote.rows * bool(self._limit) + self.edges * (_MOST in self.wrote.counted)

    @property
    def edges(self) -> int:
        """Number of edges to one consumer: the roots of the rows that go on, summed over these
        rows.
        """
        counted = self.wrote.counted
        if not self._limit or _EDGES in counted:
            return counted.get(_EDGES, 0)
        return self.wrote.rows - self.wrote.failed - self.wrote.dropped


def _bare_list(frame: DataFrame) -> Column:
    """Count rows whose list has no anchor, or one of an unknown record."""
    anchors = F.col(ANCHORS)
    unknown = F.exists(anchors, lambda anchor: anchor["root"].isNull())
    return F.count_if(anchors.isNull() | (F.size(anchors) == 0) | F.coalesce(unknown, F.lit(False)))


def _roots() -> Column:
    """Return the number of roots in a row's list of anchors."""
    return F.size(F.array_distinct(F.transform(ANCHORS, lambda anchor: anchor["root"])))


_OF_LISTS = {
    _BARE: _bare_list,
    _EDGES: lambda frame: F.coalesce(F.sum(F.when(_goes_on(frame), _roots())), F.lit(0)),
    _MOST: lambda frame: F.coalesce(F.max(_roots()), F.lit(0)),
}


def record_witness(
    columns: Collection[str], counting: Mapping[str, Callable[[DataFrame], Column]] | None = None
) -> Witness:
    """Return a witness of the records that rows come from, for ``records_of``.

    ``columns``: of the rows: ``NUMBERS``, or ``ROOT`` and ``POSITION``.
    ``counting``: further counts, as for ``Witness``.
    """
    if NUMBERS[0] not in columns:
        return Witness(ROOT, POSITION, counting=counting)
    records, xor, total = NUMBERS
    number = {_RECORDS: lambda rows: F.coalesce(F.sum(records), F.lit(0))}
    return Witness(
        mixing=lambda rows: (F.bit_xor(xor), F.sum(total)),
        counting={**(counting or {}), **number},
    )


def records_of(witness: Witness) -> Checksum:
    """Return the checksum of the records that rows come from. Each record counts once a row."""
    wrote = witness.checksum
    return replace(wrote, rows=witness.counted.get(_RECORDS, wrote.rows))


def rooting(pipeline: Pipeline, step: StageStep, columns: Collection[str]) -> Rooting:
    """Return the ``Rooting`` of a stage whose output has these columns."""
    graph = pipeline.graph
    if not graph.tracks(step.name):
        return Rooting(step, Witness(), 0)
    if NUMBERS[0] in columns:  # of a whole stage within a plan, or downstream of one
        counting = {
            _BARE: lambda frame: F.count_if(F.col(NUMBERS[0]) < 1),
            _MOST: lambda frame: F.coalesce(F.max(NUMBERS[0]), F.lit(0)),
        }
        return Rooting(step, record_witness(NUMBERS, counting), 0)
    if ANCHORS in columns:  # of a whole stage, or downstream of one
        return Rooting(step, Witness(ANCHORS, counting=_OF_LISTS), pipeline.max_anchors)
    identity = [ROOT, PARENT, *([INPUT] if len(step.inputs) > 1 else [])]
    counting = {_BARE: lambda frame: F.count_if(F.col(ROOT).isNull())}
    if graph.root_is_optional(step.name):  # rows of untracked records have no root, and no edge
        counting = {_EDGES: lambda frame: F.count_if(F.col(ROOT).isNotNull() & _goes_on(frame))}
    return Rooting(step, Witness(*identity, counting=counting), 1)
