"""Sets of ids of an audit, against Python's sets."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from ledger.auditing import ids as record_ids
from ledger.auditing.sources import ID, ids_in

IDS = st.lists(st.integers(0, (1 << 63) - 1) | st.integers(0, 20)).map(
    lambda values: np.array(values, dtype=np.int64)
)


@given(IDS, IDS)
def test_sets_of_ids(left, right):
    """Ids in any order, and several times, give the sorted ids of the sets."""
    ours, theirs = set(left.tolist()), set(right.tolist())
    assert record_ids.distinct(left).tolist() == sorted(ours)
    assert record_ids.union([left, right]).tolist() == sorted(ours | theirs)
    assert record_ids.difference(left, right).tolist() == sorted(ours - theirs)
    assert record_ids.intersection(left, right).tolist() == sorted(ours & theirs)


@given(IDS)
def test_ids_by_source(ids):
    """Each id is that of one source, and stays in order."""
    parts = dict(record_ids.by_source(ids))
    assert sorted(parts) == list(parts)
    assert sum(map(len, parts.values())) == len(ids)
    for source, own in parts.items():
        first, end = record_ids.first_id(source), record_ids.first_id(source + 1)
        assert own.tolist() == [each for each in ids.tolist() if first <= each < end]


def test_ids_of_a_copy(tmp_path):
    """They are read from all of its files, whose number and row groups do not matter."""
    files = {
        "whole": [range(5), range(90, 100)],
        "gaps": [[1, 3], range(7, 9)],
        "none": [],
        "empty": [[]],
    }
    for name, groups in files.items():
        folder = tmp_path / name
        folder.mkdir()
        for at, values in enumerate(groups):
            table = pa.table({"c0": [[1]] * len(values), ID: pa.array(values, pa.int64())})
            pq.write_table(table, folder / f"{at}.parquet", row_group_size=4)
        expected = [each for values in groups for each in values]
        assert ids_in(folder, ID).tolist() == expected
