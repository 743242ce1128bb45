"""Arrow's columns as the text that PostgreSQL's COPY reads, made by columns. Python looks at single
rows only for JSON that is text: see ``repeated_keys``.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as t

from ledger.errors import StageError
from ledger.sinks.postgres.table import TargetColumn, TargetTable
from ledger.sinks.postgres.types import is_json
from ledger.types.arrow import is_list, scalar, utc

_OPTIONS = pa.csv.WriteOptions(include_header=False)  # text in quotes, null as nothing
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype="S2")
_ESCAPED = ("string", "binary")  # the text of bytes has a backslash
# Arrow writes the days from the first to before the second as PostgreSQL reads them: it has no BC,
# and no years past 32767. The third is 400 years after 1970.
_DAYS = ("0001-01-01", "10000-01-01", "2370-01-01")
_PAST_MICROSECONDS = r"\.\d{6}\d*[1-9]"
_REPEATED = (
    "expected different keys in each object, found one twice, of which jsonb would keep the last:"
    " keep one in the stage before the sink, or make the column json"
)
_CONTROLS = [chr(code) for code in range(32)]


def to_csv(batch: pa.RecordBatch, table: TargetTable) -> bytes:
    """Return rows in COPY's CSV format. Lists become JSON if the table's column is JSON, otherwise
    arrays. Raises StageError for values that PostgreSQL cannot store.
    """
    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        column = table.columns[name]
        try:
            _refuse_lost(array, column)
            arrays.append(_json(array) if is_json(array.type, column) else _copied(array))
        except _NoCounterpartError as exc:
            raise StageError(f"column {name!r}: {exc}") from exc
    csv_batch = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    stream = pa.BufferOutputStream()
    pa.csv.write_csv(csv_batch, stream, _OPTIONS)
    rows: bytes = stream.getvalue().to_pybytes()
    if b"\0" in rows:
        for name, text in zip(csv_batch.schema.names, csv_batch.columns, strict=True):
            if scalar(text.type) == "string" and pc.any(pc.match_substring(text, "\0")).as_py():
                raise StageError(
                    f"column {name!r} has text with a NUL character, which PostgreSQL cannot hold:"
                    " remove it in the stage before the sink"
                )
    return rows


def jsonb_texts(schema: pa.Schema, table: TargetTable) -> list[str]:
    """Return the columns whose text is stored as ``jsonb``."""
    columns = table.columns
    return [
        field.name
        for field in schema
        if "jsonb" in (columns[field.name].base, columns[field.name].element)
        and scalar(field.type.value_type if is_list(field.type) else field.type) == "string"
    ]


def repeated_keys(batch: pa.RecordBatch, table: TargetTable) -> Iterator[tuple[str, list[int]]]:
    """Find the rows with text for a ``jsonb`` column in which an object has a key twice. The server
    would keep only the last one. Yield the reason and the row numbers for each column.
    """
    for name in jsonb_texts(batch.schema, table):
        array: Any = batch[name]
        numbers = range(len(array))
        if is_list(array.type):
            numbers, array = pc.list_parent_indices(array).to_pylist(), pc.list_flatten(array)
        texts = _decoded(array).to_pylist()
        rows = {n for n, text in zip(numbers, texts, strict=True) if _repeats_key(text)}
        if rows:
            yield f"column {name!r}: {_REPEATED}", sorted(rows)


class _NoCounterpartError(Exception):
    """A value that the target's type cannot represent."""


def _refuse_lost(array: pa.Array, column: TargetColumn) -> None:
    """Raise an error for text of which the server would silently drop a part."""
    array = pc.list_flatten(array) if is_list(array.type) and column.element else array
    if scalar(array.type) != "string":
        return
    texts, base, most = _decoded(array), column.element or column.base, column.most_characters
    if most is not None:
        # The server cuts blanks at the end, and refuses any other text that is too long.
        long = texts.filter(pc.greater(pc.utf8_length(texts), most))
        trimmed = pc.utf8_length(pc.utf8_rtrim(long, " "))
        if pc.any(pc.less_equal(trimmed, most)).as_py():
            raise _NoCounterpartError(
                f"expected at most {most} characters, found more, of which {column.type} would cut"
                " the blanks at the end: trim it in the stage before the sink"
            )
    elif base == "interval" and pc.any(pc.match_substring_regex(texts, _PAST_MICROSECONDS)).as_py():
        raise _NoCounterpartError(
            "expected at most 6 digits of a second, found more, which interval would round: round"
            " it in the stage before the sink"
        )


def _repeats_key(text: str | None) -> bool:
    try:
        if text is not None:
            _JSON.decode(text)
    except _RepeatedKeyError:
        return True
    except (ValueError, RecursionError):  # the server says what is wrong with it
        return False
    return False


class _RepeatedKeyError(Exception):
    """A JSON object has a key twice."""


def _require_different(pairs: list[tuple[str, Any]]) -> None:
    """Raise an error if two keys of an object are equal. Called with the object's keys and
    values.
    """
    if len(dict(pairs)) < len(pairs):
        raise _RepeatedKeyError


_JSON = json.JSONDecoder(object_pairs_hook=_require_different, parse_int=str, parse_float=str)


def _copied(array: pa.Array) -> pa.Array:
    """Return the array in a form that CSV writes as PostgreSQL reads it."""
    array = _decoded(array)
    kind = array.type
    if is_list(kind):
        values = _decoded(pc.list_flatten(array))
        text = _text(values)
        if scalar(values.type) in _ESCAPED:
            text = _replaced(_replaced(text, "\\", "\\\\"), '"', '\\"')
        return _bracketed("{", array, pc.fill_null(_joined('"', text, '"'), "NULL"), "}")
    if scalar(kind) == "binary":
        return _hex(array)
    if t.is_date(kind) or t.is_timestamp(kind):
        return _dated(array.cast(pa.date32() if t.is_date(kind) else utc(kind)))
    return array


def _dated(array: pa.Array) -> pa.Array:
    """Return dates or timestamps such that CSV has them as PostgreSQL reads them. If any year is
    before 1 or after 9999, the array is converted to text: Arrow would write such years in another
    form.
    """
    is_date = t.is_date(array.type)
    stored = pa.int32() if is_date else pa.int64()
    numbers = array.cast(stored).cast(pa.int64())
    unit = "D" if is_date else array.type.unit
    first, end, cycle = (int(np.datetime64(day).astype(f"M8[{unit}]").astype(int)) for day in _DAYS)
    is_far = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)), False)
    if not pc.any(is_far).as_py():
        return array
    # The calendar repeats after 400 years: the same day of the years 1970 to 2369, and its year.
    cycles, rest = np.divmod(numbers.filter(is_far).to_numpy(), cycle)
    near = pa.array(rest).cast(stored).cast(array.type)
    years = pc.add(pc.year(near), 400 * cycles)
    is_bc = pc.less(years, 1)
    digits = pc.if_else(is_bc, pc.subtract(1, years), years).cast(pa.string())
    rest_of_text = pc.utf8_slice_codeunits(near.cast(pa.string()), 4)
    text = _joined(pc.utf8_lpad(digits, 4, "0"), rest_of_text, pc.if_else(is_bc, " BC", ""))
    return pc.replace_with_mask(pc.if_else(is_far, None, array).cast(pa.string()), is_far, text)


def _text(array: pa.Array) -> pa.Array:
    """Return scalars as PostgreSQL reads them."""
    return _copied(array).cast(pa.string())


def _json(array: pa.Array) -> pa.Array:
    """Return values as JSON; null where they are null."""
    array = _decoded(array)
    kind = array.type
    if t.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        lists = array.cast(pa.list_(entry))
        entries = pc.list_flatten(lists)
        keys, values = _json_text(_decoded(entries.field(0))), _json_values(entries.field(1))
        return _bracketed("{", lists, _joined(keys, ":", values), "}")
    if is_list(kind):
        return _bracketed("[", array, _json_values(pc.list_flatten(array)), "]")
    if t.is_struct(kind):
        pieces: list[Any] = []
        # Flattened, the parts of a null are null, whatever their buffers hold.
        for number, (field, values) in enumerate(zip(kind, array.flatten(), strict=True)):
            comma = "," if number else ""
            pieces += [f"{comma}{json.dumps(field.name)}:", _json_values(values)]
        text = _joined("{", *pieces, "}") if pieces else pa.array(["{}"] * len(array), pa.string())
        return _where_valid(array, text)
    if t.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
        raise _NoCounterpartError("NaN and infinity are not in JSON: make them null")
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return array.cast(pa.string())
    return _json_text(array)


def _json_values(array: pa.Array) -> pa.Array:
    return pc.fill_null(_json(array), "null")


def _json_text(array: pa.Array) -> pa.Array:
    text = _text(array)
    if scalar(array.type) in _ESCAPED:
        text = _replaced(_replaced(text, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
            for code in _CONTROLS:
                text = _replaced(text, code, f"\\u{ord(code):04x}")
    elif t.is_timestamp(array.type):
        text = pc.replace_substring(text, " ", "T", max_replacements=1)  # not of BC
    return _joined('"', text, '"')


def _bracketed(left: str, array: pa.Array, values: pa.Array, right: str) -> pa.Array:
    """Return one text for each list of ``array``. ``values``: the texts of the values of all
    lists.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int32)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
    lists = pa.ListArray.from_arrays(offsets, values)
    return _where_valid(array, _joined(left, pc.binary_join(lists, ","), right))


def _hex(array: pa.Array) -> pa.Array:
    """Return bytes in bytea's hex format: a backslash, ``x``, and two digits for each byte."""
    array = array.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    values = array.drop_null()
    together = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"")
    digits = _HEX[np.frombuffer(together[0].as_buffer(), np.uint8)]
    offsets = np.concatenate([np.zeros(1, np.int64), 2 * np.cumsum(lengths, dtype=np.int64)])
    buffers = [pa.py_buffer(offsets), pa.py_buffer(digits.tobytes())]
    text = pa.LargeStringArray.from_buffers(len(array), *buffers).cast(pa.string())
    return _where_valid(array, _joined("\\x", text))


def _joined(*parts: Any) -> pa.Array:
    """Concatenate the parts of each row; null if a part is null."""
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def _replaced(text: pa.Array, pattern: str, replacement: str) -> pa.Array:
    return pc.replace_substring(text, pattern, replacement)


def _where_valid(array: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _decoded(array: pa.Array) -> pa.Array:
    """Return the array without dictionary encoding, and text in the layout that all functions
    accept.
    """
    if t.is_dictionary(array.type):
        array = array.dictionary_decode()
    if t.is_string_view(array.type) or t.is_large_string(array.type):
        return array.cast(pa.string())
    return array
