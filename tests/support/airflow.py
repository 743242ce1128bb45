"""A running Airflow, driven as a person drives it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ledger.store.connection import Database
from scripts.airflow_api import AirflowApi
from tests.support.ledgers import Ledger

SECRET = "a-passphrase-that-must-not-leak"


class Airflow(AirflowApi):
    """A started Airflow: its commands, its API, and the ledger that its jobs write to."""

    def __init__(self, home: Path, port: int, password: str, environment: dict[str, str]):
        super().__init__(port, password)
        self.home = home
        self.data = Path(environment["ACKLEDGER_DATA"])
        self.environment = environment
        self.ledger = Ledger(Database(environment["ACKLEDGER_DATABASE_URL"]))

    def command(self, *arguments: str) -> str:
        """Run Airflow's command; its output."""
        done = subprocess.run(
            ["airflow", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def clear(self, dag: str, run: str, *tasks: str, downstream: bool = True) -> None:
        """Clear tasks of a run, as the button does."""
        body = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": list(tasks),
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.api("POST", f"/dags/{dag}/clearTaskInstances", body)

    def log(self, dag: str, run: str, task: str, until: str = "") -> str:
        """What the last try of a task has logged, once it has ``until``: a run may end before
        the last lines are written.
        """
        folder = self.home / "airflow" / "logs" / f"dag_id={dag}" / f"run_id={run}"

        def written() -> str | None:
            tries = (folder / f"task_id={task}").glob("*.log")
            text = max(tries, key=lambda path: path.stat().st_mtime).read_text()
            return text if until in text else None

        return str(wait(written, f"{until!r} in the log of {task}", 60))

    def is_idle(self) -> bool:
        """Whether no run is under way."""
        runs = self.api("GET", "/dags/~/dagRuns?state=queued&state=running&limit=1")
        return runs["total_entries"] == 0

    def ended(self, dag: str, run: str) -> str:
        """Wait until a run has ended; its state."""

        def state() -> str | None:
            state_ = self.api("GET", f"/dags/{dag}/dagRuns/{run}")["state"]
            return state_ if state_ in ("success", "failed") else None

        return wait(state, f"run {run} of {dag}")


def dag_bag(folder: str | Path) -> Any:
    """The DAG files of a folder, as Airflow loads them."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before 3.2
        from airflow.models.dagbag import DagBag

    return DagBag(str(folder))


@contextmanager
def dags_of(text: str) -> Iterator[dict[str, Any]]:
    """The DAGs of a DAG file by name, which Airflow runs in this process, with a database of its
    own.
    """
    from airflow.utils.db import initdb

    initdb()
    dag_folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    dag_folder.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=dag_folder))
    try:
        (folder / "all.py").write_text(text)
        bag = dag_bag(folder)
        assert bag.import_errors == {}
        yield bag.dags
    finally:
        shutil.rmtree(folder)


def callbacks_of_missed_deadlines(
    dag_id: str, run_id: str, conf: dict[str, Any]
) -> list[dict[str, Any]]:
    """What an executor of Airflow is given, ``path`` and ``kwargs`` each, once a new run of one of
    ``dags_of`` has missed its deadlines: from the database, as the scheduler reads it.
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.executors.workloads import ExecuteCallback
    from airflow.models.deadline import Deadline
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    bundles = DagBundlesManager()
    bundles.sync_bundles_to_db()
    for bundle in bundles.get_all_dag_bundles():
        bag = BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        sync_bag_to_db(bag, bundle.name, None)
    with create_session() as session:
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        assert dag is not None
        run = dag.create_dagrun(
            run_id=run_id,
            run_after=datetime.now(UTC),
            conf=conf,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.QUEUED,
            session=session,
        )
        session.flush()
        missed = session.scalars(select(Deadline).where(Deadline.dagrun_id == run.id)).all()
        for deadline in missed:
            deadline.handle_miss(session)
        session.commit()
        session.expire_all()
        callbacks = [
            ExecuteCallback.make(callback=deadline.callback, dag_run=run) for deadline in missed
        ]
    return [deadline.callback.data for deadline in callbacks]


def begin_partitioned_runs() -> list[tuple[str, str, datetime]]:
    """Begin the runs whose partitions have all arrived, as the scheduler does: DAG, partition and
    its date of each run that has begun so far.
    """
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        SchedulerJobRunner(job=Job())._create_dagruns_for_partitioned_asset_dags(session)
    columns = (DagRun.dag_id, DagRun.partition_key, DagRun.partition_date)
    with create_session() as session:
        runs = session.execute(select(*columns).where(DagRun.partition_key.is_not(None)))
        return [tuple(run) for run in runs]


def wait(look: Callable[[], Any], what: str, seconds: float = 1800) -> Any:
    """Ask every second until something is found."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = look()
        if result:
            return result
        time.sleep(1)
    raise AssertionError(f"{what}: nothing after {seconds:.0f} s")
