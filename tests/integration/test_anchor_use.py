"""Operations that would compare ``_anchor`` beside the columns that they are meant for."""

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import (
    FileSource,
    ParquetSink,
    Pipeline,
    collect_anchors,
    dropped,
    merge_anchors,
    testing,
)
from ledger.errors import StageError
from ledger.lineage.sql_functions import BUILT_IN, register_functions
from ledger.spark.frames.anchor_use import Plan

ROWS = [{"id": 1, "v": "x", "n": 5}, {"id": 1, "v": "x", "n": 5}, {"id": 2, "v": "y", "n": 6}]


@pytest.fixture(scope="module")
def frames(spark):
    """Two frames as a stage gets them, also as the views ``t`` and ``u``."""
    rows = spark.createDataFrame(
        [(row["id"], row["v"], row["n"]) for row in ROWS], "id INT, v STRING, n INT"
    )
    anchored = [
        rows.withColumn("_anchor", F.struct(F.col("n").alias("root"), F.lit(1).alias("parent")))
        for _ in range(2)
    ]
    for name, frame in zip("tu", anchored, strict=True):
        frame.createOrReplaceTempView(name)
    return anchored


def wide(frame):
    """A frame of more columns than Spark shows of a plan."""
    return frame.select(*(F.lit(n).alias(f"c{n}") for n in range(40)), "*")


def numbered(frame, *keys):
    """The place of each row among those that agree in the keys."""
    window = Window.partitionBy(*keys).orderBy("n", "_anchor")
    return frame.withColumn("place", F.row_number().over(window))


def keys(frame):
    """The column ``id`` as ``k``."""
    return frame.select(F.col("id").alias("k"))


def joined(frame, other):
    """A join by a condition, whose plan has no list of the columns."""
    return frame.join(keys(other), F.col("id") == F.col("k"))


# Each with words of the message.
COMPARING = {
    "distinct": (lambda t, u: t.distinct(), "row_number"),
    "dropDuplicates": (lambda t, u: t.dropDuplicates(), "row_number"),
    "dropDuplicates of columns": (
        lambda t, u: t.dropDuplicates([name for name in t.columns if name != "n"]),
        "row_number",
    ),
    "distinct of many columns": (lambda t, u: wide(t).distinct(), "row_number"),
    "distinct below others": (
        lambda t, u: t.unionByName(u).distinct().where("n > 1").join(u.select("id"), "id"),
        "row_number",
    ),
    "SELECT DISTINCT": ("SELECT DISTINCT * FROM t", "row_number"),
    "DISTINCT of a query": ("WITH w AS (SELECT DISTINCT * FROM t) SELECT * FROM w", "row_number"),
    "DISTINCT in a subquery": (
        "SELECT * FROM t WHERE id IN (SELECT id FROM (SELECT DISTINCT * FROM u))",
        "row_number",
    ),
    "UNION": ("SELECT * FROM t UNION SELECT * FROM u", "row_number"),
    "union and distinct": (lambda t, u: t.union(u).distinct(), "row_number"),
    "distinct of the anchor and another": (
        lambda t, u: t.select("_anchor", "id").where("id > 0").distinct(),
        "row_number",
    ),
    "distinct of a value": (
        lambda t, u: t.select("_anchor", (F.col("id") + 1).alias("m")).distinct(),
        "row_number",
    ),
    "distinct of what a task returns": (
        lambda t, u: t.mapInArrow(lambda rows: rows, "_anchor STRING, id INT").distinct(),
        "row_number",
    ),
    "distinct of a join": (
        lambda t, u: joined(t.select("_anchor", "id"), u).distinct(),
        "row_number",
    ),
    "distinct of groups": (
        lambda t, u: t.groupBy("id").agg(F.collect_list("_anchor").alias("_anchor")).distinct(),
        "row_number",
    ),
    "distinct of a limit": (
        lambda t, u: t.select("_anchor", "id").limit(5).repartition(2).distinct(),
        "row_number",
    ),
    "DISTINCT of the anchor and another": ("SELECT DISTINCT _anchor, id FROM t", "row_number"),
    "dropDuplicates, anchor last": (
        lambda t, u: t.dropDuplicates(["id", "_anchor"]),
        "row_number",
    ),
    # Spark has no order of so many names.
    "dropDuplicates of five": (
        lambda t, u: wide(t).dropDuplicates(["_anchor", "c1", "c2", "c3", "c4"]),
        "row_number",
    ),
    "subtract of the anchor and another": (
        lambda t, u: t.select("_anchor", "id").subtract(u.select("_anchor", "id")),
        "left_anti",
    ),
    "intersect": (lambda t, u: t.intersect(u), "left_semi"),
    "INTERSECT ALL": ("SELECT * FROM t INTERSECT ALL SELECT * FROM u", "left_semi"),
    "subtract": (lambda t, u: t.subtract(u), "left_anti"),
    "exceptAll": (lambda t, u: t.exceptAll(u), "left_anti"),
    "EXCEPT": ("SELECT * FROM t EXCEPT SELECT * FROM u", "left_anti"),
    "groupBy all": (lambda t, u: t.groupBy(*t.columns).count(), "collect_anchors"),
    "groupBy many": (lambda t, u: wide(t).groupBy(*wide(t).columns).count(), "collect_anchors"),
    "groupBy a struct": (lambda t, u: t.groupBy(F.struct(*t.columns)).count(), "collect_anchors"),
    "rollup": (lambda t, u: t.rollup(*t.columns).count(), "collect_anchors"),
    "applyInPandas": (
        lambda t, u: t.groupBy(*t.columns).applyInPandas(lambda rows: rows, t.schema),
        "collect_anchors",
    ),
    "GROUP BY ALL": ("SELECT id, _anchor, sum(n) FROM t GROUP BY ALL", "collect_anchors"),
    "PIVOT": ("SELECT * FROM t PIVOT (sum(n) FOR v IN ('x', 'y'))", "collect_anchors"),
    "window": (lambda t, u: numbered(t, *t.columns).where("place = 1"), "partitionBy"),
    "NATURAL JOIN": (
        "SELECT * FROM t NATURAL LEFT JOIN (SELECT id, _anchor, 1 AS z FROM u)",
        "columns to join on",
    ),
    "join on all": (lambda t, u: t.join(u, t.columns, "left"), "columns to join on"),
    "count distinct": (
        "SELECT id, count(DISTINCT *) AS c FROM t GROUP BY id",
        "its columns without",
    ),
    "hash": (lambda t, u: t.withColumn("h", F.xxhash64(*t.columns)), "its columns without"),
    "hash(*)": ("SELECT *, hash(*) AS h FROM t", "its columns without"),
    "cast of a struct": (
        lambda t, u: t.withColumn("k", F.struct(*t.columns).cast("string")),
        "its columns without",
    ),
    "cast of a list": (
        "SELECT CAST(array(CAST(id AS STRING), CAST(_anchor AS STRING)) AS STRING) AS k, * FROM t",
        "its columns without",
    ),
    "to_json": (
        lambda t, u: t.withColumn("j", F.to_json(F.struct("*"))),
        "its columns without",
    ),
    "concat_ws": (
        lambda t, u: t.withColumn(
            "k", F.md5(F.concat_ws("|", *(F.col(name).cast("string") for name in t.columns)))
        ),
        "its columns without",
    ),
}

# What names no anchor, or names it first and so means it.
ALLOWED = {
    "dropDuplicates by key": lambda t, u: t.dropDuplicates(["id"]),
    "distinct of a key": lambda t, u: t.join(u.select("id").distinct(), "id"),
    "groups in each record": lambda t, u: t.groupBy("_anchor", "v").count(),
    "window in each record": lambda t, u: numbered(t, "_anchor", "v"),
    "window by key": lambda t, u: numbered(t, "id").where("place = 1"),
    "anti join": lambda t, u: t.join(u, "_anchor", "left_anti"),
    "join in each record": lambda t, u: t.join(u, ["_anchor", "id"]),
    "newest as a struct": lambda t, u: (
        t.groupBy("id").agg(F.max(F.struct("n", "_anchor", "v")).alias("m")).select("id", "m.*")
    ),
    "collected": lambda t, u: t.groupBy("id").agg(F.collect_list("_anchor").alias("_anchor")),
    "merged": lambda t, u: t.alias("t").join(u.alias("u"), "id").select(
        "id", F.concat(F.array("t._anchor"), F.array("u._anchor")).alias("_anchor")
    ),
    "key of a record": lambda t, u: t.withColumn("k", F.to_json("_anchor")),
    "hash of columns": lambda t, u: t.withColumn("h", F.hash("id", F.lit("(")))
    .select("h", "id", "_anchor"),
    "text of a plan": lambda t, u: t.where(F.col("v") != "a\nDistinct\n+- b], [c"),
    "sort by all": lambda t, u: t.sort(*t.columns),
    # anchors alone
    "distinct anchors": lambda t, u: t.select("_anchor").distinct(),
    "DISTINCT anchors": "SELECT DISTINCT _anchor FROM t WHERE id > 1",
    "UNION of anchors": "SELECT _anchor FROM t UNION SELECT _anchor FROM u",
    "subtract anchors": lambda t, u: t.select("_anchor").subtract(u.select("_anchor")),
    "exceptAll of anchors": lambda t, u: t.select("_anchor").exceptAll(u.select("_anchor")),
    "EXCEPT of anchors": "SELECT _anchor FROM t EXCEPT SELECT _anchor FROM u WHERE id > 1",
    "intersect anchors": lambda t, u: t.select("_anchor").intersect(u.select("_anchor")),
    # in each record
    "one row of a record": lambda t, u: t.union(u).dropDuplicates(["_anchor"]),
    "one row of a record and key": lambda t, u: t.dropDuplicates(["_anchor", "v"]),
    "of a filtered frame": lambda t, u: t.where("n > 1").dropDuplicates(["_anchor", "v"]),
    "of a join": lambda t, u: joined(t, u).dropDuplicates(["_anchor", "k"]),
    "of a semi join": lambda t, u: t.join(keys(u), F.col("id") == F.col("k"), "left_semi")
    .dropDuplicates(["_anchor", "v"]),
    "of a window": lambda t, u: numbered(t, "id").dropDuplicates(["_anchor", "place"]),
    "of a window in SQL": lambda t, u: t.sparkSession.sql(
        "SELECT *, row_number() OVER (PARTITION BY id ORDER BY n) AS place FROM t"
    ).dropDuplicates(["_anchor", "place"]),
    "of groups": lambda t, u: t.groupBy("id")
    .agg(F.max("n").alias("n"), F.collect_list("_anchor").alias("_anchor"))
    .dropDuplicates(["_anchor", "id"]),
    "of an exploded list": lambda t, u: t.select("*", F.explode(F.array("n", "id")).alias("k"))
    .dropDuplicates(["_anchor", "k"]),
    "of a hint": lambda t, u: t.hint("broadcast").dropDuplicates(["_anchor", "v"]),
    "of a limit": lambda t, u: t.limit(5).dropDuplicates(["_anchor", "v"]),
    "of a repartition": lambda t, u: t.repartition(2).dropDuplicates(["_anchor", "v"]),
    "of a placed frame": lambda t, u: t.repartition("id").dropDuplicates(["_anchor", "v"]),
    "of a sample": lambda t, u: t.sample(0.5).dropDuplicates(["_anchor", "v"]),
    "of what a task returns": lambda t, u: t.mapInArrow(
        lambda rows: rows, "_anchor STRING, id INT, k INT"
    ).dropDuplicates(["_anchor", "k"]),
    "of a query with WITH": lambda t, u: t.sparkSession.sql(
        "WITH w AS (SELECT * FROM t) SELECT * FROM w"
    ).dropDuplicates(["_anchor", "v"]),
    "of melted columns": lambda t, u: t.melt(["_anchor", "v"], ["id", "n"], "a", "b")
    .dropDuplicates(["_anchor", "a"]),
    "of rows made of others": lambda t, u: t.sparkSession.createDataFrame(
        [(1, 2, 3)], "_anchor INT, a INT, b INT"
    ).dropDuplicates(["_anchor", "a"]),
    # fields of the anchor
    "distinct by record": lambda t, u: t.select("id", "_anchor.root").distinct(),
    "DISTINCT by record": "SELECT DISTINCT id, _anchor.root FROM t",
    "name of a record": lambda t, u: t.withColumn("k", F.concat_ws("-", "id", "_anchor.root")),
    "CASE": lambda t, u: t.withColumn(
        "k", F.when(F.col("id") > 1, F.col("_anchor.root")).otherwise(0).cast("string")
    ),
    "CASE of anchors": lambda t, u: t.withColumn(
        "k", F.when(F.col("id") > 1, F.col("_anchor")).cast("string")
    ),
    # what only places rows
    "salt": lambda t, u: t.withColumn("s", F.hash("_anchor", "id") % 16).repartition("id", "s"),
    "placed by a hash": lambda t, u: t.repartition(2, F.hash("id", "_anchor")),
    "sorted by a hash": lambda t, u: t.sort(F.xxhash64("id", "_anchor")),
    "EXCEPT of keys": "SELECT * FROM t WHERE id NOT IN (SELECT id FROM t EXCEPT SELECT id FROM u)",
    "UNION ALL": "SELECT * FROM t UNION ALL SELECT * FROM u",
}  # fmt: skip


def result(spark, frames, operation):
    return spark.sql(operation) if isinstance(operation, str) else operation(*frames)


@pytest.mark.parametrize(("operation", "words"), COMPARING.values(), ids=COMPARING)
def test_what_compares_the_anchor_is_found(spark, frames, operation, words):
    """Each operation whose result the hidden column changes is found, in SQL as in methods."""
    comparison = Plan.of(result(spark, frames, operation)).comparison()
    assert comparison is not None
    assert "'_anchor'" in comparison
    assert words in comparison


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_does_not_is_allowed(spark, frames, operation):
    """Operations of named columns, and those that name the anchor first, pass."""
    assert Plan.of(result(spark, frames, operation)).comparison() is None


def first_of_each_key(rows):
    doubled = rows.withColumn("tag", F.explode(F.array(F.lit("a"), F.lit("a"))))
    return doubled.dropDuplicates(["_anchor", "tag"]).drop("tag")


def distinct_anchors(rows):
    return rows.join(rows.select("_anchor").distinct(), "_anchor")


def subtracted_anchors(rows):
    rest = rows.select("_anchor").subtract(rows.where("n > 2").select("_anchor"))
    small, large = rows.join(rest, "_anchor"), rows.join(rest, "_anchor", "left_anti")
    return small.unionByName(large)


def test_what_is_allowed_loses_nothing_unseen(spark):
    """A stage of each kind of allowed operation passes on all records, and the one that it also
    filters out is failed, and named.
    """
    pipeline = Pipeline("orders", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema="id INT, v STRING, n INT"))
    kinds = (first_of_each_key, distinct_anchors, subtracted_anchors)

    def losing(number, kind):
        def stage(orders):
            return kind(orders.where(F.col("id") != number))

        stage.__name__ = kind.__name__
        return stage

    for number, kind in enumerate(kinds):
        pipeline.stage(reads="orders", anchors="by_hand")(losing(number, kind))
        pipeline.sink(f"{kind.__name__}_out", ParquetSink(kind.__name__), reads=kind.__name__)
    rows = [{"id": id, "v": "x", "n": id} for id in range(5)]
    batch = testing.run_batch(pipeline, {"orders": rows}, spark=spark)
    assert (batch.roots.acked, batch.roots.failed) == (2, len(kinds))
    lost = {failure.content["id"]: failure.step for failure in batch.failed}
    assert lost == {number: kind.__name__ for number, kind in enumerate(kinds)}
    for number, kind in enumerate(kinds):
        ids = sorted(row["id"] for row in batch.rows[f"{kind.__name__}_out"])
        assert ids == [id for id in range(5) if id != number]


def test_plans_are_shown_as_before(spark, frames):
    """Looking at a plan leaves the session's settings as they were."""
    before = spark.conf.get("spark.sql.debug.maxToStringFields")
    Plan.of(frames[0])
    assert spark.conf.get("spark.sql.debug.maxToStringFields") == before


def declared(function, **options):
    """orders -> changed -> out."""
    pipeline = Pipeline("orders", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema="id INT, v STRING, n INT"))

    @pipeline.stage(reads="orders", **{"anchors": "by_hand", **options})
    def changed(orders):
        orders.createOrReplaceTempView("orders")
        return function(orders) if callable(function) else orders.sparkSession.sql(function)

    pipeline.sink("out", ParquetSink("out"), reads="changed")
    return pipeline


def unregistered(frame, sql):
    """The result of SQL text in a session without the functions of anchors."""
    for name in ("collect_anchors", "merge_anchors"):
        frame.sparkSession.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
    return frame.sparkSession.sql(sql)


def of_groups(frame):
    """The groups of a frame, as a function of each without its anchors returns them."""
    return frame.groupBy("id").applyInPandas(lambda rows: rows, "id INT, n INT")


COLLECTED = "SELECT id, collect_anchors(_anchor) AS _anchor FROM orders GROUP BY id"
JOINED_TO = "FROM orders AS o LEFT JOIN"
JOINED = f"{JOINED_TO} orders AS p ON o.id = p.id"
WHOLE = {"anchors": "merged_by_hand"}
ENDS = {"acks": "untracked"}
REFUSED = [
    (lambda t: t.dropDuplicates(), {}, r"compares '_anchor'.* dropped\(rows, \"duplicate\"\)"),
    (lambda t: t.distinct(), WHOLE, "compares '_anchor'"),
    ("SELECT * FROM orders UNION SELECT * FROM orders", WHOLE, "compares '_anchor'"),
    (lambda t: t.withColumn("all", F.struct("*")), {}, r"column 'all' with '_anchor' in it"),
    (lambda t: unregistered(t, "SELECT id, _anchor, sum(n) FROM orders GROUP BY ALL"), WHOLE,
     r"with collect_anchors\(\), or in SQL flatten\(collect_list\(_anchor\)\) AS _anchor"),
    # under another name
    (lambda t: unregistered(t, f"SELECT o.id, concat(o._anchor, p._anchor) {JOINED}"), WHOLE,
     r"name the column: concat\(coalesce\(o\._anchor, array\(\)\), coalesce\("),
    # not selected, beside a group that needs no anchor
    (lambda t: t.join(t.groupBy("id").agg(F.count("_anchor").alias("c")), "id").select("id", "c"),
     WHOLE, r"keep it, for example \.select\('id', 'c', '_anchor'\)"),
    (f"WITH p AS (SELECT id FROM orders GROUP BY id) SELECT o.id {JOINED_TO} p ON o.id = p.id",
     WHOLE, "keep it, for example"),
    # functions
    (of_groups, WHOLE, "tracked: return '_anchor' from the function of the groups.* concatenated"),
    (of_groups, {}, "and return '_anchor' from the function of the groups"),
    (lambda t: t.mapInPandas(lambda rows: rows, "id INT, n INT"), {},
     "return '_anchor' from the function of the rows"),
    # groups
    (lambda t: unregistered(t, "SELECT id, sum(n) AS n, _anchor FROM orders GROUP BY id"), WHOLE,
     r"add collect_anchors\(\).* in SQL flatten\(collect_list\(_anchor\)\) AS _anchor"),
    ("SELECT id, sum(n) AS n, _anchor FROM orders GROUP BY id", {},
     'with anchors="merged_by_hand", and add'),
    ("SELECT sum(n) AS n, _anchor FROM orders", WHOLE, r"add collect_anchors\(\)"),
    (lambda t: t.groupBy("id").count(), {},
     'with anchors="merged_by_hand", and add collect_anchors'),
    (lambda t: t.groupBy("id").count(), WHOLE, r"cannot be tracked: add collect_anchors\(\)"),
    (lambda t: t.groupBy("id").count().select("id", "_anchor"), WHOLE, r"add collect_anchors\(\)"),
    # outside of a whole stage
    (lambda t: t.groupBy("id").agg(collect_anchors()), {},
     r'calls collect_anchors\(\), which needs anchors="merged_by_hand"'),
    (lambda t: t.select("id", merge_anchors("_anchor")), {},
     r'calls merge_anchors\(\), which needs anchors="merged_by_hand"'),
    (COLLECTED, {}, r'calls collect_anchors\(\), which needs anchors="merged_by_hand"'),
    ("SELECT id, merge_anchors(o._anchor) AS _anchor FROM orders AS o", {},
     r'calls merge_anchors\(\), which needs anchors="merged_by_hand"'),
    # in SQL where the functions are not registered, as on Spark Connect
    (lambda t: unregistered(t, COLLECTED), WHOLE,
     r"in SQL.*: write flatten\(collect_list\(_anchor\)\) AS _anchor"),
    (lambda t: unregistered(t, f"SELECT o.id, merge_anchors(o._anchor) AS _anchor {JOINED}"), WHOLE,
     r"in SQL.*: write concat\(coalesce\(o\._anchor, array\(\)\), coalesce\("),
    # where tracking ends there is none
    (lambda t: t.select("id", "_anchor"), ENDS, "tracking ends there or before, so its"),
]  # fmt: skip
# In SQL where the functions are registered, which they are not on Spark Connect.
REGISTERED = [
    ("SELECT * FROM orders UNION SELECT * FROM orders", {},
     r"with collect_anchors\(\), or in SQL collect_anchors\(_anchor\) AS _anchor, in a stage"),
    ("SELECT id, collect_anchors(_anchor) FROM orders GROUP BY id HAVING count(*) > 0", WHOLE,
     r"name the column: collect_anchors\(_anchor\) AS _anchor"),
    (f"SELECT o.id, merge_anchors(o._anchor, p._anchor) AS both {JOINED}", WHOLE,
     r"name the column: merge_anchors\(o\._anchor, c\._anchor\) AS _anchor"),
    ("SELECT id, sum(n) AS n, _anchor FROM orders GROUP BY id", WHOLE,
     r"add collect_anchors\(\).* in SQL collect_anchors\(_anchor\) AS _anchor"),
    (lambda t: t.groupBy("id").agg(F.flatten(F.collect_list("_anchor"))), WHOLE,
     r"name the column: collect_anchors\(_anchor\) AS _anchor"),
]  # fmt: skip


def test_a_stage_that_compares_or_loses_the_anchor_is_refused(runner, spark, tmp_path):
    """The stage fails with its name and what to write instead, and Spark's advice is not given."""
    (tmp_path / "orders.csv").write_text("id,v,n\n1,x,5\n1,x,5\n2,y,6\n")
    registered = [] if "connect" in type(spark).__module__ else REGISTERED
    for function, options, words in (*REFUSED, *registered):
        run = runner(declared(function, **options))
        batch = run.open()
        run.step(batch, "orders")
        with pytest.raises(StageError, match=f"stage 'changed'.*{words}"):
            run.step(batch, "changed")
        run.ledger.abandon(batch.batch_id)


def test_other_errors_of_a_stage_stay_as_they_are(runner, tmp_path):
    """A group that lacks a column of the user's is reported in Spark's words."""
    (tmp_path / "orders.csv").write_text("id,v,n\n1,x,5\n")
    run = runner(declared("SELECT id, v FROM orders GROUP BY id", anchors="merged_by_hand"))
    batch = run.open()
    run.step(batch, "orders")
    with pytest.raises(Exception, match='non-aggregating expression "v"'):
        run.step(batch, "changed")


def test_what_the_message_advises_works(spark):
    """Duplicates are dropped with a reason, or their anchors collected, and no record is lost."""

    def first(orders):
        rows = numbered(orders, "id", "v", "n")
        return rows.where("place = 1").drop("place"), dropped(rows.where("place > 1"), "duplicate")

    def in_python(orders):
        def totals(rows):
            anchors = [anchor for row in rows["_anchor"] for anchor in row]
            return rows.head(1).assign(_anchor=[anchors])

        return orders.groupBy("id").applyInPandas(totals, orders.schema)

    collected = f"SELECT id, v, n, {BUILT_IN['collect_anchors']} FROM orders GROUP BY id, v, n"
    merged = f"SELECT o.id, {BUILT_IN['merge_anchors']} {JOINED_TO} orders AS c ON c.id = o.id + 1"

    for function, expected in (
        (first, [1, 2]),
        (in_python, [1, 2]),
        (collected, [1, 2]),
        (merged, [1, 1, 2]),
    ):
        batch = testing.run_batch(
            declared(function, anchors="merged_by_hand"), {"orders": ROWS}, spark=spark
        )
        assert (batch.roots.acked, batch.roots.failed) == (3, 0)
        assert sorted(row["id"] for row in batch.rows["out"]) == expected


# SQL text of a whole stage, with the columns ``id`` of its rows.
IN_SQL = {
    "group": ("SELECT id, sum(n) AS n, collect_anchors(_anchor) AS _anchor FROM orders GROUP BY id",
              [1, 2]),
    "nested": ("WITH firsts AS (SELECT id, v, collect_anchors(_anchor) AS _anchor FROM orders"
               " GROUP BY id, v) SELECT v, max(id) AS id, collect_anchors(_anchor) AS _anchor"
               " FROM firsts GROUP BY v", [1, 2]),
    "total": ("SELECT 3 AS id, collect_anchors(_anchor) AS _anchor FROM orders", [3]),
    "outer": ("SELECT o.id, merge_anchors(o._anchor, p._anchor) AS _anchor FROM orders AS o"
              " LEFT JOIN orders AS p ON o.id = p.id AND p.id = 1", [1, 1, 1, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_SQL)
def test_sql_text_collects_and_merges_anchors(spark, name):
    """A whole stage in SQL text that groups or joins keeps each record of its rows."""
    if "connect" in type(spark).__module__:
        pytest.skip("no function is registered there: the stage fails with what to write")
    sql, ids = IN_SQL[name]
    batch = testing.run_batch(
        declared(sql, anchors="merged_by_hand"), {"orders": ROWS}, spark=spark
    )
    assert (batch.roots.acked, batch.roots.failed) == (3, 0)
    assert sorted(row["id"] for row in batch.rows["out"]) == ids


def test_functions_of_the_user_stay(spark):
    """A function of the same name that a job has registered is called, not replaced."""

    def own(orders):
        orders.sparkSession.sql("DROP TEMPORARY FUNCTION IF EXISTS collect_anchors")
        orders.sparkSession.udf.register("collect_anchors", lambda text: text + "!", "string")
        register_functions(orders)
        return orders.selectExpr("id", "collect_anchors(v) AS v", "n", "_anchor")

    try:
        batch = testing.run_batch(declared(own), {"orders": ROWS}, spark=spark)
    finally:
        spark.sql("DROP TEMPORARY FUNCTION IF EXISTS collect_anchors")
    assert sorted(row["v"] for row in batch.rows["out"]) == ["x!", "x!", "y!"]


def test_distinct_where_tracking_ends(spark):
    """The stage that ends tracking gets the columns alone, so duplicates are dropped."""
    batch = testing.run_batch(
        declared(lambda orders: orders.distinct(), acks="untracked"), {"orders": ROWS}, spark=spark
    )
    assert sorted(row["id"] for row in batch.rows["out"]) == [1, 2]
