"""Lines of users' code that made the nodes of a plan."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any
from uuid import uuid4

import pyspark
from pyspark.sql.classic.dataframe import DataFrame

from ledger.lineage.catalyst import Catalyst, Node
from ledger.lineage.nodes import analyzed, asked_once, children, simple_name

# Folders of code that is not the user's.
LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(str(pyspark.__file__)).parent, Path(__file__).parent.parent)
)
_STDLIB = f"{Path(os.__file__).parent}{os.sep}"
UNKNOWN = "unknown line"


def user_line(frame: FrameType | None = None) -> str | None:
    """Return the innermost line outside of Spark, this library and Python's own, as file:line."""
    at = frame or sys._getframe(1)
    while at is not None and (
        at.f_code.co_filename.startswith(LIBRARIES) or is_of_python(at.f_code.co_filename)
    ):
        at = at.f_back  # type: ignore[assignment]
    return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}" if at else None


def is_of_python(file: str) -> bool:
    """Return whether a file of code is in Python's own library."""
    return file.startswith((_STDLIB, "<frozen ")) and "site-packages" not in file


@dataclass
class Sites:
    """Lines that made frames, and so the nodes of their plans.

    Frames are noted while ``watching``, in a tag of their plans' new nodes, which Spark keeps when
    it copies a node for a self-join or a union. A copy without the tag is found by its kind and
    semantic hash.
    """

    _noted: list[tuple[Node, str]] = field(default_factory=list)
    _by_identity: dict[int, str] = field(default_factory=dict)
    _by_shape: dict[tuple[str, int], str] = field(default_factory=dict)
    _tag: Any = None
    _tagged: dict[str, list[Node]] = field(default_factory=dict)  # by their kind

    @contextmanager
    def watching(self, *, every_thread: bool = False) -> Iterator[None]:
        """Note the line of each frame that this thread makes in the block, or every thread that
        has no watcher of its own.
        """
        global _watcher_of_all
        token = _watcher.set(self)
        if every_thread:
            _watcher_of_all = self
        with _patched():
            try:
                yield
            finally:
                _watcher.reset(token)
                if every_thread:
                    _watcher_of_all = None

    def note(self, frame: DataFrame, line: str) -> None:
        """Note the line that made a frame: tag with it the top node of its plan and the nodes below
        that have no tag yet.
        """
        top = self._top(frame)
        self._noted.append((top, line))
        todo = [top]
        while todo:
            node = todo.pop()
            if self._tag_of(node) is not None:
                continue
            like = self._tagged.setdefault(simple_name(node), [])
            if node is top or all(_hash(node) != _hash(other) for other in like):
                node.setTagValue(self._tag, line)
                like.append(node)
            todo += children(node)

    def close(self, frame: Any) -> None:
        """Have a frame's own operation belong to no line, unless it has one."""
        top = self._top(frame)
        if self._tag_of(top) is None:
            top.setTagValue(self._tag, UNKNOWN)

    def _top(self, frame: DataFrame) -> Node:
        if self._tag is None:
            jvm: Any = frame.sparkSession._jvm
            tag = getattr(jvm, "org.apache.spark.sql.catalyst.trees.TreeNodeTag")
            self._tag = tag(f"ackledger_line_{uuid4()}")
        return analyzed(frame)

    def place(self, catalyst: Catalyst, node: Node) -> str:
        """Return the line that made a node, as ``file:line``."""
        return self._line(catalyst, node) or UNKNOWN

    def places(self, catalyst: Catalyst, plan: Node, original: Node) -> Callable[[Node], str]:
        """Return the lines of a plan's nodes.

        ``original``: the plan as the user made it. A node that Spark has rewritten since, of a view
        or of a common table expression, has the line of the node above it.
        """
        lines: dict[int, str] = {}
        todo = [(plan, self.place(catalyst, original))]
        while todo:
            node, above = todo.pop()
            line = self._line(catalyst, node) or above
            lines.setdefault(catalyst.identity(node), line)
            below = [*catalyst.children(node), *catalyst.subqueries(node)]
            todo += [(child, line) for child in below]
        return lambda node: lines.get(catalyst.identity(node), UNKNOWN)

    def _line(self, catalyst: Catalyst, node: Node) -> str | None:
        tagged = None if self._tag is None else self._tag_of(node)
        if tagged is not None:
            return tagged
        self._locate(catalyst)
        line = self._by_identity.get(catalyst.identity(node))
        return line or self._by_shape.get(_shape(node))

    def _tag_of(self, node: Node) -> str | None:
        """Return the line that a node is tagged with."""
        tagged = str(node.getTagValue(self._tag).toString())
        return None if tagged == "None" else tagged.removeprefix("Some(").removesuffix(")")

    def _locate(self, catalyst: Catalyst) -> None:
        """Give each node to the first frame whose plan has it: frames are made bottom up.

        Below the node that an operation adds, a node that is not known by its identity is a copy
        that Spark has made, for a self-join: it has the line of the node that it is a copy of.
        """
        noted, self._noted = self._noted, []
        for top, line in noted:
            todo = [top]
            while todo:
                node = todo.pop()
                identity = catalyst.identity(node)
                if identity in self._by_identity:
                    continue
                copied = None if node is top else self._by_shape.get(_shape(node))
                self._by_identity[identity] = copied or line
                self._by_shape.setdefault(_shape(node), line)
                todo += catalyst.children(node)


_watcher: ContextVar[Sites | None] = ContextVar("_watcher", default=None)
_watcher_of_all: Sites | None = None
_lock = Lock()
_blocks = 0  # of all threads that watch now
_unpatched = DataFrame.__init__


@contextmanager
def _patched() -> Iterator[None]:
    """Have each new frame noted by its thread's watcher, until the last block of a thread ends."""
    global _blocks
    with _lock:
        _blocks += 1
        setattr(DataFrame, "__init__", _noted)  # noqa: B010 - mypy refuses the assignment
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                setattr(DataFrame, "__init__", _unpatched)  # noqa: B010


def _noted(frame: DataFrame, jdf: Any, sql_ctx: Any) -> None:
    _unpatched(frame, jdf, sql_ctx)
    watcher = _watcher.get() or _watcher_of_all
    line = user_line(sys._getframe(1)) if watcher else None
    if watcher and line is not None:
        watcher.note(frame, line)


def _shape(node: Node) -> tuple[str, int]:
    return simple_name(node), _hash(node)


@asked_once
def _hash(node: Node) -> int:
    return int(node.semanticHash())
