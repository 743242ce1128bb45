"""Where a run's deltas are folded, by what its files take in memory."""

from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas.edges import Edges
from ledger.deltas.footers import memory_of, read_footers
from ledger.deltas.portions import Records
from ledger.spark.folding.fold import _Fold, _plan
from ledger.storage.manifest import DataFile

COUNT = 500


def job(driver_bytes, few_rows=1000):
    """A job with these bounds."""
    return SimpleNamespace(driver_bytes=driver_bytes, few_rows=few_rows)


def fits(some_job, plans):
    """Whether the driver folds these portions of a run."""
    return _Fold(some_job, None, None, plans).fits_here


@pytest.fixture
def records(tmp_path):
    """Few records that did not parse, with long texts."""
    path, random = tmp_path / "a.parquet", Random(7)
    texts = ["".join(random.choices("abcdefghijklmnop", k=5000)) for _ in range(COUNT)]
    columns = {"_ackledger_error": ["bad"] * COUNT, "_ackledger_raw": texts}
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    file = DataFile(str(path), path.stat().st_size, COUNT, 0)
    return Records([file], 1, COUNT, Edges(1, "source", ["x"], {}))


def test_few_records_with_long_texts_do_not_fit(records):
    """Their number says nothing of their size."""
    small, large = (job(size) for size in (1 << 21, 1 << 22))
    assert not fits(small, [_plan(small, records)])
    assert fits(large, [_plan(large, records)])


def test_portions_fit_together_or_not_at_all(records):
    """Each by itself would fit."""
    size = memory_of(read_footers(records.files), by_input=False)
    wide = job(2 * size, few_rows=-1)
    plans = [_plan(wide, records), _plan(wide, records)]
    assert fits(wide, plans)
    narrow = job(2 * size - 1, few_rows=-1)
    assert fits(narrow, plans[:1])
    assert not fits(narrow, plans)
