"""Find operations of a stage that compare ``_anchor`` beside the columns that they are meant for.

``_anchor`` differs for every record. ``distinct()`` then keeps every row, and a group by all
columns has one row a group. Spark's analyzed plan shows such an operation, whether it was written
as a method or in SQL, and ``explain`` prints that plan on Spark Connect, too.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO

from pyspark.sql import DataFrame, SparkSession

from ledger.core.column_names import ANCHOR

_NODE = re.compile(r"((?:[: ]  )*(?:[:+]- )?)([A-Z]\w*)(.*)")
_USED = f"{ANCHOR}#"
# Another column, and after it the anchor: who names the anchor first means it.
_AFTER_ANOTHER = re.compile(rf"(?<!\b{ANCHOR})#\d.*\b{ANCHOR}#\d", re.DOTALL)
_ORDER = re.compile(r" (?:ASC|DESC) NULLS (?:FIRST|LAST)")
_JOINED = re.compile(rf"AND \({ANCHOR}#\d+ <?=>? {ANCHOR}#\d+\)")
_OVER_ALL = re.compile(
    r"\b(approx_count_distinct|cast|collect_set|concat_ws|count(?=\(distinct )|crc32|hash|md5|sha1?"
    r"|sha2|to_csv|to_json|to_xml|xxhash64)\("
)
_SETTINGS = {"spark.sql.debug.maxToStringFields": 2**20, "spark.sql.maxPlanStringLength": 2**30}

_KEEP_ONE = (
    "number the rows by row_number() over a window partitioned by the other columns, keep the"
    ' first and return the others as dropped(rows, "duplicate"); or group by the other columns'
    " with collect_anchors(), in a stage with whole=True. For duplicates within each record use"
    f' groupBy("{ANCHOR}", ...)'
)
_GROUP = (
    "group by the other columns, with collect_anchors() in a stage with whole=True. To group"
    f" within each record, name {ANCHOR!r} first"
)
_WINDOW = f"leave it out of partitionBy. For a window within each record, name {ANCHOR!r} first"
_JOIN = f"name the columns to join on. To join rows of the same record, name {ANCHOR!r} first"


@dataclass
class _Node:
    kind: str
    text: str
    children: "list[_Node]" = field(default_factory=list)

    @property
    def lists(self) -> list[str]:
        """Its bracketed lists, the first ones of which are keys."""
        return self.text.partition("[")[2].split("], ")

    @property
    def has_anchor(self) -> bool:
        """Whether the anchor, or a value made of it, is in its output."""
        if self.kind == "Aggregate" or self.kind.startswith("FlatMap"):
            return _USED in self.lists[-1]
        if self.kind == "Project" or not self.children:
            return _USED in self.text
        if self.kind in ("Union", "Intersect", "Except") or re.match(
            r" (?:LeftSemi|LeftAnti|ExistenceJoin)", self.text
        ):
            return self.children[0].has_anchor
        return any(child.has_anchor for child in self.children)


class Plan:
    """The analyzed plan of a frame.

    ``explained``: what ``explain`` prints in its mode "extended".
    """

    def __init__(self, explained: str):
        analyzed = explained.partition("== Analyzed Logical Plan ==\n")[2]
        plan = analyzed.partition("== Optimized Logical Plan ==")[0]
        self._nodes = _nodes(plan.splitlines()[1:])

    @classmethod
    def of(cls, frame: DataFrame) -> "Plan":
        """Ask Spark for the plan of a frame; nothing is executed."""
        with _unabridged(frame.sparkSession), redirect_stdout(StringIO()) as output:
            frame.explain(mode="extended")
        return cls(output.getvalue())

    def comparison(self) -> str | None:
        """Say which operation compares the anchor, and what to do instead; None: no operation."""
        return next(filter(None, map(_comparison, self._nodes)), None)

    def groups_without_anchor(self) -> bool:
        """Return whether a group by has the anchor in its input and not in its output."""
        return any(
            _is_group(node) and _has_anchor(node) and not node.has_anchor for node in self._nodes
        )


def _nodes(lines: Sequence[str]) -> list[_Node]:
    """The nodes of a plan. A line that begins none is part of a text in the one before."""
    nodes: list[_Node] = []
    at: dict[int, _Node] = {}  # the last node of each depth
    for line in lines:
        match = _NODE.fullmatch(line)
        depth = len(match[1]) // 3 if match else 0
        if match is None or (nodes and depth == 0):
            if nodes:
                nodes[-1].text += "\n" + line
            continue
        node = at[depth] = _Node(match[2], match[3])
        parent = at.get(depth - 1)
        if parent is not None:
            parent.children.append(node)
        # A subquery is two levels below its node, and no child of it.
        at = {level: other for level, other in at.items() if level <= depth}
        nodes.append(node)
    return nodes


def _comparison(node: _Node) -> str | None:
    operation = _operation(node)
    if operation is None:
        return None
    what, instead = operation
    return (
        f"{what} compares {ANCHOR!r} as well, which differs for every record, so the result is not"
        f" that of the other columns: {instead}"
    )


def _operation(node: _Node) -> tuple[str, str] | None:
    """The operation of a node that compares the anchor, and what to use instead of it."""
    kind, keys = node.kind, node.lists[0]
    if (kind == "Deduplicate" and _USED in keys) or (kind == "Distinct" and _has_anchor(node)):
        return "distinct(), dropDuplicates(), SELECT DISTINCT or UNION", _KEEP_ONE
    if kind in ("Intersect", "Except") and _has_anchor(node):
        how = "left_semi" if kind == "Intersect" else "left_anti"
        what = "INTERSECT" if kind == "Intersect" else "subtract(), exceptAll() or EXCEPT"
        return what, f'join on the columns to compare, with how="{how}"'
    if _is_group(node) and len(node.lists) > 1 and _AFTER_ANOTHER.search(keys):
        return "a group, or a PIVOT,", _GROUP
    if kind == "Window" and _AFTER_ANOTHER.search(_partition(node)):
        return "a window", _WINDOW
    if kind == "Join" and _JOINED.search(node.text):
        return "a join, for example a NATURAL JOIN,", _JOIN
    return _function(node.text)


def _is_group(node: _Node) -> bool:
    return node.kind == "Aggregate" or node.kind.startswith("FlatMapGroupsIn")


def _has_anchor(node: _Node) -> bool:
    return any(child.has_anchor for child in node.children[:1])


def _partition(node: _Node) -> str:
    """What a window is partitioned by."""
    lists = node.text.split("], [")
    return lists[1] if len(lists) > 1 and not _ORDER.search(lists[1]) else ""


def _function(text: str) -> tuple[str, str] | None:
    """A function of all columns, as ``hash(*)`` is."""
    for match in _OVER_ALL.finditer(text):
        if _AFTER_ANOTHER.search(_arguments(text[match.end() :])):
            return f"{match[1]}()", "name the columns that it is of"
    return None


def _arguments(text: str) -> str:
    """The text before the parenthesis that closes; empty if none does."""
    depth = 1
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[:at]
    return ""


@contextmanager
def _unabridged(spark: SparkSession) -> Iterator[None]:
    """Plans with all columns: Spark leaves out the last of many."""
    before = {name: spark.conf.get(name) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.set(name, str(earlier))
