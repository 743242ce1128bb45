"""Paths as Spark takes them."""

import re
from collections.abc import Sequence

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a
    pattern.
    """
    return [_PATTERN.sub(r"\\\1", path) for path in paths]
