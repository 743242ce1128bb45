"""Read and rebuild nodes of Spark's logical plans through py4j.

No node is made by its constructor: nodes of the user's plan are copied with other children or
fields, and added nodes come from the DataFrame API. So a new field of a node is kept unchanged.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.errors import CarryError
from ledger.lineage.nodes import asked_once

Node = Any  # a LogicalPlan of the JVM
Expression = Any  # an Expression of the JVM
OWN_PREFIX = "__ackledger_"
_numbers = count()
_identities: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by JVM


class Catalyst:
    """Tools for the plans of one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._jvm: Any = spark._jvm
        self._fields: dict[str, tuple[str, ...]] = {}
        self._session: Any = spark._jsparkSession
        self._of_rows = getattr(self._jvm, "org.apache.spark.sql.classic.Dataset").ofRows
        self._column = getattr(self._jvm, "org.apache.spark.sql.classic.ExpressionUtils").column
        self._alias = getattr(self._jvm, "org.apache.spark.sql.catalyst.expressions.Alias")
        self._none = getattr(self._jvm, "scala.Option").empty()
        self._empty = self._session.emptyDataFrame().queryExecution().analyzed()

    def items(self, values: Any) -> list[Any]:
        """Return the elements of a Scala Seq."""
        return [values.apply(index) for index in range(values.size())]

    def children(self, node: Node) -> list[Node]:
        """Return the children of a node, without the plans of subqueries in its expressions."""
        return [*self._children(node)]

    @asked_once
    def _children(self, node: Node) -> list[Node]:
        return self.items(node.children())

    def subqueries(self, node: Node) -> list[Node]:
        """Return the plans of the subqueries in a node's own expressions."""
        return [*self._subqueries(node)]

    @asked_once
    def _subqueries(self, node: Node) -> list[Node]:
        return self.items(node.subqueries())

    def output(self, node: Node) -> list[Expression]:
        """Return the attributes of a node's rows."""
        return [*self._output(node)]

    @asked_once
    def _output(self, node: Node) -> list[Expression]:
        return self.items(node.output())

    def fields(self, node: Node) -> tuple[str, ...]:
        """Return the names of a node's constructor fields."""
        name = str(node.getClass().getName())
        if name not in self._fields:
            arity = range(node.productArity())
            self._fields[name] = tuple(node.productElementName(index) for index in arity)
        return self._fields[name]

    @asked_once
    def identity(self, node: Any) -> int:
        """Return a number of an object of the JVM that no other object ever has.

        Two objects may have one identity hash. The map compares the objects themselves, and does
        not keep them from being collected.
        """
        jvm = self._gateway().jvm
        numbers = _identities.get(jvm)
        if numbers is None:
            maker = getattr(jvm, "org.sparkproject.guava.collect.MapMaker")()
            numbers = _identities.setdefault(jvm, maker.weakKeys().makeMap())
        number = next(_numbers)
        earlier = numbers.putIfAbsent(node, number)
        return number if earlier is None else int(earlier)

    def analyzed(self, frame: DataFrame) -> Node:
        """Return the analyzed plan of a frame."""
        return frame._jdf.queryExecution().analyzed()

    def frame(self, plan: Node) -> DataFrame:
        """Return a frame of a plan."""
        return ClassicDataFrame(self._of_rows(self._session, plan), self.spark)

    def column(self, expression: Expression) -> Column:
        """Return a resolved expression as a column."""
        return ClassicColumn(self._column(expression))

    def rebuilt(self, node: Node, **fields: Any) -> Node:
        """Copy a node with other values of some constructor fields."""
        values = [fields.get(name, _KEEP) for name in self.fields(node)]
        copied = self._gateway().new_array(self._jvm.java.lang.Object, len(values))
        for index, value in enumerate(values):
            copied[index] = node.productElement(index) if value is _KEEP else self.scala(value)
        return self._resolved(node.makeCopy(copied))

    def with_children(self, node: Node, children: Iterable[Node]) -> Node:
        """Copy a node with other children."""
        return self._resolved(node.withNewChildren(self.scala(list(children))))

    def projected(
        self, child: Node, visible: Sequence[Expression], columns: Sequence[Column]
    ) -> tuple[Node, list[Expression]]:
        """Project attributes of a node and own columns over it.

        Returns the node and the attributes of the own columns.
        """
        plan = self.analyzed(self._stub(child).select(*self._named(columns)))
        own = self.items(plan.projectList())
        node = self.rebuilt(plan, projectList=[*visible, *own], child=child)
        return node, [expression.toAttribute() for expression in own]

    def aggregated(
        self,
        child: Node,
        keys: Sequence[Expression],
        outputs: Sequence[Expression],
        columns: Sequence[Column],
        like: Node | None = None,
    ) -> tuple[Node, list[Expression]]:
        """Group a node by keys; the output has the given expressions and own aggregates.

        ``like``: the Aggregate to copy, with its hints. Returns the node and the attributes of the
        own aggregates.
        """
        plan = self.analyzed(self._stub(child).groupBy().agg(*self._named(columns)))
        own = self.items(plan.aggregateExpressions())
        node = self.rebuilt(
            plan if like is None else like,
            groupingExpressions=list(keys),
            aggregateExpressions=[*outputs, *own],
            child=child,
        )
        return node, [expression.toAttribute() for expression in own]

    def new_instance(self, leaf: Node) -> Node:
        """Return a leaf with new expression ids."""
        fresh = leaf.newInstance()
        fresh.setAnalyzed()
        return fresh

    def first(self, child: Node, value: Expression, attribute: Expression) -> Expression:
        """Return ``first(value)`` under the name and expression id of an attribute."""
        frame = self._stub(child).groupBy().agg(F.first(self.column(value)))
        first = self.analyzed(frame).aggregateExpressions().head().child()
        return self.renamed(first, attribute)

    def literal_key(self, child: Node) -> Expression:
        """Return a key that puts all rows of a node into one group, and makes none of no rows."""
        plan = self.analyzed(self._stub(child).select(*self._named([F.lit(1)])))
        return plan.projectList().head().child()

    def renamed(self, value: Expression, attribute: Expression) -> Expression:
        """Return a value under the name and expression id of an attribute."""
        nothing = self.scala([])
        return self._alias(
            value,
            attribute.name(),
            attribute.exprId(),
            attribute.qualifier(),
            self._none,
            nothing,
        )

    def spark_class(self, name: str) -> Any:
        """Return a class of Spark's Catalyst, by its name below that package."""
        return getattr(self._jvm, f"org.apache.spark.sql.catalyst.{name}")

    def is_in(self, value: Expression, values: Any) -> Column:
        """Return whether a value is in a Scala Set of values of its type, in Spark's own form."""
        in_set = getattr(self._jvm, "org.apache.spark.sql.catalyst.expressions.InSet")
        return self.column(in_set(value, values))

    def is_orderable(self, value: Expression) -> bool:
        """Return whether values of an expression's type can be compared; maps cannot."""
        ordering = "org.apache.spark.sql.catalyst.expressions.RowOrdering"
        return bool(getattr(self._jvm, ordering).isOrderable(value.dataType()))

    def joined_null_safe(
        self, left: Node, right: Node, pairs: Sequence[tuple[Expression, Expression]], how: str
    ) -> Node:
        """Join two nodes on pairs of attributes, where NULL equals NULL."""
        condition: Column | None = None
        for left_key, right_key in pairs:
            equal = self.column(left_key).eqNullSafe(self.column(right_key))
            condition = equal if condition is None else condition & equal
        joined = self._stub(left).join(self._stub(right), condition, how)
        return self.rebuilt(self.analyzed(joined), left=left, right=right)

    def without_ctes(self, plan: Node) -> Node:
        """Return a plan with its common table expressions written out where they are used.

        Raises CarryError if one has random values, which would differ in each place.
        """
        with_cte = "org.apache.spark.sql.catalyst.plans.logical.WithCTE"
        if not any(node.getClass().getName() == with_cte for node in self.nodes(plan)):
            return plan
        if not plan.deterministic():
            raise CarryError(
                "a query WITH a common table expression and random values cannot be followed: "
                "write the random values to a table first"
            )
        loader = self.class_loader()
        name = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
        parameters = loader.loadClass(name).getConstructors()[0].getParameterTypes()
        always, *others = [True, *[False] * (len(parameters) - 1)]
        inlined = getattr(self._jvm, name)(always, *others).apply(plan)
        inlined.setAnalyzed()
        return inlined

    def class_loader(self) -> Any:
        """Return the class loader of Spark."""
        return self._jvm.java.lang.Thread.currentThread().getContextClassLoader()

    def nodes(self, plan: Node) -> Iterator[Node]:
        """Yield the nodes of a plan, children first, without those of subqueries."""
        for child in self.children(plan):
            yield from self.nodes(child)
        yield plan

    def _stub(self, node: Node) -> DataFrame:
        """Return an empty frame with a node's output. Own expressions are resolved against it, so
        the user's plan is not analyzed a second time.
        """
        return self.frame(self.rebuilt(self._empty, output=self.output(node)))

    def _named(self, columns: Sequence[Column]) -> list[Column]:
        return [column.alias(f"{OWN_PREFIX}{next(_numbers)}") for column in columns]

    def scala(self, value: Any) -> Any:
        """Return a list as a Scala Seq, and any other value unchanged."""
        return self._jvm.PythonUtils.toSeq(value) if isinstance(value, list) else value

    def _gateway(self) -> Any:
        return self.spark.sparkContext._gateway

    def _resolved(self, node: Node) -> Node:
        if not node.resolved() or not node.missingInput().isEmpty():
            raise CarryError(
                f"the rewritten {node.nodeName()} is not valid, which is a fault of ackledger. "
                f"Please report this plan:\n{node.toString()}"
            )
        node.setAnalyzed()
        return node


_KEEP = object()
