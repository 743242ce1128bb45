"""Check patterns of dates and timestamps where they are declared.

The patterns are Java's, as Spark uses them. A pattern is refused if it lacks a part of a date, has
more than its column's type holds, or is one that Spark does not write.
"""

import re
from collections.abc import Iterator

Section = tuple[int, ...]  # the optional sections that a part is in, from the outermost

_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)
_READ = re.compile(
    r"G{1,4}|y{1,6}|[ML]{1,4}|D{1,3}|a|dd?|hh?|HH?|kk?|KK?|mm?|ss?|S{1,9}|[XxZ]{1,5}|O|OOOO|VV"
    r"|z{1,4}|v|vvvv"
)
# Fields of digits, and those of which as many are read as are written.
_DIGITS = re.compile(r"y+|[ML]{1,2}|[DdHhKkmsS]+")
_FIXED = ("MM", "LL", "dd", "DDD", "HH", "hh", "KK", "kk", "mm", "ss")
_DATE = {"year": ("y", "yyyy"), "month": ("MLD", "MM"), "day": ("dD", "dd")}
# Per letter: the letters of which one has to be there too, what they stand for, and what to write.
_NEEDED = {
    "h": ("a", "am or pm", "add a, or write HH for hh"),
    "K": ("a", "am or pm", "add a, or write HH for KK"),
    "a": ("hKHk", "an hour", "add hh"),
    "m": ("HkhK", "an hour", "add HH"),
    "s": ("m", "a minute", "add mm"),
    "S": ("s", "a second", "add ss"),
}
_TIMES, _OFFSETS, _ZONES = "aHhKkmsS", "XxZO", "zvV"
MOST_DIGITS = 6  # after the second
_BREAKS = "\n\r\x85\u2028\u2029"
_IN_A_STAGE = "declare STRING and parse it in a stage"


def fault(option: str, pattern: str) -> str | None:
    """Return why a pattern would not give exact values, and what to do; None if it would."""
    try:
        parts = list(parts_of(pattern))
    except ValueError as exc:
        return str(exc)
    return next(_faults(option, parts), None)


def parts_of(pattern: str) -> Iterator[tuple[str, Section]]:
    """Cut a pattern into runs of letters and other texts, each with its section. Raises ValueError
    for a pattern that reads no text."""
    section: Section = ()
    opened, before = 0, ""  # the last field with any number of digits of those right before
    outside: list[str] = []  # the same where a section began
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        if match[1]:
            if not _READ.fullmatch(token):
                instead = "write yyyy"
                if token[0] not in "Yu":
                    instead = (
                        f"put it in single quotes if it is in the texts as it is, or {_IN_A_STAGE}"
                    )
                raise ValueError(f"{token} is not read: {instead}")
            is_open = _DIGITS.fullmatch(token) and token not in _FIXED
            if before and is_open:
                raise ValueError(
                    f"{token} right behind {before} is not read, because either has any number of"
                    f" digits: {_IN_A_STAGE}"
                )
            if token[0] == "S" or not _DIGITS.fullmatch(token):
                before = ""
            elif is_open:
                before = token
            yield token, section
        elif token == "[":
            opened += 1
            section = (*section, opened)
            outside.append(before)
        elif token == "]" and section:
            section, before = section[:-1], outside.pop()
        elif token in ("'", "]", "{", "}", "#") or token in _BREAKS:
            raise ValueError(f"it has a single {token!r}: put it in single quotes, or close it")
        else:
            before = ""
            yield token, section
    if section:
        raise ValueError("it has a single '[': put it in single quotes, or close it")


def _faults(option: str, parts: list[tuple[str, Section]]) -> Iterator[str]:
    missing = _missing(parts)
    if missing:
        usual = _DATE[missing][1]
        yield f"it has no {missing}, which would be made up: add {usual}, outside of [ and ]"
    fields = [(token, section) for token, section in parts if token[0].isalpha()]
    for token, section in fields:
        letter = token[0]
        if token == "yy":
            yield f"yy has no century, which would be made up: write yyyy, or {_IN_A_STAGE}"
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
            yield f"it has {token} without {what}, which would be made up: {usual}"
    times = [token for token, _ in fields if token[0] in _TIMES]
    if times and option == "dateFormat":
        yield (
            f"{times[0]} is a time, which a DATE would not hold: declare the column TIMESTAMP_NTZ"
            " and set timestampNTZFormat, or, if all texts have the same time, write it in single"
            " quotes: ' 00:00:00'"
        )


def _missing(parts: list[tuple[str, Section]], depth: int = 0) -> str | None:
    """Return a part of a date that texts of a pattern may lack; None: each text has all parts.

    ``depth``: the number of brackets around the pattern. Every text has the parts outside of
    optional sections. If a pattern has only sections, a text has one of them, because it is not
    empty; so each section needs all parts.
    """
    here = {token[0] for token, section in parts if len(section) == depth}
    missing = next((part for part, (own, _) in _DATE.items() if here.isdisjoint(own)), None)
    numbers = {section[depth] for _, section in parts if len(section) > depth}
    if missing is None or here or not numbers:
        return missing
    within = ([part for part in parts if part[1][depth] == number] for number in sorted(numbers))
    return next(filter(None, (_missing(own, depth + 1) for own in within)), None)
