"""Convert a text to a value of a type exactly, or raise ValueError: nothing is rounded or guessed.

A DATE is its days since 1970, a TIMESTAMP its microseconds since 1970 and a TIME its microseconds
since midnight. Arrow stores them so, for any year.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from math import isinf
from typing import Any

import numpy as np
from pyspark.sql import types as T

from ledger.sources.parsing import dates

Make = Callable[[str], Any]

FORMATS: Mapping[type[T.DataType], str] = {
    T.DateType: "dateFormat",
    T.TimestampType: "timestampFormat",
    T.TimestampNTZType: "timestampNTZFormat",
}
_TIME_TYPE = (T.TimeType,) if hasattr(T, "TimeType") else ()  # which Spark has since 4.1
_BITS: Mapping[type[T.DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"NaN|[+-]?(?:Inf(?:inity)?|INF)")
_TRUTHS = {"true": True, "false": False}
MOST_CHARACTERS = 100  # of the text of a decimal: to make a number of more takes ever longer
MOST_DIGITS, MOST_EXPONENT = 15, 2  # digits of a decimal that has an exponent, and of this
_DECIMALS = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?0*([0-9]+))?")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(\.[0-9]+)?)?")


def maker_of(kind: T.DataType, options: Mapping[str, str], *, exponents: bool = False) -> Make:
    """Return the function that converts a text to a value of the type, or raises ValueError.

    ``options``: the formats of dates and timestamps.
    ``exponents``: whether a decimal may have an exponent. Programs that write exponents have
    rounded.
    """
    if type(kind) in _BITS:
        return partial(_integer, 1 << (_BITS[type(kind)] - 1))
    if isinstance(kind, T.DecimalType):
        return partial(_decimal, kind, exponents)
    if type(kind) in FORMATS:
        layout = options.get(FORMATS[type(kind)])
        return partial(_time_since, kind, dates.reader_of(layout) if layout else dates.iso(kind))
    if isinstance(kind, T.CharType | T.VarcharType):
        return partial(_short, kind.length)
    if isinstance(kind, T.DayTimeIntervalType):
        return partial(dates.interval, kind)
    if isinstance(kind, _TIME_TYPE):
        return partial(_time, kind.precision)
    return _MAKERS[type(kind)]


def value_of(kind: T.DataType, options: Mapping[str, str]) -> Callable[[str | None], Any]:
    """Return the function that converts a text to a Python value.

    It returns None if the text does not fit, or if Python has no such value.
    """
    make = maker_of(kind, options)

    def value(text: str | None) -> Any:
        try:
            return None if text is None else _in_python(kind, make(text))
        except (ValueError, ArithmeticError):
            return None

    return value


_EPOCH = datetime(1970, 1, 1)


def _in_python(kind: T.DataType, value: Any) -> Any:
    if isinstance(kind, T.DateType):
        return _EPOCH.date() + timedelta(days=value)
    if isinstance(kind, T.TimestampType):
        return _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)
    if isinstance(kind, T.TimestampNTZType):
        return _EPOCH + timedelta(microseconds=value)
    if isinstance(kind, T.DayTimeIntervalType):
        return timedelta(microseconds=value)
    if isinstance(kind, _TIME_TYPE):
        return (_EPOCH + timedelta(microseconds=value)).time()
    return value


def _require(fits: object) -> None:
    if not fits:
        raise ValueError


def _integer(most: int, text: str) -> int:
    _require(_WHOLE.fullmatch(text))
    number = int(text)
    _require(-most <= number < most)
    return number


def _double(text: str) -> float:
    if _SPECIAL.fullmatch(text):
        return float(text)
    _require(_NUMBER.fullmatch(text))
    number = float(text)
    _require(not isinf(number))
    return number


def _float(text: str) -> float:
    """Return the nearest FLOAT, as a double."""
    number = _double(text)
    with np.errstate(over="ignore"):
        near = float(np.float32(number))
        _require(isinf(near) == isinf(number))
        beyond = np.float32(np.inf if number > near else -np.inf)
        other = float(np.nextafter(np.float32(near), beyond))
    if number != near and (near + other) / 2 == number:  # the double may have been rounded to there
        exact, middle = Decimal(text), Decimal(number)
        if exact != middle:
            return max(near, other) if exact > middle else min(near, other)
    return near


def _truth(text: str) -> bool:
    _require(text.isascii() and text.lower() in _TRUTHS)
    return _TRUTHS[text.lower()]


def _decimal(kind: T.DecimalType, exponents: bool, text: str) -> Decimal:
    """Return exactly the number that the text shows."""
    match = _DECIMALS.fullmatch(text)
    _require(match and len(text) <= MOST_CHARACTERS)
    assert match is not None
    digits, exponent = match.groups()
    if exponent is not None:
        _require(exponents and len(exponent) <= MOST_EXPONENT)
        _require(len(digits.replace(".", "")) <= MOST_DIGITS)
    sign, figures, power = Decimal(text).as_tuple()
    number = int("".join(map(str, figures)))
    shift = kind.scale + int(power)
    if shift < 0:
        number, rest = divmod(number, 10**-shift)
        _require(not rest)
    else:
        number *= 10**shift
    _require(number < 10**kind.precision)
    return Decimal((sign, tuple(map(int, str(number))), -kind.scale))


def _short(length: int, text: str) -> str:
    _require(len(text) <= length)
    return text


def _time_since(kind: T.DataType, read: Callable[[str], int], text: str) -> int:
    microseconds = read(text)
    return microseconds // dates.DAY if isinstance(kind, T.DateType) else microseconds


def _time(precision: int, text: str) -> int:
    match = _TIME.fullmatch(text)
    _require(match)
    assert match is not None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    digits = (match[4] or ".").removeprefix(".").rstrip("0")
    _require(hour < 24 and minute < 60 and second < 60 and len(digits) <= precision)
    return (hour * 3600 + minute * 60 + second) * dates.SECOND + int(digits.ljust(6, "0"))


BASE64: Make = partial(base64.b64decode, validate=True)
_MAKERS: Mapping[type[T.DataType], Make] = {
    T.BooleanType: _truth,
    T.FloatType: _float,
    T.DoubleType: _double,
    T.StringType: str,
    T.BinaryType: str.encode,
}
