"""A run's files as the kernel takes them: null roots, lists of anchors, rows carried over,
several inputs, marks.
"""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.column_names import PREFIX
from ledger.core.redaction import Redaction
from ledger.deltas.edges import Edges
from ledger.deltas.portions import OnEmit, OnRead, Output, Reading, Records
from ledger.deltas.stored import Written
from ledger.storage.manifest import DataFile
from tests.support.oracle import INPUTS, Oracle, anchor, as_dict, fails_of, marks

BIGINT, TEXT, FLAG = pa.int64(), pa.string(), pa.bool_()
KEYS = ("_ackledger_root", "_ackledger_parent", "_ackledger_input")


@st.composite
def tables(draw):
    """How many inputs there are, whether rows have lists of anchors, and rows: position,
    anchors, why it failed or was dropped, and which root of an earlier batch it is of.
    """
    inputs, lists = draw(st.integers(1, 2)), draw(st.booleans())
    own = anchor.map(lambda one: (one[0], one[1] % inputs, one[2]))
    fresh = st.tuples(st.lists(own, max_size=3 if lists else 1), marks, st.none())
    carried = st.tuples(st.lists(own, min_size=1, max_size=1), st.just((None, None)), st.just(3))
    rows = draw(st.lists(fresh if lists else fresh | carried, max_size=20))
    return inputs, lists, [(p, a, *m, c) for p, (a, m, c) in enumerate(rows)]


def edges_of(inputs):
    """Edges to two consumers."""
    given = dict(list(INPUTS.items())[:inputs])
    return Edges(7, "step", ["c0", "c1"], given)


def marked(rows):
    """Position, marks and what is carried, as columns."""
    columns = list(zip(*rows, strict=True)) or [()] * 5
    return {
        "_failed": pa.array(columns[2], TEXT),
        "_dropped": pa.array(columns[3], TEXT),
        "_ackledger_carried": pa.array(columns[4], BIGINT),
    }


def named(one, inputs):
    """An anchor with its input's name, as it is stored."""
    root, number, parent = one
    return (root, parent, *([list(INPUTS)[number]] if inputs == 2 else []))


def stored(rows, inputs, lists):
    """Rows as a run stores them: anchors flat, null for none, or as lists. Of what is carried
    over only the root is known.
    """
    names, kinds = KEYS[: 1 + inputs], (BIGINT, BIGINT, TEXT)[: 1 + inputs]
    if lists:
        one = pa.struct(
            [(name.removeprefix(PREFIX), kind) for name, kind in zip(names, kinds, strict=True)]
        )
        fields = [name.removeprefix(PREFIX) for name in names]
        given = [
            [
                dict(zip(fields, each, strict=True))
                for each in sorted(named(a, inputs) for a in row[1])
            ]
            for row in rows
        ]
        return pa.table({"_ackledger_anchors": pa.array(given, pa.list_(one)), **marked(rows)})
    nothing = (None,) * len(names)
    given = [named(row[1][0], inputs) if row[1] else nothing for row in rows]
    given = [
        (one[0], *nothing[1:]) if row[4] is not None else one
        for one, row in zip(given, rows, strict=True)
    ]
    columns = {
        name: pa.array([one[place] for one in given], kinds[place])
        for place, name in enumerate(names)
    }
    return pa.table({**columns, **marked(rows)})


def exploded(rows, inputs, lists):
    """Rows on their way from their files: one for each anchor."""
    found, flags = [], []
    for row in rows:
        roots, given = {root for root, _, _ in row[1]}, set()
        for one in sorted(row[1], key=lambda one: named(one, inputs)):
            found.append((row[0], [one], *row[2:]))
            flags.append((one[0] not in given, len(roots) > 1))
            given.add(one[0])
    table = stored(found, inputs, lists=False)
    table = table.append_column("_ackledger_position", pa.array([row[0] for row in found], BIGINT))
    for place, name in enumerate(("_ackledger_first", "_ackledger_shared") if lists else ()):
        table = table.append_column(name, pa.array([one[place] for one in flags], FLAG))
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
    """What the rows' deltas are."""
    oracle = Oracle(edges)
    for position, anchors, failed, dropped, carried in rows:
        if carried is None:
            oracle.emit(position, anchors, failed, dropped)
    if not acks.by_reading:
        oracle.ack_emitted()
    emitted = Oracle(edges)
    for position, anchors, _, _, carried in rows:
        if carried is not None:
            emitted.emit(position, anchors, None, None)
    for root in emitted.seen:
        oracle.seen.add(root)
        oracle.emitted[root] ^= emitted.emitted[root]
        oracle.out[root] += emitted.out[root]
    return oracle


def identity(rows, inputs, lists):
    """The XOR of Spark's ``xxhash64`` of what the rows come from, by another library."""
    found = 0
    for row in rows:
        seed = 42
        for one in sorted(named(one, inputs) for one in row[1]):
            for value in one[:1] if row[4] is not None else one:
                data = value.encode() if isinstance(value, str) else struct.pack("<q", value)
                seed = xxhash.xxh64_intdigest(data, seed=seed)
        found ^= seed
    return found - (1 << 64) if found >> 63 else found


@pytest.mark.parametrize("acks", [OnEmit(), OnRead()], ids=["on emit", "on read"])
@settings(max_examples=100, deadline=None)
@given(tables(), st.integers(0, 20))
def test_files_of_an_output(acks, drawn, cut):
    """Files are folded, and rows on their way from them, to what plain Python makes of the rows;
    the files' rows are those that Spark has witnessed. Rows without a root are counted and no
    more; rows that are carried over are emitted.
    """
    inputs, lists, rows = drawn
    edges = edges_of(inputs)
    files = written([rows[:cut], rows[cut:]], inputs, lists)
    output = Output(files, Written(tuple(edges.inputs)), acks, edges, len(rows))
    oracle = expected(rows, edges, acks)
    found = output.fold(files)
    assert (found.wrote.rows, found.wrote.xor) == (len(rows), identity(rows, inputs, lists))
    for folded in (found, output.fold_table(exploded(rows, inputs, lists))):
        assert as_dict(folded.deltas) == oracle.deltas()
        assert folded.deltas.drops == oracle.drops()
        assert folded.deltas.with_rows == len(oracle.by_input)
        assert fails_of(folded.deltas) == oracle.fails


@settings(max_examples=100, deadline=None)
@given(tables())
def test_files_without_an_input_in_common(drawn):
    """Folded one by one they are what all of them are."""
    inputs, lists, rows = drawn
    low = [row for row in rows if all(parent < 7 for _, _, parent in row[1])]
    high = [row for row in rows if row[1] and all(parent >= 7 for _, _, parent in row[1])]
    edges = edges_of(inputs)
    kept = [(place, *row[1:]) for place, row in enumerate([*low, *high])]
    files = written([kept[: len(low)], kept[len(low) :]], inputs, lists)
    output = Output(files, Written(tuple(edges.inputs)), OnEmit(), edges, len(rows))
    whole, parts = output.fold(files), output.fold(files[:1]) + output.fold(files[1:])
    assert as_dict(parts.deltas) == as_dict(whole.deltas)
    assert fails_of(parts.deltas) == fails_of(whole.deltas)
    assert (parts.deltas.drops, parts.deltas.with_rows) == (
        whole.deltas.drops, whole.deltas.with_rows
    )  # fmt: skip
    assert parts.wrote == whole.wrote


@given(st.lists(st.tuples(anchor, st.sampled_from([None, 3])), max_size=20, unique=True))
def test_rows_that_were_read(drawn):
    """Each is acked, in whatever order, and those are counted that were carried over."""
    edges = edges_of(2)
    rows = [(place, [one], None, None, carried) for place, (one, carried) in enumerate(drawn)]
    oracle = Oracle(edges)
    for _, [one], _, _, _ in rows:
        oracle.ack(*one)
    whole = stored([(*row[:4], None) for row in rows], 2, lists=False).drop_columns(
        ["_ackledger_carried"]
    )
    carried = pa.array([row[4] for row in rows], BIGINT)
    found = Reading(tuple(edges.inputs), edges).fold_table(
        whole.append_column("_ackledger_carried", carried)
    )
    assert as_dict(found.deltas) == oracle.deltas()
    assert found.read_carried == np.count_nonzero([row[4] is not None for row in rows])


@pytest.mark.parametrize(("roots", "emitted"), [(9, [100, 101, 102, 103]), (3, [100, 101, 102])])
def test_records_that_were_emitted(roots, emitted):
    """Records are counted as they are read, whatever their file was said to hold; those past the
    last root are no more than counted.
    """
    path = "memory://portions/records.parquet"
    with MemoryFileSystem().open(path, "wb") as stream:
        given = {
            "_ackledger_error": pa.array([None, "b", None, "a"], TEXT),
            "_ackledger_raw": ["1", "x", "3", "y"],
        }
        pq.write_table(pa.table(given), stream)
    records = Records([DataFile(path, 1, 9, 0)], 100, roots, edges_of(0))
    found = records.fold(records.files)
    assert (found.wrote.rows, found.deltas.root.tolist()) == (4, emitted)
    failed = {101: (False, "b"), 103: (False, "a")}
    assert fails_of(found.deltas) == {root: failed[root] for root in emitted if root in failed}


@pytest.mark.parametrize(
    ("redacted", "kept"),
    [("other", ["id=1", "EMAIL", None, "y"]), ("Email", ["id=1", None, None, None])],
)
def test_raw_text_of_records_that_may_have_a_redacted_column(redacted, kept):
    """Of records that did not parse the text is kept unless it, or the names of its file's columns,
    have that of a redacted column, or one that JSON escapes.
    """
    path = "memory://portions/malformed.parquet"
    with MemoryFileSystem().open(path, "wb") as stream:
        given = {
            "id": ["1", "2", "3", "4", "5"],
            "_ackledger_error": pa.array([None, "a", "a", "a", "a"], TEXT),
            "_ackledger_raw": pa.array([None, b"id=1", b"EMAIL", b"\\u0045", b"y"]),
            "_ackledger_names": [None, "id", "id", "id", "id\x1femail"],
        }
        pq.write_table(pa.table(given), stream)
    files = [DataFile(path, 1, 9, 0)]
    for redact, details in ((redacted, kept), ("ID", [None] * 4)):
        records = Records(files, 100, 5, edges_of(0), Redaction.of([redact]))
        (fails,) = records.fold(files).deltas.fails
        assert fails.details == details
