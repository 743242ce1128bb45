"""Calls of a script at paths whose files are not as it left them, without Spark."""

import bz2
import glob
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.orc
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


def write(files: ScriptFiles, name: str, table: str = "") -> None:
    """Have the script write an output, or a table with its files there."""
    copy = files.job.written.next_copy()
    copy.mkdir()
    (copy / "_SUCCESS").touch()
    key = str(Path(name).absolute())
    to = Destination(name, key, "path", "parquet", "overwrite", ("a",))
    if table:
        to = replace(to, name=table, key=table, kind="table", location=key)
    files.job.written.outputs.append(WrittenOutput(name, "job.py:1", destination=to, copy=copy))


def test_outputs_are_there(files):
    """A script finds them with the mark that Spark leaves; other calls there end it."""
    write(files, "stage/a")
    assert os.path.exists("stage/a")
    assert Path("stage").is_dir()
    assert Path("stage/a/_SUCCESS").is_file()
    assert not os.path.exists("stage/b")
    with pytest.raises(FileExistsError):
        os.makedirs("stage/a")
    os.makedirs("stage/a", exist_ok=True)
    with own_calls():  # as before the audit
        Path("other").mkdir()
        Path("other/x").touch()
    ends = (
        lambda: os.path.exists("stage/a/part-0"),
        lambda: os.listdir(),
        lambda: glob.glob("stage/*"),
        lambda: list(Path("stage").iterdir()),
        lambda: list(Path("stage").glob("*")),
        lambda: list(os.walk(".")),
        lambda: Path("stage/a/part-0").read_text(),
        lambda: Path("stage/mark").write_text("1"),
        lambda: os.mkdir("stage/b"),
        lambda: os.symlink("other", "stage/b"),
        lambda: os.link("other/x", "stage/a/x"),
        lambda: shutil.copytree("stage", "other", dirs_exist_ok=True),
        lambda: shutil.copytree("other", ".", dirs_exist_ok=True),
        lambda: shutil.copy("other/x", "stage/a"),
        lambda: shutil.move("stage", "other"),
        lambda: os.rename("other/x", "stage/a/x"),
        lambda: os.remove("stage/a/part-0"),
        lambda: pq.write_table(pa.table({"n": [1]}), "stage/a/part-0"),
        lambda: os.open("stage/a/x", os.O_CREAT),
    )
    for end in ends:
        with pytest.raises(ScriptStop):
            end()
    assert files.job.notes == []
    shutil.rmtree("stage/a")
    assert not os.path.exists("stage/a")
    assert sorted(os.listdir()) == ["other"]


def test_files_of_tables_are_there(files):
    """Calls at the folder of a table are as those at an output, until the table is dropped."""
    with own_calls():
        os.makedirs("warehouse/t")
        Path("warehouse/t/part-00000").touch()
    write(files, "warehouse/t", "t")
    assert os.listdir() == os.listdir(".") == ["warehouse"]
    for end in (lambda: os.listdir("warehouse/t"), lambda: shutil.rmtree("warehouse")):
        with pytest.raises(ScriptStop, match="files of warehouse/t by"):
            end()
    files.job.written.drop("table", "t", "job.py:1", "DROP TABLE")
    shutil.rmtree("warehouse/t")
    assert not os.path.exists("warehouse/t")


def test_names_in_a_folder_are_right_or_end_the_script(files):
    """An output that was there before does not change the names in the folder above it."""
    with own_calls():
        os.makedirs("data/out")
        Path("data/a.csv").touch()
    write(files, "data/out")
    write(files, "data/out2/day=1")
    assert os.listdir() == ["data"]
    with pytest.raises(ScriptStop):
        os.listdir("data")
    shutil.rmtree("data/out2")
    assert sorted(os.listdir("data")) == ["a.csv", "out"]
    with pytest.raises(ScriptStop):
        os.listdir("data/out")


def test_what_stays_is_gone(files):
    """A script does not find an earlier output that it removes, and can only make its folder."""
    with own_calls():
        os.mkdir("out")
        Path("out/part-00000").touch()
        Path("out/other").touch()
    shutil.rmtree("out")
    shutil.rmtree("out", ignore_errors=True)
    Path("out/other").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        shutil.rmtree("out")
    with pytest.raises(FileNotFoundError):
        os.rmdir("out")
    assert not os.path.exists("out")
    assert not os.path.lexists("out/other")
    for _ in range(2):
        for end in (
            lambda: Path("out/other").read_text(),
            lambda: Path("out/new").write_text("1"),
            lambda: os.listdir("out"),
            lambda: os.makedirs("out/new"),
            lambda: pq.write_table(pa.table({"n": [1]}), "out/new"),
            lambda: files.phantoms.require_readable(str(Path("out").absolute())),
        ):
            with pytest.raises(ScriptStop, match=r"rmtree\(\) of out at .* is left out"):
                end()
        if not os.path.exists("out"):
            with pytest.raises(ScriptStop):
                os.listdir()
            os.makedirs("out")
    assert os.path.isdir("out")
    assert os.listdir() == ["out"]
    with pytest.raises(FileExistsError):
        os.mkdir("out")
    assert not os.path.exists("out/other")
    write(files, "out/a")
    assert os.path.exists("out/a")
    shutil.rmtree("out")
    assert not os.path.exists("out")
    with own_calls():
        assert sorted(os.listdir("out")) == ["other", "part-00000"]


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
    assert not any(map(os.path.exists, read))
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
    with own_calls():
        os.mkdir("more")
        Path("more/zip.bz2").touch()
        Path("more/a.orc").touch()
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
    os.close(os.open("inbox/more/d.csv", os.O_WRONLY))
    os.close(os.open("inbox/more/d.csv", os.O_RDONLY))
    os.truncate("inbox/more/d.csv", 0)
    bz2.open("more/zip.bz2", "w").close()
    pyarrow.orc.write_table(table, "more/a.orc")
    shutil.move("inbox/more", "more/more")
    assert notes(files) == [
        f"{call} of {path}{CHANGED}"
        for call, path in (
            ("write_table()", "inbox/a.csv"),
            ("copy()", "inbox/b.csv"),
            ("copytree()", "inbox"),
            ("replace()", "inbox/b.csv"),
            ("open()", "inbox/c.csv"),
            ("open()", "inbox/more/d.csv"),
            ("truncate()", "inbox/more/d.csv"),
            ("open()", "more/zip.bz2"),
            ("write_table()", "more/a.orc"),
            ("move()", "inbox/more"),
        )
    ]


def test_lines_of_notes_are_those_of_the_script(files, inbox):
    """Not those of Arrow, whose functions write by others."""
    table = pa.table({"n": [1]})
    with own_calls():
        Path("out").mkdir()
    pq.write_table(table, "inbox/a.csv")
    pq.write_to_dataset(table, "inbox/more", existing_data_behavior="overwrite_or_ignore")
    places = {note.split(" at ")[1].split(":")[0] for note in files.job.notes}
    assert places == {Path(__file__).name}
    assert {output.place.split(":")[0] for output in files.opened.values()} == places


def test_folders_without_what_was_moved_or_written_there_end_the_script(files, inbox):
    """A loop over the files of an archive does not run zero times, and no file in a moved folder is
    said to be missing.
    """
    os.mkdir("archive")
    files.job.paths_read.add(str(inbox))
    shutil.move("inbox/a.csv", "archive")
    shutil.move("inbox/more", "archive")
    os.mkdir("totals")
    files.job.note_pandas("totals/a.csv", "to_csv")
    files.job.note_pandas("orders", "to_sql")
    os.makedirs("archive", exist_ok=True)
    assert not os.path.exists("inbox/a.csv")
    assert Path("inbox").is_dir()
    assert sorted(os.listdir()) == ["archive", "inbox", "totals"]
    for look in (
        lambda: glob.glob("archive/*.csv"),
        lambda: list(Path("archive").iterdir()),
        lambda: list(Path("archive").glob("*.csv")),
        lambda: os.path.exists("archive/a.csv"),
        lambda: os.path.exists("archive/more/d.csv"),
        lambda: os.remove("archive/a.csv"),
        lambda: os.listdir("inbox"),
        lambda: os.listdir("totals"),
        lambda: os.path.exists("totals/a.csv"),
        lambda: Path("totals/a.csv").read_text(),
    ):
        with pytest.raises(ScriptStop, match="is left out"):
            look()
    assert glob.glob("inbox/b*.csv") == ["inbox/b.csv"]
    assert [*glob.iglob("b*.csv", root_dir="inbox")] == ["b.csv"]
    table = pa.table({"n": [1]})
    assert pyarrow.dataset.dataset([pyarrow.dataset.dataset(table)]).count_rows() == 1
    shutil.rmtree("archive")
    assert not os.path.exists("archive")
    with own_calls():
        assert (inbox / "a.csv").exists()


WRITES = {
    "open": lambda: Path("a.csv").write_text("n"),
    "open in it": lambda: Path("inbox/a.csv").write_text("n"),
    "touch": lambda: Path("inbox/new.csv").touch(),
    "touch again": lambda: Path("inbox/a.csv").touch(),
    "truncate": lambda: os.truncate("a.csv", 0),
    "replace": lambda: os.replace("tmp", "a.csv"),
    "move": lambda: shutil.move("tmp", "inbox"),
    "copy": lambda: shutil.copy("tmp", "a.csv"),
    "copytree": lambda: shutil.copytree("tree", "inbox", dirs_exist_ok=True),
    "arrow": lambda: pq.write_table(pa.table({"n": [1]}), "inbox/a.csv"),
    "link": lambda: os.link("tmp", "a.csv"),
    "symlink": lambda: os.symlink("tmp", "a.csv"),
}


@pytest.mark.parametrize("call", WRITES)
@pytest.mark.parametrize("is_moved", [True, False])
def test_nothing_is_written_where_a_move_or_removal_was_left_out(files, inbox, call, is_moved):
    """The file there is the only one that has the records, or the user's folder would be mixed."""
    with own_calls():
        Path("a.csv").write_text("kept")
    Path("tmp").write_text("new")
    os.mkdir("tree")
    files.job.paths_read |= {str(Path("a.csv").absolute()), str(inbox)}
    if is_moved:
        os.rename("a.csv", "a.bak")
        os.rename("inbox", "inbox.done")
    else:
        os.remove("a.csv")
        shutil.rmtree("inbox")
    os.mkdir("inbox")
    with pytest.raises(ScriptStop, match="is left out: the files are not as the script left them"):
        WRITES[call]()
    with own_calls():
        assert Path("a.csv").read_text() == "kept"
        assert sorted(os.listdir("inbox")) == ["a.csv", "b.csv", "c.csv", "more"]
        assert (inbox / "a.csv").read_text() == "n\n1\n"


def test_files_that_a_shell_or_a_function_moves_are_earlier_ones(files, inbox):
    """Neither a folder of the script's own, nor an own name that is taken again, makes them its
    own.
    """
    os.mkdir("work")
    for name in ("tmp.csv", "work/again.csv"):
        Path(name).write_text("own")
        os.remove(name)
    Path("work/replaced.csv").write_text("own")
    with own_calls():
        os.replace("inbox/a.csv", "work/a.csv")
        os.replace("inbox/b.csv", "tmp.csv")
        os.replace("inbox/c.csv", "work/replaced.csv")
    os.link("inbox/more/d.csv", "work/d.csv")
    files.job.paths_read |= {str(Path("work").absolute()), str(Path("tmp.csv").absolute())}
    read = ["work/a.csv", "tmp.csv", "work/replaced.csv", "work/d.csv"]
    for path in read:
        os.remove(path)
    assert notes(files) == [f"remove() of {path} is left out" for path in read]
    with own_calls():
        assert all(map(os.path.exists, read))


def test_a_function_that_copies_a_tree_is_looked_at(files, inbox):
    """``copytree`` moves files if it is told to."""
    files.job.paths_read.add(str(inbox))
    shutil.copytree("inbox/more", "archive", copy_function=shutil.move)
    assert notes(files) == ["move() of inbox/more/d.csv is left out"]
    with own_calls():
        assert (inbox / "more" / "d.csv").exists()


def test_folders_that_are_not_empty_stay(files, inbox):
    """``rmdir`` and ``remove`` raise the errors of Python, and drop nothing."""
    files.job.paths_read.add(str(inbox))
    with own_calls():
        os.mkdir("stage")
    write(files, "stage/out")
    for path in ("inbox", "stage", "stage/out"):
        with pytest.raises(OSError, match="not empty"):
            os.rmdir(path)
        with pytest.raises(IsADirectoryError):
            os.remove(path)
        assert os.path.isdir(path)
    assert os.path.exists("inbox/a.csv")
    assert files.job.written.outputs[0].dropped_by == ""
    os.mkdir("empty")
    os.rmdir("empty")
    assert files.job.notes == []


def test_links_are_replaced(files, inbox):
    """The removal of a link removes no data: it is executed, and noted with the link's name."""
    with own_calls():
        for day in ("day1", "day2"):
            os.mkdir(day)
            Path(day, "part-00000").touch()
        os.symlink("day1", "latest")
    files.job.paths_read.add(str(Path("day1").absolute()))
    os.remove("latest")
    os.symlink("day2", "latest")
    os.symlink("day1", "tmp")
    os.replace("tmp", "latest")
    assert notes(files) == [f"remove() of latest{CHANGED}"]
    with own_calls():
        assert os.readlink("latest") == "day1"
        assert Path("day1/part-00000").exists()


def test_no_link_leads_to_an_output(files):
    """It would lead nowhere once the audit has ended."""
    write(files, "stage/a")
    with pytest.raises(ScriptStop, match=r"uses files of stage/a by symlink\(\)"):
        os.symlink("stage/a", "latest")
    assert not os.path.lexists("latest")


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
