"""What commands answer in a process of their own that has no Java and loads nothing of Spark."""

import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from ledger.store.connection import Database
from tests.support.places import ROOT

_COMMAND = """
import sys
from ledger import cli
sys.argv = ["ackledger", *sys.argv[1:]]
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {refused}, loaded
"""


def commands(
    database: Database, folder: Path, refused: Collection[str] = ("pyspark", "py4j", "pandas")
) -> Callable[..., str]:
    """A function that runs a command on that ledger and returns what it printed. ``refused``: what
    the command may not load."""
    data = {
        "ACKLEDGER_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "JAVA_HOME": str(folder / "no java"),
        "PATH": str(folder),
        "PYTHONPATH": str(ROOT),
    }

    def run(*arguments: object) -> str:
        program = _COMMAND.replace("{refused}", repr(set(refused)))
        command = [sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(command, env=data, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
