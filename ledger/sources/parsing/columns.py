"""Fit values of parsed records into Arrow columns, and find the rows whose value does not fit.

Arrow converts the texts that it is sure to convert exactly, and ``scalars`` the others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from ledger.sources.parsing.json_text import Doubled, Number, allows, text_of
from ledger.sources.parsing.scalars import BASE64, FORMATS, Make, maker_of
from ledger.sources.vectorized import texts
from ledger.sources.vectorized.lines import mask
from ledger.types.spark import nullable, to_arrow_type, without_lengths

Values = Sequence[Any]
# Makes an array of values, null where one does not fit, and the places of those that do not.
Fit = Callable[[Values], tuple[pa.Array, np.ndarray]]

NONE = np.empty(0, np.int64)
SPECIAL = "allowNonNumericNumbers"
SPECIAL_TEXTS = frozenset(
    ["NaN", "+INF", "-INF", "Infinity", "+Infinity", "-Infinity"]
)  # numbers as strings
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)


def stored(kind: T.DataType) -> pa.DataType:
    """Return the Arrow type in which values of a column are stored. All its parts are nullable."""
    return to_arrow_type(nullable(without_lengths(kind)))


def of_texts(kind: T.DataType, options: Mapping[str, str], make: Make | None = None) -> Fit:
    """Return the function that converts texts, or nulls, to a scalar type.

    ``make``: converts a single text.
    """
    arrow, make = stored(kind), make or maker_of(kind, options)
    has_format = type(kind) in FORMATS and options.get(FORMATS[type(kind)]) is not None
    is_vectorized = texts.converts(kind) and not has_format

    def fit(values: Values) -> tuple[pa.Array, np.ndarray]:
        strings = pa.array(values, pa.string())
        if isinstance(kind, T.StringType):
            return strings, NONE
        column = texts.converted(strings, kind) if is_vectorized else pa.nulls(len(strings), arrow)
        if column.null_count == strings.null_count:
            return column, NONE
        rest = np.flatnonzero(mask(pc.and_(strings.is_valid(), column.is_null())))
        exact = [_exactly(make, str(values[place])) for place in rest.tolist()]
        bad = rest[[value is None for value in exact]]
        if len(bad) < len(rest):
            rows = np.arange(len(values))
            rows[rest] = len(values) + np.arange(len(rest))
            column = pa.concat_arrays([column, _array(exact, arrow)]).take(pa.array(rows))
        return column, bad

    return fit


def _exactly(make: Make, text: str) -> Any:
    try:
        return make(text)
    except (ValueError, ArithmeticError):
        return None


def _array(values: Values, arrow: pa.DataType) -> pa.Array:
    """Return an array of values. Dates and times are numbers, as ``scalars`` makes them."""
    if pa.types.is_date(arrow):
        return pa.array(values, pa.int32()).cast(arrow)
    if pa.types.is_time(arrow):
        return pa.array(values, pa.int64()).cast(pa.time64("us")).cast(arrow)
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int64()).cast(arrow)
    return pa.array(values, arrow)


def of_json(kind: T.DataType, options: Mapping[str, str]) -> Fit:
    """Return the function that converts JSON values to a type."""
    if isinstance(kind, T.StructType):
        return _structs(kind, options)
    if isinstance(kind, T.ArrayType):
        return _lists(kind, options)
    if isinstance(kind, T.MapType):
        return _maps(kind, options)
    if isinstance(kind, T.BooleanType):
        return _truths
    if isinstance(kind, T.BinaryType):
        return _only({str}, of_texts(kind, options, BASE64))
    if isinstance(kind, T.FloatType | T.DoubleType) and allows(options, SPECIAL):
        return _only({Number}, of_texts(kind, options), SPECIAL_TEXTS)
    if isinstance(kind, _NUMBERS):
        return _only({Number}, of_texts(kind, options))
    return _as_texts(of_texts(kind, options, maker_of(kind, options, exponents=True)))


def _only(classes: set[type], fit: Fit, also: Collection[str] = ()) -> Fit:
    """Restrict ``fit`` to values of these classes, and the texts ``also``. Any other value is a
    misfit.
    """

    def fits(value: Any) -> bool:
        return type(value) in classes or (bool(also) and type(value) is str and value in also)

    def fit_some(values: Values) -> tuple[pa.Array, np.ndarray]:
        if {*classes, type(None)}.issuperset(map(type, values)):
            return fit(values)
        wrong = [n for n, value in enumerate(values) if value is not None and not fits(value)]
        column, bad = fit([value if fits(value) else None for value in values])
        return column, np.union1d(bad, wrong).astype(np.int64)

    return fit_some


def _as_texts(fit: Fit) -> Fit:
    """Convert values to texts: strings as they are, numbers as they are written, and other values
    as JSON.
    """

    def fit_all(values: Values) -> tuple[pa.Array, np.ndarray]:
        if not {str, Number, type(None)}.issuperset(map(type, values)):
            values = [None if value is None else text_of(value) for value in values]
        return fit(values)

    return fit_all


def _truths(values: Values) -> tuple[pa.Array, np.ndarray]:
    if {bool, type(None)}.issuperset(map(type, values)):
        return pa.array(values, pa.bool_()), NONE
    wrong = [n for n, value in enumerate(values) if value is not None and type(value) is not bool]
    values = [value if type(value) is bool else None for value in values]
    return pa.array(values, pa.bool_()), np.array(wrong, np.int64)


def _structs(kind: T.StructType, options: Mapping[str, str]) -> Fit:
    fits = {field.name: of_json(field.dataType, options) for field in kind.fields}
    fields = [pa.field(field.name, stored(field.dataType)) for field in kind.fields]

    def fit(values: Values) -> tuple[pa.Array, np.ndarray]:
        objects, absent, bad = _having(values, {dict, Doubled}, {})
        columns = []
        for field in kind.fields:
            column, misfits = fits[field.name]([value.get(field.name) for value in objects])
            columns.append(column)
            if not field.nullable and column.null_count:
                lacking = mask(column.is_null())
                lacking = lacking if absent is None else lacking & ~absent
                misfits = np.union1d(misfits, np.flatnonzero(lacking))
            bad = np.union1d(bad, misfits) if len(misfits) else bad
        if Doubled in set(map(type, objects)):
            twice = [n for name in fits for n in misfits_of_doubled(name, fits[name], objects)]
            bad = np.union1d(bad, np.array(twice, np.int64))
        is_null = None if absent is None else pa.array(absent)
        return pa.StructArray.from_arrays(columns, fields=fields, mask=is_null), bad

    return fit


def misfits_of_doubled(name: str, fit: Fit, objects: Values) -> dict[int, Any]:
    """Find objects in which the key ``name`` is repeated, and one of its values does not fit.
    Return the first such value, by the index of its object.
    """
    parts = [
        (place, part)
        for place, value in enumerate(objects)
        if type(value) is Doubled
        for key, part in value.pairs
        if key == name
    ]
    misfits = fit([part for _, part in parts])[1] if parts else NONE
    return dict(parts[number] for number in reversed(misfits.tolist()))


def _having(
    values: Values, classes: set[type], nothing: Any
) -> tuple[Values, np.ndarray | None, np.ndarray]:
    """Split values by their class. Return three things: the values, with ``nothing`` for those of
    other classes; flags of those of other classes, or None if there are none; and the indexes of
    these that are not null.
    """
    if classes.issuperset(map(type, values)):
        return values, None, NONE
    absent = np.array([type(value) not in classes for value in values])
    bad = [n for n in np.flatnonzero(absent).tolist() if values[n] is not None]
    having = [nothing if lacks else value for value, lacks in zip(values, absent, strict=True)]
    return having, absent, np.array(bad, np.int64)


def _lists(kind: T.ArrayType, options: Mapping[str, str]) -> Fit:
    fit_part, arrow = of_json(kind.elementType, options), stored(kind)

    def fit(values: Values) -> tuple[pa.Array, np.ndarray]:
        lists, absent, bad = _having(values, {list}, ())
        elements, misfits = fit_part([part for value in lists for part in value])
        offsets, owners = _cut(lists, elements, misfits, has_nulls=kind.containsNull)
        bad = np.union1d(bad, owners) if len(owners) else bad
        is_null = None if absent is None else pa.array(absent)
        return pa.ListArray.from_arrays(offsets, elements, arrow, mask=is_null), bad

    return fit


def _maps(kind: T.MapType, options: Mapping[str, str]) -> Fit:
    """Return the function that converts values to a MAP. An object with a repeated key does not
    fit.
    """
    fit_part, arrow = of_json(kind.valueType, options), stored(kind)

    def fit(values: Values) -> tuple[pa.Array, np.ndarray]:
        maps, absent, bad = _having(values, {dict}, {})
        keys = pa.array([key for value in maps for key in value], pa.string())
        items, misfits = fit_part([part for value in maps for part in value.values()])
        offsets, owners = _cut(maps, items, misfits, has_nulls=kind.valueContainsNull)
        bad = np.union1d(bad, owners) if len(owners) else bad
        is_null = None if absent is None else pa.array(absent)
        return pa.MapArray.from_arrays(offsets, keys, items, arrow, mask=is_null), bad

    return fit


def _cut(
    values: Iterable[Any], parts: pa.Array, misfits: np.ndarray, *, has_nulls: bool
) -> tuple[pa.Array, np.ndarray]:
    """Return the offsets of the parts of each value, and the places of values with a misfit."""
    lengths = np.fromiter(map(len, values), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if not has_nulls and parts.null_count:
        misfits = np.union1d(misfits, np.flatnonzero(mask(parts.is_null())))
    owners = (
        np.unique(np.searchsorted(offsets, misfits, side="right") - 1) if len(misfits) else NONE
    )
    return pa.array(offsets, pa.int32()), owners
