"""CPU seconds of a driver that runs a small batch, by part: its JVM, imports, session, and
each of its steps.
"""

import json
import os
import statistics
import subprocess
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks import small
from benchmarks.small_pipelines import batch as pipeline
from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.settings import Settings
from ledger.store import embedded
from ledger.store.connection import Database

_PROGRAM = Path(__file__).with_name("driver_parts.py")
_KINDS = ("jvm", "python", "workers")


def parts(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    """CPU seconds by part of a driver and by process, medians over ``rounds``."""
    environment = small.prepare(home)
    database = Database(embedded.start(home))
    settings = Settings(home=home, storage=str(home / "storage"), data=str(home / "data"))
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        for number in track(range(rounds + 1), "driver: rounds", console=console):
            start = small.START + timedelta(days=number)
            interval = Interval(start, start + timedelta(days=1))
            opened = open_batch(database, settings, pipeline, RunKey("", f"run {number}"), interval)
            seconds = _driven(home, environment, opened.batch_id)
            if number > 0:
                before = dict.fromkeys(_KINDS, 0.0)
                for name, spent in seconds:
                    for kind in _KINDS:
                        taken[name][kind].append(spent[kind] - before[kind])
                    before = spent
    finally:
        database.dispose()
        embedded.stop(home)
    return {
        "driver_cpu_seconds": {
            name: {kind: statistics.median(values) for kind, values in kinds.items()}
            for name, kinds in taken.items()
        }
    }


def _driven(
    home: Path, environment: dict[str, str], batch_id: int
) -> list[tuple[str, dict[str, float]]]:
    report = home / "parts.json"
    options = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
    java = f"spark.driver.extraJavaOptions={small.JAVA}"
    program = [os.fspath(_PROGRAM), os.fspath(report), str(batch_id)]
    command = ["spark-submit", *options, "--conf", java, *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return [(name, spent) for name, spent in json.loads(report.read_text())]
