"""Register ``collect_anchors`` and ``merge_anchors`` as SQL functions of a stage's session.

Spark SQL cannot register a function that contains an aggregate. Spark's function registry takes any
builder of an expression, so these are composed of Spark's own builders in the JVM.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.core.column_names import ANCHOR

_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSIONS = f"{_CATALYST}.expressions"
_SEQ, _OBJECT = "scala.collection.immutable.Seq", "java.lang.Object"

# Each function in Spark's own functions.
BUILT_IN = {
    "collect_anchors": f"flatten(collect_list({ANCHOR})) AS {ANCHOR}",
    "merge_anchors": (
        f"concat(coalesce(o.{ANCHOR}, array()), coalesce(c.{ANCHOR}, array())) AS {ANCHOR}"
    ),
}
_CALLS = {
    "collect_anchors": f"collect_anchors({ANCHOR}) AS {ANCHOR}",
    "merge_anchors": f"merge_anchors(o.{ANCHOR}, c.{ANCHOR}) AS {ANCHOR}",
}


def register_functions(frame: DataFrame) -> None:
    """Register both functions in a frame's session, unless it has temporary ones of these names.

    A permanent function of such a name is called with its schema in front, because a look-up of
    permanent functions may start a metastore.

    Nothing is registered on Spark Connect, nor by a Spark that has no such builders: SQL text that
    calls one then fails with the expression to write instead.
    """
    if not isinstance(frame, ClassicDataFrame):
        return
    registry = frame.sparkSession._jsparkSession.sessionState().functionRegistry()
    builders = _Builders(frame)
    try:
        for name in BUILT_IN:
            if not _is_registered(name, frame):
                builder = getattr(builders, name)()
                registry.createOrReplaceTempFunction(name, builder, "built-in")
    except Py4JError:
        return


def in_sql(name: str, frame: DataFrame) -> str:
    """Return an SQL expression for ``name``, which is ``collect_anchors`` or ``merge_anchors``. If
    the function is not registered in the frame's session, the expression uses Spark's own
    functions.
    """
    return (_CALLS if _is_registered(name, frame) else BUILT_IN)[name]


def _is_registered(name: str, frame: DataFrame) -> bool:
    if not isinstance(frame, ClassicDataFrame):
        return False
    session = frame.sparkSession
    jvm: Any = session._jvm
    identifier = getattr(jvm, f"{_CATALYST}.FunctionIdentifier")(name)
    catalog = session._jsparkSession.sessionState().catalog()
    return bool(catalog.isTemporaryFunction(identifier))


class _Builders:
    """Builders of expressions: functions of Scala that take a list of arguments."""

    def __init__(self, frame: ClassicDataFrame) -> None:
        spark = frame.sparkSession
        self._jvm: Any = spark._jvm
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
        mapping = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        mapping[0] = self._function(with_default).andThen(self._expression("Coalesce"))
        each = self._jvm.java.lang.invoke.MethodHandles.insertArguments(
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
        return self._jvm.java.lang.Class.forName(name)

    def _method(self, owner: str, name: str, returns: str, *takes: str) -> Any:
        kind = self._jvm.java.lang.invoke.MethodType.methodType(
            *map(self._class, (returns, *takes))
        )
        lookup = self._jvm.java.lang.invoke.MethodHandles.publicLookup()
        return lookup.findVirtual(self._class(owner), name, kind)

    def _function(self, method: Any) -> Any:
        proxies = self._jvm.java.lang.invoke.MethodHandleProxies
        return proxies.asInterfaceInstance(self._class("scala.Function1"), method)
