"""Programs of this machine that start Spark: Java, with its version and place, and spark-submit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ledger.errors import ConfigurationError

VERSIONS = (17, 21)
_INSTALL = "install for example openjdk-17-jre-headless, or set JAVA_HOME"


def require_java() -> str:
    """Version and place of Java, for people. Raises ConfigurationError unless Spark can run on
    it.
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
    version = _version(program)
    if version not in VERSIONS:
        raise ConfigurationError(
            f"Spark needs Java 17 or 21, found {version or 'an unknown version'} ({program}):"
            f" {_INSTALL}"
        )
    return f"{version} ({program})"


def spark_program() -> str:
    """spark-submit beside this Python, whose PySpark it is; else the one on the PATH."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def _version(program: str) -> int | None:
    try:
        process = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', process.stderr + process.stdout)
    return int(match[1]) if match else None
