"""Keys of JSON that look like the name of a column or field but differ from it.

They differ in case, blanks, invisible characters, the form of an accent or the width of a letter.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import types as T

from ledger.sources.parsing.json_text import Doubled

KeyPath = tuple[str, ...]  # the names that lead to a key, from the outermost
Misspelt = Callable[[Any], str | None]
_MOST_REASONS = 10_000  # combinations of keys whose reasons are remembered

# Invisible characters beside controls and formats (Cc, Cf): those that Unicode calls ignorable,
# fillers of Hangul, and the blank pattern of Braille.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def folded(name: str) -> str:
    """Return a name as a person reads it.

    Case, blanks, invisible characters, the form of accents and the width of letters do not count.
    """
    seen = "".join(
        character
        for character in unicodedata.normalize("NFKC", name)
        if not character.isspace()
        and unicodedata.category(character) not in ("Cc", "Cf")
        and not _UNSEEN.match(character)
    )
    return unicodedata.normalize("NFKC", seen.upper())


def quoted_lookalike(name: str, meant: str) -> str:
    """Return a name in quotes. Characters beyond ASCII are escaped unless the name differs from
    ``meant`` only in case and blanks: other differences, such as an invisible character, cannot be
    seen.
    """
    return repr(name) if _without_blanks(name) == _without_blanks(meant) else ascii(name)


def _without_blanks(name: str) -> str:
    return "".join(name.split()).upper()


def misspelt(kind: T.DataType, path: str = "") -> Misspelt | None:
    """Return the function that finds a key which looks like one that its object lacks.

    It looks at each object in a value of the type that is a STRUCT, and returns a reason such as
    ``expected column id, found ID``, or None. None: the type has no STRUCT.

    ``path``: the names that lead to the value, each with a dot behind it.
    """
    if isinstance(kind, T.StructType):
        return _of_objects(kind, path)
    if isinstance(kind, T.ArrayType):
        within = misspelt(kind.elementType, path)
        return within and partial(_first, within, list, iter)
    if isinstance(kind, T.MapType):
        within = misspelt(kind.valueType, path)
        return within and partial(_first, within, dict, dict.values)
    return None


def _of_objects(kind: T.StructType, path: str) -> Misspelt:
    names, reasons = frozenset(kind.names), dict[tuple[str, ...], str | None]()
    parts = [
        (field.name, within)
        for field in kind.fields
        if (within := misspelt(field.dataType, f"{path}{field.name}."))
    ]

    def look(value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        if not names.issuperset(value):
            keys = tuple(value)
            if keys not in reasons:
                if len(reasons) == _MOST_REASONS:
                    reasons.clear()
                reasons[keys] = _instead(keys, kind.names, path)
            if reasons[keys]:
                return reasons[keys]
        for name, within in parts:
            if (part := value.get(name)) and (why := within(part)):
                return why
        pairs = value.pairs if isinstance(value, Doubled) else ()
        every = (within(part) for name, within in parts for key, part in pairs if key == name)
        return next(filter(None, every), None) if pairs else None

    return look


def _first(
    within: Misspelt, kind: type, parts: Callable[[Any], Iterable[Any]], value: Any
) -> str | None:
    """Return the first reason in a part of a value of this class; None: there is none, or the value
    is of another class.
    """
    return next(filter(None, map(within, parts(value))), None) if isinstance(value, kind) else None


def _instead(keys: Sequence[str], names: list[str], path: str) -> str | None:
    others = [key for key in keys if key not in names]
    for name in names:
        for key in others if name not in keys else ():
            if folded(key) == folded(name):
                what = f"expected field {path}" if path else "expected column "
                return f"{what}{name}, found {_escaped(key, name)}"
    return None


def _escaped(key: str, name: str) -> str:
    """Return a key as a message shows it: as it is if it differs from the expected name only in
    case and blanks, else with escapes for all but printable ASCII.
    """
    if _without_blanks(key) == _without_blanks(name):
        return key
    return "".join(c if " " <= c <= "~" else f"\\u{ord(c):04x}" for c in key)
