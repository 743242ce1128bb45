"""The rows of one record in the files of a step, with their content, without Spark."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.batch.records.snapshots import json_rows, rows_at, shortened, values_of
from ledger.core.column_names import (
    ANCHORS,
    DROPPED,
    FAILED,
    INPUT,
    PARENT,
    ROOT,
    is_own,
)
from ledger.deltas.stored import anchored_rows
from ledger.storage import parquet

_STORED = (ROOT, PARENT, INPUT, ANCHORS, FAILED, DROPPED)


@dataclass(frozen=True)
class Row:
    """One stored row of the record. ``parents``: the rows that it comes from, by input and
    position.
    """

    position: int
    parents: tuple[tuple[str, int], ...]
    failed: str | None
    dropped: str | None
    content: str | None


def rows_of(
    stored: pq.ParquetFile,
    first_position: int,
    inputs: tuple[str, ...],
    root: int,
    shows: Callable[[str], bool],
) -> Iterator[Row]:
    """Yield the rows of a root in one file. A row group without one is read only in the ledger's
    columns.

    ``shows``: returns whether the values of a column are shown without a mask.
    """
    own = [name for name in _STORED if name in stored.schema_arrow.names]
    start = 0
    for group in range(stored.metadata.num_row_groups):
        table = parquet.read_row_group(stored, group, own).unify_dictionaries().combine_chunks()
        rows, places = anchored_rows(table, np.arange(len(table)), inputs)
        anchors = np.flatnonzero(rows.root == root)
        parents: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for anchor in anchors:
            number = 0 if rows.input is None else int(rows.input[anchor])
            parents[int(places[anchor])].append((inputs[number], int(rows.parent[anchor])))
        if parents:
            local = np.array(sorted(parents))
            described = _described(rows_at(stored, local + start), shows)
            for place, row in zip(sorted(parents), described, strict=True):
                yield Row(first_position + start + place, tuple(parents[place]), *row)
        start += len(table)


def _described(
    rows: pa.Table, shows: Callable[[str], bool]
) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Yield for each row its reason of failing, its reason of being dropped, and its content. A
    mark that a stage returns beside its output has no content.
    """
    columns = [name for name in rows.column_names if not is_own(name)]
    failed, dropped = (values_of(rows, name) for name in (FAILED, DROPPED))
    empty = np.ones(len(rows), bool)
    for name in columns:
        empty &= rows[name].is_null().to_numpy()
    masked = [name for name in columns if not shows(name)]
    fields = json_rows(rows, columns, masked) if columns else [""] * len(rows)
    contents = [
        None if nothing else shortened(text) for nothing, text in zip(empty, fields, strict=True)
    ]
    yield from zip(failed, dropped, contents, strict=True)
