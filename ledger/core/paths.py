"""Paths in the forms that Spark writes and reads."""

import re
from collections.abc import Sequence

from ledger.errors import ConfigurationError

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def without_file_scheme(path: str) -> str:
    """Return a local path without the ``file:`` that Spark puts before it. Any other URL, and one
    of a file of another host, is unchanged.
    """
    return re.sub(r"^file:(//(localhost)?(?=/)|(?!//))/+", "/", path)


def is_local(path: str) -> bool:
    """Return whether a path, or a ``file:`` URL, is on this machine."""
    plain = without_file_scheme(path)
    return plain.startswith("/") or "://" not in plain


def literal(paths: Sequence[str]) -> list[str]:
    """Escape paths for Spark, which would read a name with ``[`` as a pattern. Raises
    ConfigurationError for a path with a colon and a sign of patterns, which Hadoop cannot read.

    Spark's own option for paths that are no patterns reads each of several files twice.
    """
    escaped = [_PATTERN.sub(r"\\\1", path) for path in paths]
    for path, pattern in zip(paths, escaped, strict=True):
        place = path if is_local(path) else path.partition("://")[2].partition("/")[2]
        if pattern != path and ":" in without_file_scheme(place):
            raise ConfigurationError(
                f"{path}: expected no colon in a path with one of [ ] {{ }} * ? \\, found one:"
                " Spark reads no such file. Rename the folder or the file, or choose another folder"
            )
    return escaped
