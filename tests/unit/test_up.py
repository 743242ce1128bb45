"""What ``make up`` does with folders of the user's own."""

import os
import shutil
import subprocess
import sys

import pytest

from ledger.settings import Settings
from scripts import hints, up
from scripts.airflow_env import ROOT

PARSED = ["flights", "orders"]  # what Airflow has parsed


def test_folders_of_ones_own_are_only_read(tmp_path, monkeypatch, capsys):
    """With DAGS= and DATA= the services use these folders, and neither input, output, bytecode
    nor logs go there.
    """
    dags, data, home = tmp_path / "my dags", tmp_path / "data", tmp_path / "home"
    dags.mkdir()
    (data / "orders").mkdir(parents=True)
    for name in ("orders/2026-03-09.csv", "orders/2026-03-10.csv", "planes-2013-01-01.csv"):
        (data / name).touch()
    calls = {}
    monkeypatch.setenv("ACKLEDGER_HOME", str(home))
    for name in ("ACKLEDGER_DATA", "ACKLEDGER_OUTPUT"):
        monkeypatch.setenv(name, "put back afterwards")
        monkeypatch.delenv(name)
    monkeypatch.setattr(up, "up", lambda *args, **options: calls.update(args=args, **options) or "")
    monkeypatch.setattr(hints, "pipelines", lambda *_: ["orders"])
    monkeypatch.setattr("sys.argv", ["up", "--dags", str(dags), "--data", str(data)])
    assert up.main() == 0
    folders = f"export ACKLEDGER_DATA={data} ACKLEDGER_OUTPUT={home}/output"
    printed = capsys.readouterr().out
    assert folders in printed
    assert "--dag-id orders --from-date 2026-03-09 --to-date 2026-03-10\n" in printed
    assert "2013" not in printed
    settings, _, used = calls["args"]
    assert (settings.data, used, calls["flights"]) == (str(data), dags, False)
    environment = up.service_environment(settings, "postgresql://airflow", dags)
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(dags)
    assert environment["ACKLEDGER_DATA"] == str(data)
    assert environment["ACKLEDGER_OUTPUT"] == str(home / "output")
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert str(dags) in environment["PYTHONPATH"].split(":")
    assert environment["AIRFLOW__LOGGING__BASE_LOG_FOLDER"].startswith(str(home))


def test_an_output_folder_of_ones_own_is_used(tmp_path, monkeypatch):
    """With DATA= an ``ACKLEDGER_OUTPUT`` that is set stays, as a whole path."""
    calls = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKLEDGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACKLEDGER_DATA", "elsewhere")
    monkeypatch.setenv("ACKLEDGER_OUTPUT", "made")
    monkeypatch.setattr(up, "up", lambda *args, **_: calls.update(args=args) or "")
    monkeypatch.setattr(hints, "pipelines", lambda *_: [])
    monkeypatch.setattr("sys.argv", ["up", "--data", str(tmp_path)])
    assert up.main() == 0
    environment = up.service_environment(calls["args"][0], "postgresql://airflow", up.DAGS)
    assert environment["ACKLEDGER_OUTPUT"] == str(tmp_path / "made")


def test_the_projects_own_dags_are_the_default(tmp_path, monkeypatch, capsys):
    """Without DAGS= and DATA= the project's DAGs run over the flights of 2013; what is printed
    says where the ledger's pages are.
    """
    calls = {}
    (tmp_path / "data" / "flights").mkdir(parents=True)
    for month in range(2, 9):
        (tmp_path / "data" / "flights" / f"2013-{month:02d}-01.csv").touch()
    monkeypatch.setenv("ACKLEDGER_HOME", str(tmp_path))
    for name in ("ACKLEDGER_DATA", "ACKLEDGER_OUTPUT"):
        monkeypatch.setenv(name, "put back afterwards")
        monkeypatch.delenv(name)
    monkeypatch.setattr(up, "up", lambda *args, **options: calls.update(args=args, **options) or "")
    monkeypatch.setattr(hints, "pipelines", lambda *_: PARSED)
    monkeypatch.setattr("sys.argv", ["up", "--port", "8793"])
    assert up.main() == 0
    printed = capsys.readouterr().out
    assert "Ledger    http://127.0.0.1:8793/plugin/ledger\n" in printed
    assert "--dag-id flights --from-date 2013-02-01 --to-date 2013-04-01\n" in printed
    assert "copy" not in printed
    assert calls["args"][2] == ROOT / "dags"
    assert calls["flights"]
    environment = up.service_environment(Settings(), "postgresql://airflow", ROOT / "dags")
    assert environment["ACKLEDGER_DATA"] == str(tmp_path / "data")
    assert environment["ACKLEDGER_OUTPUT"] == str(tmp_path / "data")
    assert "PYTHONDONTWRITEBYTECODE" not in environment


def test_a_folder_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    """A folder that does not exist is named before anything starts."""
    monkeypatch.setattr("sys.argv", ["up", "--dags", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        up.main()
    assert f"{tmp_path}/none is no folder" in capsys.readouterr().err


def test_modules_of_ones_own_come_first(tmp_path, monkeypatch):
    """A DAG file that has the name of its pipeline's module finds that on PYTHONPATH, and a
    package of one's own is not hidden by one of this project; what is nowhere else is found
    here.
    """
    shop, dags = tmp_path / "shop", tmp_path / "shop" / "dags"
    (shop / "jobs").mkdir(parents=True)
    dags.mkdir()
    (shop / "orders.py").write_text("pipeline = 'of the module'")
    (shop / "jobs" / "__init__.py").write_text("own = True")
    (dags / "orders.py").write_text("from orders import pipeline")
    (dags / "beside.py").write_text("")
    monkeypatch.setenv("ACKLEDGER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", "shop")
    monkeypatch.chdir(tmp_path)
    python_path = up.service_environment(Settings(), "postgresql://airflow", dags)["PYTHONPATH"]
    assert python_path.split(os.pathsep) == [str(shop), str(dags), str(ROOT)]
    program = "import beside, jobs, orders, scripts; assert jobs.own; print(orders.pipeline)"
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": python_path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "of the module\n", result.stderr


@pytest.mark.parametrize("flights", [True, False])
def test_input_is_written_only_where_it_is_ours(flights, tmp_path, monkeypatch):
    """The flights are written where no folder was named; into a folder of the user's nothing is."""
    calls = []
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path / "data"))
    for place, name in (
        (up.embedded, "start"),
        (up, "Database"),
        (up, "upgrade"),
        (up.embedded, "ensure_database"),
        (up.services, "configure"),
        (up.subprocess, "run"),
    ):
        monkeypatch.setattr(place, name, lambda *_, **__: "postgresql://airflow")
    monkeypatch.setattr(up.services, "start", lambda *_: iter(["scheduler"]))
    monkeypatch.setattr(up.data, "write_all", calls.append)
    up.up(Settings(home=tmp_path / "home"), 8080, tmp_path / "dags", flights=flights)
    assert calls == [tmp_path / "data"] * flights
    assert not (tmp_path / "data").exists()


def test_what_to_copy_is_named(tmp_path):
    """The hint for a user with DAGS= names each DAG of ours that a link or an event leads to and
    that the folder lacks: of all, of some, and of none in a new project, whose one file makes all
    three.
    """
    ours = {path.name for path in (ROOT / "dags").glob("ledger_*.py")}
    assert len(ours) == 3
    assert set(hints.missing_files(tmp_path)) == {f"dags/{name}" for name in ours}
    (text,) = hints.hint(hints.missing_files(tmp_path), None, None)[:1]
    assert all(f"dags/{name}" in text for name in ours)
    shutil.copy(ROOT / "dags" / "ledger_sweeper.py", tmp_path)
    assert hints.missing_files(tmp_path) == ["dags/ledger_replay.py", "dags/ledger_accept.py"]
    new = ROOT / "ledger" / "cli" / "new" / "ledger_dags.py.template"
    shutil.copy(new, tmp_path / "ledger_dags.py")
    assert hints.missing_files(tmp_path) == []
    guide = (ROOT / "docs" / "operating.md").read_text()
    assert all(f"`dags/{name}`" in guide for name in ours)
