"""Builds the project's wheel, as a release does."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

_SOURCES = ("ledger", "migrations", "jobs", "pyproject.toml", "README.md", "LICENSE")
_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def build_wheel(folder: Path) -> Path:
    """The wheel, built in ``folder`` from a copy of the sources: a build leaves folders beside them."""
    copy = folder / "sources"
    copy.mkdir()
    for name in _SOURCES:
        place = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        if place.is_dir():
            shutil.copytree(place, copy / name, ignore=ignored)
        else:
            shutil.copy(place, copy / name)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, folder],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel
