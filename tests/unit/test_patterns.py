"""Patterns of dates: one whose texts would not become exact values is refused when declared."""

import re

import pytest

from ledger import FileSource
from ledger.errors import DeclarationError
from ledger.sources.parsing.patterns import fault


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("yyyy-mm-dd", "no month, which would be made up: add MM"),
        ("yyyy-MM", "no day, .*: add dd"),
        ("MM-dd", "no year, .*: add yyyy"),
        ("'x'", "no year"),
        ("", "no year"),
        ("yyyy[-MM[-dd]]", r"no month, .* outside of \[ and \]"),
        ("[yyyy-MM-dd][dd.MM]", "no year"),
        ("[yyyy-MM-dd] [dd.MM.yyyy]", "no year"),
        ("[yyyy-MM-dd][yyyy/MM/dd][ HH:mm]", "no year"),
        ("'x'[yyyy-MM-dd]", "no year"),
        ("[]", "no year"),
        ("dd/MM/yy", "yy has no century, .*: write yyyy"),
        ("YYYY-MM-dd", "YYYY is not read: write yyyy"),
        ("uuuu-MM-dd", "uuuu is not read: write yyyy"),
        ("EEE, d MMM yyyy", "EEE is not read: .*declare STRING"),
        ("yyyy-MM-ddTHH:mm", "T is not read: put it in single quotes"),
        ("yyyy-MMMMM-dd", "MMMMM is not read"),
        ("yyyy-MM-dd HHH", "HHH is not read"),
        ("yyyy-MM-dd 'at", 'a single "\'"'),
        ("yyyy-MM-dd]", "a single ']'"),
        ("yyyy-MM-dd[ HH", r"a single '\['"),
        ("yyyy-MM-dd{", "a single '{'"),
        ("yyyy-MM-dd\n", r"a single '\\n'"),
        ("yyyy-MM-dd hh:mm", "hh without am or pm, .*: add a, or write HH"),
        ("yyyy-MM-dd KK:mm", "KK without am or pm, .*: add a, or write HH"),
        ("yyyy-MM-dd hh:mm[ a]", "hh without am or pm"),
        ("yyyy-MM-dd a", "a without an hour, .*: add hh"),
        ("yyyy-MM-dd mm", "mm without an hour, .*: add HH"),
        ("yyyy-MM-dd [HH]:mm", "mm without an hour"),
        ("yyyy-MM-dd HH:ss", "ss without a minute"),
        ("yyyy-MM-dd HH:mm SSS", "SSS without a second"),
        ("yyyyMMddHHmmssSSS", "SSS right behind yyyy is not read, because either"),
        ("yyyyMMddHHmmss[SSS]", "SSS right behind yyyy"),
        ("ddMMyyyyHHmmssSSS", "SSS right behind yyyy"),
        ("yyyy-DDHHmmssSSS", "SSS right behind DD"),
        ("yyyy-MM-dd HH:mm:sSSS", "SSS right behind s"),
        ("yyyy-MM-dd HmmssSSS", "SSS right behind H"),
        ("yyyyMMd", "d right behind yyyy"),
        ("dMMyyyy", "yyyy right behind d"),
        ("yyyy-MM-dd HH:mm z", "z is the name of a time zone, .*: write XXX"),
        ("yyyy-MM-dd HH:mm VV", "VV is the name of a time zone"),
        ("yyyy-MM-dd HH:mm v", "v is the name of a time zone"),
        ("yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "SSSSSSSSS has more digits .*: write SSSSSS, or"),
    ],
)
def test_a_pattern_that_is_not_exact_is_refused(pattern, says):
    """A pattern that lacks a part, that Spark refuses, or whose texts a timestamp cannot hold is
    refused where it is declared, with what to do."""
    for option in ("dateFormat", "timestampFormat", "timestampNTZFormat"):
        for format in ("csv", "json"):
            with pytest.raises(DeclarationError, match=f"option '{option}' of 'in/\\*' .*{says}"):
                FileSource("in/*", schema="a DATE", format=format, options={option: pattern})


@pytest.mark.parametrize("letter", ["X", "XXX", "x", "Z", "O"])
def test_an_offset_is_refused_where_no_column_holds_it(letter):
    """An offset would move a DATE by a day and make a TIMESTAMP_NTZ one of UTC."""
    pattern = f"yyyy-MM-dd HH:mm {letter}"
    assert fault("timestampFormat", pattern) is None
    for option in ("dateFormat", "timestampNTZFormat"):
        assert f"{letter} is an offset, which the column would not hold" in fault(option, pattern)


@pytest.mark.parametrize(
    "pattern",
    ["yyyy-MM-dd", "dd.MM.yyyy", "yyyyMMdd", "d MMM yyyy", "yyyy-DDD", "yyyyDDD", "dMMMyyyy",
     "yyyy'o''clock'MMdd", "yyyy''MMdd", "dd.MM.yyyy' 00:00:00'", "[yyyy-MM-dd][dd.MM.yyyy]",
     "[yyyyMMdd][yyyy-MM-dd][MM/dd/yyyy]", "[[yyyyMMdd][yyyy-MM-dd]]"],
)  # fmt: skip
def test_usual_patterns_are_accepted(pattern):
    """Patterns with all parts are accepted; text in quotes, and whole dates in brackets, too."""
    assert fault("dateFormat", pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["yyyy-MM-dd'T'HH:mm:ss'Z'", "yyyy-MM-dd[ HH:mm[:ss[.SSSSSS]]]", "dd/MM/yyyy hh:mm a",
     "dd/MM/yyyy HH:mm[ a]", "yyyy-MM-dd HH:mm:ssSSS", "yyyyMMdd HHmmss[SSS]", "yyyyMMddHHmmss"],
)  # fmt: skip
def test_a_time_is_refused_where_a_date_would_lose_it(pattern):
    """A pattern with a time is for a timestamp: a DATE would drop the time of each record. One that
    is the same in all texts may stand in quotes."""
    assert fault("timestampFormat", pattern) is None
    says = r"(HH|hh) is a time, which a DATE .* TIMESTAMP_NTZ and set timestampNTZFormat, .*' 00:"
    assert re.match(says, fault("dateFormat", pattern))
