"""Paths as Spark takes them, and how it reads Parquet files."""

import re
from collections.abc import Sequence

# Spark then notices bytes that were changed, in files whose pages have a checksum, as its own have.
CHECKED = {"parquet.page.verify-checksum.enabled": "true"}
_PATTERN = re.compile(r"([\[\]{}*?\\])")


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a
    pattern.
    """
    return [_PATTERN.sub(r"\\\1", path) for path in paths]
