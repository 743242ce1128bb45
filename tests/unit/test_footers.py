"""Which files may have rows of one input, by their footers alone."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.deltas.footers import DELTA_BYTES, Footer, footer_of, memory_of, read_footers, sharing
from ledger.storage.manifest import DataFile

BIGINT, TEXT = pa.int64(), pa.string()


def file_of(path, parents, inputs=None, lists=False, **options):
    """A file of rows with these parents."""
    if lists:
        names = iter(inputs or ())
        kinds = [("root", BIGINT), ("parent", BIGINT), *([("input", TEXT)] if inputs else [])]
        anchors = [
            [{"root": 1, "parent": parent, "input": next(names, None)} for parent in row]
            for row in parents
        ]
        columns = {"_ackledger_anchors": pa.array(anchors, pa.list_(pa.struct(kinds)))}
    else:
        roots = pa.array([None if parent is None else 1 for parent in parents], BIGINT)
        columns = {"_ackledger_root": roots, "_ackledger_parent": pa.array(parents, BIGINT)}
    if inputs is not None and not lists:
        columns["_ackledger_input"] = pa.array(inputs, TEXT)
    table = pa.table({**columns, "text": ["x" * 1000] * len(parents)})
    pq.write_table(table, path, **options)
    return DataFile(str(path), path.stat().st_size, len(parents), 0)


@pytest.mark.parametrize(
    ("options", "first", "last", "has_range"),
    [
        ({"parents": [5, 3, 9]}, ("", 3), ("", 9), True),
        ({"parents": [5, 3, 9, 1], "row_group_size": 1}, ("", 1), ("", 9), True),
        ({"parents": [5, None]}, ("", 5), ("", 5), True),
        ({"parents": [None, None]}, None, None, True),
        ({"parents": []}, None, None, True),
        ({"parents": [5, 3], "inputs": ["b", "a"]}, ("a", 3), ("b", 5), True),
        ({"parents": [5, 3], "write_statistics": False}, None, None, False),
        ({"parents": [5, -3], "row_group_size": 1}, ("", -3), ("", 5), True),
        ({"parents": [-(2**63), 2**63 - 1]}, ("", -(2**63)), ("", 2**63 - 1), True),
        ({"parents": [None, None, 5], "row_group_size": 2}, ("", 5), ("", 5), True),
        ({"parents": [[5, 3], [7]], "lists": True}, ("", 3), ("", 7), True),
        ({"parents": [[], []], "lists": True}, None, None, True),
        ({"parents": [[5, 3], []], "inputs": "ba", "lists": True}, ("a", 3), ("b", 5), True),
        ({"parents": [[5], [3]], "inputs": "é𐀀", "lists": True}, ("é", 3), ("𐀀", 5), True),
    ],
)
def test_inputs_of_a_file(tmp_path, options, first, last, has_range):
    """The least and the greatest, whatever the row groups; none, where no row has one; not known,
    where its writer noted nothing.
    """
    (footer,) = read_footers([file_of(tmp_path / "a.parquet", **options)])
    assert (footer.first, footer.last, footer.has_range) == (first, last, has_range)


def test_a_column_of_longs_takes_eight_bytes_a_row(tmp_path):
    """However small the file is, and however wide the user's columns are."""
    file = file_of(tmp_path / "a.parquet", [7] * 1000)
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
    """Where they share an input each root has one delta; else there is one of each file."""
    files = []
    for number, ends in enumerate(parents):
        columns = {"_ackledger_root": [5, 6, 7, 8], "_ackledger_parent": [*ends, *ends]}
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns), path)
        files.append(DataFile(str(path), 1, 4, 4 * number))
    footers = read_footers(files)
    size = sum(footer.bytes for footer in footers)
    assert memory_of(footers, by_input=by_input) == size + DELTA_BYTES * deltas


def test_a_row_group_without_statistics_beside_one_that_has_them(tmp_path):
    """What one group does not say is not known of the file."""
    path = tmp_path / "a.parquet"
    table = pa.table({"_ackledger_root": [1], "_ackledger_parent": pa.array([5], BIGINT)})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table.slice(0, 0))  # a group of no rows says enough
    file = DataFile(str(path), 1, 1, 0)
    groups = pq.read_metadata(path)
    assert groups.num_row_groups == 2
    (footer,) = read_footers([file])
    assert (footer.first, footer.last, footer.has_range) == (("", 5), ("", 5), True)
    silent = tmp_path / "b.parquet"
    pq.write_table(table, silent, write_statistics=False)
    other = pq.read_metadata(silent).row_group(0)
    metadata = SimpleNamespace(num_row_groups=2, row_group=[groups.row_group(0), other].__getitem__)
    assert not footer_of(file, metadata).has_range


ranges = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)


@given(st.lists(ranges | st.none(), max_size=8))
def test_files_that_share_an_input_are_together(drawn):
    """Files whose ranges have a number in common, be it by way of a third, are in one group; each
    file is in one place.
    """
    footers = [
        Footer(DataFile(str(n), 1, 1, n), 1)
        if span is None
        else Footer(DataFile(str(n), 1, 1, n), 1, ("", span[0]), ("", span[1]))
        for n, span in enumerate(drawn)
    ]
    alone, groups = sharing(footers)
    places = [*([int(file.path)] for file in alone), *([int(f.path) for f in g] for g in groups)]
    assert sorted(n for place in places for n in place) == list(range(len(drawn)))
    inputs = [set() if span is None else set(range(span[0], span[1] + 1)) for span in drawn]
    for place in places:
        others = [n for other in places if other is not place for n in other]
        assert not any(inputs[n] & inputs[m] for n in place for m in others)
    assert all(len(group) > 1 for group in groups)


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_whose_inputs_are_not_known_may_share_one_with_any(count):
    """One alone shares none."""
    footers = [Footer(DataFile(str(n), 1, 1, n), 1, ("", n), ("", n)) for n in range(count - 1)]
    footers.append(Footer(DataFile("unknown", 1, 1, 0), 1, has_range=False))
    alone, groups = sharing(footers)
    assert (len(alone), [len(group) for group in groups]) == ((1, []) if count == 1 else (0, [3]))
