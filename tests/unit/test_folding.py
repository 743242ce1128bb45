"""What a task takes at a time, and which files can be folded by themselves."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas.kernel import Deltas, united
from ledger.deltas.portions import OnEmit, Output
from ledger.deltas.stored import Written
from ledger.spark import post as folding
from ledger.storage.manifest import DataFile
from tests.support.oracle import as_dict, edges

ONE = pa.struct([("root", pa.int64()), ("parent", pa.int64())])


def deltas(*roots):
    """A delta of each root."""
    numbers = np.array(roots, np.int64)
    ones = np.ones(len(roots), np.int64)
    return Deltas(numbers, numbers * 3, numbers, ones, ones, with_rows=len(roots))


def test_deltas_are_united_as_many_at_a_time_as_memory_allows(monkeypatch):
    """Parts are united until they are too many, then the next ones: nothing is left out or said
    twice.
    """
    parts = [deltas(1, 2), deltas(2, 3), deltas(1), deltas(1, 4), deltas(2)]
    monkeypatch.setattr(folding, "MOST_ROWS", 3)
    found = list(folding._united(parts))
    assert [one.root.tolist() for one in found] == [[1, 2, 3], [1, 2, 4]]
    assert as_dict(united(found)) == as_dict(united(parts))


@pytest.mark.parametrize(
    ("most", "lengths"),
    [(None, [7]), (1, [2, 2, 2, 1]), (3, [4, 3]), (4, [4, 3]), (7, [7]), (100, [7])],
)
def test_batches_are_gathered(most, lengths):
    """Batches make tables of at least so many rows, the last one of what is left."""
    values = pa.table({"n": range(7)})
    tables = list(folding._tables(iter(values.to_batches(max_chunksize=2)), most))
    assert [len(table) for table in tables] == lengths
    assert pa.concat_tables(tables).equals(values)


def file_of(tmp_path, name, table, **options):
    """A stored file; as Spark writes it, without a group of no rows."""
    path = tmp_path / f"{name}.parquet"
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        if len(table):
            writer.write_table(table)
    return DataFile(str(path), path.stat().st_size, len(table), 0)


def flat(*parents):
    """Rows of one anchor each."""
    return pa.table({"_root": parents, "_parent": pa.array(parents, pa.int64())})


def listed(*parents):
    """Rows of several anchors each."""
    rows = [[{"root": one, "parent": one} for one in some] for some in parents]
    return pa.table({"_anchors": pa.array(rows, pa.list_(ONE))})


def mixed(*files):
    """Whether files of a run have to be exchanged."""
    written = Written(("one",))
    return folding._mixed(Output(files, written, OnEmit(), edges(1), 100))


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([flat(5, 5, 6), flat(7, None), flat(1, 2)], False),
        ([flat(5, 7), flat(6)], True),
        ([flat(5, 6), flat(6, 7)], True),
        ([flat(None), flat(5), flat()], False),
        ([listed([1, 2], [2]), listed([3], [4, 5])], False),
        ([listed([1, 3], [2]), listed([2], [4, 5])], True),
        ([pa.table({"n": [1]}), flat(5)], True),
    ],
    ids=["apart", "one within", "one input", "without parents", "lists", "lists mixed", "unknown"],
)
def test_files_that_share_an_input(tmp_path, tables, expected):
    """Files whose parents overlap, or may, are not folded one by one; neither are those that say
    nothing of them.
    """
    files = [file_of(tmp_path, place, table) for place, table in enumerate(tables)]
    assert mixed(*files) is expected


@pytest.mark.parametrize("table", [flat(1), listed([1])], ids=["flat", "lists"])
def test_a_footer_that_does_not_say(tmp_path, table):
    """Without statistics nobody knows which parents a file has."""
    silent = file_of(tmp_path, "silent", table, write_statistics=False)
    assert mixed(silent, file_of(tmp_path, "other", flat(7)))


def test_a_file_of_too_many_rows(tmp_path, monkeypatch):
    """A file that no task could hold is exchanged, though it shares no input with another."""
    file = file_of(tmp_path, "large", flat(1, 2, 3, 4))
    assert not mixed(file)
    monkeypatch.setattr(folding, "MOST_ROWS", 3)
    assert mixed(file)
