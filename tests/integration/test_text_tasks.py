"""Text that tasks read has the records of text that the driver reads, in the same order."""

import gzip
from urllib.parse import unquote

import pytest
from pyspark.sql import functions as F

from ledger import FileSource
from ledger.errors import InputError
from ledger.sources.base import Claim
from ledger.sources.files import blocks, text
from ledger.sources.registry import source_of
from tests.support.text_files import CSV, FILES, NUMBERS, SCHEMA


def records(spark, folder, options):
    source = FileSource(f"{folder}/*", schema=SCHEMA, **options)
    frame = source_of("in", source).reader(spark).records(Claim("in", f"{folder}/*"))
    rows = frame.withColumn("task", F.spark_partition_id()).collect()
    return [tuple(row)[:-1] for row in rows], len({row["task"] for row in rows})


@pytest.mark.parametrize("name", FILES)
def test_tasks_read_what_the_driver_reads(spark, tmp_path, monkeypatch, name):
    """However files are cut into blocks, and whether the driver or tasks read these, the records
    are the same: values, raw texts, reasons, files, and their order."""
    files, options = FILES[name]
    for path, data in files.items():
        (tmp_path / path).write_bytes(data if isinstance(data, bytes) else data.encode())
    here, _ = records(spark, tmp_path, options)
    monkeypatch.setattr(text, "HERE", 0)
    monkeypatch.setattr(blocks, "BLOCK", 1_000)
    in_tasks, tasks = records(spark, tmp_path, options)
    assert in_tasks == here
    assert tasks > 1 or len(files) == 1 or name == "empty"
    monkeypatch.setattr(text, "CUT_HERE", 0)
    cut_in_tasks, _ = records(spark, tmp_path, options)
    assert cut_in_tasks == here


def test_a_file_that_changes_before_a_task_reads_it_is_named(spark, tmp_path, monkeypatch):
    """The bytes that were cut are those that are read: other ones fail, whatever size and time the
    file has."""
    monkeypatch.setattr(text, "HERE", 0)
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    source = source_of("in", FileSource(str(path), schema=SCHEMA))
    reader = source.reader(spark)
    frame = reader.records(Claim("in", str(path)))
    assert frame.count() == len(NUMBERS)
    path.write_text(CSV.replace("name 7,", "name 8,"))
    with pytest.raises(Exception, match="changed since it was cut into records") as caught:
        frame.count()
    failure = reader.failure(caught.value)
    assert isinstance(failure, InputError)
    assert "a.csv was changed since it was cut into records: expected the" in str(failure)


def test_what_comes_out_of_a_small_file_may_be_too_much_for_the_driver(
    spark, tmp_path, monkeypatch, capsys
):
    """A file that is small because it is compressed is read by a task."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    here, _ = records(spark, tmp_path, {})
    monkeypatch.setattr(text, "MOST_HERE", 10_000)
    source = source_of("in", FileSource(f"{tmp_path}/*", schema=SCHEMA))
    source.reader(spark).records(Claim("in", f"{tmp_path}/*")).explain()
    assert "MapInArrow" in capsys.readouterr().out
    assert records(spark, tmp_path, {})[0] == here


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_named_as_a_url(spark, tmp_path, scheme):
    """Whatever characters its path has, it is found again."""
    path = tmp_path / "a%41 é:#.csv"
    path.write_text(CSV)
    name = f"{scheme}{path}"
    source = source_of("in", FileSource(f"{scheme}{tmp_path}/*", schema=SCHEMA))
    frame = source.reader(spark).records(Claim("in", f"{scheme}{tmp_path}/*"))
    assert unquote(frame.first()["_ackledger_file"]) == name
