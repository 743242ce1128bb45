"""What ``make test`` leaves to ``make test-all``."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "integration").glob("test_crash_*.py"))


def collected(*arguments):
    """What pytest would run, a line each; whatever options of pytest's the caller's shell has."""
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    clean = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    run = subprocess.run(collect, capture_output=True, text=True, cwd=ROOT, check=True, env=clean)
    return run.stdout


def test_every_kill_that_is_to_run_often_exists():
    """A case that was renamed does not drop out of ``make test`` unseen."""
    found = collected("-m", "not exhaustive", *FILES)
    often = set().union(*(import_module(f"tests.integration.{one.stem}").OFTEN for one in FILES))
    assert often == set(re.findall(r"\[(.+)\]", found))


def test_every_test_that_is_set_aside_exists():
    """A test that was renamed comes back into ``make test``, and its name leaves the list; of each file some stay."""
    files = sorted({name.split("::")[0] for name in LONG})
    found = collected(*(f"tests/{file}" for file in files))
    names = {line.removeprefix("tests/") for line in found.splitlines() if "::" in line}
    assert names >= LONG
    assert {name.split("::")[0] for name in names - LONG} == set(files)
