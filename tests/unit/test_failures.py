"""Whatever goes wrong in Spark, in files and in a user's own code is reported in one line."""

import errno
import logging
import os
import re
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from ledger import Pipeline, cli, run_step
from ledger.batch.settlement import Settlement
from ledger.batch.step_runs import Record
from ledger.cli import base
from ledger.cli.base import app
from ledger.core.states import BatchStatus
from ledger.errors import (
    EXIT_PERMANENT,
    ConfigurationError,
    FencedError,
    InputError,
    LedgerError,
    LostFileError,
    NotReadyError,
    StageError,
    UnavailableError,
    quote,
)
from ledger.execution import StepResult
from ledger.settings import VERBOSE, Settings
from ledger.sources.base import raised_by_task
from ledger.sources.listing import list_files
from ledger.spark.failures import (
    Failures,
    _own_frame,
    explained,
    read_failure,
    recorded,
    redacted,
    translated,
)

FULL = (
    "no space is left on the disk of {}: free some of ACKLEDGER_STORAGE, of the sinks' folders or"
    " of Spark's scratch folder /nowhere/scratch, then run this again"
)
JAVA = "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\t... 1 more\n"
CALL = "An error occurred while calling o133.parquet.\n: org.apache.spark.SparkException: "
READING = CALL + "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/"
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 3602, in main
    process()
    ^^^^^^^^^
  File "/home/me/orders.py", line 12, in price
    return parse(text)
           ^^^^^^^^^^^
  File "/home/me/orders.py", line 7, in parse
    return float(text)
  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 1, in float
ValueError: could not convert string to float: 'x'
"""  # noqa: E501


SITE = "/venv/lib/python3.11/site-packages/"
FRAMES = {
    "an installed pipeline": (
        [f"{SITE}shop/orders.py", f"{SITE}pandas/core.py"],
        f"{SITE}shop/orders.py",
    ),
    "what it calls": (
        [f"{SITE}pyspark/sql.py", f"{SITE}shop/a.py", f"{SITE}shop/b.py", f"{SITE}requests/api.py"],
        f"{SITE}shop/b.py",
    ),
    "of a file": (["/home/me/orders.py", f"{SITE}requests/api.py"], "/home/me/orders.py"),
    "a module of one file": (
        [f"{SITE}orders.py", "/usr/lib/python3.11/json/decoder.py"],
        f"{SITE}orders.py",
    ),
    "no own code": (
        [f"{SITE}numpy/x.py", "/usr/lib/python3.11/json/decoder.py", "<frozen importlib>"],
        None,
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_whose_code_it_was(name):
    """A user's own package counts as the user's where it is installed; known libraries and the
    standard library do not."""
    paths, expected = FRAMES[name]
    result = _own_frame([(path, 7, "price") for path in paths])
    assert result == (expected and f"{expected}:7, in price")


@pytest.mark.parametrize(
    ("raised", "kind", "line"),
    [
        (
            PySparkException(WORKER),
            StageError,
            "ValueError: could not convert string to float: 'x' (/home/me/orders.py:7, in parse)",
        ),
        (
            Py4JError(
                CALL
                + "[TASK_WRITE_FAILED] Task failed.\n"
                + JAVA
                + "Caused by: x.PythonException: "
                + WORKER
                + JAVA
            ),
            StageError,
            "ValueError: could not convert string to float: 'x' (/home/me/orders.py:7, in parse)",
        ),
        (
            Py4JError(
                READING
                + "a.csv.gz.  SQLSTATE: KD001\n"
                + JAVA
                + "Caused by: java.io.EOFException: Unexpected end of input stream\n"
                + JAVA
            ),
            InputError,
            (
                "a source file cannot be read: file:///in/a.csv.gz (EOFException: "
                "Unexpected end of "
                "input stream). Put a whole one in its place, then run this again"
            ),
        ),
        (
            Py4JError(
                READING
                + "a.parquet.  SQLSTATE: KD001\n"
                + "Caused by: java.lang.RuntimeException: file:/in/a.parquet is not a Parquet"
                " file\n" + JAVA
            ),
            InputError,
            (
                "a source file cannot be read: file:///in/a.parquet (RuntimeException: "
                "file:/in/a.parquet is not a Parquet file). Put a whole one in its place, then run "
                "this again"
            ),
        ),
        *(
            (
                Py4JError(f"{READING}a.parquet.  SQLSTATE: KD001\nCaused by: {cause}\n{JAVA}"),
                InputError,
                "a source file cannot be read: file:///in/a.parquet"
                f" ({cause.rpartition('.')[2]}). {way}, then run this again",
            )
            for cause, way in (
                (
                    "java.lang.ArithmeticException: long overflow",
                    "It has a timestamp that Spark cannot hold, before the year -290308 or after"
                    " 294247: write another value, or null",
                ),
                (
                    "x.SparkUnsupportedOperationException: Unsupported encoding: RLE",
                    "Write it without this encoding",
                ),
            )
        ),
        (
            PySparkException(
                "[PATH_NOT_FOUND] Path does not exist: file:/in/b.csv. SQLSTATE: 42K03"
            ),
            InputError,
            (
                "a source file vanished: file:/in/b.csv. Put a whole one in its "
                "place, then run "
                "this again"
            ),
        ),
        (
            Py4JError(
                READING.replace("/in/", "/storage/shop/parse/batch=7/run=9/")
                + "a.parquet.  SQLSTATE: KD001\n"
                + JAVA
            ),
            LostFileError,
            (
                "a file that a step wrote cannot be read:"
                " file:///storage/shop/parse/batch=7/run=9/a.parquet. The next run of its batch"
                " runs that step again; in Airflow clear the task that ran it, and those"
                " downstream. If the batch is settled, read the interval again, with --reprocess"
            ),
        ),
        (
            Py4JError(
                CALL + "[TASK_WRITE_FAILED] Task failed while writing rows to file:/nowhere/out."
                " SQLSTATE: 58030\n"
                + "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on"
                " device\n" + JAVA
            ),
            UnavailableError,
            FULL.format("/nowhere/out"),
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/nowhere/x"),
            UnavailableError,
            FULL.format("/nowhere/x"),
        ),
        (
            PySparkException(
                "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== SQL "
                "==\n1 / 0\n^^^"
            ),
            StageError,
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.",
        ),
        (
            PySparkException("[USER_RAISED_EXCEPTION] reference 'side': malformed SQLSTATE: P0001"),
            StageError,
            "reference 'side': malformed",
        ),
        (
            Py4JError(
                f"{CALL}x\n{JAVA}Caused by: java.io.IOException: Cannot run program"
                ' "./environment/bin/python": error=2, No such file or directory\n'
                f"{JAVA}Caused by: java.io.IOException: error=2, No such file or directory\n"
            ),
            ConfigurationError,
            "expected a Python at ./environment/bin/python where Spark's tasks run, found none"
            " (error=2, No such file or directory): it is the one of PYSPARK_PYTHON, or of"
            " spark.pyspark.python. On a cluster ship it to the executors (docs/how-to/cluster.md);"
            " with a master on this machine unset the variable",
        ),
        (
            Py4JError(
                CALL + "x\n" + JAVA + "Caused by: java.lang.OutOfMemoryError: Java heap space\n"
            ),
            StageError,
            (
                "a process of Spark ran out of memory: give it more (spark.driver.memory, "
                "spark.executor.memory), "
                "or less to do at once (spark.sql.shuffle.partitions)"
            ),
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_spark_is_translated(raised, kind, line, monkeypatch):
    """An error of Spark is one line of the ledger's class for it: what, where, and what to do."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere/scratch")
    error = translated(raised)
    assert (type(error), str(error)) == (kind, line)


def test_a_stale_checksum_is_named(tmp_path):
    """A file that Hadoop compares with the checksums beside it may be whole: the error has the
    name of the file that holds them, if there is one."""
    words = f"{READING.replace('/in/', f'{tmp_path}/')}a.parquet.  SQLSTATE: KD001\n"
    raised = Py4JError(f"{words}Caused by: x.ChecksumException: Checksum error: file:/in/a at 512")
    whole = r"Put a whole one in its place{}, then run this again"
    assert str(translated(raised)).endswith(whole.format(""))
    sums = tmp_path / ".a.parquet.crc"
    sums.touch()
    beside = f"; or, if it is whole, delete {sums}, with which Hadoop compares it"
    assert str(translated(raised)).endswith(whole.format(beside))


def test_a_disk_without_space_is_named_with_what_is_free(tmp_path, monkeypatch):
    """Where files cannot be written, the folder is named with what its disk has free, and so is the
    folder where Spark keeps its own; whether the disk, a quota or a limit on files is used up."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    free = r" \([\d,]+\.\d MB free(, no more files)?\)"
    out = f"{tmp_path}/out"
    for cause in ("No space left on device", "Disk quota exceeded", "File too large"):
        words = f"[TASK_WRITE_FAILED] Task failed while writing rows to file:{out}. SQLSTATE: 5\n"
        error = translated(Py4JError(f"{CALL}{words}Caused by: java.io.IOException: {cause}\n"))
        assert type(error) is UnavailableError
        assert re.search(rf"disk of {out}{free}: .* scratch folder {tmp_path}{free}", str(error))
    unmade = f"Caused by: java.io.IOException: Mkdirs failed to create file:{out}/a (exists=false)"
    error = translated(Py4JError(f"{CALL}x\n{unmade}\n"))
    assert re.match(rf"folder {out}/a could not be made{free}: make ", str(error))


WRITING = f"{CALL}[TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 5\n"
NO_DISK = [
    PySparkException(WORKER.replace("could not convert string to float: 'x'", message))
    for message in ("upload rejected: File too large (12 MB), limit 10", "no space left in the van")
]
FULL_DISKS = [
    PySparkException(f"{WORKER[: WORKER.index('ValueError')]}OSError: {message}: '/out'")
    for message in ("[Errno 28] No space left on device", "[Errno 27] File too large")
] + [
    Py4JError(f"{WRITING}Caused by: {message}\n{JAVA}")
    for message in (
        "java.nio.file.FileSystemException: /out/a b: File too large",
        "java.io.IOException: File too large",
        "java.io.IOException: No space left on device",
        "y.Z: Generic LocalFileSystem error: No space left on device (os error 28)",
        "y.Z: Generic LocalFileSystem error: File too large (os error 27)",
    )
]


@pytest.mark.parametrize("raised", NO_DISK)
def test_words_of_a_users_error_are_no_full_disk(raised):
    """What a stage says of files, space and memory is its own error, with its words and place."""
    error = translated(raised)
    assert type(error) is StageError
    assert str(error).endswith(" (/home/me/orders.py:7, in parse)")
    assert type(translated(ValueError("a line of a log: MemoryError"))) is LedgerError
    logged = WORKER.replace("could not convert", "MemoryError in")
    assert str(translated(PySparkException(logged))).startswith("ValueError: MemoryError in")


@pytest.mark.parametrize("raised", FULL_DISKS)
def test_a_full_disk_is_known_however_it_is_said(raised):
    """By Java, by Python and by a library in Rust."""
    assert type(translated(raised)) is UnavailableError
    assert str(translated(raised)).startswith("no space is left on the disk")


AWAY = [
    "java.io.IOException: h:1: Unexpected HTTP response: code=503 != 200, op=GETFILESTATUS",
    "java.net.ConnectException: Connection refused",
    "java.io.IOException: Failed to rename HdfsNamedFileStatus{path=webhdfs://h:1/out/a}",
    "java.net.SocketException: Unexpected end of file from server",
    "java.io.EOFException: Premature EOF: pos=1 < filelength=2",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException: SlowDown (Status Code: 503)",
]


@pytest.mark.parametrize("words", AWAY)
@pytest.mark.parametrize("call", [WRITING, f"{READING}a.csv.\n"])
def test_a_store_that_does_not_answer_spark_is_no_fault_of_a_step(call, words):
    """Whether Spark wrote or read, the error may pass: no file is said to be damaged, and the step
    is not said to have failed. A user's own code that cannot connect is its own fault."""
    error = translated(Py4JError(f"{call}Caused by: {words}\n{JAVA}"))
    assert type(error) is UnavailableError
    assert f"a store does not answer Spark: {words}. Nothing is lost" in str(error)
    own = f'{WORKER}  File "/home/me/jobs.py", line 3, in look\nConnectionError: refused\n'
    assert not isinstance(translated(Py4JError(f"{own}Caused by: {words}")), UnavailableError)


@pytest.mark.parametrize("name", ["MemoryError", "pyarrow.lib.ArrowMemoryError"])
def test_a_worker_without_memory_is_named(name):
    """Of whichever class the error is that says so, in the last line of its traceback."""
    raised = PySparkException(WORKER.replace("ValueError: could", f"{name}: could"))
    assert str(translated(raised)).startswith("a process of Spark ran out of memory")


def test_scratch_folders_are_named_each(tmp_path, monkeypatch):
    """Each of Spark's folders is named with what is free; a name that is no text is left out."""
    paths = [tmp_path / name for name in ("a", "b")]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{paths[0]}, {paths[1]},")
    free = r" \([\d,]+\.\d MB free(, no more files)?\)"
    raised = OSError(errno.ENOSPC, "No space left on device", b"/tmp/x")
    says = rf"left on the disk: .* scratch folders {paths[0]}{free}, {paths[1]}{free}, then run"
    assert re.search(says, str(translated(raised)))
    assert "disk: free" in str(translated(OSError(errno.ENOSPC, "No space left on device", 3)))
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    conf = {"spark.local.dir": f"{paths[1]}"}
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(conf=conf))
    assert f"scratch folder {paths[1]} (" in str(translated(raised))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(conf=None))
    assert f"scratch folder {tempfile.gettempdir()}" in str(translated(raised))


def test_an_error_of_a_task_says_itself_which_disk_is_full():
    """An error of ours that a task raised stays as it is, whatever words of others it repeats."""
    trace = WORKER[: WORKER.index("  File")] + (
        '  File "/x/site-packages/pyspark/a.py", line 3, in b\n'
    )
    cause = f"{trace}OSError: [Errno 28] No space left on device\n\nThe above exception was\n\n"
    full = f"{cause}{trace}ledger.errors.UnavailableError: no space is left on the disk of /scratch"
    error = translated(PySparkException(full))
    assert (type(error), str(error)) == (
        UnavailableError,
        "no space is left on the disk of /scratch",
    )
    assert recorded(PySparkException(full)) == f"UnavailableError: {error}"
    broken = f"{trace}ledger.errors.InputError: source file a.gz cannot be read: not a gzip file"
    assert str(translated(PySparkException(broken))).startswith("source file a.gz")


def test_errors_of_tasks_keep_their_class():
    """An error that a task raised is the same to the driver: what it says, and its class."""
    trace = (
        'Traceback (most recent call last):\n  File "/x/site-packages/pyspark/a.py", line 3, in b\n'
    )
    error = translated(PySparkException(f"{trace}ledger.errors.LostFileError: file a is gone"))
    assert (type(error), str(error)) == (LostFileError, "file a is gone")


def test_own_code_is_named_by_its_line():
    """An exception of the user's own function says which one and where; an error of the ledger
    stays as it is."""

    def stage():
        raise KeyError("no such\ncolumn")

    with pytest.raises(KeyError) as caught:
        stage()
    error = translated(caught.value)
    line = stage.__code__.co_firstlineno + 1
    assert type(error) is StageError
    assert str(error) == f"KeyError: 'no such\\ncolumn' ({__file__}:{line}, in stage)"
    with pytest.raises(SyntaxError) as broken:
        compile("def (", "/home/me/orders.py", "exec")
    assert str(translated(broken.value)) == "SyntaxError: invalid syntax (/home/me/orders.py:1)"
    own = NotReadyError("wait")
    assert translated(own) is own


LIBRARY = WORKER.replace("/home/me/", SITE + "pandas/").replace("'x'", "marked")
QUOTING = {
    "a condition": (
        Py4JError(
            f"{CALL}[TASK_WRITE_FAILED] Task failed.\n{JAVA}Caused by: x.SparkRuntimeException: "
            f"[MALFORMED_CSV_RECORD] Malformed CSV record: 7,marked SQLSTATE: KD000\n{JAVA}"
        ),
        "StageError: SparkRuntimeException [MALFORMED_CSV_RECORD]",
    ),
    "its own condition": (
        PySparkException("[CAST_INVALID_INPUT] The value 'marked' cannot be cast"),
        "StageError: PySparkException [CAST_INVALID_INPUT]",
    ),
    "only a wrapper": (
        PySparkException("[TASK_WRITE_FAILED] marked"),
        "StageError: PySparkException [TASK_WRITE_FAILED]",
    ),
    "a Java exception": (
        Py4JError(f"{CALL}no\n{JAVA}Caused by: java.lang.IllegalStateException: 7,marked\n"),
        "StageError: IllegalStateException",
    ),
    "a file": (
        Py4JError(
            f"{READING}a.csv. SQLSTATE: KD001\n{JAVA}Caused by: java.io.EOFException: 7,marked\n"
        ),
        "InputError: EOFException of file:///in/a.csv",
    ),
    "a library on an executor": (PySparkException(LIBRARY), "StageError: ValueError"),
    "a library on the driver": (ValueError("7,marked"), "LedgerError: ValueError"),
}


@pytest.mark.parametrize("name", QUOTING)
def test_the_ledger_keeps_no_words_that_may_quote_a_record(name):
    """Of what Spark, Java and libraries say, the ledger keeps the class, the condition and the
    file.
    """
    raised, words = QUOTING[name]
    assert "marked" not in recorded(raised)
    assert recorded(raised).startswith(f"{words}. ")
    assert len(recorded(raised).splitlines()) == 1


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (StageError("two\n lines"), "StageError: two lines"),
        (PySparkException(WORKER), f"StageError: {translated(PySparkException(WORKER))}"),
        (
            Py4JError(
                CALL + "x\nCaused by: y.Z: [USER_RAISED_EXCEPTION] no such shop SQLSTATE: P0001\n"
            ),
            "StageError: no such shop",
        ),
        (
            AnalysisException("[UNRESOLVED_COLUMN] no column `a`"),
            "StageError: [UNRESOLVED_COLUMN] no column `a`",
        ),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_ledger_keeps_what_was_meant_for_readers(raised, words):
    """The ledger's own words, those of a stage's code and those about a plan are kept, in one
    line.
    """
    assert recorded(raised) == words


def test_a_place_is_kept_where_no_own_code_raised():
    """Of an exception of a library on the driver the ledger keeps the line of the library."""
    with pytest.raises(ValueError, match="marked") as caught:
        Fraction("marked")
    library = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert re.match(
        r"LedgerError: ValueError \(\S*/fractions\.py:\d+, in __new__\)\. ", recorded(library)
    )
    assert "marked" not in recorded(library)


def test_a_setting_that_cannot_be(monkeypatch):
    """A variable with an impossible value is named, with what was expected."""
    monkeypatch.setenv("ACKLEDGER_GUARANTEE", "twice")
    with pytest.raises(ValueError, match="guarantee") as caught:
        Settings()
    error = translated(caught.value)
    assert type(error) is ConfigurationError
    assert str(error).startswith("ACKLEDGER_GUARANTEE=twice: Input should be 'exactly_once' or")


def test_a_name_that_is_not_utf8_is_no_source(tmp_path):
    """Neither the ledger nor Spark has a name for such a file: it is refused with its bytes, and
    one that the path leaves out is not."""
    (tmp_path / "a.csv").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")).touch()
    with pytest.raises(InputError, match=r"\\udcff\.parquet': expected a name in UTF-8.*rename it"):
        list_files(f"{tmp_path}/*")
    assert len(list_files(f"{tmp_path}/*.csv")) == 1


@pytest.mark.parametrize("name", ["a.csv.zip", "A.ZIP", "a.tar.gz", "a.7z", "a.csv.xz"])
def test_an_archive_is_no_source(tmp_path, name):
    """What Spark would read as packed bytes is refused by name; what it unpacks is not."""
    (tmp_path / "a.csv.gz").touch()
    assert len(list_files(f"{tmp_path}/*")) == 1
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"{name} is an archive"):
        list_files(f"{tmp_path}/*")


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command with one more that raises; its exit code and standard error."""
    monkeypatch.delenv(VERBOSE, raising=False)

    def run(error, *options):
        def broken():
            raise error

        monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
        app.command("broken")(broken)
        monkeypatch.setattr(sys, "argv", ["ackledger", *options, "broken"])
        monkeypatch.setattr(base, "err", Console(stderr=True, width=400))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    return run


def test_a_command_fails_in_one_line(command, monkeypatch):
    """Whatever is raised is one line and exit code 1; the traceback comes with --verbose, before
    the line."""
    code, result = command(PySparkException(WORKER))
    assert code == 1
    assert result.splitlines() == [f"ackledger: {translated(PySparkException(WORKER))}"]
    _, result = command(InputError("two\n\n  lines"))
    assert result.splitlines() == ["ackledger: two lines"]
    monkeypatch.setenv(VERBOSE, "0")
    code, result = command(ValueError("x"))
    assert len(result.splitlines()) == 1
    code, result = command(PySparkException(WORKER), "--verbose")
    assert code == 1
    assert "Traceback (most recent call last)" in result
    assert result.splitlines()[-1] == f"ackledger: {translated(PySparkException(WORKER))}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("no file matches x"), EXIT_PERMANENT),
        (FencedError("a newer attempt"), 1),
        (ValueError("x"), 1),
    ],
)
def test_a_driver_ends_in_one_line(monkeypatch, caplog, error, code):
    """The last line of a driver's log says what failed, and its exit code whether another try is
    worth it."""

    def fails(arguments):
        error.add_note("To go on: clear the task s")
        raise error

    arguments = ["--pipeline", "m:p", "--batch", "7", "--step", "s"]
    arguments += ["--attempt", "00000000-0000-7000-8000-000000000000"]
    monkeypatch.setattr(sys, "argv", ["run_step", *arguments])
    monkeypatch.setattr(run_step, "run_task", fails)
    monkeypatch.delenv(VERBOSE, raising=False)
    with caplog.at_level(logging.INFO, "ackledger"):
        assert run_step.main() == code
    assert [record.getMessage() for record in caplog.records] == [
        f"s of batch 7: {translated(error)}. To go on: clear the task s"
    ]


def test_a_driver_of_a_whole_batch_says_what_was_decided_before_it(monkeypatch, caplog):
    """For a batch that the sweeper has settled the driver logs the decision, its time and the
    counts.
    """
    reason = "already settled, 2026-01-01 00:00:00 UTC"
    before = Settlement(7, BatchStatus.SETTLED, reason, roots=4, failed=1)
    monkeypatch.setattr(run_step, "run_steps", lambda *_, **__: None)
    monkeypatch.setattr(run_step, "settle_and_follow", lambda *_, **__: before)
    with caplog.at_level(logging.INFO, "ackledger"):
        run_step._run_whole(None, 7, None)
    (record,) = caplog.records
    message = f"batch 7 is settled ({reason}): 4 records, 3 acked, 1 failed"
    assert record.getMessage() == message


def test_a_driver_of_a_whole_batch_says_which_step_it_is_at(monkeypatch, caplog):
    """The log of a driver that runs a whole batch has a line when a step begins, and one when it
    is done.
    """

    def one_step(job, batch_id, on_step, attempt):
        on_step("parse", None)
        on_step("parse", StepResult("parse", Record(output_rows=1200), 2.5))

    settled = Settlement(7, BatchStatus.SETTLED, "every step is committed", roots=4, failed=0)
    monkeypatch.setattr(run_step, "run_steps", one_step)
    monkeypatch.setattr(run_step, "settle_and_follow", lambda *_, **__: settled)
    with caplog.at_level(logging.INFO):
        run_step._run_whole(None, 7, None)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["parse of batch 7 begins", "parse of batch 7: 1,200 rows, 2.5 s"]


@pytest.mark.parametrize("shown", [False, True])
def test_what_fails_beside_others_is_logged_in_one_line(monkeypatch, caplog, shown):
    """A failure that keeps nothing else waiting is one line, with whose it is; the traceback needs
    --verbose. The first is raised at the end."""
    monkeypatch.setenv(VERBOSE, "1") if shown else monkeypatch.delenv(VERBOSE, raising=False)
    failures, error = Failures(Pipeline("shop")), PySparkException(WORKER)
    error.add_note("Sink 'x' has not published batch 7")
    with failures.collect():
        raise error
    with failures.collect():
        raise InputError("another")
    first, second = [record.getMessage() for record in caplog.records]
    line = f"{translated(PySparkException(WORKER))}. Sink 'x' has not published batch 7"
    assert first.endswith(line)
    assert ("Traceback" in first) is shown
    assert len(first.splitlines()) == 1 or shown
    assert "another" in second
    with pytest.raises(PySparkException) as caught:
        failures.raise_first()
    assert caught.value is error


def test_a_command_says_how_to_go_on(command):
    """What was noted on the way of an error is printed with it, once."""
    error = InputError("bad.")
    for _ in range(2):
        error.add_note("To go on: ackledger publish a:b")
    code, result = command(error)
    assert (code, result) == (1, "ackledger: bad. To go on: ackledger publish a:b\n")


def test_what_is_permanent():
    """The classes of errors that the same attempt would meet again."""
    assert [kind.__name__ for kind in LedgerError.__subclasses__() if kind.permanent] == [
        "DeclarationError",
        "ConfigurationError",
        "InputError",
        "CarryError",
        "UndecidedError",
    ]
    assert EXIT_PERMANENT == 65


def test_errors_name_what_others_said():
    """Code that makes an error of another's words names them, and code that rewords an error hands
    on what it quotes: redacted, none of them has a value."""
    java = "[FAILED_READ_FILE] reading file /data/a.csv\nCaused by: java.io.IOException: bad ann"
    read = read_failure(PySparkException(java))
    assert "bad ann" in str(read)
    task = raised_by_task(PySparkException("ledger.errors.InputError: bad ann"))
    assert task is not None
    assert "bad ann" in str(task)
    stage = StageError("a row was refused:\n " + quote("bad\n ann."))
    again = explained(stage, "batch 7 failed", "Run it again")
    assert str(again) == "batch 7 failed: a row was refused: bad ann. Run it again"
    unknown = explained(KeyError("bad ann"), "batch 7 failed", "Run it again")
    for error in (read, task, again, unknown):
        assert "bad ann" not in str(redacted(error))
    assert "/data/a.csv" in str(redacted(read))
    assert str(redacted(again)) == "batch 7 failed: a row was refused: ***. Run it again"
    assert str(redacted(task)).startswith("InputError. Its words may hold")
