"""Folds in the driver's threads: numpy and pyarrow release the interpreter's lock, and no Spark job
and no Python worker is started for it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ledger.core.text import quantity
from ledger.deltas.footers import Footer, sharing
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.windows import UnorderedError
from ledger.spark.folding.outcome import ways_in_words
from ledger.storage.manifest import DataFile

MOST_THREADS = 8  # each needs the memory of a window

Spanned = Callable[[Iterable[Folded]], list[Folded]]  # what is done to the parts of one fold


def fold_files(
    portion: Portion, footers: Sequence[Footer] | None, spanned: Spanned = list
) -> tuple[list[Folded], str]:
    """What the files of a portion add, and how they were folded. ``footers``: None where they have
    so few rows that these are gathered without a look at them.
    """
    files = list(portion.files)

    def in_order(file: DataFile) -> list[Folded] | None:
        """What a file adds; None if its rows lie in no order."""
        try:
            return spanned(portion.in_order(file))
        except UnorderedError:
            return None

    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        if footers is None:
            way = f"{quantity(len(files), 'file')} gathered, in the driver"
            return spanned(portion.gathered(files)), way
        alone, groups = sharing(footers) if portion.by_input else (files, [])
        tried = list(pool.map(in_order, alone))
        unordered = [file for file, folded in zip(alone, tried, strict=True) if folded is None]
        shared = [file for group in groups for file in group]
        folded = [part for some in tried if some is not None for part in some]
        if shared or unordered:
            folded += spanned(portion.gathered([*shared, *unordered], pool.map))
    ways = (
        (len(alone) - len(unordered), "in order"),
        (len(shared), "gathered, they share inputs"),
        (len(unordered), "gathered, out of order"),
    )
    return folded, f"{ways_in_words(ways)}, in the driver"
