"""What the driver makes of a portion's files, whichever way it folds them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ledger.deltas import stored
from ledger.deltas.footers import read_footers
from ledger.deltas.kernel import Fails
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.rows import NONE
from ledger.spark.folding import driver
from ledger.spark.folding.executors import Executors
from tests.support.oracle import joined

WINDOW_ROWS = 3
FoldFiles = Callable[..., tuple[list[Folded], str]]  # as the driver's


@contextmanager
def folds_compared() -> Iterator[None]:
    """Each portion that is folded in the block has to add the same gathered in memory and file by
    file, a few rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        in_driver, there = driver.fold_files, Executors.fold_files

        def fold_here(portion: Portion, *others: Any) -> Any:
            compare(portion, in_driver)
            return in_driver(portion, *others)

        def fold_there(executors: Executors, portion: Portion, *others: Any) -> Any:
            compare(portion, in_driver)
            return there(executors, portion, *others)

        patch.setattr(driver, "fold_files", fold_here)
        patch.setattr(Executors, "fold_files", fold_there)
        yield


def compare(portion: Portion, fold_files: FoldFiles) -> None:
    """Raise AssertionError unless it adds the same, gathered and a few rows at a time."""
    assert _folded(portion, fold_files) == _folded(portion, fold_files, WINDOW_ROWS), portion


def _folded(
    portion: Portion, fold_files: FoldFiles, window_rows: int | None = None
) -> tuple[object, ...]:
    """What a portion adds. ``window_rows``: file by file, so many rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        footers = None
        if window_rows is not None:
            patch.setattr(stored, "WINDOW_ROWS", window_rows)
            footers = read_footers(portion.files)
        parts, _ = fold_files(portion, footers)
    if not parts:
        return ()
    all_ = joined(parts)
    deltas = all_.deltas
    by_root = sorted(zip(*(column.tolist() for column in deltas.columns), strict=True))
    drops = {reason: many for reason, many in deltas.drops.items() if many}
    return by_root, _fails(deltas.fails), drops, deltas.with_rows, all_.wrote


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
