"""How the JVMs of tests start: with little to compile, and with the classes of Spark from an archive.

``python -m tests.support.jvm`` makes the archive in the virtual environment, once: a JVM that finds
its classes there need not read them from the jars. One that cannot use it, as of another Java,
starts as it would without.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# Batches of tests are too small for code to be compiled, or plans to be changed while they run.
FACTORY = "spark.sql.codegen.factoryMode"
PLAIN = {
    "spark.sql.codegen.wholeStage": "false",
    FACTORY: "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# These JVMs live for seconds: what they compile at leisure never pays.
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
_ROOT = Path(__file__).resolve().parents[2]


def options(archive: str = f"-XX:SharedArchiveFile={ARCHIVE}") -> str:
    """What ``SPARK_SUBMIT_OPTS`` says to every JVM of a driver."""
    return " ".join([*_BRIEF, archive, *(f"-D{name}={value}" for name, value in PLAIN.items())])


def main() -> None:
    """Make the archive, unless it is there."""
    if ARCHIVE.exists():
        return
    began = time.monotonic()
    sys.stdout.write("archive of Spark's classes for the tests ... ")
    sys.stdout.flush()
    made = ARCHIVE.with_suffix(".part")
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": options(f"-XX:ArchiveClassesAtExit={made}"),
    }
    submit = Path(sys.executable).with_name("spark-submit")
    quiet = ("--conf", "spark.ui.enabled=false", "--master", "local[2]")
    done = subprocess.run(
        [submit, *quiet, __file__, "run"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not made.exists():
        sys.stdout.write(f"none, so the tests take longer:\n{done.stderr[-2000:]}\n")
        return
    made.rename(ARCHIVE)
    sys.stdout.write(f"{time.monotonic() - began:.0f} s\n")


def run_orders() -> None:
    """A whole batch of orders: what most tests need is loaded then."""
    from ledger.database import embedded
    from ledger.database.connection import Database
    from ledger.database.upgrade import upgrade
    from ledger.spark.job import Job
    from ledger.spark.session import build_session
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
    run_orders() if sys.argv[1:] == ["run"] else main()
