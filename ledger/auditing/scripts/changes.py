"""Changes of a source between the time when a script reads it and the write of its rows."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ledger.errors import CarryError
from ledger.lineage.catalyst import Catalyst, Node

# Options of the session that change how the values of files are read.
_READING = re.compile(
    r"spark\.sql\.(session\.timeZone|legacy\..*|columnNameOfCorruptRecord|(csv|json|xml)\..*"
    r"|(parquet|orc|avro)\.(binaryAsString|int96.*|datetimeRebase.*|inferTimestampNTZ.*))"
)


def leaves(catalyst: Catalyst, node: Node) -> list[Node]:
    """Return the leaves of a plan, also of its subqueries."""
    below = [*catalyst.children(node), *catalyst.subqueries(node)]
    return [leaf for child in below for leaf in leaves(catalyst, child)] if below else [node]


def is_cached(catalyst: Catalyst, node: Node) -> bool:
    """Return whether Spark takes the rows of a node from its cache."""
    level = catalyst.frame(node).storageLevel
    return bool(level.useMemory or level.useDisk)


def cached_leaves(catalyst: Catalyst, plan: Node) -> set[int]:
    """Return the identities of the leaves whose rows Spark may take from its cache."""
    session: Any = catalyst.spark._jsparkSession
    if session.sharedState().cacheManager().isEmpty():
        return set()
    return {
        catalyst.identity(leaf)
        for node in _every_node(catalyst, plan)
        if _may_be_cached(catalyst, node)
        for leaf in leaves(catalyst, node)
    }


def _every_node(catalyst: Catalyst, plan: Node) -> Iterator[Node]:
    for node in catalyst.nodes(plan):
        yield node
        for subquery in catalyst.subqueries(node):
            yield from _every_node(catalyst, subquery)


def _may_be_cached(catalyst: Catalyst, node: Node) -> bool:
    try:
        return is_cached(catalyst, node)
    except (Py4JError, PySparkException):  # a part of a plan that is no plan by itself
        return True


def has_changed(relation: Any, since: int) -> bool:
    """Return whether a local file that a relation reads has changed since a time in nanoseconds.

    A rename, a copy that keeps the time of its source and ``chmod`` count, too.
    """
    for address in (urlparse(str(name)) for name in relation.location().inputFiles()):
        try:
            if address.scheme == "file" and os.stat(unquote(address.path)).st_ctime_ns > since:
                return True
        except FileNotFoundError:
            return True
    return False


def require_same_options(name: str, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise CarryError if a script has changed an option by which a copied source is read."""
    for option in sorted({*then, *now}):
        if _READING.fullmatch(option) and then.get(option) != now.get(option):
            raise CarryError(
                f"{name} was copied with {option}={then.get(option)}, which the script has changed "
                f"to {now.get(option)}: its values may be others now. Set it before the first write"
            )
