"""Folders as an audited script sees them, without Spark."""

import glob
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.auditing.scripts.files import ScriptFiles, intercept_files
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches, own_calls
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
    with own_calls():  # as before the audit
        os.mkdir("out")
        Path("out/part-00000").touch()
        Path("out/other").touch()
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


@pytest.fixture
def inbox(files) -> Path:
    """A folder with files that were there before the audit."""
    folder = Path("inbox").absolute()
    with own_calls():
        (folder / "more").mkdir(parents=True)
        for name in ("a.csv", "b.csv", "c.csv", "more/d.csv"):
            (folder / name).write_text("n\n1\n")
    return folder


def notes(files: ScriptFiles) -> list[str]:
    """The notes on calls, without their lines."""
    return [note.split(" at ")[0] + note[note.rindex(" is ") :] for note in files.job.notes]


CHANGED = " is executed: Python changes it"


def test_a_source_stays_whatever_the_script_has_done_to_it(files, inbox):
    """A file that was there before is not removed once Spark has read it, although the script has
    moved it or changed its times; a copy that the script has made of it is.
    """
    os.mkdir("work")
    os.rename("inbox/a.csv", "work/a.csv")
    os.chmod("inbox/b.csv", 0o600)
    Path("inbox/b.csv").touch()
    shutil.copy("inbox/c.csv", "work/copy.csv")
    os.rename("work/copy.csv", "work/moved.csv")
    shutil.move("inbox/more", "work")
    Path("work/own.csv").write_text("n\n1\n")
    files.job.paths_read |= {str(Path("work").absolute()), str(inbox)}
    files.job.notes.clear()
    read = ["work/a.csv", "inbox/b.csv", "work/moved.csv", "work/more/d.csv", "work/own.csv"]
    for path in read:
        os.remove(path)
    assert notes(files) == [
        f"remove() of {path} is left out"
        for path in ("work/a.csv", "inbox/b.csv", "work/more/d.csv")
    ]
    shutil.rmtree("work")
    with own_calls():
        assert [path for path in read if os.path.exists(path)] == [
            "work/a.csv",
            "inbox/b.csv",
            "work/more/d.csv",
        ]


def test_earlier_files_that_are_replaced_or_moved_are_noted(files, inbox):
    """Also if Arrow, a copy into a folder or the move of a folder does so; files of the script's
    own are not.
    """
    table = pa.table({"n": [1]})
    os.mkdir("own")
    pq.write_table(table, "own/new.parquet")
    pq.write_table(table, "own/new.parquet")
    shutil.copy("own/new.parquet", "inbox/new.parquet")
    shutil.copy("own/new.parquet", "inbox")
    shutil.copytree("own", "inbox", dirs_exist_ok=True)
    shutil.move("own/new.parquet", "own/old.parquet")
    fd = os.open("own/low", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    os.remove("own/low")
    os.symlink("inbox/c.csv", "link")
    shutil.rmtree("own")
    assert files.job.notes == []
    pq.write_table(table, "inbox/a.csv")
    Path("b.csv").write_text("n\n2\n")
    shutil.copy("b.csv", "inbox")
    os.mkdir("tree")
    shutil.copyfile("b.csv", "tree/c.csv")
    shutil.copytree("tree", "inbox", dirs_exist_ok=True)
    os.replace("b.csv", "inbox/b.csv")
    with open("link", "w") as file:
        file.write("n\n3\n")
    os.remove("link")
    shutil.move("inbox/more", "more")
    assert notes(files) == [
        f"{call} of {path}{CHANGED}"
        for call, path in (
            ("ParquetWriter()", "inbox/a.csv"),
            ("copy()", "inbox/b.csv"),
            ("copytree()", "inbox"),
            ("replace()", "inbox/b.csv"),
            ("open()", "inbox/c.csv"),
            ("move()", "inbox/more"),
        )
    ]


def test_folders_without_what_was_moved_or_written_there_end_the_script(files, inbox):
    """A loop over the files of an archive does not run zero times, and no file in a moved folder is
    said to be missing.
    """
    os.mkdir("archive")
    files.job.paths_read.add(str(inbox))
    shutil.move("inbox/a.csv", "archive")
    shutil.move("inbox/more", "archive")
    files.job.note_pandas("totals/a.csv", "to_csv")
    assert os.path.exists("archive/a.csv")
    assert os.path.isdir("archive/more")
    assert sorted(os.listdir()) == ["archive", "inbox"]
    for look in (
        lambda: glob.glob("archive/*.csv"),
        lambda: list(Path("archive").iterdir()),
        lambda: os.path.exists("archive/more/d.csv"),
        lambda: os.listdir("totals"),
        lambda: os.path.exists("totals/a.csv"),
    ):
        with pytest.raises(ScriptStop, match="the audit has not let the script write or move"):
            look()


def test_a_table_whose_place_is_not_known_is_nowhere():
    """Sources on a store are not taken for its files."""
    to = Destination("t", "t", "table", "parquet", "append", ("a",))
    output = WrittenOutput("t", "job.py:1", destination=to, copy=Path("copy"))
    assert not output.is_at(Path("s3a://bucket/x"))
    assert not output.is_at(Path("/x"))
    to = replace(to, location="/x")
    assert replace(output, destination=to).is_at(Path("/x/y"))


def test_partitions_have_the_names_of_columns():
    """Spark ignores the case of a column in partitionBy, unless it tells two columns apart."""
    to = Destination("t", "t", "table", "parquet", "append", ("a", "shop"), ("SHOP",))
    assert to.in_one_case().partitions == ("shop",)
    to = Destination("t", "t", "table", "parquet", "append", ("a", "A", "b"), ("a", "A"))
    assert to.in_one_case().partitions == ("a", "A")
