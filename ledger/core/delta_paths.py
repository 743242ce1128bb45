"""Paths that deltalake opens as they are written."""

import re

from ledger.core.paths import is_local
from ledger.errors import DeclarationError

_NOT_IN_PATHS = re.compile(r"[%\\\x00-\x1f\x7f]")
_NOT_IN_URLS = re.compile(r"[#?%\\\x00-\x1f\x7f]")  # a URL has its path before # and ?


def require_openable(path: str) -> None:
    """Raise DeclarationError for a path that deltalake would change, or cannot open."""
    local = is_local(path)
    if sign := (_NOT_IN_PATHS if local else _NOT_IN_URLS).search(path):
        signs = "%, \\ and control characters" if local else "#, ?, %, \\ and control characters"
        raise DeclarationError(
            f"path of a Delta table: expected one without {signs}, which deltalake cannot open,"
            f" found {sign[0]!r} in {path!r}. Choose another path"
        )
