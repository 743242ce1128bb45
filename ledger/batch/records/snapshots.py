"""Read the failed records of a source from its snapshot, the Parquet files of a manifest, without
Spark."""

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledger.core.column_names import BETWEEN, ERROR, FILE, NAMES, RAW, is_own
from ledger.core.declared_steps import DeclaredStep
from ledger.core.paths import without_file_scheme
from ledger.core.redaction import Redaction
from ledger.errors import MASK
from ledger.sources.files.format import Dialect
from ledger.storage import parquet
from ledger.storage.manifest import DataFile, Manifest, version_file
from ledger.storage.versions import version_of
from ledger.store.queries.payloads import EmittedRecords
from ledger.types.arrow import rebuilt

MOST_CHARACTERS = 10_000
_NUL = "\\u0000"  # JSON has it, PostgreSQL's jsonb does not
_ILLEGIBLE = re.compile("[\ufffd\ud800-\udfff]")  # was no UTF-8, or half of a character


@dataclass(frozen=True)
class Payload:
    """One record as the table ``failed_payload`` has it. ``key``: JSON."""

    message_id: int
    batch_id: int
    root_id: int
    key: str | None
    content: str
    parsed: bool
    source_file: str | None
    source_row: int | None


def payloads(
    batch_id: int,
    emitted: EmittedRecords,
    files: Sequence[DataFile],
    source: DeclaredStep,
    redact: Redaction,
) -> Iterator[Payload]:
    """Yield records of one emit, in order."""
    version = version_of(Manifest(tuple(files)))
    positions = np.asarray(emitted.roots, np.int64) - emitted.first_root
    whole = version is None and all(_located(file.path) for file in files)
    numbers = _Numbers() if whole else None
    for file in files:
        end = file.first_position + file.rows
        first, last = np.searchsorted(positions, [file.first_position, end])
        local = positions[first:last] - file.first_position
        if version is not None and len(local) == 0:
            continue
        with parquet.stored_file(file.path) as stored:
            row_numbers = numbers.of(stored, local) if numbers else [None] * len(local)
            if len(local) == 0:
                continue
            rows = rows_at(stored, local)
        if version is not None:
            rows, row_numbers = version.completed(rows, file), (local + 1).tolist()
        messages, roots = emitted.messages[first:last], emitted.roots[first:last]
        records = zip(messages, roots, read_rows(rows, source, redact), row_numbers, strict=True)
        for message, root, row, number in records:
            yield Payload(message, batch_id, root, *row, number)


def needed_for(manifest: Manifest, emitted: EmittedRecords) -> Manifest:
    """Return the files of a snapshot that are read for the content of records: all files of a copy,
    whose records are numbered in order, and of a version those with one of the records.
    """
    own = version_file(manifest)
    if own is None:
        return manifest
    positions = np.asarray(emitted.roots, np.int64) - emitted.first_root

    def has_some(file: DataFile) -> bool:
        ends = np.searchsorted(positions, [file.first_position, file.first_position + file.rows])
        return bool(ends[0] < ends[1])

    return Manifest((own, *filter(has_some, manifest.files)))


def row_at(manifest: Manifest, position: int) -> pa.Table:
    """Return the row of a snapshot at a position. Raises LostFileError if its file is gone."""
    file = next(file for file in manifest.files if 0 <= position - file.first_position < file.rows)
    with parquet.stored_file(file.path) as stored:
        rows = rows_at(stored, np.array([position - file.first_position]))
    version = version_of(manifest)
    return rows if version is None else version.completed(rows, file)


def rows_at(stored: pq.ParquetFile, local: Any) -> pa.Table:
    """Return the rows of a file at these positions, in order. Only row groups with one of them are
    read.
    """
    start, tables = 0, []
    for group in range(stored.metadata.num_row_groups):
        rows = stored.metadata.row_group(group).num_rows
        wanted = local[(local >= start) & (local < start + rows)] - start
        if len(wanted):
            tables.append(parquet.read_row_group(stored, group).take(_longs(wanted)))
        start += rows
    return pa.concat_tables(tables)


def read_rows(
    rows: pa.Table, source: DeclaredStep, redact: Redaction
) -> Iterator[tuple[str | None, str, bool, str | None]]:
    """Yield for each row its key, its content, whether that is the whole JSON of its fields, and
    its file.
    """
    columns = [name for name in rows.column_names if not is_own(name)]
    names = [name for name in source.key or () if name in columns]
    keys = json_rows(rows, names) if names else [None] * len(rows)
    contents = json_rows(rows, columns, redact.among(columns))
    masks_text = redact.hides_text(columns, source.layout)
    others = (values_of(rows, name) for name in (ERROR, RAW, FILE, NAMES))
    for key, content, error, raw, file, order in zip(keys, contents, *others, strict=True):
        is_text = error is not None or raw is not None
        hides = masks_text and is_text
        text = MASK if hides else raw_text(raw) if is_text else content
        if is_text and key is not None:
            raw_key = _raw_key(raw or b"", _ordered(order, columns), names, source.layout)
            key = _as_json({**raw_key, **_without_nulls(json.loads(key))})
        shown = shortened(text)
        whole = not is_text and shown is text and _NUL not in text
        if key is not None:
            key = redact.key(key, every=hides).replace(_NUL, "\\ufffd")
        yield key, shown, whole, None if file is None else without_file_scheme(unquote(file))


def _ordered(order: str | None, columns: list[str]) -> list[str]:
    """Return the columns of a record's raw text: those of its file, if its columns are read by
    name.
    """
    return columns if order is None else order.split(BETWEEN)


def values_of(rows: pa.Table, name: str) -> list[Any]:
    """Return the values of a column; None for each row if there is no such column."""
    return rows[name].to_pylist() if name in rows.column_names else [None] * len(rows)


def json_rows(rows: pa.Table, names: Sequence[str], masked: Collection[str] = ()) -> list[str]:
    """Return each row as a JSON object, with a mask for each value of the columns ``masked``. Works
    column by column, and converts each value of a column once: 5 times as fast as by row.
    """
    parts: list[Any] = []
    for number, name in enumerate(names):
        comma = "{" if number == 0 else ", "
        parts.append(_scalar(f"{comma}{json.dumps(name, ensure_ascii=False)}: "))
        column = rows[name].combine_chunks()
        parts.append(_masked(column) if name in masked else _json_column(column))
    joined: list[str] = pc.binary_join_element_wise(*parts, _scalar("}"), _scalar("")).to_pylist()
    return joined


def _masked(column: pa.Array) -> pa.Array:
    """Return a column with each value replaced by a mask. Missing values stay null, because it may
    be seen that they are missing.
    """
    return pc.if_else(column.is_valid(), _scalar(f'"{MASK}"'), _scalar("null"))


def _json_column(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        return pc.fill_null(column.cast(pa.string()), _scalar("null"))
    if pa.types.is_nested(column.type):
        return _strings(_as_json(value) for value in _python(column))
    encoded = column.dictionary_encode()
    values = _strings(_as_json(value) for value in _python(encoded.dictionary))
    return pc.fill_null(values.take(encoded.indices), _scalar("null"))


# Whatever Arrow makes of Python's values by itself (pa.array, pa.scalar) imports pandas first, and
# so does to_numpy: a quarter of the time in which a question about a record is answered.
def _longs(numbers: Any) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _strings(texts: Iterable[str]) -> pa.Array:
    builder = pa.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def _scalar(text: str) -> pa.Scalar:
    return _strings([text])[0]


def _python(column: pa.Array) -> list[Any]:
    """Return the values of a column, as texts if Python has no date or time so early or late, and
    as bytes if a text is not UTF-8.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        plain = column.cast(rebuilt(column.type, _local))
        return list(plain.cast(rebuilt(plain.type, _textual)).to_pylist())


def _local(kind: pa.DataType, _where: str) -> pa.DataType:
    """Return a type of instants without a time zone; the values are in UTC."""
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _textual(kind: pa.DataType, _where: str) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    return pa.binary() if pa.types.is_string(kind) else kind


def _located(path: str) -> bool:
    """Return whether every record of a snapshot's file has the file that it was read from, and no
    record is set apart.
    """
    if "_untracked=" in path:
        return False
    with parquet.stored_file(path) as stored:
        if FILE not in stored.schema_arrow.names:
            return False
        return bool(parquet.read(stored, [FILE]).column(0).null_count == 0)


class _Numbers:
    """Numbers of records within their source files.

    The parts of a file are read in order, and tasks write in order, so a snapshot has the records
    of a file in the order of the file. This is not so if records were moved, beside untracked ones.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, stored: pq.ParquetFile, local: Any) -> Sequence[int | None]:
        """Return the numbers, from 1, of the rows at these positions. Files come in order."""
        column = parquet.read(stored, [FILE]).column(0).combine_chunks().dictionary_encode()
        codes = np.from_dlpack(column.indices)
        counts = np.bincount(codes, minlength=len(column.dictionary))
        order = np.argsort(codes, kind="stable")
        within = np.empty(len(codes), np.int64)
        within[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
        names = column.dictionary.to_pylist()
        before = np.asarray([self._seen.get(name, 0) for name in names], np.int64)
        for name, count in zip(names, counts, strict=True):
            self._seen[name] = self._seen.get(name, 0) + int(count)
        return [int(number) for number in within[local] + before[codes[local]] + 1]


def raw_text(raw: bytes | None) -> str:
    """Return raw bytes as text; base64 if PostgreSQL does not accept them as text."""
    data = raw or b""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if "\0" not in text else f"base64:{base64.b64encode(data).decode()}"


def shortened(content: str) -> str:
    """Return content as it is kept and shown: very long content is cut, and says so."""
    if len(content) <= MOST_CHARACTERS:
        return content
    return f"{content[:MOST_CHARACTERS]} (cut: it has {len(content):,} characters)"


def _raw_key(
    raw: bytes, columns: list[str], names: Sequence[str], layout: Mapping[str, Any]
) -> dict[str, str | None]:
    """Return the key of a record that did not parse, as far as it can be read from its text;
    otherwise nulls.
    """
    text = raw.decode(errors="replace")
    try:
        if layout.get("format") == "csv":
            fields = dict(zip(columns, Dialect(layout).values(text), strict=False))
        else:  # JSON, or a row of Parquet, a table or a frame, of which raw is the JSON
            fields = json.loads(text, parse_int=str, parse_float=str)
        return {name: _legible(fields.get(name)) for name in names}
    except (ValueError, TypeError, AttributeError):
        return dict.fromkeys(names)


def _legible(value: Any) -> str | None:
    """Return a value as the text of a key; null if its text cannot be compared with others."""
    text = str(value).lower() if isinstance(value, bool) else value
    if not isinstance(text, str) or _ILLEGIBLE.search(text):
        return None
    return text


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_json(fields: Any) -> str:
    try:
        return _STRICT.encode(fields)
    except ValueError:  # NaN and the infinities are no JSON
        return _STRICT.encode(_finite(fields))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def _text(value: Any) -> str:
    """Return a value that JSON has no form for, as Spark casts it to a string; times are UTC."""
    if isinstance(value, bytes):
        return raw_text(value)
    if isinstance(value, datetime):
        instant = value.astimezone(UTC) if value.tzinfo else value
        text = instant.replace(tzinfo=None).isoformat(" ")
        return text.rstrip("0") if "." in text else text
    return str(value)


_STRICT = json.JSONEncoder(ensure_ascii=False, default=_text, allow_nan=False)
