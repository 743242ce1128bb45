"""Which files may have rows of one input, by their footers alone."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.deltas.footers import Footer, read_footers, sharing
from ledger.storage.manifest import DataFile

BIGINT, TEXT = pa.int64(), pa.string()


def file_of(path, parents, inputs=None, lists=False, **options):
    """A file of rows with these parents."""
    if lists:
        anchor = pa.struct([("root", BIGINT), ("parent", BIGINT)])
        anchors = [[{"root": 1, "parent": parent} for parent in row] for row in parents]
        columns = {"_ackledger_anchors": pa.array(anchors, pa.list_(anchor))}
    else:
        roots = pa.array([None if parent is None else 1 for parent in parents], BIGINT)
        columns = {"_ackledger_root": roots, "_ackledger_parent": pa.array(parents, BIGINT)}
    if inputs is not None:
        columns["_ackledger_input"] = pa.array(inputs, TEXT)
    table = pa.table({**columns, "text": ["x" * 1000] * len(parents)})
    pq.write_table(table, path, **options)
    return DataFile(str(path), path.stat().st_size, len(parents), 0)


@pytest.mark.parametrize(
    ("options", "first", "last", "known"),
    [
        ({"parents": [5, 3, 9]}, ("", 3), ("", 9), True),
        ({"parents": [5, 3, 9, 1], "row_group_size": 1}, ("", 1), ("", 9), True),
        ({"parents": [5, None]}, ("", 5), ("", 5), True),
        ({"parents": [None, None]}, None, None, True),
        ({"parents": []}, None, None, True),
        ({"parents": [5, 3], "inputs": ["b", "a"]}, ("a", 3), ("b", 5), True),
        ({"parents": [5, 3], "write_statistics": False}, None, None, False),
        ({"parents": [[5, 3], [7]], "lists": True}, ("", 3), ("", 7), True),
    ],
)
def test_inputs_of_a_file(tmp_path, options, first, last, known):
    """The least and the greatest, whatever the row groups; none, where no row has one; not known,
    where its writer noted nothing.
    """
    (footer,) = read_footers([file_of(tmp_path / "a.parquet", **options)])
    assert (footer.first, footer.last, footer.known) == (first, last, known)


def test_a_column_of_longs_takes_eight_bytes_a_row(tmp_path):
    """However small the file is, and however wide the user's columns are."""
    file = file_of(tmp_path / "a.parquet", [7] * 1000)
    (footer,) = read_footers([file])
    assert footer.bytes == 2 * 8 * 1000
    assert file.bytes < footer.bytes


ranges = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)


@given(st.lists(ranges | st.none(), max_size=8))
def test_files_that_share_an_input_are_together(drawn):
    """Files whose ranges have a number in common, be it by way of a third, are in one group; each
    file is in one place.
    """
    footers = [
        Footer(DataFile(str(n), 1, 1, n), 1)
        if one is None
        else Footer(DataFile(str(n), 1, 1, n), 1, ("", one[0]), ("", one[1]))
        for n, one in enumerate(drawn)
    ]
    alone, groups = sharing(footers)
    places = [*([int(file.path)] for file in alone), *([int(f.path) for f in g] for g in groups)]
    assert sorted(n for place in places for n in place) == list(range(len(drawn)))
    inputs = [set() if one is None else set(range(one[0], one[1] + 1)) for one in drawn]
    for place in places:
        others = [n for other in places if other is not place for n in other]
        assert not any(inputs[n] & inputs[m] for n in place for m in others)
    assert all(len(group) > 1 for group in groups)


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_whose_inputs_are_not_known_may_share_one_with_any(count):
    """One alone shares none."""
    footers = [Footer(DataFile(str(n), 1, 1, n), 1, ("", n), ("", n)) for n in range(count - 1)]
    footers.append(Footer(DataFile("unknown", 1, 1, 0), 1, known=False))
    alone, groups = sharing(footers)
    assert (len(alone), [len(group) for group in groups]) == ((1, []) if count == 1 else (0, [3]))
