"""Steps on a Spark Connect server: no driver of theirs has a JVM."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from ledger.batch.opening import open_batch
from ledger.core.connect_server import require_server
from ledger.core.run_request import Interval, RunKey
from ledger.errors import UnavailableError
from ledger.pipeline.load import load_pipeline
from ledger.settings import Settings
from tests.support.airflow import dag_bag
from tests.support.flights import without_plane, write_slice
from tests.support.places import ROOT
from tests.support.ports import free_port

# A test for each thing that is another one on Connect: plans that the server knows, columns that
# it is asked for, errors and rows that come by gRPC, functions that go there. What the ledger then
# does is the same; so is where deltas are folded, of which the executors' way goes furthest.
CORE = (
    # plans, as the server describes them, and errors of the anchor
    "test_anchor_use.py",
    # lines that do not parse, in Python's workers; Spark's own readers of lines and of Parquet
    "test_bad_input.py::test_every_bad_line_is_named",
    "test_bad_input.py::test_line_breaks_within_quotes",
    "test_bad_input.py::test_parquet_source",
    # a total that comes again, and one whose plan leaves an input out
    "test_combine.py::test_a_partial_total_is_replaced",
    "test_combine.py::test_a_total_that_leaves_an_input_out",
    # a filter of Bloom's in Python's workers
    "test_dedup.py::test_window_of_batches",
    # functions over frames without rows, whose actions are noted, and which may not write
    "test_dry_run.py::test_a_function_that_asks_for_rows_is_a_hint",
    "test_dry_run.py::test_a_function_that_writes_does_not",
    # a source that is read again and joined by key
    "test_from_source.py::test_a_fixed_file_is_read_again_by_key",
    # a frame that two stages read
    "test_inputs.py::test_diamond",
    # marks of frames, and those that are none; what only a combine reads
    "test_marks.py::test_explicit_acks[executors]",
    "test_marks.py::test_emits_one_names_a_repeated_input[2-on_emit]",
    "test_marks.py::test_marks_that_are_none",
    "test_marks.py::test_on_read_counts_what_it_swallowed",
    "test_marks.py::test_stages_that_only_a_combine_reads",
    # a function of records, the types that it may yield, and those that it may not
    "test_marks.py::test_record_stage",
    "test_marks.py::test_record_stage_of_all_types",
    "test_marks.py::test_a_value_that_does_not_fit_fails_its_record",
    # rows that come to the driver
    "test_notify.py::test_sources_are_notified",
    # what a sink refuses, and what Spark says of a rule that it does not know
    "test_refused_rows.py::test_a_rule_that_spark_does_not_know",
    "test_refused_rows.py::test_refused_rows_fail_their_records",
    # each kind of sink without what failed
    "test_sinks.py::test_rows_of_failed_records_reach_no_sink",
    # a source that goes by offsets
    "test_offsets.py::test_each_batch_reads_on",
    # a state that is a frame, and one that is an object in Python's workers
    "test_state.py::test_an_object_keeps_its_state",
    "test_state.py::test_running_totals_over_batches_and_a_replay",
    # a table that is read by several tasks
    "test_table_source.py::test_a_parallel_read_returns_every_row_once",
    # the session of a user's own tests
    "test_testing.py::test_run_and_replay",
    # what a stage has made, in several files; how far its tasks are
    "test_tracking.py::test_many_children_ack_their_parent_once[executors]",
    "test_tracking.py::test_tasks_are_counted_while_they_run",
    # a join that is empty, which adaptive plans cut out, and one of a frame with itself
    "test_whole_stages.py::test_no_row_meets_another",
    "test_whole_stages.py::test_two_rows_of_one_record_meet_again",
    # steps without anchors
    "test_untracked.py::test_rerun_of_untracked_steps",
    "test_untracked.py::test_nothing_fails_where_nothing_is_tracked",
    # a whole batch that is replayed, without what is left out
    "test_whole_stages.py::test_the_newest_row_of_a_key_is_replayed",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server that this machine runs."""
    port, folder = free_port(), tmp_path_factory.mktemp("connect")
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.master": "local[2]",
        # As outside of tests: plans change while they run, and empty parts are cut out of them.
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    options = [f"--conf={name}={value}" for name, value in conf.items()]
    program = Path(sys.executable).with_name("spark-submit")
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--class", main, *options, "spark-internal"],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    remote = f"sc://127.0.0.1:{port}"
    try:
        _wait(process, remote, folder / "log")
        yield remote
    finally:
        process.terminate()
        process.wait(60)


def _wait(process, remote, log):
    until = time.monotonic() + 120
    while True:
        try:
            require_server(remote)
        except UnavailableError:
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(log.read_text()[-4000:])
            time.sleep(0.2)
        else:
            return


def test_every_kind_of_step(server):
    """Tests of each kind of step pass on the server as they do on a session of their own."""
    tests = [f"tests/integration/{name}" for name in CORE]
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not exhaustive")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--remote", server, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.fixture
def away(migrated, database, tmp_path, monkeypatch):
    """A folder of flights, and surroundings in which there is no Java."""
    (tmp_path / "bin").mkdir()
    for program in ("python", "ackledger"):
        (tmp_path / "bin" / program).symlink_to(Path(sys.executable).with_name(program))
    write_slice(tmp_path, (1,))
    variables = {
        "PATH": str(tmp_path / "bin"),
        "PYTHONPATH": str(ROOT),
        "ACKLEDGER_DATA": str(tmp_path),
        "ACKLEDGER_HOME": str(tmp_path / "home"),
        "ACKLEDGER_DATABASE_URL": migrated.url.render_as_string(hide_password=False),
    }
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_command_line(server, away):
    """A run and its replay on the server, where this machine has no Java."""
    january = ("--from", "2013-01-01", "--to", "2013-02-01")
    run = ("ackledger", "run", "jobs.flights:pipeline", *january, "--spark", server, "--json")
    done = subprocess.run(run, cwd=away, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    data = json.loads(done.stdout)
    lost = without_plane(away, 1)
    assert (data["status"], data["records"]["failed"]) == ("settled", lost)
    again = ("ackledger", "replay", "jobs.flights:pipeline", "--spark", server, "--json")
    done = subprocess.run(again, cwd=away, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stdout + done.stderr  # lost again, and quarantined
    assert json.loads(done.stdout)[0]["records"]["quarantined"] == lost


DAGS = """from jobs.wordcount import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(pipeline, schedule=None, submit={submit!r}, spark={spark!r})
"""


@pytest.fixture
def dag(server, away, request):
    """The DAG of the word count on the server, in the form that the test asks for."""
    from airflow.utils.db import initdb

    initdb()
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir()
    (folder / "words.py").write_text(DAGS.format(spark=server, submit=request.param))
    try:
        bag = dag_bag(folder)
        assert bag.import_errors == {}
        yield bag.dags["wordcount"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("dag", ["stage", "batch"], indirect=True)
def test_a_dag(dag, away):
    """Tasks of a DAG start no JVM: their steps run on the server."""
    folder = away / "sentences" / "2026-01-01"
    folder.mkdir(parents=True)
    sentences = [json.dumps({"sentence": text}) for text in ("two words", "one two")]
    (folder / "a.jsonl").write_text("\n".join(sentences))
    run = dag.test(run_conf={"interval_start": "2026-01-01", "interval_end": "2026-01-02"})
    assert run.state == "success"
    counts = DeltaTable(str(away / "warehouse" / "counts")).to_pandas()
    assert dict(zip(counts["word"], counts["n"], strict=True)) == {"two": 2, "words": 1, "one": 1}


SLOW = """import time
from pathlib import Path

from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("slow")
pipeline.source("numbers", FileSource("in.csv", schema="n INT"))


@pipeline.stage(reads="numbers")
def slowly(numbers):
    Path("begun").touch()
    while not Path("go on").exists():
        time.sleep(0.1)
    return numbers


pipeline.sink("out", ParquetSink("out"), reads="slowly")
"""


def test_a_driver_that_is_terminated(server, away, ledger):
    """SIGTERM, as a cleared or overdue task gets it, ends the step at once; the retry goes on at
    that step.
    """
    (away / "slow.py").write_text(SLOW)
    (away / "in.csv").write_text("n\n1\n2\n")
    interval = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(away))
        pipeline = load_pipeline("slow:pipeline")
    batch = open_batch(ledger.database, Settings(), pipeline, RunKey("slow", "run"), interval)
    driver = [sys.executable, "-m", "ledger.run_step", "--pipeline", "slow:pipeline"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{away}"}

    def begin():
        options = ("--batch", str(batch.batch_id), "--attempt", str(uuid4()), "--remote", server)
        return subprocess.Popen(
            [*driver, *options], cwd=away, env=environment, stderr=subprocess.PIPE, text=True
        )

    process = begin()
    until = time.monotonic() + 120
    while not (away / "begun").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    process.terminate()
    assert "run of batch 1 was stopped" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    (away / "go on").touch()
    again = begin()
    text = again.communicate(timeout=120)[1]
    assert again.returncode == 0, text
    assert "numbers of batch" not in text
    states = ledger.rows("SELECT step, state FROM step_run ORDER BY step_run_id")
    assert [tuple(row) for row in states] == [
        ("numbers", "committed"),
        ("slowly", "fenced"),
        ("slowly", "committed"),
        ("out", "committed"),
    ]


def test_where_nothing_listens(away, ledger):
    """A server that is not there is named before anything is claimed."""
    nowhere = f"sc://127.0.0.1:{free_port()}"
    run = ("ackledger", "run", "jobs.flights:pipeline", "--from", "2013-01-01")
    options = ("--to", "2013-02-01", "--spark", nowhere)
    done = subprocess.run([*run, *options], cwd=away, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Spark Connect server {nowhere} does not answer" in done.stderr
    assert ledger.row("SELECT count(*) FROM batch")[0] == 0
    check = ["ackledger", "check", "jobs.flights:pipeline", "--spark", nowhere]
    done = subprocess.run(check, cwd=away, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does not answer" in done.stdout
