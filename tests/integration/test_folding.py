"""How a run's deltas are folded: which way is taken and why, and that all ways come to the same."""

import logging
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.deltas import posting, stored
from ledger.deltas.fold_files import FoldFiles
from ledger.errors import IntegrityError, UnavailableError
from ledger.execution import settle_and_follow
from ledger.spark.folding import ahead, runners
from ledger.spark.session import session_conf
from tests.support.dying import Died, dies_at
from tests.support.folds import (
    COUNT,
    chain,
    mixed,
    pairs,
    prove_nothing,
    scattered,
    thrice,
    unordered,
    write_numbers,
)

DRIVER = {"few_rows": -1}
EXECUTORS = {"few_rows": -1, "driver_bytes": -1}


def odd(frame):
    """The even numbers are lost, on purpose or not."""
    return frame.where("n % 2 = 1")


@pytest.fixture(autouse=True)
def numbers(tmp_path, monkeypatch):
    """A file of numbers; few rows are read at a time."""
    write_numbers(tmp_path)
    monkeypatch.setattr(stored, "WINDOW_ROWS", 8)


@pytest.fixture
def ways(caplog):
    """How the runs of a step were folded, as the log has it."""
    caplog.set_level(logging.INFO, "ledger.spark.folding.fold")

    def of(step):
        lines = [record for record in caplog.records if hasattr(record, "fold_way")]
        assert all(line.fold_seconds > 0 and line.fold_rows > 0 for line in lines)
        return [line.fold_way for line in lines if f" of {step}:" in line.getMessage()]

    return of


@pytest.mark.parametrize(
    ("stage", "fields", "way"),
    [
        (thrice, DRIVER, "1 file together, in the driver"),
        (unordered, DRIVER, "1 file together, in the driver"),
        (scattered, DRIVER, "3 files together, in the driver"),
        (mixed, DRIVER, "4 files together, in the driver"),
        (thrice, EXECUTORS, "1 file one by one, by executors"),
        (unordered, EXECUTORS, "1 file one by one, by executors"),
        (scattered, EXECUTORS, "3 files together, by executors"),
        (mixed, EXECUTORS, "2 files one by one; 2 files together, by executors"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_log_says_which_way_a_fold_took(runner, ways, sink_rows, stage, fields, way):
    """Executors fold a file that has all rows of its records without the others. All ways lose
    nothing and deliver all.
    """
    run = runner(chain(stage), **fields)
    assert run.settled(run.open()).failed == 0
    assert ways(stage.__name__) == [way]
    assert len(sink_rows("out", "n")) == COUNT * 3


def acked_by(run, batch, step):
    """The acks of the committed run of a step, without its number."""
    statement = (
        "SELECT d.root_id, bit_xor(d.acked), sum(d.acked_edges), sum(d.emitted_edges)"
        " FROM ledger_delta d JOIN step_run r USING (batch_id, step_run_id)"
        " WHERE batch_id = :batch AND r.step = :step AND r.state = 'committed'"
        " GROUP BY 1 ORDER BY 1"
    )
    return [tuple(row) for row in run.ledger.rows(statement, batch=batch.batch_id, step=step)]


@pytest.mark.parametrize("is_whole", [False, True], ids=["by record", "whole"])
def test_a_sink_acks_the_same_from_files_and_from_what_it_reads(
    runner, ways, is_whole, monkeypatch
):
    """The input's files, in the driver and in the executors, and, where these prove nothing, the
    rows once more as the sink reads them come to the same deltas.
    """
    pipeline = chain(pairs if is_whole else scattered)
    run = runner(pipeline, **DRIVER)
    batch = run.open()
    run.steps(batch)
    from_files = acked_by(run, batch, "out")
    assert len(from_files) == COUNT
    elsewhere = runner(pipeline, **EXECUTORS)
    elsewhere.step(batch, "out")
    assert from_files == acked_by(run, batch, "out")
    prove_nothing(monkeypatch)
    elsewhere.step(batch, "out")
    assert from_files == acked_by(run, batch, "out")
    here, by_file, not_proved, as_read = ways("out")
    assert here.endswith("in the driver")
    assert by_file.endswith("one by one, by executors")
    assert not_proved == by_file
    assert as_read == "a frame by executors"
    assert run.ledger.settle(batch.batch_id).failed == 0


def hurt(step, change):
    """A job whose one step reads other rows than there are."""
    return lambda name, frame: change(frame) if name == step else frame


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda frame: frame.where("n <> 3"), {3}),
        (lambda frame: frame.unionByName(frame.where("n = 4")), {4}),
        (lambda frame: frame.where("n <> 3").unionByName(frame.where("n = 4")), {3, 4}),
    ],
    ids=["lost", "doubled", "lost and doubled"],
)
@pytest.mark.parametrize("fields", [{}, DRIVER, EXECUTORS], ids=["commit", "threads", "executors"])
def test_what_a_sink_reads_otherwise_than_it_lies_is_named(runner, ways, change, lost, fields):
    """A sink whose writer did not get each row of its input once acks what it has read, and just
    the records of other rows fail: also where as many are lost as come twice.
    """
    run = runner(chain(thrice), **fields, on_read=hurt("out", change))
    settlement = run.settled(run.open())
    failed = run.ledger.rows("SELECT root_id - 1 AS n, step FROM failed_root ORDER BY 1")
    assert [tuple(row) for row in failed] == [(n, "out") for n in sorted(lost)]
    assert settlement.failed == len(lost)
    assert ways("out")[-1].startswith("a frame")


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.where("n <> 3"),
        lambda frame: frame.where("n <> 3").unionByName(frame.where("n = 4")),
    ],
    ids=["lost", "lost and doubled"],
)
@pytest.mark.parametrize("fields", [{}, DRIVER, EXECUTORS], ids=["commit", "threads", "executors"])
def test_a_sink_whose_writer_alone_got_other_rows_fails(runner, sink_rows, change, fields):
    """What the sink reads once more may be all right: nothing is acked that its writer did not
    get, and the next try delivers all.
    """
    run = runner(chain(thrice), **fields, on_write=hurt("out", change))
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "thrice")
    taken = r"rows read by out in run 3 .sum: tracked rows.: wrote \d+, XOR .*, found"
    with pytest.raises(IntegrityError, match=taken):
        run.step(batch, "out")
    runner(chain(thrice), **fields).step(batch, "out")
    settle_and_follow(run.job, batch.batch_id)
    assert len(sink_rows("out", "n")) == COUNT * 3


def test_a_sink_whose_writer_alone_lost_an_untracked_row_fails(runner):
    """Such a row has no edge: it is missed among the rows."""
    pipeline = Pipeline("chain")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"), track="n <> 3")
    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(pipeline, on_write=hurt("out", lambda frame: frame.where("n <> 3")))
    batch = run.open()
    run.step(batch, "numbers")
    taken = r"rows read by out in run 2 .sum: tracked rows.: wrote 19, XOR .*, sum 19, found 20,"
    with pytest.raises(IntegrityError, match=taken):
        run.step(batch, "out")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_row_without_roots_fails_its_sink(runner, spark, ansi):
    """It is no edge, whatever Spark takes for the size of null, and nothing accounts for it."""

    def with_another(frame):
        return frame.unionByName(frame.select("pair").limit(1), allowMissingColumns=True)

    run = runner(chain(pairs), **DRIVER, on_write=hurt("out", with_another))
    with (
        session_conf(spark, {"spark.sql.ansi.enabled": ansi}),
        pytest.raises(IntegrityError, match=r"wrote (\d+), XOR (-?\d+), sum 26, found \d+, XOR \2"),
    ):
        run.settled(run.open())


@pytest.mark.parametrize("fields", [{}, DRIVER, EXECUTORS], ids=["commit", "threads", "executors"])
def test_a_stage_that_acks_on_read_acks_what_its_input_recorded(runner, fields):
    """A row that is gone from the files of its input, unnoticed by their sizes, fails the stage."""
    pipeline = chain(odd, acks="on_read")
    run = runner(pipeline, **fields)
    batch = run.open()
    run.step(batch, "numbers")
    file = run.ledger.row("SELECT path, step_run_id FROM step_run_file")
    path = Path(file.path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Spark's own, of the whole file
    table = pq.read_table(file.path)
    pq.write_table(table.filter(pc.not_equal(table["n"], 7)), file.path)
    with run.job.database.owner.begin() as connection:
        size = path.stat().st_size
        connection.exec_driver_sql(
            f"UPDATE step_run SET files = jsonb_set(files, '{{0,bytes}}', '{size}')"
        )
    with pytest.raises(IntegrityError, match=f"rows read by odd in run 2: wrote {COUNT}, found 19"):
        run.step(batch, "odd")
    rows = run.ledger.rows("SELECT state FROM step_run WHERE step = 'odd'")
    assert [row.state for row in rows] == ["failed"]


@pytest.mark.parametrize("fields", [{}, DRIVER, EXECUTORS], ids=["commit", "threads", "executors"])
def test_a_run_whose_check_fails_has_posted_nothing(runner, fields):
    """The deltas are checked before the first of them is posted, wherever they were folded."""
    run = runner(chain(odd, acks="on_read"), **fields)
    batch = run.open()
    run.step(batch, "numbers")
    with run.job.database.owner.begin() as connection:
        connection.exec_driver_sql("UPDATE step_run SET emitted_edges = emitted_edges + 1")
    with pytest.raises(IntegrityError, match="rows read by odd in run 2"):
        run.step(batch, "odd")
    posted = run.ledger.rows("SELECT DISTINCT step_run_id FROM ledger_delta")
    assert [tuple(row) for row in posted] == [(1,)]


@pytest.fixture
def in_parts(monkeypatch):
    """Each part that was folded is posted in a transaction of its own."""
    monkeypatch.setattr(ahead, "MOST_ROWS", 1)
    monkeypatch.setattr(runners, "MOST_DELTAS", 1)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("fields", [DRIVER, EXECUTORS], ids=["threads", "executors"])
def test_one_part_that_is_not_posted_fails_the_run(runner, monkeypatch, fields):
    """The ledger is not asked again for what it may have taken, and what it took counts for
    nothing: the next run posts all of it.
    """
    run = runner(chain(scattered), **fields)
    batch = run.open()
    run.step(batch, "numbers")
    post, posted = posting.post, []

    def post_first(cursor, batch_id, run_id, deltas, **options):
        if posted:
            raise psycopg2.OperationalError("connection refused")
        post(cursor, batch_id, run_id, deltas, **options)
        posted.append(len(deltas.root))

    monkeypatch.setattr(posting, "post", post_first)
    with pytest.raises(UnavailableError, match="did not answer: connection refused"):
        run.step(batch, "scattered")
    monkeypatch.setattr(posting, "post", post)
    row = run.ledger.row("SELECT count(*) FROM ledger_delta WHERE step_run_id = 2")
    assert [row[0]] == posted
    assert 0 < row[0] < COUNT
    run.step(batch, "scattered")
    run.step(batch, "out")
    settlement = run.ledger.settle(batch.batch_id)
    assert (settlement.roots, settlement.failed) == (COUNT, 0)


@pytest.mark.parametrize("fields", [DRIVER, EXECUTORS], ids=["threads", "executors"])
def test_what_a_run_posted_that_did_not_commit_does_not_count(runner, fields):
    """It is in no total."""
    run = runner(chain(thrice), **fields)
    batch = run.open()
    run.step(batch, "numbers")
    with pytest.raises(Died), dies_at("deltas posted", "thrice"):
        run.step(batch, "thrice")
    assert run.ledger.row("SELECT count(*) FROM ledger_delta WHERE step_run_id = 2")[0] == COUNT
    run.step(batch, "thrice")
    run.step(batch, "out")
    settlement = run.ledger.settle(batch.batch_id)
    assert (settlement.roots, settlement.failed) == (COUNT, 0)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("fields", [DRIVER, EXECUTORS], ids=["threads", "executors"])
def test_a_run_commits_what_was_posted_ahead(runner, fields):
    """In several transactions; all of it is there."""
    run = runner(chain(scattered), **fields)
    batch = run.open()
    run.steps(batch)
    rows = run.ledger.rows(
        "SELECT step, count(*) AS rows, count(DISTINCT d.xmin::text) AS transactions,"
        " max(delta_rows) AS recorded"
        " FROM ledger_delta d JOIN step_run USING (step_run_id) GROUP BY step",
    )
    assert {row.step for row in rows} == {"numbers", "scattered", "out"}
    assert all(row.rows == row.recorded for row in rows)
    assert max(row.transactions for row in rows) > 1
    assert run.ledger.settle(batch.batch_id).failed == 0


def test_a_file_that_a_task_left_and_that_is_changed_fails_the_run(runner, monkeypatch):
    """What the driver reads has to be what the task folded."""
    run = runner(chain(thrice), **EXECUTORS)
    batch = run.open()
    read_rows = FoldFiles.read_rows

    def read_other(files):
        for deltas in read_rows(files):
            yield replace(deltas, emitted_edges=deltas.emitted_edges + 1)

    monkeypatch.setattr(FoldFiles, "read_rows", read_other)
    with pytest.raises(
        IntegrityError,
        match=r"deltas of numbers in run 1: wrote 20 .* found 20 deltas .* 40 emitted",
    ):
        run.step(batch, "numbers")


def test_executors_leave_nothing_that_was_posted(runner, tmp_path):
    """Reasons and texts of records lie in the ledger alone; what remains says that no file counts,
    and goes with the settlement."""
    (tmp_path / "in.csv").write_text("n\n1\nsecret\n3\n")
    run = runner(chain(thrice), **EXECUTORS)
    batch = run.open()
    run.steps(batch)
    assert run.ledger.row("SELECT detail FROM root_fail").detail == "secret"
    (folder,) = tmp_path.rglob("_roots")
    left = [file for file in folder.rglob("*") if file.is_file()]
    assert [(file.name, file.read_text()) for file in left] == [("files.json", "[]")] * 3
    settle_and_follow(run.job, batch.batch_id)
    assert [row[0] for row in run.ledger.rows("SELECT root_files FROM step_run")] == [None] * 3
    assert list(folder.iterdir()) == []
