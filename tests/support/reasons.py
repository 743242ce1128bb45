"""Reasons of lost and dropped records, without the lines of the operations."""

import re

from pyspark.sql import SparkSession

from ledger.core.states import FailureCause


def bare(reason: str) -> str:
    """Return a reason without the line of its operation, of a file or of a block on a page."""
    return re.sub(r" at [\w/.-]+(: \w+)?:\d+(?=: )", "", reason, count=1)


def named(spark: SparkSession, reason: str) -> str:
    """Return the reason of a lost record: on a Spark Connect server no operation is named."""
    return FailureCause.LOST if "connect" in type(spark).__module__ else reason
