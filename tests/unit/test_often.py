"""What ``make test`` and ``make test-system`` leave to ``make test-all``."""

import re
import subprocess
import sys

import pytest

from tests.support.collected import OFTEN, TESTS
from tests.support.often import LONG
from tests.support.places import ROOT

CRASHES = sorted((ROOT / "tests" / "crashes").glob("test_*.py"))
LISTED = """
import sys

import pytest

if pytest.main(["--collect-only", "-q", "-p", "no:xdist", *sys.argv[1:]]):
    raise SystemExit("the tests cannot be collected")

from tests.support.collected import OFTEN, TESTS

for name in OFTEN:
    print("OFTEN", name)
for name, aside in TESTS.items():
    print("NAME", aside, name)
"""


@pytest.fixture(scope="module")
def collected(pytestconfig):
    """Each test's name and whether it is set aside, and the cases that are to run often: of this
    run, and of another for the files that this one leaves out.
    """
    files = {
        path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")
    }
    whole = not any("::" in argument for argument in pytestconfig.args)
    missing = files - {name.split("::")[0] for name in TESTS if whole}
    if not missing:
        return TESTS, OFTEN
    listed = subprocess.run(
        [sys.executable, "-c", LISTED, *(f"tests/{name}" for name in sorted(missing))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = re.findall(r"^NAME (True|False) (.+)$", listed.stdout, re.MULTILINE)
    often = set(re.findall(r"^OFTEN (.+)$", listed.stdout, re.MULTILINE))
    return TESTS | {name: aside == "True" for aside, name in lines}, OFTEN | often


def test_every_kill_that_is_to_run_often_exists(collected):
    """A case that was renamed does not drop out of ``make test-system`` unseen."""
    tests, often = collected
    files = {f"crashes/{path.name}" for path in CRASHES}
    stay = [name for name, aside in tests.items() if not aside and name.split("::")[0] in files]
    assert often == {name.partition("[")[2].removesuffix("]") for name in stay if "[" in name}


def test_every_test_that_is_set_aside_has_a_sister(collected):
    """A name on the list is a test, of each file some stay, and each is followed by the name of a
    sister that is run with every change."""
    tests, _ = collected
    stay = {name for name, aside in tests.items() if not aside}
    assert LONG.keys() - tests.keys() == set()
    assert set(LONG.values()) - stay == set()
    assert {name.split("::")[0] for name in LONG} <= {name.split("::")[0] for name in stay}
