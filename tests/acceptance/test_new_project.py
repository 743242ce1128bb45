"""``ackledger init``: what it writes, and what it refuses."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ledger.cli.base import app
from tests.support.airflow import dag_bag


def init(*arguments):
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


def written(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_its_own_test_passes(tmp_path):
    """The project's test runs where ackledger is installed, under any name."""
    folder = init(tmp_path / "new", "--name", "sales")
    assert folder.exit_code == 0, folder.output
    assert written(tmp_path / "new") == [
        ".gitignore",
        "README.md",
        "dags/ledger_dags.py",
        "dags/sales_dag.py",
        "data/customers.csv",
        "data/orders/2026-01-01/orders.csv",
        "pyproject.toml",
        "sales.py",
        "tests/test_sales.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "new",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_its_dag_is_one_that_airflow_loads(tmp_path, monkeypatch):
    """Beside the sweeper and the forms."""
    init(tmp_path, "--name", "init_loaded")
    monkeypatch.syspath_prepend(str(tmp_path))
    bag = dag_bag(tmp_path / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"init_loaded", "ledger_sweeper", "ledger_replay", "ledger_accept"}


def test_nothing_is_overwritten(tmp_path):
    """One file that is there keeps all the others away, and is named."""
    (tmp_path / "orders.py").write_text("mine")
    refused = init(tmp_path)
    assert refused.exit_code == 1
    assert f"there already: {tmp_path}/orders.py." in str(refused.exception)
    assert written(tmp_path) == ["orders.py"]


@pytest.mark.parametrize("name", ["my-orders", "class", "ledger", "data", ""])
def test_a_name_is_one_of_a_module(tmp_path, name):
    """Else nothing could import the pipeline."""
    refused = init(tmp_path, "--name", name)
    assert "expected a name of a Python module" in str(refused.exception)
    assert written(tmp_path) == []
