"""Anchors, the records that each row of a stage comes from: their columns, counts and checks."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation
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
from ledger.spark.job import Witness, observed


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


_ROOTED = "rooted"  # rows that have a root


class Rooting:
    """Counts and checks the roots of the rows in a stage's output while the rows are written.

    Counts are available after Spark's action. This base class is for rows without roots, after the
    last tracked stage.

    ``wrote``: witness of the rows, and of the columns that identify each row's input row.
    """

    def __init__(self) -> None:
        self.wrote = Witness()

    def watch(self, frame: DataFrame) -> DataFrame:
        """Return the same frame, whose next execution is observed."""
        return self.wrote.watch(frame)

    def check(self) -> None:
        """Raise StageError if a row was written with an invalid anchor."""

    @property
    def records(self) -> Checksum:
        """Checksum of the records that the rows come from."""
        return self.wrote.checksum

    @property
    def most(self) -> int:
        """Greatest number of records of a row within a plan; 0: each has a record at most."""
        return 0

    @property
    def anchors(self) -> int:
        """Approximate number of anchors of the rows."""
        return 0

    @property
    def edges(self) -> int:
        """Number of edges to one consumer, from the rows that go on."""
        return 0


class OneRoot(Rooting):
    """Counts and checks rows that each come from one record."""

    def __init__(self, step: StageStep):
        self._stage = step.name
        identity = [ROOT, PARENT, *([INPUT] if len(step.inputs) > 1 else [])]
        self.wrote = Witness(*identity, counting={_ROOTED: self._count})

    def check(self) -> None:
        """Raise StageError if a row has no root."""
        bare = self.wrote.rows - self.wrote.counted[_ROOTED]
        if bare:
            raise StageError(
                f"stage {self._stage!r} returned {bare} rows that come from no record of its"
                " inputs, such as rows of a reference that a union or an outer join keeps: drop"
                " those, or declare the reference as a source"
            )

    @property
    def anchors(self) -> int:
        """Number of rows: each has one anchor."""
        return self.wrote.rows

    @property
    def edges(self) -> int:
        """Number of rows that go on: each has one edge."""
        return self.wrote.rows - self.wrote.failed - self.wrote.dropped

    def _count(self, frame: DataFrame) -> Column:
        """Count rows that have a root."""
        return F.count(ROOT)


class OptionalRoot(OneRoot):
    """Counts rows that come from at most one record. Rows of untracked records have no root."""

    def check(self) -> None:
        """Accept all rows."""

    @property
    def edges(self) -> int:
        """Number of rows that go on and have a root: each has one edge."""
        return self.wrote.counted[_ROOTED]

    def _count(self, frame: DataFrame) -> Column:
        """Count rows that go on and have a root."""
        return F.count_if(F.col(ROOT).isNotNull() & _goes_on(frame))


# Records of all rows; rows that come from no record; records of the row that has most.
_RECORDS, _BARE, _MOST = "records", "bare", "most"


class NumberedRoots(Rooting):
    """Counts and checks rows with ``NUMBERS``, which several records may have, within a plan."""

    def __init__(self, step: StageStep):
        self._stage = step.name
        counting = {
            _BARE: lambda rows: F.count_if(F.col(NUMBERS[0]) < 1),
            _MOST: lambda rows: F.coalesce(F.max(NUMBERS[0]), F.lit(0)),
        }
        self.wrote = record_witness(NUMBERS, counting)

    @property
    def records(self) -> Checksum:
        """Checksum of the records that the rows come from."""
        return records_of(self.wrote)

    @property
    def most(self) -> int:
        """Greatest number of records of a row."""
        return self.wrote.counted[_MOST]

    def check(self) -> None:
        """Raise StageError if a row comes from no record."""
        bare = self.wrote.counted[_BARE]
        if bare:
            raise StageError(f"stage {self._stage!r} returned {bare} rows that come from no record")


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


class Roots(Rooting):
    """Counts and checks rows that may come from several records: those of whole stages, and
    downstream of them. Remembers a row with invalid anchors.
    """

    def __init__(self, step: StageStep, max_anchors: int):
        self._stage, self._max_anchors = step.name, max_anchors
        self.wrote = Witness(ANCHORS)
        self._observation = Observation(str(uuid4()))

    def watch(self, frame: DataFrame) -> DataFrame:
        """Return the same frame, whose column ``ANCHORS`` is observed in its next execution."""
        roots = F.array_distinct(F.transform(ANCHORS, lambda anchor: anchor["root"]))
        # A bare row comes from no record, or in part from an unknown one.
        anchors = F.col(ANCHORS)
        unknown = F.exists(anchors, lambda anchor: anchor["root"].isNull())
        bare = anchors.isNull() | (F.size(anchors) == 0) | F.coalesce(unknown, F.lit(False))
        watched = frame.observe(
            self._observation,
            F.sum(F.when(_goes_on(frame), F.size(roots)).otherwise(F.lit(0))).alias("edges"),
            F.max(F.size(roots)).alias("most"),
            F.count_if(bare).alias("bare"),
        )
        return self.wrote.watch(watched)

    def check(self) -> None:
        """Raise StageError if a row has no anchor, or too many of them."""
        metrics = self._metrics()
        if metrics["bare"]:
            raise StageError(
                f"stage {self._stage!r} returned {metrics['bare']} rows that come from no record of"
                " its inputs, such as rows of a reference that a union or an outer join keeps, or"
                " the total of no rows: drop those, or declare the reference as a source"
            )
        if metrics["most"] is not None and int(metrics["most"]) > self._max_anchors:
            raise StageError(
                f"stage {self._stage!r} returned a row of {metrics['most']} records, max_anchors is"
                f" {self._max_anchors}: end tracking there (acks='untracked'), or raise max_anchors"
                " of the pipeline"
            )

    @property
    def anchors(self) -> int:
        """Approximate number of anchors: one for each row and one for each edge."""
        return self.wrote.rows + self.edges

    @property
    def edges(self) -> int:
        """Number of roots of the rows that go on, summed over these rows."""
        return int(self._metrics()["edges"] or 0)

    def _metrics(self) -> dict[str, Any]:
        nothing = {"edges": 0, "most": None, "bare": 0}
        return observed(self._observation, nothing)


def rooting(pipeline: Pipeline, step: StageStep, columns: Collection[str]) -> Rooting:
    """Return the ``Rooting`` of a stage whose output has these columns. Its class depends on how
    many roots a row may have."""
    graph = pipeline.graph
    if not graph.tracks(step.name):
        return Rooting()
    if NUMBERS[0] in columns:
        return NumberedRoots(step)
    if ANCHORS in columns:
        return Roots(step, pipeline.max_anchors)
    return OptionalRoot(step) if graph.root_is_optional(step.name) else OneRoot(step)
