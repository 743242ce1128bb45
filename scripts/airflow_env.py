"""The environment of an Airflow of this project: its own home, its own database, only loopback."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ_AGAIN = "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"


def airflow_environment(
    home: Path, sql_alchemy_conn: str, *, dags_folder: Path = ROOT / "dags"
) -> dict[str, str]:
    """Return what to add to ``os.environ`` before the first ``import airflow``.

    ``home``: AIRFLOW_HOME. ``sql_alchemy_conn``: Airflow's own database, never the ledger's. A
    Spark connection that is exported already is kept; the default is two threads of this machine.
    So is the time after which a DAG file is read again.
    """
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": sql_alchemy_conn,
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        READ_AGAIN: os.environ.get(READ_AGAIN, "60"),
        "AIRFLOW_CONN_SPARK_DEFAULT": os.environ.get(
            "AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}'
        ),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def clean_environment() -> dict[str, str]:
    """This process's environment without the settings of any other Airflow."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_HOME"))
        or name == "AIRFLOW_CONN_SPARK_DEFAULT"
    }
