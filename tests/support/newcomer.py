"""A new user: a folder of one's own, and the command of an environment that has the wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import jvm


class Newcomer:
    """A project folder and the command of an environment that has the wheel installed."""

    def __init__(self, folder: Path, python: Path):
        self.project = folder / "project"
        self.project.mkdir()
        names = ("ACKLEDGER_", "PYSPARK_", "SPARK_", "PYTHON", "AIRFLOW", "VIRTUAL_ENV")
        rest = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        self._command = str(python.parent / "ackledger")
        self.environment = {
            **rest,
            **jvm.brief(),
            "PATH": os.pathsep.join([str(python.parent), *other_programs(os.environ["PATH"])]),
            "ACKLEDGER_HOME": str(folder / "home"),
        }

    def run(
        self, *arguments: str, code: int = 0, is_quiet: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the command; it ends with ``code``, and if it is quiet, without a word of Spark's."""
        done = subprocess.run(
            [self._command, *arguments],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        text = done.stdout + done.stderr
        assert not is_quiet or not [word for word in ("WARN", "Warning") if word in text], text
        return done

    def json(self, *arguments: str, code: int = 0):
        """What the command prints with --json."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


def other_programs(path: str) -> list[str]:
    """The folders of programs, Java's among them, but for those of this environment."""
    own = Path(sys.executable).parent.resolve()
    return [folder for folder in path.split(os.pathsep) if folder and Path(folder).resolve() != own]
