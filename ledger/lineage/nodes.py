"""The nodes of analyzed plans that anchors pass, and why others are refused.

A node that is in none of these lists is refused, so a node of a newer Spark never passes without a
rule.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Nodes whose rows are a selection or a multiple of their only child's rows, and keep its columns.
# Each with the fields that it may have: a field of a newer Spark could mean something else.
PASSED: dict[str, frozenset[str]] = {
    "AttachDistributedSequence": frozenset({"sequenceAttr", "child", "cache"}),
    "CollectMetrics": frozenset({"name", "metrics", "child", "dataframeId"}),
    "Filter": frozenset({"condition", "child"}),
    "Generate": frozenset(
        {"generator", "unrequiredChildIndex", "outer", "qualifier", "generatorOutput", "child"}
    ),
    "GlobalLimit": frozenset({"limitExpr", "child"}),
    "LocalLimit": frozenset({"limitExpr", "child"}),
    "Offset": frozenset({"offsetExpr", "child"}),
    "PipeOperator": frozenset({"child"}),
    "RebalancePartitions": frozenset(
        {"partitionExpressions", "child", "optNumPartitions", "optAdvisoryPartitionSize"}
    ),
    "Repartition": frozenset({"numPartitions", "shuffle", "child"}),
    "RepartitionByExpression": frozenset(
        {"partitionExpressions", "child", "optNumPartitions", "optAdvisoryPartitionSize"}
    ),
    "ResolvedHint": frozenset({"child", "hints"}),
    "Sample": frozenset(
        {"lowerBound", "upperBound", "withReplacement", "seed", "child", "sampleMethod"}
    ),
    "Sort": frozenset({"order", "global", "child", "hint"}),
    "SubqueryAlias": frozenset({"identifier", "child"}),
    "View": frozenset({"desc", "isTempView", "child", "options"}),
    "Window": frozenset({"windowExpressions", "partitionSpec", "orderSpec", "child", "hint"}),
}
# Nodes with a rule of their own: a method of Carrier that has their name in lower case.
RULED: dict[str, frozenset[str]] = {
    "Aggregate": frozenset({"groupingExpressions", "aggregateExpressions", "child", "hint"}),
    "CTERelationDef": frozenset(
        {
            "child",
            "id",
            "originalPlanWithPredicates",
            "underSubquery",
            "maxDepth",
            "forceSkipInline",
        }
    ),
    "CTERelationRef": frozenset(
        {
            "cteId",
            "_resolved",
            "output",
            "isStreaming",
            "statsOpt",
            "recursive",
            "maxRows",
            "isUnlimitedRecursion",
        }
    ),
    "Deduplicate": frozenset({"keys", "child", "dedupSpec"}),
    "Distinct": frozenset({"child"}),
    "Except": frozenset({"left", "right", "isAll"}),
    "Expand": frozenset({"projections", "output", "child"}),
    "Intersect": frozenset({"left", "right", "isAll"}),
    "Join": frozenset({"left", "right", "joinType", "condition", "hint"}),
    "Project": frozenset({"projectList", "child"}),
    "Union": frozenset({"children", "byName", "allowMissingCol"}),
    "WithCTE": frozenset({"plan", "cteDefs"}),
}
# Untracked rows.
LEAVES = frozenset(
    {
        "CommandResult",
        "DataSourceV2Relation",
        "ExternalRDD",
        "HiveTableRelation",
        "InMemoryRelation",
        "LocalRelation",
        "LogicalRDD",
        "LogicalRelation",
        "OneRowRelation",
        "Range",
    }
)
# Joins that keep the rows of both sides; for each side, whether a row of the other may lack its.
JOINS = {
    "Cross": (False, False),
    "FullOuter": (True, True),
    "Inner": (False, False),
    "LeftOuter": (False, True),
    "RightOuter": (True, False),
}
RIGHT_OF_EXCEPT = "the right side of EXCEPT"
CONSULTING_JOINS = {"LeftSemi": "a semi join", "LeftAnti": "an anti join"}
# Operations whose rows depend on which other rows there are, in users' words.
GATHERING = {
    "Aggregate": "groupBy",
    "AttachDistributedSequence": "a sequence",
    "Deduplicate": "dropDuplicates",
    "Distinct": "distinct",
    "Except": "subtract",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    "Offset": "offset",
    "Sample": "sample",
    "Window": "a window",
}
# Functions whose values depend on where a row lies.
OF_PLACES = ("monotonically_increasing_id()", "SPARK_PARTITION_ID()")
# Users' words for nodes that have subqueries.
WORDS = {"Aggregate": "a groupBy", "Filter": "a where", "Join": "a join", "Project": "a select"}

_ROWS = "use select() with a UDF or a pandas_udf"
_GROUPS = "use window functions, or groupBy().agg() with built-in aggregates"
_TWO_GROUPS = "join the frames, then use window functions or groupBy().agg()"
# Users' words for an operation, and what they can write instead.
REFUSED: dict[str, tuple[str, str]] = {
    "AsOfJoin": ("an as-of join", "join on equal keys and keep one row with row_number()"),
    "DeserializeToObject": ("rdd", "use the DataFrame API"),
    "FlatMapCoGroupsInArrow": ("applyInArrow of two frames", _TWO_GROUPS),
    "FlatMapCoGroupsInPandas": ("applyInPandas of two frames", _TWO_GROUPS),
    "FlatMapGroupsInArrow": ("applyInArrow", _GROUPS),
    "FlatMapGroupsInPandas": ("applyInPandas", _GROUPS),
    "LateralJoin": ("a lateral join", "write it as a join or with explode"),
    "MapInArrow": ("mapInArrow", _ROWS),
    "MapInPandas": ("mapInPandas", _ROWS),
    "NearestByJoin": ("a nearest-by join", "join and keep rows with row_number()"),
    "PythonMapInArrow": ("mapInArrow", _ROWS),
    "ScriptTransformation": ("TRANSFORM ... USING", "use a UDF"),
    "SerializeFromObject": ("rdd", "use the DataFrame API"),
    "Transpose": ("transpose", "use pivot or unpivot"),
    "UnionLoop": ("a recursive CTE", "write its levels as joins"),
    "UnionLoopRef": ("a recursive CTE", "write its levels as joins"),
}
# Refused operations that take each row by itself.
ROWS_ALONE = frozenset(
    {
        "DeserializeToObject",
        "MapInArrow",
        "MapInPandas",
        "PythonMapInArrow",
        "ScriptTransformation",
        "SerializeFromObject",
    }
)


# Nodes whose children are their fields of these names.
_CHILDREN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LEAVES, ()),
    **dict.fromkeys(PASSED, ("child",)),
    **dict.fromkeys(
        ("Aggregate", "CTERelationDef", "Deduplicate", "Distinct", "Expand", "Project"), ("child",)
    ),
    **dict.fromkeys(("Except", "Intersect", "Join"), ("left", "right")),
}
_with_these_children: set[str] = set()  # names of nodes for which this was checked once


def asked_once(answer: _Function) -> _Function:
    """Keep the answer of a function with its last argument: a frame, or a node or an expression of
    a plan.

    These objects never change, and each question to them is a call of the JVM.
    """
    name = f"_ackledger_{answer.__name__}"

    @wraps(answer)
    def answered(*args: Any) -> Any:
        answers = args[-1].__dict__
        if name not in answers:
            answers[name] = answer(*args)
        return answers[name]

    return cast(_Function, answered)


@asked_once
def analyzed(frame: Any) -> Any:
    """Return the analyzed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


@asked_once
def simple_name(node: Any) -> str:
    """Return the name of a node's class; with its package if it is not Spark's own."""
    full = str(node.getClass().getName())
    simple = re.search(r"[^.$]+\$?$", full)
    return simple[0] if simple and full.startswith("org.apache.spark.sql.") else full


@asked_once
def children(node: Any) -> tuple[Any, ...]:
    """Return the children of a node, without the plans of subqueries in its expressions."""
    name = simple_name(node)
    fields = _CHILDREN.get(name)
    if fields is None or name not in _with_these_children:
        below = tuple(items(node.children()))
        if fields is not None and len(fields) == len(below):
            _with_these_children.add(name)
        return below
    return tuple(getattr(node, field)() for field in fields)


def items(values: Any) -> list[Any]:
    """Return the elements of a Scala Seq."""
    return [values.apply(index) for index in range(values.size())]


@asked_once
def join_type(node: Any) -> str:
    """Return the kind of a Join, such as LeftOuter."""
    return str(node.joinType().toString())


def right_side(node: Any) -> str | None:
    """Return the right side of a node, in words, if it only decides which rows of the left side are
    kept."""
    if simple_name(node) == "Except":
        return RIGHT_OF_EXCEPT
    kind = join_type(node) if simple_name(node) == "Join" else None
    return f"the right side of {CONSULTING_JOINS[kind]}" if kind in CONSULTING_JOINS else None


def subquery_in(node: Any) -> str:
    """Return a subquery in an expression of a node, in words."""
    return f"a subquery in {WORDS.get(simple_name(node), simple_name(node))}"
