"""Keys of JSON that a person takes for a column's name, or a field's, although they differ from it.

They differ in case, blanks, invisible characters, the form of an accent or the width of a letter.
Spark's reader takes no notice of them, whatever ``spark.sql.caseSensitive`` is: the column is null.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ledger.sources.parsing.values import allows, any_of, matches
from ledger.types.spark import walk

KeyPath = tuple[str, ...]  # the names that lead to a key, from the outermost

# The blanks of ``str.split``, for Java.
_BLANKS = (
    r"[\s\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)
# Keys that may be a name though they are written otherwise: with escapes, or beyond ASCII.
_ESCAPED = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)++"\s*+:'
_FOREIGN = r'[^\x00-\x7f][^"\\]*+"\s*+:'


# Invisible characters beside controls and formats (Cc, Cf): those that Unicode calls ignorable,
# fillers of Hangul, and the blank pattern of Braille.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_INVISIBLE = rf"(?:{_BLANKS}|[\p{{Cc}}\p{{Cf}}]|{_UNSEEN.pattern})"
# Letters are the same in either form of an accent and of any width, as in names that are equal.
_COLLATION = "UNICODE_CI"


def folded(name: str) -> str:
    """A name as a person reads it: whatever its case, its form of an accent and the width of its
    letters, without blanks and invisible characters."""
    seen = "".join(filter(_is_seen, unicodedata.normalize("NFKC", name)))
    return unicodedata.normalize("NFKC", seen.upper())


def spelt(name: str, meant: str) -> str:
    """A name in quotes; with escapes if it looks like another name that is meant."""
    return repr(name) if _without_blanks(name) == _without_blanks(meant) else ascii(name)


def _is_seen(character: str) -> bool:
    unseen = character.isspace() or unicodedata.category(character) in ("Cc", "Cf")
    return not (unseen or _UNSEEN.match(character))


def _without_blanks(name: str) -> str:
    return "".join(name.split()).upper()


def misspelt(
    text: Column, schema: StructType, values: Mapping[str, Column], options: Mapping[str, str]
) -> Column:
    """Return a reason such as ``expected column id, found ID``, or null.

    A line has a reason if it lacks a column, or a field of a STRUCT in one, and has a key instead
    that looks like it.

    ``values``: the columns as they were read.
    ``options``: options of the reader of JSON.
    """
    lacking = [
        pair for field in schema.fields for pair in _lacking(values[field.name], field.dataType)
    ]
    missing = [(values[name].isNull(), [name]) for name in schema.names] + lacking
    reason = _reason(text, schema, "", options)
    if not any("Quote" in name or "Unquoted" in name for name in options if allows(options, name)):
        # Looked for by its own name, a column that is there costs nothing.
        looks = [is_null & text.rlike(_looks(names)) for is_null, names in missing]
        escaped = F.contains(text, F.lit("\\")) & text.rlike(_ESCAPED)
        foreign = (F.octet_length(text) != F.length(text)) & text.rlike(_FOREIGN)
        reason = F.when(any_of([*looks, escaped, foreign]), reason)
    return F.when(any_of([is_null for is_null, _ in missing]), reason)


def _lacking(value: Column, kind: DataType) -> Iterator[tuple[Column, list[str]]]:
    """For each part of a value that has fields: whether it, or one of its elements, has a field
    that is null, and the names of all fields."""
    if isinstance(kind, StructType):
        parts = [value[name].isNull() for name in kind.names]
        if parts:
            yield value.isNotNull() & any_of(parts), kind.names
        for field in kind.fields:
            yield from _lacking(value[field.name], field.dataType)
    elif isinstance(kind, ArrayType | MapType) and _names(kind):
        elements, inner = _elements(value, kind)

        def lacks(element: Column) -> Column:
            return any_of([is_null for is_null, _ in _lacking(element, inner)])

        yield F.coalesce(F.exists(elements, lacks), F.lit(False)), _names(inner)


def _names(kind: DataType) -> list[str]:
    """The names of a type's fields, at every depth."""
    return [name for _, part in walk(kind) if isinstance(part, StructType) for name in part.names]


def _elements(value: Column, kind: ArrayType | MapType) -> tuple[Column, DataType]:
    if isinstance(kind, ArrayType):
        return value, kind.elementType
    return F.map_values(value), kind.valueType


def _reason(text: Column, kind: StructType, path: str, options: Mapping[str, str]) -> Column:
    """Return the ``misspelt`` field of the text of an object. ``path``: the names that lead to the
    object, as a reason shows them."""

    def first(read: Column) -> Column:
        deeper = [
            _within(
                F.try_element_at(read, F.lit(field.name)),
                field.dataType,
                path + field.name,
                options,
            )
            for field in kind.fields
            if _names(field.dataType)
        ]
        return F.coalesce(_instead(F.map_keys(read), kind.names, path), *deeper)

    # A list of one, so that the text is parsed once for all names.
    read = F.array(F.from_json(text, "MAP<STRING, STRING>", options))
    return F.get(F.transform(read, first), F.lit(0))


def _within(text: Column, kind: DataType, path: str, options: Mapping[str, str]) -> Column:
    """Return the first ``misspelt`` field in the text of a value with parts."""
    if not isinstance(kind, ArrayType | MapType):
        assert isinstance(kind, StructType)
        return _reason(text, kind, f"{path}.", options)
    as_texts = "ARRAY<STRING>" if isinstance(kind, ArrayType) else "MAP<STRING, STRING>"
    elements, inner = _elements(F.from_json(text, as_texts, options), kind)
    reasons = F.transform(elements, lambda element: _within(element, inner, path, options))
    return F.get(F.array_compact(reasons), F.lit(0))


def paths(
    text: Column,
    kind: StructType,
    options: Mapping[str, str],
    excluded: Collection[KeyPath] = (),
    path: KeyPath = (),
) -> Column:
    """Return the keys of the text of an object, an array: also of each object that is a STRUCT, or
    an element of one, each behind the names that lead to it (``[item, price]``). The paths that are
    ``excluded`` are left out."""

    def of(read: Column) -> Column:
        names = F.map_keys(read)
        without = [own[-1] for own in excluded if own[:-1] == path]
        if without:
            names = F.array_except(names, F.array(*map(F.lit, without)))
        own = F.transform(names, lambda key: F.array(*map(F.lit, path), key))
        deeper = [
            _paths_within(
                F.try_element_at(read, F.lit(field.name)),
                field.dataType,
                options,
                excluded,
                (*path, field.name),
            )
            for field in kind.fields
            if _names(field.dataType)
        ]
        return F.flatten(F.array(own, *deeper))

    read = F.array(F.from_json(text, "MAP<STRING, STRING>", options))
    return F.coalesce(F.get(F.transform(read, of), F.lit(0)), _no_paths())


def _paths_within(
    text: Column,
    kind: DataType,
    options: Mapping[str, str],
    excluded: Collection[KeyPath],
    path: KeyPath,
) -> Column:
    """Return the ``paths`` in the text of a value with parts."""
    if isinstance(kind, StructType):
        return paths(text, kind, options, excluded, path)
    assert isinstance(kind, ArrayType | MapType)
    as_texts = "ARRAY<STRING>" if isinstance(kind, ArrayType) else "MAP<STRING, STRING>"
    elements, inner = _elements(F.from_json(text, as_texts, options), kind)
    each = F.transform(
        elements, lambda element: _paths_within(element, inner, options, excluded, path)
    )
    return F.coalesce(F.flatten(each), _no_paths())


def _no_paths() -> Column:
    return F.array().cast("ARRAY<ARRAY<STRING>>")


def _instead(keys: Column, names: list[str], path: str) -> Column:
    columns = F.array(*map(F.lit, names))
    others = F.array_except(keys, columns)
    what = F.lit(f"expected field {path}" if path else "expected column ")

    def instead(name: Column) -> Column:
        near = F.filter(others, lambda key: _folded(key) == _folded(name))
        return F.concat(what, name, F.lit(", found "), _spelt(F.get(near, F.lit(0)), name))

    return F.get(F.array_compact(F.transform(F.array_except(columns, keys), instead)), F.lit(0))


def _folded(name: Column) -> Column:
    """Fold a name as ``folded`` does."""
    return F.collate(_upper(name, _INVISIBLE), _COLLATION)


def _upper(name: Column, without: str) -> Column:
    return F.upper(F.regexp_replace(name, F.lit(f"{without}+"), F.lit("")))


def _spelt(key: Column, name: Column) -> Column:
    """Spell a key as ``spelt`` does, without quotes."""

    def escaped(letter: Column) -> Column:
        code = F.format_string("\\u%04x", F.ascii(letter))
        return F.when(matches(letter, "[ -~]"), letter).otherwise(code)

    is_plain = _upper(key, _BLANKS) == _upper(name, _BLANKS)
    letters = F.transform(F.split(key, ""), escaped)
    return F.when(is_plain, key).otherwise(F.array_join(letters, ""))


def _looks(names: list[str]) -> str:
    """Return a pattern of lines with a key of nearly one of these names, in ASCII."""
    loose = {
        name: r"[\s\x1c-\x1f\x7f]*+".join(["", *map(re.escape, folded(name)), ""]) for name in names
    }
    nearly = [
        rf'(?!{re.escape(name)}")(?i:{pattern})'
        for name, pattern in loose.items()
        if folded(name).isascii()
    ]
    return rf'"(?:{"|".join(nearly)})"\s*+:' if nearly else r"(?!)"
