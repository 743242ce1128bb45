"""Versions in a manifest: the file that describes one, and the rows of its files without Spark."""

import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from operator import attrgetter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from ledger.batch.records.failed_rows import copied, copied_payloads, copy_rows
from ledger.batch.records.snapshots import row_at
from ledger.core.column_names import ERROR, FILE, ROOT
from ledger.core.declared_steps import DeclaredStep
from ledger.errors import InputError, LostFileError
from ledger.sources.version_files import ListedFile, take_version
from ledger.storage import stores
from ledger.storage.manifest import About, Manifest, check_files, mark_of
from ledger.storage.versions import version_of
from ledger.store.queries.payloads import EmittedRecords

ABOUT = About("version 3 of the table", "Set the retention to more.")
SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField("day", T.DateType()),
    ]
)
ID = T.StructType([T.StructField("id", T.LongType(), False)])
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


def listed(path, rows, **options):
    pq.write_table(rows, path, **options)
    return ListedFile(str(path), path.stat().st_size)


@pytest.fixture
def taken(tmp_path):
    """Two files with rows and one without; the second lacks a column."""
    whole = pa.table(
        {"id": [1, 2], "at": [NOON, None], "tags": [["a"], []]},
        schema=pa.schema(
            [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
        ),
    )
    files = [
        listed(tmp_path / "a.parquet", whole, use_deprecated_int96_timestamps=True),
        listed(tmp_path / "b.parquet", whole.slice(0, 0)),
        listed(tmp_path / "c 100%.parquet", pa.table({"id": [3]})),
    ]
    values = pa.table({"day": [date(2020, 1, 1), date(2020, 1, 2), None]})
    return take_version(ABOUT, SCHEMA, files, values)


def test_a_version_comes_back_from_its_manifest(taken, tmp_path):
    """With files, schema and values; a file without rows is none of them."""
    assert taken.misfit is None
    manifest = taken.version.describe(f"{tmp_path}/run")
    assert [(file.rows, file.first_position) for file in manifest.files] == [(0, 0), (2, 0), (1, 2)]
    again = version_of(manifest)
    assert (again.about, again.schema, again.files) == (ABOUT, SCHEMA.json(), manifest.files[1:])
    assert again.values.to_pylist() == [{"day": date(2020, 1, 1)}, {"day": None}]
    check_files(manifest)


def test_a_manifest_of_a_copy_has_no_version(tmp_path):
    """Whatever its files are called."""
    assert version_of(Manifest(())) is None


def test_rows_have_all_columns_of_the_version(taken, tmp_path):
    """Those that a file lacks are null, or the values of the file; timestamps are in UTC."""
    manifest = taken.version.describe(f"{tmp_path}/run")
    rows = [row_at(manifest, position).drop_columns([FILE]).to_pylist() for position in range(3)]
    assert rows == [
        [{"id": 1, "at": NOON, "tags": ["a"], "day": date(2020, 1, 1)}],
        [{"id": 2, "at": None, "tags": [], "day": date(2020, 1, 1)}],
        [{"id": 3, "at": None, "tags": None, "day": None}],
    ]


def test_failed_rows_are_copied_beside_the_description(taken, tmp_path):
    """Exactly, so that a replay needs no file of the version; it takes all its rows or none."""
    manifest = taken.version.describe(f"{tmp_path}/run")
    emitted = EmittedRecords(1, "numbers", 7, 100, [100, 102], [100, 102])
    copy_rows(manifest, emitted)
    for name in ("a.parquet", "c 100%.parquet"):
        (tmp_path / name).unlink()
    (path,) = copied(manifest, [100, 102])
    rows = pq.ParquetFile(path).read()
    assert [(row["id"], row["day"], row[ROOT]) for row in rows.to_pylist()] == [
        (1, date(2020, 1, 1), 100),
        (3, None, 102),
    ]
    assert copied(manifest, [102]) == [path]
    assert copied(manifest, [100, 101]) == []
    (tmp_path / "run" / "failed-0.parquet").write_bytes(b"PAR1")  # its writer died
    assert copied(manifest, [102]) == [path]


def test_a_lost_file_is_an_error_with_the_version_and_the_way_out(taken, tmp_path):
    """As long as the run reads it, and when a run looks at the version."""
    manifest = taken.version.describe(f"{tmp_path}/run")
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(LostFileError, match=r"a\.parquet of version 3 .* gone\. Set the retention"):
        check_files(manifest)
    lost = ListedFile(f"{tmp_path}/a.parquet", 3)
    with pytest.raises(InputError, match=r"a\.parquet of version 3 .* gone\. Set the retention"):
        take_version(ABOUT, SCHEMA, [lost])
    (tmp_path / "run" / "ackledger-version.parquet").unlink()
    with pytest.raises(LostFileError, match="ackledger-version"):
        check_files(manifest)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (pa.table({"id": [1]}), None),
        (pa.table({"id": pa.array([1, None])}), "has nulls in column 'id', which is NOT NULL"),
        (pa.table({"other": [1]}), "has nulls in column 'id', which is NOT NULL"),
        (pa.table({"ID": [1]}), "has column 'id' in another case"),
        (pa.table({"id": pa.array([1], pa.int32())}), "of type int, the table of bigint"),
        (pa.table({"id": [1], ERROR: ["bad"]}), "which the files of a batch have"),
    ],
)
def test_a_row_that_may_not_fit_is_noticed(tmp_path, rows, why):
    """By the footers alone: then the version is copied, and the copy has reasons."""
    taken = take_version(ABOUT, ID, [listed(tmp_path / "a.parquet", rows)])
    assert taken.misfit is None if why is None else why in taken.misfit


def test_nulls_without_statistics_are_not_known(tmp_path):
    """So the version is copied."""
    rows = listed(tmp_path / "a.parquet", pa.table({"id": [1]}), write_statistics=False)
    assert "has nulls" in take_version(ABOUT, ID, [rows]).misfit


@pytest.mark.parametrize(("null", "misfit"), [(False, None), (True, "has nulls in column 'a.b'")])
def test_a_column_with_a_dot_is_checked_for_nulls(tmp_path, null, misfit):
    """Its name in the footer is that of a part of another column."""
    schema = T.StructType([T.StructField("a.b", T.LongType(), False)])
    rows = pa.table({"a.b": pa.array([1, None if null else 2], pa.int64())})
    taken = take_version(ABOUT, schema, [listed(tmp_path / "a.parquet", rows)])
    assert taken.misfit is None if misfit is None else misfit in taken.misfit


@pytest.mark.parametrize(
    ("notes", "is_old"),
    [
        ({}, False),
        ({"org.apache.spark.version": "4.0.1"}, False),
        ({"org.apache.spark.version": "3.10.0"}, False),
        ({"org.apache.spark.version": "3.0.3"}, True),
        ({"org.apache.spark.version": "2.4.8"}, True),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, True),
    ],
)
def test_dates_of_an_old_calendar_are_noticed(tmp_path, notes, is_old):
    """Spark converts them as it reads; files of Spark 3.0 and older do not note the calendar."""
    rows = pa.table({"id": [1]}).replace_schema_metadata(notes)
    taken = take_version(ABOUT, ID, [listed(tmp_path / "a.parquet", rows)])
    assert taken.misfit == (
        f"{tmp_path}/a.parquet has dates of an old calendar" if is_old else None
    )


def test_copied_rows_have_the_content_of_records(taken, tmp_path):
    """Once each, also if two files have the same row, and without the version's files."""
    manifest = taken.version.describe(f"{tmp_path}/run")
    emitted = EmittedRecords(1, "numbers", 7, 100, [5, 6], [100, 102])
    copy_rows(manifest, EmittedRecords(1, "numbers", 7, 100, [5], [100]))
    copy_rows(manifest, emitted)
    for name in ("a.parquet", "c 100%.parquet"):
        (tmp_path / name).unlink()
    source = DeclaredStep("numbers", "source", key=("id",))
    paths = copied(manifest, [100, 102])
    records = sorted(copied_payloads(1, emitted, paths, source), key=attrgetter("root_id"))
    assert [(each.message_id, each.root_id, each.key, each.parsed) for each in records] == [
        (5, 100, '{"id": 1}', True),
        (6, 102, '{"id": 3}', True),
    ]
    assert json.loads(records[1].content) == {"id": 3, "at": None, "tags": None, "day": None}


def test_a_file_that_may_change_has_a_mark(taken, tmp_path):
    """Content of the same size and time is another file by its footer, or the store's version."""
    path = tmp_path / "a.parquet"
    (first, *_), times = taken.version.files, path.stat()
    mark = mark_of(stores.info(first.path))
    manifest = replace(taken.version, marks={first.path: mark}).describe(f"{tmp_path}/run")
    check_files(manifest)
    content = bytearray(path.read_bytes())
    content[-12] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert mark_of(stores.info(first.path))[2] != mark[2]
    with pytest.raises(LostFileError, match=r"a\.parquet of version 3 .*: expected the file of"):
        check_files(manifest)
