"""Start Airflow with UI, scheduler, DAGs and sweeper on 127.0.0.1: ``make up``."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from demo import data
from ledger.database import embedded
from ledger.database.connection import Database
from ledger.database.upgrade import upgrade
from ledger.settings import Settings
from scripts import airflow_services as services
from scripts.airflow_env import ROOT, airflow_environment, clean_environment

console = Console(width=max(100, Console().width))


def main() -> int:
    """Start what does not run yet and print where it is; 1 with the reason if it cannot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    port = parser.parse_args().port
    settings = Settings()
    home = settings.home.absolute()
    if services.running(home / "airflow"):
        console.print("Airflow runs already; 'make down' stops it.")
        return 0
    try:
        password = up(settings, port)
    except RuntimeError as exc:
        console.print(f"[red]{exc}[/]")
        return 1
    console.print(f"""
Airflow   http://127.0.0.1:{port}   user {services.USER}, password {password}
          The sweeper and the replay form are on; unpause a pipeline to schedule it, or backfill it:
  export AIRFLOW_HOME={os.path.relpath(home / "airflow")}; source .venv/bin/activate
  airflow backfill create --dag-id flights --from-date 2013-01-01 --to-date 2013-03-31
Stop it   make down
""", highlight=False)  # fmt: skip
    return 0


def up(settings: Settings, port: int, dags: Path = ROOT / "dags") -> str:
    """Databases, input and services; the password."""
    home = settings.home.absolute()
    with console.status("databases"):
        url = embedded.start(home)
        upgrade(Database(settings.database_url or url))
        airflow_url = embedded.ensure_database(url, "airflow")
    password = services.configure(home / "airflow", port, airflow_url, dags)
    environment = service_environment(settings, airflow_url, dags)
    with console.status("Airflow's schema"):
        subprocess.run(
            ["airflow", "db", "migrate"], env=environment, check=True, stdout=subprocess.DEVNULL
        )
    with console.status("the flights of 2013, as input"):
        data.write_all(Path(environment["ACKLEDGER_DATA"]))
    with console.status("services") as status:
        for waiting in services.start(home / "airflow", port, environment):
            status.update(f"waiting for {waiting}")
    return password


def service_environment(settings: Settings, airflow_url: str, dags: Path) -> dict[str, str]:
    """The environment of the services and of all that they start."""
    home = settings.home.absolute()
    data_folder = settings.data if "ACKLEDGER_DATA" in os.environ else home / "data"
    return {
        **clean_environment(),
        "ACKLEDGER_HOME": str(home),
        "ACKLEDGER_DATA": str(Path(data_folder).absolute()),
        **airflow_environment(home / "airflow", airflow_url, dags_folder=dags),
    }


if __name__ == "__main__":
    sys.exit(main())
