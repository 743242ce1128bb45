"""Builds the project's wheel, as a release does, and environments that hold what it asks for."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.places import ROOT

_SOURCES = ("ledger", "jobs", "pyproject.toml", "README.md", "LICENSE")
_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def build_wheel(folder: Path) -> Path:
    """The wheel, built in ``folder`` from a copy of the sources: a build leaves folders beside
    them.
    """
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


def link_requirements(installed: Path, place: Path) -> None:
    """Link into the folder ``place`` what the distribution of the folder ``installed`` requires,
    and what that requires in turn, from this environment: nothing else of it can be imported
    there.
    """
    waiting = list(_required(PathDistribution(installed), ()))
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        if (wanted.name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((wanted.name, frozenset(wanted.extras)))
        found = distribution(wanted.name)
        assert found.version in wanted.specifier, f"{found.name} {found.version} is not {wanted}"
        _link(found, place)
        waiting += _required(found, wanted.extras)


def _required(found: Distribution, extras: Iterable[str]) -> Iterable[Requirement]:
    for requirement in map(Requirement, found.requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in ("", *extras)):
            yield requirement


def _link(found: Distribution, place: Path) -> None:
    """Link modules, packages and metadata; programs are not beside them and stay away."""
    for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
        if not (place / top).exists():
            (place / top).symlink_to(Path(str(found.locate_file(top))))
