"""The place of a path relative to another one."""

import re
from fnmatch import fnmatchcase

AT, INSIDE, ABOVE = "at", "inside", "above"


def place_of(path: str, key: str, *, is_pattern: bool = True) -> str:
    """Return whether a full path is at another, in it or above it; empty: elsewhere.

    ``is_pattern``: the path may have wildcards, which match all they may.
    """
    wanted, names = path.split("/"), key.split("/")
    patterns = [re.sub(r"[\[{].*", "*", part) if is_pattern else "" for part in wanted]
    pairs = zip(wanted, patterns, names, strict=False)
    if not all(name == part or fnmatchcase(name, pattern) for part, pattern, name in pairs):
        return ""
    return ABOVE if len(wanted) < len(names) else INSIDE if len(wanted) > len(names) else AT


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards."""
    return any(sign in path for sign in "*?[{")
