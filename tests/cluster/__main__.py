"""Run it: ``make cluster``. A Spark standalone cluster of three users, Airflow of a fourth, and a
ledger behind a pooler; everything is made again under ``var/cluster``, and ended.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from demo import data
from ledger.store.connection import Database
from ledger.store.embedded import first_closed
from ledger.store.upgrade import upgrade, upgrade_sql
from tests.chaos.__main__ import report
from tests.chaos.campaign import SHORT, Campaign
from tests.chaos.world import Elsewhere
from tests.cluster import scenes
from tests.cluster.accounts import UMASK, Account, accounts, share
from tests.cluster.airflow import Airflow
from tests.cluster.database import (
    ADMINISTRATOR,
    AIRFLOW,
    CHAOS,
    DRIVER,
    GRANT,
    LEDGER,
    READER,
    LedgerServer,
    ledger_server,
)
from tests.cluster.shipping import STRANGER
from tests.cluster.spark import WORKERS, SparkCluster
from tests.support import tls

console = Console(width=max(100, Console().width), highlight=False)
_BEGAN = time.monotonic()


def main() -> int:
    """0 if every scene went as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="only one of its parts")
    only = parser.parse_args().part
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    os.umask(UMASK)
    folder = _home()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with accounts(folder, ["master", *WORKERS, "driver"]) as users:
        users["driver"] = _driver(users["driver"])
        names = [f"{name} {user.name or 'this one'}" for name, user in users.items()]
        say(f"users: {', '.join(names)}")
        with ledger_server() as server, _spark(users, folder) as spark:
            _administer(server)
            parts = [PARTS[only]] if only else PARTS.values()
            return max(part(folder, users, server, spark) for part in parts)


def say(line: str) -> None:
    """One line of progress, at once."""
    console.print(f"{time.monotonic() - _BEGAN:7.1f} s  {line}", soft_wrap=True)
    console.file.flush()


def _home() -> Path:
    """Where the users meet: in the checkout, unless that is closed to them."""
    own = Path("var/cluster").absolute()
    return own if first_closed(own, STRANGER) is None else Path("/var/lib/ackledger/cluster")


def _driver(user: Account) -> Account:
    """The user of the drivers: this one, where no other may run this Python."""
    python = Path(sys.executable)
    if user.name is None or first_closed(python, STRANGER) is None:
        return user
    closed = first_closed(python, STRANGER)
    say(f"drivers run as this user: no other passes {closed}, where this Python is")
    return replace(user, name=None)


@contextmanager
def _spark(users: dict[str, Account], folder: Path) -> Iterator[SparkCluster]:
    spark = SparkCluster(users, folder)
    spark.ship()
    say(f"the archive for executors: {(folder / 'environment.tar.gz').stat().st_size / 1e6:.0f} MB")
    try:
        spark.start()
        say(f"Spark at {spark.master}, two workers")
        yield spark
    finally:
        spark.stop()


def _administer(server: LedgerServer) -> None:
    server.administer("postgres", f"CREATE DATABASE {LEDGER}", f"CREATE DATABASE {CHAOS}")
    server.administer("postgres", f"CREATE ROLE {DRIVER} LOGIN PASSWORD '{tls.PASSWORD}'")
    server.run_script(LEDGER, upgrade_sql())
    server.administer("postgres", *GRANT)
    administrator = Database(server.direct.verified(CHAOS, ADMINISTRATOR))
    upgrade(administrator)
    administrator.dispose()
    say("an administrator who is no superuser made two ledgers: by psql, and by ackledger")


def scenes_of(
    folder: Path, users: dict[str, Account], server: LedgerServer, spark: SparkCluster
) -> int:
    """Everything but chaos, with an Airflow that the driver's user runs."""
    shared, driver = folder / "shared", users["driver"]
    for place in (shared, shared / "warehouse"):
        share(place)
    share(shared / "storage")
    (shared / "storage").chmod(0o2770)
    data.write_months(shared, scenes.MONTHS)
    passfile = driver.folder / "passfile"
    server.passfile(passfile)
    driver.own(passfile)
    settings = {
        "ACKLEDGER_DATABASE_URL": server.address(LEDGER, DRIVER),
        "ACKLEDGER_READER_URL": server.address(LEDGER, READER),
        "ACKLEDGER_STORAGE": str(shared / "storage"),
        "ACKLEDGER_DATA": str(shared),
        "ACKLEDGER_HOME": str(driver.folder),
        "PGPASSFILE": str(passfile),
        "SPARK_CONF_DIR": str(spark.settings),
    }
    metadata = server.direct.verified(AIRFLOW, AIRFLOW)
    metadata = metadata.replace("postgresql:", "postgresql+psycopg2:")
    airflow = Airflow(driver, spark.master, metadata, settings)
    ledger = Database(server.direct.verified(LEDGER, DRIVER))
    try:
        airflow.start()
        say("Airflow runs; ackledger check, through the pooler:")
        console.print(airflow.run("ackledger", "check"), soft_wrap=True)
        stage = scenes.Stage(shared, spark, server, airflow, ledger, users, say)
        for scene in scenes.SCENES:
            console.print(f"\n[bold]{scene.__name__.replace('_', ' ')}[/]")
            scene(stage)
        scenes.require_clean(stage)
        return 0
    except scenes.SceneError as exc:
        console.print(f"[red]WRONG[/] {exc}", soft_wrap=True)
        return 1
    finally:
        airflow.stop()
        ledger.dispose()


def chaos_of(
    folder: Path, users: dict[str, Account], server: LedgerServer, spark: SparkCluster
) -> int:
    """The short form of chaos; its drivers are this user's, who can kill others' processes. Each of
    them runs a batch: executors take longer to start than the steps of so few records.
    """
    home = folder / "chaos"
    for place in (home, home / "data", home / "data" / "warehouse", home / "storage"):
        share(place)
    passfile = home / "passfile"
    server.passfile(passfile)
    elsewhere = Elsewhere(
        server.address(CHAOS, DRIVER),
        spark.master,
        {"PGPASSFILE": str(passfile), "SPARK_CONF_DIR": str(spark.settings)},
        spark.executors,
    )
    os.environ["PGPASSFILE"] = str(passfile)  # this process asks the ledger, too
    console.print("\n[bold]chaos[/]")
    outcome = Campaign(replace(SHORT, seed=1, submit="batch"), home, say, elsewhere).run()
    report(outcome)
    return 0 if outcome.good else 1


PARTS = {"scenes": scenes_of, "chaos": chaos_of}


if __name__ == "__main__":
    sys.exit(main())
