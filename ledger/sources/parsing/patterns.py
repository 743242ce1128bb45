"""Patterns of dates and timestamps, checked where they are declared.

Spark makes up the parts that a pattern lacks, cuts what a type does not hold, and refuses other
patterns only when it reads a record.
"""

import re
from collections.abc import Iterator

Section = tuple[int, ...]  # the optional sections that a letter is in, from the outermost

_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)
_READ = re.compile(
    r"G{1,4}|y{1,6}|[ML]{1,4}|D{1,3}|a|dd?|hh?|HH?|kk?|KK?|mm?|ss?|S{1,9}|[XxZ]{1,5}|O|OOOO|VV"
    r"|z{1,4}|v|vvvv"
)
_DATE = {"year": ("y", "yyyy"), "month": ("MLD", "MM"), "day": ("dD", "dd")}
# Per letter: the letters of which one has to be there too, what they stand for, and what to write.
_NEEDED = {
    "h": ("a", "am or pm", "add a, or write HH for hh"),
    "K": ("a", "am or pm", "add a, or write HH for KK"),
    "a": ("hK", "an hour of twelve", "write hh for the hour"),
    "m": ("HkhK", "an hour", "add HH"),
    "s": ("m", "a minute", "add mm"),
    "S": ("s", "a second", "add ss"),
}
_OFFSETS, _ZONES = "XxZO", "zvV"
MOST_DIGITS = 6  # after the second
_BREAKS = "\n\r\x85\u2028\u2029"
_IN_A_STAGE = "declare STRING and parse it in a stage"


def fault(option: str, pattern: str) -> str | None:
    """Why texts of a pattern would not become exact values, and what to do; None if they would."""
    try:
        fields = list(_fields(pattern))
    except ValueError as exc:
        return str(exc)
    return next(_faults(option, fields), None)


def _fields(pattern: str) -> Iterator[tuple[str, Section]]:
    """The runs of letters, each with its section. Raises ValueError where Spark would raise."""
    section: Section = ()
    opened, before = 0, ""
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if match[1]:
            if not _READ.fullmatch(token):
                raise ValueError(f"Spark does not parse {token}: {_instead(token[0])}")
            if token[0] == "S" and before[:1].isalpha():
                raise ValueError(f"Spark does not parse {token} behind digits: {_IN_A_STAGE}")
            yield token, section
        elif token == "[":
            opened += 1
            section = (*section, opened)
        elif token == "]" and section:
            section = section[:-1]
        elif token in ("'", "]", "{", "}", "#") or token in _BREAKS:
            raise ValueError(f"it has a single {token!r}: put it in single quotes, or close it")
        before = token
    if section:
        raise ValueError("it has a single '[': put it in single quotes, or close it")


def _instead(letter: str) -> str:
    if letter in "Yu":
        return "write yyyy"
    return f"put it in single quotes if it is in the texts as it is, or {_IN_A_STAGE}"


def _faults(option: str, fields: list[tuple[str, Section]]) -> Iterator[str]:
    always = {token[0] for token, section in fields if not section}
    for part, (letters, usual) in _DATE.items():
        if not always.intersection(letters):
            yield f"it has no {part}, which Spark would make up: add {usual}, outside of [ and ]"
    for token, section in fields:
        letter = token[0]
        if token == "yy":
            yield f"yy has no century, which Spark would make up: write yyyy, or {_IN_A_STAGE}"
        if letter in _ZONES:
            yield (
                f"{token} is the name of a time zone, in which an hour comes twice when the clocks"
                f" go back: write XXX for an offset, or {_IN_A_STAGE}"
            )
        if letter in _OFFSETS and option != "timestampFormat":
            yield (
                f"{token} is an offset, which the column would not hold: declare the column"
                f" TIMESTAMP and set timestampFormat, or {_IN_A_STAGE}"
            )
        if letter == "S" and len(token) > MOST_DIGITS:
            yield (
                f"{token} has more digits than a timestamp, which has {MOST_DIGITS}: write"
                f" {'S' * MOST_DIGITS}, or {_IN_A_STAGE}"
            )
        needed, what, usual = _NEEDED.get(letter, ("", "", ""))
        if needed and not any(
            other[0] in needed and section[: len(outer)] == outer for other, outer in fields
        ):
            yield f"it has {token} without {what}, which Spark would make up: {usual}"
