"""What a source reads is all that its files hold, by whatever says how much that is."""

import os
import re
import resource
import subprocess
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.recovery import finished
from ledger.errors import InputError, LostFileError, UnavailableError
from ledger.execution import run_steps
from ledger.sources.base import SourceReader
from ledger.sources.files import layouts
from ledger.sources.files.reader import Reader
from ledger.sources.files.writing import Writer
from ledger.spark.failures import recorded, redacted, translated
from tests.support.footers import move_row_group


def copying(**source):
    """A pipeline that copies one source to one sink."""
    pipeline = Pipeline("copy", max_replays=1)
    pipeline.source("records", FileSource("in/*", **source))
    pipeline.sink("out", ParquetSink("out"), reads="records")
    return pipeline


@pytest.fixture
def folder(tmp_path):
    inputs = tmp_path / "in"
    inputs.mkdir()
    return inputs


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("incremental", [False, True])
def test_a_row_group_that_is_not_read_fails_the_step(runner, folder, incremental, copy):
    """A file of 25 records by its footer of which Spark reads none fails by name, with both
    numbers, beside one that is whole; written again it is read."""
    table = pa.table({"n": pa.array(range(25), pa.int32())})
    broken = folder / "a b%.parquet"
    for path in (broken, folder / "whole.parquet"):
        pq.write_table(table, path)
    move_row_group(broken)
    run = runner(copying(format="parquet", schema="n INT", incremental=incremental, copy=copy))
    batch = run.open()
    says = r"a b%\.parquet of 'records' is damaged: expected 25 records by its footer, .* read 0"
    with pytest.raises(InputError, match=says):
        run.step(batch, "records")
    if not incremental:
        pq.write_table(table, broken)
        settlement = run.settled(run.open())
        assert (settlement.roots, settlement.failed) == (50, 0)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_that_grows_while_it_is_read_fails_the_step(runner, folder, monkeypatch, form):
    """A file of an interval that has another size than when it was listed fails by name: nothing
    in a text says how many records it has."""
    path = folder / f"a.{form}"
    path.write_text("n\n1\n" if form == "csv" else '{"n": 1}\n')
    write_all = Writer.write

    def write_and_grow(writer, spark):
        done = write_all(writer, spark)
        path.write_text(path.read_text() + "\n")
        return done

    run = runner(copying(format=form, schema="n INT"))
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", write_and_grow)
        with pytest.raises(InputError, match=rf"a\.{form} had \d+ bytes .* when it was listed"):
            run.step(run.open(), "records")
    assert run.settled(run.open()).failed == 0


@pytest.mark.parametrize("schema", ["s STRING", "s STRING, n INT"])
@pytest.mark.parametrize("multiline", [False, True])
def test_a_value_of_too_many_lines_fails_as_one_record(
    runner, folder, sink_rows, schema, multiline
):
    """A quoted value of more than 10,000 lines, whatever is in them, fails as one record that names
    the limit, again in its replay; the records around it arrive."""
    commas = "," * schema.count(",")
    value = "\n".join(['"a', *['""quoted"", 7'] * 10_500, f'z"{commas}'])
    (folder / "a.csv").write_text(f"first{commas}\n{value}\nlast{commas}\n")
    run = runner(copying(schema=schema, header=False, multiline=multiline))
    batch = run.open()
    settlement = run.settled(batch)
    assert (settlement.roots, settlement.failed) == (3, 1)
    assert sink_rows("out", "s") == [("first",), ("last",)]
    run.settled(run.open_replay(batch.batch_id))
    reasons = run.ledger.rows("SELECT reason FROM failed_root")
    says = "malformed csv: a quote is open for more than 10,000 lines, of which the first 10,000"
    assert [row.reason for row in reasons] == [f"{says} are kept"] * 2


def flip(path, place):
    """Change a byte in the midst of a file's pages, or at its end."""
    data = bytearray(path.read_bytes())
    pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[pages // 2 if place == "page" else -2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["page", "end"])
def test_changed_bytes_of_a_file_are_named(runner, folder, settings, place):
    """Bytes that were changed in a source's Parquet file, or in the snapshot that a step reads, are
    an error that names the file and what to do. The next run of the batch writes that snapshot
    again, although the file is there with its size.
    """
    table = pa.table({"n": pa.array(range(5000), pa.int32())})
    path = folder / "a.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    flip(path, place)
    run = runner(copying(format="parquet", schema="n INT"))
    batch = run.open()
    with pytest.raises(InputError, match=r"a\.parquet"):
        run.step(batch, "records")
    pq.write_table(table, path)
    run.step(batch, "records")
    (stored,) = Path(settings.storage_root()).rglob("records/**/*.parquet")
    whole = stored.read_bytes()
    for checked in (True, False):
        flip(stored, place)
        with pytest.raises(Exception, match=stored.name) as caught:
            run.step(batch, "out")
        error = translated(caught.value)
        assert type(error) is LostFileError
        assert "again" in str(error)
        assert str(stored) in recorded(redacted(caught.value))
        assert finished(run.job.database, run.job.pipeline, batch.batch_id) == set()
        stored.write_bytes(whole)
        if checked:  # a copy has no file of Hadoop's with checksums beside it
            (stored.parent / f".{stored.name}.crc").unlink()
    flip(stored, place)
    results = run_steps(run.job, batch.batch_id, lambda name, result: None)
    assert [result.name for result in results] == ["records", "out"]
    assert run.ledger.settle(batch.batch_id).failed == 0


def write_sized(path, count, kind="int32", first=0):
    """Write so many numbers to a Parquet file of always the same size and time."""
    table = pa.table({"n": pa.array(range(first, first + count), pa.int32()).cast(kind)})
    missing = 0
    while not path.exists() or path.stat().st_size != 2_000 or not missing:
        options = {"compression": "none", "use_dictionary": False, "store_schema": False}
        with pq.ParquetWriter(path, table.schema, **options) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"nothing": "x" * missing})
        missing += 2_000 - path.stat().st_size
        assert missing > 0, "a file without these metadata has 2,000 bytes or more"
    os.utime(path, (1, 1))


PARQUET_CHANGES = {
    "other records": lambda path: write_sized(path, 25, first=1),
    "fewer records": lambda path: write_sized(path, 20),
    "more records": lambda path: write_sized(path, 30),
    "another type": lambda path: write_sized(path, 25, "string"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"PAR1"),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("incremental", [False, True])
def test_a_parquet_file_that_changes_before_it_is_read_is_named(
    runner, folder, monkeypatch, sink_rows, incremental
):
    """Once its footer was read: a file of the same size and time with other records, and any other
    file or none, fails the step by name, and is read once it is whole. Of a claimed file nothing of
    that is left to its reader, which may be one of one's own."""
    path = folder / "a.parquet"
    if incremental:
        monkeypatch.setattr(Reader, "check_unchanged", SourceReader.check_unchanged)
    run = runner(copying(format="parquet", schema="n INT", incremental=incremental))
    write_sized(path, 25)
    batch = run.open()
    check = layouts.check_parquet
    for change in PARQUET_CHANGES.values():
        write_sized(path, 25)

        def changing(*arguments, change=change, **options):
            footers = check(*arguments, **options)
            change(path)
            return footers

        with monkeypatch.context() as patch:
            patch.setattr(layouts, "check_parquet", changing)
            with pytest.raises(InputError, match=r"a\.parquet"):
                run.step(batch, "records")
    write_sized(path, 25)
    run.settled(batch)
    assert sink_rows() == sorted(((n,) for n in range(25)), key=repr)


def test_a_claimed_parquet_file_that_changes_is_named(runner, folder, sink_rows):
    """Between the batch's opening, which claims the file, and its source's step, also where size
    and time stay: else another with the content that was claimed would pass for taken later."""
    path = folder / "a.parquet"
    write_sized(path, 25)
    run = runner(copying(format="parquet", schema="n INT", incremental=True))
    batch = run.open()
    changes = {
        "truncated": "1991 bytes",
        "longer": "2004 bytes",
        "other records": "other content",
        "deleted": "it is gone",
    }
    for name, words in changes.items():
        write_sized(path, 25)
        PARQUET_CHANGES[name](path)
        says = rf"a\.parquet had 2000 bytes .*{words}.* Files must appear whole"
        with pytest.raises(InputError, match=says):
            run.step(batch, "records")
    write_sized(path, 25)
    assert run.settled(batch).roots == 25
    assert sink_rows() == sorted(((n,) for n in range(25)), key=repr)


def write_many(folder, run, step="records"):
    """Have a step write more than there is room for; what its error is translated
    to."""
    (folder / "a.csv").write_text("\n".join(["s", *(str(uuid4()) for _ in range(20_000)), ""]))
    batch = run.open()
    if step != "records":
        run.step(batch, "records")
    with pytest.raises(Exception, match=r"[Nn]o space|File too large") as caught:
        run.step(batch, step)
    return translated(caught.value)


def test_a_full_disk_is_named_where_root_mounts_a_small_one(runner, folder, settings):
    """Where the disk of the storage is full, the step says in which folder, and what is free. As
    any other user this is skipped: the test below has the same without a disk of its own."""
    root = Path(settings.storage_root())
    root.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk is mounted by root alone")
    try:
        (root / "others").write_bytes(bytes(90 << 10))
        output = write_many(folder, runner(copying(schema="s STRING")))
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)
    assert type(output) is UnavailableError
    assert re.search(rf"disk of {root}/copy/records/batch=1/run=1 \([\d.]+ MB free", str(output))


def test_a_file_that_may_not_grow_is_named(runner, folder, spark):
    """Where the system lets a process write no more to a file, as of a quota, the step says in
    which folder, and what is free, whichever user runs the suite."""
    run = runner(copying(schema="s STRING"))
    java = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    before = resource.prlimit(java, resource.RLIMIT_FSIZE)
    try:
        resource.prlimit(java, resource.RLIMIT_FSIZE, (100 << 10, before[1]))
        output = write_many(folder, run, "out")  # which the JVM writes
    finally:
        resource.prlimit(java, resource.RLIMIT_FSIZE, before)
    assert type(output) is UnavailableError
    assert re.search(r"disk of \S+/out/\S+/batch=1/run=2 \([\d.,]+ MB free\)", str(output))
