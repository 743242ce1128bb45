"""Read and rebuild nodes of Spark's logical plans through py4j.

No node is made by its constructor: nodes of the user's plan are copied with other children or
fields, and added nodes come from the DataFrame API. So a new field of a node is kept unchanged.

A call of the JVM takes a tenth of a millisecond or more. So answers about nodes are kept, sequences
stay in the JVM, and own expressions are resolved once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.errors import CarryError
from ledger.lineage.nodes import analyzed, asked_once, children, items, simple_name

Node = Any  # a LogicalPlan of the JVM
Expression = Any  # an Expression of the JVM
Seq = Any  # a Scala Seq of the JVM
OWN_PREFIX = "__ackledger_"
_SQL = "org.apache.spark.sql"
_EXPRESSIONS = f"{_SQL}.catalyst.expressions"
_MOST_ELEMENTS = 10  # arguments of java.util.List.of
_HAS_SUBQUERIES = "_ackledger_has_subqueries"
_numbers = count()


@dataclass
class JvmAnswers:
    """Answers of one JVM, so that it is asked once.

    ``static``: classes, static methods, and the map of objects to their numbers. ``nodes``: a
    Project and an Aggregate to copy. ``expressions``: own expressions by their SQL and the types of
    its columns, each with the attributes that are replaced in it.
    """

    static: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    expressions: dict[tuple[str, ...], tuple[list[Expression], list[Expression]]] = field(
        default_factory=dict
    )


ANSWERS: WeakKeyDictionary[Any, JvmAnswers] = WeakKeyDictionary()  # by JVM
_SESSIONS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # without a user's functions
_fields: dict[str, tuple[str, ...]] = {}  # by the name of a node's class


class Catalyst:
    """Tools for the plans of one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._jvm: Any = spark._jvm
        self._answers = ANSWERS.setdefault(self._jvm, JvmAnswers())

    def items(self, values: Any) -> list[Any]:
        """Return the elements of a Scala Seq."""
        return items(values)

    def children(self, node: Node) -> list[Node]:
        """Return the children of a node, without the plans of subqueries in its expressions."""
        below = children(node)
        if node.__dict__.get(_HAS_SUBQUERIES) is False:
            for child in below:
                child.__dict__[_HAS_SUBQUERIES] = False
        return [*below]

    def subqueries(self, node: Node) -> list[Node]:
        """Return the plans of the subqueries in a node's own expressions."""
        if _HAS_SUBQUERIES not in node.__dict__:
            pattern = self._static(f"{_SQL}.catalyst.trees.TreePattern", "PLAN_EXPRESSION")()
            node.__dict__[_HAS_SUBQUERIES] = bool(node.containsPattern(pattern))
        return [*self._subqueries(node)] if node.__dict__[_HAS_SUBQUERIES] else []

    @asked_once
    def _subqueries(self, node: Node) -> list[Node]:
        return items(node.subqueries())

    def output(self, node: Node) -> list[Expression]:
        """Return the attributes of a node's rows."""
        return [*self._output(node)]

    @asked_once
    def _output(self, node: Node) -> list[Expression]:
        return items(node.output())

    def fields(self, node: Node) -> tuple[str, ...]:
        """Return the names of a node's constructor fields."""
        name = simple_name(node)
        if name not in _fields:
            names = str(node.productElementNames().mkString(" ")).split()
            _fields[name] = tuple(names)
        return _fields[name]

    @asked_once
    def identity(self, node: Any) -> int:
        """Return a number of an object of the JVM that no other object ever has.

        Two objects may have one identity hash. The map compares the objects themselves, and does
        not keep them from being collected.
        """
        identities = self._answers.static.get("identities")
        if identities is None:  # of two threads, both take the map of the first one
            maker = self._class("org.sparkproject.guava.collect.MapMaker")()
            numbers = maker.weakKeys().makeMap()
            identities = self._answers.static.setdefault("identities", numbers)
        number = next(_numbers)
        earlier = identities.putIfAbsent(node, number)
        return number if earlier is None else int(earlier)

    def analyzed(self, frame: DataFrame) -> Node:
        """Return the analyzed plan of a frame."""
        return analyzed(frame)

    def frame(self, plan: Node) -> DataFrame:
        """Return a frame of a plan. Spark checks the nodes that were made here."""
        if not plan.analyzed():
            try:
                self._check(plan)
            except (PySparkException, Py4JError) as exc:
                raise CarryError(
                    "the rewritten plan is not valid, which is a fault of ackledger. "
                    f"Please report this plan:\n{plan.toString()}"
                ) from exc
        return self._of_rows(plan)

    def _check(self, plan: Node) -> None:
        """Have Spark check a plan, and mark it as analyzed. The check reads the settings of the
        thread's active session, which may be another one, or none.
        """
        session: Any = self.spark._jsparkSession
        sessions = self._class(f"{_SQL}.classic.SparkSession")
        active = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            session.sessionState().analyzer().checkAnalysis(plan)
        finally:
            if active.isDefined():
                sessions.setActiveSession(active.get())
            else:
                sessions.clearActiveSession()

    def of_parsed(self, plan: Node) -> DataFrame:
        """Return a frame of a plan of Spark's parser, which Spark analyzes.

        Raises AnalysisException if the plan names tables or columns that do not exist.
        """
        return self._of_rows(plan)

    def _of_rows(self, plan: Node) -> DataFrame:
        of_rows = self._static(f"{_SQL}.classic.Dataset", "ofRows")
        return ClassicDataFrame(of_rows(self.spark._jsparkSession, plan), self.spark)

    def nullable(self, attribute: Expression) -> Expression:
        """Return an attribute as an outer join has it, whose side may have no row."""
        return attribute.withNullability(True)

    def column(self, expression: Expression) -> Column:
        """Return a resolved expression as a column."""
        return ClassicColumn(self._static(f"{_SQL}.classic.ExpressionUtils", "column")(expression))

    def rebuilt(self, node: Node, **fields: Any) -> Node:
        """Copy a node with other values of some constructor fields."""
        array = self._static("org.apache.spark.api.python.PythonUtils", "toArray")
        return node.makeCopy(array(self._list(self._values(node, fields))))

    def with_children(self, node: Node, children: Iterable[Node]) -> Node:
        """Copy a node with other children."""
        return node.withNewChildren(self.scala(list(children)))

    def projected(
        self, child: Node, visible: Sequence[Expression] | Seq, columns: Sequence[Column]
    ) -> tuple[Node, list[Expression]]:
        """Project attributes of a node and own columns over it.

        Returns the node and the attributes of the own columns.
        """
        named = [column.alias(f"{OWN_PREFIX}{next(_numbers)}") for column in columns]
        plan = analyzed(self._empty(child.output()).select(*named))
        return self.extended(child, visible, items(plan.projectList()))

    def extended(
        self, child: Node, visible: Sequence[Expression] | Seq, own: Sequence[Expression]
    ) -> tuple[Node, list[Expression]]:
        """Project attributes of a node and own expressions with names over it.

        Returns the node and the attributes of the own expressions.
        """
        node = self._own("Project", projectList=self.joined(visible, own), child=child)
        return node, [expression.toAttribute() for expression in own]

    def aggregated(
        self,
        child: Node,
        keys: Sequence[Expression] | Seq,
        outputs: Sequence[Expression] | Seq,
        own: Sequence[Expression],
        like: Node | None = None,
    ) -> tuple[Node, list[Expression]]:
        """Group a node by keys; the output has the given expressions and own aggregates.

        ``like``: the Aggregate to copy, with its hints. Returns the node and the attributes of the
        own aggregates.
        """
        fields = {"aggregateExpressions": self.joined(outputs, own), "child": child}
        if like is not None:
            node = self.rebuilt(like, **fields)
        else:
            node = self._own("Aggregate", groupingExpressions=self.joined(keys, []), **fields)
        return node, [expression.toAttribute() for expression in own]

    def new_instance(self, leaf: Node) -> Node:
        """Return a leaf with new expression ids."""
        return leaf.newInstance()

    def resolved(self, texts: Sequence[str], attributes: Sequence[Expression]) -> list[Expression]:
        """Return expressions in SQL, in which the attributes are called ``a0``, ``a1``, ...

        Spark resolves a text once for all attributes of the same types, in any session: no text
        has functions of a user, or depends on a session's settings.
        """
        key = (*texts, "", *map(_type_of, attributes))
        if key not in self._answers.expressions:
            none = self._static(f"{_SQL}.types.Metadata", "empty")()  # Spark drops some in a text
            stand_ins = [
                each.newInstance().withName(f"a{at}").withMetadata(none)
                for at, each in enumerate(attributes)
            ]
            plan = self._selected([f"{text} AS x" for text in texts], stand_ins)
            aliases = items(plan.expressions())
            self._answers.expressions[key] = stand_ins, [alias.child() for alias in aliases]
        stand_ins, expressions = self._answers.expressions[key]
        if not attributes:
            return [*expressions]
        new = self._class("scala.collection.immutable.Map$Map1")(stand_ins[0], attributes[0])
        for stand_in, attribute in zip(stand_ins[1:], attributes[1:], strict=True):
            new = new.updated(stand_in, attribute)
        return [expression.transform(new) for expression in expressions]

    def named(
        self, expressions: Sequence[Expression], names: Sequence[str] = ()
    ) -> list[Expression]:
        """Return expressions with names and new expression ids; own names by default."""
        new_id = self._static(f"{_EXPRESSIONS}.NamedExpression", "newExprId")
        return [
            self._alias(expression, name, new_id(), self.scala([]))
            for expression, name in zip(
                expressions,
                names or [f"{OWN_PREFIX}{next(_numbers)}" for _ in expressions],
                strict=True,
            )
        ]

    def renamed(self, value: Expression, attribute: Expression) -> Expression:
        """Return a value under the name and expression id of an attribute."""
        return self._alias(value, attribute.name(), attribute.exprId(), attribute.qualifier())

    def _alias(self, value: Expression, name: str, expr_id: Any, qualifier: Seq) -> Expression:
        if "None" not in self._answers.static:
            self._answers.static["None"] = self._class("scala.Option").empty()
        nothing = self._answers.static["None"]
        alias = self._class(f"{_EXPRESSIONS}.Alias")
        return alias(value, name, expr_id, qualifier, nothing, self.scala([]))

    def outputs_of(self, plan: Node, rewritten: Node) -> Seq:
        """Return the attributes that a rewritten plan has for the output of the plan.

        Raises CarryError if it lost one.
        """
        if not plan.outputSet().subsetOf(rewritten.outputSet()):
            raise CarryError(
                "a column was lost while the plan was rewritten, which is a fault of ackledger. "
                f"Please report this plan:\n{plan.toString()}"
            )
        output = rewritten.output()
        by_id = self._static(f"{_EXPRESSIONS}.AttributeMap$", "MODULE$").apply(output.zip(output))
        return plan.output().map(by_id)

    def has_pandas_aggregate(self, node: Node) -> bool:
        """Return whether an Aggregate has a pandas function."""
        pattern = self._static(f"{_SQL}.catalyst.trees.TreePattern", "PYTHON_UDF")()
        if not node.containsPattern(pattern):
            return False
        todo = self.items(node.aggregateExpressions())
        while todo:
            expression = todo.pop()
            if simple_name(expression) == "PythonUDAF":
                return True
            todo += self.items(expression.children())
        return False

    def spark_class(self, name: str) -> Any:
        """Return a class of Spark's Catalyst, by its name below that package."""
        return getattr(self._jvm, f"org.apache.spark.sql.catalyst.{name}")

    def is_in(self, value: Expression, values: Any) -> Column:
        """Return whether a value is in a Scala Set of values of its type, in Spark's own form."""
        return self.column(self._class(f"{_EXPRESSIONS}.InSet")(value, values))

    def is_orderable(self, value: Expression) -> bool:
        """Return whether values of an expression's type can be compared; maps cannot."""
        ordering = self._class(f"{_EXPRESSIONS}.RowOrdering")
        return bool(ordering.isOrderable(value.dataType()))

    def joined_null_safe(
        self, left: Node, right: Node, pairs: Sequence[tuple[Expression, Expression]], how: str
    ) -> Node:
        """Join two nodes on pairs of attributes, where NULL equals NULL."""
        condition: Column | None = None
        for left_key, right_key in pairs:
            equal = self.column(left_key).eqNullSafe(self.column(right_key))
            condition = equal if condition is None else condition & equal
        sides = [self._empty(side.output()) for side in (left, right)]
        joined = sides[0].join(sides[1], condition, how)
        return self.rebuilt(analyzed(joined), left=left, right=right)

    def without_ctes(self, plan: Node) -> Node:
        """Return a plan with its common table expressions written out where they are used.

        Raises CarryError if one has random values, which would differ in each place.
        """
        if not any(simple_name(node) == "WithCTE" for node in self.nodes(plan)):
            return plan
        if not plan.deterministic():
            raise CarryError(
                "a query WITH a common table expression and random values cannot be followed: "
                "write the random values to a table first"
            )
        loader = self.class_loader()
        name = f"{_SQL}.catalyst.optimizer.InlineCTE"
        parameters = loader.loadClass(name).getConstructors()[0].getParameterTypes()
        always, *others = [True, *[False] * (len(parameters) - 1)]
        inlined = self._class(name)(always, *others).apply(plan)
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

    def scala(self, value: Any) -> Any:
        """Return a list as a Scala Seq, and any other value unchanged."""
        if not isinstance(value, list):
            return value
        if not value and "Nil" in self._answers.static:
            return self._answers.static["Nil"]
        seq = self._static("org.apache.spark.api.python.PythonUtils", "toSeq")(self._list(value))
        if not value:
            self._answers.static["Nil"] = seq
        return seq

    def _list(self, values: list[Any]) -> Any:
        """Return a list in the form that takes py4j the fewest calls."""
        if not 0 < len(values) <= _MOST_ELEMENTS or any(value is None for value in values):
            return values
        return self._static("java.util.List", "of")(*values)

    def joined(self, first: Sequence[Expression] | Seq, then: Sequence[Expression]) -> Seq:
        """Return expressions, which may be a Scala Seq, and others after them as a Scala Seq."""
        if not isinstance(first, JavaObject):
            return self.scala([*first, *then])
        return first.appendedAll(self.scala([*then])) if then else first

    def _empty(self, output: Seq) -> DataFrame:
        """Return an empty frame with an output. Own columns are resolved against it, so the user's
        plan is not analyzed a second time.
        """
        empty = self.spark._jsparkSession.emptyDataFrame().queryExecution().analyzed()
        return self.frame(self.rebuilt(empty, output=output))

    def _selected(self, texts: Sequence[str], output: Sequence[Expression]) -> Node:
        """Return the plan of expressions in SQL over an empty relation with an output.

        It is made in a session of its own: a user may have registered functions under the names of
        Spark's.
        """
        context = self.spark.sparkContext
        if context not in _SESSIONS:
            _SESSIONS[context] = self.spark._jsparkSession.newSession()
        session = _SESSIONS[context]
        empty = session.emptyDataFrame().queryExecution().analyzed()
        of_rows = self._static(f"{_SQL}.classic.Dataset", "ofRows")
        frame = of_rows(session, self.rebuilt(empty, output=[*output]))
        return frame.selectExpr(self.scala([*texts])).queryExecution().analyzed()

    def _own(self, name: str, **fields: Any) -> Node:
        """Return a Project or an Aggregate with these fields."""
        if name not in self._answers.nodes:
            text = {"Project": "1", "Aggregate": "count(1)"}[name]
            self._answers.nodes[name] = self._selected([text], [])
        node = self._answers.nodes[name]
        return node.copy(*self._values(node, fields))  # without the tags of the copied node

    def _values(self, node: Node, fields: dict[str, Any]) -> list[Any]:
        return [
            self.scala(fields[name]) if name in fields else node.productElement(at)
            for at, name in enumerate(self.fields(node))
        ]

    def _class(self, name: str) -> Any:
        if name not in self._answers.static:
            self._answers.static[name] = getattr(self._jvm, name)
        return self._answers.static[name]

    def _static(self, name: str, method: str) -> Any:
        """Return a static method or field of a class."""
        key = f"{name}.{method}"
        if key not in self._answers.static:
            self._answers.static[key] = getattr(self._class(name), method)
        return self._answers.static[key]


@asked_once
def _type_of(attribute: Expression) -> str:
    return str(attribute.dataType().json())
