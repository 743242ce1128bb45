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
    """What pytest would run, a line each."""
    return ran("-m", "pytest", "--collect-only", "-q", *arguments)


def ran(*arguments):
    """What Python prints; whatever options of pytest's the caller's shell has."""
    command = [sys.executable, *arguments]
    clean = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=clean)
    return run.stdout


def test_every_kill_that_is_to_run_often_exists():
    """A case that was renamed does not drop out of ``make test`` unseen."""
    found = collected("-m", "not exhaustive", *FILES)
    often = set().union(*(import_module(f"tests.integration.{one.stem}").OFTEN for one in FILES))
    assert often == set(re.findall(r"\[(.+)\]", found))


NAMES = """
import sys
import pytest


class Names:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            aside = item.get_closest_marker("exhaustive") is not None
            print("NAME", aside, item.nodeid.removeprefix("tests/"))


sys.exit(pytest.main(["--collect-only", "-q", *sys.argv[1:]], plugins=[Names()]))
"""


def test_every_test_that_is_set_aside_has_a_sister():
    """A name on the list is a test, of each file some stay, and each is followed by the name of a
    sister that ``make test`` runs."""
    assert [name for name, sister in LONG.items() if not sister] == []
    files = sorted({f"tests/{name.split('::')[0]}" for name in {*LONG, *LONG.values()}})
    found = re.findall(r"^NAME (True|False) (.+)$", ran("-c", NAMES, *files), re.MULTILINE)
    aside, stay = ({name for marked, name in found if marked == flag} for flag in ("True", "False"))
    assert LONG.keys() - aside == set()
    assert set(LONG.values()) - stay == set()
    assert {name.split("::")[0] for name in LONG} <= {name.split("::")[0] for name in stay}
