"""Paths that deltalake opens as they are written."""

import re

from ledger.errors import DeclarationError

_NOT_IN_PATHS = re.compile(r"[%\\\x00-\x1f\x7f]")


def require_openable(path: str) -> None:
    """Raise DeclarationError for a path of which deltalake makes another one, or none."""
    if sign := _NOT_IN_PATHS.search(path):
        raise DeclarationError(
            f"path of a Delta table: expected one without %, \\ and control characters, which"
            f" deltalake cannot open, found {sign[0]!r} in {path!r}. Choose another path"
        )
