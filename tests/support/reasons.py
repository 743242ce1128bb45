"""Reasons of lost and dropped records, without the lines of the operations."""

import re


def bare(reason: str) -> str:
    """Return a reason without the line of its operation, of a file or of a block on a page."""
    return re.sub(r" at [\w/.-]+(: \w+)?:\d+(?=: )", "", reason, count=1)
