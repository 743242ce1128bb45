"""Folders as an audited script sees them, without Spark."""

import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.auditing.scripts.files import ScriptFiles, intercept_files
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Destination, WrittenOutput


@pytest.fixture
def files(tmp_path, monkeypatch) -> Iterator[ScriptFiles]:
    """Files of a script in a folder, whose output ``stage/a`` is written to a copy."""
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    copies = tmp_path / "copies"
    copies.mkdir()
    files = ScriptFiles(JobAudit(copies))
    patches = Patches()
    intercept_files(patches, files)
    yield files
    patches.undo()


def write(files: ScriptFiles, name: str) -> None:
    """Have the script write an output."""
    copy = files.job.written.next_copy()
    copy.mkdir()
    (copy / "_SUCCESS").touch()
    key = str(Path(name).absolute())
    to = Destination(name, key, "path", "parquet", "overwrite", ("a",))
    files.job.written.outputs.append(WrittenOutput(name, "job.py:1", destination=to, copy=copy))


def test_outputs_are_there(files):
    """Every way to look for them finds them, and only the mark that Spark leaves is in them."""
    write(files, "stage/a")
    assert os.path.exists("stage/a")
    assert Path("stage").is_dir()
    assert Path("stage/a/_SUCCESS").is_file()
    assert not os.path.exists("stage/b")
    assert os.listdir() == os.listdir(".") == ["stage"]
    assert glob.glob("stage/*") == ["stage/a"]
    assert [each.name for each in Path("stage").iterdir()] == ["a"]
    assert [entry.is_dir() for entry in os.scandir("stage")] == [True]
    with pytest.raises(FileExistsError):
        os.makedirs("stage/a")
    os.makedirs("stage/a", exist_ok=True)
    with pytest.raises(ScriptStop):
        os.path.exists("stage/a/part-0")
    with pytest.raises(ScriptStop):
        list(os.walk("."))
    with open("stage/mark", "w") as file:
        file.write("1")
    assert sorted(os.listdir("stage")) == ["a", "mark"]
    shutil.rmtree("stage/a")
    assert os.listdir("stage") == ["mark"]
    assert not os.path.exists("stage/a")


def test_what_stays_is_gone(files):
    """An earlier output that the script removes is not seen, in a folder that it makes, too."""
    os.mkdir("out")
    Path("out/part-00000").touch()
    Path("out/other").touch()
    os.utime("out/part-00000", (1e9, 1e9))
    shutil.rmtree("out")
    assert not os.path.exists("out")
    assert "out" not in os.listdir()
    assert not os.path.lexists("out/other")
    with pytest.raises(FileNotFoundError):
        Path("out/other").read_text()
    with pytest.raises(FileNotFoundError):
        Path("out/new").write_text("1")
    with pytest.raises(FileNotFoundError):
        os.listdir("out")
    os.mkdir("out")
    assert os.listdir("out") == []
    with open("out/new", "w") as file:
        file.write("1")
    assert os.listdir("out") == ["new"]
    with pytest.raises(FileExistsError):
        os.mkdir("out")
    with pytest.raises(ScriptStop):
        files.require_readable(str(Path("out").absolute()))


def test_functions_that_are_replaced_are_found_in_sets(files):
    """``shutil`` asks which functions of ``os`` can do what."""
    assert os.stat in os.supports_follow_symlinks
    Path("a").touch()
    os.symlink("a", "b")
    shutil.copy("b", "c", follow_symlinks=False)
    assert Path("c").is_symlink()
