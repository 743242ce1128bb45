"""Versions of Delta tables, as their log has them: files, values, and what is refused."""

import re
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from ledger import DeltaSource, ParquetSink, Pipeline
from ledger.errors import DeclarationError, InputError, UnavailableError
from ledger.sources.base import Claim, Scope
from ledger.sources.delta.kind import DeltaVersions
from ledger.sources.delta.log import TableLog
from ledger.sources.delta.reader import DeltaReader
from ledger.spark.steps.source import source_reader
from tests.support.delta_tables import DeltaFiles

COLUMNS = pa.schema([("id", pa.int64())])


def numbers(*values):
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.fixture
def table(tmp_path):
    """A table of one column with the versions 0, which is empty, to 2."""
    files = DeltaFiles(tmp_path / "numbers", COLUMNS)
    files.add(numbers(1, 2))
    files.add(numbers(3))
    return files


def test_a_version_has_its_files_in_a_fixed_order(table):
    """By path, whatever the order of the log, with the sizes on storage."""
    for version, count in ((0, 0), (1, 1), (2, 2), (None, 2)):
        files = TableLog(str(table.path), version).files()
        assert len(files.paths) == count
        assert list(files.paths) == sorted(files.paths)
        sizes = [(table.path / path.rpartition("/")[2]).stat().st_size for path in files.paths]
        assert list(files.sizes) == sizes


def test_partition_values_have_types(tmp_path):
    """Their names on storage may be encoded twice; an empty text is null in Delta."""
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "day": [date(2020, 1, 1), date(2020, 1, 2), None],
            "label": ["a b/c%d", "ü+", ""],
        }
    )
    write_deltalake(tmp_path / "t", rows, partition_by=["day", "label"])
    files = TableLog(str(tmp_path / "t")).files()
    assert [pa.parquet.read_table(path, partitioning=None).num_rows for path in files.paths] == [
        1
    ] * 3
    assert files.values.column_names == ["day", "label"]
    assert {(row["day"], row["label"]) for row in files.values.to_pylist()} == {
        (date(2020, 1, 1), "a b/c%d"),
        (date(2020, 1, 2), "ü+"),
        (None, None),
    }


def test_a_version_counts_its_rows(table):
    """By the log's statistics; without them the number is not known."""
    assert [TableLog(str(table.path), version).rows() for version in range(3)] == [0, 2, 3]

    def forget(action):
        action.get("add", {}).pop("stats", None)

    table.change_log(2, forget)
    assert TableLog(str(table.path)).rows() is None


def test_comments_and_lengths_are_not_part_of_the_schema(table):
    """Spark would pad and check texts of a length by itself."""

    def note(action):
        if "metaData" in action:
            text = action["metaData"]["schemaString"]
            action["metaData"]["schemaString"] = text.replace(
                '"metadata":{}', '"metadata":{"comment":"a number"}'
            )

    table.change_log(0, note)
    assert "a number" not in TableLog(str(table.path)).schema_json


def test_what_is_no_table_is_refused_by_name(tmp_path):
    """A folder without a log, and a path that deltalake would change."""
    with pytest.raises(InputError, match=f"no Delta table at {tmp_path}/none: expected a folder"):
        TableLog(f"{tmp_path}/none")
    with pytest.raises(InputError, match="expected one without %"):
        TableLog(f"{tmp_path}/100%")


def test_a_version_that_is_not_there_is_refused_by_name(table):
    """One that is to come, and one of which the log is gone."""
    with pytest.raises(InputError, match="expected version 9, the newest is 2"):
        TableLog(str(table.path), 9)
    table.table.create_checkpoint()
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(
        InputError, match=r"version 0 cannot be read any more.*logRetentionDuration"
    ):
        TableLog(str(table.path), 0)


@pytest.mark.parametrize(
    ("feature", "advice"),
    [
        ("columnMapping", "delta.columnMapping.mode to"),
        ("typeWidening", "DROP FEATURE|Unsupported table features"),
        ("variantType", "Drop the feature"),
        ("vacuumProtocolCheck", "Drop the feature|Unsupported table features"),
        ("unheardOf", "unheardOf"),
    ],
)
def test_a_feature_that_changes_how_rows_are_read_is_refused_by_name(table, feature, advice):
    """Rows are read exactly, or not at all."""

    def require(action):
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [feature],
                "writerFeatures": [feature],
            }
        if "metaData" in action and feature == "columnMapping":
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
            text = action["metaData"]["schemaString"]
            named = '"metadata":{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"c"}'
            action["metaData"]["schemaString"] = text.replace('"metadata":{}', named)

    table.change_log(0, require)
    with pytest.raises(InputError, match=f"(?i){feature}") as raised:
        TableLog(str(table.path))
    assert re.search(advice, str(raised.value))


@pytest.mark.parametrize("feature", ["deletionVectors", "timestampNtz", "v2Checkpoint"])
def test_a_feature_that_leaves_rows_as_they_are_is_read(table, feature):
    """And deletion vectors, whose rows are left out."""

    def require(action):
        if "protocol" in action:
            features = {"readerFeatures": [feature], "writerFeatures": [feature]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}

    table.change_log(0, require)
    log = TableLog(str(table.path))
    assert (len(log.files().paths), log.deleted()) == (2, {})


def test_rows_of_a_deletion_vector_are_known(table):
    """By the path of their file, as the list of files has it."""
    first, _ = TableLog(str(table.path)).files().paths
    name = first.rpartition("/")[2]
    rows = pq.ParquetFile(first).metadata.num_rows
    table.delete_rows(name, [rows - 1])
    log = TableLog(str(table.path))
    assert log.deleted() == {first: [rows - 1]}
    assert first in log.files().paths


def test_appended_files_are_those_of_the_commits_between(table):
    """In the order of the commits; a compaction adds no rows, and what it removed still counts."""
    third = table.add(numbers(4))
    table.table.optimize.compact()
    fifth = table.add(numbers(5))
    log = TableLog(str(table.path))
    assert [path.rpartition("/")[2] for path in log.appended(2).paths] == [third, fifth]
    assert [commit.rows for commit in log.commits(2)] == [1, 0, 1]
    assert log.appended(5).paths == []


def test_appended_files_have_partition_values(tmp_path):
    """Values have the types of their columns, also after a compaction, for columns of any name."""
    path = tmp_path / "t"
    labels = ["x", "a b/c%d", "ü+"]
    for number, label in enumerate(labels, start=1):
        rows = pa.table({"id": [number], "day": [date(2020, 1, number)], "label": [label]})
        write_deltalake(path, rows, partition_by=["day", "label"], mode="append")
    DeltaTable(path).optimize.compact()
    appended = TableLog(str(path)).appended(0)
    assert appended.values.to_pylist() == [
        {"day": date(2020, 1, 2), "label": "a b/c%d"},
        {"day": date(2020, 1, 3), "label": "ü+"},
    ]
    rows = [pa.parquet.read_table(path, partitioning=None) for path in appended.paths]
    assert [each["id"].to_pylist() for each in rows] == [[2], [3]]


def test_a_batch_claims_the_commits_for_which_there_is_room(table, settings):
    """At least one that adds rows, and never an end without rows before one that is too large."""
    path = str(table.path)
    table.table.optimize.compact()  # version 3
    table.add(numbers(4, 5, 6))
    table.add(numbers(7))
    kind = DeltaVersions(DeltaSource(path, incremental=True))
    scope = Scope(settings, "numbers", path, None, None, list)
    start = {"version": 2, "table": TableLog(path).table_id}
    claims = [kind.latest(scope, start, room) for room in (1, 3, 4, None)]
    assert [(claim.end["version"], claim.records) for claim in claims] == [
        (4, 3),
        (4, 3),
        (5, 4),
        (5, None),
    ]


@pytest.mark.parametrize("change", ["delete", "update", "overwrite"])
def test_a_change_between_two_versions_is_refused_by_name(table, change):
    """An append takes nothing back from a sink: the error has the version and the ways out."""
    if change == "delete":
        table.table.delete("id = 1")
    elif change == "update":
        table.table.update(updates={"id": "7"}, predicate="id = 1")
    else:
        write_deltalake(table.path, numbers(8), mode="overwrite")
    with pytest.raises(InputError, match=r"version 3 .* deletes or changes rows \(\w+\)") as raised:
        TableLog(str(table.path)).appended(2)
    assert "under a new name" in str(raised.value)


def test_a_commit_that_the_log_has_lost_is_an_error(table):
    """Rows that were appended would be missing otherwise."""
    table.table.create_checkpoint()
    (table.path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(InputError, match=r"1\.json, .*logRetentionDuration"):
        TableLog(str(table.path)).appended(0)


def test_texts_of_the_log_have_any_character(table):
    """Some of them end a line for Python, but not for JSON."""
    path = table.path / "_delta_log" / f"{2:020}.json"
    text = path.read_text(encoding="utf-8")
    noted = text.replace('\\"numRecords', '\\"note\\": \\"a\u2028b\u0085c\\", \\"numRecords')
    assert noted != text
    path.write_text(noted, encoding="utf-8")
    log = TableLog(str(table.path))
    assert [commit.rows for commit in log.commits(1)] == [1]
    assert len(log.appended(1).paths) == 1


def test_a_partition_column_of_bytes_is_refused_by_name(tmp_path):
    """The log has its values as text with escapes."""
    columns = pa.schema([("id", pa.int64()), ("code", pa.binary())])
    DeltaFiles(tmp_path / "t", columns, ("code",))
    with pytest.raises(InputError, match=r"partition column 'code' has the type BINARY.*another"):
        TableLog(str(tmp_path / "t"))


def test_rows_of_a_deletion_vector_are_known_behind_a_link(table):
    """The paths of their files go through the link, as those of all files do."""
    name = TableLog(str(table.path)).files().paths[0].rpartition("/")[2]
    table.delete_rows(name, [0])
    link = table.path.parent / "link"
    link.symlink_to(table.path)
    log = TableLog(str(link))
    assert log.deleted() == {f"{link}/{name}": [0]}
    assert log.deleted().keys() <= set(log.files().paths)


def test_an_appended_file_with_a_deletion_vector_is_refused(table):
    """The log does not show which of its rows were appended."""
    name = TableLog(str(table.path)).files().paths[0].rpartition("/")[2]
    table.delete_rows(name, [0])

    def leave(action):
        if "remove" in action:
            action["remove"]["dataChange"] = False

    table.change_log(3, leave)
    with pytest.raises(InputError, match=rf"version 3 .*'{name}' with a deletion vector.*new name"):
        TableLog(str(table.path)).appended(2)


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({}, "a new batch, which claims the newest version"),
        ({"version": 2}, "declare another version"),
        ({"incremental": True}, "declare the source under a new name"),
    ],
)
def test_a_lost_file_has_a_way_out(table, options, way_out):
    """A new batch of the interval reads other files only if the source claims another version."""
    source = DeltaSource(str(table.path), **options)
    assert way_out in TableLog(str(table.path)).about(source).if_lost


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError("timed out"), UnavailableError),
        (FileNotFoundError("no such object"), InputError),
    ],
)
def test_storage_that_does_not_answer_is_unavailable(table, raised, expected):
    """A lost file of the log is not, because it does not come back."""

    class Away:
        def get_add_actions(self):
            raise raised

        deletion_vectors = get_add_actions

    log = TableLog(str(table.path))
    log._table = Away()
    for ask in (log.files, log.rows, log.deleted):
        with pytest.raises(expected, match=str(raised)):
            ask()


@pytest.mark.parametrize("offset", [7, {"position": 7}, "2020-01-01"])
def test_offsets_of_another_source_are_refused_by_name(table, settings, offset):
    """A source of the same name read no table before."""
    path = str(table.path)
    source = DeltaSource(path, incremental=True)
    scope = Scope(settings, "numbers", path, None, None, list)
    with pytest.raises(InputError, match=r"'numbers' was read by other offsets .*new name"):
        DeltaVersions(source).latest(scope, offset, None)
    version = {"version": 2, "table": TableLog(path).table_id}
    for claim in (
        Claim("numbers", path, start=offset, end=version),
        Claim("numbers", path, end=offset),
    ):
        with pytest.raises(InputError, match="was read by other offsets before: found"):
            DeltaReader(None, source).check(claim)


def test_a_redacted_column_is_in_no_path(tmp_path):
    """The ledger keeps the paths of files, and those of a partitioned table have its values."""
    rows = pa.table({"id": [1], "mail": ["ann@x.org"]})
    write_deltalake(tmp_path / "t", rows, partition_by=["mail"])

    def reader_of(redact):
        pipeline = Pipeline("people", redact=redact)
        pipeline.source("people", DeltaSource(str(tmp_path / "t")))
        pipeline.sink("out", ParquetSink("out"), reads="people")
        (source,) = pipeline.sources()
        return source_reader(None, pipeline, source, lambda _: Claim("people", f"{tmp_path}/t"))

    assert reader_of("id").named_in_paths == ["mail"]
    with pytest.raises(DeclarationError, match=r"redacts 'mail'.*partition column.*another table"):
        reader_of("mail")


def test_a_check_says_what_it_does_not_look_at(table, settings):
    """An incremental source has no range yet."""
    path = str(table.path)
    whole, incremental = (
        DeltaVersions(DeltaSource(path, incremental=each)).check(settings, "numbers", None)
        for each in (False, True)
    )
    assert whole.endswith("has 2 files")
    assert incremental == f"{whole}; what was appended is looked at when a batch opens"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"path": " "}, "expected the folder of a Delta table"),
        ({"path": "t", "version": -1}, "expected a number from 0 on"),
        ({"path": "t", "version": True}, "expected a number from 0 on"),
        ({"path": "t", "version": 1, "incremental": True}, "cannot be combined"),
        ({"path": "{{ ds }}"}, "ds"),
    ],
)
def test_a_wrong_declaration_is_refused(wrong, message):
    """Before anything runs, and without a look at the table."""
    with pytest.raises(DeclarationError, match=message):
        DeltaSource(**wrong)
