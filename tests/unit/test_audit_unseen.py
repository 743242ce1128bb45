"""Commands, processes and file systems of Arrow that an audited script uses, without Spark."""

import asyncio
import ctypes.util
import importlib
import multiprocessing
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
from pyspark import cloudpickle

from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.unseen import note_unseen
from ledger.lineage import sites

UNSEEN = " is executed: the audit does not see what it writes or removes"


@pytest.fixture
def job(tmp_path):
    """An audit whose script is this file."""
    job, patches = JobAudit(tmp_path), Patches()
    note_unseen(patches, job)
    yield job
    patches.undo()


def noted(job: JobAudit) -> list[str]:
    """Names in the notes, each of a line of this file or of none."""
    assert all(note.endswith(UNSEEN) for note in job.notes)
    names = {note.removesuffix(UNSEEN): note.split(" at ")[0] for note in job.notes}
    places = {each.split(" at ")[1].split(":")[0] for each in names}
    assert places <= {Path(__file__).name, sites.UNKNOWN}
    return list(names.values())


async def _asynchronous() -> None:
    process = await asyncio.create_subprocess_exec("true", "async")
    await process.wait()


def _in_threads() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(subprocess.run, ["true", "thread"]).result()


COMMANDS = {
    "true run": lambda: subprocess.run(["true", b"run"], check=True),
    "true shell": lambda: subprocess.check_output("true  shell", shell=True),
    "true keyword": lambda: subprocess.Popen(args=["true", Path("keyword")]).wait(),
    "true system": lambda: os.system("true system"),
    "true command": lambda: os.system(command="true command"),
    "true popen": lambda: os.popen("true popen").close(),
    "true spawn": lambda: os.spawnlp(os.P_WAIT, "true", "true", "spawn"),
    "true spawnve": lambda: os.spawnve(os.P_WAIT, "/bin/true", ["true", "spawnve"], {}),
    "true posix": lambda: os.waitpid(os.posix_spawnp("true", ["true", "posix"], {}), 0),
    "true async": lambda: asyncio.run(_asynchronous()),
    "true thread": _in_threads,
    "true " + 42 * "x" + "...": lambda: subprocess.run(["true", 100 * "x"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_noted(job, command):
    """Each way to start a command is noted once, with the line and the command's first words."""
    COMMANDS[command]()
    assert noted(job) == [f"`{command}`"]


def test_a_line_that_starts_many_commands_is_noted_a_few_times(job):
    """A helper's commands are told apart, and a loop over files does not fill the report."""
    for number in range(20):
        for _ in range(2):
            subprocess.run(["true", str(number)])
    assert noted(job) == [*(f"`true {number}`" for number in range(5)), "another command"]


def test_commands_that_did_not_start_are_not_noted(job):
    """The script has its error, and nothing was executed."""
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-command"])
    with pytest.raises(TypeError):
        subprocess.run()
    assert job.notes == []


def test_commands_of_libraries_themselves_are_not_noted(job):
    """Spark starts its JVM, and Python asks for the name of the processor."""
    new = importlib.reload(platform)  # has forgotten the name
    assert new.processor() is not None
    ctypes.util.find_library("c")
    spark: dict = {"subprocess": subprocess}
    exec(compile("subprocess.run(['true'])", f"{sites.LIBRARIES[0]}java_gateway.py", "exec"), spark)
    assert job.notes == []


def test_processes_are_noted(job):
    """Changes by a child are in no note of the audit's own process."""
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=os.getpid)
        process.start()
        process.join()
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert noted(job) == 2 * ["a process"]


def test_calls_that_would_end_the_audit_end_the_script(job):
    """A script has no report otherwise; a process that it has forked runs another program."""
    for end in (
        lambda: os.execlp("true", "true"),
        lambda: os.execve("/bin/true", ["true"], {}),
        lambda: os._exit(0),
        os.abort,
    ):
        with pytest.raises(ScriptStop, match="which ends the process without a report"):
            end()
    if (child := os.fork()) == 0:
        os.execv("/bin/sh", ["sh", "-c", "exit 7"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


FILE_SYSTEMS = {
    "a class": "from pyarrow import fs\nfs.LocalFileSystem().create_dir('{there}/a')",
    "a name": "from pyarrow.fs import LocalFileSystem\nLocalFileSystem().create_dir('{there}/a')",
    "all names": "from pyarrow.fs import *\nLocalFileSystem().create_dir('{there}/a')",
    "a URI": (
        "import pyarrow.fs\n"
        "pyarrow.fs.FileSystem.from_uri('file://{there}')[0].create_dir('{there}/a')"
    ),
    "a copy": "import pyarrow.fs as fs\nfs.copy_files({here!r}, {there!r})",
}


@pytest.mark.parametrize("text", FILE_SYSTEMS)
def test_file_systems_of_arrow_are_noted(job, tmp_path, text):
    """They are the classes that they were, with the line that takes them from the module."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "a").touch()
    there.mkdir()
    script = FILE_SYSTEMS[text].format(here=str(here), there=str(there))
    exec(compile(script, "job.py", "exec"), {})
    line = 1 if "name" in text else 2
    assert job.notes == [f"pyarrow.fs at job.py:{line}{UNSEEN}"]
    assert (there / "a").exists()


def test_a_function_with_the_module_of_file_systems_is_pickled(job):
    """A UDF of the script may use it on the workers."""
    assert cloudpickle.loads(cloudpickle.dumps(pyarrow.fs)) is pyarrow.fs
    assert job.notes == []


def test_file_systems_that_arrow_itself_uses_are_not_noted(job, tmp_path):
    """Calls of Arrow that the audit knows are noted by their own names."""
    table = pyarrow.table({"n": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.dataset.dataset(str(tmp_path / "a.parquet")).to_table()
    pyarrow.dataset.write_dataset(table, tmp_path / "b", format="parquet")
    table.to_pandas().to_orc(tmp_path / "a.orc")
    assert job.notes == []


def test_everything_is_as_it_was_after_the_script(tmp_path):
    """Python and Arrow have their own functions again."""
    before = (subprocess.Popen.__init__, os.system, os.fork, os._exit, type(pyarrow.fs))
    patches = Patches()
    note_unseen(patches, JobAudit(tmp_path))
    assert type(pyarrow.fs) is not type(sys)
    patches.undo()
    after = (subprocess.Popen.__init__, os.system, os.fork, os._exit, type(pyarrow.fs))
    assert after == before
