"""Columns of users that are called as the ledger's are without their prefix, in whole batches."""

import ast
import csv
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink, Upsert
from ledger.core.column_names import PREFIX, PUBLIC
from ledger.errors import DeclarationError
from ledger.sources.parsing.typed import check_schema, struct
from tests.support.places import ROOT


def texts(path: Path) -> set[str]:
    """The names with the ledger's prefix in the string literals of a module."""
    tree = ast.parse(path.read_text())
    result = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = re.compile(rf"{PREFIX}[a-z_]+")
    return {name for text in result if isinstance(text, str) for name in named.findall(text)}


def own_names() -> list[str]:
    """Every name of the ledger's columns that stands in its code, without the prefix."""
    paths = set().union(*(texts(path) for path in (ROOT / "ledger").rglob("*.py")))
    return sorted(name.removeprefix(PREFIX) for name in paths)


USUAL = (
    "step",
    "reason",
    "raw",
    "message_id",
    "record",
    "value",
    "root",
    "position",
    "message",
    "batch",
    "unit",
    "count",
    "path",
    "rows",
    "key",
)
ODD = ("a.b", "a b", 'a"b', "it's", "UPPER", "_metadata", "b %", "%(a)s", ":a", "a\\b", "é")
# Those that a stage's author writes are no column's: they are refused, see below.
NAMES = sorted({*own_names(), *(f"_{name}" for name in own_names()), *USUAL, *ODD} - PUBLIC)
NEEDED = {"root", "value", "count"}  # by the pipeline: keys, and what it fails with
# Spark plans JSON the slower the more columns it has, for more than their number: a quarter each.
CASES = [
    pytest.param("csv", NAMES, id="csv"),
    *(
        pytest.param("json", sorted({*NAMES[start::4], *NEEDED}), id=f"json-{start}")
        for start in range(4)
    ),
    pytest.param("by_name", NAMES, id="by_name"),
    pytest.param("parquet", NAMES, id="parquet"),
]
RENAMED = {"a b": "a_b", "b %": "b_%", "%(a)s": "%a"}


def test_the_names_are_taken_from_the_code():
    """The list that the tests below go through has the columns that the ledger stores, and those
    that it makes on the way; each format is tried with all of it."""
    assert {"root", "raw", "error", "text", "record", "first", "count"} <= set(own_names())
    by_form = {form: set() for form, _ in (case.values for case in CASES)}
    for form, names in (case.values for case in CASES):
        by_form[form].update(names)
    assert all(names == set(NAMES) for names in by_form.values())


def record(number: int, names: list[str]) -> dict[str, str]:
    return {name: f"{number} of {name}" for name in names}


def schema_of(names: list[str]) -> str:
    return ", ".join(f"`{name}` STRING" for name in names)


def write(folder: Path, form: str, records: list[dict[str, str]]) -> FileSource:
    """A file of a format with these records, and the source that reads it."""
    names = list(records[0])
    schema, path = schema_of(names), folder / f"in.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif form == "json":
        path.write_text("".join(json.dumps(finding) + "\n" for finding in records))
    else:
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, names if form == "csv" else names[::-1])
            writer.writeheader()
            writer.writerows(records)
    if form == "by_name":
        return FileSource(path.name, schema=schema, header="by_name", multiline=True)
    return FileSource(path.name, schema=schema, format=form)


class Heard(list):
    """What a source is notified of: their columns, with those of the ledger."""

    def __call__(self, batch_id, records):
        self.extend(row.asDict(recursive=True) for row in records.collect())


def pipeline(source: FileSource, sinks, *, fixed: bool, acked=None, failed=None) -> Pipeline:
    """A stage joins a reference of the same columns, a record stage follows; record 2 fails."""
    flow = Pipeline("named", max_replays=3)
    flow.source("source", source, key=["root", "value"], on_ack=acked, on_fail=failed)
    flow.reference("others", source)

    @flow.stage(reads="source")
    def joined(records, *, others):
        from pyspark.sql import functions as F

        spoilt = (F.col("root") == "2 of root") & F.lit(not fixed)
        both = records.join(others.select(*(f"`{name}`" for name in ["root"])), "root", "inner")
        return both.withColumn("_failed", F.when(spoilt, F.col("value")))

    @flow.record_stage(reads="joined", schema=source.schema)
    def yielded(row):
        yield row

    @flow.stage(reads="yielded")
    def shown(records):
        # A Delta table takes neither blanks nor brackets.
        return records.withColumnsRenamed(RENAMED)

    for name, (sink, reads) in sinks.items():
        flow.sink(name, sink, reads=reads)
    return flow


@pytest.mark.parametrize(("form", "names"), CASES)
def test_columns_may_have_any_name_without_the_prefix(
    form, names, runner, ledger, tmp_path, sink_rows, warehouse_url
):
    """Each of them is a column of a source in every format, of a reference, of stages and of sinks
    of every kind; a record fails, is kept with its values, and is replayed."""
    records = [record(number, names) for number in range(4)]
    source = write(tmp_path, form, records)
    sinks = {"out": (ParquetSink("out"), "shown")}
    if form == "csv":
        table = PostgresSink(warehouse_url, "named %", mode=Upsert(["root", "count"]))
        sinks |= {"table": (table, "yielded"), "delta": (DeltaSink("delta"), "shown")}
    acked, failed = Heard(), Heard()
    run = runner(pipeline(source, sinks, fixed=False, acked=acked, failed=failed))
    batch = run.open()
    run.settled(batch)
    assert sorted((finding["record"] for finding in acked), key=repr) == records[:2] + records[3:]
    assert [(finding["record"], finding["step"], finding["reason"]) for finding in failed] == [
        (records[2], "joined", "2 of value")
    ]
    rows = ledger.rows("SELECT key, content FROM failed_payload")
    assert [json.loads(finding.content) for finding in rows] == [records[2]]
    assert [finding.key for finding in rows] == [{"root": "2 of root", "value": "2 of value"}]
    fixed = runner(pipeline(source, sinks, fixed=True))
    fixed.settled(fixed.open_replay(batch.batch_id))
    stored_as = [RENAMED.get(name, name) for name in names]
    assert sink_rows("out", *stored_as) == sorted(
        (tuple(finding.values()) for finding in records), key=repr
    )
    if form == "csv":
        stored = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
        assert sorted(tuple(row[name] for name in stored_as) for row in stored) == sorted(
            tuple(finding.values()) for finding in records
        )


def taken() -> list[str]:
    """Every name of the ledger as it stands in its code, with those that a stage's author writes;
    each in lower and in upper case, and begun with a capital."""
    names = sorted({*PUBLIC, *(f"{PREFIX}{name}" for name in own_names())})
    return [
        result for name in names for result in (name, name.upper(), f"_{name[1:].capitalize()}")
    ]


def test_a_name_of_the_ledger_is_refused_in_any_case(spark):
    """A source whose schema takes a name of the ledger, one that a stage writes among them, is
    refused with that name, as a column of whatever type."""
    assert {"_anchor", "_FAILED", "_Dropped", "_ackledger_root", "_ACKLEDGER_RAW"} <= set(taken())
    for name in taken():
        says = f"column '{name}', a name of the ledger: rename"
        with pytest.raises(DeclarationError, match=says):
            check_schema(struct(f"id INT, `{name}` STRUCT<a: INT>"))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_name_that_a_stage_writes_is_no_column_of_a_source(name, runner, tmp_path):
    """``_anchor``, ``_failed`` and ``_dropped`` of a source would be read as its author's decision
    on a record: the step fails by name."""
    (tmp_path / "in.csv").write_text(f"id,{name}\n1,x\n")
    flow = Pipeline("named", max_replays=1)
    flow.source("source", FileSource("in.csv", schema=f"id INT, {name} STRING"))
    flow.sink("out", ParquetSink("out"), reads="source")
    run = runner(flow)
    with pytest.raises(DeclarationError, match=f"'{name}', a name of the ledger: rename it"):
        run.step(run.open(), "source")
