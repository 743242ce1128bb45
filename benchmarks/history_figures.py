"""Cost of years of history: sweep, opening a batch, status and the first page of each view, in a
ledger of 10,000 batches and in an empty one; and the page of a batch with a million failures.
"""

import os
import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from sqlalchemy import text

from benchmarks.history import UNTIL, write_history
from benchmarks.history_pipelines import pipeline
from benchmarks.lives import dead_share, live, live_again, wait_for_counts
from benchmarks.measure import seconds
from ledger.batch.manual_actions import abandon
from ledger.batch.opening import open_batch
from ledger.batch.outcome.summary import summarize
from ledger.batch.pages import batches, overview
from ledger.batch.records.explain import explain
from ledger.batch.recovery import waiting_states
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.core.run_request import Interval, RunKey
from ledger.settings import Settings
from ledger.store import embedded
from ledger.store.connection import PAYLOAD_READER, READER, Database
from ledger.store.queries import failures, reports
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
    "pending_follow_up": "batch_id",
    "sink_publication": "batch_id",
    "state_progress": "batch_id",
    "failed_root_detail": "root_id",
    "quarantine": "message_id",
    "hold_preview": "batch_id",
    "accepted_record": "message_id",
}
FAILED = 1_000_000  # records of one large batch
LIVES = 1_000  # batches whose dead rows are counted
_ROUNDS = 3  # of these for one of the others: they take milliseconds


@dataclass(frozen=True)
class Action:
    """A statement to time, and one that restores the ledger, which is not timed."""

    run: Callable[[], object]
    undo: Callable[[], object] = lambda: None


def measure(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    """Medians in seconds of each action, in an empty ledger and in one with a history, in turn; and
    the share of rows that are dead after 1,000 batches.
    """
    with _one_processor():
        return _measure(home, rounds, console)


@contextmanager
def _one_processor() -> Iterator[None]:
    """Run this process, and servers that it starts, on one processor. With more of them the kernel
    may place client and server on two, and then each answer has to wake one that sleeps: after
    queries of a second the larger ledger's sweep took 1.5 times as long.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


def _measure(home: Path, rounds: int, console: Console) -> dict[str, Any]:
    embedded.stop(home)
    shutil.rmtree(home, ignore_errors=True)
    settings = Settings(home=home, data=str(home))
    url = embedded.start(home)
    ledgers = {
        "empty": Database(embedded.ensure_database(url, "empty")),
        "history": Database(url),
    }
    try:
        for database in ledgers.values():
            upgrade(database)
        with console.status("history: writing it"):
            written = seconds(lambda: write_history(ledgers["history"]))
        medians = _medians(ledgers, settings, rounds * _ROUNDS, console)
        dead = _dead_rows(ledgers["empty"], settings, console)
        large = _large_batch(embedded.ensure_database(url, "large"), rounds)
    finally:
        for database in ledgers.values():
            database.dispose()
        embedded.stop(home)
    return {
        "history.write_seconds": written,
        "history.seconds": medians,
        "history.dead_rows": dead,
        "history.large_batch_seconds": large,
        **{
            f"history.{name}_over_empty": medians[name]["history"] / medians[name]["empty"]
            for name in ("sweep", "open")
        },
        "history.slowest_page_seconds": max(
            of["history"] for name, of in medians.items() if name.startswith("view ")
        ),
    }


def _medians(
    ledgers: Mapping[str, Database], settings: Settings, rounds: int, console: Console
) -> dict[str, dict[str, float]]:
    """By action and ledger, after a round that does not count."""
    actions = {name: _actions(database, settings) for name, database in ledgers.items()}
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in track(range(rounds + 1), "history: rounds", console=console):
        for name in actions["history"]:
            # In turn first and second: what the one leaves in a cache is for the other.
            for ledger in sorted(actions, reverse=number % 2 == 1):
                action = actions[ledger][name]
                spent = seconds(action.run)
                action.undo()
                if number > 0:
                    taken[name][ledger].append(spent)
    return {
        name: {ledger: statistics.median(values) for ledger, values in of.items()}
        for name, of in taken.items()
    }


def _actions(database: Database, settings: Settings) -> dict[str, Action]:
    """Each measured call by name. Of a record and a batch: one that lived and failed here."""
    batch = live(database, settings, pipeline(4), -1)
    sweep_once(database)
    (record,) = database.transact(lambda c: c.execute(text(_A_RECORD)).scalars())
    as_reader = Database(database.url.render_as_string(hide_password=False), role=READER)
    none = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))
    days = iter(range(LIVES, 2 * LIVES))
    return {
        "sweep": Action(lambda: sweep_once(database)),
        "open": _opening(database, settings),
        "a batch of 100 records, without Spark": Action(
            lambda: live(database, settings, pipeline(4), next(days)), lambda: sweep_once(database)
        ),
        "status": Action(lambda: _status(database)),
        "status of a batch": Action(lambda: summarize(database, batch.batch_id)),
        "explain": Action(lambda: explain(database, record)),
        "the first view of the pages": Action(partial(_first_view, as_reader)),
        "failed": Action(lambda: database.transact(lambda c: failures.summaries(c, none))),
        **{
            f"view {view}": Action(partial(_page, database, view, key))
            for view, key in NEWEST.items()
        },
    }


_A_RECORD = "SELECT max(message_id) FROM failed_message"
_LARGE = """
SELECT batch_id, percentile_disc(0.5) WITHIN GROUP (ORDER BY root_id)
FROM failed_root GROUP BY batch_id ORDER BY count(*) DESC LIMIT 1
"""


def _opening(database: Database, settings: Settings) -> Action:
    """Opens a batch of a pipeline with a state over a day of its own; it is abandoned, so that the
    sweeps have none to look at.
    """
    pipeline_, opened = pipeline(2), list[int]()

    def run() -> None:
        start = UNTIL + timedelta(days=len(opened))
        key, interval = (
            RunKey(pipeline_.name, f"{start}"),
            Interval(start, start + timedelta(days=1)),
        )
        opened.append(open_batch(database, settings, pipeline_, key, interval).batch_id)

    return Action(run, lambda: abandon(database, opened[-1], "it was opened to be measured"))


def _status(database: Database) -> None:
    """Run the queries of ``ackledger status``."""
    database.transact(lambda c: reports.recent_batches(c, None, 20), engine=database.reader)
    database.transact(waiting_states, engine=database.reader)


def _first_view(database: Database) -> None:
    """Run the queries of the pages in Airflow: the overview of all, and the calendar of one."""
    names = overview.pipelines(database)
    overview.overview(database, names)
    if names:
        overview.pipeline(database, names[0])


def _page(database: Database, view: str, key: str) -> None:
    """The first page of a view, newest first."""
    query = text(f"SELECT * FROM {view} ORDER BY {key} DESC LIMIT {PAGE}")
    database.transact(lambda c: c.execute(query).all(), engine=database.payload_reader)


def _large_batch(url: str, rounds: int) -> dict[str, float]:
    """Medians in seconds of what a batch's page asks; of its records a million failed."""
    owner, reader = Database(url), Database(url, role=PAYLOAD_READER)
    try:
        upgrade(owner)
        write_history(owner, batches=1, failed=FAILED, pipelines=1)
        number, middle = owner.transact(lambda c: c.execute(text(_LARGE)).one())
        asked: dict[str, Callable[[], object]] = {
            "the page": partial(batches.batch, reader, number),
            "the first records": partial(batches.failed, reader, number, {}),
            "records after half of them": partial(
                batches.failed, reader, number, {"after": middle}
            ),
            "a search that finds none": partial(
                batches.failed, reader, number, {"search": "~none~"}
            ),
        }
        return {
            name: statistics.median(seconds(ask) for _ in range(rounds))
            for name, ask in asked.items()
        }
    finally:
        owner.dispose()
        reader.dispose()


def _dead_rows(database: Database, settings: Settings, console: Console) -> float:
    """The share of rows that are dead after many batches, of which every tenth is replayed, with a
    sweep after each twenty.
    """
    flow = pipeline(4)
    for number in track(range(LIVES), "history: lives", console=console):
        batch = live(database, settings, flow, number)
        if number % 10 == 9:
            live_again(database, settings, flow, batch)
        if number % 20 == 19:
            sweep_once(database)
    wait_for_counts(database)
    sweep_once(database, vacuum_after_seconds=0)
    return dead_share(database)
