"""Snapshots by reference: records that lie in the files of their source, which the snapshot names.

Such a snapshot has a row for each record, as any has, but no values: ``PLACE`` is the block that
the record lies in. The records of a block follow one another, so the position of each is known.
How they are written stands in the schema of the snapshot's files.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.core.column_names import (
    BETWEEN,
    ERROR,
    FILE,
    NAMES,
    PLACE,
    POSITION,
    RAW,
    TEXT,
)
from ledger.sources.files.blocks import Block
from ledger.sources.files.lines import Format
from ledger.sources.files.records import records_of
from ledger.sources.files.text import READ, TextReader
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import iter_batches, spark_schema, stored_file
from ledger.types.spark_arrow import to_arrow_schema

_FORM = "form"  # in the metadata of ``PLACE``
_ROWS = 1 << 16  # that are looked at in one go


def with_form(records: DataFrame, form: Format) -> DataFrame:
    """Records with ``PLACE``, in whose schema stands how they are written."""
    return records.withColumn(PLACE, F.col(PLACE).alias(PLACE, metadata=noted(form)))


def noted(form: Format) -> dict[str, str]:
    """What the metadata of ``PLACE`` state of how records are written."""
    return {_FORM: json.dumps({**asdict(form), "schema": form.schema.jsonValue()})}


@dataclass(frozen=True)
class _Stretch:
    """The records of a block, as they lie in a snapshot. ``names``: of the columns of their file,
    where these are read by name. ``failed``: the positions of those that did not parse."""

    place: str
    names: str | None
    positions: range
    failed: np.ndarray

    def form(self, form: Format) -> Format:
        """How its records are written: ``form``, with the columns of their file."""
        return form if self.names is None else replace(form, names=self.names.split(BETWEEN))

    def needed(self, positions: np.ndarray) -> bool:
        """Whether one of these positions, in order, is of a record here that parsed."""
        first, last = np.searchsorted(positions, [self.positions.start, self.positions.stop])
        return bool(np.isin(positions[first:last], self.failed, invert=True).any())


@dataclass(frozen=True)
class Referenced:
    """The records of a snapshot by reference. ``form``: how they are written, with the columns of
    the schema they were read with."""

    form: Format
    stretches: Sequence[_Stretch]

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> "Referenced":
        """The records of a snapshot, whose files have ``PLACE``."""
        stretches: list[_Stretch] = []
        for file in files:
            with stored_file(file.path) as stored:
                form = _form(stored)
                stretches += _stretches(stored, file.first_position)
        return cls(form, stretches)

    def values(self, spark: SparkSession, positions: Sequence[int] | None = None) -> DataFrame:
        """The records that parsed, as a copy has them, with ``POSITION``; at least those of
        ``positions``, in order; None: all.

        Raises InputError, when it is run, unless the files have the bytes that the snapshot was
        made of.
        """
        stretches = self.stretches
        if positions is not None:
            some = np.asarray(positions, np.int64)
            stretches = [own for own in stretches if own.needed(some)]
        frames = []
        for reader in self._readers(stretches):
            records = records_of(reader.form, reader.frame(spark))
            names = [f"`{name}`" for name in reader.form.schema.names]
            frames.append(records.where(F.col(ERROR).isNull()).select(POSITION, FILE, *names))
        return reduce(DataFrame.union, frames)

    def _readers(self, stretches: Sequence[_Stretch]) -> Iterator[TextReader]:
        """What reads the records, by the columns of their files."""
        groups: dict[str | None, list[_Stretch]] = {}
        for stretch in stretches:
            groups.setdefault(stretch.names, []).append(stretch)
        for own in groups.values() or [[]]:
            form = own[0].form(self.form) if own else self.form
            blocks = [Block.at(stretch.place) for stretch in own]
            yield TextReader(form, blocks, ranges=[stretch.positions for stretch in own])


def with_values(stored: pq.ParquetFile, rows: pa.Table, local: np.ndarray) -> pa.Table:
    """Rows of a snapshot's file, at the positions ``local`` in it, in order, with the values of
    what is read by columns; of any other record, and of what did not parse, with its text as
    ``RAW``. Without Spark. Raises InputError unless the source has the bytes that the snapshot was
    made of."""
    form = _form(stored)
    parts = []
    for stretch in _stretches(stored, 0):
        first, last = np.searchsorted(local, [stretch.positions.start, stretch.positions.stop])
        own = local[first:last]
        if stretch.needed(own):
            parts.append(_read(form, stretch, own))
        elif first < last:
            parts.append(_nothing(form, last - first))
    read = pa.concat_tables(parts)
    columns = {name: rows[name] for name in rows.column_names if name not in (PLACE, RAW)}
    for place, name in enumerate(form.schema.names):
        columns[name] = read[str(place)]
    return pa.table({**columns, RAW: pc.coalesce(rows[RAW], read[TEXT])})


def _read(form: Format, stretch: _Stretch, wanted: np.ndarray) -> pa.Table:
    """What is read of these records of a block, in order: ``TEXT``, and its columns by number."""
    own_form, block = stretch.form(form), Block.at(stretch.place)
    reader = TextReader(own_form, [block], ranges=[stretch.positions])
    parts = [_nothing(form, 0)]
    for batch in reader.batches(range(1)):
        first = batch.column(POSITION)[0].as_py()
        own = wanted[(wanted >= first) & (wanted < first + len(batch))] - first
        some = pa.Table.from_batches([batch]).take(pa.array(own))
        columns = {TEXT: some[TEXT]}
        if reader.has_values:
            values = some[READ].combine_chunks().flatten()
            columns |= {str(place): column for place, column in enumerate(values)}
        nothing = _nothing(form, len(some))
        arrays = [columns.get(name, nothing[name]) for name in nothing.column_names]
        parts.append(pa.table(arrays, schema=nothing.schema))
    return pa.concat_tables(parts)


def _nothing(form: Format, count: int) -> pa.Table:
    """So many nulls, as of ``_read``."""
    kinds = to_arrow_schema(form.schema).types
    names = [TEXT, *map(str, range(len(kinds)))]
    arrays = [pa.nulls(count, kind) for kind in (pa.binary(), *kinds)]
    return pa.table(arrays, names=names)


def _form(stored: pq.ParquetFile) -> Format:
    """How the records of a snapshot are written."""
    fields = {field["name"]: field for field in spark_schema(stored)["fields"]}
    written: Mapping[str, Any] = json.loads(fields[PLACE]["metadata"][_FORM])
    return Format(**{**written, "schema": StructType.fromJson(written["schema"])})


def _stretches(stored: pq.ParquetFile, first: int) -> list[_Stretch]:
    """The stretches of a file, whose first position is given."""
    names = [name for name in (PLACE, ERROR, NAMES) if name in stored.schema_arrow.names]
    stretches: list[_Stretch] = []
    for batch in iter_batches(stored, _ROWS, names):
        codes = np.from_dlpack(batch.column(PLACE).indices)
        failed = np.flatnonzero(batch.column(ERROR).is_valid().to_numpy(zero_copy_only=False))
        starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
            place = batch.column(PLACE)[start].as_py()
            begin, own = first + start, failed[(failed >= start) & (failed < end)] + first
            if stretches and stretches[-1].place == place:
                before = stretches.pop()
                begin, own = before.positions.start, np.concatenate([before.failed, own])
            named = batch.column(NAMES)[start].as_py() if NAMES in names else None
            stretches.append(_Stretch(place, named, range(begin, first + end), own))
        first += len(batch)
    return stretches
