"""Hints of ``make up`` on the folders that it was given: their DAGs, the dates of their data."""

import re
import time
from itertools import islice
from pathlib import Path

from scripts.airflow_api import AirflowApi

# What makes the DAGs of all pipelines, and our file that does.
OURS = {
    "sweeper_dag": "dags/ledger_sweeper.py",
    "replay_dag": "dags/ledger_replay.py",
    "accept_dag": "dags/ledger_accept.py",
}
_OWN = {"ledger_sweeper", "ledger_replay", "ledger_accept"}  # their ids
_DATE = re.compile(r"(?<!\d)(\d{4})[-/]?(0[1-9]|1[0-2])[-/]?(0[1-9]|[12]\d|3[01])(?!\d)")
_FILES = 10_000  # that are looked at
_DATES = 3  # that a first backfill reads
_PARSING_SECONDS = 30.0


def missing_files(dags: Path) -> list[str]:
    """Our DAG files that a folder of DAG files has nothing in the place of."""
    written = "\n".join(path.read_text(errors="replace") for path in sorted(dags.rglob("*.py")))
    return [file for name, file in OURS.items() if not re.search(rf"\b{name}\(", written)]


def pipelines(port: int, password: str, seconds: float = _PARSING_SECONDS) -> list[str]:
    """The DAGs of pipelines that Airflow has parsed by then; at least one, if there are any."""
    airflow, deadline = AirflowApi(port, password), time.monotonic() + seconds
    while (
        not (pipelines_ := sorted(set(airflow.known_dags()) - _OWN)) and time.monotonic() < deadline
    ):
        time.sleep(1)
    return pipelines_


def first_dates(data: Path, dag: str) -> tuple[str, str] | None:
    """The first and the last of the earliest dates in the names of files below a folder, of those
    named after the DAG where there are some; None if no name has a date.
    """
    names = [str(path.relative_to(data)) for path in islice(data.rglob("*"), _FILES)]
    named = [name for name in names if dag in name]
    for choice in (named, names):
        dates = sorted({"-".join(parts) for name in choice for parts in _DATE.findall(name)})
        if dates:
            return dates[0], dates[:_DATES][-1]
    return None


def hint(missing: list[str], dag: str | None, dates: tuple[str, str] | None) -> list[str]:
    """Yield what to do next, line by line."""
    lines = []
    if missing:
        copied = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        lines.append(f"Add       copy {copied} beside your DAGs")
    if dag is None:
        return [
            *lines,
            "Next      no DAG of a pipeline is parsed yet: Airflow's home page says why",
        ]
    first, last = dates or ("YYYY-MM-DD", "YYYY-MM-DD")
    return [
        *lines,
        f"Next      unpause {dag} to schedule it, or backfill it:",
        f"  airflow backfill create --dag-id {dag} --from-date {first} --to-date {last}",
    ]
