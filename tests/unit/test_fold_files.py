"""What tasks leave as files, and the driver reads of them."""

import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas import fold_files, fold_tasks
from ledger.deltas.edges import Edges
from ledger.deltas.fold_files import FoldWriter, remove_posted
from ledger.deltas.kernel import Deltas, DeltaTotals, Fails, Messages, fold_emitted, merge_deltas
from ledger.deltas.portions import Folded, Output
from ledger.deltas.root_files import read_roots
from ledger.deltas.spans import RootRange, Spans
from ledger.deltas.stored import Checksum
from ledger.storage.manifest import DataFile
from tests.support.places import ROOT

BY_ROOT, BY_SPAN = Spans(), Spans([RootRange(4096, 100, 4)])


def folded(first, last):
    """Roots from the first up to the last, the second of which fails, as a fold has them."""
    root = np.arange(first, last)
    texts = [f"text\n{first}\0"]
    fails = Fails(root[1:2], np.zeros(1, np.int32), np.array([True]), ("bad",), texts)
    messages = Messages(root, root + 7)
    deltas = Deltas(
        root, root * 31, root * 7, root % 5, root % 3, [fails], {"why": 2}, 3, [messages]
    )
    return Folded(deltas, Checksum(len(root), 5, 6))


PARTS = [folded(4096, 4110), folded(4100, 4120)]  # some roots are in both
ROOTS = merge_deltas([part.deltas for part in PARTS])


def same(some, other):
    """Whether both have the same deltas."""
    return all(map(np.array_equal, some.columns, other.columns))


def read(file):
    """The deltas of a file, one a root."""
    return merge_deltas(list(read_roots([file])))


@pytest.mark.parametrize("most", [1, 8, 1000])
@pytest.mark.parametrize("spans", [BY_ROOT, BY_SPAN], ids=["root", "span"])
def test_the_driver_reads_what_a_task_folded(tmp_path, spans, most):
    """The rows to post by span, those by root, fails with their texts, messages, and the sums."""
    report = FoldWriter(f"{tmp_path}/run=1", spans, most).write(iter(PARTS))
    posted = sum((DeltaTotals.of(part.deltas) for part in PARTS), DeltaTotals())
    assert (report.posted, report.drops) == (posted, {"why": 4})
    assert (report.wrote, report.with_rows) == (Checksum(34, 0, 12), 6)
    files = report.files
    assert same(merge_deltas(list(files.read_rows())), spans.to_spans(ROOTS))
    assert (files.roots is None) == spans.by_root
    assert spans.by_root or same(read(files.roots), ROOTS)
    fails = list(files.read_fails())
    assert [int(root) for some in fails for root in some.root] == [4097, 4101]
    assert [text for some in fails for text in some.details] == ["text\n4096\0", "text\n4100\0"]
    assert [some.words[code] for some in fails for code in some.reason] == ["bad", "bad"]
    assert all(some.shared.all() for some in fails)
    messages = list(files.read_messages())
    right = [(m.root + 7 == m.message).all() for m in messages]
    assert (sum(len(m.root) for m in messages), all(right)) == (34, True)
    remove_posted([files])
    lasting = [files.roots.path] if files.roots else []
    assert [str(path) for path in (tmp_path / "run=1").iterdir()] == lasting


def test_a_task_that_folds_nothing_leaves_nothing(tmp_path):
    """No file, and nothing to read."""
    files = FoldWriter(f"{tmp_path}", BY_SPAN, 10).write(iter(())).files
    assert (files.posted, files.roots, list(tmp_path.iterdir())) == ([], None, [])
    assert [*files.read_rows(), *files.read_fails(), *files.read_messages()] == []


def interrupted():
    """A fold that fails once it has folded something."""
    yield PARTS[0]
    raise ValueError("out of order")


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_fold_that_fails_leaves_nothing(tmp_path, in_memory):
    """What was written of it is removed."""
    writer = FoldWriter(f"{tmp_path}", BY_SPAN, 1, in_memory)
    with pytest.raises(ValueError, match="out of order"):
        writer.write(interrupted())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("most", [1, 1000])
def test_a_task_of_the_driver_keeps_what_is_posted(tmp_path, most):
    """What is added to each root lies in a file; the rest is in memory, by span."""
    writer = FoldWriter(f"{tmp_path}", BY_SPAN, most, in_memory=True)
    assert writer.write(iter(())).deltas == []
    report = writer.write(iter(PARTS))
    assert report.files.posted == []
    assert same(read(report.files.roots), ROOTS)
    deltas = merge_deltas(report.deltas)
    assert same(deltas, BY_SPAN.to_spans(ROOTS))
    assert deltas.fails == [fails for part in PARTS for fails in part.deltas.fails]
    assert deltas.messages == [some for part in PARTS for some in part.deltas.messages]
    assert (report.wrote, report.with_rows, report.drops) == (Checksum(34, 0, 12), 6, {"why": 4})


def test_no_try_of_a_task_writes_where_another_has(tmp_path):
    """Two at the same time each have files of their own."""
    writer = FoldWriter(f"{tmp_path}", BY_SPAN, 10)
    first, second = (writer.write(iter(PARTS)).files for _ in range(2))
    assert {*first.posted, first.roots.path}.isdisjoint({*second.posted, second.roots.path})
    assert len(list(tmp_path.iterdir())) == 8


ALONE = """
import pickle, sys
for name in ("psycopg2", "sqlalchemy", "pyspark"):
    sys.modules[name] = None
import pyarrow as pa
task = pickle.load(sys.stdin.buffer)
for batch in task(iter([pa.RecordBatch.from_pydict({"id": [0]})])):
    sys.stdout.buffer.write(batch.column(0)[0].as_py())
"""


def test_a_task_needs_neither_a_database_nor_its_driver(tmp_path):
    """It folds a file where none can be imported."""
    path = tmp_path / "a.parquet"
    columns = {"_ackledger_root": [4096, 4097, 4097], "_ackledger_parent": [0, 1, 1]}
    pq.write_table(pa.table(columns), path)
    files = [DataFile(str(path), path.stat().st_size, 3, 0)]
    output = Output(
        files, partial(fold_emitted, emits_one=True), Edges(2, "step", ["x"], {"in": 1}), 3
    )
    writer = FoldWriter(f"{tmp_path}/run=2", BY_SPAN, 10)
    task = partial(fold_tasks.fold_files, output, writer, [files])
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        input=pickle.dumps(task),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    report = pickle.loads(done.stdout)
    assert (report.posted.emitted_edges, report.posted.acked_edges, report.with_rows) == (3, 2, 2)
    assert len(merge_deltas(list(report.files.read_rows())).root) == 1


def test_texts_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    """However many a task wrote at once."""
    monkeypatch.setattr(fold_files, "FAIL_ROWS", 2)
    root = np.arange(5)
    fails = Fails(root, np.zeros(5, np.int32), root > 9, ("bad",))
    nothing = np.empty(0, np.int64)
    part = Folded(Deltas(nothing, nothing, nothing, nothing, nothing, [fails]))
    files = FoldWriter(f"{tmp_path}", BY_ROOT, 10).write([part]).files
    assert [len(some.root) for some in files.read_fails()] == [2, 2, 1]
    assert [text for some in files.read_fails() for text in some.details] == [None] * 5
