"""The benchmarks' work by hand: each way of it writes the same rows."""

from benchmarks import plain
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
