"""Sources of an audit: frames, copied once with an id for each record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from ledger.auditing import ids
from ledger.auditing.ids import Ids
from ledger.errors import CarryError, InputError
from ledger.lineage.catalyst import Catalyst, Expression, Node
from ledger.lineage.nodes import simple_name

ID = "__ackledger_id"


@dataclass
class AuditSource:
    """A frame whose records are followed. ``copy``: its records as Parquet, in columns c0, c1, ...
    and ``ID``; ``records``: how many.
    """

    number: int
    name: str
    columns: tuple[str, ...]
    copy: DataFrame
    records: int

    def all_ids(self) -> Ids:
        """Return the ids of all records, sorted."""
        return np.sort(column_of(self.copy.select(ID)))

    def rows(self, wanted: DataFrame) -> DataFrame:
        """Return records under the names of the source's columns, with their id."""
        records = self.copy.join(F.broadcast(wanted), ID, "left_semi")
        return records.select(ID, *(F.col(f"c{at}").alias(n) for at, n in enumerate(self.columns)))


@dataclass
class Sources:
    """The sources of an audit. Their copies are files in ``folder``, which the executors see."""

    catalyst: Catalyst
    folder: Path
    sources: list[AuditSource] = field(default_factory=list)
    _by_relation: dict[int, AuditSource] = field(default_factory=dict)
    _files: int = 0

    def source_of(self, node: Node) -> AuditSource | None:
        """Return the source that a node reads; None: rows that are not followed."""
        if simple_name(node) != "LogicalRelation":
            return None
        return self._by_relation.get(self.catalyst.identity(node.relation()))

    def add(self, name: str, frame: DataFrame) -> DataFrame:
        """Copy a frame as a source, and return its records as a frame over the copy."""
        source = self._copied(name, frame)
        (leaf,) = _leaves(self.catalyst, self.catalyst.analyzed(source.copy))
        self._by_relation[self.catalyst.identity(leaf.relation())] = source
        names = [F.col(f"c{at}").alias(column) for at, column in enumerate(source.columns)]
        return source.copy.select(*names)

    def plan(
        self, source: AuditSource, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> tuple[Node, Expression]:
        """Return a leaf over a source's copy with the ids behind its columns, and their attribute.

        ``only``: for some sources the ids to which they are restricted.
        """
        record_id = next(each for each in self.catalyst.output(node) if each.name() == ID)
        base = node
        if source.number in only:
            wanted = F.broadcast(only[source.number])
            restricted = self.catalyst.frame(node).join(wanted, ID, "left_semi")
            base = self.catalyst.analyzed(restricted)
        with_occurrence = self.catalyst.column(record_id) + F.lit(occurrence << ids.ROW_BITS)
        output = self.catalyst.output(node)
        plan, (attribute,) = self.catalyst.projected(base, output, [with_occurrence])
        return plan, attribute

    def frame_of(self, values: Ids) -> DataFrame:
        """Return ids as a frame, in a column ``ID``."""
        self._files += 1
        file = self.folder / f"ids-{self._files}.parquet"
        pq.write_table(pa.table({ID: pa.array(values, pa.int64())}), file)
        return self.catalyst.spark.read.parquet(_local(file))

    def _copied(self, name: str, frame: DataFrame) -> AuditSource:
        number = len(self.sources)
        if number >= ids.MAX_SOURCES:
            raise CarryError(f"more than {ids.MAX_SOURCES} sources: audit a part of the job")
        first, columns = ids.first_id(number), tuple(frame.columns)
        _require_copyable(name, frame)
        target = _local(self.folder / f"source-{number}")
        written = Observation(f"audit copy {uuid4()}")
        numbered = frame.toDF(*(f"c{at}" for at in range(len(columns)))).withColumn(
            ID, F.monotonically_increasing_id() + F.lit(first)
        )
        try:
            watched = numbered.observe(written, F.count(F.lit(1)).alias("records"))
            watched.write.parquet(target)
        except AnalysisException as error:
            raise InputError(
                f"input {name!r} cannot be copied to Parquet: {error.getMessage()}. Cast the column"
            ) from error
        copy = self.catalyst.spark.read.parquet(target)
        records, last = copy.agg(F.count(ID), F.max(ID)).first()  # type: ignore[misc]
        if records != _observed(written):
            raise InputError(
                f"the copy of input {name!r} in {self.folder} has {records:,} of "
                f"{_observed(written):,} records: expected all of them. Pass folder=, a folder "
                "that all executors and this process share"
            )
        if last is not None and last - first >= 1 << ids.ROW_BITS:
            raise CarryError(f"{name} has more than 65,536 partitions: audit a part of it")
        source = AuditSource(number, name, columns, copy, records)
        self.sources.append(source)
        return source


def _require_copyable(name: str, frame: DataFrame) -> None:
    """Raise an error for a stream, and for columns whose names are equal."""
    if frame.isStreaming:
        raise CarryError(f"input {name!r} is a streaming frame: read its source as a batch")
    folded = [column.lower() for column in frame.columns]
    twice = sorted({column for column in frame.columns if folded.count(column.lower()) > 1})
    if twice:
        raise InputError(
            f"input {name!r} has columns with equal names, {', '.join(twice)}: rename one of them"
        )


def _observed(written: Observation) -> int:
    """The number of rows that were written. Spark observes nothing in an empty frame."""
    try:
        return int(written.get.get("records", 0))
    except (PySparkException, Py4JError):
        return 0


def _local(path: Path) -> str:
    """A local path for Spark, whose default file system may be another."""
    return f"file://{path.absolute()}"


def column_of(frame: DataFrame) -> Ids:
    """Return the only column of a frame, a bigint."""
    return np.asarray(frame.toArrow().column(0).to_numpy(), dtype=np.int64)


def _leaves(catalyst: Catalyst, node: Node) -> list[Node]:
    children = catalyst.children(node)
    return [leaf for child in children for leaf in _leaves(catalyst, child)] or [node]
