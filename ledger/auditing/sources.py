"""Sources of an audit: rows, copied once with an id for each record, and leaves that read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from ledger.auditing import ids
from ledger.auditing.file_copies import CopiedFiles, copied_files
from ledger.auditing.ids import Ids
from ledger.errors import CarryError, InputError
from ledger.lineage.anchors import Anchors
from ledger.lineage.carrier import Carried
from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import asked_once, simple_name

ID = "__ackledger_id"
MAX_SURPLUS = 4  # times as many records may be read as are wanted
_RELATIONS = {"DataSourceV2Relation": "table", "LogicalRelation": "relation"}


class Leaf(Protocol):
    """A leaf of a plan whose records are followed.

    Attributes:
        name: what the user calls it.
        numbers: the sources whose records it has.
        is_restrictable: ``carried`` obeys ``only``.
    """

    is_restrictable: bool

    @property
    def name(self) -> str: ...

    @property
    def numbers(self) -> tuple[int, ...]: ...

    def ids_of(self, source: int) -> Ids:
        """Return the ids of a source's records that the leaf has, without an occurrence."""

    def carried(
        self, catalyst: Catalyst, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> Carried:
        """Return a plan with the attributes of the leaf, and the ids of its records for one
        occurrence.

        ``only``: parts of copies to read instead of the whole copies, by source.
        """


@dataclass
class AuditSource:
    """Rows whose records are followed.

    ``copy``: its records as Parquet, in columns c0, c1, ... and ``ID``, and maybe further columns.
    ``all_ids``: the ids of all records, sorted.
    ``files``: the copied files from which ``copy`` reads, if they were copied unchanged.
    """

    number: int
    name: str
    columns: tuple[str, ...]
    copy: DataFrame
    all_ids: Ids
    files: CopiedFiles | None = None
    is_restrictable: bool = True

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number,)

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.all_ids)

    def ids_of(self, source: int) -> Ids:
        return self.all_ids

    def carried(
        self, catalyst: Catalyst, node: Node, occurrence: int, only: Mapping[int, DataFrame]
    ) -> Carried:
        plan = catalyst.analyzed(only.get(self.number, self.copy))
        is_whole = self.files is not None and simple_name(plan) == "Project"
        copied = catalyst.new_instance(plan.child() if is_whole else plan)
        *columns, last = catalyst.output(copied)
        record_id = catalyst.column(last)
        if self.files is not None and is_whole:
            record_id = self.files.id_in_copy(record_id)
        visible = [
            catalyst.renamed(column, attribute)
            for column, attribute in zip(columns, catalyst.output(node), strict=False)
        ]
        at = record_id + F.lit(occurrence << ids.ROW_BITS)
        plan, (attribute,) = catalyst.projected(copied, visible, [at])
        return plan, Anchors.of_id(attribute)

    def rows(self, wanted: DataFrame) -> DataFrame:
        """Return records with the source's column names, and their ids."""
        records = self.copy.join(F.broadcast(wanted), ID, "left_semi")
        return records.select(ID, *(F.col(f"c{at}").alias(n) for at, n in enumerate(self.columns)))


@dataclass
class Sources:
    """The sources of an audit. Their copies are files in ``folder``, which the executors can read.

    ``arrived``: the distinct ids in the rows of nodes, by ``Attribution.key``.
    """

    catalyst: Catalyst
    folder: Path
    sources: list[AuditSource] = field(default_factory=list)
    arrived: dict[tuple[int, ...], Ids] = field(default_factory=dict)
    _by_relation: dict[int, Leaf] = field(default_factory=dict)
    _parts: list[tuple[DataFrame, Ids, DataFrame]] = field(default_factory=list)
    _files: int = 0
    _references: dict[tuple[str, int], str] = field(default_factory=dict)

    def leaf_of(self, node: Node) -> Leaf | None:
        """Return the leaf for a node. None: it is not a leaf, or its rows are not followed."""
        relation = relation_of(node)
        return None if relation is None else self._by_relation.get(self.catalyst.identity(relation))

    def follow(self, node: Node, leaf: Leaf) -> None:
        """Register ``leaf`` for all leaves that read the same relation as a node."""
        self._by_relation[self.catalyst.identity(relation_of(node))] = leaf

    def refer(self, name: str, frame: DataFrame) -> None:
        """Register the name of a frame that is not followed."""
        for node in self.catalyst.nodes(self.catalyst.analyzed(frame)):
            if not self.catalyst.children(node):
                self._references.setdefault(_shape(node), name)

    def reference_of(self, node: Node) -> str:
        """Return the registered name of an unfollowed frame that a leaf reads; empty if it has
        none.
        """
        return self._references.get(_shape(node), "")

    def add(self, name: str, frame: DataFrame) -> DataFrame:
        """Copy a frame as a source, and return its records as a frame over the copy."""
        _require_copyable(name, frame)
        source = self.copied(name, frame)
        rows = source.copy if source.files is None else source.files.read(frame)
        self.follow(self.catalyst.analyzed(rows), source)
        if source.files is not None:
            return rows
        names = [F.col(f"c{at}").alias(column) for at, column in enumerate(source.columns)]
        return rows.select(*names)

    def frame_of(self, values: Ids) -> DataFrame:
        """Return ids as a frame, in a column ``ID``."""
        self._files += 1
        file = self.folder / f"ids-{self._files}.parquet"
        pq.write_table(pa.table({ID: pa.array(values, pa.int64())}), file)
        return self.catalyst.spark.read.schema(f"{ID} bigint").parquet(_local(file))

    def part_of(self, source: int, wanted: Ids) -> DataFrame:
        """Return records of a source, ``wanted`` among them, in the columns of its copy.

        They are written to files of their own, so that each pass over them reads few other records.
        """
        return self._part(self.sources[source], wanted)

    def _part(self, source: AuditSource, wanted: Ids) -> DataFrame:
        if len(wanted) == source.records:
            return source.copy
        for copy, stored, part in self._parts:
            is_small = len(stored) <= MAX_SURPLUS * len(wanted)
            if copy is source.copy and is_small and not len(ids.difference(wanted, stored)):
                return part
        rows = source.copy.join(F.broadcast(self.frame_of(wanted)), ID, "left_semi")
        target = self._new_folder(source.number)
        rows.select(source.copy.columns).write.parquet(_local(target))
        part = self.catalyst.spark.read.schema(source.copy.schema).parquet(_local(target))
        self._parts.append((source.copy, wanted, part))
        return part

    def copied(self, name: str, frame: DataFrame, others: int = 0) -> AuditSource:
        """Copy the rows of a frame as a source. Raises InputError if they cannot be copied, and
        CarryError if there are too many sources or partitions.

        ``others``: the number of columns at the end that are not the source's own.
        """
        number = len(self.sources)
        if number >= ids.MAX_SOURCES:
            raise CarryError(f"more than {ids.MAX_SOURCES} sources: audit a part of the job")
        files = copied_files(self.catalyst, frame, self._new_folder(number), ids.first_id(number))
        if files is None:
            copy, all_ids = self._copy(number, name, frame)
        else:
            copy, all_ids = self._rows_of(files, frame), files.all_ids
        columns = tuple(frame.columns)[: len(frame.columns) - others]
        source = AuditSource(number, name, columns, copy, all_ids, files)
        self.sources.append(source)
        return source

    def copied_again(self, source: AuditSource, frame: DataFrame) -> bool:
        """Copy a source again, with further columns, and replace its copy.

        Returns whether each id belongs to the same record as before. If not, the old copy stays.
        """
        columns = [f"c{at}" for at in range(len(source.columns))]
        digest = F.xxhash64(ID, *columns)
        sums = [F.count(ID), F.bit_xor(digest), F.sum(digest.cast("decimal(38,0)"))]
        try:
            copy, _ = self._copy(source.number, source.name, frame, source.files)
            is_same = copy.agg(*sums).first() == source.copy.agg(*sums).first()
        except (InputError, PySparkException, Py4JError):  # gone, or of types without a hash
            return False
        if is_same:
            source.copy = copy
        return is_same

    def _new_folder(self, number: int) -> Path:
        self._files += 1
        return self.folder / f"source-{number}-{self._files}"

    def _rows_of(self, files: CopiedFiles, frame: DataFrame) -> DataFrame:
        """Return the rows of copied files, with ids."""
        leaf = self.catalyst.analyzed(files.read(frame)).withMetadataColumns()
        *columns, metadata = map(self.catalyst.column, self.catalyst.output(leaf))
        own = [column.alias(f"c{at}") for at, column in enumerate(columns)]
        return self.catalyst.frame(leaf).select(*own, files.id_in_copy(metadata).alias(ID))

    def _copy(
        self, number: int, name: str, frame: DataFrame, files: CopiedFiles | None = None
    ) -> tuple[DataFrame, Ids]:
        """Write the rows of a frame with ids. Return the rows, and the ids, sorted. Raises
        InputError if a column's type has no place in Parquet, or if a record is missing in the
        copy, and CarryError for too many partitions.

        ``files``: the copied files that define the ids, by the metadata in the frame's second to
        last column.
        """
        first = ids.first_id(number)
        target = self._new_folder(number)
        written = Observation(f"audit copy {uuid4()}")
        renamed = frame.toDF(*(f"c{at}" for at in range(len(frame.columns))))
        record_id = F.monotonically_increasing_id() + F.lit(first)
        if files is not None:
            record_id = files.id_in_file(renamed[renamed.columns[-2]])
        numbered = renamed.withColumn(ID, record_id)
        try:
            watched = numbered.observe(written, F.count(F.lit(1)).alias("records"))
            watched.write.parquet(_local(target))
        except AnalysisException as error:
            raise InputError(
                f"input {name!r} cannot be copied to Parquet: {error.getMessage()}. Cast the column"
            ) from error
        all_ids = ids_in(target, ID)
        if len(all_ids) != _observed(written):
            raise InputError(
                f"the copy of input {name!r} in {self.folder} has {len(all_ids):,} of "
                f"{_observed(written):,} records: expected all of them. Pass folder=, a folder "
                "that all executors and this process share"
            )
        if len(all_ids) and all_ids[-1] - first >= 1 << ids.ROW_BITS:
            raise CarryError(f"{name} has more than 65,536 partitions: audit a part of it")
        copy = self.catalyst.spark.read.schema(numbered.schema).parquet(_local(target))
        return copy, all_ids


def _require_copyable(name: str, frame: DataFrame) -> None:
    """Raise CarryError for a stream, and InputError for columns with equal names."""
    if frame.isStreaming:
        raise CarryError(f"input {name!r} is a streaming frame: read its source as a batch")
    folded = [column.lower() for column in frame.columns]
    twice = sorted({column for column in frame.columns if folded.count(column.lower()) > 1})
    if twice:
        raise InputError(
            f"input {name!r} has columns with equal names, {', '.join(twice)}: rename one of them"
        )


def _shape(node: Node) -> tuple[str, int]:
    """Return a value that is equal for all copies of a leaf in a plan."""
    return simple_name(node), int(node.semanticHash())


def _observed(written: Observation) -> int:
    """Return the number of rows that were written; 0 if Spark observed nothing, as for an empty
    frame.
    """
    try:
        return int(written.get.get("records", 0))
    except (PySparkException, Py4JError):
        return 0


def _local(path: Path) -> str:
    """Return a local path as a URL for Spark, whose default file system may be another."""
    return f"file://{path.absolute()}"


def ids_in(folder: Path, column: str) -> Ids:
    """Return the distinct ids in a column of Parquet files, sorted: ids or lists of ids."""
    files = [*folder.rglob("*.parquet")]
    if not files:  # they are on another machine
        return ids.NO_IDS
    values = pq.read_table(files, columns=[column], partitioning=None).column(0)
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return ids.distinct(values.to_numpy())


def column_of(frame: DataFrame) -> Ids:
    """Return the only column of a frame, a bigint."""
    return np.asarray(frame.toArrow().column(0).to_numpy(), dtype=np.int64)


@asked_once
def relation_of(node: Node) -> Any:
    """Return the relation that a leaf reads. Copies of the leaf in a plan share it. None: it reads
    no table.
    """
    name = simple_name(node)
    return getattr(node, _RELATIONS[name])() if name in _RELATIONS else None
