"""Processes that are to die: made ready ahead of time, handed one order each, and never left
behind.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from tests.support.crashing import Order
from tests.support.places import ROOT

JVM = (
    "--driver-memory 512m --conf spark.sql.shuffle.partitions=2 "
    f"--conf spark.sql.warehouse.dir={tempfile.gettempdir()}/ackledger-warehouse pyspark-shell"
)
GONE_SECONDS = 20


class Child:
    """One process, the leader of a session in which all that it starts stays."""

    def __init__(self, *, spark: bool):
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_SUBMIT_ARGS": JVM,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        environment.pop("PYSPARK_GATEWAY_PORT", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crashing", *(["--spark"] if spark else [])],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            text=True,
        )

    def carry_out(self, order: Order, timeout_seconds: float = 180) -> None:
        """Hand over the order and wait. Raises AssertionError unless the process was killed just
        where the order says, once.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", self._line(line)
        self._process.stdin.write(order.as_json() + "\n")
        self._process.stdin.flush()
        code = self._process.wait(timeout_seconds)
        assert code == -signal.SIGKILL, self._line(f"ended with {code}")
        assert Path(order.marker).read_text() == f"{self._process.pid}\n"

    def end(self) -> list[int]:
        """Kill what is left of it; the ids of what outlived it for long: a JVM ends by itself
        once its driver is gone.
        """
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        left = self._left()
        deadline = time.monotonic() + GONE_SECONDS
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self._left()
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                with suppress(OSError):
                    stream.close()
        return left

    def _left(self) -> list[int]:
        processes = []
        for process in psutil.pids():
            with suppress(OSError, psutil.Error):  # it may go away while it is looked at
                if os.getsid(process) == self._process.pid and _lives(process):
                    processes.append(process)
        return processes

    def _line(self, what: str) -> str:
        self._errors.seek(0)
        return f"{what}: {self._errors.read().decode(errors='replace')[-4000:]}"


class Children:
    """Hands out processes, and keeps ``spare`` with a Spark session of their own in preparation,
    as long as no more than ``kills`` of these were handed out.
    """

    def __init__(self, spare: int, kills: int):
        self._spare, self._kills = spare, kills
        self._waiting: deque[Child] = deque()
        self._all: list[Child] = []
        self.left_by_abandoned: list[int] = []

    def take(self, *, spark: bool) -> Child:
        """A process that waits for an order, or soon will."""
        if not spark:
            return self._started(spark=False)
        while len(self._waiting) <= max(0, min(self._spare, self._kills - 1)):
            self._waiting.append(self._started(spark=True))
        self._kills -= 1
        return self._waiting.popleft()

    def end(self, child: Child) -> None:
        """See that nothing of it is left."""
        self.left_by_abandoned += child.end()
        self._all.remove(child)

    def end_all(self) -> None:
        """The same of all that were ever started."""
        for child in list(self._all):
            self.end(child)

    def _started(self, *, spark: bool) -> Child:
        child = Child(spark=spark)
        self._all.append(child)
        return child


def _lives(process: int) -> bool:
    return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
