"""Read texts of dates, times and intervals, by ISO 8601 or a pattern, as microseconds."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from pyspark.sql import types as T

from ledger.sources.parsing.patterns import parts_of

Read = Callable[[str], int]  # a text as microseconds since 1970; raises ValueError

SECOND = 1_000_000
DAY = 86_400 * SECOND
_LATEST_OFFSET = 18 * 3600  # seconds
_DATE = r"(?P<y>[0-9]{4})-(?P<M>[0-9]{2})-(?P<d>[0-9]{2})"
_CLOCK = r"(?P<H>[0-9]{2}):(?P<m>[0-9]{2})"
_SECONDS = r":(?P<s>[0-9]{2})(?:\.(?P<S>[0-9]{1,6}))?"
_ZONE = r"(?P<offset>Z|[+-][0-9]{2}:?[0-9]{2})"
_ISO: Mapping[type[T.DataType], re.Pattern[str]] = {
    T.DateType: re.compile(_DATE),
    T.TimestampNTZType: re.compile(f"{_DATE}(?:[T ]{_CLOCK}(?:{_SECONDS})?)?"),
    # A zone is behind seconds only: behind minutes it may be taken for another part.
    T.TimestampType: re.compile(f"{_DATE}(?:[T ]{_CLOCK}(?:{_SECONDS}{_ZONE}?)?)?"),
}
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
_OFFSET = re.compile(r"(?:GMT)?(?:([+-])([0-9]{1,2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?)?|Z")
_HH, _HHMM, _COLON = "[+-][0-9]{2}", "[+-][0-9]{4}", "[+-][0-9]{2}:[0-9]{2}"
_OFFSETS = {
    "x": f"{_HH}(?:[0-9]{{2}})?",
    "xx": _HHMM,
    "xxx": _COLON,
    "xxxx": f"{_HHMM}(?:[0-9]{{2}})?",
    "xxxxx": f"{_COLON}(?::[0-9]{{2}})?",
    "O": "GMT(?:[+-][0-9]{1,2}(?::[0-9]{2}(?::[0-9]{2})?)?)?",
    "OOOO": f"GMT(?:{_COLON}(?::[0-9]{{2}})?)?",
}
_OFFSETS |= {f"X{'X' * n}": f"Z|{_OFFSETS['x' * (n + 1)]}" for n in range(5)}
_OFFSETS |= {"Z": _HHMM, "ZZ": _HHMM, "ZZZ": _HHMM, "ZZZZ": _OFFSETS["OOOO"]}
_OFFSETS |= {"ZZZZZ": _OFFSETS["XXXXX"]}
_ERAS = {"ad": 1, "bc": -1, "anno domini": 1, "before christ": -1}


def iso(kind: T.DataType) -> Read:
    """Return the reader of ISO 8601 for a DATE, TIMESTAMP or TIMESTAMP_NTZ. It raises ValueError
    for any other text.
    """
    pattern = _ISO[type(kind)]

    def read(text: str) -> int:
        match = pattern.fullmatch(text)
        if match is None:
            raise ValueError
        return _microseconds([(name, part) for name, part in match.groupdict().items() if part])

    return read


@lru_cache
def reader_of(layout: str) -> Read:
    """Return the reader of a Java pattern that ``patterns.fault`` accepts. It raises ValueError for
    any other text.

    Case does not matter, as in Spark, and a fraction may have fewer digits than the pattern.
    """
    expression, fields = "", list[str]()  # the field that each group of the expression is
    current: tuple[int, ...] = ()
    for token, section in parts_of(layout):
        common = 0
        while common < min(len(current), len(section)) and current[common] == section[common]:
            common += 1
        expression += ")?+" * (len(current) - common) + "(?>" * (len(section) - common)
        current = section
        if token[0].isascii() and token[0].isalpha():
            expression += f"({_expression(token)})"
            fields.append("offset" if token in _OFFSETS else token[0])
        elif token.startswith("'") and token != "''":
            expression += re.escape(token[1:-1].replace("''", "'"))
        else:
            expression += re.escape("'" if token == "''" else token)
    pattern = re.compile(expression + ")?+" * len(current), re.IGNORECASE | re.ASCII)

    def read(text: str) -> int:
        match = pattern.fullmatch(text)
        if match is None or not text:
            raise ValueError
        groups = zip(fields, match.groups(), strict=True)
        return _microseconds([(name, part) for name, part in groups if part is not None])

    return read


def _expression(token: str) -> str:
    letter, count = token[0], len(token)
    if token in _OFFSETS:
        return _OFFSETS[token]
    if letter == "G":
        return "Anno Domini|Before Christ" if count == 4 else "AD|BC"
    if letter == "a":
        return "AM|PM"
    if letter in "ML" and count > 2:
        return "|".join(name if count == 4 else name[:3] for name in _MONTHS)
    if letter == "S":
        return f"[0-9]{{1,{count}}}+"
    if letter == "y":
        return {1: "[0-9]{1,19}", 2: "[0-9]{2}", 3: "[0-9]{3,19}"}.get(count, f"[0-9]{{{count}}}")
    if token == "DD":
        return "[0-9]{2,3}"
    return "[0-9]{1,19}" if count == 1 else f"[0-9]{{{count}}}"


def _microseconds(parts: list[tuple[str, str]]) -> int:
    """Return the microseconds since 1970 of the fields of a text.

    Raises ValueError if they contradict each other.
    """
    values: dict[str, int] = {}
    for name, text in parts:
        name = "M" if name == "L" else name
        value = _value(name, text)
        if values.setdefault(name, value) != value:
            raise ValueError
    days = _days(values)
    hour = _hour(values)
    minute, second = values.get("m", 0), values.get("s", 0)
    if minute > 59 or second > 59:
        raise ValueError
    seconds = hour * 3600 + minute * 60 + second - values.get("offset", 0)
    microseconds = days * DAY + seconds * SECOND + values.get("S", 0)
    if not -(1 << 63) <= microseconds < 1 << 63:
        raise ValueError
    return microseconds


def _value(name: str, text: str) -> int:
    if name == "S":
        return int(text.ljust(6, "0"))
    if name == "offset":
        return _offset(text.upper())
    if name == "G":
        return _ERAS[text.lower()]
    if name == "a":
        return int(text.lower() == "pm")
    if text[0].isalpha():
        return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(text.lower()))
    return int(text)


def _offset(text: str) -> int:
    """Return an offset from UTC in seconds. Raises ValueError for any other text."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ValueError
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    offset = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or offset > _LATEST_OFFSET:
        raise ValueError
    return -offset if match[1] == "-" else offset


def _hour(values: dict[str, int]) -> int:
    hours = set[int]()
    if "H" in values:
        hours.add(values["H"] if values["H"] < 24 else -1)
    if "k" in values:
        hours.add(values["k"] % 24 if 1 <= values["k"] <= 24 else -1)
    for name, within in (("h", range(1, 13)), ("K", range(12))):
        if name in values:
            hours.add(values[name] % 12 + 12 * values.get("a", 0) if values[name] in within else -1)
    if (
        len(hours) > 1
        or -1 in hours
        or ("a" in values and hours and {values["a"]} != {hour // 12 for hour in hours})
    ):
        raise ValueError
    return hours.pop() if hours else 0


def _days(values: dict[str, int]) -> int:
    """Return the days since 1970 of a year with a month and a day, or with a day of the year.
    Raises ValueError if there is no such day, or if the fields contradict each other.
    """
    year = values["y"]
    if "G" in values:
        if year < 1:
            raise ValueError
        year = year if values["G"] > 0 else 1 - year
    if "D" in values:
        first = days_of(year, 1, 1)
        days = first + values["D"] - 1
        if not first <= days < days_of(year + 1, 1, 1):
            raise ValueError
        if any(name in values for name in "Md"):
            month = next(m for m in range(12, 0, -1) if days_of(year, m, 1) <= days)
            day = days - days_of(year, month, 1) + 1
            if (values.get("M", month), values.get("d", day)) != (month, day):
                raise ValueError
        return days
    month, day = values["M"], values["d"]
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        raise ValueError
    days = days_of(year, month, day)
    following = days_of(year + month // 12, month % 12 + 1, 1)
    if days >= following:
        raise ValueError
    return days


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a day of the Gregorian calendar, in any year."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_LENGTHS = (86_400, 3600, 60, 1)  # seconds
_MOST = (None, 23, 59, 59)


def interval(kind: T.DayTimeIntervalType, text: str) -> int:
    """Return the microseconds of an INTERVAL of days to seconds, plain or as a SQL literal. Raises
    ValueError for any other text, and if microseconds, or 64 bits, do not hold it exactly.
    """
    match = _interval_pattern(kind.startField, kind.endField).fullmatch(text)
    if match is None:
        raise ValueError
    sign, inner, *parts, fraction = match.groups()
    total = 0
    for place, part in enumerate(parts, kind.startField):
        most = _MOST[place]
        if place > kind.startField and most is not None and int(part) > most:
            raise ValueError
        total += int(part) * _LENGTHS[place] * SECOND
    total += int((fraction or "")[:6].ljust(6, "0"))
    if (fraction or "")[6:].strip("0") or total >= 1 << 63:
        raise ValueError
    return -total if (sign == "-") != (inner == "-") else total


@lru_cache
def _interval_pattern(first: int, last: int) -> re.Pattern[str]:
    digits = "([0-9]{1,12})"
    for place in range(first + 1, last + 1):
        digits += (" " if place == 1 else ":") + "([0-9]{1,2})"
    digits += r"(?:\.([0-9]{1,9}))?" if last == 3 else "()"
    unit = _UNITS[first] if first == last else f"{_UNITS[first]} +TO +{_UNITS[last]}"
    # Both forms have the same groups.
    return re.compile(rf"(?:INTERVAL +([+-])?(?='))?'?([+-])?{digits}(?:' +{unit})?", re.IGNORECASE)
