"""Runs the examples of docs/comparison.md beside the tools they are about: ``make test-tools``.

Each tool has an environment of its own below ``var/tools``, because they exclude each other. It
is installed from the package index, so this is no part of ``make test``.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.places import ROOT
from tests.support.wheels import build_wheel
from tests.tools.example import HEADINGS


def main(asked: list[str]) -> int:
    """Run the examples of these tools, or of all; how many went wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        for tool in asked or HEADINGS:
            python = install(tool, wheel)
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)}
            environment["PATH"] = os.pathsep.join([str(python.parent), os.environ["PATH"]])
            command = [python, "-m", "tests.tools.example", tool]
            done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
            sys.stdout.write(f"{HEADINGS[tool]}: {'ok' if not done.returncode else 'wrong'}\n")
            wrong += done.returncode != 0
    return wrong


def install(tool: str, wheel: Path) -> Path:
    """The Python of a new environment with the tool, in the versions that its file pins."""
    place = ROOT / "var" / "tools" / tool
    shutil.rmtree(place, ignore_errors=True)
    python = place / "bin" / "python"
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, place], check=True)
    own = f"ackledger[delta,embedded] @ {wheel.as_uri()}"
    arguments = ["--requirement", requirements(tool), own]
    options = ["--quiet", "--python", python]
    subprocess.run(["uv", "pip", "install", *options, *arguments], check=True)
    return python


def requirements(tool: str) -> Path:
    """The file with what the example of a tool needs."""
    return Path(__file__).with_name(f"{tool}.txt")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
