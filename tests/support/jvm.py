"""How the JVMs of tests start: with little to compile, and with the classes of Spark from an
archive.

``python -m tests.support.jvm`` makes in the virtual environment, once, what they share: an archive
of Spark's classes, which a JVM need not read from the jars then; the few defaults of Hadoop that
local files need; and a local file system that starts no process for each permission it sets. A JVM
that cannot use one of them, as of another Java, starts as it would without. ``python -m
tests.support.jvm jars`` makes all but the archive, which takes longer than it saves a few JVMs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pyspark

from tests.support.places import ROOT

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
DEFAULTS = Path(sys.prefix) / "hadoop-defaults.jar"
FILES = Path(sys.prefix) / "local-files.jar"
# Batches of tests are too small for code to be compiled, or plans to be changed while they run.
FACTORY = "spark.sql.codegen.factoryMode"
PLAIN = {
    "spark.sql.codegen.wholeStage": "false",
    FACTORY: "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# Each job's plan is written down for a page that no test opens: its shortest form is enough.
_UNREAD = {"spark.sql.ui.explainMode": "simple"}
# Over the loopback a JVM and its Python wait for each other's packets, 40 ms a task.
_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
# These JVMs live for seconds: what they compile at leisure never pays.
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
# The session of all tests lives as long as they run, so that what it plans with is worth compiling
# well: room for what dies young, and no memory of jobs that no test looks at.
LONG_LIVED = ("-XX:TieredStopAtLevel=4", "-Xms1500m", "-Xmn700m")
REMEMBERED = (
    "spark.ui.retainedJobs",
    "spark.ui.retainedStages",
    "spark.ui.retainedTasks",
    "spark.sql.ui.retainedExecutions",
)
# Each task gets Hadoop's configuration, with 1,364 defaults of YARN, object stores and much else.
_NEEDED = (
    "fs.AbstractFileSystem.file",
    "fs.automatic",
    "fs.client",
    "fs.creation",
    "fs.defaultFS",
    "fs.file",
    "fs.permissions",
    "hadoop.security.auth",
    "hadoop.security.group.mapping",
    "hadoop.tmp.dir",
    "io.",
    "mapreduce.fileoutputcommitter",
    "mapreduce.job.committer",
    "mapreduce.output",
)


def environment(*more: str, archive: str = "") -> dict[str, str]:
    """The variables that every JVM of a driver starts with. ``archive``: instead of the option
    with which it reads the archive.
    """
    options = [
        *_BRIEF,
        archive or _from_archive(),
        *more,
        *(f"-D{name}={value}" for name, value in {**PLAIN, **_UNREAD, **_SOCKETS}.items()),
    ]
    if DEFAULTS.exists():
        options.append(f"-Xbootclasspath/a:{DEFAULTS}")
    if FILES.exists():
        options.append("-Dspark.hadoop.fs.file.impl=LocalFiles")
    return {"SPARK_SUBMIT_OPTS": " ".join(options), "SPARK_DIST_CLASSPATH": str(FILES)}


def brief() -> dict[str, str]:
    """The variables with which a JVM that lives for seconds starts fast, its Spark as users have
    it.
    """
    options = [*_BRIEF, _from_archive(), f"-Xbootclasspath/a:{DEFAULTS}"]
    return {"SPARK_SUBMIT_OPTS": " ".join(options), "SPARK_DIST_CLASSPATH": str(FILES)}


def _from_archive() -> str:
    return f"-XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else "-Xshare:auto"


def make_jars() -> None:
    """Make what takes no JVM of Spark."""
    (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    _needed_defaults(hadoop)
    _local_files(hadoop)


def _needed_defaults(hadoop: Path) -> None:
    """Put those of Hadoop's defaults that local files need where they are found before the
    others.
    """
    with zipfile.ZipFile(hadoop) as archive, zipfile.ZipFile(DEFAULTS, "w") as defaults:
        for name in ("core-default.xml", "mapred-default.xml", "yarn-default.xml"):
            root = ElementTree.fromstring(archive.read(name))
            for setting in root.findall("property"):
                if not (setting.findtext("name") or "").startswith(_NEEDED):
                    root.remove(setting)
            defaults.writestr(name, ElementTree.tostring(root))


def _local_files(hadoop: Path) -> None:
    """Compile the local file system, where there is a compiler."""
    if shutil.which("javac") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(__file__).with_name("LocalFiles.java")
        javac = ("javac", "-proc:none", "-cp", hadoop, "-d", folder, source)
        subprocess.run(javac, check=True)
        with zipfile.ZipFile(FILES, "w") as result:
            for paths in Path(folder).iterdir():
                result.write(paths, paths.name)


def main() -> None:
    """Make what the JVMs share, unless it is there and newer than this file."""
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > Path(__file__).stat().st_mtime:
        return
    began = time.monotonic()
    sys.stdout.write("archive of Spark's classes for the tests ... ")
    sys.stdout.flush()
    make_jars()
    result = ARCHIVE.with_suffix(".part")
    data = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **environment(archive=f"-XX:ArchiveClassesAtExit={result}"),
    }
    submit = Path(sys.executable).with_name("spark-submit")
    quiet = ("--conf", "spark.ui.enabled=false", "--master", "local[2]")
    done = subprocess.run(
        [submit, *quiet, __file__, "run"],
        env=data,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not result.exists():
        sys.stdout.write(f"none, so the tests take longer:\n{done.stderr[-2000:]}\n")
        return
    result.rename(ARCHIVE)
    sys.stdout.write(f"{time.monotonic() - began:.0f} s\n")


def run_orders() -> None:
    """A whole batch of orders: what most tests need is loaded then."""
    from ledger.spark.job import Job
    from ledger.spark.session import build_session
    from ledger.store import embedded
    from ledger.store.connection import Database
    from ledger.store.upgrade import upgrade
    from tests.support import orders
    from tests.support.crashing import opened, run_whole, settings_of

    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        url = embedded.start(home)
        try:
            database = Database(url)
            upgrade(database)
            orders.write(folder)
            warehouse = embedded.ensure_database(url, "warehouse")
            pipeline = orders.pipeline(str(folder), warehouse, orders.Variant())
            spark = build_session("archive")
            job = Job(spark, database, settings_of(str(home), str(folder)), pipeline)
            run_whole(job, opened(job))
            spark.stop()
            database.dispose()
        finally:
            embedded.stop(home)


if __name__ == "__main__":
    {"run": run_orders, "jars": make_jars}.get(sys.argv[-1], main)()
