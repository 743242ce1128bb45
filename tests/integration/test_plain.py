"""The benchmarks' work by hand: each way of it writes the same rows."""

from functools import partial

from benchmarks import data, pipelines, plain
from benchmarks.measure import Bench
from ledger.spark.job import Job
from tests.support.flights import write_slice


def rows(spark, folder):
    """Every row below a folder, as text, in order."""
    frame = spark.read.parquet(str(folder))
    return sorted(str(row.asDict()) for row in frame.select(sorted(frame.columns)).collect())


def test_one_plan_writes_the_sink_alone(spark, tmp_path):
    """With the rows that the same work writes stage by stage, clustered or not."""
    write_slice(tmp_path / "data")
    stages = {"parse", "with_plane", "with_weather", "warehouse"}
    folders = {}
    for kind, expected in (
        (plain.Batches, stages),
        (plain.OnePlan, {"warehouse"}),
        (plain.OnePlanClustered, {"warehouse"}),
    ):
        folders[kind] = out = tmp_path / kind.__name__
        plain.flights(kind(spark), tmp_path / "data", out)
        assert {path.name for path in out.iterdir()} == expected
    by_stage, *one_plan = (rows(spark, out / "warehouse") for out in folders.values())
    assert len(by_stage) > 100
    assert one_plan == [by_stage, by_stage]


def test_one_plan_pushes_a_filter_into_parquet(spark, tmp_path):
    """By hand Spark reads the columns that are used, with the filter, and writes by day."""
    data.events(spark, tmp_path, 2_000)
    one_plan = plain.OnePlan(spark)
    plain.purchases(one_plan, tmp_path, tmp_path / "one")
    plan = one_plan.read(tmp_path / "one" / "with_product")._jdf.queryExecution().executedPlan()
    assert "EqualTo(kind,purchase)" in plan.toString()
    assert "referrer" not in plan.toString()
    plain.purchases(plain.Batches(spark), tmp_path, tmp_path / "staged")
    by_stage, written = (rows(spark, tmp_path / each / "warehouse") for each in ("staged", "one"))
    assert 300 < len(by_stage) < 700
    assert written == by_stage


def test_tracked_purchases_are_those_by_hand(runner, spark, tmp_path, sink_rows):
    """No event is lost: the others were dropped on purpose."""
    data.events(spark, tmp_path, 2_000)
    run = runner(pipelines.purchases(True))
    batch = run.open_day(1)
    run.settled(batch)
    summary = run.ledger.summary(batch.batch_id)
    assert (summary.roots.acked, summary.roots.failed) == (2_000, 0)
    plain.purchases(plain.OnePlan(spark), tmp_path, tmp_path / "hand")
    columns = ("id", "day", "visitor", "url", "millis", "product")
    tracked = sink_rows("warehouse/purchases", *columns)
    assert tracked == sink_rows("hand/warehouse", *columns)


def test_tracked_revenue_is_that_by_hand(
    spark, database, settings, warehouse, tmp_path, monkeypatch
):
    """Each way leaves the same totals in PostgreSQL, tracked or not, and loses nothing."""
    monkeypatch.setenv(plain.REPORTS, warehouse.url)
    data.orders(spark, tmp_path, 3_000, 400)
    bench = Bench(lambda flow: Job(spark, database, settings, flow), settings, database)

    def batch(tracking):
        bench.batch(pipelines.revenue(tracking))
        assert set(bench.step_seconds) == {"orders", "customers", "sold", "combine"}

    ways = {
        "tracked": partial(batch, True),
        "untracked": partial(batch, False),
        "staged": partial(plain.revenue, plain.Batches(spark), tmp_path, tmp_path / "staged"),
        "one plan": partial(plain.revenue, plain.OnePlan(spark), tmp_path, tmp_path / "one"),
    }
    totals = {}
    for name, way in ways.items():
        way()
        columns = "customer, country, orders, cents, last"
        totals[name] = warehouse.rows(f"SELECT {columns} FROM {plain.REVENUE} ORDER BY 1")
        warehouse.do(f"DROP TABLE {plain.REVENUE}")
    assert len(totals["staged"]) == 400
    assert sum(orders for _, _, orders, *_ in totals["staged"]) == 3_000
    assert all(rows == totals["staged"] for rows in totals.values())
    assert not (tmp_path / "one").exists()
