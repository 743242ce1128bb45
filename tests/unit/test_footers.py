"""What files take in memory, by their footers alone."""

from io import BytesIO
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas.footers import DELTA_BYTES, footer_of, memory_of, read_footers, related
from ledger.storage.manifest import DataFile

BIGINT, TEXT = pa.int64(), pa.string()


def test_a_column_of_longs_takes_eight_bytes_a_row(tmp_path):
    """However small the file is, and however wide the user's columns are."""
    path = tmp_path / "a.parquet"
    longs = pa.array([7] * 1000, BIGINT)
    columns = {"_ackledger_root": longs, "_ackledger_parent": longs, "text": ["x" * 1000] * 1000}
    pq.write_table(pa.table(columns), path)
    file = DataFile(str(path), path.stat().st_size, 1000, 0)
    (footer,) = read_footers([file])
    assert footer.bytes == 2 * 8 * 1000
    assert file.bytes < footer.bytes


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_column_of_texts_takes_its_bytes(tmp_path, codec):
    """However well they compress."""
    texts = [f"{n:05}" * 1000 for n in range(100)]
    columns = {"_ackledger_error": [None] * 100, "_ackledger_raw": texts, "user": texts}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, compression=codec, use_dictionary=False)
    (footer,) = read_footers([DataFile(str(path), path.stat().st_size, 100, 0)])
    assert 500_000 < footer.bytes - 100 * 8 < 510_000


@pytest.mark.parametrize(
    ("roots", "options", "deltas"),
    [
        ([5, 6, 7], {}, 3),
        ([5, 500, 5, 500], {}, 4),
        ([5, 5, 5, 6], {}, 2),
        ([-(2**63), 2**63 - 1], {}, 2),
        ([None, None], {}, 0),
        ([5, 5, 5, 7], {"row_group_size": 2}, 3),
        ([5, 5, 5], {"write_statistics": False}, 3),
    ],
)
def test_deltas_count_while_they_are_held(tmp_path, roots, options, deltas):
    """At most one for each root that there may be in a row group, and one for each row."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"_ackledger_root": pa.array(roots, BIGINT)}), path, **options)
    (footer,) = read_footers([DataFile(str(path), 1, len(roots), 0)])
    memory = memory_of([footer], by_input=False)
    assert (footer.deltas, memory) == (deltas, footer.bytes + DELTA_BYTES * deltas)


def test_a_record_of_a_snapshot_is_a_delta(tmp_path):
    """Its roots are not among its columns."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"_ackledger_error": pa.array([None] * 9, TEXT)}), path)
    (footer,) = read_footers([DataFile(str(path), 1, 9, 0)])
    assert (footer.deltas, footer.roots) == (9, None)


@pytest.mark.parametrize(
    ("parents", "by_input", "deltas"),
    [
        ([[1, 9], [2, 8]], True, 4),  # the rows of each root are gathered from both files
        ([[1, 9], [2, 8]], False, 8),
        ([[1, 2], [3, 4]], True, 8),
    ],
)
def test_deltas_of_files_with_roots_in_common(tmp_path, parents, by_input, deltas):
    """Where they may share an input each root has one delta; else there is one of each file."""
    files = []
    for number, ends in enumerate(parents):
        columns = {"_ackledger_root": [5, 6, 7, 8], "_ackledger_parent": [*ends, *ends]}
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), path)
        files.append(DataFile(str(path), 1, 4, 4 * number))
    footers = read_footers(files)
    assert [footer.parents for footer in footers] == [tuple(ends) for ends in parents]
    size = sum(footer.bytes for footer in footers)
    assert memory_of(footers, by_input=by_input) == size + DELTA_BYTES * deltas


def test_a_file_whose_inputs_are_not_known_may_share_one_with_any():
    """Its writer noted no statistics; a file of lists has those of its lists' fields."""
    parents = pa.array([5, 3], BIGINT)
    lists = pa.array([[{"root": 1, "parent": 7}], [{"root": 1, "parent": 9}]])
    tables = [
        (pa.table({"_ackledger_parent": parents}), True),
        (pa.table({"_ackledger_anchors": lists}), True),
        (pa.table({"_ackledger_parent": parents}), False),
    ]
    footers = [
        footer_of(written(table, write_statistics=statistics)) for table, statistics in tables
    ]
    assert [footer.parents for footer in footers] == [(3, 5), (7, 9), None]
    assert related(footers[:2], by_input=True) == set()
    assert related(footers, by_input=True) == {0, 1, 2}
    assert related(footers, by_input=False) == set()


def test_a_row_group_without_statistics_beside_one_that_has_them():
    """What one group does not say is not known of the file."""
    table = pa.table({"_ackledger_root": pa.array([1, 2, 3], BIGINT)})
    groups = [
        written(table.slice(first, rows), write_statistics=statistics).row_group(0)
        for first, rows, statistics in [(0, 2, True), (2, 1, True), (2, 1, False)]
    ]
    whole, partly = (
        footer_of(SimpleNamespace(num_row_groups=2, row_group=some.__getitem__))
        for some in (groups[:2], groups[1:])
    )
    assert (whole.deltas, whole.roots) == (3, (1, 3))
    assert (partly.deltas, partly.roots) == (2, None)


def written(table, **options):
    """The metadata of a file of these rows."""
    file = BytesIO()
    pq.write_table(table, file, **options)
    return pq.read_metadata(BytesIO(file.getvalue()))
