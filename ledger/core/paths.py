"""Paths as Spark writes and takes them."""

import re
from collections.abc import Sequence

from ledger.errors import ConfigurationError

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def without_file_scheme(path: str) -> str:
    """A local path without the ``file:`` that Spark puts before it; another URL, and that of a file
    of another host, as it is.
    """
    return re.sub(r"^file:(//(localhost)?(?=/)|(?!//))/+", "/", path)


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, be it a URL of ``file:``, and no other URL."""
    plain = without_file_scheme(path)
    return plain.startswith("/") or "://" not in plain


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a
    pattern. Raises ConfigurationError for one that Hadoop cannot read as a pattern.

    Spark's own option for paths that are no patterns reads each of several files twice.
    """
    return [_literal(path) for path in paths]


def _literal(path: str) -> str:
    escaped = _PATTERN.sub(r"\\\1", path)
    place = path if is_local(path) else path.partition("://")[2].partition("/")[2]
    if escaped != path and ":" in without_file_scheme(place):
        raise ConfigurationError(
            f"{path}: expected no colon in a path with one of [ ] {{ }} * ? \\, found one:"
            " Spark reads no such file. Rename the folder or the file, or choose another folder"
        )
    return escaped
