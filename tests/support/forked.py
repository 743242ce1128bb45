"""Commands of ackledger, each in a fork of a process that has imported them: an import takes longer
than most of what they do.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.places import ROOT


class Commands:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder, with no variables but these."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as name:
            out, errors = Path(name, "out"), Path(name, "errors")
            order = [list(arguments), str(folder), dict(environment), str(out), str(errors)]
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, out.read_text(), errors.read_text())

    def end(self) -> None:
        """No more commands."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Fork for each order, and print the exit code of its command."""
    from ledger.cli import main as command

    for line in sys.stdin:
        arguments, folder, environment, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(arguments, folder, environment, files)
            command()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], files: list[str]
) -> None:
    """Have what a process starts with."""
    for descriptor, path in enumerate([os.devnull, *files]):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(path, flags), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["ackledger", *arguments]
    sys.modules["__main__"].__package__ = None  # as of a program: usage says its name


if __name__ == "__main__":
    main()
