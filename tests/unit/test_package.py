"""What the wheel installs, and what spark-submit runs of it."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ledger.airflow.pipelines import APPLICATION
from ledger.errors import EXIT_PERMANENT
from ledger.store.revisions import folder
from tests.support.places import ROOT
from tests.support.wheels import build_wheel


def test_the_wheel_has_one_package(tmp_path):
    """The wheel brings ``ledger`` with its migrations and step program, and no other name."""
    names = zipfile.ZipFile(build_wheel(tmp_path)).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"ledger"}
    assert {"ledger/run_step.py", "ledger/py.typed"} <= set(names)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ledger").rglob("*.py")}
    assert modules <= set(names)
    assert folder() == ROOT / "migrations"
    files = {path.relative_to(ROOT).as_posix() for path in folder().rglob("*.*")}
    assert {"migrations/versions/0001_baseline.py", "migrations/baseline/tables.sql"} <= files
    sources = {f"ledger/store/{name}" for name in files if not name.endswith(".pyc")}
    assert sources == {name for name in names if name.startswith("ledger/store/migrations/")}
    for place in ("cli/new", "auditing/templates"):
        templates = (ROOT / "ledger" / place).iterdir()
        assert {f"ledger/{place}/{path.name}" for path in templates} <= set(names)


def test_the_wheel_has_the_pages(tmp_path):
    """The pages need no build where they are installed: each file of theirs is in the wheel, and
    Airflow finds the plugin by the wheel's entry point.
    """
    wheel = zipfile.ZipFile(build_wheel(tmp_path))
    pages = ROOT / "ledger" / "airflow" / "pages"
    files = [path for path in (pages / "static").rglob("*") if path.is_file()]
    assert {"pages.js", "plot.umd.min.js", "LICENSES.txt"} <= {path.name for path in files}
    assert {path.relative_to(ROOT).as_posix() for path in files} <= set(wheel.namelist())
    (results,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    section = wheel.read(results).decode().partition("[airflow.plugins]\n")[2].partition("\n\n")[0]
    (plugin,) = [line.partition(" = ")[2] for line in section.splitlines() if line]
    module, _, name = plugin.partition(":")
    assert hasattr(import_module(module), name)


_PLUGINS = """
import json
from airflow import plugins_manager
from airflow.sdk import plugins_manager as of_tasks

def registered(module):
    plugins, errors = module._get_plugins()
    return [[plugin.name for plugin in plugins if plugin.name == "ackledger"], errors]

print("found", json.dumps([registered(plugins_manager), registered(of_tasks)]))
"""


@pytest.mark.parametrize("doubled", [False, True])
def test_the_plugin_is_registered_once(doubled, tmp_path):
    """A clone in which the wheel was built has the metadata of a distribution: Airflow, started
    with the clone on its path beside the installed package, has the plugin once and reports no
    error, in its server as in its tasks.
    """
    build_wheel(tmp_path)
    clone = tmp_path / "sources"
    assert (clone / "ackledger.egg-info" / "entry_points.txt").exists()
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    environment["PYTHONPATH"] = str(clone) if doubled else ""
    done = subprocess.run(
        [sys.executable, "-c", _PLUGINS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "already registered" not in done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert json.loads(line.removeprefix("found ")) == [[["ackledger"], {}]] * 2


# What a module imports that is loaded only if somebody has installed what calls it.
ASKED_BY = {"lineage.py": {"attrs", "openlineage"}}  # Airflow's provider of OpenLineage
# The modules that may import what an extra brings.
OF_EXTRA = {
    "airflow": ("airflow",),
    "delta": ("sinks/delta", "sources/delta"),
    "embedded": ("store/embedded.py",),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_imported_is_declared():
    """Whatever the package imports is of a distribution that it depends on; what a part of it
    imports may be of its extra, or of a provider that alone loads the module.
    """
    always = _names(PROJECT["dependencies"])
    providers = packages_distributions()
    for path in (ROOT / "ledger").rglob("*.py"):
        declared = always | ASKED_BY.get(path.name, set())
        for extra, places in OF_EXTRA.items():
            if any(path.is_relative_to(ROOT / "ledger" / place) for place in places):
                declared = declared | _names(PROJECT["optional-dependencies"][extra])
        for name in _imported(path) - sys.stdlib_module_names - {"ledger"}:
            names = {canonicalize_name(provider) for provider in providers.get(name, [name])}
            assert names & declared, f"{path} imports {name}"


def test_each_dependency_is_explained():
    """The page on the installation has a line for each, with its extra, and none for others."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    extras = PROJECT["optional-dependencies"]
    declared = dict.fromkeys(_names(PROJECT["dependencies"]), "")
    for extra in set(extras) - {"demo", "dev"}:
        declared |= dict.fromkeys(_names(extras[extra]) - set(declared), extra)
    lines = re.findall(r"^\| (`[^|]+`) \| (?:`(\w+)`)? ?\|", page, re.MULTILINE)
    explained = {
        canonicalize_name(name): extra
        for names, extra in lines
        for name in re.findall(r"`([\w-]+)`", names)
    }
    assert explained == declared


def _names(requirements):
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def _imported(path):
    """The top-level names of a module's imports, wherever they stand."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("program", [APPLICATION, ROOT / "jobs" / "run_step.py"])
def test_the_step_program_hides_no_module(program):
    """What the DAG submits lies in the package; modules beside it are not found as top-level
    ones.
    """
    assert APPLICATION == ROOT / "ledger" / "run_step.py"
    arguments = ["--pipeline", "errors:pipeline", "--batch", "1", "--step", "a"]
    arguments += ["--attempt", "01890a5d-ac96-774b-bcce-b302099a8057"]
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == EXIT_PERMANENT
    assert "no module 'errors'" in done.stderr


def test_what_make_runs_can_be_imported():
    """A module that a target of the Makefile runs does not ask for what is gone."""
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"python -m ((?:benchmarks|demo|scripts|tests)[\w.]*)", makefile))
    assert {"benchmarks", "demo", "tests.chaos"} <= named
    for name in sorted(named):
        main = f"{name}.__main__" if (ROOT / name / "__main__.py").exists() else name
        subprocess.run([sys.executable, "-c", f"import {main}"], cwd=ROOT, check=True)
