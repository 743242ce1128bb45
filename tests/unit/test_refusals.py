"""What is refused before anything is touched, each in one line that says what to do."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from ledger.cli.runs import finish
from ledger.errors import ConfigurationError
from ledger.store.connection import require_server
from tests.support.places import ROOT


def test_setup_without_java(tmp_path):
    """`make setup` without Java says what to install, before it does anything else."""
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [ROOT / "scripts" / "setup"],
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ackledger: Java 17 or 21 is needed, found none: install")


def test_setup_with_an_old_java(tmp_path):
    """Another version of Java is named, with where it was found."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "setup"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"found 11 ({java})" in done.stderr


@pytest.mark.parametrize(("version", "refused"), [(130012, True), (140000, False), (180004, False)])
def test_server_that_is_too_old(version, refused):
    """PostgreSQL below 14 is refused with both versions; 14 is not."""
    answer = SimpleNamespace(scalar_one=lambda: str(version))
    connection = SimpleNamespace(execute=lambda statement: answer)
    if not refused:
        require_server(connection)
        return
    with pytest.raises(ConfigurationError, match=r"PostgreSQL 14 or later is needed .*, found 13"):
        require_server(connection)


def test_the_worst_exit_code_of_several_batches(capsys):
    """Of several batches one that is not decided comes first, 1, then failed records, 3, then
    quarantined, 4.
    """
    roots = {"total": 1, "acked": 0, "failed": 0, "quarantined": 0, "pending": 1}
    for codes, expected in (((4, 0), 4), ((4, 3), 3), ((0, 3, 1, 4), 1)):
        with pytest.raises(Exception) as caught:
            finish(None, [{"exit_code": code, "records": roots} for code in codes], as_json=True)
        assert caught.value.exit_code == expected
    finish(None, [{"exit_code": 0}], as_json=True)
    assert "exit_code" in capsys.readouterr().out
