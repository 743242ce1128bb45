"""Paths as Spark writes and takes them."""

import re
from collections.abc import Sequence

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def without_file_scheme(path: str) -> str:
    """A local path without the ``file:`` that Spark puts before it; another URL, and that of a file
    of another host, as it is.
    """
    return re.sub(r"^file:(//(localhost)?(?=/)|(?!//))/+", "/", path)


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a
    pattern.
    """
    return [_PATTERN.sub(r"\\\1", path) for path in paths]
