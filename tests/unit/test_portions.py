"""A run's files as the kernel takes them: null roots, lists of anchors, several
inputs, marks.
"""

import struct
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.column_names import PREFIX
from ledger.deltas import kernel, portions
from ledger.deltas import stored as module
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import fold_emitted, fold_output, fold_read, order_of
from ledger.deltas.rows import Rows
from ledger.deltas.stored import Checksum, read_windows
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import read_row_group
from tests.support.oracle import INPUTS, Oracle, anchor, as_dict, fails_of, joined, marks

BIGINT, TEXT, FLAG = pa.int64(), pa.string(), pa.bool_()
KEYS = ("_ackledger_root", "_ackledger_parent", "_ackledger_input")


@st.composite
def tables(draw):
    """How many inputs there are, whether rows have lists of anchors, and rows: position,
    anchors, why it failed or was dropped.
    """
    inputs, lists = draw(st.integers(1, 2)), draw(st.booleans())
    own = anchor.map(lambda row: (row[0], row[1] % inputs, row[2]))
    rows = draw(st.lists(st.tuples(st.lists(own, max_size=3 if lists else 1), marks), max_size=20))
    return inputs, lists, [(p, a, *m) for p, (a, m) in enumerate(rows)]


def edges_of(inputs):
    """Edges to two consumers."""
    inputs_ = dict(list(INPUTS.items())[:inputs])
    return Edges(7, "step", ["c0", "c1"], inputs_)


def marked(rows):
    """Marks, as columns."""
    columns = list(zip(*rows, strict=True)) or [()] * 4
    return {
        "_failed": pa.array(columns[2], TEXT),
        "_dropped": pa.array(columns[3], TEXT),
    }


def named(anchor_, inputs):
    """An anchor with its input's name, as it is stored."""
    root, number, parent = anchor_
    return (root, parent, *([list(INPUTS)[number]] if inputs == 2 else []))


def stored(rows, inputs, lists):
    """Rows as a run stores them: anchors flat, null for none, or as lists."""
    names, kinds = KEYS[: 1 + inputs], (BIGINT, BIGINT, TEXT)[: 1 + inputs]
    if lists:
        kind_ = pa.struct(
            [(name.removeprefix(PREFIX), kind) for name, kind in zip(names, kinds, strict=True)]
        )
        fields = [name.removeprefix(PREFIX) for name in names]
        keys = [
            [
                dict(zip(fields, each, strict=True))
                for each in sorted(named(a, inputs) for a in row[1])
            ]
            for row in rows
        ]
        return pa.table({"_ackledger_anchors": pa.array(keys, pa.list_(kind_)), **marked(rows)})
    nothing = (None,) * len(names)
    keys = [named(row[1][0], inputs) if row[1] else nothing for row in rows]
    columns = {
        name: pa.array([key[place] for key in keys], kinds[place])
        for place, name in enumerate(names)
    }
    return pa.table({**columns, **marked(rows)})


def exploded(rows, inputs, lists):
    """Rows on their way from their files: one for each anchor."""
    exploded_rows, flags = [], []
    for row in rows:
        roots, seen = {root for root, _, _ in row[1]}, set()
        for anchor_ in sorted(row[1], key=lambda anchor_: named(anchor_, inputs)):
            exploded_rows.append((row[0], [anchor_], *row[2:]))
            flags.append((anchor_[0] not in seen, len(roots) > 1))
            seen.add(anchor_[0])
    table = stored(exploded_rows, inputs, lists=False)
    table = table.append_column(
        "_ackledger_position", pa.array([row[0] for row in exploded_rows], BIGINT)
    )
    for place, name in enumerate(("_ackledger_first", "_ackledger_shared") if lists else ()):
        table = table.append_column(name, pa.array([flag[place] for flag in flags], FLAG))
    return table


def written(parts, inputs, lists):
    """The rows of each part as a file."""
    files, fs = [], MemoryFileSystem()
    for number, rows in enumerate(parts):
        path = f"memory://portions/{number}.parquet"
        with fs.open(path, "wb") as stream:
            pq.write_table(stored(rows, inputs, lists), stream)
        first = rows[0][0] if rows else 0
        files.append(DataFile(path, fs.size(path), len(rows), first))
    return files


def expected(rows, edges, acks):
    """What the rows' deltas are. ``acks``: whether their inputs are acked."""
    oracle = Oracle(edges)
    for row in rows:
        oracle.emit(*row)
    if acks:
        oracle.ack_emitted()
    return oracle


def witnessed(rows, inputs):
    """Rows, and XOR and sum of Spark's ``xxhash64`` of what they come from, by another library."""
    mixed, summed = 0, 0
    for row in rows:
        seed = 42
        for anchor_ in sorted(named(anchor_, inputs) for anchor_ in row[1]):
            for value in anchor_:
                data = value.encode() if isinstance(value, str) else struct.pack("<q", value)
                seed = xxhash.xxh64_intdigest(data, seed=seed)
        mixed ^= seed
        summed += seed & 0x7FFFFFFF
    return Checksum(len(rows), mixed - (1 << 64) if mixed >> 63 else mixed, summed)


@contextmanager
def windows_of(rows):
    """So few rows of a file are read at a time."""
    before, module.WINDOW_ROWS = module.WINDOW_ROWS, rows
    try:
        yield
    finally:
        module.WINDOW_ROWS = before


def united(parts):
    """What all parts add."""
    nothing = Rows(*(np.array([], np.int64) for _ in range(3)))
    return joined([portions.Folded(fold_read(nothing, edges_of(1))), *parts])


def require(folded, rows, oracle, inputs, *, emits_one=False):
    """What was folded is what plain Python makes of the rows."""
    assert as_dict(folded.deltas) == oracle.deltas()
    assert folded.deltas.drops == oracle.drops()
    assert folded.deltas.with_rows == len(oracle.by_input)
    assert fails_of(folded.deltas) == {**oracle.repeated(emits_one), **oracle.fails}
    assert folded.wrote == witnessed(rows, inputs)


@pytest.mark.parametrize("fold", [fold_emitted, fold_output], ids=["on emit", "on read"])
@settings(max_examples=100)
@given(tables(), st.integers(0, 20), st.integers(1, 9), st.booleans())
def test_files_of_an_output(fold, drawn, cut, window, emits_one):
    """Files are folded, in parts of whatever size, and rows on their way from them, to what plain
    Python makes of the rows; the files' rows are those that Spark has witnessed. Rows without a
    root are counted and no more.
    """
    inputs, lists, rows = drawn
    edges = edges_of(inputs)
    files = written([rows[:cut], rows[cut:]], inputs, lists)
    emits_one = emits_one and not lists  # what a whole stage may not ask for
    output = portions.Output(files, partial(fold, emits_one=emits_one), edges, len(rows))
    oracle = expected(rows, edges, fold is fold_emitted)
    with windows_of(window):
        require(united(output.fold_together(files)), rows, oracle, inputs, emits_one=emits_one)
    on_their_way = output.fold_table(exploded(rows, inputs, lists))
    wrote = united(output.fold_together(files)).wrote
    require(replace(on_their_way, wrote=wrote), rows, oracle, inputs, emits_one=emits_one)


@pytest.mark.parametrize("lists", [False, True])
def test_siblings_do_not_cancel_in_what_was_seen(lists):
    """A file that was stored twice in place of another is seen, also where each input has two rows,
    whose hashes are equal.
    """
    pairs = [
        [(2 * n + place, [(root, 0, root)], None, None, None) for n in (0, 1) for place in (0, 1)]
        for root in (1, 2)
    ]
    first, second = (written([rows], 1, lists)[0] for rows in pairs)
    assert witnessed(pairs[0], 1).xor == witnessed(pairs[1], 1).xor == 0
    output = portions.Output([first, second], fold_emitted, edges_of(1), 8)
    for files in ([first, first], [second, second]):
        assert united(output.fold_together(files)).wrote != witnessed([*pairs[0], *pairs[1]], 1)


@settings(max_examples=100)
@given(tables())
def test_files_without_an_input_in_common(drawn):
    """Folded one by one they are what all of them are."""
    inputs, lists, rows = drawn
    low = [row for row in rows if all(parent < 7 for _, _, parent in row[1])]
    high = [row for row in rows if row[1] and all(parent >= 7 for _, _, parent in row[1])]
    edges = edges_of(inputs)
    ordered = [(place, *row[1:]) for place, row in enumerate([*low, *high])]
    files = written([ordered[: len(low)], ordered[len(low) :]], inputs, lists)
    output = portions.Output(files, fold_emitted, edges, len(rows))
    whole = united(output.fold_together(files))
    parts = united([*output.fold_together(files[:1]), *output.fold_together(files[1:])])
    assert as_dict(parts.deltas) == as_dict(whole.deltas)
    assert fails_of(parts.deltas) == fails_of(whole.deltas)
    assert (parts.deltas.drops, parts.deltas.with_rows) == (
        whole.deltas.drops, whole.deltas.with_rows
    )  # fmt: skip
    assert parts.wrote == whole.wrote


@settings(max_examples=200)
@given(tables(), st.integers(1, 9), st.integers(0, 20))
def test_rows_of_an_input_that_were_read(drawn, window, cut):
    """Each root of each row that goes on is acked, by the row's position, in whatever order, and in
    however many files and windows, they lie.
    """
    inputs, lists, rows = drawn
    edges = edges_of(2)
    files = written([rows[:cut], rows[cut:]], inputs, lists)
    oracle = Oracle(edges)
    for position, anchors, failed, dropped in rows:
        if failed is None and dropped is None:
            for root in {root for root, _, _ in anchors}:
                oracle.ack(root, 1, position)
    reading = portions.Reading(files, edges, len(rows), number=1)
    with windows_of(window):
        result = united(folded for file in files for folded in reading.fold_file(file))
    assert as_dict(result.deltas) == oracle.deltas()
    assert result.deltas.with_rows == 0


def test_parts_are_united_at_once(monkeypatch):
    """Each delta of a thousand parts is sorted once, and not with each part that follows."""
    rows = [Rows(*(np.array([n % 7, n]) for _ in range(3))) for n in range(1000)]
    parts = [fold_read(row, edges_of(1)) for row in rows]
    sizes = []

    def noted(keys):
        sizes.append(len(keys[0]))
        return order_of(keys)

    monkeypatch.setattr(kernel, "order_of", noted)
    deltas = kernel.merge_deltas(parts)
    assert sizes == [sum(len(part.root) for part in parts)]
    assert as_dict(deltas) == as_dict(fold_read(Rows.joined(rows), edges_of(1)))


@pytest.mark.parametrize("window", [1, 3, 100])
def test_records_of_a_snapshot_that_were_read(window):
    """Of a source's snapshot the first records are acked that have a root and did parse."""
    path = "memory://portions/snapshot.parquet"
    with MemoryFileSystem().open(path, "wb") as stream:
        errors = pa.array([None, "b", None, None, None], TEXT)
        pq.write_table(pa.table({"_ackledger_error": errors}), stream)
    edges, oracle = edges_of(1), Oracle(edges_of(1))
    files = [DataFile(path, 1, 5, 10)]
    reading = portions.Reading(files, edges, 5, roots=range(100, 114))
    for position in (10, 12, 13):
        oracle.ack(100 + position, 0, position)
    with windows_of(window):
        assert as_dict(united(reading.fold_file(files[0])).deltas) == oracle.deltas()


def test_rows_as_a_frame_has_them():
    """Each is acked, one that was read twice as often as that."""
    edges, oracle = edges_of(1), Oracle(edges_of(1))
    read = [(3, 7), (1, 5), (3, 7), (3, 6), (3, 7)]
    for root, parent in read:
        oracle.ack(root, 0, parent)
    table = pa.table({name: [row[n] for row in read] for n, name in enumerate(KEYS[:2])})
    result = portions.fold_rows_read(table, edges)
    assert as_dict(result.deltas) == {
        root: (values[0], values[1], 0, values[3])
        for root, values in ((root, oracle.deltas()[root]) for root in (1, 3))
    }
    assert result.deltas.acked_edges.sum() == len(read)


@pytest.mark.parametrize(("roots", "emitted"), [(9, [100, 101, 102, 103]), (3, [100, 101, 102])])
def test_records_that_were_emitted(roots, emitted):
    """Records are counted as they are read, whatever their file was said to hold; those past the
    last root are no more than counted. Window by window they come to the same.
    """
    path = "memory://portions/records.parquet"
    with MemoryFileSystem().open(path, "wb") as stream:
        data = {
            "_ackledger_error": pa.array([None, "b", None, "a"], TEXT),
            "_ackledger_raw": ["1", "x", "3", "y"],
        }
        pq.write_table(pa.table(data), stream)
    records = portions.Records([DataFile(path, 1, 9, 0)], 100, roots, edges_of(0))
    (result,) = records.fold_file(records.files[0])
    assert (result.wrote.rows, result.deltas.root.tolist()) == (4, emitted)
    assert result.deltas.with_rows == len(emitted)
    failed = {101: (False, "b"), 103: (False, "a")}
    assert fails_of(result.deltas) == {root: failed[root] for root in emitted if root in failed}
    with windows_of(3):
        parts = list(records.fold_file(records.files[0]))
    assert [part.wrote.rows for part in parts] == [3, 1]
    together = kernel.merge_deltas([part.deltas for part in parts])
    assert as_dict(together) == as_dict(result.deltas)
    assert fails_of(together) == fails_of(result.deltas)


def test_raw_text_is_read_by_row_group(tmp_path, monkeypatch):
    """Of groups in which records failed, one at a time, and of those records alone; of none where
    it is not to be kept."""
    path, read = tmp_path / "malformed.parquet", []
    errors = [n in (1, 6, 7, 11) for n in range(12)]
    data = {
        "_ackledger_error": pa.array(["bad" if bad else None for bad in errors], TEXT),
        "_ackledger_raw": [f"raw {n}" for n in range(12)],
    }
    pq.write_table(pa.table(data), path, row_group_size=3)

    def noted(stored, group, names):
        read.append(group)
        return read_row_group(stored, group, names)

    monkeypatch.setattr(portions, "read_row_group", noted)
    records = portions.Records([DataFile(str(path), 1, 12, 1000)], 100, 1010, edges_of(0))
    (folded,) = records.fold_file(records.files[0])
    (fails,) = folded.deltas.fails
    assert (fails.root.tolist(), fails.details) == ([1101, 1106, 1107], ["raw 1", "raw 6", "raw 7"])
    assert read == [0, 2]
    (folded,) = replace(records, keeps_text=False).fold_file(records.files[0])
    assert (folded.deltas.fails[0].details, read) == (None, [0, 2])
    read.clear()
    with windows_of(4):  # which begin within a group, and end within one
        parts = [folded.deltas for folded in records.fold_file(records.files[0])]
    failed = [(fails.root.tolist(), fails.details) for part in parts for fails in part.fails]
    assert failed == [([1101], ["raw 1"]), ([1106, 1107], ["raw 6", "raw 7"])]
    assert read == [0, 2]


def test_a_file_of_rows_that_are_acked_by_themselves_is_never_gathered(monkeypatch):
    """An executor folds a window before it reads the next, in whatever order its rows lie, and
    however large the file is. So it does the records of a source.
    """
    rows = [(n, [(11 - n, 0, n)], None, None, None) for n in range(12)]
    (file,) = written([rows], 1, lists=False)
    oracle, read = Oracle(edges_of(1)), []
    for n in range(12):
        oracle.ack(11 - n, 0, n)

    def noted(*arguments):
        read.clear()
        for window in read_windows(*arguments):
            read.append(window)
            yield window

    monkeypatch.setattr(portions, "read_windows", noted)
    reading = portions.Reading([file], edges_of(1), len(rows))
    with windows_of(2):
        parts = [(len(read), part.deltas) for part in reading.fold_file(file)]
    assert [many for many, _ in parts] == [1, 2, 3, 4, 5, 6]
    assert as_dict(kernel.merge_deltas([deltas for _, deltas in parts])) == oracle.deltas()
    records = portions.Records([file], 1, len(rows), edges_of(0))
    with windows_of(2):
        assert [len(read) for _ in records.fold_file(file)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("sampled", [1, 1_000])
@pytest.mark.parametrize("window", [1, 3, 7, 40])
def test_all_rows_of_a_root_are_folded_together(window, sampled, monkeypatch):
    """In parts of about a window, of whatever files, in whatever order their rows lie, however few
    roots the parts are cut by; rows without a root are counted.
    """
    monkeypatch.setattr(module, "SAMPLED", sampled)
    root = np.random.default_rng(3).integers(-5, 5, 40)
    rows = [(n, [(int(some), 0, n)], None, None, None) for n, some in enumerate(root)]
    untracked = [(n, [], None, None, None) for n in range(40, 45)]
    files = written([rows[:15], rows[15:], untracked], 1, lists=False)
    output = portions.Output(files, fold_emitted, edges_of(1), 45)
    with windows_of(window):
        parts = list(output.fold_together(files))
    assert sum(part.wrote.rows for part in parts) == 45
    posted = [some for part in parts for some in part.deltas.root.tolist()]
    assert sorted(posted) == sorted(set(root.tolist()))
    most = max(int(part.deltas.acked_edges.sum()) for part in parts)
    assert (most == 40) == (window == 40)
    assert len(parts) <= -(-40 // window)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_part_has_only_the_reasons_of_its_rows(ordered):
    """Not those of all rows of the output, of which each may have its own."""
    root = np.arange(40) if ordered else np.random.default_rng(3).permutation(40)
    rows = [(n, [(int(some), 0, n)], f"reason {some}", None, None) for n, some in enumerate(root)]
    files = written([rows[:15], rows[15:]], 1, lists=False)
    output = portions.Output(files, fold_emitted, edges_of(1), 40)
    with windows_of(4):
        parts = [folded.deltas for folded in output.fold_together(files)]
    assert len(parts) == 10
    for part in parts:
        (fails,) = part.fails
        assert sorted(fails.words) == sorted(f"reason {some}" for some in part.root.tolist())


@given(st.lists(st.tuples(st.integers(1, 50), marks), max_size=30), st.sets(st.integers(0, 40)))
@settings(deadline=None)
def test_rows_that_passed_a_plan(rows, absent):
    """Each row that its input passes on, and that arrived, is acked and emitted at its own
    position; the checksum is that of Spark's witness over root and position.
    """
    own = [(place, [(root, 0, 0)], *marked_) for place, (root, marked_) in enumerate(rows)]
    half = len(own) // 2
    files = written([own[:half], own[half:]], 1, lists=False)
    absent_ = np.array(sorted(absent), np.int64)
    portion = portions.PassedOn(files, edges_of(1), len(own), absent=absent_)
    passed = [(a[0][0], place) for place, a, *m in own if m == [None, None]]
    there = np.array([row for row in passed if row[1] not in absent], np.int64).reshape(-1, 2)
    root, position = there[:, 0].copy(), there[:, 1].copy()
    expected = fold_emitted(Rows(root, position, position), edges_of(1))
    whole = [folded for file in files for folded in portion.fold_file(file)]
    deltas = kernel.merge_deltas([folded.deltas for folded in whole] or [expected])
    assert as_dict(deltas) == as_dict(expected)
    names = ("_ackledger_root", "_ackledger_parent")
    table = pa.table([pa.array(root), pa.array(position)], names=names)
    assert sum((folded.wrote for folded in whole), Checksum()) == module.checksum(table)
