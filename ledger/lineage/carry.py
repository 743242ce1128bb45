"""Call a function of frames, and return its output with the input records of each row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.core.column_names import ANCHOR
from ledger.errors import CarryError
from ledger.lineage.anchors import LISTS, Anchors, Form
from ledger.lineage.carrier import Carried, Carrier, Consulted
from ledger.lineage.catalyst import OWN_PREFIX, Catalyst, Node
from ledger.lineage.nodes import simple_name
from ledger.lineage.sites import Sites

_INPUT = f"{OWN_PREFIX}input_"


@dataclass(frozen=True)
class CarriedResult:
    """The output of a function with its records.

    ``bare``: the function's output. ``carried``: the same rows with their records, in one column of
    lists (``_anchor``, array<bigint>). ``consulted``: inputs that only decide which rows are kept.
    """

    bare: DataFrame
    carried: DataFrame
    consulted: Sequence[Consulted]


def carry(
    function: Callable[..., DataFrame],
    inputs: Sequence[DataFrame],
    *,
    id_column: str = ANCHOR,
    form: Form = LISTS,
    arguments: Mapping[str, Any] | None = None,
) -> CarriedResult:
    """Call a function with frames that have no record ids, and add these to what it returns.

    ``inputs``: frames with a column ``id_column`` of type bigint, unique over all inputs.
    ``arguments``: other arguments of the function; their frames are not followed. Raises CarryError
    if an operation has no rule, if the result is no frame of the inputs' session, or if an input
    reaches no part of it.
    """
    require_classic(function, inputs)
    spark = inputs[0].sparkSession
    catalyst, sites = Catalyst(spark), Sites()
    marked = _Marked(catalyst, id_column)
    with sites.watching():
        bare = function(*map(marked.without_id, inputs, range(len(inputs))), **(arguments or {}))
    require_frame(function, bare, spark)
    carrier = Carrier(catalyst, form, marked.input_of, lambda node: sites.place(catalyst, node))
    names = [ANCHOR] if len(form.names) == 1 else [f"{ANCHOR}_{name}" for name in form.names]
    taken = [name for name in bare.columns if name.lower() in names]
    if taken:
        raise CarryError(f"{_name(function)} returns a column {taken[0]!r}: rename it")
    carried = carrier.carry(bare, names)
    missing = set(range(len(inputs))) - marked.inputs_in(catalyst.analyzed(bare))
    if missing:
        at = min(missing)
        raise CarryError(
            f"{_name(function)} does not use its input {at + 1} ({', '.join(inputs[at].columns)}), "
            "or takes it out of the plan by collect(), toPandas(), rdd or checkpoint(): expected "
            "each input in the plan of the result"
        )
    if carried is None:
        raise CarryError(
            f"no row of the result of {_name(function)} comes from an input: "
            "its inputs only decide which rows are kept"
        )
    return CarriedResult(bare, carried, tuple(carrier.consulted))


@dataclass
class _Marked:
    """Inputs marked in a plan by an alias of their own."""

    catalyst: Catalyst
    id_column: str

    def without_id(self, frame: DataFrame, index: int) -> DataFrame:
        """Return the frame that the function gets."""
        folded = [name.lower() for name in frame.columns]
        twice = sorted({name for name in frame.columns if folded.count(name.lower()) > 1})
        if twice:
            raise CarryError(f"input {index + 1} has columns {twice}, which are equal: rename one")
        if self.id_column not in frame.columns:
            raise CarryError(
                f"input {index + 1} has no column {self.id_column!r}: expected the id of each "
                f"record. It has {', '.join(frame.columns)}"
            )
        names = [f"`{name.replace('`', '``')}`" for name in frame.columns if name != self.id_column]
        return frame.select(*names).alias(f"{_INPUT}{index}")

    def input_of(self, node: Node) -> Carried | None:
        """Return a marked input with its id after its columns; None for any other node."""
        if self._index(node) is None:
            return None
        project = self.catalyst.children(node)[0]
        child = project.child()
        record_id = next(
            attribute
            for attribute in self.catalyst.output(child)
            if attribute.name() == self.id_column
        )
        columns = [*self.catalyst.items(project.projectList()), record_id]
        inner = self.catalyst.rebuilt(project, projectList=columns)
        return self.catalyst.with_children(node, [inner]), Anchors.of_id(record_id)

    def inputs_in(self, node: Node) -> set[int]:
        """Return the inputs in a plan and in its subqueries, by their index."""
        index = self._index(node)
        if index is not None:
            return {index}
        below = [*self.catalyst.children(node), *self.catalyst.subqueries(node)]
        return set().union(*map(self.inputs_in, below))

    def _index(self, node: Node) -> int | None:
        if simple_name(node) != "SubqueryAlias" or not node.alias().startswith(_INPUT):
            return None
        return int(node.alias().removeprefix(_INPUT))


def require_classic(function: Callable[..., Any], inputs: Sequence[DataFrame]) -> None:
    """Raise CarryError for inputs that are no frames of a classic Spark session."""
    for index, frame in enumerate(inputs, 1):
        if not isinstance(frame, ClassicDataFrame):
            raise CarryError(
                f"input {index} of {_name(function)} is a {type(frame).__module__}."
                f"{type(frame).__qualname__}: expected a DataFrame of a classic Spark session. On "
                "Spark Connect anchors are written by hand"
            )


def require_frame(function: Callable[..., Any], result: object, spark: SparkSession) -> None:
    """Raise CarryError unless ``result`` is a classic DataFrame of the session's SparkContext. The
    message names ``function``.
    """
    if not isinstance(result, ClassicDataFrame):
        raise CarryError(
            f"{_name(function)} returned {type(result).__name__}: expected a DataFrame"
        )
    if result.sparkSession.sparkContext is not spark.sparkContext:
        raise CarryError(
            f"{_name(function)} returned a DataFrame of another SparkContext: expected one made "
            "from its inputs"
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
