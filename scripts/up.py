"""Start Airflow with UI, scheduler, DAGs and sweeper on 127.0.0.1: ``make up``."""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from demo import data
from ledger.settings import Settings, absolute
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from scripts import airflow_services as services
from scripts import hints
from scripts.airflow_env import ROOT, airflow_environment, clean_environment

DAGS = ROOT / "dags"
console = Console(width=max(100, Console().width))


def main() -> int:
    """Start what does not run yet and print where it is; 1 with the reason if it cannot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--dags", type=_folder, help="a folder of DAG files of your own")
    parser.add_argument("--data", type=_folder, help="where relative paths of your sources start")
    arguments = parser.parse_args()
    port, settings = arguments.port, Settings()
    if arguments.data is not None:  # it is only read: sinks write below the home
        os.environ["ACKLEDGER_DATA"] = str(arguments.data)
        os.environ["ACKLEDGER_OUTPUT"] = settings.output or str(settings.home / "output")
        settings = Settings()
    home = settings.home.absolute()
    if services.running(home / "airflow"):
        console.print("Airflow runs already; 'make down' stops it.")
        return 0
    try:
        password = up(
            settings, port, arguments.dags or DAGS, flights="ACKLEDGER_DATA" not in os.environ
        )
    except RuntimeError as exc:
        console.print(f"[red]{exc}[/]")
        return 1
    hint = _hint(settings, port, password, arguments.dags)
    console.print(
        f"""
Airflow   http://127.0.0.1:{port}   user {services.USER}, password {password}
Ledger    http://127.0.0.1:{port}/plugin/ledger
Shell     export AIRFLOW_HOME={os.path.relpath(home / "airflow")}; source .venv/bin/activate
{hint}
Stop it   make down
""",
        highlight=False,
    )
    if arguments.data is not None:
        output = absolute(settings.output or str(arguments.data))
        console.print("For commands over the same folders:", highlight=False)
        console.print(
            f"  export ACKLEDGER_DATA={shlex.quote(str(arguments.data))}"
            f" ACKLEDGER_OUTPUT={shlex.quote(output)}",
            highlight=False,
            soft_wrap=True,
        )
    return 0


def _folder(text: str) -> Path:
    """A folder that is there. Raises ArgumentTypeError, which argparse prints."""
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{folder} is no folder")
    return folder


def _hint(settings: Settings, port: int, password: str, dags: Path | None) -> str:
    """Return what to do next, by what is in the folders of DAG files and of data."""
    pipelines = hints.pipelines(port, password)
    dag = "flights" if "flights" in pipelines else next(iter(pipelines), None)
    missing = [] if dags is None else hints.missing_files(dags)
    data = Path(service_environment(settings, "", dags or DAGS)["ACKLEDGER_DATA"])
    dates = None if dag is None else hints.first_dates(data, dag)
    return "\n".join(hints.hint(missing, dag, dates))


def up(settings: Settings, port: int, dags: Path = DAGS, *, flights: bool = True) -> str:
    """Databases, services and, if asked, the flights as input; the password."""
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
    if flights:  # a folder of the user's is only read
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
    own = {} if dags == DAGS else _only_read(dags)
    return {
        **clean_environment(),
        "ACKLEDGER_HOME": str(home),
        "ACKLEDGER_DATA": str(Path(data_folder).absolute()),
        "ACKLEDGER_OUTPUT": absolute(settings.output or str(data_folder)),
        **airflow_environment(home / "airflow", airflow_url, dags_folder=dags),
        **own,
    }


def _only_read(dags: Path) -> dict[str, str]:
    """Jobs find the user's modules, and those beside the DAG files, before this project's own; they
    leave no bytecode there."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = [str(Path(path).absolute()) for path in paths]
    return {
        "PYTHONPATH": os.pathsep.join([*own, str(dags), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
