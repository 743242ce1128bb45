"""Keys of JSON that are a column's name but for case or blanks.

Spark's reader takes no notice of them, whatever ``spark.sql.caseSensitive`` is: the column is null.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F


def misspelt(text: Column, missing: Mapping[str, Column], options: Mapping[str, str]) -> Column:
    """Which column a line lacks, and the key that it has in its place; null if there is none.

    ``missing``: of each column whether it is null. ``options``: of the reader of JSON.
    """
    names = list(missing)
    read = F.map_keys(F.from_json(text, "MAP<STRING, STRING>", options))
    # A list of one, so that the line is parsed once for all names.
    told = F.get(F.transform(F.array(read), lambda keys: _told(keys, names)), F.lit(0))
    if any("Quote" in name or "Unquoted" in name for name in options if _allows(options, name)):
        return told
    # Looked for by its own name, a column that is there costs nothing; a name may be escaped.
    looks = [is_null & text.rlike(_looks(name)) for name, is_null in missing.items()]
    return F.when(
        reduce(lambda one, other: one | other, looks, F.contains(text, F.lit("\\u"))), told
    )


def _allows(options: Mapping[str, str], name: str) -> bool:
    return options[name].lower() == "true"


def _told(keys: Column, names: Sequence[str]) -> Column:
    columns = F.array(*map(F.lit, names))
    others = F.array_except(keys, columns)

    def instead(name: Column) -> Column:
        found = F.filter(others, lambda key: _folded(key) == _folded(name))
        return F.concat(F.lit("expected column "), name, F.lit(", found "), F.get(found, F.lit(0)))

    return F.get(F.array_compact(F.transform(F.array_except(columns, keys), instead)), F.lit(0))


def _folded(name: Column) -> Column:
    """A name as a person reads it: whatever its case, without blanks."""
    return F.lower(F.regexp_replace(name, F.lit(r"\s+"), F.lit("")))


def _looks(name: str) -> str:
    """What a line looks like that has a key of nearly this name."""
    loose = r"\s*+".join(map(re.escape, "".join(name.split())))
    letters = "i" if name.isascii() else "iu"
    return rf'"(?!{re.escape(name)}")(?{letters}:\s*+{loose}\s*+)"\s*+:'
