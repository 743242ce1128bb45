"""Where a run's deltas are folded, by what its files take in memory."""

from random import Random
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas.edges import Edges
from ledger.deltas.footers import memory_of, read_footers
from ledger.deltas.kernel import fold_emitted
from ledger.deltas.portions import Output, Reading, Records
from ledger.deltas.spans import RootRange, Spans
from ledger.spark.folding import runners
from ledger.spark.folding.fold import _Fold, _plan, fold_files
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


@pytest.fixture
def output(tmp_path):
    """An output of eight files, whose rows come from different inputs."""
    files = []
    for number in range(8):
        path = tmp_path / f"{number}.parquet"
        root = range(number * 10, number * 10 + number + 1)
        pq.write_table(pa.table({"_ackledger_root": root, "_ackledger_parent": root}), path)
        files.append(DataFile(str(path), path.stat().st_size, len(root), number * 10))
    return Output(files, fold_emitted, Edges(2, "step", ["x"], {"in": 1}), 80)


def test_a_task_folds_a_file_of_so_many_bytes(output, monkeypatch):
    """The number of its rows does not count."""
    executors = runners.Executors(None, Spans(), "")
    footers = read_footers(output.files)
    assert executors.apart(output, footers) == output.files
    monkeypatch.setattr(runners, "TASK_BYTES", footers[3].bytes)
    assert executors.apart(output, footers) == output.files[:4]


def test_the_driver_writes_one_file_of_roots_for_many_files(output, tmp_path):
    """Of rows that were read, of records, and of an output."""
    records = Records(output.files, 0, 80, output.edges, keeps_text=False)
    for portion in (Reading(output.files, output.edges, 80), records, output):
        folder = tmp_path / type(portion).__name__
        threads = runners.Threads(Spans([RootRange(0, 128, 8)]), str(folder))
        (report,), _ = fold_files(threads, portion, read_footers(output.files))
        assert len(list(folder.iterdir())) == 1
        assert report.files.roots.rows == 36
