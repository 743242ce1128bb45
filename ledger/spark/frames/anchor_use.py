"""Find operations of a stage that compare ``_anchor`` beside the columns that they are meant for.

``_anchor`` differs for every record. ``distinct()`` then keeps every row, and a group by all
columns has one row a group. Spark's analyzed plan shows such an operation, whether it was written
as a method or in SQL, and ``explain`` prints that plan on Spark Connect, too.

An operation on a frame whose only column is the anchor, on one of its fields, or on keys that begin
with it is allowed: the user named it, because ``*`` and ``frame.columns`` have the anchor last.
"""

import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Literal

from pyspark.sql import DataFrame

from ledger.core.column_names import ANCHOR
from ledger.spark.session import session_conf

_NODE = re.compile(r"((?:[: ]  )*(?:[:+]- )?)([A-Z]\w*)(.*)")
_USED = re.compile(rf"\b{ANCHOR}#\d+(?![\d.\[])")  # the whole anchor, not one of its fields
_NUMBER = re.compile(rf"\b{ANCHOR}#(\d+)")
_OTHER = re.compile(rf"(?<!\b{ANCHOR})#\d")
# Another column, and after it the anchor: who names the anchor first means it.
_AFTER_ANOTHER = re.compile(f"{_OTHER.pattern}.*{_USED.pattern}", re.DOTALL)
_NAME = re.compile(r" AS [^,()\[\]]*#\d+L?")
_NESTED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_ENDS = re.compile(r"#(\d+)L?(?=,|\Z)")
_LIST = re.compile(r"(?<!\w)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]")
_MOST_ORDERED = 4  # keys of dropDuplicates(): Spark makes a set of their names
_SAME_COLUMNS = (  # as their first child
    *("Deduplicate", "Distinct", "Except", "Filter", "GlobalLimit", "Intersect", "LocalLimit"),
    *("Offset", "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint"),
    *("Sample", "Sort", "SubqueryAlias", "Tail", "Union", "View"),
)
_OWN_COLUMNS = ("Aggregate", "Expand", "FlatMap", "MapIn", "Project")
_ONE_SIDE = re.compile(r" (?:LeftSemi|LeftAnti|ExistenceJoin)")
_PLACING = ("RebalancePartitions", "RepartitionByExpression", "Sort")  # they change no value
_ORDER = re.compile(r" (?:ASC|DESC) NULLS (?:FIRST|LAST)")
_JOINED = re.compile(rf"AND \({ANCHOR}#\d+ <?=>? {ANCHOR}#\d+\)")
_OVER_ALL = re.compile(
    r"\b(approx_count_distinct|cast(?=\((?:named_struct|struct|array|map)\()|collect_set|concat_ws"
    r"|count(?=\(distinct )|crc32|hash|md5|sha1?|sha2|to_csv|to_json|to_xml|xxhash64)\("
)
_COLLECTED = re.compile(rf"\bflatten\(collect_list\({ANCHOR}#")
_MERGED = re.compile(rf"\bconcat\((?:coalesce\()?{ANCHOR}#")
# With these Spark prints a plan with all columns: it leaves out the last of many.
_UNABRIDGED = {
    "spark.sql.debug.maxToStringFields": str(2**20),
    "spark.sql.maxPlanStringLength": str(2**30),
}

_KEEP_ONE = (
    "number the rows by row_number() over a window partitioned by the other columns, keep the"
    ' first and return the others as dropped(rows, "duplicate"); or group by the other columns'
    ' with {collect}, in a stage with anchors="merged_by_hand". For duplicates within each record'
    " use"
    f' groupBy("{ANCHOR}", ...)'
)
_GROUP = (
    'group by the other columns with {collect}, in a stage with anchors="merged_by_hand". To group'
    f" within each record, name {ANCHOR!r} first"
)
_WINDOW = f"leave it out of partitionBy. For a window within each record, name {ANCHOR!r} first"
_JOIN = f"name the columns to join on. To join rows of the same record, name {ANCHOR!r} first"
_ARGUMENTS = (
    f"name its columns without {ANCHOR!r}. For a value that differs for each record, name"
    f" {ANCHOR!r} first"
)


@dataclass
class _Node:
    kind: str
    text: str
    children: "list[_Node]" = field(default_factory=list)

    @property
    def lists(self) -> list[str]:
        """Return the bracketed lists of the node, of which the first are keys."""
        return self.text.partition("[")[2].split("], ")

    @property
    def columns(self) -> str:
        """Its columns, each with what it is made of, as Spark writes them."""
        if self.kind == "Aggregate" or self.kind.startswith("FlatMap"):
            return self.lists[-1]
        if self.kind == "Project" or not self.children:
            return self.text
        if self.kind in ("Union", "Intersect", "Except") or _ONE_SIDE.match(self.text):
            return self.children[0].columns
        return " ".join([*(child.columns for child in self.children), self.text])

    @property
    def has_anchor(self) -> bool:
        """Whether the whole anchor, or a value made of it, is in its output."""
        return _USED.search(self.columns) is not None


# How a frame lost its anchor: by a group, by a column that collects or merges anchors under another
# name, or by a function of groups or of rows that does not return it.
Loss = Literal["group", "collect_anchors", "merge_anchors", "groups", "rows", None]


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
        settings = session_conf(frame.sparkSession, _UNABRIDGED)
        with settings, redirect_stdout(StringIO()) as output:
            frame.explain(mode="extended")
        return cls(output.getvalue())

    def comparison(self, collect: str = "collect_anchors()") -> str | None:
        """Return which operation compares the anchor, and what to do instead; None if no operation
        does.

        ``collect``: how to collect anchors in the session.
        """
        operation = next(filter(None, map(_operation, self._nodes)), None)
        if operation is None:
            return None
        what, instead = operation
        return (
            f"{what} compares {ANCHOR!r} too, which differs for every record, so plain Spark would"
            f" return other rows: {instead.replace('{collect}', collect)}"
        )

    def loss(self) -> Loss:
        """Return how a frame without the anchor lost it; None: its columns were not selected."""
        numbers = {number for node in self._nodes for number in _NUMBER.findall(node.text)}
        node = _losing(self._nodes[0], numbers) if self._nodes else None
        if node is None:
            return None
        if node.kind.startswith("MapIn"):
            return "rows"
        if node.kind.startswith("FlatMap"):
            return "groups"
        if _COLLECTED.search(node.columns):
            return "collect_anchors"
        if node.kind == "Aggregate":
            return "group"
        return "merge_anchors" if _MERGED.search(node.columns) else None


def _nodes(lines: Sequence[str]) -> list[_Node]:
    """Return the nodes of a plan. A line that begins none is part of a text in the one before."""
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


def _losing(node: _Node, numbers: set[str]) -> _Node | None:
    """Return the node whose input has the anchor and whose output has not; the last query's first.

    ``numbers``: of the plan's columns that are named like the anchor.
    """
    if _keeps(node, numbers):
        return None
    if any(_keeps(child, numbers) for child in node.children):
        return node
    below = (_losing(child, numbers) for child in reversed(node.children))
    return next(filter(None, below), None)


def _keeps(node: _Node, numbers: set[str]) -> bool:
    columns = _outputs(node)
    return node.has_anchor if columns is None else not columns.isdisjoint(numbers)


def _operation(node: _Node) -> tuple[str, str] | None:
    """Return the operation of a node that compares the anchor, and what to use instead."""
    kind, keys = node.kind, node.lists[0]
    if (kind == "Deduplicate" and _compares(node, keys)) or (kind == "Distinct" and _mixes(node)):
        return "distinct(), dropDuplicates(), SELECT DISTINCT or UNION", _KEEP_ONE
    if kind in ("Intersect", "Except") and _mixes(node):
        how = "left_semi" if kind == "Intersect" else "left_anti"
        what = "INTERSECT" if kind == "Intersect" else "subtract(), exceptAll() or EXCEPT"
        return what, f'join on the columns to compare, with how="{how}"'
    is_group = kind == "Aggregate" or kind.startswith("FlatMapGroupsIn")
    if is_group and len(node.lists) > 1 and _AFTER_ANOTHER.search(keys):
        return "a group, or a PIVOT,", _GROUP
    if kind == "Window":
        partition, *_ = [*node.text.split("], [")[1:], ""]
        if not _ORDER.search(partition) and _AFTER_ANOTHER.search(partition):
            return "a window", _WINDOW
    if kind == "Join" and _JOINED.search(node.text):
        return "a join, for example a NATURAL JOIN,", _JOIN
    return None if kind in _PLACING else _function(node.text)


def _compares(node: _Node, keys: str) -> bool:
    """Return whether the keys of ``dropDuplicates`` have the anchor beside other columns, without
    the user having named it first. If Spark shows no output columns, their order decides.
    """
    if not _USED.search(keys) or not _OTHER.search(keys):
        return False
    numbers = _numbers(keys.rstrip("]"))
    if len(numbers) > _MOST_ORDERED or _AFTER_ANOTHER.search(keys):
        return True
    columns = _outputs(node.children[0])
    return columns is not None and columns <= numbers


def _mixes(node: _Node) -> bool:
    """Return whether the input of a node has the anchor and other columns."""
    columns = node.children[0].columns if node.children else ""
    return bool(_USED.search(columns) and _OTHER.search(_NAME.sub("", columns)))


def _outputs(node: _Node) -> set[str] | None:
    """Return the numbers of a node's columns; None if its text does not have them."""
    kind, children, lists = node.kind, node.children, _LIST.findall(node.text)
    if children and kind in _SAME_COLUMNS:
        return _outputs(children[0])
    if kind == "WithCTE":
        return _outputs(children[-1])
    if kind == "Join":
        sides = children[:1] if _ONE_SIDE.match(node.text) else children
    elif lists and kind in ("Generate", "Window"):  # they add columns
        sides = children
    elif lists and (not children or kind.startswith(_OWN_COLUMNS)):
        sides = []
    else:
        return None
    columns = [_outputs(side) for side in sides]
    if kind != "Join":
        columns.append(_numbers(lists[0 if kind == "Window" else -1]))
    return None if None in columns else set().union(*filter(None, columns))


def _numbers(columns: str) -> set[str]:
    """Return the numbers of the columns of a list, not of those that they are made of."""
    flat = _NESTED.sub("", columns)
    return set(_ENDS.findall(flat)) if flat == columns else _numbers(flat)


def _function(text: str) -> tuple[str, str] | None:
    """Return a function of all columns, such as ``hash(*)``, and what to use instead of it."""
    for match in _OVER_ALL.finditer(text):
        if _AFTER_ANOTHER.search(_arguments(text[match.end() :])):
            return f"{match[1]}()", _ARGUMENTS
    return None


def _arguments(text: str) -> str:
    """Return the text before the parenthesis that closes; empty if none does."""
    depth = 1
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[:at]
    return ""
