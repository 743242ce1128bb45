"""Texts that a reader of Spark, Java or Arrow would take for a value that they do not write."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from ledger import FileSource
from ledger.core.column_names import ERROR
from ledger.errors import DeclarationError, shown
from ledger.sources.files.reader import Reader
from ledger.sources.parsing import patterns
from ledger.sources.parsing.dates import reader_of
from ledger.sources.parsing.typed import aligned, struct
from ledger.spark.session import session_conf


def accepted():
    """Patterns of timestamps that are accepted, with each run of each letter."""
    usual = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    letters = [chr(code) for code in range(ord("A"), ord("z") + 1) if chr(code).isalpha()]
    runs = [letter * count for letter in letters for count in range(1, 10)]
    parts = {"y": "yyyy", "M": "MM", "L": "MM", "d": "dd", "D": "MM-dd", "H": "HH", "k": "HH",
             "m": "mm", "s": "ss"}  # fmt: skip
    for run in runs:
        pattern = f"{run} {usual}"
        if run[0] in parts:
            pattern = usual.replace(parts[run[0]], run)
        elif run[0] in "hK":
            pattern = usual.replace("HH", run) + " a"
        elif run[0] in "aS":
            continue
        yield pattern
    yield from [
        "yyyy-MM-dd", "dd.MM.yyyy", "yyyyMMdd", "yyyy-MM-dd HH", "d MMM yyyy HH:mm",
        "dd/MM/yyyy h:mm a", "yyyyMMddHHmmss", "yyyyMMddHHmmssSSS", "yyyy-MM-dd'T'HH:mm:ss'Z'",
        "yyyy-MM-dd HH:mm:ssSSSSSS", "yyyyMMdd HHmmssSSSSSS", "yyyy-DDDHHmmssSSSSSS",
        "yyyy-MMM-ddHHmmssSSSSSS", "HHmmssSSSSSSddMMyyyy", "ddMMyyyyHHmmss", "yyyy-MM-dd Hmm",
        "yyyy-MM-dd HH:mm a", "yyyy-MM-dd kk:mm a", "yyyyMMdd HHmmss[SSSSSS]", "dMMMyyyy",
        "[yyyy-MM-dd HH:mm][dd.MM.yyyy]",
        "yyyy-MM-dd[ HH:mm[:ss[.SSSSSS]]][XXX]", "yyyy''MM'o''clock'dd", "MMM d, yyyy", "EEE",
    ]  # fmt: skip


PATTERNS = [p for p in accepted() if patterns.fault("timestampFormat", p) is None]
INSTANTS = [
    datetime(2024, 1, 5, 0, 20), datetime(2024, 9, 5, 12, 20, 7, 123456),
    datetime(1999, 12, 31, 23, 59, 59, 999999), datetime(44, 3, 15, 1, 2, 3),
    datetime(9999, 12, 31, 13, 30, 30, 5), datetime(2024, 2, 29, 12), datetime(2024, 10, 27, 1, 30),
]  # fmt: skip

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def cut(instant, pattern):
    """An instant without what its pattern does not write."""
    letters = re.sub("'[^']*'", "", pattern)
    finest = next((letter for letter in "SsmHkhK" if letter in letters), "d")
    lost = {"S": 0, "s": 1, "m": 2, "d": 4}.get(finest, 3)
    return instant.replace(**dict.fromkeys(("microsecond", "second", "minute", "hour")[:lost], 0))


def test_accepted_patterns_are_exact(spark):
    """Each pattern that is accepted reads what Spark writes with it: nothing is made up, moved or
    cut but what it does not write."""
    assert {"yyyy-MM-dd", "yyyy-D HH:mm:ss.SSSSSS"} < {*PATTERNS}
    assert len(PATTERNS) > 50
    frame = spark.createDataFrame([(t.replace(tzinfo=UTC),) for t in INSTANTS], "t TIMESTAMP")
    columns = [F.date_format("t", pattern) for pattern in PATTERNS]
    with session_conf(spark, INTERPRETED):  # so many columns take longer to compile than to read
        rows = frame.select(*columns).collect()
    wrong = [
        (pattern, instant, text)
        for instant, row in zip(INSTANTS, rows, strict=True)
        for pattern, text in zip(PATTERNS, row, strict=True)
        if reader_of(pattern)(text) != microseconds(cut(instant, pattern))
    ]
    assert wrong == []


def microseconds(instant):
    """An instant as its microseconds since 1970."""
    return (instant - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def test_an_instant_is_kept_as_no_other_type(spark):
    """A stored TIMESTAMP does not become a DATE or a TIMESTAMP_NTZ in a replay, because the offset
    that it was written with is not known."""
    stored = spark.sql("SELECT TIMESTAMP '2024-01-05T00:00:00Z' AS t")
    for kind in ("DATE", "TIMESTAMP_NTZ"):
        (row,) = aligned(stored, struct(f"t {kind}")).collect()
        assert row["t"] is None
        assert shown(row[ERROR]) == f"t: expected {kind.lower()}, found 2024-01-05 00:00:00"


@pytest.mark.parametrize("kind", ["TIME", "ARRAY<TIME(3)>"])
def test_a_time_that_spark_has_off_is_refused(spark, kind):
    """A column of TIME is refused before a file is read, with the setting that allows it."""
    source = FileSource("in/*", schema=f"t {kind}", format="json")
    with pytest.raises(DeclarationError, match=r"'t' .* TIME, .*spark\.sql\.timeType\.enabled"):
        Reader(spark, source)
