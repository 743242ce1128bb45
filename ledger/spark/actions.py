"""Note the actions that a user's function calls on frames without rows, and let it write nothing.

A function that fails over no rows may be right about all others, but only if it asked for rows.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from ledger.errors import LedgerError

# These return values of rows, or columns that are made of values.
_VALUES = (
    *("collect", "first", "head", "take", "tail", "toPandas", "toArrow", "toLocalIterator"),
    *("approxQuantile", "corr", "cov", "crosstab", "freqItems", "transpose", "pandas_api", "rdd"),
    "toJSON",
)
_NUMBERS = ("count", "isEmpty")  # of rows: a function may return early without any
_EFFECTS = ("show", "foreach", "foreachPartition")
_WRITERS = ("write", "writeTo", "writeStream", "mergeInto")
# Raised by Spark itself as it executes, and not by its Python for an argument.
_EXECUTED = ("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect", "py4j.")
# Statements of `sql` that change nothing but the session; the others are executed at once.
_READS = re.compile(
    r"[\s(]*(SELECT|WITH|VALUES|TABLE|FROM|SHOW|DESC|DESCRIBE|EXPLAIN|SET|RESET|USE|DECLARE|"
    r"CREATE\s+(OR\s+REPLACE\s+)?(LOCAL\s+|GLOBAL\s+)?(TEMP|TEMPORARY)|DROP\s+(TEMP|TEMPORARY))\b",
    re.IGNORECASE,
)
_WRITES = re.compile(
    r"\b(INSERT\s+(INTO|OVERWRITE)|DELETE\s+FROM|MERGE\s+(WITH|INTO))\b", re.IGNORECASE
)
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def written_by(statement: str) -> str | None:
    """Return the word of a SQL statement that writes or may write; None if the statement only
    reads.
    """
    bare = _COMMENTS.sub(" ", statement).strip()
    writes = _WRITES.search(bare)
    if writes is not None or (bare and not _READS.match(bare)):
        return (writes[0] if writes else bare).split()[0].upper()
    return None


class WritesError(Exception):
    """Raised when a user's function is about to write. The message names the call."""


class ActionLog:
    """The actions that a function has called, in order."""

    def __init__(self) -> None:
        self._calls: dict[str, None] = {}
        self._depth = 0

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Record a call of ``name``, but not the calls that it makes itself."""
        if not self._depth:
            self._calls[name] = None
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @property
    def has_calls(self) -> bool:
        """Whether a function has called an action."""
        return bool(self._calls)

    @property
    def uses_rows(self) -> bool:
        """Whether a function's result may depend on the rows of its inputs."""
        return bool(self._calls.keys() - set(_EFFECTS))

    def may_explain(self, exc: Exception) -> bool:
        """Return whether a function may have failed only because its inputs had no rows. An error
        that Spark raises while it executes a plan may have that cause. A plan that cannot be
        analyzed is wrong with any rows, unless it contains values of rows.
        """
        if isinstance(exc, AnalysisException) or isinstance(exc.__cause__, AnalysisException):
            return bool(self._calls.keys() - {*_EFFECTS, *_NUMBERS})
        if isinstance(exc, LedgerError):
            return self.uses_rows
        return bool(self._calls) or type(exc).__module__.startswith(_EXECUTED)

    def __str__(self) -> str:
        return ", ".join(self._calls) or "Spark"


@contextmanager
def noting_actions(frame: DataFrame) -> Iterator[ActionLog]:
    """Note the actions that the block calls on any frame of this kind. Raises WritesError in the
    block where it would write.
    """
    actions = ActionLog()
    kind, groups, session = type(frame), type(frame.groupBy()), type(frame.sparkSession)

    def noting(original: Any, name: str) -> Any:
        if isinstance(original, property):
            return property(noting(original.fget, name))

        @wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "pivot" and (len(arguments) > 2 or options.get("values")):
                return original(*arguments, **options)
            with actions.calling(name):
                return original(*arguments, **options)

        return call

    def refusing(original: Any, name: str) -> Any:
        def refuse(*arguments: Any, **options: Any) -> Any:
            raise WritesError(name)

        return property(refuse) if isinstance(original, property) else refuse

    def reading(original: Any, name: str) -> Any:
        @wraps(original)
        def sql(*arguments: Any, **options: Any) -> Any:
            word = written_by(str([*arguments, options.get("sqlQuery")][1]))
            if word is not None:
                raise WritesError(word)
            return original(*arguments, **options)

        return sql

    with ExitStack() as stack:
        for name in (*_VALUES, *_NUMBERS, *_EFFECTS):
            stack.enter_context(_replaced(kind, name, noting))
        stack.enter_context(_replaced(groups, "pivot", noting))
        if "pyspark.ml.base" in sys.modules:
            estimator = sys.modules["pyspark.ml.base"].Estimator
            stack.enter_context(_replaced(estimator, "fit", noting))
        for name in _WRITERS:
            stack.enter_context(_replaced(kind, name, refusing))
        stack.enter_context(_replaced(session, "sql", reading))
        yield actions


@contextmanager
def _replaced(kind: type, name: str, replacement: Callable[[Any, str], Any]) -> Iterator[None]:
    """Replace an attribute of a class for the block, if the class has it."""
    if not hasattr(kind, name):
        yield
        return
    is_own, before = name in vars(kind), getattr(kind, name)
    setattr(kind, name, replacement(before, name))
    try:
        yield
    finally:
        if is_own:
            setattr(kind, name, before)
        else:
            delattr(kind, name)
