"""A run's files by whatever way the driver takes are what one fold of all their rows makes of
them.
"""

import random
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.deltas import stored
from ledger.deltas.edges import Edges
from ledger.deltas.footers import DELTA_BYTES, memory_of, read_footers
from ledger.deltas.kernel import fold_emitted, fold_output, merge_deltas
from ledger.deltas.portions import Folded, Output, Reading
from ledger.deltas.spans import Spans
from ledger.spark.folding import runners
from ledger.spark.folding.fold import fold_files
from ledger.spark.folding.runners import Threads
from ledger.storage.manifest import DataFile
from tests.support.oracle import as_dict, fails_of, joined
from tests.support.random_folds import ApartInThreads

EXTREMES = [-(2**63), -(2**63) + 1, -5, -1, 0, 1, 2, 3, 2**62, 2**63 - 2, 2**63 - 1]
NAMES = ("a", "b", "é", "𐀀")  # their order in UTF-8 is not that in UTF-16
SEEDS, RUNS = range(6), 10


def drawn_rows(draw, names, *, lists):
    """Rows, each with its anchors (root, parent, input) and why it failed or was dropped; some in
    the order of their roots.
    """
    roots = draw.sample(EXTREMES, draw.randint(1, 6))
    parents = EXTREMES if draw.random() < 0.5 else range(12)
    inputs = [
        (draw.choice(roots), draw.choice(parents), draw.choice(names))
        for _ in range(draw.randint(1, 12))
    ]
    rows = []
    for _ in range(draw.randint(0, 40)):
        count = draw.randint(1, 3) if lists else int(draw.random() > 0.1)
        anchors = sorted({*draw.sample(inputs, min(len(inputs), count))})
        mark = draw.random()
        failed = f"f{draw.randint(0, 2)}" if mark < 0.1 else None
        rows.append((anchors, failed, f"d{draw.randint(0, 1)}" if 0.1 <= mark < 0.25 else None))
    if draw.random() < 0.6:
        rows.sort(key=lambda row: row[0][:1])
        cut = draw.randint(0, len(rows))  # as a task has them that reads parts of two files
        rows = draw.choice([rows, [*rows[cut:], *rows[:cut]]])
    return rows


def columns_of(rows, names, *, lists):
    """Rows as a run stores them."""
    kinds = {"root": pa.int64(), "parent": pa.int64(), "input": pa.string()}
    fields = dict(list(kinds.items())[: 2 if len(names) == 1 else 3])
    if lists:
        anchors = [[dict(zip(fields, anchor, strict=False)) for anchor in row[0]] for row in rows]
        kind = pa.list_(pa.struct(list(fields.items())))
        columns = {"_ackledger_anchors": pa.array(anchors, kind)}
    else:
        columns = {
            f"_ackledger_{name}": pa.array([r[0][0][n] if r[0] else None for r in rows], kind)
            for n, (name, kind) in enumerate(fields.items())
        }
    columns["_failed"] = pa.array([row[1] for row in rows], pa.string())
    columns["_dropped"] = pa.array([row[2] for row in rows], pa.string())
    return pa.table(columns)


def files_of(draw, folder, rows, names, *, lists):
    """The rows in up to five files, of row groups of some size, most with statistics."""
    cuts = sorted(draw.randint(0, len(rows)) for _ in range(draw.randint(0, 4)))
    files = []
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        path = folder / f"{len(files)}.parquet"
        pq.write_table(
            columns_of(rows[first:last], names, lists=lists),
            path,
            row_group_size=draw.choice([1, 2, 5, 100]),
            write_statistics=draw.random() < 0.9,
        )
        files.append(DataFile(str(path), path.stat().st_size, last - first, first))
    return files


@pytest.mark.parametrize("seed", SEEDS)
def test_all_ways_come_to_the_same(tmp_path, monkeypatch, seed):
    """One by one, or together where files may share inputs or are large, in windows of any size:
    deltas, fails, drops, and what was seen are those of one fold. There are no more deltas than
    the footers had said.
    """
    draw = random.Random(seed)
    for _ in range(RUNS):
        lists, names = draw.random() < 0.3, NAMES if draw.random() < 0.4 else NAMES[:1]
        rows = drawn_rows(draw, names, lists=lists)
        files = files_of(draw, tmp_path, rows, names, lists=lists)
        edges = Edges(9, "step", ["x", "y"], {name: n for n, name in enumerate(names, 1)})
        own = partial(
            draw.choice([fold_emitted, fold_output]), emits_one=draw.choice([False, True])
        )
        footers = read_footers(files)
        for portion in (
            Output(files, own, edges, len(rows)),
            Reading(files, edges, len(rows), number=0 if len(names) > 1 else None),
        ):
            monkeypatch.setattr(stored, "WINDOW_ROWS", draw.choice([1, 2, 3, 7, 100]))
            monkeypatch.setattr(stored, "SAMPLED", draw.choice([1, 2, 1_000]))
            monkeypatch.setattr(runners, "TASK_BYTES", draw.choice([0, 100, 1_000, 10_000]))
            runner = draw.choice([Threads, ApartInThreads])(Spans(), "")
            reports, way = fold_files(runner, portion, footers)
            parts = [
                Folded(merge_deltas(report.deltas), report.wrote)
                for report in reports
                if report.deltas
            ]
            monkeypatch.setattr(stored, "WINDOW_ROWS", 1 << 20)
            whole = list(fold_whole(portion, files))
            deltas = sum(len(part.deltas.root) for part in parts)
            columns = sum(footer.bytes for footer in footers)
            memory = memory_of(footers, by_input=isinstance(portion, Output))
            assert columns + deltas * DELTA_BYTES <= memory, way
            require_same(parts, whole, way)


def fold_whole(portion, files):
    """Fold all rows at once."""
    if isinstance(portion, Output):
        return portion.fold_together(files)
    return [folded for file in files for folded in portion.fold_file(file)]


def require_same(parts, whole, way):
    """Both lists of folded parts add the same."""
    if not parts or not whole:
        assert not any(len(part.deltas.root) for part in [*parts, *whole]), way
        return
    result, expected = joined(parts), joined(whole)
    assert as_dict(result.deltas) == as_dict(expected.deltas), way
    assert fails_of(result.deltas) == fails_of(expected.deltas), way
    assert result.deltas.drops == expected.deltas.drops, way
    assert result.deltas.with_rows == expected.deltas.with_rows, way
    assert result.wrote == expected.wrote, way
