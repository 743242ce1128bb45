"""Parse lines of JSON into Python values: numbers as they are written, every key kept, no guesses.

A line is parsed by RFC 8259 and the options of its source.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

MOST_NESTED = 300  # objects and lists within one another: each takes a call of Python
NO_OBJECT = "expected one object, found something else or more"
HALVED = "half of a character: expected two \\u escapes, found one of them"
TOO_DEEP = f"expected at most {MOST_NESTED} objects and lists within one another, found more"
# Text in which each escaped half of a character has its other half.
_PAIRED = re.compile(
    r"[^\\]*+(?:\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F])[^\\]*+)*+", re.DOTALL
)
# What many writers take for JSON: how it looks between strings, and what to do about it.
_ALLOWED: Mapping[str, tuple[re.Pattern[str], str]] = {
    "allowNonNumericNumbers": (
        re.compile(r"[:\[,]\s*[-+]?(?:NaN|INF|Infinity)\b"),
        "NaN and Infinity are not in JSON: make them null",
    ),
    "allowSingleQuotes": (
        re.compile(r"[{:\[,]\s*'"),
        "single quotes are not in JSON: use double quotes",
    ),
}
# Strings of JSON; the last may be cut off.
_DOUBLE = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)'
_SINGLE = r"'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|\Z)"
_BLANKS = " \t\n\r"


class Number(str):
    """A number as it is written."""

    __slots__ = ()


class Doubled(dict[str, Any]):
    """An object with a repeated key. ``pairs``: all of its keys and values."""

    __slots__ = ("pairs",)
    pairs: list[tuple[str, Any]]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    doubled = Doubled(values)
    doubled.pairs = pairs
    return doubled


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_strictly: Any = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_refuse
)


def allows(options: Mapping[str, str], name: str) -> bool:
    """Return whether an option of a source of JSON is on."""
    return options.get(name, "").lower() == "true"


def parser_of(options: Mapping[str, str]) -> Callable[[str], dict[str, Any]]:
    """Return the function that parses a line into an object.

    It raises ValueError, with the reason, for anything else.
    """
    on = {name for name in options if allows(options, name)}
    scan = _Lenient(on).value if on else _strictly.scan_once

    def parse(line: str) -> dict[str, Any]:
        begin = 0
        while line.startswith(" ", begin):
            begin += 1
        try:
            if line.count("[") + line.count("{") > MOST_NESTED:
                _require_flat(line, on)
            value, end = scan(line, begin)
        except (StopIteration, json.JSONDecodeError, _NoJsonError) as exc:
            raise ValueError(_no_json(line, on)) from exc
        except ValueError as exc:
            raise ValueError(str(exc) if str(exc) == TOO_DEEP else _no_json(line, on)) from exc
        if not isinstance(value, dict) or (end != len(line) and line[end:].strip(_BLANKS)):
            raise ValueError(_no_json(line, on))
        if "\\u" in line and not _PAIRED.fullmatch(line):
            raise ValueError(HALVED)
        return value

    return parse


def _bare(line: str, on: set[str]) -> str:
    """Return a line with all of its strings emptied."""
    strings = f"{_DOUBLE}|{_SINGLE}" if "allowSingleQuotes" in on else _DOUBLE
    return re.sub(strings, '""', line, flags=re.DOTALL)


def _require_flat(line: str, on: set[str]) -> None:
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", _bare(line, on)):
        depth += 1 if bracket in "[{" else -1
        if depth > MOST_NESTED:
            raise ValueError(TOO_DEEP)


def _no_json(line: str, on: set[str]) -> str:
    """Return the reason why a line is not JSON, with the option that allows it if there is one."""
    bare = _bare(line, on)
    for name, (look, advice) in _ALLOWED.items():
        if name not in on and look.search(bare):
            return f"{advice}, or declare options={{{name!r}: 'true'}}"
    return NO_OBJECT


class _NoJsonError(Exception):
    """A line is neither JSON nor allowed by the options."""


class _Lenient:
    """Parser of JSON with what the options of a source allow in addition."""

    _BLANK = re.compile(r"[ \t\n\r]*+")
    _NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
    _ZEROS = re.compile(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
    _SPECIAL = re.compile(r"(?:NaN|[-+]INF|[-+]?Infinity)(?!\w)")
    _NAME = re.compile(r"[\w$@#*+-]++")
    _LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
    _LITERAL = re.compile(r"true|false|null")
    _ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
    _ESCAPED: Mapping[str, str] = {
        **{character: character for character in '"\\/'},
        **{"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"},
    }

    def __init__(self, on: set[str]):
        self._on = on
        self._number = self._ZEROS if "allowNumericLeadingZeros" in on else self._NUMBER
        control = "" if "allowUnquotedControlChars" in on else r"\x00-\x1f"
        quotes = "\"'" if "allowSingleQuotes" in on else '"'
        self._strings = {
            quote: re.compile(
                rf"{quote}([^{quote}\\{control}]*+(?:\\.[^{quote}\\{control}]*+)*+){quote}",
                re.DOTALL,
            )
            for quote in quotes
        }

    def value(self, line: str, at: int) -> tuple[Any, int]:
        """Return the value at a place, and the place behind it. Raises _NoJsonError."""
        character = line[at : at + 1]
        if character == "{":
            return self._object(line, at + 1)
        if character == "[":
            return self._list(line, at + 1)
        if character in self._strings:
            return self._string(line, at)
        for pattern in (self._number, self._LITERAL):
            if match := pattern.match(line, at):
                text = match[0]
                literal = self._LITERALS[text] if text in self._LITERALS else Number(text)
                return literal, match.end()
        match = self._SPECIAL.match(line, at)
        if match is None or "allowNonNumericNumbers" not in self._on:
            raise _NoJsonError
        return Number(match[0]), match.end()

    def _past(self, line: str, at: int) -> int:
        match = self._BLANK.match(line, at)
        assert match is not None
        return match.end()

    def _next(self, line: str, at: int, end: str) -> tuple[bool, int]:
        """Return whether the object or list ends here, and the place behind the comma or end.
        Raises _NoJsonError.
        """
        at = self._past(line, at)
        if line[at : at + 1] not in (",", end):
            raise _NoJsonError
        return line[at] == end, self._past(line, at + 1) if line[at] == "," else at + 1

    def _list(self, line: str, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self._past(line, at)
        if line[at : at + 1] == "]":
            return values, at + 1
        ended = False
        while not ended:
            value, at = self.value(line, at)
            values.append(value)
            ended, at = self._next(line, at, "]")
        return values, at

    def _object(self, line: str, at: int) -> tuple[dict[str, Any], int]:
        pairs: list[tuple[str, Any]] = []
        at = self._past(line, at)
        if line[at : at + 1] == "}":
            return {}, at + 1
        ended = False
        while not ended:
            name, at = self._name(line, at)
            at = self._past(line, at)
            if line[at : at + 1] != ":":
                raise _NoJsonError
            value, at = self.value(line, self._past(line, at + 1))
            pairs.append((name, value))
            ended, at = self._next(line, at, "}")
        return _object(pairs), at

    def _name(self, line: str, at: int) -> tuple[str, int]:
        if line[at : at + 1] in self._strings:
            return self._string(line, at)
        match = self._NAME.match(line, at)
        if match is None or "allowUnquotedFieldNames" not in self._on:
            raise _NoJsonError
        return match[0], match.end()

    def _string(self, line: str, at: int) -> tuple[str, int]:
        match = self._strings[line[at]].match(line, at)
        if match is None:
            raise _NoJsonError
        text = self._ESCAPE.sub(self._unescaped, match[1]) if "\\" in match[1] else match[1]
        # Both halves of a character, each of which is escaped, are one.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"), match.end()

    def _unescaped(self, match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        if escaped in self._ESCAPED:
            return self._ESCAPED[escaped]
        any_character = "allowBackslashEscapingAnyCharacter" in self._on
        if not any_character and (escaped != "'" or "'" not in self._strings):
            raise _NoJsonError
        return escaped


_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _in_quotes(text: str) -> str:
    def escape(match: re.Match[str]) -> str:
        return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}"

    return f'"{_TO_ESCAPE.sub(escape, text)}"'


def text_of(value: Any) -> str:
    """Return a value as a text: a string without quotes, anything else as JSON without blanks."""
    return str(value) if type(value) is str else _json(value)


def _json(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return _in_quotes(value)
    if isinstance(value, list):
        parts = []
        for part in value:  # no comprehension, which would take another call at each depth
            parts.append(_json(part))
        return f"[{','.join(parts)}]"
    if isinstance(value, dict):
        parts = []
        for name, part in value.pairs if isinstance(value, Doubled) else value.items():
            parts.append(f"{_in_quotes(name)}:{_json(part)}")
        return f"{{{','.join(parts)}}}"
    return "null" if value is None else str(value).lower()
