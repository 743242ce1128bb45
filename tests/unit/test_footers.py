"""What files take in memory, by their footers alone."""

from io import BytesIO
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.deltas.footers import (
    DELTA_BYTES,
    footer_of,
    groups_by_input,
    memory_of,
    merge_ranges,
    overlapping_groups,
    read_footers,
)
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
def test_deltas_of_files_with_roots_in_common(parents, by_input, deltas):
    """Where they may share an input each root has one delta; else there is one of each file."""
    footers = [
        footer_of(written({"root": [5, 6, 7, 8], "parent": [*ends, *ends]})) for ends in parents
    ]
    size = sum(footer.bytes for footer in footers)
    assert memory_of(footers, by_input=by_input) == size + DELTA_BYTES * deltas


@pytest.mark.parametrize(
    ("columns", "options", "inputs"),
    [
        ({"parent": [5, 3, 9]}, {}, ((("", 3), ("", 9)),)),
        ({"parent": [5, 3, 9, 1]}, {"row_group_size": 1},
         tuple((("", n), ("", n)) for n in (1, 3, 5, 9))),
        ({"parent": [5, None]}, {}, ((("", 5), ("", 5)),)),
        ({"parent": [None, None]}, {}, ()),
        ({"parent": []}, {}, ()),
        ({"parent": [5, 3], "input": ["b", "a"]}, {}, ((("a", 3), ("b", 5)),)),
        ({"parent": [5, 3], "input": [None, None]}, {}, None),
        ({"parent": [5, 3]}, {"write_statistics": False}, None),
        ({"root": [5, 3]}, {}, None),
        ({"parent": [-(2**63), 2**63 - 1]}, {}, ((("", -(2**63)), ("", 2**63 - 1)),)),
        ({"parent": [None, None, 5]}, {"row_group_size": 2}, ((("", 5), ("", 5)),)),
        ({"anchors": [[{"parent": 5}, {"parent": 3}], [{"parent": 7}]]}, {},
         ((("", 3), ("", 7)),)),
        ({"anchors": [[{"parent": 5, "input": "é"}], [{"parent": 3, "input": "𐀀"}]]}, {},
         ((("é", 3), ("𐀀", 5)),)),
    ],
)  # fmt: skip
def test_inputs_of_a_file(columns, options, inputs):
    """The least and the greatest of each row group, where these do not meet; none, where no row has
    one; not known, where its writer noted nothing.
    """
    assert footer_of(written(columns, **options)).inputs == inputs


def test_files_that_may_share_an_input():
    """Those of different inputs, and those of none, share none; one that is not known may."""
    tables = [
        {"parent": [0, 9], "input": ["bought", "bought"]},
        {"parent": [0, 9], "input": ["sold", "sold"]},
        {"parent": [5], "input": ["sold"]},
        {"parent": [None]},
        {"root": [1]},
    ]
    footers = [footer_of(written(columns)) for columns in tables]
    grouped = groups_by_input(footers[:4])
    assert sorted(map(sorted, grouped)) == [[0], [1, 2], [3]]
    grouped = groups_by_input(footers)
    assert sorted(map(sorted, grouped)) == [[0, 1, 2, 4], [3]]


def test_a_row_group_without_statistics_beside_one_that_has_them():
    """What one group does not say is not known of the file; one of no rows says enough."""
    columns = {"root": [1, 2], "parent": [1, 2]}
    whole, silent = (written(columns, write_statistics=some).row_group(0) for some in (True, False))
    empty = SimpleNamespace(num_rows=0, num_columns=0)
    first, second = (
        footer_of(SimpleNamespace(num_row_groups=2, row_group=[whole, other].__getitem__))
        for other in (empty, silent)
    )
    assert (first.deltas, first.inputs) == (2, ((("", 1), ("", 2)),))
    assert (second.deltas, second.roots, second.inputs) == (4, None, None)


KINDS = {"root": BIGINT, "parent": BIGINT, "input": TEXT}


def written(columns, **options):
    """The metadata of a file of these columns."""
    file = BytesIO()
    arrays = {f"_ackledger_{name}": pa.array(values, KINDS.get(name))
              for name, values in columns.items()}  # fmt: skip
    pq.write_table(pa.table(arrays), file, **options)
    return pq.read_metadata(BytesIO(file.getvalue()))


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([[(0, 3)], [(4, 9)]], [[0], [1]]),
        ([[(0, 3)], [(3, 9)]], [[0, 1]]),
        ([[(0, 3), (8, 9)], [(4, 7)]], [[0], [1]]),
        ([[(0, 3), (8, 9)], [(4, 8)], [(20, 30)]], [[0, 1], [2]]),
        ([[(0, 100)], [(2, 5)], [(4, 6)], [(7, 8)], []], [[0, 1, 2, 3], [4]]),
        ([[(0, 5), (20, 21)], [(10, 11)], [(4, 6)], [(11, 20)]], [[0, 1, 2, 3]]),
        ([[(("a", 0), ("a", 9))], [(("b", 0), ("b", 9))], [(("a", 9), ("b", 0))]], [[0, 1, 2]]),
        ([[(("a", 0), ("a", 9))], [(("b", 0), ("b", 9))]], [[0], [1]]),
    ],
)
def test_files_whose_ranges_meet(ranges, groups):
    """Also by way of a third one, and at the border of a range."""
    assert sorted(map(sorted, overlapping_groups(ranges))) == groups


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=4), max_size=6))
def test_every_pair_that_meets_is_in_one_group(drawn):
    """And no two files that do not meet, be it by way of others."""
    files = [merge_ranges((first, first + many) for first, many in ranges) for ranges in drawn]
    sets = [{root for first, last in ranges for root in range(first, last + 1)} for ranges in files]
    groups = overlapping_groups(files)
    assert sorted(number for group in groups for number in group) == list(range(len(drawn)))
    for group in groups:
        others = [some for number, some in enumerate(sets) if number not in group]
        assert not any(sets[number] & other for number in group for other in others)
        reached = {group[0]}
        for _ in group:
            reached |= {n for n in group if any(sets[n] & sets[m] for m in reached)}
        assert reached == set(group)
