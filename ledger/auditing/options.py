"""Options of a session at the time of a write, under which its rows are computed again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

GROUPS = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
PARTS = "spark.sql.shuffle.partitions"
_OF_AUDIT = (GROUPS, PARTS)  # which change no value


def options_of(spark: SparkSession) -> dict[str, str]:
    """Return the options that are set in a session, without those that the audit itself sets."""
    options: dict[str, str] = spark.conf.getAll
    return {name: value for name, value in options.items() if name not in _OF_AUDIT}


@contextmanager
def under_options(spark: SparkSession, options: Mapping[str, str] | None) -> Iterator[None]:
    """Set the options of an earlier time in the block. None: keep those of the session."""
    now = options_of(spark) if options is not None else {}
    _change(spark, now, options or {})
    try:
        yield
    finally:
        _change(spark, options or {}, now)


def _change(spark: SparkSession, now: Mapping[str, str], then: Mapping[str, str]) -> None:
    for name in sorted({*now, *then}):
        with suppress(PySparkException):  # of one that only a builder sets: it changes no value
            if name not in then:
                spark.conf.unset(name)
            elif now.get(name) != then[name]:
                spark.conf.set(name, then[name])
