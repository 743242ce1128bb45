"""Run the demo: ``make demo``. Everything is recreated under ``var/demo``."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import text

from demo import data, oracle
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.queries import reports
from scripts.airflow_env import airflow_environment, clean_environment

HOME = Path("var/demo").absolute()
if not embedded.reachable(HOME):  # of root's, in a checkout that is closed to the server's user
    HOME = Path("/var/lib/ackledger/demo")
STEPS = 5  # Spark jobs of a run: the source, three stages, the sink
LATE_STEPS = 3
COMBINED = 2  # what follows once no record is failed any more: the totals of days, and their sink
SHOWN = "SELECT batch_id, sink, state, rows, withheld_rows FROM sink_publication ORDER BY 1, 2"
FEBRUARY = (
    "--from",
    "2013-02-01",
    "--to",
    "2013-03-01",
    "--guarantee",
    "at_least_once",
)
MARCH = ("--from", "2013-03-01", "--to", "2013-04-01")
DROPPED = "SELECT reason, records FROM step_drops WHERE batch_id = 4"
ENDS = f"{DROPPED} UNION ALL SELECT reason, records FROM step_losses WHERE batch_id = 4"
INCOMPLETE = 3  # flights whose plane is in no list remain failed until they are replayed
JANUARY = "2013-01-01"  # a run by hand reads the interval that its date lies in
REPLAY = (  # any date that the DAG's start and end allow: a replay has its original's interval
    "2013-02-02"
)
console = Console()


def main() -> int:
    """The whole demo; 0 if the sink holds just what pandas expects."""
    began = time.monotonic()
    fresh_home()
    try:
        return _demo(began)
    finally:
        embedded.stop(HOME)


def fresh_home() -> None:
    """Stop what an interrupted demo left, and empty the folder."""
    embedded.stop(HOME)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)


def _demo(began: float) -> int:
    with step("embedded PostgreSQL, the ledger's schema, Airflow's own database"):
        environment = set_up()
    database = Database(embedded.start(HOME))
    with step("real input: flights of 2013 by month, weather, every other plane"):
        flights, planes = data.write_months(HOME), data.write_planes(HOME, every=2)
    console.print(
        f"   {flights:,} flights in 12 files; the planes file is incomplete: {planes:,} planes"
    )
    with step(
        "Airflow runs DAG flights for January, one Spark job a step", bar=(database, 1, STEPS)
    ):
        airflow(environment, "dags", "test", "flights", JANUARY, expect_failure=True)
    console.print("   No check was written. The run's last task is red; the ledger reports why:")
    ackledger(environment, "failed")
    console.print("   The warehouse has what is acked. The totals of the days wait for the rest.")
    data.write_planes(HOME)
    with step(
        "the full planes file has arrived: replay, the same DAG, only what failed",
        bar=(database, 2, STEPS + COMBINED),
    ):
        replay = ("dags", "test", "flights", REPLAY, "--conf", '{"replay_of": 1}')
        airflow(environment, *replay, expect_failure=True)
    ackledger(environment, "failed")
    console.print("   The pipeline allows one replay (max_replays=1), so these are quarantined.")
    console.print("   The run stays red until a person accepts them:")
    ackledger(environment, "accept", "1", "--reason", "no list knows their plane")
    console.print(
        "\n   From now on the last task is green: clear it, and it reports what was accepted."
    )
    ackledger(environment, "status")
    ackledger(environment, "sql", SHOWN)
    with step("compare the sinks with an independent pandas computation"):
        wanted = oracle.expected_rows(HOME, ["2013-01-01"])
        rows = oracle.sink_rows(HOME / "warehouse" / "departures")
        days = oracle.day_rows(HOME / "warehouse" / "days") == oracle.expected_days(wanted)
    once = _at_least_once(database, environment)
    late = _late(database, environment)
    return _conclude(database, wanted, rows, days and once and late, began)


def _at_least_once(database: Database, environment: dict[str, str]) -> bool:
    """The same pipeline under the other guarantee, without Airflow; whether its sink is right."""
    own = {**environment, "ACKLEDGER_DATA": str(HOME / "again")}
    (HOME / "again").mkdir()
    for name in ("flights", "planes.csv", "weather.csv"):
        (HOME / "again" / name).symlink_to(HOME / name)
    with step(
        "the same pipeline at least once, without Airflow: February", bar=(database, 3, STEPS)
    ):
        ackledger(own, "run", "jobs.flights:pipeline", *FEBRUARY, quiet=True, expect=INCOMPLETE)
    rows = oracle.sink_rows(HOME / "again" / "warehouse" / "departures")
    console.print(
        f"   {rows.total():,} flights were visible to readers before anything was decided"
    )
    return rows == oracle.expected_rows(HOME, ["2013-02-01"])


def _late(database: Database, environment: dict[str, str]) -> bool:
    """Run a filter that drops where its condition is false and loses where it is NULL. Return
    whether the ledger has the numbers of pandas.
    """
    with step("delays over an hour, of March: a filter and a join", bar=(database, 4, LATE_STEPS)):
        ackledger(environment, "run", "jobs.late:pipeline", *MARCH, quiet=True, expect=INCOMPLETE)
    console.print("   A flight that left on time is dropped on purpose:")
    ackledger(environment, "sql", DROPPED)
    console.print("   One without a delay, or without a plane, is lost:")
    ackledger(environment, "failed", "--batch", "4")
    rows = database.transact(lambda c: c.execute(text(ENDS)).all(), engine=database.reader)
    return causes(rows) == oracle.expected_causes(HOME, "2013-03-01")


def causes(ends: Iterable[Sequence[Any]]) -> dict[str, int]:
    """Return the records by cause, of rows of reason and records: a reason is, for example,
    ``filter at late.py:25: condition NULL: dep_delay > 60``.
    """
    return {reason.split(": ")[1]: records for reason, records in ends}


@contextmanager
def step(what: str, bar: tuple[Database, int, int] | None = None) -> Iterator[None]:
    """Announce a step in one line, and end it with its time."""
    started = time.monotonic()
    if bar is None:
        yield
    else:
        with progress_of(what, *bar):
            yield
    console.print(f"[bold green]✓[/] {what} [dim]({time.monotonic() - started:.1f} s)[/]")


@contextmanager
def progress_of(what: str, database: Database, batch_id: int, total: int) -> Iterator[None]:
    """A bar over the batch's ``total`` Spark jobs, fed by the ledger's own view of them."""
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        stop = _every_second(
            lambda: progress.update(task, completed=_committed(database, batch_id))
        )
        try:
            yield
        finally:
            stop()


def _every_second(action: Callable[[], None]) -> Callable[[], None]:
    import threading

    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(1):
            action()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()

    return stop


def _committed(database: Database, batch_id: int) -> int:
    rows = database.transact(lambda c: reports.step_table(c, batch_id), engine=database.reader)
    return sum(row.state == "committed" for row in rows)


def set_up() -> dict[str, str]:
    """Start the server and migrate both databases; the environment of all commands that follow."""
    url = embedded.start(HOME)
    own = {
        "ACKLEDGER_HOME": str(HOME),
        "ACKLEDGER_DATA": str(HOME),
        "ACKLEDGER_STORAGE": str(HOME / "storage"),
    }
    airflow_url = embedded.ensure_database(url, "airflow")
    inherited = {k: v for k, v in clean_environment().items() if not k.startswith("ACKLEDGER_")}
    environment = {**inherited, **own, **airflow_environment(HOME / "airflow", airflow_url)}
    ackledger(environment, "db", "upgrade", quiet=True)
    airflow(environment, "db", "migrate")
    return environment


def airflow(environment: dict[str, str], *arguments: str, expect_failure: bool = False) -> None:
    """Run Airflow's command, its output in ``var/demo/airflow.log``."""
    log = HOME / "airflow.log"
    with log.open("a") as stream:
        done = subprocess.run(
            ["airflow", *arguments], env=environment, stdout=stream, stderr=stream, check=False
        )
    if (done.returncode != 0) is not expect_failure:
        tail = "\n".join(log.read_text().splitlines()[-30:])
        raise SystemExit(
            f"{tail}\nairflow {' '.join(arguments)} ended with {done.returncode}; see {log}"
        )


def ackledger(
    environment: dict[str, str], *arguments: str, quiet: bool = False, expect: int = 0
) -> None:
    """Run our own command as a user would, echoing it."""
    if not quiet:
        console.print(f"\n[bold]$ ackledger {shlex.join(arguments)}[/]", soft_wrap=True)
    width = {"COLUMNS": str(console.width)}
    done = subprocess.run(
        ["ackledger", *arguments],
        env={**environment, **width},
        check=False,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    if done.returncode != expect:
        raise SystemExit(f"ackledger {' '.join(arguments)} ended with {done.returncode}")
    sys.stdout.flush()


def _conclude(
    database: Database, wanted: oracle.Rows, totals: oracle.Rows, others: bool, began: float
) -> int:
    """Print whether the warehouse, and ``others``, are right; the exit code."""
    missing, extra = (wanted - totals).total(), (totals - wanted).total()
    twice = sum(count > 1 for count in totals.values())
    counts = database.transact(lambda c: reports.batch_counts(c, 1), engine=database.reader)
    differs = f"missing {missing:,}, too many {extra:,}, rows twice {twice:,}"
    named = f"of them {counts.recovered:,} replayed"
    home = min(str(HOME), os.path.relpath(HOME), key=len)
    console.print(
        f"""
  flights in January        {counts.total:>8,}
  in the sink               {totals.total():>8,}   {named}
  pandas expects            {wanted.total():>8,}   {differs}
  in quarantine, listed     {counts.quarantined:>8,}   no list knows their plane
  other sinks and reasons   {"right" if others else "wrong":>9}

Ask more, while you like: make the demo's settings yours, then use SQL.
  export ACKLEDGER_HOME={home}; source .venv/bin/activate
  ackledger sql "SELECT step, count(*) FROM failed_root_detail GROUP BY 1"
  ackledger sql "SELECT * FROM step_progress WHERE batch_id = 2 ORDER BY number"
  ackledger sql "SELECT * FROM replay_history WHERE message_id = 2"
  ackledger sql "SELECT * FROM root_state(1)"
Or see it in Airflow: where the flights were lost, each of them, its replay.
Sign in, then open
http://127.0.0.1:8080/plugin/ledger?batch=1
  ACKLEDGER_HOME={home} ACKLEDGER_DATA={home} make up
Whole demo: {time.monotonic() - began:.0f} s
""",
        soft_wrap=True,
    )
    right = missing == extra == twice == 0 and counts.failed == counts.pending == 0 and others
    console.print(
        "[bold green]The sinks are right.[/]" if right else "[bold red]The sinks are wrong.[/]"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
