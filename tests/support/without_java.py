"""What commands answer in a process of their own that has no Java and loads neither Spark nor
pandas.
"""

import subprocess
import sys
from collections.abc import Callable
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
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
"""


def commands(database: Database, folder: Path) -> Callable[..., str]:
    """A function that runs a command on that ledger and returns what it printed."""
    given = {
        "ACKLEDGER_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "JAVA_HOME": str(folder / "no java"),
        "PATH": str(folder),
        "PYTHONPATH": str(ROOT),
    }

    def run(*arguments: object) -> str:
        command = [sys.executable, "-c", _COMMAND, *map(str, arguments)]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
