"""A pipeline of one stage, and stages whose rows lie in the ways that a fold distinguishes."""

from dataclasses import replace

from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.spark import sink_tracking

COUNT = 20


def chain(stage, *, guarantee=None, **options):
    """source -> stage -> sink. ``options``: of the stage."""
    pipeline = Pipeline("chain", guarantee=guarantee)
    pipeline.source("numbers", FileSource("in*.csv", schema="n INT"))
    pipeline.stage(reads="numbers", **options)(stage)
    pipeline.sink("out", ParquetSink("out"), reads=stage.__name__)
    return pipeline


def thrice(frame):
    """Three rows for each, one after the other."""
    return frame.withColumn("copy", F.explode(F.array(*map(F.lit, (1, 2, 3)))))


def turned(frame):
    """One file of two stretches, the second half first."""
    rows = thrice(frame)
    return rows.where(f"n >= {COUNT // 2}").unionByName(rows.where(f"n < {COUNT // 2}")).coalesce(1)


def unordered(frame):
    """One file, with each record in three places."""
    return thrice(frame).coalesce(1).sortWithinPartitions("copy", "n")


def scattered(frame):
    """The rows of each record in three files."""
    return thrice(frame).repartitionByRange(3, "copy")


def mixed(frame):
    """A file in order, one that is not, and two that share records."""
    rows = thrice(frame)
    shared = rows.where("n BETWEEN 8 AND 13").repartitionByRange(2, "copy")
    last = rows.where("n > 13").coalesce(1).sortWithinPartitions("copy", "n")
    return rows.where("n < 8").coalesce(1).unionByName(shared).unionByName(last)


def pairs(frame):
    """Rows of two records each, and one record in several rows."""
    rows = frame.select((F.col("n") / 2).cast("int").alias("pair"))
    totals = rows.groupBy("pair").agg(F.count("*").alias("numbers"))
    return totals.unionByName(totals.where("pair < 3"))


def write_numbers(folder, count=COUNT, name="in.csv"):
    """A file of so many numbers."""
    (folder / name).write_text("n\n" + "".join(f"{n}\n" for n in range(count)))


def prove_nothing(monkeypatch):
    """From now on a sink's files come to other edges than its writer got."""
    fold = sink_tracking.fold

    def other(job, run, portions, check):
        def check_other(outcome):
            posted = replace(outcome.posted, acked_xor=~outcome.posted.acked_xor)
            check(replace(outcome, posted=posted))

        return fold(job, run, portions, check_other)

    monkeypatch.setattr(sink_tracking, "fold", other)
