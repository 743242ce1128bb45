"""What years of history cost: sweep, opening a batch, status and the first page of each view, in a
ledger of 10,000 batches and in an empty one.
"""

import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from sqlalchemy import text

from benchmarks.history import UNTIL, write_history
from benchmarks.history_pipelines import pipeline
from benchmarks.measure import seconds
from ledger.batch.explain import explain
from ledger.batch.opening import open_batch
from ledger.batch.recovery import waiting_states
from ledger.batch.summary import summarize
from ledger.batch.sweeper import sweep_once
from ledger.core.run_request import Interval, RunKey
from ledger.settings import Settings
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.queries import reports
from ledger.store.upgrade import upgrade

PAGE = 50
# The views of docs/sql.md, and by what a reader has the newest of each first.
NEWEST = {
    "batch_status": "batch_id",
    "root_status": "batch_id",
    "step_progress": "batch_id",
    "pending_root": "batch_id",
    "replay_history": "message_id",
    "step_drops": "batch_id",
    "open_failure": "message_id",
    "source_progress": "batch_id",
    "source_file": "batch_id",
    "source_position": "pipeline",
    "pending_publication": "batch_id",
    "pending_rebuild": "batch_id",
    "sink_publication": "batch_id",
    "state_progress": "batch_id",
    "failed_root_detail": "root_id",
    "failed_root_payload": "root_id",
    "quarantine": "message_id",
    "held_record": "message_id",
    "accepted_record": "message_id",
    "payload_missing": "batch_id",
}
_ROUNDS = 3  # of these for one of the others: they take milliseconds

Action = Callable[[], object]


def measure(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    """Medians in seconds of each action, in an empty ledger and in one with a history, in turn."""
    embedded.stop(home)
    shutil.rmtree(home, ignore_errors=True)
    url = embedded.start(home)
    empty, long = Database(embedded.ensure_database(url, "empty")), Database(url)
    try:
        for database in (empty, long):
            upgrade(database)
        with console.status("history: writing it"):
            written = seconds(lambda: write_history(long))
        found = {"empty": _actions(empty, home), "long": _actions(long, home)}
        taken = _taken(found, rounds * _ROUNDS, console)
    finally:
        empty.dispose()
        long.dispose()
        embedded.stop(home)
    medians = {
        ledger: {name: statistics.median(values) for name, values in of.items()}
        for ledger, of in taken.items()
    }
    return {
        "history.write_seconds": written,
        "history.seconds": medians,
        **{
            f"history.{name}_over_empty": medians["long"][name] / medians["empty"][name]
            for name in ("sweep", "open")
        },
    }


def _taken(
    found: Mapping[str, Mapping[str, Action]], rounds: int, console: Console
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each round, after one that does not count. An action that only the one ledger has
    is measured there alone.
    """
    taken: dict[str, dict[str, list[float]]] = {ledger: defaultdict(list) for ledger in found}
    for number in track(range(rounds + 1), "history: rounds", console=console):
        for name in found["long"]:
            # In turn first and second: what the one leaves in a cache is for the other.
            for ledger in sorted(found, reverse=number % 2 == 1):
                if name in found[ledger]:
                    spent = seconds(found[ledger][name])
                    if number > 0:
                        taken[ledger][name].append(spent)
    return taken


def _actions(database: Database, home: Path) -> dict[str, Action]:
    """What is measured, by name; of records and batches where there are some."""
    made: dict[str, Action] = {
        "sweep": lambda: sweep_once(database),
        "open": _opener(database, home),
        "status": lambda: _status(database),
        **{f"view {name}": partial(_page, database, name, key) for name, key in NEWEST.items()},
        "failed": lambda: database.transact(
            lambda c: reports.failures(c, dict.fromkeys(("pipeline", "batch_id", "step", "reason")))
        ),
    }
    with database.payload_reader.connect() as connection:
        found = connection.execute(
            text("""
            SELECT max(original_batch_id) AS batch_id, max(message_id) AS message_id
            FROM failed_message WHERE status = 'quarantined'
            """)
        ).one()
    if found.batch_id is not None:
        made["status of a batch"] = lambda: summarize(database, found.batch_id)
        made["explain"] = lambda: explain(database, found.message_id)
    return made


def _opener(database: Database, home: Path) -> Action:
    """Opens a batch of a pipeline with a state over a day of its own."""
    made, settings = pipeline(2), Settings(home=home, data=str(home))
    days = iter(range(100_000))

    def opens() -> None:
        start = UNTIL + timedelta(days=next(days))
        interval = Interval(start, start + timedelta(days=1))
        batch = open_batch(database, settings, made, RunKey("", f"{start:%Y-%m-%d}"), interval)
        opened.append(batch.batch_id)

    opened: list[int] = []
    return opens


def _status(database: Database) -> None:
    """As ``ackledger status`` asks."""
    database.transact(lambda c: reports.recent_batches(c, None, 20), engine=database.reader)
    database.transact(waiting_states, engine=database.reader)


def _page(database: Database, view: str, key: str) -> None:
    """The first page of a view, newest first."""
    query = text(f"SELECT * FROM {view} ORDER BY {key} DESC LIMIT {PAGE}")
    database.transact(lambda c: c.execute(query).all(), engine=database.payload_reader)
