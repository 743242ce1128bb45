"""What users get to test their own pipelines: given rows, faults by name, and a result to look
at.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from jobs.flights import pipeline as flights
from ledger import Bloom, FileSource, ParquetSink, Pipeline, testing
from ledger.core.states import BatchStatus
from ledger.errors import DeclarationError, InputError, IntegrityError, NotReadyError
from ledger.types.ddl import columns
from tests.support.reasons import bare, named

ORDERS = [{"id": n, "customer": n % 7, "at": None} for n in range(100)]


def orders(dedup="none", key=(), **options):
    """orders -> listed -> out, partitioned by country."""
    pipeline = Pipeline("orders", **options)
    schema = "id INT, customer INT, at TIMESTAMP"
    files = FileSource("{{ interval_start | ds }}.csv", schema=schema)
    pipeline.source("orders", files, key=key)
    pipeline.reference(
        "customers", FileSource("customers.csv", schema="customer INT, country STRING")
    )

    @pipeline.stage(reads="orders", emits="one")
    def listed(orders, *, customers):
        return orders.join(F.broadcast(customers), "customer", "inner")

    sink = ParquetSink("/somewhere/else", partition_by=("country",), dedup=dedup)
    pipeline.sink("out", sink, reads="listed")
    return pipeline


def customers(numbers):
    return {"customers": [{"customer": n, "country": "PT"} for n in numbers]}


def test_run_and_replay(spark):
    """Given rows go through the real pipeline; what is lost is in the result, and a replay
    completes it.
    """
    result = testing.run_batch(
        orders(), {"orders": ORDERS}, references=customers(range(6)), spark=spark
    )
    lost = [row["id"] for row in ORDERS if row["customer"] == 6]
    assert (result.status, result.roots.total, result.roots.acked) == (
        "settled",
        100,
        100 - len(lost),
    )
    assert {(record.step, bare(record.reason), record.source) for record in result.failed} == {
        ("listed", named(spark, "inner join: no partner for customer"), "orders")
    }
    assert sorted(row["id"] for row in result.rows["out"]) == sorted(
        row["id"] for row in ORDERS if row["customer"] != 6
    )
    still = testing.replay(result, orders())
    assert still.roots.failed == len(lost), "references are those of the batch"
    again = testing.replay(result, orders(), references=customers(range(7)))
    assert (again.roots.total, again.roots.acked) == (len(lost), len(lost))
    assert Counter(row["id"] for row in again.rows["out"]) == Counter(range(100))
    with pytest.raises(NotReadyError):
        testing.replay(again)


def test_lost_rows_are_found(spark):
    """Rows that a stage loses by a fault are all named, and the same seed loses the same ones."""
    fault = testing.lose_rows("listed", fraction=0.2, seed=1)
    results = [
        testing.run_batch(
            orders(),
            {"orders": ORDERS},
            references=customers(range(7)),
            spark=spark,
            faults=[fault],
        )
        for _ in range(2)
    ]
    first, second = ({record.message_id for record in result.failed} for result in results)
    assert first == second
    assert 5 < len(first) < 40
    again = testing.replay(results[0])
    assert Counter(row["id"] for row in again.rows["out"]) == Counter(range(100))


def test_doubled_rows_are_found_where_one_is_due(spark):
    """A stage that declares one row for an input fails the records whose row a fault doubled."""
    fault = testing.duplicate_rows("listed", fraction=0.1, seed=3)
    result = testing.run_batch(
        orders(), {"orders": ORDERS}, references=customers(range(7)), spark=spark, faults=[fault]
    )
    assert 0 < result.roots.failed < 30
    assert {record.reason for record in result.failed} == {"more than one row for an input"}


@pytest.mark.parametrize("acks", ["on_read", "on_emit"])
def test_rows_that_are_read_twice_are_found(spark, acks):
    """At a sink, where each row read is acked, a row that comes twice fails its record; a stage
    acks each input once, however many rows it makes of it, and a row more is lawful.
    """
    pipeline = Pipeline("copies", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema="id INT"))
    pipeline.stage(reads="orders", acks=acks)(as_it_is)
    pipeline.sink("out", ParquetSink("out"), reads="as_it_is")
    data = {"orders": [{"id": n} for n in range(100)]}
    for step in ("as_it_is", "out"):
        fault = testing.duplicate_rows(step, fraction=0.1, seed=3)
        result = testing.run_batch(pipeline, data, spark=spark, faults=[fault])
        if step == "as_it_is":
            assert result.roots.failed == 0
            assert len(result.rows["out"]) > 100
        else:
            assert 0 < result.roots.failed < 30
            assert {(record.step, record.reason) for record in result.failed} == {
                (step, "acked too often")
            }


def as_it_is(rows):
    return rows


@pytest.mark.parametrize("step", ["orders", "listed", "out"])
def test_lost_file(spark, step):
    """A file lost between writing and counting fails the step; nothing of it counts, and the
    retry completes it.
    """
    result = testing.run_batch(
        orders(),
        {"orders": ORDERS},
        references=customers(range(7)),
        spark=spark,
        faults=[testing.lose_file(step)],
    )
    assert (result.crashed, result.status, result.rows["out"]) == (True, BatchStatus.OPEN, [])
    with pytest.raises(IntegrityError, match="wrote 100, found"):
        raise result.error
    again = testing.resume(result)
    assert (again.crashed, again.error, again.roots.acked) == (False, None, 100)
    assert Counter(row["id"] for row in again.rows["out"]) == Counter(range(100))


@pytest.mark.parametrize("point", testing.POINTS)
def test_crash_and_resume(spark, point):
    """A process that dies at any point leaves nothing half done; going on completes the batch
    once.
    """
    result = testing.run_batch(
        orders(),
        {"orders": ORDERS},
        references=customers(range(7)),
        spark=spark,
        faults=[testing.crash_at(point)],
    )
    assert (result.crashed, result.status) == (True, BatchStatus.OPEN)
    assert result.roots.acked == 0
    again = testing.resume(result)
    assert (again.batch_id, again.status, again.roots.acked) == (result.batch_id, "settled", 100)
    assert Counter(row["id"] for row in again.rows["out"]) == Counter(range(100))


def test_time_is_given(spark):
    """The clock is the test's: a backoff is over when the test says so."""
    pipeline = orders(replay_backoff="1h")
    now = testing.START
    fault = [testing.lose_rows("listed", fraction=1.0)]
    data = {"orders": ORDERS[:5]}
    result = testing.run_batch(
        pipeline, data, references=customers(range(7)), spark=spark, faults=fault, now=now
    )
    assert result.roots.failed == 5
    with pytest.raises(NotReadyError, match="not due yet"):
        testing.replay(result, now=now + timedelta(minutes=59))
    assert testing.replay(result, now=now + timedelta(hours=1)).roots.acked == 5


def test_what_took_too_long_expires(spark):
    """A step that failed and is not run again: within message_timeout nothing happens, later the
    sweeper fails what is pending, and a replay completes it.
    """
    pipeline = orders(message_timeout="10s")
    fault = [testing.lose_file("out")]
    customers_ = customers(range(7))
    result = testing.run_batch(
        pipeline, {"orders": ORDERS}, references=customers_, spark=spark, faults=fault
    )
    assert isinstance(result.error, IntegrityError)
    failed_at = datetime.now(UTC)
    early = testing.sweep(result, now=failed_at + timedelta(seconds=5))
    assert (early.status, early.roots.failed) == (BatchStatus.OPEN, 0)
    late = testing.sweep(result, now=failed_at + timedelta(seconds=11))
    assert (late.status, late.roots.failed) == (BatchStatus.SETTLED, 100)
    assert {(record.step, record.reason) for record in late.failed} == {
        ("out", "did not commit in time")
    }
    again = testing.replay(late)
    assert Counter(row["id"] for row in again.rows["out"]) == Counter(range(100))


def test_several_batches_of_one_ledger(spark):
    """A batch that goes on after another shares its ledger: a key over batches is recognized
    there.
    """
    pipeline = orders(Bloom(key=("id",), capacity=1000))
    customers_ = customers(range(7))
    first = testing.run_batch(pipeline, {"orders": ORDERS[:60]}, references=customers_, spark=spark)
    second = testing.run_batch(
        pipeline, {"orders": ORDERS[40:]}, references=customers_, after=first
    )
    assert sorted(row["id"] for row in second.rows["out"]) == list(range(60, 100))
    alone = testing.run_batch(pipeline, {"orders": ORDERS[40:]}, references=customers_, spark=spark)
    assert len(alone.rows["out"]) == 60


def test_example_pipeline(spark):
    """The flights pipeline of the examples, with a frame as its source and references without its
    keys; without rows a reference is an error, as in a run.
    """
    frame = spark.createDataFrame(
        [(2013, 1, 1, "N1")], "year INT, month INT, day INT, tailnum STRING"
    )
    missing = [
        F.lit(None).alias(name)
        for name in (
            "dep_time",
            "sched_dep_time",
            "dep_delay",
            "arr_time",
            "sched_arr_time",
            "arr_delay",
            "carrier",
            "flight",
            "origin",
            "dest",
            "air_time",
            "distance",
            "hour",
            "minute",
            "time_hour",
        )
    ]
    sources = {"departures": frame.select("*", *missing)}
    planes = flights.graph.references["planes"].source
    weather = flights.graph.references["weather"].source
    others = {
        "planes": [dict.fromkeys(columns(planes.schema)) | {"tailnum": "N2"}],
        "weather": [dict.fromkeys(columns(weather.schema)) | {"origin": "JFK"}],
    }
    result = testing.run_batch(flights, sources, references=others, spark=spark)
    assert [(record.step, bare(record.reason)) for record in result.failed] == [
        ("with_plane", "inner join: no partner for tailnum")
    ]
    with pytest.raises(InputError, match=r"reference 'planes' .* has no rows"):
        testing.run_batch(flights, sources, spark=spark)


def test_faults_where_nothing_is_tracked_are_refused(spark):
    """Behind the settlement no record can be lost or come twice: a fault there would prove
    nothing.
    """
    pipeline = orders()
    pipeline.combine(reads="listed")(as_it_is)
    pipeline.sink("totals", ParquetSink("totals"), reads="as_it_is")
    for fault in (testing.duplicate_rows("totals", fraction=0.5), testing.lose_file("as_it_is")):
        with pytest.raises(DeclarationError, match="follows the settlement"):
            testing.run_batch(pipeline, {"orders": ORDERS[:5]}, spark=spark, faults=[fault])


def test_names_that_are_none(spark):
    """An unknown source, reference, stage or point is refused with what was meant."""
    with pytest.raises(DeclarationError, match="no source 'order'; did you mean 'orders'"):
        testing.run_batch(orders(), {"order": ORDERS}, spark=spark)
    with pytest.raises(DeclarationError, match="no reference 'customer'"):
        testing.run_batch(orders(), {}, references={"customer": []}, spark=spark)
    with pytest.raises(DeclarationError, match="'out' is no stage of frames"):
        testing.run_batch(orders(), {}, spark=spark, faults=[testing.lose_rows("out", fraction=1)])
    with pytest.raises(DeclarationError, match="no step 'lsited'; did you mean 'listed'"):
        testing.run_batch(orders(), {}, spark=spark, faults=[testing.lose_file("lsited")])
    with pytest.raises(DeclarationError, match="did you mean 'deltas_posted'"):
        testing.crash_at("delta_posted")


def test_a_session_that_is_given(spark):
    """It gets the option without which Spark 4.2.0 may hang, as a session of ours does."""
    own = spark.newSession()
    with pytest.raises(DeclarationError, match="no source 'order'"):
        testing.run_batch(orders(), {"order": ORDERS}, spark=own)
    expected = "false" if own.version.startswith("4.2.0") else None
    name = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
    assert own.conf.get(name, None) == expected


def test_rows_are_of_the_declared_types(spark):
    """A row that is no row of the source is refused where it was given; a timestamp without a zone
    is UTC; a null goes to the source, which may refuse it."""
    with pytest.raises(DeclarationError, match=r"row 2 of 'orders'.* 'costumer'.*'customer'\?"):
        testing.run_batch(orders(), {"orders": [{"id": 1}, {"costumer": 2}]}, spark=spark)
    with pytest.raises(DeclarationError, match=r"row 1 of 'orders': id: expected int, found 1\.5"):
        testing.run_batch(orders(), {"orders": [{"id": 1.5}]}, spark=spark)
    pipeline = Pipeline("strict")
    pipeline.source("orders", FileSource("orders.csv", schema="id INT NOT NULL, at TIMESTAMP"))
    pipeline.sink("out", ParquetSink("out"), reads="orders")
    noon = datetime(2024, 5, 1, 12)
    result = testing.run_batch(
        pipeline, {"orders": [{"id": None}, {"id": 1, "at": noon}]}, spark=spark
    )
    assert [failure.step for failure in result.failed] == ["orders"]
    assert result.rows["out"][0]["id"] == 1
    folder = result.pipeline.steps()[0].source.place.rpartition("/")[0]
    row = spark.read.parquet(folder).where("id = 1").select(F.unix_timestamp("at"))
    assert row.first()[0] == noon.replace(tzinfo=UTC).timestamp()


def test_the_environment_has_no_effect(spark, tmp_path, monkeypatch):
    """A test leaves the real output alone and gets its rows, whatever variables are set."""
    for name in ("OUTPUT", "DATA", "HOME", "STORAGE"):
        monkeypatch.setenv(f"ACKLEDGER_{name}", str(tmp_path / name.lower()))
    monkeypatch.setenv("ACKLEDGER_GUARANTEE", "at_least_once")
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", "postgresql+psycopg2://nobody@nowhere/none")
    for _ in range(2):
        batch = testing.run_batch(
            orders(), {"orders": ORDERS[:2]}, references=customers(range(1)), spark=spark
        )
        assert [row["id"] for row in batch.rows["out"]] == [0]
        assert batch.lab.settings.guarantee == "exactly_once"
    assert list(tmp_path.iterdir()) == []


def test_failures_have_key_and_content(spark):
    """A failed record is told by its key and its fields, also if only the sweeper settled it."""
    for faults in ([], [testing.crash_at("steps_committed")]):
        batch = testing.run_batch(
            orders(key="id"),
            {"orders": ORDERS[:2]},
            references=customers(range(1)),
            spark=spark,
            faults=faults,
        )
        if faults:
            batch = testing.sweep(batch)
        (failed,) = batch.failed
        assert (failed.key, failed.content) == ({"id": 1}, {"id": 1, "customer": 1, "at": None})


def test_functions_get_the_parameters_of_the_run(spark):
    """A stage and a combine that ask for ``params`` get those of the run, also in its replay."""
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.csv", schema="id INT"))

    @pipeline.stage(reads="orders")
    def listed(orders, *, params):
        return orders.withColumn("month", F.lit(params["month"]))

    @pipeline.combine(reads="listed")
    def totals(rows, *, params):
        return rows.groupBy("month").agg(F.count("*").alias("n"), F.lit(params["month"]).alias("m"))

    for name in ("listed", "totals"):
        pipeline.sink(f"{name}_out", ParquetSink(name), reads=name)
    batch = testing.run_batch(
        pipeline,
        {"orders": [{"id": n} for n in range(20)]},
        spark=spark,
        params={"month": "2026-01"},
        faults=[testing.lose_rows("listed", fraction=0.5, seed=1)],
    )
    assert batch.roots.failed > 0
    again = testing.replay(batch)
    assert again.rows["totals_out"] == [{"month": "2026-01", "n": 20, "m": "2026-01"}]
    assert [row["month"] for row in again.rows["listed_out"]] == ["2026-01"] * 20
