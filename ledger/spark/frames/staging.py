"""Staging: write the rows of a sink as Parquet files where no reader sees them yet."""

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import ROOT, ROOTS
from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import StageError, quote, suggestion
from ledger.pipeline.steps import SinkStep
from ledger.sinks.folder import STAGING_FOLDER, require_file_columns
from ledger.sinks.options import Bloom
from ledger.spark.frames.misplaced import placeable
from ledger.spark.job import Witness, write_files
from ledger.spark.session import session_conf
from ledger.storage.folders import make_private, require_writable
from ledger.storage.manifest import Manifest, take_manifest

# Without adaptive execution Spark drops the hint, without a word, when it resolves the frame.
_ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}
_COUNT = "_ackledger_count"


def stage_rows(
    rows: DataFrame,
    step: SinkStep,
    folder: str,
    wrote: Witness | None = None,
    columns: Sequence[str] = ("*",),
) -> Manifest:
    """Write ``columns`` of the rows below ``folder``, partitioned as the sink is. Return the files
    that are there then, by their footers.

    Unless the sink has ``rebalance=False``, the rows of each of its folders are brought together,
    so that a batch leaves one file a folder instead of one a task and folder; Spark splits skewed
    ones. ``wrote`` watches the rows, with all columns, on their way.
    """
    names, written = step.sink.partition_by, rows.select(*columns).columns
    own = [name for name in written if name not in (ROOT, ROOTS)]
    require_file_columns(f"sink {step.name!r}", names, own)
    if is_local(folder):
        _close_staging(Path(without_file_scheme(folder)))
    require_writable(folder, f"the path of sink {step.name!r}, or ACKLEDGER_OUTPUT,")
    with session_conf(rows.sparkSession, _ADAPTIVE if names else {}):
        if names and getattr(step.sink, "rebalance", True):  # a sink of one's own may lack it
            rows = rows.hint("rebalance", *(F.col(f"`{name}`") for name in names))
        if wrote is not None:
            # The last node before the writer: in front of the exchange the witness would be in a
            # task of its map stage, whose retry counts its rows twice.
            rows = wrote.watch(rows)
        write_files(placeable(rows, step).select(*columns), folder, by=names)
    return take_manifest(folder)


def _close_staging(folder: Path) -> None:
    """Make staged rows private to this user, or to the group of a ``shared`` folder, until
    published.

    This closes the staging folder beside the folders that readers see, or else the run's own
    folder.
    """
    staging = next((place for place in folder.parents if place.name == STAGING_FOLDER), folder)
    with suppress(OSError):  # a folder that cannot be written to is reported right after this
        staging.parent.mkdir(parents=True, exist_ok=True)
        make_private(staging)


def require_key_columns(step: SinkStep, columns: Sequence[str]) -> None:
    """Raise StageError if the rows of a sink lack a column of its key, or of that of ``dedup``."""
    dedup = step.sink.dedup
    keys = {
        "has the key": step.sink.key,
        "deduplicates by": dedup.key if isinstance(dedup, Bloom) else (),
    }
    for what, key in keys.items():
        for name in key:
            if name not in columns:
                raise StageError(
                    f"sink {step.name!r} {what} {name!r}, which its input"
                    f" lacks{suggestion(name, columns)}"
                )


def require_unique_keys(step: SinkStep, rows: DataFrame) -> None:
    """Raise StageError unless each row of a combine or a state has a key of its own, by which an
    upsert decides what it replaces. Of rows with records, those with an equal key fail: see
    ``ledger.spark.frames.refused``."""
    require_key_columns(step, rows.columns)
    if not step.sink.key:
        return
    key = [f"`{name}`" for name in step.sink.key]
    missing = reduce(lambda left, right: left | right, [F.col(name).isNull() for name in key])
    wrong = (
        rows.groupBy(*key)
        .agg(F.count(F.lit(1)).alias(_COUNT))
        .where((F.col(_COUNT) > 1) | missing)
        .first()
    )
    if wrong is not None:
        values = str({name: wrong[name] for name in step.sink.key})
        raise StageError(
            f"sink {step.name!r}: {wrong[_COUNT]} rows have the key {quote(values)}: expected one"
            " row of each key and no null; leave one in the stage before the sink"
        )


def tracking_columns(rows: DataFrame) -> list[str]:
    """Return the columns of a sink's input that identify the records of a row."""
    return [name for name in (ROOT, ROOTS) if name in rows.columns]
