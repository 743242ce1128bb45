"""Delta tables as sources: rows are read where they are, and failed ones need no old version."""

import json
import logging
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from ledger import DeltaSource, ParquetSink, Pipeline
from ledger.batch.upkeep.checks import examine
from ledger.batch.upkeep.retention import GcOptions, gc_once
from ledger.core.run_request import Interval
from ledger.core.states import BatchStatus
from ledger.errors import MASK, InputError, LostFileError
from ledger.spark.dry_run import DryRun
from ledger.store.queries import runs
from tests.support.delta_tables import DeltaFiles
from tests.support.runner import END, START

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32())])


def numbers(*pairs):
    columns = list(zip(*pairs, strict=True)) or [(), ()]
    return pa.table([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.int32())], SCHEMA)


@pytest.fixture
def table(tmp_path):
    """A table with six rows in two files."""
    (tmp_path / "in").mkdir()
    files = DeltaFiles(tmp_path / "in" / "numbers", SCHEMA)
    files.add(numbers((1, 10), (2, 20), (3, 30)))
    files.add(numbers((4, 40), (5, 50), (6, 60)))
    return files


def flow(
    lose=(), version=None, acks="on_emit", incremental=False, whole=False, redact=(), **options
):
    """numbers -> sifted, which loses the numbers in ``lose`` when it runs -> out."""
    pipeline = Pipeline("numbers", message_timeout="10s", max_replays=3, redact=redact)
    source = DeltaSource("in/numbers", version, incremental=incremental)
    pipeline.source("numbers", source, **options)

    @pipeline.stage(reads="numbers", acks=acks, filters="lost")
    def sifted(frame):
        kept_rows = frame.where(f"n NOT IN ({', '.join(map(str, [0, *lose]))})")
        return kept_rows.groupBy("id").agg(F.max("n").alias("n")) if whole else kept_rows

    pipeline.sink("out", ParquetSink("out"), reads="sifted")
    return pipeline


def snapshot_of(run, batch):
    """The files of the batch's snapshot."""
    query = "SELECT emit_run_id FROM batch_source WHERE batch_id = :batch"
    number = run.ledger.row(query, batch=batch.batch_id)[0]
    return run.job.database.transact(lambda c: runs.files(c, number))


def own_files(folder):
    return sorted(path.name for path in Path(folder).rglob("*.parquet"))


@pytest.mark.parametrize("acks", ["on_emit", "on_read"])
def test_nothing_is_copied(table, runner, settings, sink_rows, acks):
    """The snapshot is the table's files and a file without rows; the rest is as with a copy."""
    run = runner(flow(acks=acks))
    batch = run.open()
    settlement = run.settled(batch)
    assert (settlement.status, settlement.roots, settlement.failed) == (BatchStatus.SETTLED, 6, 0)
    own, *others = snapshot_of(run, batch)
    assert (own.rows, [file.rows for file in others]) == (0, [3, 3])
    assert own.path.startswith(settings.storage_root())
    assert {Path(file.path).parent for file in others} == {table.path}
    assert own_files(f"{settings.storage_root()}/numbers/numbers") == ["ackledger-version.parquet"]
    assert [row[0] for row in sink_rows("out", "id")] == [1, 2, 3, 4, 5, 6]


def test_partition_columns_have_their_values(tmp_path, runner, sink_rows):
    """They are in no file; names of folders have any characters."""
    days = [date(2020, 1, 1), date(2020, 1, 2), None, date(2020, 1, 1)]
    labels = ["a b/c%d", "ü+", None, "e[f]*"]
    rows = pa.table({"id": [1, 2, 3, 4], "day": days, "label": labels})
    write_deltalake(tmp_path / "in" / "numbers", rows, partition_by=["day", "label"])
    pipeline = Pipeline("numbers", message_timeout="10s")
    pipeline.source("numbers", DeltaSource("in/numbers"))

    @pipeline.stage(reads="numbers")
    def shown(frame):
        return frame.selectExpr("id", "cast(day AS string) AS day", "label")

    pipeline.sink("out", ParquetSink("out"), reads="shown")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "id", "day", "label") == [
        (number, None if day is None else str(day), label)
        for number, day, label in zip([1, 2, 3, 4], days, labels, strict=True)
    ]


def test_the_claimed_version_is_read(table, runner, ledger, sink_rows):
    """Rows appended after the batch was opened are not read. Any batch reads a declared version."""
    run = runner(flow())
    batch = run.open_day(1)
    table.add(numbers((7, 70)))
    assert run.settled(batch).roots == 6
    claim = ledger.row("SELECT claim_end, claim_number FROM batch_source")
    assert (claim.claim_end["version"], claim.claim_number) == (2, None)
    assert run.settled(run.open_day(2)).roots == 7
    assert runner(flow(version=1)).open_day(3) is not None
    old = runner(flow(version=1))
    assert old.settled(old.open_day(4)).roots == 3


def test_a_replay_needs_no_old_version(table, runner, ledger, sink_rows):
    """Failed records are copied with all columns once the batch is settled."""
    lose = [20, 50]
    run = runner(flow(lose))
    batch = run.open()
    assert run.settled(batch).failed == 2
    payloads = ledger.rows("SELECT source_file, source_row, content FROM failed_payload")
    assert {Path(row.source_file).parent for row in payloads} == {table.path}
    assert [row.source_row for row in payloads] == [2, 2]
    assert sorted(json.loads(row.content)["id"] for row in payloads) == [2, 5]
    table.clear()
    lose.clear()
    replay = run.open_replay(batch.batch_id)
    settlement = run.settled(replay)
    assert (settlement.roots, settlement.failed) == (2, 0)
    assert [row[0] for row in sink_rows("out", "id")] == [1, 2, 3, 4, 5, 6]


def test_a_replay_needs_no_table(table, runner, sink_rows):
    """It reads the copied records with the columns that they have there."""
    lose = [20]
    run = runner(flow(lose))
    batch = run.open()
    run.settled(batch)
    table.path.rename(table.path.parent / "elsewhere")
    lose.clear()
    assert run.settled(run.open_replay(batch.batch_id)).failed == 0


def test_a_vacuumed_version_is_an_error_with_the_setting(table, runner, sink_rows):
    """Before its source has run, between two steps, and before failed records are copied."""
    run = runner(flow([20]))
    first, second = run.open_day(1), run.open_day(2)
    run.step(second, "numbers")
    table.clear()
    with pytest.raises(InputError, match=r"of version 2 of Delta table .* gone.*RetentionDuration"):
        run.step(first, "numbers")
    with pytest.raises(LostFileError, match=r"of version 2 of Delta table .* gone.*RetentionDur"):
        run.step(second, "sifted")


def test_deleted_rows_are_never_read(table, runner, settings, sink_rows, caplog):
    """A version with deletion vectors is copied, without these rows."""
    name = table.table.file_uris()[0].rpartition("/")[2]
    gone = DeltaTable(table.path).to_pyarrow_table().column("id").to_pylist()
    first = pq.ParquetFile(table.path / name).read().column("id").to_pylist()
    table.delete_rows(name, [0, 2])
    run = runner(flow())
    with caplog.at_level(logging.WARNING):
        settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (4, 0)
    assert [row[0] for row in sink_rows("out", "id")] == sorted({*gone} - {first[0], first[2]})
    assert "is copied: 1 of its files have deletion vectors" in caplog.text


def test_a_row_beside_deleted_rows_has_no_number(table, runner, ledger):
    """Its place in the copy is not its place in the file."""
    name = table.table.file_uris()[0].rpartition("/")[2]
    first = pq.ParquetFile(table.path / name).read().to_pylist()
    table.delete_rows(name, [0])
    run = runner(flow([first[2]["n"]]))
    assert run.settled(run.open()).failed == 1
    row = ledger.row("SELECT source_file, source_row, content FROM failed_payload")
    assert (row.source_file, row.source_row) == (None, None)
    assert json.loads(row.content)["id"] == first[2]["id"]


def test_a_tracked_part_is_copied(table, runner, sink_rows):
    """Untracked records come last in a snapshot, and files of a table have their own order."""
    run = runner(flow(track="n > 30"))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (3, 0)
    assert [row[0] for row in sink_rows("out", "id")] == [1, 2, 3, 4, 5, 6]


def test_a_whole_batch_is_replayed_from_its_version(table, runner, sink_rows):
    """The newest version may be another one by then."""
    lose = [20]
    run = runner(flow(lose, whole=True))
    batch = run.open()
    assert run.settled(batch).failed == 1
    table.add(numbers((7, 70)))
    lose.clear()
    assert run.settled(run.open_replay(batch.batch_id)).roots == 6
    assert [row[0] for row in sink_rows("out", "id")] == [1, 2, 3, 4, 5, 6]


def test_a_corrected_table_is_read_again_by_key(table, runner, sink_rows):
    """From its newest version, also if the old one is gone."""
    run = runner(flow([20], key="id"))
    batch = run.open()
    run.settled(batch)
    table.table.update(updates={"n": "21"}, predicate="id = 2")
    table.vacuum()
    replay = run.open_replay(batch.batch_id, from_source=True)
    settlement = run.settled(replay)
    assert (settlement.roots, settlement.failed) == (1, 0)
    assert (2, 21) in sink_rows("out", "id", "n")


def test_a_corrected_table_is_read_again_by_a_redacted_key(table, runner, sink_rows):
    """The key is in the copied record, also if the version's files are gone."""
    run = runner(flow([20], key="id", redact=["id"]))
    batch = run.open()
    run.settled(batch)
    table.table.update(updates={"n": "21"}, predicate="id = 2")
    table.vacuum()
    settlement = run.settled(run.open_replay(batch.batch_id, from_source=True))
    assert (settlement.roots, settlement.failed) == (1, 0)
    assert (2, 21) in sink_rows("out", "id", "n")


def test_an_expired_batch_is_read_again_by_key(table, runner, sink_rows):
    """Its folder is gone, so the table has to have the columns."""
    run = runner(flow([20], key="id"))
    batch = run.open()
    run.settled(batch)
    (failed,) = run.ledger.rows("SELECT message_id FROM failed_message")
    run.ledger.quarantine(record=failed.message_id)
    gc_once(run.job.database, GcOptions(keep_seconds=86400), now=datetime(2100, 1, 1, tzinfo=UTC))
    table.table.update(updates={"n": "21"}, predicate="id = 2")
    table.vacuum()
    replay = run.open_replay(batch.batch_id, from_source=True, quarantined=True, accepted=True)
    settlement = run.settled(replay)
    assert (settlement.roots, settlement.failed) == (1, 0)
    assert (2, 21) in sink_rows("out", "id", "n")


def test_retention_leaves_the_table_as_it_is(table, runner, settings):
    """The run's own folder goes, with the copied records."""
    run = runner(flow([20]))
    batch = run.open()
    run.settled(batch)
    folder = Path(f"{settings.storage_root()}/numbers/numbers")
    assert len(own_files(folder)) == 2
    (failed,) = run.ledger.rows("SELECT message_id FROM failed_message")
    run.ledger.quarantine(record=failed.message_id)
    before = sorted(path.name for path in table.path.glob("*.parquet"))
    gc_once(run.job.database, GcOptions(keep_seconds=86400), now=datetime(2100, 1, 1, tzinfo=UTC))
    assert own_files(folder) == []
    assert sorted(path.name for path in table.path.glob("*.parquet")) == before


def test_sources_are_notified_of_rows_of_a_version(table, runner):
    """``on_ack`` and ``on_fail`` get the records with all columns."""
    seen = {}

    def note(kind):
        def call(batch_id, rows):
            seen[kind] = sorted(row.record.id for row in rows.collect())

        return call

    run = runner(flow([20], on_ack=note("acked"), on_fail=note("failed")))
    run.settled(run.open())
    assert seen == {"acked": [1, 3, 4, 5, 6], "failed": [2]}


def test_a_table_is_a_reference(table, runner, tmp_path, sink_rows):
    """Every batch reads its newest version as a whole."""
    pipeline = Pipeline("numbers", message_timeout="10s")
    pipeline.source("numbers", DeltaSource("in/numbers", 1))
    pipeline.reference("others", DeltaSource("in/numbers"))

    @pipeline.stage(reads="numbers", filters="lost")
    def joined(frame, *, others):
        return frame.join(others.selectExpr("id - 3 AS id", "n AS other"), "id", "inner")

    pipeline.sink("out", ParquetSink("out"), reads="joined")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "id", "other") == [(1, 40), (2, 50), (3, 60)]


def test_what_is_appended_is_read_once(table, runner, sink_rows):
    """A compaction adds no rows, and a row that was compacted since is still read once."""
    run = runner(flow(incremental=True))
    assert run.settled(run.open_day(1)).roots == 6
    table.add(numbers((7, 70)))
    table.table.optimize.compact()
    table.add(numbers((8, 80), (9, 90)))
    second = run.open_day(2)
    assert run.settled(second).roots == 3
    table.table.optimize.compact()
    assert run.settled(run.open_day(3)).roots == 0
    assert [row[0] for row in sink_rows("out", "id")] == list(range(1, 10))
    table.table.delete("id = 1")
    with pytest.raises(InputError, match="deletes or changes rows"):
        run.settled(run.open_day(4))


def test_a_column_that_was_added_is_null_in_older_rows(table, runner, tmp_path):
    """In a batch, and in the replay of a record that was read before there was the column."""
    lose = [20]
    pipeline = flow(lose)
    run = runner(pipeline)
    first = run.open_day(1)
    assert run.settled(first).failed == 1
    rows = numbers((7, 70)).append_column("label", pa.array(["x"]))
    write_deltalake(table.path, rows, mode="append", schema_mode="merge")
    lose.clear()
    assert run.settled(run.open_replay(first.batch_id)).failed == 0
    assert run.settled(run.open_day(2)).roots == 7
    files = [pq.ParquetFile(path).read() for path in (tmp_path / "out").rglob("*.parquet")]
    rows = [row for file in files for row in file.to_pylist()]
    assert sorted(row["id"] for row in rows) == sorted([*range(1, 7), *range(1, 8)])
    labels = {row["id"]: row["label"] for row in rows if "label" in row}
    assert labels == {**dict.fromkeys(range(1, 7)), 7: "x"}


def test_redacted_values_are_not_in_the_ledger(table, runner, ledger, sink_rows):
    """The copied rows have them, as a copy has, so that a replay reads them."""
    lose = [20]
    run = runner(flow(lose, redact=["n"]))
    batch = run.open()
    assert run.settled(batch).failed == 1
    content = ledger.row("SELECT content FROM failed_payload").content
    assert json.loads(content) == {"id": 2, "n": MASK}
    table.clear()
    lose.clear()
    assert run.settled(run.open_replay(batch.batch_id)).failed == 0
    assert (2, 20) in sink_rows("out", "id", "n")


@pytest.mark.parametrize("incremental", [False, True])
def test_a_check_has_the_columns_of_the_table(table, spark, settings, database, incremental):
    """It reads the log and the footers, and calls the stages with the table's columns."""
    pipeline, day = flow(incremental=incremental), Interval(START, END)
    earlier = {each.subject: each for each in examine(settings, pipeline, day)}
    run = DryRun(spark, settings, pipeline, day, database, earlier, [].append)
    findings = {each.subject: each for each in run.findings()}
    assert all(each.ok and not each.hint for each in findings.values()), findings
    assert "version 2 of Delta table" in findings["source numbers"].message
    table.path.rename(table.path.parent / "elsewhere")
    earlier = {each.subject: each for each in examine(settings, pipeline, day)}
    assert "no Delta table at" in earlier["source numbers"].message
