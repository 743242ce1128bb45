"""What the driver makes of a portion's files, whichever way it folds them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ledger.deltas import stored
from ledger.deltas.footers import read_footers
from ledger.deltas.kernel import Fails, merge_deltas
from ledger.deltas.portions import Portion
from ledger.deltas.rows import NONE
from ledger.deltas.spans import Spans
from ledger.deltas.stored import Checksum
from ledger.spark.folding import fold
from ledger.spark.folding.runners import Executors, FoldRunner, Threads

WINDOW_ROWS = 3
_fold_files = fold.fold_files


class ApartInThreads(Threads):
    """Folds one by one the files that executors do."""

    apart = Executors.apart  # type: ignore[assignment]


@contextmanager
def folds_compared() -> Iterator[None]:
    """Each portion that is folded in the block has to add the same gathered in memory and file by
    file, a few rows at a time."""

    def compared(runner: FoldRunner, portion: Portion, *others: Any) -> Any:
        compare(portion)
        return _fold_files(runner, portion, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "fold_files", compared)
        yield


def compare(portion: Portion) -> None:
    """Raise AssertionError unless it adds the same, gathered and a few rows at a time."""
    assert _folded(portion) == _folded(portion, WINDOW_ROWS), portion


def _folded(portion: Portion, window_rows: int | None = None) -> tuple[object, ...]:
    """What a portion adds. ``window_rows``: file by file, so many rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        runner = Threads(Spans(), "")
        if window_rows is not None:
            patch.setattr(stored, "WINDOW_ROWS", window_rows)
            runner = ApartInThreads(Spans(), "")
        reports, _ = _fold_files(runner, portion, read_footers(portion.files))
    parts = [deltas for report in reports for deltas in report.deltas]
    if not parts:
        return ()
    deltas = merge_deltas(parts)
    by_root = sorted(zip(*(column.tolist() for column in deltas.columns), strict=True))
    drops = {reason: many for reason, many in deltas.drops.items() if many}
    wrote = sum((report.wrote for report in reports), Checksum())
    return by_root, _fails(deltas.fails), drops, deltas.with_rows, wrote


def _fails(fails: Any) -> dict[int, tuple[bool, bool, str]]:
    """Of each root the fail that counts: one of its own before a shared one, a repeat last."""
    least: dict[int, tuple[bool, bool, str]] = {}
    some: Fails
    for some in fails:
        for root, code, shared in zip(some.root.tolist(), some.reason, some.shared, strict=True):
            reason = "" if code == NONE else some.words[code]
            rank = (bool(shared), code == NONE, reason)
            least[root] = min(rank, least.get(root, rank))
    return least
