"""What ``make test`` leaves to ``make test-all``."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "integration").glob("test_crash_*.py"))


def test_every_kill_that_is_to_run_often_exists():
    """A case that was renamed does not drop out of ``make test`` unseen."""
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not exhaustive"]
    found = subprocess.run([*collect, *FILES], capture_output=True, text=True, cwd=ROOT, check=True)
    often = set().union(*(import_module(f"tests.integration.{one.stem}").OFTEN for one in FILES))
    assert often == set(re.findall(r"\[(.+)\]", found.stdout))


def test_every_test_that_is_set_aside_exists():
    """A test that was renamed comes back into ``make test``, and its name leaves the list; of each file some stay."""
    files = sorted({name.split("::")[0] for name in LONG})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    paths = [f"tests/{file}" for file in files]
    found = subprocess.run([*collect, *paths], capture_output=True, text=True, cwd=ROOT, check=True)
    names = {line.removeprefix("tests/") for line in found.stdout.splitlines() if "::" in line}
    assert names >= LONG
    assert {name.split("::")[0] for name in names - LONG} == set(files)
