"""The services' own book-keeping, with a program in the place of Airflow that leaves a process
behind.
"""

import os
import signal
import time
from contextlib import suppress

import psutil
import pytest

from scripts import airflow_services as services

FORKING = "#!/bin/sh\nsleep 60 &\nwait\n"


@pytest.fixture
def environment(tmp_path):
    """Where `airflow` is a program that forks, as a scheduler does its workers."""
    program = tmp_path / "bin" / "airflow"
    program.parent.mkdir()
    program.write_text(FORKING)
    program.chmod(0o755)
    (tmp_path / "logs").mkdir()
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def session(pid):
    """The live processes of a session."""
    results = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                results.append(process.pid)
    return results


def test_what_a_killed_service_leaves_behind_is_ended(tmp_path, environment, monkeypatch):
    """A service is killed, another takes its place, and `stop` ends the orphans of the first as
    well.
    """
    monkeypatch.setenv("PATH", environment["PATH"])
    services.start_one(tmp_path, "scheduler", environment)
    (first,) = services.running(tmp_path)
    while len(session(first.pid)) < 2:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    services.start_one(tmp_path, "scheduler", environment)
    (second,) = services.running(tmp_path)
    assert second.pid != first.pid
    assert session(first.pid) != []
    services.stop(tmp_path)
    assert session(first.pid) == session(second.pid) == []
    assert services.running(tmp_path) == []
