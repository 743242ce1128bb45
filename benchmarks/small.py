"""A small batch through Airflow, where the start of drivers is what is paid: in both forms,
against one bare spark-submit.

As Airflow sees them these are three DAGs, in ``dags/small.py``. A round runs each with ``airflow
dags test``, whose own start is part of all three.
"""

import shutil
import statistics
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from rich.console import Console
from rich.progress import track

from benchmarks.measure import seconds
from ledger.store import embedded
from scripts.airflow_env import airflow_environment, clean_environment

RECORDS = 1_000
VARIANTS = ("stage", "batch", "bare")
SOURCE = "orders.csv"
_DAGS = Path(__file__).with_name("dags")
START = datetime(2026, 1, 1, tzinfo=UTC)
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of all three


def measure(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    """Seconds of a DAG run in each form over those of one bare spark-submit, medians over
    ``rounds``.
    """
    environment = prepare(home)
    taken: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    try:
        for number in track(range(rounds + 1), "small batch: rounds", console=console):
            for variant in VARIANTS:
                day = START + timedelta(days=number)
                needed = seconds(partial(_run, home, environment, variant, day))
                _require_all(home / "data" / "warehouse" / variant)
                if number > 0:
                    taken[variant].append(needed)
    finally:
        embedded.stop(home)
    median = {variant: statistics.median(values) for variant, values in taken.items()}
    return {
        "small_batch.over_bare_spark_submit": median["batch"] / median["bare"],
        "small_batch.by_stage_over_bare_spark_submit": median["stage"] / median["bare"],
        "small_batch.seconds": taken,
    }


def prepare(home: Path) -> dict[str, str]:
    """Make the input and both databases from scratch; the environment of all later commands."""
    embedded.stop(home)
    shutil.rmtree(home, ignore_errors=True)
    (home / "data").mkdir(parents=True)
    lines = [f"{number},s{number % 7},{number % 5 + 1}" for number in range(RECORDS)]
    (home / "data" / SOURCE).write_text("\n".join(["id,shop,items", *lines, ""]))
    url = embedded.start(home)
    inherited = {k: v for k, v in clean_environment().items() if not k.startswith("ACKLEDGER_")}
    environment = {
        **inherited,
        "ACKLEDGER_HOME": str(home),
        "ACKLEDGER_DATA": str(home / "data"),
        "ACKLEDGER_STORAGE": str(home / "storage"),
        **airflow_environment(
            home / "airflow", embedded.ensure_database(url, "airflow"), dags_folder=_DAGS
        ),
    }
    for command in (("ackledger", "db", "upgrade"), ("airflow", "db", "migrate")):
        _call(home, environment, *command)
    return environment


def _run(home: Path, environment: dict[str, str], variant: str, day: datetime) -> None:
    _call(home, environment, "airflow", "dags", "test", f"small_{variant}", f"{day:%Y-%m-%d}")


def _call(home: Path, environment: dict[str, str], *command: str) -> None:
    log = home / "log"
    with log.open("a") as stream:
        done = subprocess.run(command, env=environment, stdout=stream, stderr=stream, check=False)
    if done.returncode:
        tail = "\n".join(log.read_text().splitlines()[-30:])
        raise SystemExit(f"{tail}\n{' '.join(command)} ended with {done.returncode}; see {log}")


def _require_all(warehouse: Path) -> None:
    """Raise SystemExit unless the sink has every record once; empty it."""
    rows = ds.dataset(warehouse, partitioning="hive", format="parquet").to_table()
    if sorted(rows["id"].to_pylist()) != list(range(RECORDS)):
        raise SystemExit(f"{warehouse} has {rows.num_rows} rows: expected each of {RECORDS} once")
    shutil.rmtree(warehouse)
