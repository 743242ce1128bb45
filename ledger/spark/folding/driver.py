"""Folds in the driver's threads: numpy and pyarrow release the interpreter's lock, and no Spark job
and no Python worker is started for it.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg2

from ledger.batch.step_runs import OpenedRun
from ledger.core.probes import reached
from ledger.core.text import quantity
from ledger.deltas import posting
from ledger.deltas.footers import Footer, sharing
from ledger.deltas.kernel import Deltas
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.windows import UnorderedError
from ledger.spark.folding.outcome import ways_in_words
from ledger.spark.folding.refusals import refusing
from ledger.spark.job import Job
from ledger.storage.manifest import DataFile

MOST_THREADS = 8  # each needs the memory of a window


def fold_files(portion: Portion, footers: Sequence[Footer] | None) -> tuple[list[Folded], str]:
    """What the files of a portion add, and how they were folded. ``footers``: None where they have
    so few rows that these are gathered without a look at them.
    """
    files = list(portion.files)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        if footers is None:
            way = f"{quantity(len(files), 'file')} gathered, in the driver"
            return list(portion.gathered(files)), way
        alone, groups = sharing(footers) if portion.by_input else (files, [])
        tried = list(pool.map(lambda file: _in_order(portion, file), alone))
        unordered = [file for file, folded in zip(alone, tried, strict=True) if folded is None]
        shared = [file for group in groups for file in group]
        folded = [part for some in tried if some is not None for part in some]
        folded += portion.gathered([*shared, *unordered], pool.map)
    ways = (
        (len(alone) - len(unordered), "in order"),
        (len(shared), "gathered, they share inputs"),
        (len(unordered), "gathered, out of order"),
    )
    return folded, f"{ways_in_words(ways)}, in the driver"


def post_buckets(job: Job, run: OpenedRun, deltas: Sequence[Deltas]) -> None:
    """Post deltas ahead of the commit, in as many buckets at a time as the batch has ackers.

    Raises FencedError when the batch was decided and its partition is gone, UnavailableError when
    the ledger does not answer.
    """
    buckets: list[list[Deltas]] = [[] for _ in range(min(run.batch.ackers, len(deltas)))]
    for some in sorted(deltas, key=lambda some: -len(some.root)):
        min(buckets, key=lambda bucket: sum(len(part.root) for part in bucket)).append(some)

    def post(number: int) -> None:
        reached("posting bucket", run.step)
        to = (job.database.dsn, run.batch.batch_id, run.run_id)
        posting.post_bucket(*to, number, buckets[number])

    with refusing(run, psycopg2.Error), ThreadPoolExecutor(len(buckets)) as pool:
        list(pool.map(post, range(len(buckets))))


def _in_order(portion: Portion, file: DataFile) -> list[Folded] | None:
    """What a file adds; None if its rows lie in no order."""
    try:
        return list(portion.in_order(file))
    except UnorderedError:
        return None
