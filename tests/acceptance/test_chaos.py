"""The short form of `make chaos`: a real Airflow whose processes are killed, on a little data."""

import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.chaos.campaign import SHORT, Campaign
from tests.chaos.schedule import Kind

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("submit", ["stage", "batch"])
def test_nothing_is_lost_and_nothing_comes_twice(submit):
    """Executors, drivers, the sweeper, backends and the scheduler are killed; the four
    assertions hold, whether a driver runs a step or a batch.
    """
    folder = Path(tempfile.mkdtemp(prefix="ackledger-chaos-"))
    folder.chmod(0o755)
    plan, lines = replace(SHORT, seed=1, submit=submit), []
    outcome = Campaign(plan, folder, lines.append).run()
    where = "\n".join([*lines, f"its logs: {folder}"])
    assert outcome.unfinished is None, where
    assert len(outcome.wrong) == 4
    assert not any(outcome.wrong.values()), f"{outcome.wrong}\n{where}"
    assert outcome.counts == Counter(plan.kills), where
    assert all(outcome.counts[kind] >= 1 for kind in Kind)
    assert [killed.kind for killed in outcome.kills] == [strike.kind for strike in plan.deck()]
    assert outcome.quarantined > 0
    assert outcome.replays > 0
    assert outcome.looks > 0
    assert left_of(folder) == []
    shutil.rmtree(folder)


def left_of(folder):
    """Processes that a run has left behind: they name its folder, or have it from their
    environment.
    """
    results = []
    for process in psutil.process_iter():
        try:
            names = [*process.cmdline(), process.environ().get("ACKLEDGER_HOME", "")]
            if any(str(folder) in part for part in names):
                results.append(process)
        except psutil.Error:
            continue
    return results
