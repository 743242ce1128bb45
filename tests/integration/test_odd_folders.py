"""Folders whose names have signs that Spark, fsspec and globs take for syntax."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.settings import Settings
from tests.support.runner import Runner

ODD = "b [1]{x,y}?*#&+"
CHAINED = "a::b"
DECOYS = ("b 1x?#&+", "b 1{x,y}?*#&+", "b 1{x,y}zz#&+", "a")  # what a pattern would match


def moving():
    """Files of each format, and of each way to read them, to a folder and a table."""
    flow = Pipeline("odd", max_replays=3)
    flow.source("text", FileSource("in/*/*.csv", schema="n INT", incremental=True))
    flow.source("lines", FileSource("a.jsonl", format="json", schema="n INT"))
    flow.source("rows", FileSource("p/*.parquet", format="parquet", schema="n INT"))
    flow.reference("names", FileSource("names.csv", schema="n INT, name STRING"))

    @flow.stage(reads=["text", "lines", "rows"])
    def named(text, lines, rows, *, names):
        return text.union(lines).union(rows).join(F.broadcast(names), "n")

    flow.sink("folder", ParquetSink("folder", partition_by="name", dedup="exact"), reads="named")
    flow.sink("table", DeltaSink("table", partition_by="name"), reads="named")
    return flow


def fill(root, first):
    """Six records, one of which does not parse; one has no name."""
    (root / "in" / ODD).mkdir(parents=True)
    (root / "in" / CHAINED).mkdir()
    (root / "p").mkdir()
    (root / "in" / ODD / "f[1].csv").write_text(f"n\n{first}\nx\n")
    (root / "in" / CHAINED / "f.csv").write_text(f"n\n{first + 1}\n")
    (root / "a.jsonl").write_text(f'{{"n": {first + 2}}}\n{{"n": {first + 3}}}\n')
    pq.write_table(pa.table({"n": pa.array([first + 4], pa.int32())}), root / "p" / "p[1].parquet")
    name(root, range(first, first + 4))


def name(root, numbers):
    """Write the names of these numbers."""
    lines = [f'{n},"{CHAINED}{ODD}{n}"\n' for n in numbers]
    (root / "names.csv").write_text("".join(["n,name\n", *lines]))


def test_a_folder_is_that_of_its_name(runner, tmp_path):
    """Each record of the named folders arrives, fails or is replayed, and none of a folder that
    their names match as patterns."""
    for number, decoy in enumerate(DECOYS):
        fill(tmp_path / decoy, 100 * (number + 1))
    root = tmp_path / ODD
    fill(root, 0)
    settings = Settings(
        data=str(root),
        home=tmp_path / "home",
        storage=str(tmp_path / CHAINED / "storage"),
        output=str(root / "output"),
    )
    work = Runner(replace(runner(moving()).job, settings=settings))
    batch = work.open()
    settlement = work.settled(batch)
    assert (settlement.roots, settlement.failed) == (6, 2)
    expected = [(n, f"{CHAINED}{ODD}{n}") for n in range(4)]
    assert shown(root) == (expected, expected)
    name(root, range(5))
    assert work.settled(work.open_replay(batch.batch_id)).failed == 1
    expected = [(n, f"{CHAINED}{ODD}{n}") for n in range(5)]
    assert shown(root) == (expected, expected)
    assert {path.name for path in tmp_path.iterdir()} == {ODD, CHAINED, *DECOYS}
    for decoy in DECOYS:
        assert not (tmp_path / decoy / "output").exists()
        assert not (tmp_path / decoy / "storage").exists()


def shown(root):
    """The rows of the folder, and those of the table."""
    place = str(root / "output" / "folder")
    folder = ds.dataset(place, partitioning="hive", format="parquet").to_table().to_pylist()
    table = DeltaTable(str(root / "output" / "table")).to_pyarrow_table().to_pylist()
    return tuple(sorted((row["n"], row["name"]) for row in rows) for rows in (folder, table))
