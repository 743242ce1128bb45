"""Rewrite an analyzed plan so that each row carries the ids of the records it comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame

from ledger.errors import CarryError
from ledger.lineage.anchors import AnchorPart, Anchors, Form
from ledger.lineage.catalyst import Catalyst, Expression, Node, Seq
from ledger.lineage.nodes import (
    GATHERING,
    JOINS,
    LEAVES,
    OF_PLACES,
    PASSED,
    REFUSED,
    RIGHT_OF_EXCEPT,
    ROWS_ALONE,
    RULED,
    join_type,
    right_side,
    simple_name,
    subquery_in,
)

STREAMING = "a streaming frame cannot be followed: read its source as a batch"
TOO_DEEP = (
    "the plan has too many operations on top of each other: make columns with one select() or "
    "withColumns() instead of withColumn() in a loop"
)
# A plan with the output of a node and hidden columns after it; None: no input is below it.
Carried = tuple[Node, Anchors | None]


@dataclass(frozen=True)
class Operation:
    """An operation of the user, in words, and its line as ``file:line``."""

    words: str
    place: str

    def __str__(self) -> str:
        return f"{self.words} at {self.place}"


@dataclass
class Carrier:
    """Rewrites plans of one session.

    ``input_of``: returns the plan of an input's node with the columns that name its records, or
    None for any other node. ``place``: returns the user's line that made a node. ``form``: the form
    of rows of several records.

    Grow with each rewritten plan: ``consulted``, the operations by which a tracked input decides
    which rows are kept, without a row of its own; ``gathering``, those whose rows depend on which
    other rows there are.
    """

    catalyst: Catalyst
    form: Form
    input_of: Callable[[Node], Carried | None]
    place: Callable[[Node], str]
    consulted: list[Operation] = field(default_factory=list)
    gathering: list[Operation] = field(default_factory=list)
    _definitions: dict[int, Anchors | None] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)

    def carry(
        self, frame: DataFrame, names: Sequence[str], *, id_alone: bool = False
    ) -> DataFrame | None:
        """Return the frame with its records as columns ``names`` after its own, or None if its plan
        has no input. Raises CarryError for an operation without a rule.

        ``id_alone``: if each row has at most one record, the column is its id, and no list.
        """
        plan = self.catalyst.analyzed(frame)
        self.require_batch(plan)
        try:
            node, anchors = self.rewrite(plan)
        except RecursionError:
            raise CarryError(TOO_DEEP) from None
        if anchors is None:
            return None
        if id_alone and anchors.is_id:
            columns = anchors.attributes
        else:
            columns = self._columns(self.form.finished(self._several(anchors)), anchors)
        visible = self.catalyst.outputs_of(plan, node)
        own = self.catalyst.named(columns, names)
        carried = self.catalyst.frame(self.catalyst.extended(node, visible, own)[0])
        before, after = ([(e.name, e.dataType) for e in f.schema.fields] for f in (frame, carried))
        if before != after[: -len(names)]:
            raise CarryError(
                "a column was changed while the plan was rewritten, which is a fault of "
                f"ackledger. Please report this plan:\n{plan.toString()}"
            )
        return carried

    def carried(self, node: Node) -> tuple[DataFrame, list[Column]]:
        """Return the rows of a node below which an input is, and the columns of their records."""
        plan, anchors = self.rewrite(node)
        assert anchors is not None
        columns = self._columns(self._several(anchors), anchors)
        return self.catalyst.frame(plan), [self.catalyst.column(column) for column in columns]

    def require_batch(self, plan: Node) -> None:
        """Raise CarryError for a plan of Structured Streaming."""
        if plan.isStreaming():
            raise CarryError(STREAMING)

    def rewrite(self, node: Node) -> Carried:
        """Return a node whose output has the records after the node's own columns."""
        tracked_input = self.input_of(node)
        if tracked_input is not None:
            return tracked_input
        name = simple_name(node)
        if any(map(self.is_tracked, self.catalyst.subqueries(node))):
            self._consult(node, subquery_in(node))
        if name == "WithCTE":
            return self._with_cte(node)
        if name == "CTERelationRef":
            return self._cte_reference(node)
        children = self.catalyst.children(node)
        if not children:
            if name not in LEAVES:
                raise self._refusal(node, name)
            return node, None
        done = [self.rewrite(child) for child in children]
        if not any(anchors for _, anchors in done):
            return node, None
        nodes = [plan for plan, _ in done]
        anchors = [each for _, each in done]
        self._require_known(node, name)
        if name in GATHERING:
            self._gather(node, GATHERING[name])
        if name == "Project" and not node.deterministic():
            expressions = str(node.expressions().mkString(", "))
            for function in OF_PLACES:
                if function in expressions:
                    self._gather(node, function.lower())
        if name in RULED:
            rule: Callable[..., Carried] = getattr(self, f"_{name.lower()}")
            return rule(node, nodes, anchors)
        if name == "Generate" and node.unrequiredChildIndex().size():
            raise self._refusal(node, name)
        return self.catalyst.with_children(node, nodes), anchors[0]

    def is_tracked(self, node: Node) -> bool:
        """Return whether an input is below a node or in one of its subqueries."""
        if self.input_of(node) is not None:
            return True
        if simple_name(node) == "CTERelationRef":
            return self._definitions.get(node.cteId()) is not None
        below = [*self.catalyst.children(node), *self.catalyst.subqueries(node)]
        return any(map(self.is_tracked, below))

    def _require_known(self, node: Node, name: str) -> None:
        """Raise CarryError for a node without a rule, or with a field unknown to its rule."""
        accepted = {**PASSED, **RULED}.get(name)
        if accepted is None:
            raise self._refusal(node, name)
        if name not in self._checked:
            unknown = sorted(set(self.catalyst.fields(node)) - accepted)
            if unknown:
                raise CarryError(
                    f"{self.place(node)}: rows cannot be followed through {name} of Spark "
                    f"{self.catalyst.spark.version}, which has a new field {unknown[0]!r}: "
                    "expected Spark 4.0 to 4.3"
                )
            self._checked.add(name)

    def _refusal(self, node: Node, name: str) -> CarryError:
        operation, advice = REFUSED.get(name, (name, "write it with other operations"))
        return CarryError(
            f"{self.place(node)}: rows cannot be followed through {operation}: {advice}",
            "by_hand" if name in ROWS_ALONE else "merged_by_hand",
        )

    def _consult(self, node: Node, words: str) -> None:
        operation = Operation(words, self.place(node))
        if operation not in self.consulted:
            self.consulted.append(operation)
        self._gather(node, words)

    def _gather(self, node: Node, words: str) -> None:
        operation = Operation(words, self.place(node))
        if operation not in self.gathering:
            self.gathering.append(operation)

    def _several(self, anchors: Anchors | None, first: int = 0) -> list[str]:
        """Return the columns of a row in the form of several records, in SQL. ``first``: the number
        of the first attribute of the anchors in it.
        """
        if anchors is None:
            return self.form.none()
        parts = anchors.named(first)
        if len(parts) == 2 and all(part.is_id for part in anchors.parts):
            return self.form.of_two(parts[0][0], parts[1][0])
        columns = [
            self.form.of_one(names[0]) if part.is_id else names
            for part, names in zip(anchors.parts, parts, strict=True)
        ]
        return columns[0] if len(columns) == 1 else self.form.merged(columns)

    def _columns(self, texts: Sequence[str], *anchors: Anchors | None) -> list[Expression]:
        attributes = [attribute for each in anchors if each for attribute in each.attributes]
        return self.catalyst.resolved(texts, attributes)

    def _with(self, node: Node, visible: Seq, columns: Sequence[Expression]) -> Carried:
        own = self.catalyst.named(columns)
        plan, attributes = self.catalyst.extended(node, visible, own)
        return plan, _of_several(attributes)

    def _project(self, node: Node, nodes: list[Node], anchors: list[Anchors]) -> Carried:
        columns = self.catalyst.joined(node.projectList(), anchors[0].attributes)
        return self.catalyst.rebuilt(node, projectList=columns, child=nodes[0]), anchors[0]

    def _join(self, node: Node, nodes: list[Node], anchors: list[Anchors | None]) -> Carried:
        consulted = right_side(node)
        if consulted is not None:
            if anchors[1]:
                self._consult(node, consulted)
            if anchors[0] is None:
                return node, None
            # The right side stays as it was: its own columns are all that the condition needs.
            right = self.catalyst.children(node)[1]
            return self.catalyst.with_children(node, [nodes[0], right]), anchors[0]
        if join_type(node) not in JOINS:
            raise self._refusal(node, f"{join_type(node)} join")
        join = self.catalyst.with_children(node, nodes)
        if all(anchors):
            self._gather(node, "a join")
        parts = tuple(
            self._nullable(part) if may_lack else part
            for each, may_lack in zip(anchors, JOINS[join_type(node)], strict=True)
            if each
            for part in each.parts
        )
        return join, Anchors(parts)

    def _nullable(self, part: AnchorPart) -> AnchorPart:
        """Return a part as it is in the rows of an outer join. Spark would leave out what an
        expression above the join does with a NULL if the attribute could not be one.
        """
        return replace(part, attributes=tuple(map(self.catalyst.nullable, part.attributes)))

    def _union(self, node: Node, nodes: list[Node], anchors: list[Anchors | None]) -> Carried:
        is_id = all(each is None or each.is_id for each in anchors)
        sides = []
        for side, child, each in zip(nodes, self.catalyst.children(node), anchors, strict=True):
            if is_id and each is not None:
                columns = each.attributes
            else:
                none = [f"CAST(NULL AS {self.form.id_type})"]
                columns = self._columns(none if is_id else self._several(each), each)
            own = self.catalyst.named(columns)
            sides.append(self.catalyst.extended(side, child.output(), own))
        union = self.catalyst.with_children(node, [plan for plan, _ in sides])
        hidden = self.catalyst.items(union.output().takeRight(len(sides[0][1])))
        return union, Anchors((AnchorPart(is_id, tuple(hidden)),))

    def _aggregate(self, node: Node, nodes: list[Node], anchors: list[Anchors]) -> Carried:
        if self.catalyst.has_pandas_aggregate(node):
            raise CarryError(
                f"{self.place(node)}: Spark cannot compute a pandas aggregate beside another "
                "aggregate: use a built-in aggregate"
            )
        outputs = node.aggregateExpressions()
        return self._grouped(nodes[0], anchors[0], node.groupingExpressions(), outputs, like=node)

    def _distinct(self, node: Node, nodes: list[Node], anchors: list[Anchors]) -> Carried:
        return self._grouped(nodes[0], anchors[0], node.output(), node.output())

    def _deduplicate(self, node: Node, nodes: list[Node], anchors: list[Anchors]) -> Carried:
        # Other columns keep their expression ids above the group and have new ones below it. With
        # the same ids Spark would push a filter on them below the group, and choose other rows.
        keys = self.catalyst.items(node.keys())
        key_ids = {key.exprId().id() for key in keys}
        output = [(each, each.exprId().id() in key_ids) for each in self.catalyst.output(node)]
        others = [each for each, is_key in output if not is_key]
        visible = [*(each for each, is_key in output if is_key), *anchors[0].attributes]
        child, copies = self.catalyst.extended(nodes[0], visible, self.catalyst.named(others))
        firsts = self.catalyst.resolved([f"first(a{at})" for at in range(len(copies))], copies)
        renamed = map(self.catalyst.renamed, firsts, others)
        outputs = [each if is_key else next(renamed) for each, is_key in output]
        # Without a key all rows are one group, and no rows are none.
        keys = keys or self.catalyst.resolved(["1"], [])
        return self._grouped(child, anchors[0], keys, outputs)

    def _grouped(
        self,
        child: Node,
        anchors: Anchors,
        keys: Sequence[Expression] | Seq,
        outputs: Sequence[Expression] | Seq,
        like: Node | None = None,
    ) -> Carried:
        """Group a node by keys, and collect the records of each group."""
        form = self.form
        parts = [
            form.collected_ids(names[0]) if part.is_id else form.collected(names)
            for part, names in zip(anchors.parts, anchors.named(), strict=True)
        ]
        columns = self._columns(parts[0] if len(parts) == 1 else form.merged(parts), anchors)
        own = self.catalyst.named(columns)
        plan, attributes = self.catalyst.aggregated(child, keys, outputs, own, like)
        return plan, _of_several(attributes)

    def _expand(self, node: Node, nodes: list[Node], anchors: list[Anchors]) -> Carried:
        attributes = anchors[0].attributes
        rows = [
            self.catalyst.joined(row, attributes) for row in self.catalyst.items(node.projections())
        ]
        fresh = [attribute.newInstance() for attribute in attributes]
        output = self.catalyst.joined(node.output(), fresh)
        plan = self.catalyst.rebuilt(node, projections=rows, output=output, child=nodes[0])
        return plan, anchors[0].renewed(fresh)

    def _except(self, node: Node, nodes: list[Node], anchors: list[Anchors | None]) -> Carried:
        self._refuse_all(node, "exceptAll")
        if anchors[1]:
            self._consult(node, RIGHT_OF_EXCEPT)
        if anchors[0] is None:
            return node, None
        return self._set_operation(node, nodes[0], anchors[0], "left_anti")

    def _intersect(self, node: Node, nodes: list[Node], anchors: list[Anchors | None]) -> Carried:
        self._refuse_all(node, "intersectAll")
        left, right = anchors
        if left is None:
            none = self._columns(self.form.none())
            plan, added = self._with(nodes[0], nodes[0].output(), none)
            return self._intersect(node, [plan, nodes[1]], [added, right])
        if right is None:
            return self._set_operation(node, nodes[0], left, "left_semi")
        keys, other_keys = map(self.catalyst.output, self.catalyst.children(node))
        left_rows, of_left = self._grouped(nodes[0], left, keys, keys)
        right_rows, of_right = self._grouped(nodes[1], right, other_keys, other_keys)
        assert of_left is not None
        pairs = list(zip(keys, other_keys, strict=True))
        join = self.catalyst.joined_null_safe(left_rows, right_rows, pairs, "inner")
        parts = [self._several(of_left), self._several(of_right, len(of_left.attributes))]
        merged = self._columns(self.form.merged(parts), of_left, of_right)
        return self._with(join, keys, merged)

    def _set_operation(self, node: Node, left: Node, anchors: Anchors, how: str) -> Carried:
        """Return the distinct rows of the left side that the unchanged right side keeps."""
        _, right = self.catalyst.children(node)
        keys, other_keys = map(self.catalyst.output, self.catalyst.children(node))
        grouped, several = self._grouped(left, anchors, keys, keys)
        pairs = list(zip(keys, other_keys, strict=True))
        return self.catalyst.joined_null_safe(grouped, right, pairs, how), several

    def _refuse_all(self, node: Node, operation: str) -> None:
        if node.isAll():
            raise CarryError(
                f"{self.place(node)}: rows cannot be followed through {operation}: number the "
                "equal rows with row_number(), and use a set operation without ALL",
                "merged_by_hand",
            )

    def _with_cte(self, node: Node) -> Carried:
        self._require_known(node, "WithCTE")
        *definitions, main = self.catalyst.children(node)
        carried = []
        for definition in definitions:
            self._require_known(definition, simple_name(definition))
            plan, anchors = self.rewrite(definition.child())
            if anchors is not None:  # its columns go last: references take columns by position
                own = self.catalyst.named(anchors.attributes)
                plan, attributes = self.catalyst.extended(plan, definition.child().output(), own)
                anchors = anchors.renewed(attributes)
            self._definitions[definition.id()] = anchors
            carried.append(self.catalyst.with_children(definition, [plan]))
        plan, anchors = self.rewrite(main)
        return self.catalyst.with_children(node, [*carried, plan]), anchors

    def _cte_reference(self, node: Node) -> Carried:
        self._require_known(node, "CTERelationRef")
        if node.recursive():
            raise self._refusal(node, "UnionLoop")
        anchors = self._definitions.get(node.cteId())
        if anchors is None:
            return node, None
        fresh = [attribute.newInstance() for attribute in anchors.attributes]
        plan = self.catalyst.rebuilt(node, output=self.catalyst.joined(node.output(), fresh))
        return plan, anchors.renewed(fresh)


def _of_several(attributes: Sequence[Expression]) -> Anchors:
    return Anchors((AnchorPart(False, tuple(attributes)),))
