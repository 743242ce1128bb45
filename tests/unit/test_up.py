"""What ``make up`` does with folders of the user's own."""

import pytest

from ledger.settings import Settings
from scripts import up
from scripts.airflow_env import ROOT


def test_folders_of_ones_own_are_only_read(tmp_path, monkeypatch):
    """With DAGS= and DATA= the services use these folders, and neither input, bytecode nor logs go there."""
    dags, data, home = tmp_path / "my dags", tmp_path / "data", tmp_path / "home"
    dags.mkdir()
    data.mkdir()
    given = {}
    monkeypatch.setenv("ACKLEDGER_HOME", str(home))
    monkeypatch.setenv("ACKLEDGER_DATA", "put back afterwards")
    monkeypatch.delenv("ACKLEDGER_DATA")
    monkeypatch.setattr(up, "up", lambda *args, **options: given.update(args=args, **options) or "")
    monkeypatch.setattr("sys.argv", ["up", "--dags", str(dags), "--data", str(data)])
    assert up.main() == 0
    settings, _, used = given["args"]
    assert (settings.data, used, given["flights"]) == (str(data), dags, False)
    environment = up.service_environment(settings, "postgresql://airflow", dags)
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(dags)
    assert environment["ACKLEDGER_DATA"] == str(data)
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert str(dags) in environment["PYTHONPATH"].split(":")
    assert environment["AIRFLOW__LOGGING__BASE_LOG_FOLDER"].startswith(str(home))


def test_the_projects_own_dags_are_the_default(tmp_path, monkeypatch):
    """Without DAGS= and DATA= the project's DAGs run over the flights of 2013."""
    given = {}
    monkeypatch.setenv("ACKLEDGER_HOME", str(tmp_path))
    monkeypatch.setenv("ACKLEDGER_DATA", "put back afterwards")
    monkeypatch.delenv("ACKLEDGER_DATA")
    monkeypatch.setattr(up, "up", lambda *args, **options: given.update(args=args, **options) or "")
    monkeypatch.setattr("sys.argv", ["up"])
    assert up.main() == 0
    assert given["args"][2] == ROOT / "dags"
    assert given["flights"]
    environment = up.service_environment(Settings(), "postgresql://airflow", ROOT / "dags")
    assert environment["ACKLEDGER_DATA"] == str(tmp_path / "data")
    assert "PYTHONDONTWRITEBYTECODE" not in environment


def test_a_folder_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    """A folder that does not exist is named before anything starts."""
    monkeypatch.setattr("sys.argv", ["up", "--dags", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        up.main()
    assert f"{tmp_path}/none is no folder" in capsys.readouterr().err
