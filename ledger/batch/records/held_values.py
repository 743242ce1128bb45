"""Find the files of the storage that have certain values, also of records that never failed."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import pyarrow as pa

from ledger.storage import parquet, stores
from ledger.storage.folders import beside, require_reachable
from ledger.store.connection import Database
from ledger.store.queries import forgetting

_LONG = 4  # characters; a shorter value is found only as a whole word
_SIGN = re.compile(r"([^\w\s])")
_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class HoldingFile:
    """A file of a batch that has the values.

    ``keep_seconds``: ``keep`` of the pipeline; None: its files are kept permanently.
    ``published``: whether a sink shows rows of the batch, and may have the values too.
    """

    path: str
    batch_id: int
    pipeline: str
    keep_seconds: float | None
    published: bool


def files_with(
    database: Database, pipeline: str | None, values: Sequence[str]
) -> tuple[HoldingFile, ...]:
    """Return the Parquet files that have each of these values in some column, and those that cannot
    be read. The search covers the files that runs of one pipeline, or of all, have written and
    retention has not removed.

    Raises UnavailableError if the storage is out of reach.
    """
    holding = []
    runs = database.transact(lambda c: forgetting.run_folders(c, pipeline)) if values else ()
    for run in runs:
        require_reachable(run.folder)
        for folder in (run.folder, *beside(run.folder, f"kept-{run.step_run_id}-")):
            holding += [
                HoldingFile(file.path, run.batch_id, run.pipeline, run.keep_seconds, run.published)
                for file in stores.files_below(folder)
                if file.path.endswith(".parquet") and _may_have(file.path, values)
            ]
    return tuple(holding)


def _may_have(path: str, values: Sequence[str]) -> bool:
    """Return whether a file has each of these values, or cannot be read."""
    missing = {value: forms(value) for value in values}
    try:
        with stores.opened(path) as stream:
            stored = parquet.opened(stream)
            for group in range(stored.metadata.num_row_groups):
                table = parquet.read_row_group(stored, group)
                for column in table.columns:
                    for text in {fold(text) for cell in column.to_pylist() for text in texts(cell)}:
                        for value in values:
                            if any(form.is_in(text) for form in missing.get(value, ())):
                                del missing[value]
                    if not missing:
                        return True
    except (pa.ArrowInvalid, OSError):
        return True
    return False


def texts(value: object) -> Iterator[str]:
    """Yield each scalar in a value, at any depth, as text: bytes in two forms, ``str`` of them and
    as UTF-8; of dicts only the values; nothing for None.
    """
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for part in parts:  # type: ignore[attr-defined]
            yield from texts(part)
    elif isinstance(value, bytes):
        yield from (str(value), value.decode(errors="replace"))
    elif value is not None:
        yield str(value)


class _Form:
    """One way in which a value may be written in a text. Escape characters in the text are ignored.

    ``is_word``: whether no letter or digit may be next to it.
    """

    def __init__(self, form: str, *, is_word: bool):
        self._is_word = is_word
        self._parts = {part for part in _SIGN.split(form) if part}
        self._whole = 1 << len(form)
        self._places: dict[str, int] = {}  # of each character, as bits
        for at, character in enumerate(form):
            self._places[character] = self._places.get(character, 0) | 1 << at
        self._signs = sum(bits for sign, bits in self._places.items() if _SIGN.match(sign))

    def is_in(self, text: str) -> bool:
        """Return whether a folded text contains this form, in time linear in the length of the
        text.
        """
        return all(part in text for part in self._parts) and self._is_matched(text)

    def _is_matched(self, text: str) -> bool:
        """Follow all possible matches at once.

        Bit n of ``matched``: the first n characters of the form end here. Bit n of ``escaped``:
        they end before the sign that was passed last, which may escape the next one.
        """
        matched = escaped = 0
        for at, character in enumerate([*text, ""]):
            if not (self._is_word and at and _WORD.match(text[at - 1])):
                matched |= 1
            if matched & self._whole and not (self._is_word and _WORD.match(character)):
                return True
            possible = (matched | escaped) & self._places.get(character, 0)
            escaped = matched & self._signs if _SIGN.match(character) else 0
            matched = possible << 1
        return False


def forms(value: str) -> list[_Form]:
    """Return the forms in which a folded text may have a value: as it is, as JSON escapes it, or as
    raw text of CSV, in which a quote, or any other sign, is doubled or escaped.
    """
    texts = sorted({fold(value), fold(json.dumps(value)[1:-1])})
    return [_Form(text, is_word=len(value) < _LONG) for text in texts]


def fold(text: str) -> str:
    """Return a text in the form that is compared. It is the same for all cases, also if these
    differ in length (``Straße`` and ``STRASSE``), with or without the dot of a Turkish i, and for
    both forms of an accent.
    """
    cased = normalize("NFD", text).upper().casefold()
    return normalize("NFD", cased).replace("i\u0307", "i")
