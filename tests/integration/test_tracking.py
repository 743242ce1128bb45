"""Tracking on real Spark: what a stage loses is named, what storage loses is noticed."""

import importlib
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.step_runs import Attempt
from ledger.core.probes import listening
from ledger.core.states import BatchStatus
from ledger.deltas.kernel import Deltas, DeltaTotals
from ledger.deltas.portions import Records
from ledger.errors import FencedError, IntegrityError, StageError, UnavailableError
from ledger.spark import tracking
from ledger.spark.folding import runners
from ledger.spark.folding.ahead import posted
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.origins import snapshot
from ledger.spark.progress import watching
from ledger.spark.steps import sink
from ledger.storage.manifest import take_manifest
from ledger.store.connection import Database
from tests.support.dying import Died, dies_at
from tests.support.publishing import publish_settled

COUNT = 20


def numbers(tmp_path: Path, count: int = COUNT) -> None:
    """One file of numbers 0..count-1."""
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(count)))


def chain(
    *functions, acks="on_emit", anchors="carried", filters="lost", dedup="none", partition_by=(),
    **options,
):  # fmt: skip
    """source -> each function as a stage, whose filters lose -> sink."""
    pipeline = Pipeline("chain", guarantee="at_least_once", **options)
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))
    reads = "numbers"
    for function in functions:
        pipeline.stage(reads=reads, acks=acks, anchors=anchors, filters=filters)(function)
        reads = function.__name__
    pipeline.sink("out", ParquetSink("out", dedup=dedup, partition_by=partition_by), reads=reads)
    return pipeline


def keep(frame):
    """Hand everything on."""
    return frame


def odd(frame):
    """Lose the even numbers."""
    return frame.where("n % 2 = 1")


def thrice(frame):
    """Three rows for each."""
    return frame.withColumn("copy", F.explode(F.array(*map(F.lit, (1, 2, 3)))))


def picky(frame):
    """Fail the multiples of 5."""
    return frame.withColumn("_failed", F.when(F.col("n") % 5 == 0, "a multiple of 5"))


def spark_hash(*values):
    """Spark's xxhash64 of bigints and strings, by another library."""
    seed = 42
    for value in values:
        data = struct.pack("<q", value) if isinstance(value, int) else value.encode()
        seed = xxhash.xxh64_intdigest(data, seed=seed)
    return seed - (1 << 64) if seed >> 63 else seed


def test_filter_loses_by_name(runner, tmp_path, sink_rows):
    """A filter's victims are failed roots of that stage; the others arrive, user columns only."""
    numbers(tmp_path)
    run = runner(chain(keep, odd))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (COUNT, COUNT // 2)
    rows = run.ledger.rows("SELECT DISTINCT step, cause FROM failed_root")
    assert rows == [("odd", "lost")]
    assert sink_rows("out") == [(n,) for n in sorted(range(1, COUNT, 2), key=lambda n: repr((n,)))]


def test_rows_that_a_stage_does_not_get_are_no_drops(runner, tmp_path):
    """A row that was not read is lost, although the stage drops what its only filter leaves out."""
    numbers(tmp_path)
    run = runner(
        chain(odd, filters="dropped"),
        on_read=lambda step, rows: rows.where("n <> 3") if step == "odd" else rows,
    )
    assert run.settled(run.open()).failed == 1
    row = run.ledger.row("SELECT root_id, step, cause FROM failed_root")
    assert tuple(row) == (4, "odd", "lost")
    drops = run.ledger.rows("SELECT operation, records FROM step_run_drop")
    assert drops == [("filter", COUNT // 2)]


def test_on_read_acks_what_it_swallows(runner, tmp_path, folded_by):
    """A stage with acks="on_read" may drop rows: they are acked once it has committed."""
    numbers(tmp_path)
    run = runner(chain(odd, acks="on_read"))
    assert run.settled(run.open()).failed == 0


def test_what_was_swallowed_is_counted_once(runner, tmp_path, folded_by):
    """Inputs that a stage read and did not emit are counted, also where rows of one input lie in
    several files.
    """
    numbers(tmp_path)

    def scattered(frame):
        return thrice(odd(frame)).repartition(4, "copy")

    run = runner(chain(scattered, acks="on_read"))
    assert run.settled(run.open()).failed == 0
    rows = run.ledger.rows("SELECT reason, records FROM step_run_drop")
    assert [tuple(progress) for progress in rows] == [("no output", COUNT // 2)]


def test_many_children_ack_their_parent_once(runner, tmp_path, sink_rows, folded_by):
    """A parent with several children, also in several partitions, is acked once."""
    numbers(tmp_path)

    def scattered(frame):
        return thrice(frame).repartition(4, "copy")

    run = runner(chain(scattered, thrice2 := _renamed(thrice, "again"), keep))
    assert thrice2.__name__ == "again"
    assert run.settled(run.open()).failed == 0
    assert len(sink_rows("out", "n")) == COUNT * 9


def _renamed(function, name):
    def other(frame):
        return function(frame).drop("copy") if name == "again" else function(frame)

    other.__name__ = name
    return other


def test_one_lost_child_among_many(runner, tmp_path, folded_by):
    """Of three children of one record, losing one behind the stage that made them fails that
    record alone.
    """
    numbers(tmp_path)

    def loses_one(frame):
        return frame.where("NOT (n = 7 AND copy = 2)")

    run = runner(chain(thrice, loses_one))
    batch = run.open()
    assert run.settled(batch).failed == 1
    columns = "root_id, step, cause, producers, emitted_edges, acked_edges"
    row = run.ledger.row(f"SELECT {columns} FROM failed_root")
    assert tuple(row) == (8, "loses_one", "lost", "thrice", 3, 2)


def test_failed_rows_go_no_further(runner, tmp_path, sink_rows, folded_by):
    """A non-null _failed fails the record with that reason, and the row goes no further."""
    numbers(tmp_path)
    run = runner(chain(picky, keep))
    assert run.settled(run.open()).failed == 4
    assert run.ledger.rows("SELECT DISTINCT step, cause, reason FROM failed_root") == [
        ("picky", "rejected", "a multiple of 5")
    ]
    assert len(sink_rows("out", "n")) == COUNT - 4
    progress = run.ledger.row(
        "SELECT output_rows, failed_rows FROM step_progress WHERE step = 'picky'",
    )
    assert progress == (COUNT - 4, 4)


def test_deltas_are_those_of_another_implementation(runner, tmp_path, folded_by):
    """The ledger's edges are xxhash64('run:consumer', root, position), computed here by another
    library.
    """
    numbers(tmp_path, 3)
    run = runner(chain(keep))
    batch = run.open()
    for name in ("numbers", "keep", "out"):
        run.step(batch, name)
    rows = run.ledger.rows("SELECT * FROM ledger_delta ORDER BY step_run_id, root_id")
    runs = sorted({row.step_run_id for row in rows})
    for row in rows:
        position = row.root_id - 1
        emitted = {
            runs[0]: spark_hash(f"{runs[0]}:keep", row.root_id, position),
            runs[1]: spark_hash(f"{runs[1]}:out", row.root_id, position),
            runs[2]: 0,
        }[row.step_run_id]
        acked = 0 if row.step_run_id == runs[0] else {
            runs[1]: spark_hash(f"{runs[0]}:keep", row.root_id, position),
            runs[2]: spark_hash(f"{runs[1]}:out", row.root_id, position),
        }[row.step_run_id]  # fmt: skip
        assert (row.delta, row.acked) == (emitted ^ acked, acked)
    assert [row.step_run_id for row in rows] == [number for number in runs for _ in range(3)]


def cached(frame):
    """The input cached, and used twice."""
    frame.cache()
    assert frame.count() == COUNT
    return frame


def cached_lazily(frame):
    """The input cached by the very job that writes."""
    return frame.cache()


def collected(frame):
    """Rows that went through the driver: they have nothing of the input's plan."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def beside_itself(frame):
    """The input joined with itself."""
    return frame.join(frame.select(F.col("n").alias("m")), F.col("n") == F.col("m")).drop("m")


def doubled_and_lost(frame):
    """As many rows as inputs, but one of them twice and another never."""
    return frame.where("n <> 3").unionByName(frame.where("n = 4"))


@pytest.mark.parametrize(
    ("function", "lost", "delivered"),
    [
        (cached, 0, COUNT),
        (cached_lazily, 0, COUNT),
        (collected, 0, COUNT),
        (beside_itself, 0, COUNT),
        (doubled_and_lost, 1, COUNT),
    ],
)
def test_one_row_for_each_input_is_proved(runner, tmp_path, sink_rows, function, lost, delivered):
    """However a stage comes to as many rows as it has inputs, each input is judged by its own
    rows.
    """
    numbers(tmp_path)
    run = runner(chain(function, keep, anchors="by_hand"))
    assert run.settled(run.open()).failed == lost
    assert len(sink_rows("out", "n")) == delivered
    if lost:
        row = run.ledger.row("SELECT step, root_id FROM failed_root")
        assert tuple(row) == ("doubled_and_lost", 4)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda frame: 1, "returned int, expected a DataFrame"),
        (lambda frame: frame.withColumn("_Ackledger_x", F.lit(1)), "'_Ackledger_x', a name of the"),
        (lambda frame: frame.withColumn("_Failed", F.lit("x")), "'_Failed', .*: write '_failed'"),
        (lambda frame: frame.withColumn("_failed", F.lit(1)), "must be a string"),
        (lambda frame: frame.withColumn("_anchor", F.lit(1)), "a column '_anchor': rename it"),
        (lambda frame: frame.select("n", "*"), "column 'n' twice"),
    ],
)  # fmt: skip
def test_broken_contract_is_named(runner, tmp_path, function, message):
    """A stage that breaks its contract fails with its name, what is wrong and how to fix it."""
    numbers(tmp_path)
    function.__name__ = "broken"
    run = runner(chain(function))
    batch = run.open()
    run.step(batch, "numbers")
    with pytest.raises(StageError, match="'broken'.*" + message):
        run.step(batch, "broken")
    assert run.ledger.row("SELECT count(*) FROM step_run WHERE state = 'failed'")[0] == 1


@pytest.mark.parametrize("step", ["keep", "out"])
def test_file_lost_before_its_manifest(runner, tmp_path, step):
    """A file that is lost before the manifest was taken fails the run by the write witness."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    for before in ("numbers", "keep")[: 1 if step == "keep" else 2]:
        run.step(batch, before)

    def lose(place, folder):
        if place == "files written":
            next(Path(folder).rglob("*.parquet")).unlink()

    written = pytest.raises(IntegrityError, match=f"rows of {step} .*wrote {COUNT}, found 0")
    with listening(lose), written:
        run.step(batch, step)
    run.step(batch, step)
    if step == "keep":
        run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 0


def cut(table):
    """Without its first record."""
    return table.slice(1)


def forgiving(table):
    """Each record as if it had been parsed."""
    place = table.schema.get_field_index("_ackledger_error")
    return table.set_column(place, "_ackledger_error", pa.nulls(len(table), pa.string()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, f"records of numbers in run 1: wrote {COUNT + 1}, found {COUNT}"),
        (forgiving, "failed records of numbers in run 1: wrote 1, found 0"),
    ],
)
def test_records_changed_after_their_manifest(
    runner, tmp_path, monkeypatch, damage, message, folded_by
):
    """What is read back of a source is compared with what was written: how many records, and how
    many did not parse.
    """
    numbers(tmp_path)
    with (tmp_path / "in.csv").open("a") as file:
        file.write("x\n")
    run = runner(chain(keep))
    batch = run.open()
    take = snapshot.take_manifest

    def take_and_damage(folder, names):
        manifest = take(folder, names)
        for file in manifest.files:
            pq.write_table(damage(pq.read_table(file.path)), file.path)
        return manifest

    monkeypatch.setattr(snapshot, "take_manifest", take_and_damage)
    with pytest.raises(IntegrityError, match=message):
        run.step(batch, "numbers")
    monkeypatch.setattr(snapshot, "take_manifest", take)
    run.steps(batch)
    assert run.ledger.settle(batch.batch_id).failed == 1


def test_half_of_the_rows_stored_twice(runner, tmp_path, monkeypatch, folded_by):
    """Rows that are lost after they were written are missed, also where as many others come twice,
    and where each input has two rows, which cancel in the XOR of what is written.
    """
    numbers(tmp_path)

    def twice(frame):
        return frame.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))

    run = runner(chain(twice))
    batch = run.open()
    run.step(batch, "numbers")

    def take_and_damage(folder):
        manifest = take_manifest(folder)
        (file,) = manifest.files
        half = pq.read_table(file.path).slice(0, COUNT)
        pq.write_table(pa.concat_tables([half, half]), file.path)
        return manifest

    monkeypatch.setattr(tracking, "take_manifest", take_and_damage)
    with pytest.raises(IntegrityError, match=r"rows of twice in run 2: wrote 40, XOR 0, sum "):
        run.step(batch, "twice")


@pytest.mark.parametrize("damage", ["lose", "change"])
def test_file_lost_after_its_manifest(runner, tmp_path, damage):
    """A committed file that is missing or changed fails its consumer, naming it; re-running the
    producer fixes it.
    """
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    path = Path(
        run.ledger.row(
            "SELECT path FROM step_run_file f JOIN step_run USING (step_run_id) WHERE step ="
            " 'keep'",
        ).path
    )
    path.unlink() if damage == "lose" else path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(IntegrityError, match=f"{path.name}: expected .* bytes"):
        run.step(batch, "out")
    assert (
        run.ledger.row(
            "SELECT count(*) FROM step_run WHERE step = 'out' AND state = 'committed'",
        )[0]
        == 0
    )
    run.step(batch, "keep")
    run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 0


class LosesItsAnswer(Records):
    """Records whose first task is lost once it has folded all of them."""

    def fold_file(self, file):
        from pyspark import TaskContext

        yield from super().fold_file(file)
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("executor lost")


def test_a_task_that_runs_again_counts_once(runner, tmp_path, monkeypatch):
    """What its first try wrote is no part of the run."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    monkeypatch.setattr(tracking, "Records", LosesItsAnswer)
    runner(chain(keep), few_rows=-1, driver_bytes=-1).step(batch, "numbers")
    run.step(batch, "keep")
    run.step(batch, "out")
    assert run.ledger.row("SELECT count(*) FROM ledger_delta WHERE step_run_id = 1")[0] == COUNT
    assert run.ledger.settle(batch.batch_id).failed == 0


def test_database_gone_while_posting(runner, tmp_path):
    """When the database does not answer who posts, the error is one clear, typed line."""
    run = runner(chain(keep))
    batch = run.open()
    opened = run.ledger.open_run(batch.batch_id, "numbers", Attempt())
    url = "postgresql://nobody:secret@127.0.0.1:9/x"
    deltas = Deltas(*np.ones((5, 10), np.int64))
    outcome = FoldOutcome(opened, posted=DeltaTotals.of(deltas), pending=[deltas])
    with pytest.raises(UnavailableError, match=r"did not answer.* Check that the") as caught:
        posted(replace(run.job, database=Database(url)), outcome, 0)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_task_cleared_before_settlement(runner, tmp_path, sink_rows):
    """Running each step again, with what is behind it, before settlement counts nothing twice."""
    numbers(tmp_path)
    run = runner(chain(keep, odd))
    batch = run.open()
    names = [step.name for step in run.job.pipeline.steps()]
    run.steps(batch)
    for first in range(len(names)):
        for name in names[first:]:
            run.step(batch, name)
    settlement = run.ledger.settle(batch.batch_id)
    assert (settlement.roots, settlement.failed) == (COUNT, COUNT // 2)
    assert len(sink_rows("out", "n")) == COUNT // 2
    assert not list((tmp_path / "out" / "_staging").iterdir())


def test_every_task_cleared_after_settlement(runner, tmp_path, sink_rows):
    """Running any step of a settled batch again changes nothing and succeeds."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.settled(batch)
    before = run.ledger.rows("SELECT * FROM step_run ORDER BY 1")
    for step in run.job.pipeline.steps():
        assert run.step(run.open(), step.name).record is None
    assert run.ledger.rows("SELECT * FROM step_run ORDER BY 1") == before
    assert len(sink_rows("out", "n")) == COUNT


def test_zombie_cannot_publish_its_folder(runner, tmp_path, monkeypatch, sink_rows):
    """A sink's driver that was fenced while it wrote cannot publish its folder."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    write = sink.stage_rows

    def write_slowly(*arguments):
        written = write(*arguments)
        monkeypatch.setattr(sink, "stage_rows", write)
        run.step(batch, "out")  # meanwhile Airflow's next try runs the whole step
        return written

    monkeypatch.setattr(sink, "stage_rows", write_slowly)
    with pytest.raises(FencedError, match="newer attempt"):
        run.step(batch, "out")
    assert len(sink_rows("out", "n")) == COUNT
    assert run.ledger.settle(batch.batch_id).failed == 0


def test_a_run_whose_input_was_run_again_is_fenced(runner, tmp_path, sink_rows):
    """It says so in the ledger at once, and leaves no run behind that seems to live."""
    numbers(tmp_path)

    def slow(frame):
        if not again:
            again.append(run.step(batch, "numbers"))
        return keep(frame)

    again = []
    run = runner(chain(slow))
    batch = run.open()
    run.step(batch, "numbers")
    with pytest.raises(FencedError, match="superseded meanwhile"):
        run.step(batch, "slow")
    row = run.ledger.row("SELECT state, failure FROM step_run WHERE step = 'slow'")
    assert row.state == "fenced"
    assert "superseded meanwhile" in row.failure
    run.settled(batch)
    assert len(sink_rows("out", "n")) == COUNT


def test_crash_between_rename_and_commit(runner, tmp_path, sink_rows):
    """A sink that dies after its publish, before that is noted, runs again and delivers once."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    with dies_at("published"), pytest.raises(Died):
        run.step(batch, "out")
    run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 0
    assert len(sink_rows("out", "n")) == COUNT


def test_killed_between_the_renames(runner, tmp_path, monkeypatch, sink_rows):
    """A re-run killed between moving the old folder aside and publishing its own counts, and is
    published by whatever comes next.
    """
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.steps(batch)
    rename = os.rename

    def rename_and_die(source, target, **options):
        rename(source, target, **options)
        if "/replaced/" in str(target):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename_and_die)
    with pytest.raises(KeyboardInterrupt):
        run.step(batch, "out")
    monkeypatch.undo()
    assert run.ledger.settle(batch.batch_id).failed == 0
    (published,) = publish_settled(run.job, batch.batch_id)
    assert (published.sink, published.rows) == ("out", COUNT)
    assert len(sink_rows("out", "n")) == COUNT


def test_the_old_folder_stays_where_the_new_one_cannot_be_published(
    runner, tmp_path, monkeypatch, sink_rows, caplog
):
    """When the second rename is refused, readers keep what was there, and the step can run
    again.
    """
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.steps(batch)
    rename = os.rename

    def refuse(source, target, **options):
        if Path(source).name.startswith("run=") and "/replaced/" not in str(source):
            raise OSError("disk full")
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", refuse)
    run.step(batch, "out")
    assert "'out' is not published yet: OSError: disk full" in caplog.text
    monkeypatch.undo()
    assert len(sink_rows("out", "n")) == COUNT
    run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 0


def test_connection_lost_after_the_rename(runner, tmp_path, sink_rows):
    """A sink whose commit loses its connection after the rename commits on the second try."""
    numbers(tmp_path)
    run = runner(chain(keep))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    calls = []

    def cut(place, of):
        if place != "published":
            return
        calls.append(of)
        if len(calls) == 1:
            with run.job.database.plain.begin() as other:
                other.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <>"
                    " pg_backend_pid() AND datname = current_database()"
                )

    with listening(cut):
        run.step(batch, "out")
    assert len(calls) == 2
    assert run.ledger.settle(batch.batch_id).failed == 0
    assert len(sink_rows("out", "n")) == COUNT


def test_without_ackers(runner, tmp_path, sink_rows):
    """With tracking=False the same pipeline runs untracked: no deltas, every root acked."""
    numbers(tmp_path)
    run = runner(chain(odd, tracking=False))
    batch = run.open()
    run.steps(batch)
    assert run.ledger.row("SELECT count(*) FROM ledger_delta")[0] == 0
    settlement = run.ledger.settle(batch.batch_id)
    assert (settlement.roots, settlement.failed) == (COUNT, 0)
    assert len(sink_rows("out", "n")) == COUNT // 2


def test_partitioned_sink(runner, tmp_path, sink_rows):
    """A sink partitioned by a column makes its folders below the batch's; a missing column is
    named.
    """
    numbers(tmp_path)
    run = runner(chain(thrice, partition_by="copy"))
    batch = run.open()
    run.settled(batch)
    assert sorted(
        path.name for path in (tmp_path / "out" / f"ackledger_batch={batch.batch_id}").iterdir()
    ) == ["copy=1", "copy=2", "copy=3"]
    assert len(sink_rows("out", "n", "copy")) == COUNT * 3


def test_partition_column_must_exist(runner, tmp_path):
    """A sink partitioned by a column that its input lacks fails, naming both."""
    numbers(tmp_path)
    run = runner(chain(keep, partition_by="day"))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    with pytest.raises(StageError, match="'out': it is partitioned by 'day', which"):
        run.step(batch, "out")


def test_a_sink_needs_columns(runner, tmp_path):
    """A sink behind a stage that returns nothing but its anchors fails before it stages files."""
    numbers(tmp_path)

    def keep(frame):
        return frame.select()

    run = runner(chain(keep))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "keep")
    with pytest.raises(StageError, match="sink 'out': expected columns, found none"):
        run.step(batch, "out")
    assert not [*(tmp_path / "out").rglob("*.parquet")]


def test_user_error_fails_the_run_and_expires(runner, tmp_path):
    """A stage whose code raises marks its run failed, with the error, and starts the message
    timeout.
    """
    numbers(tmp_path)

    def buggy(frame):
        return frame.withColumn("bad", F.raise_error(F.lit("a bug")))

    run = runner(chain(buggy, message_timeout="0s"))
    batch = run.open()
    run.step(batch, "numbers")
    with pytest.raises(PySparkException):
        run.step(batch, "buggy")
    assert "a bug" in run.ledger.row("SELECT failure FROM step_run WHERE state = 'failed'").failure
    settlement = run.ledger.settle(batch.batch_id)
    assert (settlement.status, settlement.failed) == (BatchStatus.SETTLED, COUNT)


def test_driver_that_comes_after_the_sweeper_is_fenced(runner, tmp_path, folded_by):
    """A driver whose batch was decided and cleaned up meanwhile hears it in one line, and changes
    nothing."""
    numbers(tmp_path)

    def slow(frame):
        later = run.ledger.row("SELECT now() + interval '2 hours' AS later").later
        (settlement,) = run.ledger.sweep(now=later).settlements
        assert settlement.status is BatchStatus.SETTLED
        return thrice(frame)

    run = runner(chain(slow, message_timeout="0s"))
    batch = run.open()
    run.step(batch, "numbers")
    before = run.ledger.rows("SELECT step_run_id, state FROM step_run ORDER BY 1")
    with pytest.raises(
        FencedError,
        match=(
            rf"^(run .* in batch {batch.batch_id} is fenced and posts nothing more: .*"
            rf"|batch {batch.batch_id} is settled: run .* too late)$"
        ),
    ) as caught:
        run.step(batch, "slow")
    assert "\n" not in str(caught.value)
    after = run.ledger.rows("SELECT step_run_id, state FROM step_run ORDER BY 1")
    assert after[: len(before)] == before
    assert [row.state for row in after[len(before) :]] == ["fenced"]


def test_executors_get_no_address_of_the_ledger(runner, tmp_path, monkeypatch):
    """Nothing of it is in what a task is made of."""
    numbers(tmp_path)
    run_tasks, tasks = runners.run_tasks, []

    def noted(frame, task):
        tasks.append(cloudpickle.dumps(task))
        return run_tasks(frame, task)

    monkeypatch.setattr(runners, "run_tasks", noted)
    run = runner(chain(thrice), few_rows=-1, driver_bytes=-1)
    assert run.settled(run.open()).failed == 0
    assert len(tasks) == 3
    address = run.job.database.url
    words = ["postgresql", address.render_as_string(hide_password=False), *address.query.values()]
    assert not [word for word in words for task in tasks if word.encode() in task]


def test_executors_that_cannot_connect(runner, spark, tmp_path, monkeypatch):
    """Workers that have no driver of a database fold what a batch wrote, with records that are lost
    and one that is malformed."""

    def tried(batches):
        for _ in batches:
            try:
                importlib.import_module("psycopg2")
            except ImportError as exc:
                yield pa.RecordBatch.from_pylist([{"why": str(exc)}])

    blocked = tmp_path / "blocked"
    for name in ("psycopg2", "sqlalchemy"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('no database here')")
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment["PYTHONPATH"] = str(blocked)
    try:
        reasons = spark.range(0, 1, 1, 1).mapInArrow(tried, "why string").collect()
        assert [row.why for row in reasons] == ["no database here"]
        (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in (1, 2, "x", 4, 5)))
        run = runner(chain(odd), few_rows=-1, driver_bytes=-1)
        assert run.settled(run.open()).failed == 3
    finally:
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(before)


def test_tasks_are_counted_while_they_run(spark):
    """Of a step that is under way it is known how many tasks it has, and how many are done."""

    def slowly(batches):
        time.sleep(1)
        yield from batches

    counted = []
    with watching(spark, lambda tasks, seconds: counted.append(tasks), every=0.2):
        assert spark.range(0, 6, 1, 6).mapInPandas(slowly, "id BIGINT").count() == 6
    assert any(0 < progress.done < progress.total for progress in counted), counted
    assert all(progress.done <= progress.total for progress in counted)
