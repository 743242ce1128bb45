"""A Spark standalone cluster: a master and two workers, each a user with a folder of its own."""

import json
import os
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.cluster import shipping
from tests.cluster.accounts import Account, Process
from tests.support.ports import free_port

WORKERS = ("worker1", "worker2")
START_SECONDS = 60.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_HOME = Path(pyspark.__file__).parent
_DEFAULTS = """
spark.archives               file://{archive}#environment
spark.submit.pyFiles         file://{modules}
spark.pyspark.python         ./environment/bin/python
spark.pyspark.driver.python  {python}
spark.executor.cores         1
spark.executor.memory        768m
spark.cores.max              2
spark.driver.host            127.0.0.1
spark.sql.shuffle.partitions 2
spark.task.maxFailures       8
spark.hadoop.fs.permissions.umask-mode 002
"""


class SparkCluster:
    """``master``: its address; ``settings``: the folder of the drivers' configuration, as
    SPARK_CONF_DIR.
    """

    def __init__(self, users: dict[str, Account], folder: Path):
        port, self._page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self.settings = folder / "conf"
        self._folder = folder
        program = str(_HOME / "bin" / "spark-class")
        deploy = "org.apache.spark.deploy"
        command = [program, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        self._master = Process(
            users["master"], [*command, "--webui-port", str(self._page)],
            _environment(users["master"]), "master",
        )  # fmt: skip
        self.workers = {}
        for number, name in enumerate(WORKERS, start=2):
            own, host = users[name], f"127.0.0.{number}"  # Spark takes them for two machines
            command = [program, f"{deploy}.worker.Worker", "--host", host, "--cores", "2"]
            command += ["--memory", "2g", "--webui-port", "0"]
            command += ["--work-dir", str(own.folder / "work")]
            environment = _environment(own, host)
            self.workers[name] = Process(own, [*command, self.master], environment, name)

    def ship(self) -> None:
        """Make what executors get, and the settings by which they get it."""
        self.settings.mkdir()
        places = {
            "archive": shipping.environment(self._folder),
            "modules": shipping.modules(self._folder),
            "python": sys.executable,
        }
        (self.settings / "spark-defaults.conf").write_text(_DEFAULTS.format(**places))

    def start(self) -> None:
        """Start the master and its workers; returns once the master has both."""
        self._master.start()
        for worker in self.workers.values():
            worker.start()
        self.await_workers(len(WORKERS))

    def await_workers(self, count: int) -> None:
        """Wait until the master has so many live workers."""
        deadline = time.monotonic() + START_SECONDS
        while self._alive() != count:
            if time.monotonic() > deadline:
                logs = [process.log for process in (self._master, *self.workers.values())]
                raise SystemExit(f"expected {count} workers, found {self._alive()}: see {logs}")
            time.sleep(0.3)

    def executors(self) -> list[psutil.Process]:
        """The executors that run, whichever worker started them."""
        return [process for name in self.workers for process in self.executors_of(name)]

    def executors_of(self, name: str) -> list[psutil.Process]:
        """The executors of one worker."""
        results = []
        for process in self.workers[name].family():
            with suppress(psutil.Error):
                if EXECUTOR in process.cmdline():
                    results.append(process)
        return results

    def stop(self) -> None:
        """End all of it."""
        for process in (*self.workers.values(), self._master):
            process.stop()

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as page:
                state: dict[str, Any] = json.load(page)
        except (OSError, ValueError):
            return -1
        return int(state["aliveworkers"])


def _environment(user: Account, host: str = "127.0.0.1") -> dict[str, str]:
    """The whole environment of a machine of the cluster: no setting of ours, no Python's."""
    java = os.environ.get("JAVA_HOME")
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(user.folder),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(user.folder / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        **({} if java is None else {"JAVA_HOME": java}),
    }
