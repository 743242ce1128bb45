"""Paths as Spark writes them."""

import re


def without_file_scheme(path: str) -> str:
    """A local path without the ``file:`` that Spark puts before it; another URL as it is."""
    return re.sub(r"^file:(//)?(?=/)", "", path)
