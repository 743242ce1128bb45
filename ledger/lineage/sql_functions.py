"""Register ``collect_anchors`` and ``merge_anchors`` as SQL functions of a stage's session.

No statement of Spark's registers an aggregate that consists of others. Its function registry takes
any builder of an expression, so these are composed of Spark's own builders in the JVM.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSIONS = f"{_CATALYST}.expressions"
_SEQ, _OBJECT = "scala.collection.immutable.Seq", "java.lang.Object"


def register_functions(frame: DataFrame) -> None:
    """Register both functions in a frame's session, unless it has functions of these names.

    Nothing is registered on Spark Connect, nor by a Spark that has no such builders: SQL text that
    calls one then fails with the expression to write instead.
    """
    if not isinstance(frame, ClassicDataFrame):
        return
    state = frame.sparkSession._jsparkSession.sessionState()
    builders = _Builders(frame)
    try:
        identifier = getattr(builders.jvm, f"{_CATALYST}.FunctionIdentifier")
        for name in ("collect_anchors", "merge_anchors"):
            if not state.catalog().isTemporaryFunction(identifier(name)):
                builder = getattr(builders, name)()
                state.functionRegistry().createOrReplaceTempFunction(name, builder, "built-in")
    except Py4JError:
        return


class _Builders:
    """Builders of expressions: functions of Scala that take a list of arguments."""

    def __init__(self, frame: ClassicDataFrame) -> None:
        spark = frame.sparkSession
        self.jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def collect_anchors(self) -> Any:
        """Return the builder of ``flatten(collect_list(anchor))``."""
        function, expression = (
            f"{_EXPRESSIONS}.aggregate.Aggregate{kind}" for kind in ("Function", "Expression")
        )
        aggregate = self._function(self._method(function, "toAggregateExpression", expression))
        return self._builtin("collect_list").andThen(aggregate).andThen(self._expression("Flatten"))

    def merge_anchors(self) -> Any:
        """Return the builder of ``concat(coalesce(anchor, array()), ...)``."""
        nothing = self._companion("scala.collection.immutable.Nil")
        default = nothing.prepended(self._builtin("array").apply(nothing))
        with_default = self._method(_SEQ, "prepended", _OBJECT, _OBJECT).bindTo(default)
        mapping = self._gateway.new_array(self.jvm.java.lang.Object, 1)
        mapping[0] = self._function(with_default).andThen(self._expression("Coalesce"))
        each = self.jvm.java.lang.invoke.MethodHandles.insertArguments(
            self._method(_SEQ, "map", _OBJECT, "scala.Function1"), 1, mapping
        )
        return self._function(each).andThen(self._expression("Concat"))

    def _builtin(self, name: str) -> Any:
        registry = self._companion(f"{_CATALYST}.analysis.FunctionRegistry")
        return registry.expressions().apply(name)._2()

    def _expression(self, name: str) -> Any:
        return self._companion(f"{_EXPRESSIONS}.{name}")

    def _companion(self, name: str) -> Any:
        return self._class(f"{name}$").getField("MODULE$").get(None)

    def _class(self, name: str) -> Any:
        return self.jvm.java.lang.Class.forName(name)

    def _method(self, owner: str, name: str, returns: str, *takes: str) -> Any:
        kind = self.jvm.java.lang.invoke.MethodType.methodType(*map(self._class, (returns, *takes)))
        lookup = self.jvm.java.lang.invoke.MethodHandles.publicLookup()
        return lookup.findVirtual(self._class(owner), name, kind)

    def _function(self, method: Any) -> Any:
        proxies = self.jvm.java.lang.invoke.MethodHandleProxies
        return proxies.asInterfaceInstance(self._class("scala.Function1"), method)
