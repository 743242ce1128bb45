"""What reads and writes an object store without Spark, on an S3 and on Google's as emulators have
them.
"""

import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ledger import DeltaSink, FileSource
from ledger.deltas.root_files import RootFile, read_listing, write_listing
from ledger.deltas.table_writer import TableWriter
from ledger.errors import FencedError, InputError, LostFileError, UnavailableError
from ledger.settings import Settings
from ledger.sinks.base import Delivery, SinkPlan
from ledger.sources.base import Claim
from ledger.sources.files import blocks as cutting
from ledger.sources.files import reader, text
from ledger.sources.files.blocks import Block, cut, parts
from ledger.sources.files.format import Format
from ledger.sources.listing import list_files, most_records, require_unchanged, with_digests
from ledger.storage import stores
from ledger.storage.folders import beside, remove_run_folder, require_writable, size_of
from ledger.storage.manifest import check_files, take_manifest
from ledger.store.queries import runs
from tests.support import ledgers
from tests.support.changing import CHANGES
from tests.support.object_stores import BUCKET, STORES, s3
from tests.support.retention import Archive, expiring

SCHEMA = pa.schema([("id", pa.int64()), ("label", pa.string())])
START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(params=STORES)
def bucket(request, monkeypatch):
    """The URL of an empty bucket."""
    with STORES[request.param](monkeypatch):
        yield f"{request.param}://{BUCKET}"


@pytest.fixture
def s3_bucket(monkeypatch):
    """One that deltalake can list: neither of Google's emulators has the API for that."""
    with s3(monkeypatch):
        yield f"s3://{BUCKET}"


def table(path, ids, labels):
    """Write a file of rows."""
    with TableWriter(path, SCHEMA) as writer:
        writer.write([pa.array(ids, pa.int64()), pa.array(labels, pa.string())])
        writer.finish()


def test_a_runs_files_are_listed_checked_and_removed(bucket):
    """The manifest has the paths as the storage is written, from files that others have written
    since the folder was listed; a lost file is named; the run's folder goes, and no other."""
    run = f"{bucket}/storage/orders/priced/batch=1/run=7"
    require_writable(bucket, "ACKLEDGER_STORAGE")
    assert take_manifest(run).files == ()
    table(f"{run}/p=a b/part-0.parquet", [1, 2], ["a", "b"])
    table(f"{run}0/part-0.parquet", [1], ["a"])
    assert take_manifest(run).paths == [f"{run}/p=a b/part-0.parquet"]
    table(f"{run}/p=c/part-1.parquet", [3], ["c"])
    manifest = take_manifest(run)
    assert manifest.paths == [f"{run}/p=a b/part-0.parquet", f"{run}/p=c/part-1.parquet"]
    assert manifest.rows == 3
    check_files(manifest)
    assert beside(run, "run=") == [run, f"{run}0"]
    stores.remove_file(manifest.paths[1])
    with pytest.raises(LostFileError, match=r"part-1\.parquet: expected .* it is gone"):
        check_files(manifest)
    for _ in range(2):
        remove_run_folder(run, 7)
    assert size_of(run).files == 0
    assert size_of(f"{run}0").files == 1


def test_gc_removes_what_nothing_needs(bucket, database):
    """The runs of a batch that is published, after its time; the files of another, which somebody
    may replay, stay."""
    archive = Archive(database, f"{bucket}/storage")
    done, _ = archive.settled(expiring())
    failed, _ = archive.settled(expiring(), run_id="second", day=1, lose_sink=[0])
    paths = (
        "SELECT path FROM step_run_file JOIN step_run r USING (step_run_id) WHERE r.batch_id = :b"
    )
    removed, needed = (
        [row.path for row in archive.rows(paths, b=batch.batch_id)] for batch in (done, failed)
    )
    assert all(stores.exists(path) for path in removed + needed)
    assert archive.collect(days=0.5).total.files == 0
    collected = archive.collect()
    assert (collected.expired, collected.errors) == ((done.batch_id,), {})
    assert collected.total.files == len(removed) == 3
    assert [stores.exists(path) for path in removed + needed] == [False] * 3 + [True] * len(needed)
    assert archive.row("SELECT files_removed_at FROM batch WHERE batch_id = 1")[0] is not None


def test_what_counts_of_a_folds_files_is_kept(bucket):
    """Root files are listed, and a writer that raises leaves none."""
    files = [RootFile(f"{bucket}/roots/a.parquet", 1, 1, 1)]
    write_listing(f"{bucket}/roots", files)
    write_listing(f"{bucket}/roots", files * 2)
    assert read_listing(f"{bucket}/roots") == files * 2
    with suppress(ZeroDivisionError), TableWriter(f"{bucket}/roots/b", SCHEMA) as writer:
        writer.write([pa.array([1], pa.int64()), pa.array(["a"])])
        raise ZeroDivisionError
    assert not stores.exists(f"{bucket}/roots/b")


def test_a_source_is_listed_and_cut_into_blocks(bucket):
    """Its files are found by a pattern, counted, and read again block by block as they were cut."""
    lines = b"".join(b'{"id": %d}\n' % number for number in range(3_000))
    for day in (1, 2):
        stores.write(f"{bucket}/in/day={day}/a.json", lines)
    stores.write(f"{bucket}/in/day=1/_hidden.json", lines)
    files = list_files(f"{bucket}/in/day=*/*.json")
    assert [file.path for file in files] == [f"{bucket}/in/day={day}/a.json" for day in (1, 2)]
    assert files[0].modified_at > datetime(2020, 1, 1, tzinfo=UTC)
    before = require_unchanged("orders", files)
    assert all(file.version for file in before)
    assert [replace(file, version="") for file in before] == files
    stores.write(files[0].path, lines.replace(b"7", b"8"))
    (now,) = list_files(files[0].path)
    assert now.bytes == files[0].bytes
    with pytest.raises(InputError, match="found another version of that size and time"):
        require_unchanged("orders", [replace(before[0], modified_at=now.modified_at)])
    stores.write(files[0].path, lines)
    first, second = with_digests(list_files(f"{bucket}/in/day=*/*.json"))
    assert first.digest == second.digest is not None
    assert most_records(first, "json") == 3_000
    form = Format("json", None, ["id"], None, {}, False)
    blocks = [Block.at(block.place) for block in cut(first.path, form, None)]
    assert b"".join(part for block in blocks for part in parts(block)) == lines


def test_content_of_failed_records_is_read_from_a_store(bucket, ledger, tmp_path):
    """What failed is copied out of a snapshot that lies there."""
    batch, roots = ledger.whole_batch(ledgers.pipeline(), 4, lose_sink=[0, 2])
    ledger.settle(batch.batch_id)
    nothing = {"_ackledger_raw": None, "_ackledger_error": None}
    rows = [{"_ackledger_file": "in/a.csv", "n": n, **nothing} for n in range(4)]
    ledger.write_snapshot(batch, tmp_path, rows)
    run_id = ledger.row("SELECT emit_run_id FROM batch_source").emit_run_id
    moved = []
    for file in ledger.transact(runs.files, run_id):
        path = Path(file.path)
        moved.append(replace(file, path=f"{bucket}/snapshot/{path.name}"))
        stores.write(moved[-1].path, path.read_bytes())
        path.unlink()
    ledger.note_files(run_id, moved)
    assert ledger.keep_payloads(batch.batch_id) == 2
    payloads = ledger.rows("SELECT message_id, content FROM failed_payload ORDER BY 1")
    assert [tuple(row) for row in payloads] == [(roots[0], '{"n": 0}'), (roots[2], '{"n": 2}')]


NUMBERS = b"n,s\n" + b"".join(b"%d,name %d\n" % (n, n) for n in range(4))


def change(url, name):
    """Put another object in the place of one, or none."""
    data = CHANGES[name](NUMBERS)
    if data is None:
        stores.remove_file(url)
    else:
        stores.write(url, data)


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_source_on_a_store_is_copied(bucket, ledger, monkeypatch, size):
    """It is cut there, and read block by block: another object in the place of one, or none,
    between cutting and reading is an error with its URL. What was appended is not read."""
    monkeypatch.setattr(cutting, "BLOCK", size)
    url, folder = f"{bucket}/in/a.csv", f"{bucket}/snapshot"
    fields = [StructField("n", IntegerType()), StructField("s", StringType())]
    source = FileSource(f"{bucket}/in/*", schema=StructType(fields))

    def emit(change_between):
        stores.write(url, NUMBERS)
        cut_all = text.blocks_of

        def cut_and_change(*arguments):
            own = cut_all(*arguments)
            change_between()
            return own

        with monkeypatch.context() as patch:
            patch.setattr(reader, "blocks_of", cut_and_change)
            return reader.Reader(None, source).write(Claim("in", source.path), folder)

    harmful = [name for name in CHANGES if name != "appended"]
    for name in harmful:
        with pytest.raises(InputError, match=re.escape(url)):
            emit(lambda name=name: change(url, name))
    done = emit(lambda: change(url, "appended"))
    assert (done.rows, done.failed) == (4, 0)
    stored = take_manifest(folder, done.names).files
    batch, _ = ledger.whole_batch(ledgers.pipeline(), 4, lose_sink=[2, 3])
    ledger.settle(batch.batch_id)
    run_id = ledger.row("SELECT emit_run_id FROM batch_source").emit_run_id
    ledger.note_files(run_id, stored)
    assert ledger.keep_payloads(batch.batch_id) == 2
    payloads = ledger.rows("SELECT content, source_file FROM failed_payload ORDER BY root_id")
    contents = [f'{{"n": {n}, "s": "name {n}"}}' for n in (2, 3)]
    assert [tuple(row) for row in payloads] == [(content, url) for content in contents]


def delivery(publisher, batch_id, version, labels):
    """Rows as a run stages them."""
    folder = publisher.staging(batch_id, version)
    table(f"{folder}/part-{version}.parquet", range(len(labels)), labels)
    files = take_manifest(folder).files
    own = ("shop.out", batch_id, version, START, batch_id, folder, files, (), END)
    staged = Delivery(*own, pipeline_since=START)
    assert publisher.plan(SCHEMA, staged) == publisher.plan(SCHEMA, None) == SinkPlan()
    return staged


def test_a_delta_table_is_published_in_place(s3_bucket):
    """Staged files become the table's by one commit, once; a newer version replaces an older one,
    which is refused afterwards, and a batch that replaces another removes its rows."""
    path = f"{s3_bucket}/out"
    publisher = DeltaSink(path).publisher(Settings(), "shop", "out")
    first = delivery(publisher, 1, 11, ["a", "b"])
    with pytest.raises(TableNotFoundError):
        DeltaTable(path)
    for _ in range(2):
        publisher.publish(first)

    def shown():
        return sorted(DeltaTable(path).to_pyarrow_table()["label"].to_pylist())

    assert shown() == ["a", "b"]
    publisher.publish(delivery(publisher, 1, 12, ["c"]))
    assert shown() == ["c"]
    with pytest.raises(FencedError):
        publisher.publish(first)
    publisher.publish(replace(delivery(publisher, 2, 21, ["d"]), replaces=(1,)))
    assert shown() == ["d"]


def test_a_store_that_is_gone_does_not_answer(monkeypatch):
    """A server that is stopped is an error to be tried again, never an empty folder."""
    monkeypatch.setattr(stores, "SECOND_ATTEMPT", 1)
    with s3(monkeypatch):
        url = f"s3://{BUCKET}/storage"
        stores.write(f"{url}/file", b"1")
    with pytest.raises(UnavailableError, match="the store did not answer"):
        stores.entries(url)
