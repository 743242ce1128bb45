"""What ``make test`` runs of the crash tests."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "integration").glob("test_crash_*.py"))


def test_every_kill_that_is_to_run_often_exists():
    """A case that was renamed does not drop out of ``make test`` unseen."""
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not exhaustive"]
    found = subprocess.run([*collect, *FILES], capture_output=True, text=True, cwd=ROOT, check=True)
    often = set().union(*(import_module(f"tests.integration.{one.stem}").OFTEN for one in FILES))
    assert often == set(re.findall(r"\[(.+)\]", found.stdout))
