"""The place of a path relative to another one."""

import re
from fnmatch import fnmatchcase

AT, INSIDE, ABOVE = "at", "inside", "above"


def place_of(path: str, key: str, *, is_pattern: bool = True) -> str:
    """Return where a full path is relative to ``key``: at it, in it or above it; empty if
    elsewhere.

    ``is_pattern``: whether the path may have wildcards.
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
