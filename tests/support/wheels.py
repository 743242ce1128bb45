"""Builds the project's wheel, as a release does, and environments that hold what it asks for."""

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.places import ROOT

# Beside the wheel, PySpark and what it brings, which Spark has: no driver of a database.
OF_EXECUTORS = ("numpy", "pyarrow", "fsspec", "jinja2", "markupsafe")
_SOURCES = ("ledger", "migrations", "jobs", "setup.py", "pyproject.toml", "README.md", "LICENSE")
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


def install_wheel(folder: Path, *extras: str, also: Iterable[str] = ()) -> Path:
    """The Python of an environment in ``folder`` that has only the wheel, what the wheel, with
    its ``extras``, says it depends on, and the distributions ``also``: linked from this
    environment instead of downloaded.
    """
    python, place = _with_wheel(folder)
    installed = PathDistribution(next(place.glob("ackledger-*.dist-info")))
    _link_all([*_required(installed, extras), *map(Requirement, also)], place)
    return python


def executor_environment(folder: Path) -> Path:
    """The Python of an environment in ``folder`` that has only what executors need: the wheel, and
    ``OF_EXECUTORS``, linked from this environment.
    """
    python, place = _with_wheel(folder)
    for name in OF_EXECUTORS:
        _link(distribution(name), place)
    return python


def _with_wheel(folder: Path) -> tuple[Path, Path]:
    """The Python of a new environment with the wheel alone, and its packages' folder."""
    wheel = build_wheel(folder)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    place = next((folder / "env" / "lib").glob("python*/site-packages"))
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True
    )
    return python, place


def _link_all(waiting: list[Requirement], place: Path) -> None:
    """Link into the folder ``place`` what is required, and what that requires in turn, from this
    environment: nothing else of it can be imported there.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        if (wanted.name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((wanted.name, frozenset(wanted.extras)))
        result = distribution(wanted.name)
        assert result.version in wanted.specifier, f"{result.name} {result.version} is not {wanted}"
        _link(result, place)
        waiting += _required(result, wanted.extras)


def _required(seen: Distribution, extras: Iterable[str]) -> Iterable[Requirement]:
    for requirement in map(Requirement, seen.requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in ("", *extras)):
            yield requirement


def _link(seen: Distribution, place: Path) -> None:
    """Link modules, packages and metadata, and copy programs, for the Python of that place."""
    files = seen.files or []
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        if not (place / top).exists():
            (place / top).symlink_to(Path(str(seen.locate_file(top))))
    programs = place.parents[2] / "bin"
    for file in (file for file in files if file.parts[-2:-1] == ("bin",) and file.parts[0] == ".."):
        text = Path(str(seen.locate_file(file))).read_bytes()
        folder = programs / file.name
        folder.write_bytes(text.replace(sys.executable.encode(), bytes(programs / "python"), 1))
        folder.chmod(0o755)
