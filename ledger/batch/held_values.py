"""Find the files of the storage that have certain values, of records that never failed, too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
from sqlalchemy import Row

from ledger.core.folding import fold
from ledger.core.redaction import texts, without
from ledger.storage import parquet
from ledger.storage.folders import beside, require_reachable
from ledger.store.connection import Database
from ledger.store.queries import forgetting


@dataclass(frozen=True)
class HoldingFile:
    """A file of a batch that has the values. ``keep_seconds``: of its pipeline; None: it is kept
    permanently. ``published``: a sink shows rows of the batch, and may have them, too."""

    path: str
    batch_id: int
    pipeline: str
    keep_seconds: float | None
    published: bool


def files_with(
    database: Database, pipeline: str | None, values: Sequence[str]
) -> tuple[HoldingFile, ...]:
    """The Parquet files that have each of these values in some column, of those that runs wrote and
    retention has not removed, of a pipeline or of all. One that cannot be read may have them.

    Raises UnavailableError where the storage is out of reach.
    """
    runs = database.transact(lambda c: forgetting.run_folders(c, pipeline)) if values else ()
    return tuple(
        HoldingFile(path, run.batch_id, run.pipeline, run.keep_seconds, run.published)
        for run in runs
        for path in _files(run)
        if _may_have(path, values)
    )


def _files(run: Row[Any]) -> Iterator[str]:
    require_reachable(run.folder)
    for folder in (run.folder, *beside(run.folder, f"kept-{run.step_run_id}-")):
        fs, path = fsspec.core.url_to_fs(folder)
        if fs.exists(path):
            names = sorted(one for one in fs.find(path) if one.endswith(".parquet"))
            yield from (fs.unstrip_protocol(one) if "://" in folder else one for one in names)


def _may_have(path: str, values: Sequence[str]) -> bool:
    try:
        return _has(path, values)
    except (pa.ArrowInvalid, OSError):
        return True


def _has(path: str, values: Sequence[str]) -> bool:
    missing = {value: fold(value) for value in values}
    with fsspec.open(path, "rb") as stream:
        stored = parquet.opened(stream)
        for group in range(stored.metadata.num_row_groups):
            for column in parquet.read_row_group(stored, group).columns:
                for text in {text for cell in column.to_pylist() for text in texts(cell)}:
                    folded = fold(text)
                    for value in [one for one, part in missing.items() if part in folded]:
                        if without(text, [value]) != text:
                            del missing[value]
                if not missing:
                    return True
    return False
