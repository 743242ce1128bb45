"""What is shipped to executors: an archive with a Python environment, and the user's modules."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from ledger.store.embedded import Account, first_closed
from tests.support.places import ROOT
from tests.support.wheels import OF_EXECUTORS, build_wheel

MODULES = ("jobs", "tests/chaos")  # of pipelines, which executors import by name
STRANGER = Account("nobody", 2**20, frozenset({2**20}))


def interpreter() -> str:
    """The Python that every machine has at this path: of this one's version, and open to all.

    Raises SystemExit where there is none.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = str(Path(sys.base_prefix, "bin", name))
    for path in (base, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if Path(path).exists() and first_closed(Path(path).resolve(), STRANGER) is None:
            return path
    raise SystemExit(
        f"expected a {name} that every user may run, found none: install it, as by apt-get install"
        f" {name}"
    )


def environment(folder: Path) -> Path:
    """An archive of an environment for executors."""
    place, archive = folder / "environment", folder / "environment.tar.gz"
    _do(interpreter(), "-m", "venv", "--without-pip", str(place))
    (folder / "wheel").mkdir()
    pinned = [f"{name}=={version(name)}" for name in OF_EXECUTORS]
    wheel = str(build_wheel(folder / "wheel"))
    python = str(place / "bin" / "python")
    uv = str(Path(sys.executable).with_name("uv"))
    _do(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", *pinned, wheel)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in place.iterdir():
            tar.add(path, path.name)
    shutil.rmtree(folder / "wheel")
    shutil.rmtree(place)
    return archive


def modules(folder: Path) -> Path:
    """A zip of the modules of the pipelines."""
    archive = folder / "modules.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in (path for name in MODULES for path in (ROOT / name).rglob("*.py")):
            zipped.write(path, path.relative_to(ROOT))
    return archive


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
