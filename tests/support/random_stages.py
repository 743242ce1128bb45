"""A random plan as a pipeline of the library: its sources, its stages in Spark, its sinks."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ledger import (
    Bloom,
    DeltaSink,
    FailedRecord,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    acked,
    collect_anchors,
    dropped,
    failed,
    merge_anchors,
)
from tests.support.random_flow import BROKEN, MEANT, NO_GOOD, TOO, Misread, Stage
from tests.support.random_pipelines import Plan, Sink
from tests.support.warehouse import Warehouse

COLUMNS = ("id", "unit", "key")
SCHEMA = "id INT, unit INT, key STRING"
# What a table does not take; its name stands in the reason.
CONSTRAINT = "refusing"
DEDUP = {
    "none": "none",
    "exact": "exact",
    "bloom": Bloom(capacity=10_000),
    "keyed": Bloom(capacity=10_000, key=("key",)),
}


class World:
    """The folder and the database of a plan: what its sources read and its sinks write.
    ``by_hand``: whether its stages return their anchors.
    """

    def __init__(self, plan: Plan, folder: Path, warehouse: Warehouse, *, by_hand: bool):
        self.plan, self.folder, self.warehouse, self.by_hand = plan, folder, warehouse, by_hand
        for source in plan.sources:
            (folder / source.name).mkdir()
            half = len(source.records) // 2
            for name, some in (("a", source.records[:half]), ("b", source.records[half:])):
                lines = [f"{id},{unit},{source.letter}{id}" for id, unit in some]
                text = "\n".join([",".join(COLUMNS), *lines, ""])
                (folder / source.name / f"{name}.csv").write_text(text)
        for sink in plan.sinks:
            self._create(sink)

    def repair(self, round_: int) -> None:
        """From this round on tables take the rows that they refused, unless that lasts."""
        for sink in self.plan.sinks:
            before, now = (self.plan.is_faulty(sink.name, n) for n in (round_ - 1, round_))
            if not sink.refuses or now or not before:
                continue
            if sink.kind == "delta":
                DeltaTable(self.folder / sink.name).alter.drop_constraint(CONSTRAINT)
            else:
                self.warehouse.do(f"ALTER TABLE {sink.name} DROP CONSTRAINT {CONSTRAINT}")

    def shown(self, name: str) -> Counter[tuple[Any, ...]]:
        """The rows of a sink of records: number and key."""
        sink = next(some for some in self.plan.sinks if some.name == name)
        if sink.kind == "postgres":
            return Counter(self.warehouse.rows(f"SELECT id, key FROM {name}"))
        if sink.kind == "delta":
            rows = DeltaTable(self.folder / name).to_pyarrow_table().to_pylist()
            return Counter((row["id"], row["key"]) for row in rows)
        return self.folder_rows(name, "id", "key")

    def folder_rows(self, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
        """The rows of a sink's folder; none if there is no folder yet."""
        if not any((self.folder / name).glob("ackledger_batch=*/*.parquet")):
            return Counter()
        table = ds.dataset(self.folder / name, partitioning="hive", format="parquet").to_table()
        return Counter(tuple(row[column] for column in columns) for row in table.to_pylist())

    def _create(self, sink: Sink) -> None:
        refused = ", ".join(f"'{key}'" for key in sorted(sink.refuses))
        rule = f"key NOT IN ({refused})"
        if sink.kind == "postgres":
            check = f", CONSTRAINT {CONSTRAINT} CHECK ({rule})" if sink.refuses else ""
            columns = "id int, unit int, key text, ackledger_batch bigint"
            self.warehouse.do(f"CREATE TABLE {sink.name} ({columns}{check})")
        elif sink.kind == "delta":
            kinds = {"id": "integer", "unit": "integer", "key": "string"}
            fields = [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in kinds.items()
            ]
            schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
            table = DeltaTable.create(self.folder / sink.name, schema)
            if sink.refuses:
                table.alter.add_constraint({CONSTRAINT: rule})

    def pipeline(self, round_: int) -> Pipeline:
        """The plan's pipeline with the faults of a round."""
        plan = self.plan
        options = {"guarantee": plan.guarantee, "max_replays": plan.max_replays}
        pipeline = Pipeline("random", **options, publish="complete" if plan.hold else "settled")
        for source in plan.sources:
            files = FileSource(f"{source.name}/*.csv", schema=SCHEMA)
            pipeline.source(source.name, files)
        for stage in plan.stages:
            self._declare(pipeline, stage, plan.is_faulty(stage.name, round_))
        for sink in plan.sinks:
            pipeline.sink(sink.name, self._target(sink), reads=sink.reads)
        if plan.combined:
            pipeline.combine(reads=plan.combined)(counted)
            pipeline.sink("combine", ParquetSink("combine"), reads="counted")
        if plan.carried:
            pipeline.stateful_stage(reads=plan.carried)(so_far)
            pipeline.sink("state", ParquetSink("state"), reads="so_far")
        return pipeline

    def on_read(self, round_: int) -> Callable[[str, DataFrame], DataFrame]:
        """The hook of a job by which steps do not get some rows, and others again."""

        def change(step: str, rows: DataFrame) -> DataFrame:
            misread: Misread = self.plan.misread(step, round_)
            left = rows.where(~_is_in(misread.lost)) if misread.lost else rows
            again = [rows.where(_is_in(misread.again))] * (misread.times - 1)
            return reduce(DataFrame.unionByName, again if misread.again else [], left)

        return change

    def _target(self, sink: Sink) -> Any:
        dedup = DEDUP[sink.dedup]
        if sink.kind == "postgres":
            return PostgresSink(self.warehouse.url, sink.name, dedup=dedup)
        return {"delta": DeltaSink, "parquet": ParquetSink}[sink.kind](sink.name, dedup=dedup)

    def _declare(self, pipeline: Pipeline, stage: Stage, faulty: bool) -> None:
        fates = stage.fates(faulty)
        if stage.form == "record":
            function = by_record(stage, fates)
            function.__name__ = stage.name
            pipeline.record_stage(reads=stage.reads[0], schema=SCHEMA, emits=stage.emits)(function)
            return
        function = _taking(len(stage.reads), FORMS[stage.form](stage, fates))
        function.__name__ = stage.name
        by_hand = "merged_by_hand" if stage.whole else "by_hand"
        anchors = by_hand if self.by_hand else "carried"
        options = {
            "acks": stage.acks, "emits": stage.emits, "anchors": anchors, "filters": "lost"
        }  # fmt: skip
        pipeline.stage(reads=stage.reads, **options)(function)


def _taking(many: int, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of as many frames as the stage reads."""

    def of_one(rows):
        return run(rows)

    def of_two(rows, others):
        return run(rows, others)

    return of_one if many == 1 else of_two


def _is_in(keys) -> Column:
    return F.col("key").isin(sorted(keys)) if keys else F.lit(False)


def _keys(fates: Mapping[str, str], *names: str) -> Column:
    """Whether one of these fates is a row's."""
    return _is_in([key for key, fate in fates.items() if fate in names])


def _shuffled(stage: Stage, rows: DataFrame) -> DataFrame:
    return rows.repartition(stage.files, "key") if stage.files else rows


def by_frame(stage: Stage, fates: Mapping[str, str]):
    """One row at a time: fails, drops, acks, and copies of the rest."""

    def run(*frames):
        rows = reduce(DataFrame.unionByName, frames)
        going = rows.where(~_keys(fates, "lost", "dropped", "acked", "marked"))
        going = going.unionByName(going.where(_keys(fates, "twice", "repeated")))
        numbers = F.array(*map(F.lit, range(stage.copies)))
        copies = going.withColumn("copy", F.explode(numbers))
        half = _keys(fates, "half") & (F.col("copy") == 0)
        ending = [F.lit("."), F.col("copy").cast("string")] if stage.copies > 1 else []
        output = copies.select(
            "id",
            "unit",
            F.concat(F.col("key"), F.lit(stage.letter), *ending).alias("key"),
            F.when(_keys(fates, "failed") | half, BROKEN).alias("_failed"),
            *_anchor_of(rows),
        )
        marks = []
        if {"dropped", "twice"} & set(fates.values()):
            marks.append(dropped(rows.where(_keys(fates, "dropped", "twice")), MEANT))
            marks.append(dropped(rows.where(_keys(fates, "dropped")), TOO))
        if "acked" in fates.values():
            marks.append(acked(rows.where(_keys(fates, "acked"))))
        if {"marked", "beside"} & set(fates.values()):
            marks.append(failed(rows.where(_keys(fates, "marked", "beside")), NO_GOOD))
        return _shuffled(stage, output), *marks

    return run


def by_record(stage: Stage, fates: Mapping[str, str]):
    """One record at a time."""

    def run(record):
        fate = fates.get(record["key"])
        if fate == "lost":
            return
        if fate == "dropped":
            yield dropped(MEANT)
            return
        for key in stage.keys(record["key"]):
            for _ in range(2 if fate in ("twice", "repeated") else 1):
                yield {"id": record["id"], "unit": record["unit"], "key": key}
        if fate == "failed":
            raise FailedRecord(BROKEN)

    return run


def _judged(stage: Stage, fates: Mapping[str, str], rows: DataFrame) -> DataFrame:
    """Rows of several records, of which some fail."""
    reason = F.when(_keys(fates, "failed"), BROKEN).alias("_failed")
    return _shuffled(stage, rows.select(*COLUMNS, reason, *_anchor_of(rows)))


def _anchor_of(rows: DataFrame) -> list[str]:
    """The column of anchors, if they are by hand."""
    return [name for name in rows.columns if name == "_anchor"]


def by_group(column: str):
    """A row for all rows with an equal value."""

    def of(stage: Stage, fates: Mapping[str, str]):
        def run(*frames):
            rows = reduce(DataFrame.unionByName, frames).where(~_keys(fates, "lost"))
            groups = rows.groupBy(F.col(column).alias("_by")).agg(
                F.min("id").alias("id"),
                F.min("unit").alias("unit"),
                F.concat_ws("+", F.sort_array(F.collect_list("key"))).alias("key"),
                *map(collect_anchors, _anchor_of(rows)),
            )
            return _judged(stage, fates, groups)

        return run

    return of


def by_latest(stage: Stage, fates: Mapping[str, str]):
    """The rows of each unit with the greatest key; the others are dropped."""

    def run(*frames):
        rows = reduce(DataFrame.unionByName, frames)
        ranked = rows.withColumn("greatest", F.max("key").over(Window.partitionBy("unit")))
        left = ranked.where(~_keys(fates, "lost"))
        older = dropped(left.where("key < greatest"), "superseded")
        return _judged(stage, fates, left.where("key = greatest")), older

    return run


def by_join(stage: Stage, fates: Mapping[str, str]):
    """Pairs of rows of one unit; what meets no other is dropped."""

    def run(rows, others):
        left = rows.where(~_keys(fates, "lost"))
        pairs = left.alias("l").join(others.alias("r"), "unit", "inner")
        united = pairs.select(
            F.least("l.id", "r.id").alias("id"),
            "unit",
            F.concat("l.key", F.lit("*"), "r.key").alias("key"),
            *[merge_anchors(f"l.{name}", f"r.{name}") for name in _anchor_of(rows)],
        )
        alone = [
            dropped(these.join(those, "unit", "left_anti"), "unmatched")
            for these, those in ((left, others), (others, left))
        ]
        return _judged(stage, fates, united), *alone

    return run


FORMS = {
    "frame": by_frame,
    "total": by_group("unit"),
    "gather": by_group("id"),
    "latest": by_latest,
    "join": by_join,
}


def counted(rows):
    """How many rows there are of each key."""
    return rows.groupBy("key").agg(F.count("*").cast("int").alias("n"))


def so_far(state, batch):
    """How many rows there were of each key in all batches."""
    rows = batch.select("key", F.lit(1).alias("n"))
    if state is not None:
        rows = rows.unionByName(state)
    return rows.groupBy("key").agg(F.sum("n").cast("int").alias("n"))
