"""Call a function of frames, and return its output with the input records of each row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.core.column_names import ANCHOR
from ledger.errors import CarryError
from ledger.lineage.anchors import LISTS, AnchorPart, Anchors, Form
from ledger.lineage.carrier import Carried, Carrier, Operation
from ledger.lineage.catalyst import OWN_PREFIX, Catalyst, Expression, Node
from ledger.lineage.nodes import asked_once, right_side, simple_name, subquery_in
from ledger.lineage.sites import Sites

_INPUT = f"{OWN_PREFIX}input_"


@dataclass(frozen=True)
class CarriedResult:
    """The output of a function with its records.

    ``bare``: the function's output. ``carried``: the same rows with their records, in one column of
    lists (``_anchor``, array<bigint>). ``consulted``: the operations by which an input only decides
    which rows are kept.
    """

    bare: DataFrame
    carried: DataFrame
    consulted: Sequence[Operation]


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
    named = {f"input {number}": frame for number, frame in enumerate(inputs, 1)}
    following = Following(_name(function), named, form, id_column)
    with following.watching():
        bare = function(*following.bare, **(arguments or {}))
    require_frame(function, bare, following.spark)
    names = [ANCHOR] if len(form.names) == 1 else [f"{ANCHOR}_{name}" for name in form.names]
    carried = following.carried(bare, names)
    following.require_inputs([bare])
    return CarriedResult(bare, carried, tuple(following.carrier.consulted))


class Following:
    """Follows the records of a function's inputs to the frames that the function returns.

    ``function``: its name, for messages.
    ``inputs``: frames by name, each with a column ``id_column``: the id of the row's record, or the
    column of ``form`` that names several records.
    ``form``: the columns that name the records of a row with several records.

    ``bare``: the inputs without their ids, with which the function is called.
    ``carrier``: rewrites the plans of the frames given to ``carried``, and notes their operations.
    ``sites``: the user's lines that made the nodes of these plans.
    """

    def __init__(
        self, function: str, inputs: Mapping[str, DataFrame], form: Form, id_column: str = ANCHOR
    ):
        self.spark = next(iter(inputs.values())).sparkSession
        self.inputs = inputs
        self.function, self._id_column = function, id_column
        self.catalyst, self.sites = Catalyst(self.spark), Sites()
        self.carrier = Carrier(self.catalyst, form, self._input_of, self._place)
        self.bare = [self._without_id(name, number) for number, name in enumerate(inputs)]
        ids = [frame.schema[id_column].dataType for frame in inputs.values()]
        self._is_id = [each.simpleString() == form.id_type for each in ids]
        for frame in self.bare:
            self.sites.close(frame)

    def watching(self) -> AbstractContextManager[None]:
        """Return the block in which the function is called: lines that make frames are noted."""
        return self.sites.watching()

    def carried(
        self, frame: DataFrame, names: Sequence[str], *, id_alone: bool = False
    ) -> DataFrame:
        """Return a frame of the inputs with its records, as ``Carrier.carry`` does. Raises
        CarryError if none of its rows comes from an input.
        """
        taken = [name for name in frame.columns if name.lower() in names]
        if taken:
            raise CarryError(f"{self.function} returns a column {taken[0]!r}: rename it")
        carried = self.carrier.carry(frame, names, id_alone=id_alone)
        if carried is not None:
            return carried
        if not self._inputs_in([frame]):
            self.require_inputs([frame])
        raise CarryError(
            f"no row of the result of {self.function} comes from an input: "
            "its inputs only decide which rows are kept"
        )

    def require_inputs(self, frames: Sequence[DataFrame]) -> None:
        """Raise CarryError unless each input is in the plan of one of these frames."""
        uses = self._inputs_in(frames)
        for number, (name, rows) in enumerate(self.inputs.items()):
            if number not in uses:
                columns = ", ".join(each for each in rows.columns if each != self._id_column)
                raise CarryError(
                    f"{self.function} does not use its {name} ({columns}), "
                    "or takes it out of the plan by collect(), toPandas(), rdd or checkpoint(): "
                    "expected each input in the plan of the result"
                )

    def only_consulted(self, frames: Sequence[DataFrame]) -> dict[int, Operation]:
        """Return the inputs, by number, that only decide which rows of the frames are kept, and the
        operation by which each does."""
        uses = self._inputs_in(frames)
        return {number: by for number, by in uses.items() if by is not None}

    def _inputs_in(self, frames: Sequence[DataFrame]) -> dict[int, Operation | None]:
        """Return the inputs in the plans of frames, by number, and the operation that consults one
        of which no row is followed."""
        uses: dict[int, Operation | None] = {}
        for frame in frames:
            for number, by in self._uses(self.catalyst.analyzed(frame), None, {}):
                uses[number] = None if number in uses and uses[number] is None else by
        return uses

    def _uses(
        self, node: Node, by: Operation | None, definitions: dict[int, Node]
    ) -> Iterator[tuple[int, Operation | None]]:
        """Yield the inputs below a node that ``by`` consults (None: none does)."""
        number, name = self.number_of(node), simple_name(node)
        if number is not None:
            yield number, by
            return
        children = self.catalyst.children(node)
        if name == "WithCTE":
            *defined, main = children
            definitions |= {each.id(): each.child() for each in defined}
            children = [main]
        elif name == "CTERelationRef":
            children = [definitions[node.cteId()]] if node.cteId() in definitions else []
        right = right_side(node)
        if right is not None:
            consulting = by or Operation(right, self._place(node))
            yield from self._uses(children.pop(), consulting, definitions)
        for child in children:
            yield from self._uses(child, by, definitions)
        for plan in self.catalyst.subqueries(node):
            consulting = by or Operation(subquery_in(node), self._place(node))
            yield from self._uses(plan, consulting, definitions)

    def _without_id(self, name: str, number: int) -> DataFrame:
        """Return the frame that the function gets for an input: an alias marks it in plans."""
        frame = self.inputs[name]
        folded = [column.lower() for column in frame.columns]
        twice = sorted({each for each in frame.columns if folded.count(each.lower()) > 1})
        if twice:
            raise CarryError(f"{name} has columns {twice}, which are equal: rename one")
        if self._id_column not in frame.columns:
            raise CarryError(
                f"{name} has no column {self._id_column!r}: expected the id of each "
                f"record. It has {', '.join(frame.columns)}"
            )
        return frame.drop(self._id_column).alias(f"{_INPUT}{number}")

    def _input_of(self, node: Node) -> Carried | None:
        """Return a marked input with its ids after its columns; None for any other node."""
        number = self.number_of(node)
        if number is None:
            return None
        project, ids = self._project_and_ids(node)
        # Under a new expression id each time: the sides of a self-join have different ones.
        named = self.catalyst.named([ids])
        inner, own = self.catalyst.extended(project.child(), project.projectList(), named)
        anchors = Anchors((AnchorPart(self._is_id[number], tuple(own)),))
        return self.catalyst.with_children(node, [inner]), anchors

    def with_column(
        self,
        node: Node,
        made_of: Callable[[Column], Column],
        restricted: Callable[[DataFrame, Column], DataFrame] | None = None,
    ) -> tuple[Node, Expression]:
        """Return a marked input with a column after its own that is made of its column of ids, and
        the column's attribute. ``restricted``: returns a part of the rows, with the same columns.
        """
        project, attribute = self._project_and_ids(node)
        child, ids = project.child(), self.catalyst.column(attribute)
        if restricted is not None:
            child = self.catalyst.analyzed(restricted(self.catalyst.frame(child), ids))
        # Under a new expression id each time: the sides of a self-join have different ones.
        inner, (own,) = self.catalyst.projected(child, project.projectList(), [made_of(ids)])
        return self.catalyst.with_children(node, [inner]), own

    def _project_and_ids(self, node: Node) -> tuple[Node, Expression]:
        """Return the Project of a marked input, and the attribute of the ids below it."""
        (project,) = self.catalyst.children(node)
        child = project.child()
        return project, child.output().apply(child.schema().fieldIndex(self._id_column))

    def number_of(self, node: Node) -> int | None:
        """Return the number of the input that a node is; None: it is none."""
        alias = _alias(node) if simple_name(node) == "SubqueryAlias" else ""
        return int(alias.removeprefix(_INPUT)) if alias.startswith(_INPUT) else None

    def _place(self, node: Node) -> str:
        return self.sites.place(self.catalyst, node)


def require_classic(function: Callable[..., Any], inputs: Sequence[DataFrame]) -> None:
    """Raise CarryError for inputs that are no frames of a classic Spark session."""
    for index, frame in enumerate(inputs, 1):
        if not isinstance(frame, ClassicDataFrame):
            raise CarryError(
                f"input {index} of {_name(function)} is a {type(frame).__module__}."
                f"{type(frame).__qualname__}: expected a DataFrame of a classic Spark session. On "
                "Spark Connect no plan can be rewritten"
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


@asked_once
def _alias(node: Node) -> str:
    return str(node.alias())


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
