"""Runs ackledger over the files of the corpus, a batch for those that one source can read."""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger import LedgerError, ParquetSink, Pipeline
from ledger.core.column_names import FILE
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.store.connection import Database
from ledger.store.queries import runs
from tests.polluted.comparison import Failed, Row, Verdict, compare
from tests.polluted.corpus import Dialect, Polluted
from tests.support.ledgers import Ledger
from tests.support.runner import Runner

_NUMBER = "record_of_the_ledger"


@dataclass(frozen=True)
class Lab:
    """Where the batches run."""

    spark: SparkSession
    database: Database
    settings: Settings


def judged(lab: Lab, name: str, files: Sequence[Polluted]) -> Iterator[tuple[Polluted, Verdict]]:
    """The verdict on each file of a group; of one that is refused each file is tried alone."""
    folder = Path(lab.settings.data) / name
    folder.mkdir()
    for file in files:
        shutil.copy(file.path, folder)
    try:
        records = _records(lab, name, files[0].dialect)
    except LedgerError as exc:
        if len(files) == 1:
            reason = str(exc).replace(f"{folder}/", "")
            yield files[0], Verdict(len(files[0].rows), refused=reason)
            return
        for number, file in enumerate(files):
            yield from judged(lab, f"{name}_{number}", [file])
        return
    for file in files:
        yield file, compare(records[file.path.name], file.rows, file.contents, file.mistaken)


def _records(lab: Lab, name: str, dialect: Dialect) -> dict[str, list[Row | Failed | None]]:
    """By file its records, in order: the row that readers of the sink see, or the failure that the
    ledger lists.

    Raises LedgerError where the files are refused.
    """
    pipeline = Pipeline(name)
    pipeline.source("records", dialect.source(f"{name}/*"))

    @pipeline.stage(reads="records", anchors="by_hand")
    def numbered(records: DataFrame) -> DataFrame:
        return records.withColumn(_NUMBER, F.col("_anchor.root"))

    pipeline.sink("out", ParquetSink(f"{name}_out"), reads="numbered")
    run = Runner(Job(lab.spark, lab.database, lab.settings, pipeline))
    batch = run.open(name)
    run.settled(batch)
    outcomes = _acked(Path(lab.settings.data) / f"{name}_out", dialect)
    failed = f"SELECT root_id, reason FROM failed_root WHERE batch_id = {batch.batch_id}"
    for root, reason in Ledger(lab.database).rows(failed):
        assert root not in outcomes, f"record {root} is both acked and failed"
        outcomes[root] = Failed(reason)
    by_file: dict[str, list[Row | Failed | None]] = defaultdict(list)
    for root, file in _emitted(run.job, batch.batch_id):
        by_file[file].append(outcomes.pop(root, None))
    assert not outcomes, f"records that no file has: {outcomes}"
    return by_file


def _acked(folder: Path, dialect: Dialect) -> dict[int, Row | Failed]:
    """By record the row that a reader of the sink sees; null is an empty text, as in the clean
    files.
    """
    if not any(folder.rglob("*.parquet")):
        return {}
    columns = [_NUMBER, *dialect.names]
    table = ds.dataset(folder, format="parquet").to_table(columns=columns)
    values = zip(*(table[name].to_pylist() for name in columns), strict=True)
    rows: dict[int, Row | Failed] = {}
    for root, *row in values:
        assert root not in rows, f"record {root} is acked twice"
        rows[root] = tuple(value or "" for value in row)
    return rows


def _emitted(job: Job, batch_id: int) -> Iterator[tuple[int, str]]:
    """The records that the source has read, with the name of the file of each, in its order."""
    (emit,) = job.database.transact(lambda c: runs.emits(c, batch_id))
    names = set()
    for stored in job.manifest(emit.emit_run_id).files:
        column = pq.read_table(stored.path, columns=[FILE])[FILE].to_pylist()
        first = emit.first_root + stored.first_position
        for root, url in enumerate(column, first):
            # A line like the header that comes again has no file: it is the batch's only one then.
            file = Path(unquote(url)).name if url else None
            names |= {file} - {None}
            yield root, file or _only(names)


def _only(names: set[str]) -> str:
    (name,) = names
    return name
