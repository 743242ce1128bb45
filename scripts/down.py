"""Stop what ``make up`` started, with all that it started: ``make down``."""

import sys

from rich.console import Console

from ledger.settings import Settings
from ledger.store import embedded
from scripts import airflow_services as services


def main() -> int:
    """Stop Airflow's services by their pids, then the embedded database."""
    home = Settings().home.absolute()
    ended = services.stop(home / "airflow")
    embedded.stop(home)
    Console().print(f"stopped: {ended} processes of Airflow, and the embedded database")
    return 0


if __name__ == "__main__":
    sys.exit(main())
