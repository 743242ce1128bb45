"""Find the files of the storage that have certain values, of records that never failed, too."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import pyarrow as pa

from ledger.core.column_names import PLACE
from ledger.storage import parquet, stores
from ledger.storage.folders import beside, require_reachable
from ledger.store.connection import Database
from ledger.store.queries import forgetting
from ledger.store.queries.forgetting import RunFolder

_LONG = 4  # characters; a shorter value is found only as a whole word
_SIGN = re.compile(r"[^\w\s]")


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


def _files(run: RunFolder) -> Iterator[str]:
    require_reachable(run.folder)
    for folder in (run.folder, *beside(run.folder, f"kept-{run.step_run_id}-")):
        files = stores.files_below(folder)
        yield from (file.path for file in files if file.path.endswith(".parquet"))


def _may_have(path: str, values: Sequence[str]) -> bool:
    try:
        return _has(path, values)
    except (pa.ArrowInvalid, OSError):
        return True


def _has(path: str, values: Sequence[str]) -> bool:
    missing = {value: _pattern(value) for value in values}
    with stores.opened(path) as stream:
        stored = parquet.opened(stream)
        for group in range(stored.metadata.num_row_groups):
            table = parquet.read_row_group(stored, group)
            for column in (table[name] for name in table.column_names if name != PLACE):
                for text in {fold(text) for cell in column.to_pylist() for text in texts(cell)}:
                    for value in [value for value, form in missing.items() if form.search(text)]:
                        del missing[value]
                if not missing:
                    return True
    return False


def texts(value: object) -> Iterator[str]:
    """The texts of a value, and of its parts."""
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for part in parts:  # type: ignore[attr-defined]
            yield from texts(part)
    elif isinstance(value, bytes):
        yield from (str(value), value.decode(errors="replace"))
    elif value is not None:
        yield str(value)


def _pattern(value: str) -> re.Pattern[str]:
    """Return what finds a value in a folded text: as it is, as JSON escapes it, or as raw text of
    CSV, in which a quote, or any other sign, stands twice or behind an escape."""
    forms = {_SIGN.sub(_may_be_escaped, fold(form)) for form in (value, json.dumps(value)[1:-1])}
    either = f"(?:{'|'.join(sorted(forms))})"
    return re.compile(either if len(value) >= _LONG else rf"(?<!\w){either}(?!\w)")


def _may_be_escaped(sign: re.Match[str]) -> str:
    return rf"[^\w\s]?{re.escape(sign[0])}"


def fold(text: str) -> str:
    """A text as it is compared. Equal for all its cases, also where these differ in length
    (``Straße`` and ``STRASSE``), with or without the dot of a Turkish i, and for both forms of an
    accent.
    """
    cased = normalize("NFD", text).upper().casefold()
    return normalize("NFD", cased).replace("i\u0307", "i")
