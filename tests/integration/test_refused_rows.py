"""A row that a sink refuses fails its record there, when it is staged; the others are published."""

import json
from collections import Counter
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import functions as F
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from ledger import (
    DeltaSink,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    Upsert,
)
from ledger.errors import ConfigurationError, StageError
from ledger.execution import settle_and_follow
from ledger.store import embedded
from tests.support.dying import dies_at
from tests.support.publishing import publish_settled

COUNT = 14
CHECK = 'new row for relation "{}" violates check constraint "{}"'
# By the number of the record whose second row is refused: the sink, and its own words.
REFUSED = {
    3: ("plain", CHECK.format("plain", "small")),
    6: (
        "plain",
        'null value in column "label" of relation "plain" violates not-null constraint',
    ),
    7: ("delta", "CHECK constraint odd (n != 7 OR half = 'a') violated"),
    8: (
        "delta",
        "Exceeds char/varchar type length limitation: 3, column: label",
    ),
    9: ("delta", "NOT NULL constraint violated for column: code"),
    10: ("latest", 'null value in column "k" of relation "latest" violates not-null constraint'),
    11: ("latest", 'duplicate key value violates unique constraint "latest_n_half_key"'),
}
BY_THE_STAGE = {6, 8, 9, 10}  # what is wrong there the stage puts right
TABLES = (
    "DROP TABLE IF EXISTS plain, latest, numbers, ackledger_commit",
    "CREATE TABLE numbers (n int PRIMARY KEY)",
    "INSERT INTO numbers VALUES (3)",
    """CREATE TABLE plain (k text, n int, half text, label text NOT NULL,
         code text, ackledger_batch bigint, CONSTRAINT small CHECK (n <> 3 OR half = 'a'))""",
    """CREATE TABLE latest (k text PRIMARY KEY, n int, half text, label text, code text,
         ackledger_batch bigint, UNIQUE (n, half))""",
    "INSERT INTO latest (k, n, half) VALUES ('another', 11, 'b')",
)
FIXED = (
    "ALTER TABLE plain DROP CONSTRAINT small",
    "ALTER TABLE plain ALTER label DROP NOT NULL",
    "DELETE FROM latest WHERE k = 'another'",
)


@pytest.fixture
def target(server_home):
    """An empty database, and how to run statements there."""
    url = embedded.ensure_database(embedded.start(server_home), "refusing")
    engine = create_engine(url, poolclass=NullPool)

    def run(*statements):
        with engine.begin() as connection:
            for statement in statements:
                cursor = connection.exec_driver_sql(statement)
            return [tuple(row) for row in cursor] if cursor.returns_rows else []

    run(*TABLES)
    return url, run


def delta_table(path):
    """A Delta table whose rows have rules."""
    kinds = {"k": "string", "n": "integer", "half": "string", "label": "string", "code": "string"}
    fields = [
        {"name": name, "type": kind, "nullable": name != "code", "metadata": {}}
        for name, kind in kinds.items()
    ]
    fields[3]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
    table = DeltaTable.create(
        path, Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    )
    table.alter.add_constraint({"odd": "n <> 7 OR half = 'a'"})
    return table


def pipeline(url, guarantee, *, fixed=False) -> Pipeline:
    """n -> (n, a), (n, b) -> four sinks; of some records the second row breaks a rule."""
    flow = Pipeline("refusing", guarantee=guarantee, max_replays=3)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))
    no_label, long, no_code, no_key = (-1, -1, -1, -1) if fixed else (6, 8, 9, 10)

    @flow.stage(reads="numbers", anchors="by_hand")
    def halves(numbers):
        both = numbers.withColumn("half", F.explode(F.array(F.lit("a"), F.lit("b"))))
        second = F.col("half") == "b"
        return both.select(
            F.when(~second | (F.col("n") != no_key), F.concat("half", F.col("n"))).alias("k"),
            "n",
            "half",
            F.when(second & (F.col("n") == long), "long")
            .when(~second | (F.col("n") != no_label), "ok")
            .alias("label"),
            F.when(~second | (F.col("n") != no_code), "c").alias("code"),
            "_anchor",
        )

    dedup = "none" if guarantee == "exactly_once" else "exact"
    flow.sink("folder", ParquetSink("folder", dedup=dedup), reads="halves")
    flow.sink("delta", DeltaSink("delta", dedup=dedup), reads="halves")
    flow.sink("plain", PostgresSink(url, "plain", dedup=dedup), reads="halves")
    upsert = PostgresSink(url, "latest", mode=Upsert("k"), dedup=dedup)
    flow.sink("latest", upsert, reads="halves")
    return flow


def shown(folder, run):
    """What each sink shows, as Counters of n and half."""
    tables = {
        "folder": ds.dataset(folder / "folder", partitioning="hive").to_table().to_pylist(),
        "delta": DeltaTable(folder / "delta").to_pyarrow_table().to_pylist(),
    }
    counted = {name: Counter((r["n"], r["half"]) for r in some) for name, some in tables.items()}
    for name in ("plain", "latest"):
        some = run(f"SELECT n, half FROM {name} WHERE ackledger_batch IS NOT NULL")
        counted[name] = Counter(some)
    return counted


def expected(without=()):
    return Counter((n, half) for n in range(COUNT) if n not in without for half in "ab")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_refused_rows_fail_their_records(runner, tmp_path, target, guarantee):
    """Each record with a row that some sink refuses is failed there in the sink's own words, and no
    row of it is published; all others are. Once the tables are fixed a replay brings just the rest,
    once.

    At least once a sink leaves out what it refuses itself, and the other sinks publish it."""
    url, run = target
    # A row that the stage changes is another row to dedup="exact": there just the tables are fixed.
    absent = set() if guarantee == "exactly_once" else BY_THE_STAGE
    refused = {n: of for n, of in REFUSED.items() if n not in absent}
    numbers = "\n".join(str(n) for n in range(COUNT) if n not in absent)
    (tmp_path / "in.csv").write_text(f"n\n{numbers}\n")
    table = delta_table(tmp_path / "delta")
    work = runner(pipeline(url, guarantee))
    batch = work.open()
    assert work.settled(batch).failed == len(refused)
    rows = work.ledger.rows(
        "SELECT r.root_id - s.first_root AS place, r.step, r.reason FROM failed_root r "
        "JOIN batch_source s USING (batch_id) ORDER BY 1",
    )
    numbered = [n for n in range(COUNT) if n not in absent]
    assert {numbered[row.place]: (row.step, row.reason) for row in rows} == refused
    for name, some in shown(tmp_path, run).items():
        own = {n for n, (sink, _) in refused.items() if sink == name}
        left_out = set(refused) if guarantee == "exactly_once" else own
        assert some == expected(left_out | absent), name
    run(*FIXED)
    table = DeltaTable(tmp_path / "delta")
    table.alter.drop_constraint("odd")
    fixed = runner(pipeline(url, guarantee, fixed=True))
    assert fixed.settled(fixed.open_replay(batch.batch_id)).failed == 0
    for name, some in shown(tmp_path, run).items():
        assert some == expected(absent), name


WORD = "w +%2B/ä"


def in_folders():
    """n -> (n, word) -> two sinks with a folder for each word, and a total without a word."""
    flow = Pipeline("folders", max_replays=3)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def placed(numbers):
        word = F.when(F.col("n") < 2, WORD).when(F.col("n") > 2, "")
        return numbers.withColumn("word", word)

    @flow.combine(reads="placed")
    def total(placed):
        return placed.select(F.max("n").alias("n"), F.lit("").alias("word"))

    for name, reads in (("folder", "placed"), ("totals", "total")):
        flow.sink(name, ParquetSink(name, partition_by="word"), reads=reads)
    flow.sink("delta", DeltaSink("delta", partition_by="word"), reads="placed")
    return flow


def test_an_empty_text_makes_no_folder(runner, tmp_path, sink_rows):
    """Readers would see null, so its record fails by name, and a total with one is not published;
    null itself and words have folders, in which a table's own rules hold as well."""
    (tmp_path / "in.csv").write_text("n\n0\n1\n2\n3\n4\n")
    columns = pa.schema([("n", pa.int32()), ("word", pa.string())])
    table = DeltaTable.create(tmp_path / "delta", columns, partition_by=["word"])
    table.alter.add_constraint({"small": "1 / (n - 1) <= 1"})
    work = runner(in_folders())
    batch = work.open()
    assert work.settled(batch).failed == 3
    rows = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert sorted((row["n"], row["word"]) for row in rows) == [(0, WORD), (2, None)]
    assert sink_rows("folder", "n", "word") == [(0, WORD), (2, None)]
    failed = work.ledger.rows("SELECT step, reason FROM failed_root ORDER BY root_id")
    empty = ("folder", "column 'word' of partition_by")
    assert [(row.step, row.reason.partition(":")[0]) for row in failed] == [
        ("delta", "CHECK constraint small (1 / (n - 1) <= 1) violated"),
        *[empty, empty],
    ]
    work.ledger.quarantine(batch_id=batch.batch_id)  # so that the total is due
    with pytest.raises(StageError, match=r"sink 'totals' refuses rows, .* column 'word' of part"):
        settle_and_follow(work.job, batch.batch_id)


def test_results_are_compared_with_their_tables(runner, warehouse, warehouse_url, tmp_path):
    """The rows of a state make room for themselves in a table with a unique key; where a table's
    rule refuses one, its run fails before anything is decided, and what was published stays."""
    warehouse.do(
        "CREATE TABLE best (name text UNIQUE, n int CHECK (n < 3), ackledger_batch bigint)"
    )
    columns = pa.schema([pa.field("name", pa.string(), nullable=False), ("n", pa.int32())])
    table = DeltaTable.create(tmp_path / "delta", columns)
    table.alter.add_constraint({"small": "n < 2"})
    flow = Pipeline("results")
    flow.source("numbers", FileSource("{{ interval_start | ds }}.csv", schema="n INT"))

    @flow.stateful_stage(reads="numbers")
    def best(state, batch):
        return batch.select(F.lit("best").alias("name"), F.max("n").alias("n"))

    flow.sink("table", PostgresSink(warehouse_url, "best"), reads="best")
    flow.sink("delta", DeltaSink("delta"), reads="best")
    flow.sink("numbers_out", ParquetSink("numbers"), reads="numbers")
    work = runner(flow)
    for n in (0, 1):
        (tmp_path / f"2013-01-0{1 + n}.csv").write_text(f"n\n{n}\n")
        work.settled(work.open_day(n))
    (tmp_path / "2013-01-03.csv").write_text("n\n2\n")
    with pytest.raises(StageError, match=r"sink 'delta' refuses rows, .*CHECK constraint small"):
        work.settled(work.open_day(2))
    assert warehouse.rows("SELECT name, n FROM best") == [("best", 1)]
    DeltaTable(tmp_path / "delta").alter.drop_constraint("small")  # so that this state is due, too
    (tmp_path / "2013-01-04.csv").write_text("n\n3\n")
    with pytest.raises(StageError, match=r"sink 'table' refuses rows, .*best_n_check"):
        work.settled(work.open_day(3))
    assert warehouse.rows("SELECT name, n FROM best") == [("best", 2)]
    decided = work.ledger.rows("SELECT batch_id FROM publication WHERE sink IN ('table', 'delta')")
    assert len(decided) == 6


def placed_by(texts):
    """n -> (n, word) with these texts of SQL -> two sinks with a folder for each word."""
    flow = Pipeline("odd_folders", max_replays=3)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def placed(numbers):
        words = F.array(*map(F.expr, texts))
        return numbers.withColumn("word", F.element_at(words, F.col("n") + 1))

    flow.sink("folder", ParquetSink("folder", partition_by="word"), reads="placed")
    flow.sink("delta", DeltaSink("delta", partition_by="word"), reads="placed")
    return flow


def test_a_text_that_makes_no_folder_fails_its_record(runner, tmp_path, sink_rows):
    """One of too many bytes, with NUL, of other bytes than UTF-8, or that means null beside null:
    the records fail with the reason, and all others are published, to the last byte that fits."""
    good = ["repeat('x', 250)", "repeat('#', 83)", "repeat('ä', 125)", "'a\u00adb\u2028c'", "null"]
    bad = {
        "repeat('x', 251)": "would have a name of more than 255 bytes",
        "repeat('x', 5000)": "would have a name of more than 255 bytes",
        "repeat('#', 84)": "would have a name of more than 255 bytes",
        "concat(repeat('ä', 124), 'x:')": "would have a name of more than 255 bytes",
        "concat('a', char(0))": "found one with NUL",
        "cast(unhex('61ff') as string)": "found bytes that are not UTF-8",
        "'__HIVE_DEFAULT_PARTITION__'": "Hive's default partition",
    }
    texts = [*good, *bad]
    lines = [str(n) for n in range(len(texts))]
    (tmp_path / "in.csv").write_text("\n".join(["n", *lines, ""]))
    work = runner(placed_by(texts))
    batch = work.open()
    settlement = work.settled(batch)
    assert (settlement.roots, settlement.failed) == (len(texts), len(bad))
    words = ["x" * 250, "#" * 83, "ä" * 125, "a\u00adb\u2028c", None]
    expected = list(enumerate(words))
    rows = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert sorted((row["n"], row["word"]) for row in rows) == expected
    assert sink_rows("folder", "n", "word") == expected
    failed = work.ledger.rows("SELECT step, reason FROM failed_root ORDER BY root_id")
    assert {row.step for row in failed} <= {"folder", "delta"}
    for row, reason in zip(failed, bad.values(), strict=True):
        assert row.reason.startswith("column 'word' of partition_by: expected null or a word, ")
        assert reason in row.reason


def test_what_changes_after_the_staging(runner, tmp_path, target):
    """A constraint that comes between staging and publishing stops that sink with one clear line,
    and nothing is published; once it is gone the same publish goes through, once. Without acks a
    refused row stops its sink before anything is decided."""
    url, run = target
    (tmp_path / "in.csv").write_text("n\n1\n2\n")
    table = delta_table(tmp_path / "delta")
    work = runner(pipeline(url, "exactly_once"))
    batch = work.open()
    work.steps(batch)
    assert work.ledger.settle(batch.batch_id).failed == 0
    table.alter.add_constraint({"later": "n > 1"})
    run("ALTER TABLE plain ADD CONSTRAINT later CHECK (n > 1)")
    with pytest.raises(ConfigurationError, match=r"delta\.constraints\.later = n > 1: .*Drop it"):
        publish_settled(work.job, batch.batch_id)
    DeltaTable(tmp_path / "delta").alter.drop_constraint("later")
    with pytest.raises(StageError, match=r'refused a row: .*"later".*publish it again'):
        publish_settled(work.job, batch.batch_id)
    run("ALTER TABLE plain DROP CONSTRAINT later")
    publish_settled(work.job, batch.batch_id)
    both = Counter((n, half) for n in (1, 2) for half in "ab")
    assert shown(tmp_path, run) == dict.fromkeys(("folder", "delta", "plain", "latest"), both)
    (tmp_path / "in.csv").write_text("n\n3\n")
    untracked = Pipeline("untracked", tracking=False)
    untracked.source("numbers", FileSource("in.csv", schema="n INT"))
    untracked.sink("plain", PostgresSink(url, "numbers"), reads="numbers")
    run("ALTER TABLE numbers ADD ackledger_batch bigint")
    again = runner(untracked)
    batch = again.open()
    again.step(batch, "numbers")
    with pytest.raises(StageError, match=r'with tracking=False no record can fail.*"numbers_pkey"'):
        again.step(batch, "plain")


def test_a_foreign_key_stops_one_sink(runner, tmp_path, target):
    """Sinks are published as they are declared, so a row may refer to one that another sink of the
    batch publishes before. While one refers to nothing its sink waits, with key and row named,
    and the others are not; once what it refers to is there, publishing again goes through.
    """
    url, run = target
    (tmp_path / "in.csv").write_text("k,n\na,1\nb,2\n")
    run(
        "DROP TABLE IF EXISTS a_lines, b_orders, places",
        "CREATE TABLE places (n int PRIMARY KEY)",
        "INSERT INTO places VALUES (1)",
        "CREATE TABLE b_orders (k text PRIMARY KEY, n int, ackledger_batch bigint)",
        "CREATE TABLE a_lines (k text REFERENCES b_orders, n int REFERENCES places,"
        " ackledger_batch bigint)",
    )
    flow = Pipeline("referring")
    flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    for name in ("b_orders", "a_lines"):
        flow.sink(name, PostgresSink(url, name), reads="rows")
    flow.sink("folder", ParquetSink("folder"), reads="rows")
    work = runner(flow)
    batch = work.open()
    with pytest.raises(StageError, match=r'"a_lines_n_fkey": .*\(n\) = \(2\)') as stopped:
        work.settled(batch)
    assert stopped.value.__notes__ == [
        f"Sink 'a_lines' has not published batch {batch.batch_id}. To go on: ackledger publish"
        f" MODULE:PIPELINE --batch {batch.batch_id}. In Airflow: clear the task that failed"
    ]
    lines = "SELECT k, n FROM a_lines ORDER BY k"
    assert (run("SELECT count(*) FROM b_orders"), run(lines)) == ([(2,)], [])
    assert ds.dataset(tmp_path / "folder", partitioning="hive").count_rows() == 2
    run("INSERT INTO places VALUES (2)")
    publish_settled(work.job, batch.batch_id)
    assert run(lines) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_refused_row_of_several_records(runner, tmp_path, target, guarantee):
    """A total that its table refuses fails all of its records, with each other, and the other
    totals are published, also where a replay's sink that refuses it runs twice; once the table
    takes it a replay brings it, and each of the others once.
    """
    url, run = target
    (tmp_path / "in.csv").write_text("k,n\na,1\na,2\nb,3\nc,4\n")
    run(
        "DROP TABLE IF EXISTS sums",
        "CREATE TABLE sums (k text, n bigint CONSTRAINT odd CHECK (n <> 3 OR k <> 'a'),"
        " ackledger_batch bigint)",
    )
    flow = Pipeline("summing", guarantee=guarantee, max_replays=3)
    flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))

    @flow.stage(reads="rows")
    def total(rows):
        return rows.groupBy("k").agg(F.sum("n").alias("n"))

    flow.sink("sums", PostgresSink(url, "sums"), reads="total")
    work = runner(flow)
    batch = work.open()
    assert work.settled(batch).failed == 2
    entries = work.ledger.rows("SELECT step, reason, shared, own_failure FROM failed_root")
    assert {tuple(row) for row in entries} == {("sums", CHECK.format("sums", "odd"), True, False)}
    assert sorted(run("SELECT k, n FROM sums")) == [("b", 3), ("c", 4)]
    again = work.open_replay(batch.batch_id, "again")
    work.steps(again)
    work.step(again, "sums")  # the task was cleared
    assert settle_and_follow(work.job, again.batch_id).failed == 2
    assert sorted(run("SELECT k, n FROM sums")) == [("b", 3), ("c", 4)]
    run("ALTER TABLE sums DROP CONSTRAINT odd")
    assert work.settled(work.open_replay(batch.batch_id)).failed == 0
    assert sorted(run("SELECT k, n FROM sums")) == [("a", 3), ("b", 3), ("c", 4)]


@pytest.mark.parametrize("first", ["published", "not published"])
def test_a_sink_that_refuses_rows_when_it_runs_again(runner, tmp_path, target, first):
    """At least once, a run that refuses rows waits for the settlement, whatever became of the run
    before it: its rows replace those, and the replay brings the rest, once.
    """
    url, run = target
    (tmp_path / "in.csv").write_text("n\n1\n2\n3\n")
    run("DROP TABLE IF EXISTS again", "CREATE TABLE again (n int, ackledger_batch bigint)")
    flow = Pipeline("again", guarantee="at_least_once")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))
    flow.sink("again", PostgresSink(url, "again"), reads="numbers")
    work = runner(flow)
    batch = work.open()
    work.step(batch, "numbers")
    down = first == "not published"
    with dies_at("publishing", raises=OSError("down")) if down else nullcontext():
        work.step(batch, "again")
    run("ALTER TABLE again ADD CONSTRAINT small CHECK (n < 3) NOT VALID")
    work.step(batch, "again")  # its task was cleared
    assert run("SELECT n FROM again ORDER BY n") == ([] if down else [(1,), (2,), (3,)])
    assert settle_and_follow(work.job, batch.batch_id).failed == 1
    assert run("SELECT n FROM again ORDER BY n") == [(1,), (2,)]
    rows = work.ledger.rows("SELECT state FROM sink_publication ORDER BY step_run_id")
    assert [row.state for row in rows] == ["replaced", "published"]
    run("ALTER TABLE again DROP CONSTRAINT small")
    assert work.settled(work.open_replay(batch.batch_id)).failed == 0
    assert run("SELECT n FROM again ORDER BY n") == [(1,), (2,), (3,)]


def constrained(runner, tmp_path, condition):
    """A pipeline whose only sink, a Delta table, has a constraint ``share``."""
    struct = {
        "type": "struct",
        "fields": [{"name": "n", "type": "integer", "nullable": True, "metadata": {}}],
    }
    table = DeltaTable.create(tmp_path / "delta", Schema.from_json(json.dumps(struct)))
    table.alter.add_constraint({"share": condition})
    flow = Pipeline("constrained")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))
    flow.sink("delta", DeltaSink("delta"), reads="numbers")
    return runner(flow)


def test_a_row_for_which_a_constraint_raises(runner, tmp_path):
    """It fails its record as one for which the constraint is false does; the others are
    published.
    """
    work = constrained(runner, tmp_path, "10 / n > 1")
    (tmp_path / "in.csv").write_text("n\n0\n1\n20\n2\n")
    batch = work.open()
    assert work.settled(batch).failed == 2
    query = "SELECT root_id, step, reason FROM failed_root_detail ORDER BY 1"
    rows = work.ledger.rows(query)
    words = "CHECK constraint share (10 / n > 1) violated"
    assert [tuple(row) for row in rows] == [(1, "delta", words), (3, "delta", words)]
    shown = DeltaTable(tmp_path / "delta").to_pyarrow_table().column("n").to_pylist()
    assert sorted(shown) == [1, 2]


def test_a_constraint_that_overflows_for_a_row(runner, tmp_path):
    """Where there is no null instead of an error the sink fails, and the error names both."""
    work = constrained(runner, tmp_path, "n + 1 < 100")
    (tmp_path / "in.csv").write_text("n\n2147483647\n1\n")
    batch = work.open()
    work.step(batch, "numbers")
    with pytest.raises(
        StageError, match=r"sink 'delta': .*constraint share .* raises for a row: .*OVERFLOW"
    ):
        work.step(batch, "delta")


def test_a_rule_that_spark_does_not_know(runner, tmp_path, target):
    """A constraint in words that only another engine has is named before a row is written."""
    url, _ = target
    table = delta_table(tmp_path / "delta")
    table.alter.add_constraint({"foreign": "strpos(k, 'x') = 0"})
    (tmp_path / "in.csv").write_text("n\n1\n")
    flow = runner(pipeline(url, "exactly_once"))
    batch = flow.open()
    flow.step(batch, "numbers")
    flow.step(batch, "halves")
    with pytest.raises(ConfigurationError, match=r"sink 'delta': Spark cannot .*foreign.*strpos"):
        flow.step(batch, "delta")
