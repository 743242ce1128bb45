"""The publisher of PostgreSQL tables: every delivery once, whole, in order, and no value
changed.
"""

import math
import socket
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
import tenacity

from ledger import PostgresSink, Upsert
from ledger.databases import driver_errors
from ledger.databases.identifiers import literal_name
from ledger.errors import (
    ConfigurationError,
    DeclarationError,
    FencedError,
    IntegrityError,
    NotReadyError,
    StageError,
    UnavailableError,
    redacted,
)
from ledger.sinks import staged_files as staged
from ledger.sinks.base import planned
from ledger.sinks.postgres import publisher as postgres
from ledger.sinks.postgres import table as target
from ledger.sinks.postgres.connection import APPLICATION
from tests.support.warehouse import JANUARY, ORDERS

FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)


def both(*calls):
    """Call all at the same time, each in a thread of its own; what they gave or raised."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait()
        try:
            return call()
        except Exception as exc:
            return exc

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_table_is_made_and_a_second_publish_changes_nothing(warehouse):
    """The first publish makes table and record; the same again, even without its files, is a
    no-op.
    """
    sink, delivery = warehouse.publisher(), warehouse.deliver(11, [(1, "a"), (2, None)])
    assert sink.staging(11, 7) == f"{warehouse.folder}/batch=11/run=7"
    planned("the sink", sink, ORDERS)
    assert warehouse.rows("SELECT to_regclass('orders'), to_regclass('ackledger_commit')") == [
        (None, None)
    ]
    sink.publish(delivery)
    for file in delivery.files:
        Path(file.path).unlink()
    sink.publish(delivery)
    assert warehouse.orders() == [(1, "a", 11), (2, None, 11)]
    rows = warehouse.rows(
        "SELECT sink, batch_id, version, interval_start, original_id, rows, table_name, replaced_by"
        " FROM ackledger_commit"
    )
    assert rows == [("shop.orders", 11, 11, JANUARY, 11, 2, "orders", None)]
    planned("the sink", sink, pa.schema([*ORDERS, ("_ackledger_root", pa.int64())]))


@pytest.mark.parametrize("mode", ["append", "upsert", "replace_interval"])
def test_two_publishes_at_the_same_time_bring_the_rows_once(warehouse, mode):
    """Two at once, from the making of the tables on, ten times: the rows are there once."""
    for batch in range(1, 11):
        result = [(batch * 100 + number, "x") for number in range(50)]
        delivery = warehouse.deliver(batch, result, interval_start=JANUARY + timedelta(days=batch))
        publish = [lambda d=delivery: warehouse.publisher(mode).publish(d)] * 2
        assert both(*publish) == [None, None]
        assert len(warehouse.orders()) == 50 * batch
    assert set(Counter(row[0] for row in warehouse.orders()).values()) == {1}


def test_two_sinks_make_the_record_at_the_same_time(warehouse):
    """Sinks of two tables that find no record both publish, again and again."""
    for _ in range(5):
        warehouse.do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        calls = []
        for name in ("a", "b", "c"):
            delivery = warehouse.deliver(1, [(1, name)], sink=f"shop.{name}")
            calls.append(lambda n=name, d=delivery: warehouse.publisher(table=n).publish(d))
        assert both(*calls) == [None, None, None]
        assert warehouse.rows("SELECT count(*) FROM ackledger_commit") == [(3,)]


def test_append_replaces_batches(warehouse):
    """Rows of replaced batches go when the new ones come; others stay; a late one is refused."""
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(10, [(1, "stays")]))
    sink.publish(warehouse.deliver(11, [(1, "goes")]))
    sink.publish(warehouse.deliver(13, [(1, "new")], replaces=(11, 12)))
    assert warehouse.orders() == [(1, "new", 13), (1, "stays", 10)]
    for late in (11, 12):
        with pytest.raises(FencedError, match="batch 13 has replaced it"):
            sink.publish(warehouse.deliver(late, [(1, "late")], version=99))
    assert len(warehouse.orders()) == 2


def test_another_sinks_batches_are_never_removed(warehouse):
    """A batch named in ``replaces`` that this sink never showed keeps the rows another sink
    brought.
    """
    warehouse.publisher().publish(warehouse.deliver(11, [(1, "a")], sink="other.orders"))
    warehouse.publisher().publish(warehouse.deliver(12, [(2, "b")], replaces=(11,)))
    assert warehouse.orders() == [(1, "a", 11), (2, "b", 12)]


def test_two_sinks_of_one_batch_need_two_tables(warehouse):
    """Rows of one batch from two sinks could not be distinguished, so the second is refused."""
    warehouse.publisher().publish(warehouse.deliver(11, [(1, "a")], sink="shop.a"))
    with pytest.raises(DeclarationError, match=r"batch 11 from sink 'shop\.a'.*table of its own"):
        warehouse.publisher().publish(warehouse.deliver(11, [(1, "b")], sink="shop.b"))
    assert warehouse.orders() == [(1, "a", 11)]


def test_a_newer_version_replaces_and_an_older_is_refused(warehouse):
    """Of one batch the rows of the newest run are published, whatever comes later."""
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(11, [(1, "old"), (2, "old")], version=5))
    sink.publish(warehouse.deliver(11, [(1, "new")], version=6))
    with pytest.raises(FencedError, match=r"version 5 of batch 11: version 6 is published"):
        sink.publish(warehouse.deliver(11, [(1, "old"), (2, "old")], version=5))
    assert warehouse.orders() == [(1, "new", 11)]


def test_a_number_that_a_restored_ledger_gives_again_is_not_published(warehouse):
    """A ledger that was restored from an older backup counts on from there: what the record says
    of another batch of the number is not believed.
    """
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(1, [(1, "a")]))
    for other in (
        warehouse.deliver(1, [(1, "a"), (2, "b")]),
        warehouse.deliver(1, [(1, "a")], version=2, interval_start=FEBRUARY),
    ):
        with pytest.raises(IntegrityError, match="restored from an older backup"):
            sink.publish(other)
    assert warehouse.orders() == [(1, "a", 1)]


@pytest.mark.parametrize("mode", ["append", "upsert", "replace_interval"])
@pytest.mark.parametrize("batch", [(5, {}), (5, {"version": 9}), (3, {})])
def test_a_record_of_another_ledger_is_not_taken_for_ones_own(warehouse, mode, batch):
    """A ledger that is set up again gives numbers that the record has, or that are before them: its
    batch is refused, whatever its run, as it is staged and as it is published.
    """
    sink = warehouse.publisher(mode)
    sink.publish(warehouse.deliver(5, [(1, "old")]))
    number, more = batch
    other = warehouse.deliver(number, [(1, "old")], pipeline_since=FEBRUARY, **more)
    for call in (partial(sink.plan, None), sink.publish):
        with pytest.raises(IntegrityError, match=r"expected no batch .* from \d on, found 5"):
            call(other)
    assert warehouse.orders() == [(1, "old", 5)]


def test_a_ledger_whose_numbers_are_past_anothers(warehouse):
    """A ledger that moved its numbers on publishes, once, beside what another one left, and takes
    no rows of that for its own, but those of its own earlier batches; an interval is replaced all
    the same.
    """
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(3, [(0, "own")], pipeline_since=FEBRUARY))
    sink.publish(warehouse.deliver(5, [(1, "old")]))
    new = warehouse.deliver(15, [(2, "new")], replaces=(3, 5), pipeline_since=FEBRUARY)
    assert sink.plan(None, new).refusals == ()
    sink.publish(new)
    sink.publish(new)
    assert warehouse.orders() == [(1, "old", 5), (2, "new", 15)]
    day = warehouse.deliver(16, [(3, "day")], pipeline_since=FEBRUARY)
    warehouse.publisher("replace_interval").publish(day)
    assert warehouse.orders() == [(3, "day", 16)]


def test_upsert_keeps_the_newer_row_in_any_order(warehouse):
    """Batch 12 before 11 leaves 12's rows; a later interval wins over both; a replay over its
    family.
    """
    sink = warehouse.publisher("upsert")
    sink.publish(warehouse.deliver(12, [(1, "twelve")]))
    sink.publish(warehouse.deliver(11, [(1, "eleven"), (2, "eleven")]))
    assert warehouse.orders() == [(1, "twelve", 12), (2, "eleven", 11)]
    sink.publish(warehouse.deliver(5, [(2, "february")], interval_start=FEBRUARY))
    sink.publish(warehouse.deliver(13, [(1, "replay"), (2, "replay")], original_id=11))
    assert warehouse.orders() == [(1, "twelve", 12), (2, "february", 5)]
    sink.publish(warehouse.deliver(14, [(1, "fourteen")], original_id=12))
    assert warehouse.orders() == [(1, "fourteen", 14), (2, "february", 5)]
    keys = warehouse.rows(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass"
        " AND contype = 'p'"
    )
    assert keys == [("PRIMARY KEY (id)",)]


def test_upsert_replaces_and_does_not_uncover(warehouse):
    """Rows of a replaced batch go, and the older ones that they overwrote do not come back."""
    sink = warehouse.publisher("upsert")
    sink.publish(warehouse.deliver(11, [(1, "old"), (2, "old")]))
    sink.publish(warehouse.deliver(12, [(2, "new"), (3, "new")]))
    sink.publish(warehouse.deliver(13, [(3, "newest")], replaces=(12,)))
    assert warehouse.orders() == [(1, "old", 11), (3, "newest", 13)]
    sink.publish(warehouse.deliver(11, [(2, "again")], version=20))
    assert warehouse.orders() == [(2, "again", 11), (3, "newest", 13)]


def test_upsert_takes_over_rows_from_before(warehouse):
    """A row that the table had before the sink is older than all, and of several columns a key."""
    warehouse.do(
        'CREATE TABLE "Or ders" ("i%%d" bigint, "a :b" text, ackledger_batch bigint, UNIQUE ("a'
        ' :b", "i%%d"))',
        "INSERT INTO \"Or ders\" VALUES (1, 'a', NULL)",
    )
    schema = pa.schema([("i%d", pa.int64()), ("a :b", pa.string())])
    sink = warehouse.publisher("upsert", "public.Or ders", key=("i%d", "a :b"))
    planned("the sink", sink, schema)
    sink.publish(warehouse.deliver(7, [(1, "a"), (1, "b")], schema=schema))
    sink.publish(warehouse.deliver(6, [(1, "a"), (2, "b")], schema=schema))
    rows = warehouse.rows('SELECT * FROM "Or ders" ORDER BY 1, 2')
    assert rows == [(1, "a", 7), (1, "b", 7), (2, "b", 6)]


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ([(1, "a"), (5, "b"), (5, "c")], r"2 row\(s\) of batch 11 have the key \(id\) = \('5'\)"),
        ([(1, "a"), (None, "b")], r"1 row\(s\) of batch 11 have the key \(id\) = \(null\)"),
    ],
)
def test_upsert_refuses_odd_keys(warehouse, pipeline, message):
    """Two rows with one key, or a key that is null, are an error that names the key; nothing
    comes.
    """
    sink = warehouse.publisher("upsert")
    sink.publish(warehouse.deliver(12, [(5, "newer")]))
    with pytest.raises(StageError, match=message) as caught:
        sink.publish(warehouse.deliver(11, pipeline))
    assert "(id) = ***: expected" in str(redacted(caught.value))
    assert warehouse.orders() == [(5, "newer", 12)]


def test_a_family_replaces_an_older_one_of_its_interval(warehouse):
    """Another family over an interval takes the place of the first, of this interval alone;
    within a family rows add up; what comes late of the first is refused.
    """
    sink = warehouse.publisher("replace_interval")
    sink.publish(warehouse.deliver(10, [(0, "february")], interval_start=FEBRUARY))
    sink.publish(warehouse.deliver(11, [(1, "first")]))
    sink.publish(warehouse.deliver(12, [(2, "its replay")], original_id=11))
    assert len(warehouse.orders()) == 3
    sink.publish(warehouse.deliver(14, [(1, "second")]))
    assert warehouse.orders() == [(0, "february", 10), (1, "second", 14)]
    sink.publish(warehouse.deliver(16, [(2, "its replay")], original_id=14))
    for late in (
        warehouse.deliver(12, [(2, "its replay")], original_id=11),
        warehouse.deliver(15, [(3, "late replay")], original_id=11),
    ):
        with pytest.raises(FencedError, match="replaced"):
            sink.publish(late)
    assert warehouse.orders() == [(0, "february", 10), (1, "second", 14), (2, "its replay", 16)]


def test_an_empty_family_replaces_too(warehouse):
    """A family without rows leaves the interval empty, be its files empty or none."""
    sink = warehouse.publisher("replace_interval")
    sink.publish(warehouse.deliver(11, [(1, "first")]))
    sink.publish(warehouse.deliver(12))
    assert warehouse.orders() == []
    sink.publish(warehouse.deliver(13, [(1, "third")]))
    sink.publish(warehouse.deliver(14, []))
    assert warehouse.orders() == []


def test_an_empty_delivery_is_recorded(warehouse):
    """Without files there is no table to make; a file without rows makes it; both are in the
    record.
    """
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(11))
    assert warehouse.rows("SELECT to_regclass('orders')") == [(None,)]
    sink.publish(warehouse.deliver(12, []))
    assert warehouse.orders() == []
    rows = warehouse.rows("SELECT batch_id, rows FROM ackledger_commit ORDER BY 1")
    assert rows == [(11, 0), (12, 0)]


def test_a_reader_never_sees_part_of_a_batch(warehouse):
    """While a batch takes the place of two others, a reader sees those two whole or it whole."""
    sink = warehouse.publisher()
    seen, done = [], threading.Event()
    before, after = {11: 2000, 12: 1000}, {13: 4000}
    for batch, rows in before.items():
        sink.publish(warehouse.deliver(batch, [(n, "x") for n in range(rows)]))

    def look():
        with warehouse.engine.connect() as connection:
            while True:
                last = done.is_set()
                statement = "SELECT ackledger_batch, count(*) FROM orders GROUP BY 1"
                seen.append(dict(connection.exec_driver_sql(statement).all()))
                connection.rollback()
                if last:
                    return

    reader = threading.Thread(target=look)
    reader.start()
    parts = [[(n, "y") for n in range(1000)] for _ in range(4)]
    sink.publish(warehouse.deliver(13, *parts, replaces=(11, 12)))
    done.set()
    reader.join()
    assert len(seen) > 2
    assert all(count in (before, after) for count in seen), seen
    assert seen[0] == before
    assert seen[-1] == after


@contextmanager
def killer(warehouse, most):
    """End up to ``most`` publishers, each as soon as it waits for the table's lock."""
    killed, done = [], threading.Event()
    statement = (
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type ="
        f" 'Lock' AND application_name = '{APPLICATION}' AND datname = 'warehouse'"
    )

    def run():
        while len(killed) < most and not done.is_set():
            killed.extend(warehouse.rows(statement))
            time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def _tries(most, pause):
    return driver_errors.RETRYING.copy(
        stop=tenacity.stop_after_attempt(most), wait=tenacity.wait_fixed(pause)
    )


def test_a_killed_publish_leaves_nothing(warehouse, monkeypatch):
    """A backend ended between the copy and the commit, at every try, leaves neither rows nor
    record; the next call brings the rows once.
    """
    monkeypatch.setattr(driver_errors, "RETRYING", _tries(3, 0.5))
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(11, [(1, "first")]))
    delivery = warehouse.deliver(12, [(2, "second")], replaces=(11,))
    with warehouse.engine.connect() as holder, holder.begin():
        holder.exec_driver_sql("LOCK TABLE orders IN SHARE MODE")
        with (
            killer(warehouse, 3) as killed,
            pytest.raises(UnavailableError, match="did not answer"),
        ):
            sink.publish(delivery)
        assert len(killed) == 3
    assert warehouse.orders() == [(1, "first", 11)]
    assert warehouse.rows("SELECT batch_id FROM ackledger_commit") == [(11,)]
    sink.publish(delivery)
    assert warehouse.orders() == [(2, "second", 12)]


def test_a_connection_lost_in_the_copy_is_tried_again(warehouse, monkeypatch):
    """A backend that ends between two pieces costs a new try of the whole, and no row."""
    calls = count(1)

    def to_csv(*arguments):
        if next(calls) == 2:
            warehouse.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
                f" '{APPLICATION}'"
            )
        return original(*arguments)

    original = postgres.to_csv
    monkeypatch.setattr(postgres, "to_csv", to_csv)
    warehouse.publisher().publish(warehouse.deliver(11, [(1, "a")], [(2, "b")], [(3, "c")]))
    assert next(calls) > 5  # one, a lost one, and three
    assert warehouse.orders() == [(1, "a", 11), (2, "b", 11), (3, "c", 11)]


class Proxy:
    """Between client and server, it cuts the first connection that commits: before the server gets
    the commit, or after it has answered."""

    def __init__(self, upstream: str, answered: bool):
        self.upstream, self.answered, self.cuts, self.connections = upstream, answered, 0, 0
        self._folder = tempfile.TemporaryDirectory(prefix="pg-")
        self.host = self._folder.name
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self.host}/.s.PGSQL.5432")
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()
        self._folder.cleanup()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.upstream)
        committing = threading.Event()
        threading.Thread(target=self._answers, args=(client, server, committing)).start()
        while data := self._received(client):
            if data.startswith(b"Q") and b"COMMIT" in data and not self.cuts:
                self.cuts += 1
                committing.set()
                if not self.answered:
                    break
            server.sendall(data)
        server.shutdown(socket.SHUT_RDWR)

    def _answers(self, client, server, committing):
        while (data := self._received(server)) and not committing.is_set():
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _received(end):
        try:
            return end.recv(1 << 16)
        except OSError:
            return b""


@pytest.mark.parametrize("answered", [True, False], ids=["after it", "before it"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_without_an_answer_is_not_done_twice(warehouse, answered, mode):
    """Whether the connection broke before or after the commit, the next try asks the record."""
    url = sa.make_url(warehouse.url)
    proxy = Proxy(f"{url.query['host']}/.s.PGSQL.{url.port or 5432}", answered)
    try:
        through = url.set(port=5432, query={"host": proxy.host})
        sink = warehouse.publisher(mode, url=through.render_as_string(hide_password=False))
        sink.publish(warehouse.deliver(11, [(1, "a"), (2, "b")]))
        assert (proxy.cuts, proxy.connections) == (1, 2)
    finally:
        proxy.close()
    assert warehouse.orders() == [(1, "a", 11), (2, "b", 11)]


NASTY = [
    "",
    "null",
    "NULL",
    "\\N",
    "\\.",
    '"',
    "''",
    'a"b,c;d',
    "line\nfeed\r\nreturn\rtab\t",
    " pad ",
    "\\",
    "{}",
    "{1,NULL}",
    "\u00e9\u4e2d\U0001f600",
    "\x01\x1f\x7f",
    "%s :x",
]


def round_trip(warehouse, kind, values):
    """What a column of the values holds, and its type, in a table made for it."""
    sink = warehouse.publisher(table="typed")
    schema = pa.schema([("n", pa.int32()), ("v", kind)])
    planned("the sink", sink, schema)
    table = pa.table({"n": pa.array(range(len(values)), pa.int32()), "v": pa.array(values, kind)})
    # In two slices of one buffer: offsets into it must not matter.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged, "MOST_BYTES", max(1, table.nbytes // 2))
        sink.publish(warehouse.deliver(1, table))
    planned("the sink", sink, schema)
    rows = warehouse.rows("SELECT v FROM typed ORDER BY n")
    types = warehouse.rows(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid ="
        " 'typed'::regclass AND attname = 'v'"
    )
    return [row[0] for row in rows], types[0][0]


TIMESTAMPS = [
    datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2026, 3, 29, 1, 30),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    None,
]
AWARE = [instant and instant.replace(tzinfo=UTC) for instant in TIMESTAMPS]
DATES = [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(9999, 12, 31), None]
FLOATS = [0.1, -0.0, 5e-324, 1.7976931348623157e308, -math.inf, math.inf, None, 1e16, 123456789.125]
BYTES = [b"", b"\x00\xff\\x\n\"',", None, b"abc", bytes(range(256))]
SCALARS = [
    (pa.bool_(), [True, False, None], "boolean"),
    (pa.int8(), [-128, 127, None], "smallint"),
    (pa.uint8(), [0, 255, None], "smallint"),
    (pa.int16(), [-(2**15), 2**15 - 1, None], "smallint"),
    (pa.uint16(), [0, 2**16 - 1, None], "integer"),
    (pa.int32(), [-(2**31), 2**31 - 1, None], "integer"),
    (pa.uint32(), [0, 2**32 - 1, None], "bigint"),
    (pa.int64(), [-(2**63), 2**63 - 1, None], "bigint"),
    (pa.uint64(), [Decimal(0), Decimal(2**64 - 1), None], "numeric(20,0)"),
    (pa.float64(), FLOATS, "double precision"),
    (pa.float32(), [0.5, -1.5, math.inf, None], "real"),
    (pa.decimal128(7, 2), [Decimal("-99999.99"), Decimal("0.01"), None], "numeric(7,2)"),
    (pa.decimal128(38, 18), [Decimal("1E-18"), Decimal(10**19), None], "numeric(38,18)"),
    (pa.string(), [*NASTY, None], "text"),
    (pa.large_string(), [*NASTY, None], "text"),
    (pa.dictionary(pa.int32(), pa.string()), ["a", '\\"', "", None, "a"], "text"),
    (pa.binary(), BYTES, "bytea"),
    (pa.binary(2), [b"\x00\x01", None, b"ab"], "bytea"),
    (pa.date32(), DATES, "date"),
    (pa.time64("us"), [clock(0), clock(23, 59, 59, 999999), None], "time without time zone"),
    (pa.timestamp("us"), TIMESTAMPS, "timestamp without time zone"),
    (pa.timestamp("us", "UTC"), AWARE, "timestamp with time zone"),
    (pa.timestamp("ms", "Europe/Berlin"), [AWARE[2], None], "timestamp with time zone"),
]  # fmt: skip


def plain(value):
    """A value as it compares: bytes of a memoryview, the zone of a timestamp as UTC."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize(
    ("kind", "values", "expected"), SCALARS, ids=[str(scalar[0]) for scalar in SCALARS]
)
def test_values_arrive_as_they_were(warehouse, kind, values, expected):
    """Every value of every type, the awkward ones too, alone and in an array, is what was
    staged.
    """
    numbers = [
        int(item) if pa.types.is_uint64(kind) and item is not None else item for item in values
    ]
    read_back, table = round_trip(warehouse, kind, numbers)
    assert [plain(item) for item in read_back] == values
    assert table == expected
    warehouse.do("DROP TABLE typed, ackledger_commit")
    lists = [numbers, None, [], [None], numbers[:1], *([item] for item in numbers)]
    read_back, table = round_trip(warehouse, pa.list_(kind), lists)
    expected_lists = [values, None, [], [None], values[:1], *([item] for item in values)]
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        statement = "SELECT to_json(v) FROM typed ORDER BY n"
        read_back = [row[0] for row in warehouse.rows(statement)]
        read_back = [
            item and [x and bytes.fromhex(x[2:]) if x != "\\x" else b"" for x in item]
            for item in read_back
        ]
    assert [plain(item) for item in read_back] == expected_lists
    assert table == f"{expected}[]"


# Seconds since 1970 in years for which Arrow has no text, another one than PostgreSQL reads, or the
# text of another year; and the day, the time and the era in PostgreSQL's text.
FAR_YEARS = {
    -210863520000: ("4713-01-01", "00:00:00", " BC"),
    -62162121600: ("0001-02-29", "00:00:00", " BC"),
    -62135596801: ("0001-12-31", "23:59:59", " BC"),
    253402300800: ("10000-01-01", "00:00:00", ""),
    971890963200: ("32768-01-01", "00:00:00", ""),
    2069833564800: ("67560-06-01", "00:00:00", ""),
    9223372036854: ("294247-01-10", "04:00:54", ""),  # Spark's greatest
}


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_far_years_arrive_as_they_were(warehouse, unit, zone):
    """Dates and timestamps of years before 1 and past 32767 are what was staged: in a column, in
    an array, in JSON and as the key of a map there.
    """
    scale = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    instants = pa.array([second * scale for second in FAR_YEARS], pa.int64())
    instants = instants.cast(pa.timestamp(unit, zone))
    days = pa.array([second // 86400 for second in FAR_YEARS], pa.int32()).cast(pa.date32())
    each = pa.array(range(len(instants) + 1), pa.int32())
    columns = {
        "at": instants,
        "day": days,
        "list": pa.ListArray.from_arrays(each, instants),
        "nested": pa.StructArray.from_arrays([instants, days], ["at", "day"]),
        "keys": pa.MapArray.from_arrays(each, instants, days),
    }
    warehouse.publisher(table="far").publish(warehouse.deliver(1, pa.table(columns)))
    kind = "timestamptz" if zone else "timestamp"
    rows = warehouse.rows(f"""
        SELECT at::text, list[1]::text, (nested ->> 'at')::{kind}::text, key::{kind}::text,
               day::text, (nested ->> 'day')::date::text, value::date::text
        FROM far, jsonb_each_text(keys) ORDER BY far.at
    """)
    offset = "+00" if zone else ""
    assert rows == [
        (f"{day} {time}{offset}{era}",) * 4 + (f"{day}{era}",) * 3
        for day, time, era in FAR_YEARS.values()
    ]


def test_a_year_that_postgresql_lacks_fails_its_row(warehouse):
    """A timestamp before 4713 BC and a date after the year 5874897 are refused with their own year,
    and the other rows are taken.
    """
    instants = pa.array([-(2**63), 0, 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    days = pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32())
    rows = pa.table({"at": instants, "day": days})
    refusals = warehouse.publisher().plan(None, warehouse.deliver(1, rows)).refusals
    assert [(refusal.position, refusal.reason) for refusal in refusals] == [
        (0, 'timestamp out of range: "290309-12-21 19:59:05.224192Z BC", column at'),
        (1, 'date out of range: "5881580-07-11", column day'),
    ]


def test_an_upsert_by_a_far_timestamp(warehouse):
    """Two timestamps of which Arrow makes one text are two keys: neither row replaces the other."""
    key = pa.array([1717200000 * 10**6, 2069833564800 * 10**6], pa.int64())
    rows = pa.table({"id": key.cast(pa.timestamp("us", "UTC")), "item": ["2024", "67560"]})
    warehouse.publisher("upsert").publish(warehouse.deliver(1, rows.slice(0, 1)))
    warehouse.publisher("upsert").publish(warehouse.deliver(2, rows.slice(1)))
    assert warehouse.rows("SELECT item FROM orders ORDER BY id") == [("2024",), ("67560",)]


@pytest.mark.parametrize("name", ["discount %", r'%(id)s %s:x "a".b\c'])
@pytest.mark.parametrize("mode", ["append", "upsert", "replace_interval"])
def test_names_with_signs_that_mean_something_elsewhere(warehouse, mode, name):
    """A column, a key and a table may have any sign in their names, in a table that the sink makes
    and in one with constraints that is there; a reprocess replaces the rows."""
    schema = pa.schema([(name, pa.int64()), ("item", pa.string())])
    table = name.replace(".", "")
    sink = warehouse.publisher(mode, table=table, key=(name,) if mode == "upsert" else ())
    column, place = (quoted.replace("%", "%%") for quoted in map(literal_name, (name, table)))
    for statements, refused in (
        ([], []),
        (
            [
                f"DROP TABLE {place}, ackledger_commit",
                f"CREATE TABLE {place} ({column} bigint PRIMARY KEY, item text, ackledger_batch"
                f" bigint, parent bigint REFERENCES {place} DEFERRABLE, UNIQUE ({column}, item),"
                f" CONSTRAINT {column} CHECK ({column} < 9))",
            ],
            [2],
        ),
    ):
        warehouse.do(*statements)
        planned("the sink", sink, None)
        planned("the sink", sink, schema)
        delivery = warehouse.deliver(1, [(1, "a"), (2, "b"), (9, "c")], schema=schema)
        assert [refusal.position for refusal in sink.plan(None, delivery).refusals] == refused
        sink.publish(warehouse.deliver(1, [(1, "a"), (2, "b")], schema=schema))
        sink.publish(warehouse.deliver(2, [(1, "z")], schema=schema, replaces=(1,)))
        assert warehouse.rows(f"SELECT {column}, item FROM {place}") == [(1, "z")]


def test_not_a_number_arrives(warehouse):
    """NaN, which equals nothing, is NaN in the table."""
    read_back, _ = round_trip(warehouse, pa.float64(), [math.nan, None, 1.0])
    assert math.isnan(read_back[0])
    assert read_back[1:] == [None, 1.0]


def test_nested_values_arrive_as_json(warehouse):
    """Structs, maps, and lists of them are jsonb: text escaped, numbers exact, timestamps in ISO
    form.
    """
    inner = pa.struct(
        [
            ("text", pa.string()),
            ('we"ird', pa.list_(pa.int64())),
            ("price", pa.decimal128(38, 18)),
            ("at", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
            ("ok", pa.bool_()),
        ]
    )
    price = Decimal("12345678901234567890.123456789012345678")
    texts = [text for text in NASTY if text]
    rows = [
        {
            "text": text,
            'we"ird': [1, None],
            "price": price,
            "at": AWARE[1],
            "raw": b"\x00a",
            "ok": True,
        }
        for text in texts
    ]
    empty = dict.fromkeys(rows[0])
    shown = {'we"ird': [1, None], "at": "1969-12-31T23:59:59.999999Z", "raw": "\\x0061", "ok": True}
    read_back, table = round_trip(warehouse, pa.list_(inner), [rows, None, [], [None, empty]])
    assert table == "jsonb"
    got = [{name: text[name] for name in ("text", *shown)} for text in read_back[0]]
    assert got == [{"text": text, **shown} for text in texts]
    assert read_back[1:] == [None, [], [None, empty]]
    exact = warehouse.rows("SELECT v -> 0 ->> 'price' FROM typed WHERE n = 0")
    assert exact == [(str(price),)]


def test_maps_and_lists_of_lists_arrive_as_json(warehouse):
    """A map is an object whatever its keys are, and lists in lists need not be of one length."""
    kind = pa.struct(
        [
            ("m", pa.map_(pa.string(), pa.float64())),
            ("d", pa.map_(pa.date32(), pa.struct([("x", pa.int8())]))),
            ("l", pa.list_(pa.list_(pa.string()))),
        ]
    )
    rows = [
        {
            "m": [('a"\n', 0.5), ("b", None)],
            "d": [(date(2026, 1, 1), {"x": 1})],
            "l": [["a"], [], None],
        },
        {"m": [], "d": None, "l": []},
        None,
    ]
    read_back, _ = round_trip(warehouse, kind, rows)
    assert read_back == [
        {"m": {'a"\n': 0.5, "b": None}, "d": {"2026-01-01": {"x": 1}}, "l": [["a"], [], None]},
        {"m": {}, "d": None, "l": []},
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.string(), "a\0b", r"column 'v' has text with a NUL character"),
        (pa.list_(pa.string()), ["a\0b"], r"column 'v' has text with a NUL character"),
        (pa.struct([("x", pa.float64())]), {"x": math.nan}, r"column 'v': NaN and infinity"),
        (pa.struct([("x", pa.string())]), {"x": "a\0b"}, r"refused a row: .*column v"),
    ],
)
def test_values_without_a_counterpart_are_named(warehouse, kind, value, message):
    """What PostgreSQL cannot hold is an error that names the column, and nothing comes."""
    with pytest.raises(StageError, match=message):
        round_trip(warehouse, kind, [value])
    assert warehouse.rows("SELECT to_regclass('typed')") == [(None,)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.timestamp("ns"),
        pa.null(),
        pa.map_(pa.struct([("a", pa.int8())]), pa.int8()),
        pa.list_(pa.duration("s")),
    ],
    ids=str,
)
def test_types_without_a_counterpart_are_named(warehouse, kind):
    """A type that PostgreSQL lacks is refused before anything is staged."""
    with pytest.raises(StageError, match=r"column 'v': type .* has no counterpart"):
        planned("the sink", warehouse.publisher(), pa.schema([("v", kind)]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "id bigint, ackledger_batch bigint",
            r"column 'item' is missing: ALTER TABLE public\.orders ADD COLUMN item text",
        ),
        (
            "id integer, item text, ackledger_batch bigint",
            r"column 'id': expected bigint, found integer: "
            r"ALTER TABLE public\.orders ALTER COLUMN id TYPE bigint",
        ),
        (
            "id bigint, item text",
            r"column 'ackledger_batch' is missing: "
            r"ALTER TABLE public\.orders ADD COLUMN ackledger_batch bigint",
        ),
        (
            "id bigint, item text, ackledger_batch text",
            r"'ackledger_batch': expected bigint, found text",
        ),
        (
            "id bigint, item text, ackledger_batch bigint, must int NOT NULL",
            r"column 'must': expected in the rows.*: add it in the stage before the sink, or a"
            r" default with ALTER TABLE .* SET DEFAULT .*, or allow null with .* DROP NOT NULL",
        ),
        (
            "id bigint GENERATED ALWAYS AS IDENTITY, item text, ackledger_batch bigint",
            r"column 'id': .*GENERATED ALWAYS",
        ),
        (
            "id bigint, item bytea, ackledger_batch bigint",
            r"column 'item': expected text, found bytea",
        ),
        (
            "id bigint, item name, ackledger_batch bigint",
            r"column 'item': expected text, found name",
        ),
        (
            'id bigint, item "char", ackledger_batch bigint',
            r"column 'item': expected text, found \"char\"",
        ),
        (
            "id bigint, item point, ackledger_batch bigint",
            r"column 'item': expected text, found point",
        ),
        (
            "id bigint, item tsvector, ackledger_batch bigint",
            r"column 'item': expected text, found tsvector",
        ),
        (
            "id bigint, item tsquery, ackledger_batch bigint",
            r"column 'item': expected text, found tsquery",
        ),
        (
            "id bigint, item interval(0), ackledger_batch bigint",
            r"column 'item': expected text, found interval\(0\)",
        ),
        (
            "id bigint, item interval day, ackledger_batch bigint",
            r"column 'item': expected text, found interval day",
        ),
        (
            "id bigint, item text, ackledger_batch bigint, UNIQUE (item, id)",
            r"key \(id\): expected a unique index on just these columns, found \(id, item\): "
            r"CREATE UNIQUE INDEX ON public\.orders \(id\)",
        ),
        (
            "id bigint PRIMARY KEY DEFERRABLE, item text, ackledger_batch bigint",
            r"key \(id\): .* found none",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_statement(warehouse, columns, message):
    """Column, expected, found and the statement that fixes it; the publish refuses it as well."""
    warehouse.do(f"CREATE TABLE orders ({columns})")
    sink = warehouse.publisher("upsert")
    with pytest.raises(StageError, match=message):
        planned("the sink", sink, ORDERS)
    with pytest.raises(StageError, match=message):
        sink.publish(warehouse.deliver(11, [(1, "a")]))
    assert warehouse.rows("SELECT count(*) FROM orders") == [(0,)]


def test_a_table_with_other_types_that_hold_all_values(warehouse):
    """Wider types, domains, enums, uuid, json and defaults take what fits them; others say which
    row.
    """
    warehouse.do(
        "CREATE DOMAIN word AS varchar(5)",
        "CREATE TYPE size AS ENUM ('S', 'M')",
        "CREATE TABLE orders (n numeric(10, 0), w word, s size, u uuid, j json, k jsonb, a"
        " numeric[], d numeric(9, 3), made timestamptz NOT NULL DEFAULT now(), serial bigserial,"
        " ackledger_batch bigint)",
    )
    schema = pa.schema(
        [
            ("n", pa.int32()),
            ("w", pa.string()),
            ("s", pa.string()),
            ("u", pa.string()),
            ("j", pa.string()),
            ("k", pa.list_(pa.int8())),
            ("a", pa.list_(pa.int64())),
            ("d", pa.decimal128(8, 2)),
        ]
    )
    sink = warehouse.publisher()
    planned("the sink", sink, schema)
    uuid = "00000000-0000-0000-0000-000000000001"
    row = (1, "a", "M", uuid, '{"a": 1}', [1, None], [2, None], Decimal("1.50"))
    sink.publish(warehouse.deliver(11, [row], schema=schema))
    rows = warehouse.rows("SELECT n, w, s, u::text, j, k, a, d FROM orders")
    assert rows == [(1, "a", "M", uuid, {"a": 1}, [1, None], [2, None], Decimal("1.500"))]
    for column, value in ((1, "longer than five"), (2, "XL"), (3, "no uuid")):
        wrong = [*row[:column], value, *row[column + 1 :]]
        with pytest.raises(StageError, match="refused a row"):
            sink.publish(warehouse.deliver(12, [wrong], schema=schema))
    with pytest.raises(
        StageError, match=r"column 'd': expected numeric\(10, 2\), found numeric\(9,3\)"
    ):
        planned("the sink", sink, schema.set(7, pa.field("d", pa.decimal128(10, 2))))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_partitioned_table_is_a_table(warehouse, mode):
    """Rows find their partitions, and a later version replaces them there."""
    warehouse.do(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, ackledger_batch bigint) PARTITION"
        " BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF orders DEFAULT",
    )
    sink = warehouse.publisher(mode)
    planned("the sink", sink, ORDERS)
    sink.publish(warehouse.deliver(11, [(1, "a"), (20, "a")]))
    sink.publish(warehouse.deliver(11, [(2, "b"), (20, "b")], version=12))
    assert (warehouse.orders("low"), warehouse.orders("high")) == ([(2, "b", 11)], [(20, "b", 11)])


def test_rows_come_from_files_in_pieces(warehouse, monkeypatch):
    """A file is loaded some rows at a time, none is left out or twice, and names may have dots."""
    monkeypatch.setattr(staged, "MOST_ROWS", 100)
    schema = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    rows = pa.table({"a.b": range(1050), "a": [{"b": n} for n in range(1050)]}, schema=schema)
    pieces = []
    original = postgres.to_csv
    monkeypatch.setattr(
        postgres, "to_csv", lambda rows, *more: pieces.append(len(rows)) or original(rows, *more)
    )
    warehouse.publisher().publish(warehouse.deliver(11, rows))
    assert (sum(pieces), max(pieces)) == (1050, 100)
    entries = warehouse.rows(
        'SELECT count(DISTINCT "a.b"), count(*) FILTER (WHERE a = jsonb_build_object(\'b\', "a.b"))'
        " FROM orders"
    )
    assert entries == [(1050, 1050)]


def test_a_constraint_of_the_table_is_named(warehouse):
    """A row that a constraint refuses is the stage's matter, with the names that the server
    gives.
    """
    warehouse.do(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text NOT NULL, ackledger_batch bigint)"
    )
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(11, [(1, "a")]))
    with pytest.raises(StageError, match=r'duplicate key.*"orders_pkey"'):
        sink.publish(warehouse.deliver(12, [(1, "b")]))
    with pytest.raises(StageError, match=r'null value in column "item"'):
        sink.publish(warehouse.deliver(12, [(2, None)]))
    assert warehouse.orders() == [(1, "a", 11)]


REFUSED = {
    "check": ("id bigint CHECK (id > 0), item text", -1, 'check constraint "orders_id_check"'),
    "null": ("id bigint NOT NULL, item text", None, 'null value in column "id"'),
    "unique": ("id bigint UNIQUE, item text", 1, 'unique constraint "orders_id_key"'),
    "trigger": ("id bigint, item text", 3, "no such orders (constraint limits) (column id)"),
    "length": (
        "id bigint, item varchar(3)",
        2,
        "character varying(3) (COPY ackledger_stage, line 1, column item)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_row_is_not_published(warehouse, kind):
    """The error of a refused row has the names of constraint, column and line: its values are not
    in the error, which more people may read than the row.
    """
    columns, value, reason = REFUSED[kind]
    warehouse.do(
        f"CREATE TABLE orders ({columns}, ackledger_batch bigint)",
        "INSERT INTO orders VALUES (1, 'one', 1)",
        """ CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION
        ''no such orders'' USING DETAIL = NEW::text, CONSTRAINT = ''limits'', COLUMN = ''id'',
        ERRCODE = ''23514''; END' """,
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 3) EXECUTE FUNCTION"
        " refuse()",
    )
    with pytest.raises(StageError) as caught:
        warehouse.publisher().publish(warehouse.deliver(11, [(value, "marked")]))
    assert reason in str(caught.value)
    assert "marked" not in str(caught.value)


_DROP_ROW = (
    "CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
)


def test_a_trigger_that_drops_rows_is_found(warehouse):
    """Rows that the table does not take are not silently gone."""
    warehouse.do(
        "CREATE TABLE orders (id bigint, item text, ackledger_batch bigint)",
        _DROP_ROW,
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION"
        " drop_row()",
    )
    with pytest.raises(IntegrityError, match="took 1 of 2 rows"):
        warehouse.publisher().publish(warehouse.deliver(11, [(1, "a"), (2, "b")]))
    assert warehouse.orders() == []


@pytest.mark.parametrize("event", ["INSERT", "UPDATE"])
def test_a_trigger_that_drops_rows_of_an_upsert_is_found(warehouse, event):
    """Of a key that is new, and of one that is there."""
    sink = warehouse.publisher("upsert")
    sink.publish(warehouse.deliver(10, [(2, "old")]))
    warehouse.do(
        _DROP_ROW,
        f"CREATE TRIGGER dropping BEFORE {event} ON orders FOR EACH ROW"
        f" WHEN (NEW.id <= 2) EXECUTE FUNCTION drop_row()",
    )
    with pytest.raises(IntegrityError, match=r"took 1 of 2 rows of batch 11: a trigger or a rule"):
        sink.publish(warehouse.deliver(11, [(1 if event == "INSERT" else 2, "a"), (3, "b")]))
    assert warehouse.orders() == [(2, "old", 10)]


def test_rows_that_a_newer_batch_has_are_no_dropped_ones(warehouse):
    """An older interval that comes later counts them as taken."""
    sink = warehouse.publisher("upsert")
    sink.publish(warehouse.deliver(12, [(1, "new")], interval_start=FEBRUARY))
    sink.publish(warehouse.deliver(13, [(1, "old"), (2, "old")], original_id=11))
    assert warehouse.orders() == [(1, "new", 12), (2, "old", 13)]


def test_a_newer_row_is_kept_in_a_table_that_was_renamed(warehouse):
    """The record of a batch has the table's name of that time."""
    warehouse.publisher("upsert").publish(
        warehouse.deliver(12, [(1, "new")], interval_start=FEBRUARY)
    )
    warehouse.do("ALTER TABLE orders RENAME TO sales")
    sink = warehouse.publisher("upsert", table="sales")
    sink.publish(warehouse.deliver(13, [(1, "old")], original_id=11))
    assert warehouse.orders("sales") == [(1, "new", 12)]


_KEEPING = {
    "trigger": (
        _DROP_ROW,
        "CREATE TRIGGER keeping BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION drop_row()",
    ),
    "rule": ("CREATE RULE keeping AS ON DELETE TO orders DO INSTEAD NOTHING",),
}


@pytest.mark.parametrize("kind", _KEEPING)
@pytest.mark.parametrize("mode", ["append", "upsert", "replace_interval"])
def test_rows_to_be_replaced_do_not_stay(warehouse, mode, kind):
    """A table that keeps what is deleted would show both batches: nothing is published."""
    sink = warehouse.publisher(mode)
    sink.publish(warehouse.deliver(11, [(1, "a"), (2, "b")]))
    warehouse.do(*_KEEPING[kind])
    with pytest.raises(ConfigurationError, match=r"batches 11 .* a trigger or rule .* keeps them"):
        sink.publish(warehouse.deliver(12, [(3, "c")], replaces=(11,)))
    assert warehouse.orders() == [(1, "a", 11), (2, "b", 11)]


def test_a_trigger_that_only_looks_on_keeps_nothing(warehouse):
    """As one that notes what was deleted."""
    sink = warehouse.publisher()
    sink.publish(warehouse.deliver(11, [(1, "a")]))
    warehouse.do(
        "CREATE FUNCTION look_on() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
        "CREATE TRIGGER looking BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION look_on()",
    )
    sink.publish(warehouse.deliver(12, [(3, "c")], replaces=(11,)))
    assert warehouse.orders() == [(3, "c", 12)]


def test_row_security_may_hide_what_is_to_be_replaced(warehouse):
    """Without a policy for DELETE the rows would stay, and no error would say so."""
    warehouse.do(
        "DROP ROLE IF EXISTS loader",
        "CREATE ROLE loader LOGIN",
        "GRANT USAGE, CREATE ON SCHEMA public TO loader",
        "CREATE TABLE orders (id bigint, item text, ackledger_batch bigint)",
        "GRANT ALL ON orders TO loader",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY adding ON orders FOR INSERT WITH CHECK (true)",
        "CREATE POLICY reading ON orders FOR SELECT USING (true)",
    )
    url = sa.make_url(warehouse.url).set(username="loader")
    sink = warehouse.publisher(url=url.render_as_string(hide_password=False))
    sink.publish(warehouse.deliver(11, [(1, "a")]))
    with pytest.raises(ConfigurationError, match=r"row security may hide .* from loader"):
        sink.publish(warehouse.deliver(12, [(3, "c")], replaces=(11,)))
    assert warehouse.orders() == [(1, "a", 11)]
    warehouse.do("DROP OWNED BY loader", "DROP ROLE loader")


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_of_others_do_not_go_with_those_that_are_replaced(warehouse, mode, action):
    """A foreign key that cascades acts at once, though the same key is there again at the end."""
    sink = warehouse.publisher(mode)
    warehouse.do(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, ackledger_batch bigint)",
        f"CREATE TABLE parts (of_order bigint REFERENCES orders ON DELETE {action} DEFERRABLE)",
    )
    sink.publish(warehouse.deliver(11, [(1, "a")]))
    warehouse.do("INSERT INTO parts VALUES (1)")
    with pytest.raises(ConfigurationError, match=r"parts_of_order_fkey of parts .* NO ACTION"):
        sink.publish(warehouse.deliver(12, [(1, "b")], replaces=(11,)))
    assert warehouse.rows("SELECT of_order FROM parts") == [(1,)]
    assert warehouse.orders() == [(1, "a", 11)]


def test_staged_files_that_are_not_as_recorded(warehouse):
    """A file that is gone, has other columns, or other rows than recorded stops the publish
    whole.
    """
    sink = warehouse.publisher()
    gone = warehouse.deliver(11, [(1, "a")], [(2, "b")])
    Path(gone.files[1].path).unlink()
    other = warehouse.deliver(11, [(1, "a")], pa.table({"id": pa.array([1])}))
    less = warehouse.deliver(11, [(1, "a")])
    less = replace(less, files=tuple(replace(file, rows=2) for file in less.files))
    for delivery, message in (
        (gone, "part-1.parquet: expected .* it is gone"),
        (other, "part-1.parquet: expected columns"),
        (less, r"expected 2 rows of batch 11 in .*, found 1"),
    ):
        with pytest.raises(IntegrityError, match=message):
            sink.publish(delivery)
    assert warehouse.rows("SELECT to_regclass('orders'), to_regclass('ackledger_commit')") == [
        (None, None)
    ]


def test_targets_that_cannot_be_written(warehouse, monkeypatch):
    """What is missing is named by class of error, and no message has the password."""
    monkeypatch.setattr(driver_errors, "RETRYING", _tries(2, 0.1))
    url = sa.make_url(warehouse.url)
    warehouse.do(
        "DROP ROLE IF EXISTS limited",
        "CREATE ROLE limited LOGIN",
        "GRANT USAGE ON SCHEMA public TO limited",
    )
    away = url.set(query={"host": "/nonexistent"})
    for where, error, message in (
        (url.set(database="nowhere"), ConfigurationError, 'database "nowhere" does not exist'),
        (url.set(username="nobody"), ConfigurationError, 'role "nobody" does not exist'),
        (away, UnavailableError, "did not answer"),
        (
            url.set(username="limited"),
            ConfigurationError,
            "GRANT CREATE ON SCHEMA public TO limited",
        ),
    ):
        secret = where.set(password="sesame").render_as_string(hide_password=False)
        with pytest.raises(error, match=message) as caught:
            planned("the sink", warehouse.publisher(url=secret), ORDERS)
        assert "sesame" not in str(caught.value)
    warehouse.publisher().publish(warehouse.deliver(11, [(1, "a")]))
    limited = warehouse.publisher(url=url.set(username="limited").render_as_string(False))
    with pytest.raises(
        ConfigurationError, match=r"GRANT SELECT, INSERT.* ON public\.orders TO limited"
    ):
        planned("the sink", limited, ORDERS)
    with pytest.raises(ConfigurationError, match="permission denied"):
        limited.publish(warehouse.deliver(12, [(1, "a")]))
    with pytest.raises(ConfigurationError, match="CREATE SCHEMA elsewhere"):
        planned("the sink", warehouse.publisher(table="elsewhere.orders"), ORDERS)
    warehouse.do("CREATE VIEW seen AS SELECT * FROM orders")
    with pytest.raises(StageError, match="expected a table, found a view"):
        planned("the sink", warehouse.publisher(table="seen"), ORDERS)


def test_declarations_that_cannot_be(warehouse):
    """A sink with a wrong mode, key or url is refused when it is made; nothing connects
    then.
    """
    for url in ("no url, sesame", "sqlite:///sesame", "mysql://user:sesame@host/database"):
        with pytest.raises(ConfigurationError) as caught:
            warehouse.publisher(url=url)
        assert "sesame" not in str(caught.value)
    warehouse.publisher(url="postgresql://nobody@host.invalid/nowhere")
    for mode in ("merge", "upsert", Upsert(())):
        with pytest.raises(DeclarationError, match=r"replace_interval or Upsert\(key\), found"):
            PostgresSink(warehouse.url, "orders", mode=mode)
    for schema, message in (
        (pa.schema([("ackledger_batch", pa.int64())]), "this name is taken"),
        (pa.schema([("x" * 64, pa.int64())]), "1 to 63 bytes"),
        (pa.schema([("item", pa.string())]), "key column 'id' is missing"),
        (pa.schema([]), "expected columns, found none"),
    ):
        with pytest.raises(StageError, match=message):
            planned("the sink", warehouse.publisher("upsert"), schema)


def test_a_publish_that_hangs_does_not_hold_others_for_ever(warehouse, monkeypatch):
    """After some minutes of another's turn a publish says so, and can be called again."""
    monkeypatch.setattr(target, "TURN_SECONDS", 1)
    sink = warehouse.publisher()
    with warehouse.engine.connect() as holder, holder.begin():
        target.lock(holder, "sink shop.orders")
        with pytest.raises(NotReadyError, match=r"another publish into public\.orders has run"):
            sink.publish(warehouse.deliver(11, [(1, "a")]))
    sink.publish(warehouse.deliver(11, [(1, "a")]))
    assert warehouse.orders() == [(1, "a", 11)]
