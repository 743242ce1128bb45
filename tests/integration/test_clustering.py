"""A partitioned sink leaves one file a folder, however many tasks write it, and nothing else of a
batch depends on it.
"""

from collections import Counter
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from sqlalchemy import text

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.spark.frames import staging
from ledger.spark.session import session_conf
from tests.support.runner import START

COUNT, FOLDERS, TASKS = 60, 3, 4
STRANGE = "folder of. the row"  # Spark takes the dot of an unquoted name for a path
NAMES = {ParquetSink: STRANGE, DeltaSink: "folder.of"}  # a Delta table takes no blank
LOST = 7


def clustering(kind, cluster, lose=-1) -> Pipeline:
    """n -> rows of three folders, each in all of four tasks -> a sink by two columns."""
    pipeline = Pipeline("clustering", max_replays=2)
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers", filters="lost")
    def spread(numbers):
        rows = numbers.where(F.col("n") != lose).repartition(TASKS, F.floor(F.col("n") / FOLDERS))
        return rows.withColumns({NAMES[kind]: F.col("n") % FOLDERS, "flag": F.lit("x")})

    pipeline.sink(
        "out", kind("out", partition_by=(NAMES[kind], "flag"), rebalance=cluster), reads="spread"
    )
    return pipeline


@pytest.fixture
def settled(runner, tmp_path):
    """Runs and settles a batch of such a pipeline; its runner."""
    (tmp_path / "in.csv").write_text("n\n" + "\n".join(map(str, range(COUNT))))

    def run(*declared, start=START):
        runner_ = runner(clustering(*declared))
        runner_.settled(runner_.open(f"{start:%d}", start, start + timedelta(days=1)))
        return runner_

    return run


def files(kind, path):
    """How many files of a sink each folder has, of those that readers read."""
    if kind is DeltaSink:
        paths = [str(uri) for uri in DeltaTable(str(path)).file_uris()]
    else:
        paths = ds.dataset(path, format="parquet").files
    return Counter(path.rsplit("/", 1)[0] for path in paths)


def numbers_of(kind, path):
    """The rows that readers see."""
    if kind is DeltaSink:
        table = DeltaTable(str(path)).to_pyarrow_table()
    else:
        table = ds.dataset(path, partitioning="hive", format="parquet").to_table()
    return sorted((row["n"], int(row[NAMES[kind]]), row["flag"]) for row in table.to_pylist())


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_one_file_a_folder(spark, settled, tmp_path, kind, adaptive):
    """Whether or not the session executes adaptively."""
    with session_conf(spark, {"spark.sql.adaptive.enabled": adaptive}):
        settled(kind, True)
        assert spark.conf.get("spark.sql.adaptive.enabled") == adaptive
    result = files(kind, tmp_path / "out")
    assert sorted(result.values()) == [1] * FOLDERS
    expected = [(n, n % FOLDERS, "x") for n in range(COUNT)]
    assert numbers_of(kind, tmp_path / "out") == expected


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_what_is_not_clustered_has_a_file_a_task(settled, tmp_path, kind):
    """As each task writes its own file into each folder that it has rows of."""
    settled(kind, False)
    result = files(kind, tmp_path / "out")
    assert len(result) == FOLDERS
    assert min(result.values()) > 1


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_the_ledger_is_the_same(settled, tmp_path, database, kind):
    """What the sink acks, what fails, and what is published without the lost record's rows."""
    seen = []
    for day, cluster in enumerate((True, False)):
        settled(kind, cluster, LOST, start=START + timedelta(days=day))
        with database.plain.connect() as connection:
            acked = connection.execute(text(RUN)).one()
            failed = connection.execute(text(FAILED)).all()
        seen.append((tuple(acked), [tuple(row) for row in failed]))
    assert seen[0] == seen[1]
    (_, _, acked, failed_rows), failed = seen[0]
    assert (acked, failed_rows, [step for step, _ in failed]) == (COUNT - 1, 0, ["spread"])
    expected = [(n, n % FOLDERS, "x") for n in range(COUNT) if n != LOST]
    assert numbers_of(kind, tmp_path / "out") == sorted(2 * expected)


RUN = """
SELECT input_rows, output_rows, acked_edges, failed_rows FROM step_run
WHERE step = 'out' ORDER BY step_run_id DESC LIMIT 1
"""
FAILED = """
SELECT step, root_id - (SELECT min(first_root) FROM batch_source s WHERE s.batch_id = f.batch_id)
FROM failed_root f WHERE batch_id = (SELECT max(batch_id) FROM batch)
"""


def test_the_witness_is_behind_the_exchange(settled, monkeypatch):
    """Nothing is exchanged between the witness and the writer: a task of a map stage that ran
    twice would be counted twice.
    """
    plans, write = [], staging.write_files

    def explained(rows, *arguments, **options):
        with redirect_stdout(StringIO()) as plan:
            rows.explain()
        plans.append(plan.getvalue())
        write(rows, *arguments, **options)

    monkeypatch.setattr(staging, "write_files", explained)
    settled(ParquetSink, True)
    (plan,) = plans
    above, watched, below = plan.partition("CollectMetrics")
    assert watched
    assert "Exchange" not in above
    assert "REBALANCE_PARTITIONS_BY_COL" in below


def test_a_folder_that_is_skewed_is_split(spark, settled, tmp_path):
    """Over several tasks, where it is larger than Spark wants a partition to be."""
    with session_conf(
        spark,
        {
            "spark.sql.adaptive.advisoryPartitionSizeInBytes": "100b",
            "spark.sql.adaptive.rebalancePartitionsSmallPartitionFactor": "0.01",
        },
    ):
        settled(ParquetSink, True)
    assert max(files(ParquetSink, tmp_path / "out").values()) > 1
    assert len(numbers_of(ParquetSink, tmp_path / "out")) == COUNT
