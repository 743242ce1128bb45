"""Refusals of the carrier with their lines, and rules that cannot be left out unnoticed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from weakref import WeakKeyDictionary

import pytest
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F

from ledger.errors import CarryError
from ledger.lineage.anchors import AnchorPart, Anchors
from ledger.lineage.carrier import Carrier
from ledger.lineage.carry import carry
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.nodes import LEAVES, PASSED, REFUSED, RULED, simple_name
from ledger.lineage.sites import Sites
from tests.support.carried import FIRST, SECOND, carried_rows, counted, frame_of
from tests.support.relations import OPERATIONS
from tests.support.spark_classes import plan_classes

# Nodes that no analyzed plan of a batch has: they are resolved away, made by the optimizer, or
# belong to streams, SQL scripts and the typed API.
ELSEWHERE = Path(__file__).with_name("plan_nodes_elsewhere.txt")

# For each node that is passed, a function of rows whose column v is the record's id.
PASSING: dict[str, Callable[[DataFrame], DataFrame]] = {
    "CollectMetrics": lambda x: x.observe(Observation("passed"), F.count("*").alias("rows")),
    "Filter": lambda x: x.where("k = 1"),
    "Generate": lambda x: x.select("v", F.explode(F.sequence(F.lit(1), F.lit(3)))),
    "GlobalLimit": lambda x: x.limit(3),
    "LocalLimit": lambda x: x.limit(3),
    "Offset": lambda x: x.orderBy("v").offset(2),
    "PipeOperator": lambda x: sql(x, "FROM rules_x |> WHERE k = 1 |> SELECT v"),
    "RebalancePartitions": lambda x: rebalanced(x),
    "Repartition": lambda x: x.coalesce(1),
    "RepartitionByExpression": lambda x: x.repartition(3, "k"),
    "ResolvedHint": lambda x: x.hint("broadcast"),
    "Sample": lambda x: x.sample(0.9, seed=3),
    "Sort": lambda x: x.orderBy("k"),
    "SubqueryAlias": lambda x: x.alias("renamed").select("renamed.v"),
    "View": lambda x: sql(x, "SELECT v FROM rules_x"),
    "Window": lambda x: x.withColumn(
        "n", F.row_number().over(Window.partitionBy("k").orderBy("v"))
    ),
}


def sql(frame: DataFrame, text: str) -> DataFrame:
    """A query over one view."""
    frame.createOrReplaceTempView("rules_x")
    return frame.sparkSession.sql(text)


def rebalanced(frame: DataFrame) -> DataFrame:
    """A hint that Spark drops unless execution is adaptive."""
    spark, key = frame.sparkSession, "spark.sql.adaptive.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    try:
        return sql(frame, "SELECT /*+ REBALANCE */ * FROM rules_x")
    finally:
        spark.conf.set(key, before)


def numbered(spark) -> DataFrame:
    """Rows whose column v is the record's id."""
    return frame_of(spark, [(k, min(ids), ids) for k, _, ids in FIRST])


def nodes_of(frame: DataFrame) -> set[str]:
    """Names of the nodes in a frame's analyzed plan."""
    catalyst = Catalyst(frame.sparkSession)
    return {simple_name(node) for node in catalyst.nodes(catalyst.analyzed(frame))}


def test_each_node_of_spark_is_classified(spark):
    """A node of the running Spark is passed, has a rule, is a leaf, or is known to be refused."""
    classified = {*PASSED, *RULED, *LEAVES, *REFUSED, *ELSEWHERE.read_text().split()}
    assert sorted(plan_classes(spark) - classified) == []


@pytest.mark.parametrize("name", sorted(PASSED))
def test_a_passed_node_keeps_the_record_of_each_row(spark, monkeypatch, name):
    """Each row names its own record; without the node in the list, the function is refused."""
    if name == "AttachDistributedSequence":
        zipped = getattr(DataFrame, "zipWithIndex", None)
        if zipped is None:
            pytest.skip("this Spark has no zipWithIndex")
        PASSING[name] = zipped
    result = carry(PASSING[name], [numbered(spark)])
    assert name in nodes_of(result.bare)
    rows = result.carried.select("v", "_anchor").collect()
    assert rows
    assert all(ids == [v] for v, ids in rows)
    monkeypatch.delitem(PASSED, name)
    with pytest.raises(CarryError, match=rf"test_lineage_rules.py:\d+: .* {name}: write it"):
        carry(PASSING[name], [numbered(spark)])


# For each node with a rule, an operation whose plan has it.
WITH_RULE = {
    "Aggregate": "totals",
    "CTERelationDef": "cte_twice",
    "CTERelationRef": "cte_twice",
    "Deduplicate": "distinct",
    "Distinct": "select_distinct",
    "Except": "except",
    "Expand": "rollup",
    "Intersect": "intersect",
    "Join": "inner",
    "Project": "swap",
    "Union": "union",
    "WithCTE": "cte_twice",
}


@pytest.mark.parametrize("name", sorted(RULED))
def test_a_node_without_its_rule_is_refused(spark, monkeypatch, name):
    """No node passes because nobody has thought of it."""
    operation = OPERATIONS[WITH_RULE[name]]
    frames = [frame_of(spark, rows) for rows in (FIRST, SECOND)[: operation.takes]]
    monkeypatch.delitem(RULED, name)
    with pytest.raises(CarryError, match=rf"cannot be followed through {name}: write it"):
        carry(operation.in_spark, frames)


def test_a_field_of_a_newer_spark_is_refused(spark, monkeypatch):
    """A node with a field that its rule does not know is not followed."""
    monkeypatch.setitem(PASSED, "Filter", frozenset({"child"}))
    with pytest.raises(CarryError, match=r"Filter of Spark .* new field 'condition'"):
        carry(lambda x: x.where("v > 1"), [frame_of(spark, FIRST)])


def sliced(carrier: Carrier, node, anchors: Anchors):
    """The same rows with at most the first of their records."""
    first = anchors.parts[0]
    if first.is_id:
        return node, Anchors((first,))
    ids = F.slice(carrier.catalyst.column(first.attributes[0]), 1, 1)
    plan, attributes = carrier.catalyst.projected(node, carrier.catalyst.output(node), [ids])
    return plan, Anchors((AnchorPart(False, tuple(attributes)),))


def nulled(carrier: Carrier, node, anchors: Anchors):
    """The same rows without their records."""
    hidden = {attribute.exprId().id() for attribute in anchors.attributes}
    output = carrier.catalyst.output(node)
    visible = [column for column in output if column.exprId().id() not in hidden]
    none = [F.lit(None).cast("bigint")]
    plan, attributes = carrier.catalyst.projected(node, visible, none)
    return plan, Anchors((AnchorPart(True, tuple(attributes)),))


# A rule, how it is made wrong, and an operation that must show it.
MUTATIONS = [
    ("_project", nulled, "swap"),
    ("_join", sliced, "inner"),
    ("_join", nulled, "semi"),
    ("_join", sliced, "full_on_smaller"),
    ("_union", nulled, "union"),
    ("_aggregate", sliced, "totals"),
    ("_distinct", sliced, "select_distinct"),
    ("_deduplicate", sliced, "first_of_key"),
    ("_expand", nulled, "rollup"),
    ("_except", sliced, "except"),
    ("_intersect", sliced, "intersect"),
    ("_cte_reference", sliced, "cte_twice"),
    ("_with_cte", nulled, "cte_twice"),
]


@pytest.mark.parametrize(("rule", "wrong", "operation"), MUTATIONS)
def test_a_wrong_rule_is_noticed(spark, monkeypatch, rule, wrong, operation):
    """The tables of operations fail if a rule forgets records."""
    right = getattr(Carrier, rule)

    def mutated(self, *arguments):
        node, anchors = right(self, *arguments)
        return (node, anchors) if anchors is None else wrong(self, node, anchors)

    monkeypatch.setattr(Carrier, rule, mutated)
    inputs = (FIRST, SECOND)[: OPERATIONS[operation].takes]
    frames = [frame_of(spark, rows) for rows in inputs]
    result = carry(OPERATIONS[operation].in_spark, frames)
    assert carried_rows(result.carried) != counted(OPERATIONS[operation].by_hand(*inputs))


def refused(spark, function: Callable[..., object], *others: DataFrame) -> str:
    """The message of what is refused."""
    with pytest.raises(CarryError) as caught:
        carry(function, [numbered(spark), *others])
    return str(caught.value)


def lateral(x: DataFrame) -> DataFrame:
    """A lateral join."""
    return sql(x, "SELECT x.v, y.w FROM rules_x x, LATERAL (SELECT x.v + k AS w FROM rules_x) y")


SCHEMA = "k bigint, v bigint"
BY_ADVICE = {
    "mapInPandas: use select() with a UDF": lambda x: x.mapInPandas(lambda rows: rows, SCHEMA),
    "mapInArrow: use select() with a UDF": lambda x: x.mapInArrow(lambda rows: rows, SCHEMA),
    "applyInPandas: use window functions": lambda x: x.groupBy("k").applyInPandas(
        lambda rows: rows, SCHEMA
    ),
    "applyInPandas of two frames: join": lambda x: (
        x.groupBy("k").cogroup(x.groupBy("k")).applyInPandas(lambda left, right: left, SCHEMA)
    ),
    "exceptAll: number the equal rows": lambda x: x.exceptAll(x.limit(1)),
    "intersectAll: number the equal rows": lambda x: x.intersectAll(x.limit(1)),
    "a lateral join: write it as a join": lateral,
}


@pytest.mark.parametrize("advice", BY_ADVICE)
def test_a_refusal_names_line_operation_and_advice(spark, advice):
    """An operation without a rule is refused where it is written."""
    message = refused(spark, BY_ADVICE[advice])
    assert message.startswith("test_lineage_rules.py:")
    assert f": rows cannot be followed through {advice}" in message


def test_a_pandas_aggregate_is_refused(spark):
    """Spark has no plan for it beside the aggregate of the records."""
    mean = F.pandas_udf(lambda v: float(v.mean()), "double", functionType=202)
    message = refused(spark, lambda x: x.groupBy("k").agg(mean("v").alias("mean")))
    assert message.endswith("use a built-in aggregate")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: 3, "returned int: expected a DataFrame"),
        (lambda x: None, "returned NoneType: expected a DataFrame"),
        (
            lambda x: x.sparkSession.createDataFrame(x.collect(), x.schema),
            "<lambda> does not use its input 1 (k, v)",
        ),
        (lambda x: x.localCheckpoint(), "<lambda> does not use its input 1 (k, v)"),
        (lambda x: x.withColumnRenamed("k", "_ANCHOR"), "returns a column '_ANCHOR': rename it"),
    ],
    ids=["int", "none", "collected", "checkpoint", "name taken"],
)
def test_a_result_that_cannot_be_followed_is_refused(spark, function, expected):
    """A result that is no frame over the inputs is refused."""
    assert expected in refused(spark, function)


def test_an_input_without_ids_or_with_equal_columns_is_refused(spark):
    """An input needs its ids, and columns that a function can name."""
    with pytest.raises(CarryError, match="input 1 has no column '_anchor'"):
        carry(lambda x: x, [spark.range(3)])
    twice = numbered(spark).withColumn("K", F.lit(1))
    if spark.conf.get("spark.sql.caseSensitive") == "false":
        twice = numbered(spark).join(numbered(spark).select("k", "v"), "k").drop("k")
    with pytest.raises(CarryError, match=r"input 1 has columns \['v'\], which are equal"):
        carry(lambda x: x, [twice])


def test_an_unused_input_is_refused(spark):
    """An input of which nothing is in the result would show every record as lost."""
    message = refused(spark, lambda x, y: x, frame_of(spark, SECOND))
    assert "does not use its input 2 (k, v)" in message


def test_a_result_without_a_row_of_an_input_is_refused(spark):
    """An input that only decides which rows are kept has no records in the result."""
    others = spark.range(20).withColumnRenamed("id", "k")
    message = refused(spark, lambda x: others.join(x, "k", "left_semi"))
    assert message.endswith("its inputs only decide which rows are kept")


def test_a_stream_is_refused(spark):
    """Rows of a stream have no end, so none of them is missing."""
    stream = spark.readStream.format("rate").load().selectExpr("value AS k", "value AS v")
    assert "read its source as a batch" in refused(spark, lambda x: stream.join(x, "k"))


def test_consulted_inputs_are_named(spark):
    """Inputs that only decide which rows are kept are named with operation and line."""
    for name, expected in {
        "semi": "the right side of a semi join",
        "anti": "the right side of an anti join",
        "in_subquery": "a subquery in a where",
        "except": "the right side of EXCEPT",
    }.items():
        frames = [frame_of(spark, rows) for rows in (FIRST, SECOND)]
        (consulted,) = carry(OPERATIONS[name].in_spark, frames).consulted
        assert (consulted.words, consulted.place[:13]) == (expected, "relations.py:")


def test_joins_are_reordered_as_without_records(spark):
    """Tables in an unlucky order are joined on their keys: nothing stands between the joins."""

    def written(a: DataFrame, b: DataFrame, c: DataFrame) -> DataFrame:
        for name, frame in {"a": a, "b": b, "c": c}.items():
            frame.createOrReplaceTempView(f"rules_{name}")
        return spark.sql(
            "SELECT a.v FROM rules_a a, rules_b b, rules_c c WHERE a.k = c.k AND b.k = c.v"
        )

    carried = carry(written, [numbered(spark) for _ in range(3)]).carried
    plan = carried._jdf.queryExecution().executedPlan().toString()
    assert "NestedLoop" not in plan
    assert "Cartesian" not in plan


@pytest.mark.parametrize("name", ["inner", "union", "distinct", "intersect"])
def test_functions_of_the_user_are_not_called(spark, monkeypatch, name):
    """A user's functions under the names of Spark's do not change the records."""
    monkeypatch.setattr("ledger.lineage.catalyst.ANSWERS", WeakKeyDictionary())
    session = spark.newSession()
    for taken in ("array", "array_distinct", "coalesce", "collect_list", "concat", "flatten"):
        # Before Spark 4.2 these take the place of Spark's.
        session.udf.register(taken, lambda *values: "of the user")
    inputs = (FIRST, SECOND)[: OPERATIONS[name].takes]
    result = carry(OPERATIONS[name].in_spark, [frame_of(session, rows) for rows in inputs])
    assert carried_rows(result.carried) == counted(OPERATIONS[name].by_hand(*inputs))


def test_an_observed_frame_is_joined_with_itself(spark):
    """Spark allows one name of an observation twice if both are of the same rows."""

    def twice(x: DataFrame) -> DataFrame:
        seen = x.observe("of both", F.count("*").alias("rows"))
        return seen.join(seen.select("k", F.col("v").alias("other")), "k")

    result = carry(twice, [numbered(spark)])
    rows = [{v, other} == set(ids) for _, v, other, ids in result.carried.collect()]
    assert rows
    assert all(rows)


def test_a_group_of_groups(spark):
    """Aggregates of one text in two nodes of a plan do not take each other's values."""

    def groups(x: DataFrame) -> DataFrame:
        inner = x.groupBy("k", "v").agg(F.countDistinct("v").alias("n"), F.sum("v").alias("s"))
        return inner.groupBy("k").agg(F.countDistinct("n").alias("n"), F.sum("s").alias("v"))

    result = carry(groups, [numbered(spark)])
    of_key: dict[int | None, set[int]] = {}
    for k, _, ids in FIRST:
        of_key.setdefault(k, set()).update(ids)
    assert {k: set(ids) for k, *_, ids in result.carried.collect()} == of_key
    bare = [tuple(row) for row in result.bare.orderBy("k").collect()]
    assert [tuple(row)[:-1] for row in result.carried.orderBy("k").collect()] == bare


def test_a_deep_plan_is_carried(spark, monkeypatch):
    """A loop of 150 columns is carried; one too deep for Python is refused with a way out."""

    def loop(x: DataFrame) -> DataFrame:
        for number in range(150):
            x = x.withColumn(f"c{number}", F.lit(number))
        return x

    rows = carry(loop, [numbered(spark)]).carried.select("v", "_anchor").collect()
    assert all(ids == [v] for v, ids in rows)

    def too_deep(self, *arguments):
        raise RecursionError

    monkeypatch.setattr(Carrier, "rewrite", too_deep)
    assert "with one select() or withColumns()" in refused(spark, loop)


def test_lines_of_a_join_with_itself(spark):
    """A filter on one side of a self-join has its own line, though Spark copies its node."""

    def newer(x: DataFrame) -> DataFrame:
        late = x.where(F.col("v") > F.rand())
        return x.join(late.select("k"), "k").where("k IN (SELECT k FROM rules_late)")

    numbered(spark).createOrReplaceTempView("rules_late")
    sites, catalyst = Sites(), Catalyst(spark)
    with sites.watching():
        frame = newer(numbered(spark))
    lines = {
        simple_name(node): int(sites.place(catalyst, node).rpartition(":")[2])
        for node in catalyst.nodes(catalyst.children(catalyst.analyzed(frame))[0])
    }
    assert lines["Filter"] == newer.__code__.co_firstlineno + 1
    assert lines["Join"] == newer.__code__.co_firstlineno + 2


def test_threads_do_not_note_each_other(spark):
    """Two threads that watch at once note their own frames, and leave DataFrame as it was."""
    unpatched = type(spark.range(1)).__init__
    both_watch = Barrier(2)

    def watched(number: int) -> tuple[Sites, int]:
        sites = Sites()
        with sites.watching():
            both_watch.wait(60)
            for _ in range(number):
                spark.range(1)
            both_watch.wait(60)
        return sites, number

    with ThreadPoolExecutor(2) as pool:
        for sites, number in pool.map(watched, [1, 3]):
            assert len({jdf._target_id for jdf, _ in sites._noted}) == number
    assert type(spark.range(1)).__init__ is unpatched


def test_deduplicating_no_columns(spark):
    """No rows stay no rows, and a filter above sees the rows that were chosen."""
    empty = numbered(spark).where("v < 0")
    assert carry(lambda x: x.dropDuplicates([]), [empty]).carried.collect() == []

    def above_11(x: DataFrame) -> DataFrame:
        return x.coalesce(1).dropDuplicates(["k"]).where("v > 11")

    result = carry(above_11, [numbered(spark)])
    assert {v: set(ids) for _, v, ids in result.carried.collect()} == {
        13: {13},
        14: {14},
        15: {15, 16},
        17: {17, 18},
    }
    assert {v for _, v in result.bare.collect()} == {13, 14, 15, 17}


def test_nothing_stays_patched(spark):
    """A function that raises leaves DataFrame as it was."""
    unpatched = type(spark.range(1)).__init__

    def fails(x: DataFrame) -> DataFrame:
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        carry(fails, [numbered(spark)])
    assert type(spark.range(1)).__init__ is unpatched
