"""Folds in the driver's threads: numpy and pyarrow release the interpreter's lock, and no Spark job
and no Python worker is started for it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ledger.core.text import quantity
from ledger.deltas.footers import Footer, related
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.stretches import sort_out
from ledger.spark.folding.outcome import ways_in_words

MOST_THREADS = 8  # each needs the memory of a window

Spanned = Callable[[Iterable[Folded]], list[Folded]]  # what is done to the parts of one fold


def fold_files(
    portion: Portion, footers: Sequence[Footer] | None, spanned: Spanned = list
) -> tuple[list[Folded], str]:
    """Fold the files of a portion, and return the parts with a description of how they were folded.

    ``footers``: None if the files have so few rows that they are gathered without a look at these.
    ``spanned``: turns the parts of one fold into those that are returned.
    """
    files = list(portion.files)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        if footers is None:
            way = f"{quantity(len(files), 'file')} gathered, in the driver"
            return spanned(portion.gathered(files)), way
        stretches = list(pool.map(portion.stretches, files))
        groups = related(footers, by_input=portion.by_input)
        ordered, shared, unordered = sort_out(files, stretches, groups)
        parts = pool.map(lambda file: spanned(portion.by_window(file)), ordered)
        folded = [part for some in parts for part in some]
        if shared or unordered:
            folded += spanned(portion.gathered([*shared, *unordered], pool.map))
    ways = (
        (len(ordered), "in order"),
        (len(shared), "gathered, they may share records"),
        (len(unordered), "gathered, out of order"),
    )
    return folded, f"{ways_in_words(ways)}, in the driver"
