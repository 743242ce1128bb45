"""Whether a record costs as much in a large batch as in a small one: Parquet in, two stages,
Parquet out, over 1, 10 and 30 million generated records.

Each size and variant runs in a process of its own, whose peak memory is then its own:
``python -m benchmarks.scale FOLDER RECORDS VARIANT ROUNDS`` writes what it took as JSON.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track

from benchmarks import plain
from benchmarks.measure import Bench, PeakMemory, seconds
from benchmarks.pipelines import measurements
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade

SIZES = {"1m": 1_000_000, "10m": 10_000_000, "30m": 30_000_000}
ROUNDS = {"1m": 3, "10m": 2, "30m": 1}  # at most
VARIANTS = ("tracked", "plain", "one_plan")
FILES = 4
SESSION = "--conf spark.sql.shuffle.partitions=4 pyspark-shell"
_WARM_UP = 1_000_000  # records: what a session's first batch pays is in none of the figures


def measure(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    """By size and variant the median seconds per million records, over fewer rounds the larger they
    are, the peak resident megabytes of driver and workers, and the most rows that a run posts.
    """
    figures: dict[str, Any] = {}
    places = [(size, variant) for size in SIZES for variant in VARIANTS]
    for size, variant in track(places, "scale", console=console):
        embedded.stop(home)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        count = min(rounds, ROUNDS[size])
        figures.setdefault(variant, {})[size] = _in_process(home, SIZES[size], variant, count)
    shutil.rmtree(home)
    return {"scale": figures}


def _in_process(home: Path, records: int, variant: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", str(home), str(records), variant]
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": SESSION}
    log = home / "log"
    try:
        with log.open("w") as stream:
            done = subprocess.run(
                [*command, str(rounds)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                check=False,
            )
    finally:
        embedded.stop(home)
    if done.returncode:
        raise SystemExit(f"{log.read_text()[-3000:]}\n{command} ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def figures_of(home: Path, records: int, variant: str, rounds: int) -> dict[str, Any]:
    """Measure one size in one variant, in a session that has run a million records before."""
    session = build_session("scale", "local[2]")
    ledger_rows: dict[str, int] = {}
    if variant == "tracked":
        run = _tracked(session, home, ledger_rows)
    else:
        io = plain.OnePlan(session) if variant == "one_plan" else plain.Batches(session)
        run = _by_hand(io, home)
    try:
        write(session, home / "data" / "warm-up", _WARM_UP)
        write(session, home / "data" / "records", records)
        run("warm-up")
        with PeakMemory() as memory:
            taken = [run("records") for _ in range(rounds)]
    finally:
        session.stop()
    return {
        "seconds": taken,
        "seconds_per_million": statistics.median(taken) / (records / 1e6),
        "peak_rss_mb": memory.mb,
        "ledger_rows_a_run": max(ledger_rows.values(), default=0),
    }


def _tracked(
    session: SparkSession, home: Path, ledger_rows: dict[str, int]
) -> Callable[[str], float]:
    """Runs batches; notes in ``ledger_rows`` what each run of the last one posted."""
    database = Database(embedded.start(home))
    upgrade(database)
    settings = Settings(home=home, storage=str(home / "storage"), data=str(home / "data"))
    bench = Bench(lambda pipeline: Job(session, database, settings, pipeline), settings, database)

    def run(folder: str) -> float:
        _, times = bench.batch(measurements(folder, True))
        ledger_rows.update(bench.ledger_rows)
        return times.total

    return run


def _by_hand(io: plain.Batches, home: Path) -> Callable[[str], float]:
    out = home / "plain"

    def run(folder: str) -> float:
        taken = seconds(lambda: plain.measurements(io, home / "data" / folder, out))
        shutil.rmtree(out)
        return taken

    return run


def write(session: SparkSession, folder: Path, records: int) -> None:
    """Records as they are measured: a number, one of a thousand places, an amount."""
    place = F.concat(F.lit("place "), F.pmod(F.xxhash64("id"), F.lit(1_000)))
    rows = session.range(0, records, 1, FILES).select(
        "id", place.alias("place"), (F.pmod(F.hash("id"), F.lit(100_000)) / 100).alias("amount")
    )
    rows.write.parquet(str(folder))


def main(folder: str, records: str, variant: str, rounds: str) -> None:
    """Write the figures of one size and variant to standard output."""
    figures = figures_of(Path(folder), int(records), variant, int(rounds))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
