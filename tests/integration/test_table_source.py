"""Tables read incrementally: bounds that no row can come below, limits, slices, and every row
once.
"""

import json
import re
import sqlite3
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text

from ledger import SqlSource
from ledger.errors import (
    MARKS,
    DeclarationError,
    InputError,
    NotReadyError,
    UnavailableError,
    redacted,
)
from ledger.sources.base import raised_by_task
from ledger.sources.sql import queries as source_tables
from ledger.sources.sql import writers as source_writers
from ledger.sources.sql.cursor import from_text, to_text
from ledger.sources.sql.kind import Table
from ledger.sources.sql.queries import reach, safe_bound, slices
from ledger.sources.sql.reader import TableReader
from ledger.store import embedded

BRIEF = 0.5  # seconds to wait for a transaction that does not end


def shown(frame):
    """The records with their reasons as they are shown."""
    error = "_ackledger_error"
    return frame.withColumn(error, F.translate(error, MARKS, ""))


def limit_bound(source, after, bound, most):
    """How far the rows reach, and how many they are."""
    reached = reach(source, after, bound, most)
    if reached is None:
        return None, 0
    return reached, sum(
        len(part) for part in source_tables.rows(source, [source.cursor], after, reached)
    )


def now():
    return datetime.now(UTC)


class Shop:
    """A schema of the test's own in the embedded PostgreSQL."""

    def __init__(self, engine):
        self.engine = engine
        self.url = engine.url.render_as_string(hide_password=False)

    def do(self, *statements):
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    @contextmanager
    def open(self, *statements):
        """A transaction that stays open for the block, with the statements run."""
        with self.engine.connect() as connection, connection.begin() as transaction:
            for statement in statements:
                connection.exec_driver_sql(statement)
            yield connection
            if transaction.is_active:
                transaction.commit()

    def source(self, cursor="id", schema="id bigint, item string", table="shop.orders", **more):
        return SqlSource(self.url, table, cursor=cursor, schema=schema, **more)


@pytest.fixture
def shop(database):
    """A table of orders with a serial and the time of each insert."""
    result = Shop(database.plain)
    result.do(
        "DROP SCHEMA IF EXISTS shop CASCADE",
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.orders (id bigserial PRIMARY KEY, item text, at timestamptz DEFAULT"
        " now())",
    )
    yield result
    result.do("DROP SCHEMA shop CASCADE")


INSERT = "INSERT INTO shop.orders (item) VALUES ('x')"


@pytest.fixture
def lite(tmp_path):
    """An SQLite file of orders, and sources on it."""
    path = tmp_path / "shop.db"

    def source(*statements, cursor="id", schema="id bigint, item string", **more):
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return SqlSource(f"sqlite:///{path}", "orders", cursor=cursor, schema=schema, **more)

    return source


def test_a_row_of_a_running_transaction_is_not_passed(shop):
    """While the transaction that drew 1 runs, the committed 2 is no safe bound; afterwards it
    is.
    """
    with shop.open(INSERT):
        shop.do(INSERT)
        with pytest.raises(NotReadyError, match=r"1 transaction\(s\) .*pid \d+ since \d{4}-"):
            safe_bound(shop.source(), now(), BRIEF)
    assert safe_bound(shop.source(), now(), BRIEF) == 2


def test_a_transaction_that_ends_meanwhile_is_waited_for(shop):
    """The bound comes as soon as the writers of the beginning have ended; later ones do not
    matter.
    """
    with shop.open(INSERT) as first:
        shop.do(INSERT)
        timer = threading.Timer(0.4, first.commit)
        timer.start()
        with shop.open() as later:
            late = threading.Timer(0.2, later.exec_driver_sql, [INSERT])
            late.start()
            assert safe_bound(shop.source(), now(), 20) == 2
            late.join()
        timer.join()


def test_a_drawn_value_counts_before_its_insert(shop):
    """A transaction that called nextval() holds the sequence, not yet the table."""
    with shop.open("SELECT nextval('shop.orders_id_seq')"):
        shop.do(INSERT)
        with pytest.raises(NotReadyError):
            safe_bound(shop.source(), now(), BRIEF)


def test_a_rolled_back_transaction_is_forgotten(shop):
    """What it drew never comes."""
    shop.do(INSERT)
    with shop.open(INSERT) as first:
        first.rollback()
        assert safe_bound(shop.source(), now(), BRIEF) == 1


def test_readers_do_not_hold_a_sequence_up(shop):
    """A transaction that only reads brings no row below what is visible."""
    shop.do(INSERT)
    with shop.open("SELECT * FROM shop.orders"):
        assert safe_bound(shop.source(), now(), BRIEF) == 1


def test_a_time_stays_below_a_long_writer(shop):
    """Its rows will have the time at which it began; what is older is safe."""
    shop.do(INSERT)
    with shop.open(INSERT):
        shop.do(INSERT)
        bound = safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
        assert limit_bound(shop.source("at", "at timestamp"), None, bound, None) == (bound, 1)
    bound = safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    assert limit_bound(shop.source("at", "at timestamp"), None, bound, None) == (bound, 3)


def test_a_time_stays_below_a_transaction_that_has_not_written_yet(shop):
    """now() is when a transaction began, even if it locks the table only after we looked."""
    with shop.open("SELECT 1") as late:
        shop.do(INSERT)
        assert safe_bound(shop.source("at", "at timestamp"), now(), BRIEF) is None
        late.exec_driver_sql(INSERT)
    assert safe_bound(shop.source("at", "at timestamp"), now(), BRIEF) is not None


@pytest.mark.parametrize("zone", ["America/New_York", "Etc/GMT+12", "Europe/Berlin"])
@pytest.mark.parametrize("lag", [None, "1s"])
def test_a_time_without_zone_may_come_from_any_zone(shop, zone, lag):
    """A row that a session west of all others commits late lies above the bound, whatever
    zone reader and server have."""
    shop.do(
        "CREATE TABLE shop.local (at timestamp DEFAULT now(), n int)",
        "SET LOCAL TimeZone = 'UTC'; INSERT INTO shop.local VALUES"
        " (now() - interval '12 hours 5 minutes', 1), (now() - interval '11 hours', 2)",
        "SET LOCAL TimeZone = 'UTC'; INSERT INTO shop.local (n) VALUES (3)",
    )
    source = shop.source("at", "at timestamp, n int", "shop.local", lag=lag)
    with shop.open(f"SET LOCAL TimeZone = '{zone}'", "INSERT INTO shop.local (n) VALUES (4)"):
        bound = safe_bound(source, now(), BRIEF)
    assert limit_bound(source, None, bound, None) == (bound, 1)
    above = "SELECT count(*) FROM shop.local WHERE at > %s"
    with shop.engine.connect() as connection:
        assert connection.exec_driver_sql(above, (bound,)).scalar_one() == 3


def test_check_says_which_rows_come_late(shop, settings):
    """A check names the delay of a cursor without time zone, and refuses a type that is none."""
    shop.do("CREATE TABLE shop.local (at timestamp, day date, id uuid)")

    def answer(cursor, table="shop.local"):
        return Table(shop.source(cursor, f"{cursor} string", table)).check(settings, "s", None)

    late = "has columns {}; its rows are read 12 hours late, because the cursor has no time zone"
    assert answer("at").endswith(late.format("at"))
    assert answer("day").endswith(late.format("day"))
    assert answer("at", "shop.orders").endswith("has columns at")
    with pytest.raises(InputError, match="is of type UUID: expected an integer"):
        answer("id")


@pytest.mark.parametrize("kind", ["timestamp(0)", "timestamptz(0)", "date"])
def test_coarse_times_wait_until_they_are_over(shop, kind):
    """A second or a day that still runs may get more rows of the same value."""
    shop.do(
        f"CREATE TABLE shop.coarse (at {kind} DEFAULT now(), n int)",
        "INSERT INTO shop.coarse (n) VALUES (1)",
        "INSERT INTO shop.coarse VALUES (now() - interval '3 days', 2)",
    )
    source = shop.source("at", "at timestamp, n int", "shop.coarse")
    with shop.open("INSERT INTO shop.coarse (n) VALUES (3)"):
        bound = safe_bound(source, now(), BRIEF)
    assert limit_bound(source, None, bound, None) == (bound, 1)


def test_a_time_in_the_future_does_not_hide_what_comes(shop):
    """A row of tomorrow waits; the bound is not put there."""
    shop.do(INSERT, "INSERT INTO shop.orders (at) VALUES (now() + interval '1 day')")
    bound = safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    assert bound < now()
    assert limit_bound(shop.source("at", "at timestamp"), None, bound, None)[1] == 1


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
@pytest.mark.parametrize("value", ["2999-01-01", "9999-12-31", "infinity", "20000-01-01"])
@pytest.mark.parametrize("lag", [None, "10m"])
def test_a_time_that_does_not_come_is_refused(shop, kind, value, lag):
    """A row that no batch would read is an error that shows its value, with a lag as without."""
    shop.do(
        f"CREATE TABLE shop.ahead (at {kind})",
        f"INSERT INTO shop.ahead VALUES ('2026-01-31'), ('{value}')",
    )
    source = shop.source("at", "at timestamp", "shop.ahead", lag=lag)
    says = rf"1 row would not be read\. The greatest value of the cursor 'at' is {value}"
    with pytest.raises(InputError, match=says) as raised:
        safe_bound(source, now(), BRIEF)
    assert "the cursor 'at' is ***: expected times" in str(redacted(raised.value))


@pytest.mark.parametrize("value", ["-infinity", "0044-03-15 BC"])
def test_a_time_before_the_year_1_is_refused(shop, value):
    """It cannot be a bound, and lies below all that was read."""
    shop.do(INSERT, f"INSERT INTO shop.orders (at) VALUES ('{value}')")
    with pytest.raises(InputError, match=rf"is {value[:10]}.* from the year 1 to"):
        safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)


def test_the_least_time_is_a_bound_in_any_zone(shop):
    """The year 1 in UTC, which .NET writes for no time, is read where the role has a zone of
    the west."""
    url = shop.engine.url.update_query_dict({"options": "-c TimeZone=America/New_York"})
    shop.do(f"INSERT INTO shop.orders (at) VALUES ('{datetime.min.isoformat()}+00')")
    source = SqlSource(
        url.render_as_string(hide_password=False), "shop.orders", cursor="at", schema="at timestamp"
    )
    least = datetime.min.replace(tzinfo=UTC)
    assert safe_bound(source, now(), BRIEF) == least
    assert limit_bound(source, None, least, None) == (least, 1)


def test_a_number_above_its_sequence_is_refused(shop):
    """A value set by hand would hide the rows whose values the sequence draws afterwards."""
    shop.do(INSERT, "INSERT INTO shop.orders (id) VALUES (9000)")
    says = r"a row has 9000 in the cursor 'id', but its sequence shop\.orders_id_seq .* come to 1:"
    with pytest.raises(InputError, match=says):
        safe_bound(shop.source(), now(), BRIEF)
    shop.do("SELECT setval('shop.orders_id_seq', 9000)")
    assert safe_bound(shop.source(), now(), BRIEF) == 9000


@pytest.mark.parametrize("identity", [True, False])
def test_a_column_that_only_writers_set_needs_no_sequence(shop, identity):
    """The statements of the message remove a sequence that no writer draws from."""
    if identity:
        shop.do(
            "CREATE TABLE shop.own (id bigint GENERATED BY DEFAULT AS IDENTITY, item text)",
        )
    else:
        shop.do("CREATE TABLE shop.own (id bigserial, item text)")
    shop.do("INSERT INTO shop.own (item) VALUES ('x')", "INSERT INTO shop.own VALUES (9000, 'y')")
    source = shop.source(table="shop.own")
    with pytest.raises(InputError, match=r"If writers always set .*\. Or choose") as caught:
        safe_bound(source, now(), BRIEF)
    first, second = re.search("(ALTER TABLE .*?), then (DROP .*?);", str(caught.value)).groups()
    shop.do(*([first.replace("DEFAULT", "IDENTITY")] if identity else [first, second]))
    assert safe_bound(source, now(), BRIEF) == 9000


def test_a_lag_keeps_the_reading_behind(shop):
    """Rows younger than the lag wait; a cursor that is no time has no lag."""
    shop.do("INSERT INTO shop.orders (at) VALUES (now()), (now() - interval '1 hour')")
    bound = safe_bound(shop.source("at", "at timestamp", lag="10m"), now(), BRIEF)
    assert timedelta(minutes=59) < now() - bound < timedelta(minutes=61)
    assert safe_bound(shop.source("at", "at timestamp", lag="2h"), now(), BRIEF) is None
    with pytest.raises(
        InputError, match="lag '10m' needs a cursor that is a timestamp, found 'id'"
    ):
        safe_bound(shop.source(lag="10m"), now(), BRIEF)


def test_an_empty_table_has_no_bound(shop):
    """No rows, no bound, no range."""
    assert safe_bound(shop.source(), now(), BRIEF) is None
    assert safe_bound(shop.source("at", "at timestamp"), now(), BRIEF) is None
    assert limit_bound(shop.source(), None, None, 5) == (None, 0)
    shop.do(INSERT)
    assert limit_bound(shop.source(), 1, 1, 5) == (None, 0)


def test_an_insert_into_a_partition_counts(shop):
    """It locks the partition alone, not the table that is read."""
    shop.do(
        "CREATE TABLE shop.parted (id bigserial, item text) PARTITION BY LIST (item)",
        "CREATE TABLE shop.parted_x PARTITION OF shop.parted FOR VALUES IN ('x')",
        "CREATE TABLE shop.parted_y PARTITION OF shop.parted DEFAULT",
        # Without a sequence only the lock of the partition shows it.
        "ALTER TABLE shop.parted ALTER id DROP DEFAULT",
        "ALTER TABLE shop.parted_x ALTER id DROP DEFAULT",
    )
    source = shop.source(table="shop.parted")
    with shop.open("INSERT INTO shop.parted_x VALUES (1, 'x')"):
        shop.do("INSERT INTO shop.parted VALUES (2, 'y')")
        with pytest.raises(NotReadyError):
            safe_bound(source, now(), BRIEF)
    assert safe_bound(source, now(), BRIEF) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("CACHE 20", "CACHE 20: each session keeps values .* CACHE 1"),
        ("CYCLE", "counts down or in a cycle"),
        ("INCREMENT -1", "counts down or in a cycle"),
    ],
)
def test_a_sequence_out_of_order_is_refused(shop, options, says):
    """Values that come later but are smaller would be lost."""
    shop.do(f"ALTER SEQUENCE shop.orders_id_seq MINVALUE -100 {options}")
    with pytest.raises(InputError, match=says):
        safe_bound(shop.source(), now(), BRIEF)


def test_two_sequences_are_refused(shop):
    """A partition that counts for itself brings values below the others'."""
    shop.do("CREATE TABLE shop.more (id bigserial, item text, at timestamptz)")
    shop.do(
        "ALTER TABLE shop.more ALTER id SET NOT NULL", "ALTER TABLE shop.more INHERIT shop.orders"
    )
    with pytest.raises(
        InputError, match=r"several sequences \(shop.more_id_seq, shop.orders_id_seq"
    ):
        safe_bound(shop.source(), now(), BRIEF)


def test_a_view_needs_a_lag(shop):
    """The locks of a view say nothing of the tables behind it."""
    shop.do(INSERT, "CREATE VIEW shop.seen AS SELECT * FROM shop.orders")
    with pytest.raises(InputError, match=r'behind a view .*lag="10m"'):
        safe_bound(shop.source(table="shop.seen"), now(), BRIEF)
    late = shop.source("at", "at timestamp", "shop.seen", lag=0.001)
    assert safe_bound(late, now() + timedelta(seconds=1), BRIEF) is not None


@pytest.mark.parametrize(
    ("blind", "says"),
    [("pg_is_in_recovery()", "a standby does not show"), ("relkind", "logical replication")],
)
def test_where_writers_are_not_seen_a_lag_is_needed(shop, monkeypatch, blind, says):
    """A standby, or a table that a subscription fills, has no complete list of writers."""
    if blind == "relkind":
        monkeypatch.setattr(source_writers, "is_subscribed", lambda *_: True)
    else:
        plain = source_writers.text
        monkeypatch.setattr(source_writers, "text", lambda sql: plain(sql.replace(blind, "true")))
    shop.do(INSERT)
    with pytest.raises(InputError, match=says):
        safe_bound(shop.source(), now(), BRIEF)
    with pytest.raises(InputError, match=says):
        safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    late = shop.source("at", "at timestamp", lag="1s")
    assert safe_bound(late, now() + timedelta(seconds=5), BRIEF) is not None


def test_rows_without_a_cursor_value_are_an_error(shop, lite):
    """They would never be read: nothing is lost silently."""
    shop.do(INSERT, "INSERT INTO shop.orders (at) VALUES (NULL), (NULL)")
    with pytest.raises(InputError, match=r"2 rows without a value in the cursor 'at'"):
        safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    source = lite(
        "CREATE TABLE orders (id int, item text)", "INSERT INTO orders VALUES (NULL, 'x')"
    )
    with pytest.raises(InputError, match=r"1 row without a value in the cursor 'id'"):
        safe_bound(source, now())


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("double precision", "1", "is of type DOUBLE PRECISION: expected an integer"),
        ("uuid", "gen_random_uuid()", "is of type UUID: expected"),
        ("numeric", "'NaN'", "has the value Decimal"),
    ],
)
def test_a_column_that_cannot_be_a_cursor_is_refused(shop, column, value, says):
    """Floats, random values and NaN have no order that grows with inserts."""
    shop.do(f"CREATE TABLE shop.odd (c {column})", f"INSERT INTO shop.odd VALUES ({value})")
    with pytest.raises(InputError, match=says):
        safe_bound(shop.source("c", "c string", "shop.odd"), now(), BRIEF)


def test_a_transaction_whose_start_is_hidden_is_not_passed(shop):
    """Without the right to see when others began, a time is safe only once they have ended."""
    shop.do(
        "DROP ROLE IF EXISTS shop_reader",
        "CREATE ROLE shop_reader LOGIN",
        "GRANT USAGE ON SCHEMA shop TO shop_reader",
        "GRANT SELECT ON shop.orders TO shop_reader",
        INSERT,
    )
    url = shop.engine.url.set(username="shop_reader").render_as_string(hide_password=False)
    source = SqlSource(url, "shop.orders", cursor="at", schema="at timestamp")
    try:
        with shop.open(INSERT):
            shop.do(INSERT)
            with pytest.raises(NotReadyError, match="Grant pg_read_all_stats"):
                safe_bound(source, now(), BRIEF)
        assert safe_bound(source, now(), BRIEF) is not None
    finally:
        shop.do("DROP OWNED BY shop_reader", "DROP ROLE shop_reader")


def test_our_own_readers_do_not_hold_a_timestamp_up(shop):
    """A long parallel read of the same database is known to bring nothing."""
    shop.do(INSERT, INSERT)
    source = shop.source("at", "at timestamp")
    with closing(source_tables.rows(shop.source(), ["id"], None, 2)) as reading:
        next(reading)
        shop.do(INSERT)
        assert limit_bound(source, None, safe_bound(source, now(), BRIEF), None)[1] == 3


def test_the_limit_never_parts_equal_values(shop):
    """As many rows as fit, whole values only; a first value that is too much is taken whole."""
    values = [1, 2, 2, 3, 3, 3]
    shop.do(
        "CREATE TABLE shop.ties (c int)", *(f"INSERT INTO shop.ties VALUES ({v})" for v in values)
    )
    source = shop.source("c", "c int", "shop.ties")
    assert limit_bound(source, None, 3, None) == (3, 6)
    assert [limit_bound(source, None, 3, most) for most in (6, 5, 3, 2, 1)] == [
        (3, 6),
        (2, 3),
        (2, 3),
        (1, 1),
        (1, 1),
    ]
    assert limit_bound(source, 1, 3, 4) == (2, 2)
    assert limit_bound(source, 1, 2, 4) == (2, 2)
    assert limit_bound(source, 2, 3, 2) == (3, 3)


def test_a_cursor_of_text_is_sorted_by_code_point(shop):
    """Claims are put in order by code point, so a collation that sorts otherwise is refused."""
    shop.do(
        'CREATE COLLATION shop.spoken FROM "C"',  # by name: what it sorts by is not looked at
        'CREATE TABLE shop.codes (plain text COLLATE "C", spoken text COLLATE shop.spoken)',
        "INSERT INTO shop.codes VALUES ('a', 'a'), ('B', 'B')",
    )
    columns = "plain string, spoken string"
    assert safe_bound(shop.source("plain", columns, "shop.codes"), now(), BRIEF) == "a"
    with pytest.raises(InputError, match='text in collation spoken, expected "C"'):
        safe_bound(shop.source("spoken", columns, "shop.codes"), now(), BRIEF)
    source = shop.source("plain", columns, "shop.codes")
    assert list(source_tables.rows(source, ["plain", "spoken"], "B", "a")) == [[("a", "a")]]


def test_text_of_sqlite_is_sorted_by_code_point(lite):
    """Rows are found by the order of the claims where the column ignores case."""
    source = lite(
        "CREATE TABLE orders (id text COLLATE NOCASE)",
        "INSERT INTO orders VALUES ('a'), ('B'), ('b'), ('C')",
        schema="id string",
    )
    assert safe_bound(source, now()) == "b"
    assert reach(source, "B", "b", 1) == "C"
    assert slices(source, None, "b", 2) == [(None, "C"), ("C", "b")]
    assert list(source_tables.rows(source, ["id"], "B", "b")) == [[("a",), ("b",), ("C",)]]
    assert read_on(lite("INSERT INTO orders VALUES ('c')", schema="id string"), "b") == "c"


def read_on(source, after):
    """How far the rows after a value reach."""
    return reach(source, after, safe_bound(source, now(), BRIEF), None)


def test_a_table_that_counts_from_the_start_again_is_refused(shop):
    """Its new rows lie below those that were read; while it is empty there is nothing to read."""
    source = shop.source()
    shop.do(*[INSERT] * 3, "TRUNCATE shop.orders RESTART IDENTITY")
    assert read_on(source, 3) is None
    shop.do(INSERT)
    with pytest.raises(InputError) as raised:
        read_on(source, 3)
    place, _, says = str(raised.value).partition(": ")
    assert place.endswith("#shop.orders")
    assert says == (
        "expected rows with 'id' above 3, up to which it was read, found none, and 1 as the"
        " greatest: the table was emptied, or restored, and counts from an earlier value again."
        " Declare the source under a new name, which reads all that is there"
    )
    masked = str(redacted(raised.value))
    assert "above ***, up to which it was read, found none, and *** as the greatest" in masked


def test_rows_may_be_deleted_at_the_end(shop):
    """A sequence that is past the position will go on there; a user who may not read the sequence
    gets an error that says so, and a time comes later whatever was deleted."""
    shop.do(*[INSERT] * 3, "DELETE FROM shop.orders WHERE id = 3")
    assert read_on(shop.source(), 3) is None
    assert read_on(shop.source("at", "at timestamp"), now()) is None
    shop.do(
        "CREATE ROLE shop_reader LOGIN",
        "GRANT USAGE ON SCHEMA shop TO shop_reader",
        "GRANT SELECT ON shop.orders TO shop_reader",
    )
    try:
        url = shop.engine.url.set(username="shop_reader").render_as_string(hide_password=False)
        source = SqlSource(url, "shop.orders", cursor="id", schema="id bigint")
        with pytest.raises(InputError, match=r"GRANT SELECT ON SEQUENCE shop\.orders_id_seq"):
            read_on(source, 3)
        assert read_on(source, 2) is None
    finally:
        shop.do("DROP OWNED BY shop_reader", "DROP ROLE shop_reader")


def test_a_number_that_sqlite_gives_again_is_refused(lite):
    """Without AUTOINCREMENT the next row has the number of one that was deleted, and was read."""
    source = lite(
        "CREATE TABLE orders (id integer primary key)", "INSERT INTO orders VALUES (1), (2)"
    )
    assert read_on(source, 2) is None
    with pytest.raises(InputError, match=r"above 2, .* and 1 as the greatest"):
        read_on(lite("DELETE FROM orders WHERE id = 2"), 2)
    assert read_on(lite("INSERT INTO orders VALUES (3)"), 2) == 3


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_slices_cover_the_range_once(shop, parts):
    """Ranges follow on one another from after to bound, even in size, no value in two."""
    shop.do(
        "CREATE TABLE shop.ties (c int)",
        "INSERT INTO shop.ties SELECT n / 3 FROM generate_series(1, 100) n",
    )
    source = shop.source("c", "c int", "shop.ties")
    cut = slices(source, 1, 30, parts)
    assert len(cut) <= parts
    assert (cut[0][0], cut[-1][1]) == (1, 30)
    assert [upto for _, upto in cut[:-1]] == [after for after, _ in cut[1:]]
    counts = [limit_bound(source, after, upto, None)[1] for after, upto in cut]
    assert sum(counts) == limit_bound(source, 1, 30, None)[1] == 87
    assert max(counts) <= 87 / parts + 3
    assert slices(source, None, 30, 2)[0][0] is None
    assert slices(source, 40, 50, 3) == [(40, 50)]
    assert slices(source, 29, 30, 3) == [(29, 30)]


def test_values_come_back_from_text_as_they_were(shop):
    """Microseconds and the digits of a numeric survive the ledger: the bound includes its own
    row.
    """
    shop.do(
        "CREATE TABLE shop.exact (n numeric(30, 10), aware timestamptz, naive timestamp)",
        "INSERT INTO shop.exact VALUES (12345678901234567890.0123456789,"
        " '2026-01-31 01:02:03.000004+05', '2026-01-31 01:02:03.000004')",
    )
    for cursor in ("n", "aware", "naive"):
        source = shop.source(cursor, "n string, aware timestamp, naive timestamp", "shop.exact")
        bound = from_text(to_text(safe_bound(source, now(), BRIEF)))
        assert limit_bound(source, None, bound, None) == (bound, 1)
        assert limit_bound(source, bound, bound, None) == (None, 0)
    assert to_text(Decimal("12345678901234567890.0123456789")).endswith(".0123456789")


@pytest.fixture
def with_password(shop, server_home):
    """The URL of a user who needs a password, of a server that otherwise trusts."""
    with shop.engine.connect() as connection:
        path = Path(connection.exec_driver_sql("SHOW hba_file").scalar_one())
    before = path.read_text()
    shop.do(
        "DROP ROLE IF EXISTS shop_guest",
        "CREATE ROLE shop_guest LOGIN PASSWORD 'right'",
        "GRANT USAGE ON SCHEMA shop TO shop_guest",
        "GRANT SELECT ON shop.orders TO shop_guest",
    )
    path.write_text(f"local all shop_guest scram-sha-256\n{before}")
    shop.do("SELECT pg_reload_conf()")
    time.sleep(0.5)
    yield lambda password: shop.engine.url.set(
        username="shop_guest", password=password
    ).render_as_string(hide_password=False)
    path.write_text(before)
    shop.do("SELECT pg_reload_conf()", "DROP OWNED BY shop_guest", "DROP ROLE shop_guest")


def test_a_wrong_password_is_not_shown(shop, with_password):
    """The error says what was refused, not what was tried, anywhere in its chain."""
    shop.do(INSERT)
    options = {"table": "shop.orders", "cursor": "id", "schema": "id bigint"}
    assert safe_bound(SqlSource(with_password("right"), **options), now()) == 1
    with pytest.raises(InputError, match="password authentication failed") as caught:
        safe_bound(SqlSource(with_password("wr0ng"), **options), now())
    error = caught.value
    while error is not None:
        assert "wr0ng" not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_database_that_is_away_is_unavailable():
    """It may be there later; the message names it, without the password."""
    url = "postgresql+psycopg2://u:secret@127.0.0.1:1/shop"
    with pytest.raises(
        UnavailableError, match=r"u@127.0.0.1:1/shop#orders did not answer"
    ) as caught:
        safe_bound(SqlSource(url, "orders", cursor="id", schema="id int"), now())
    assert "secret" not in str(caught.value)


def test_a_missing_table_or_column_is_named(shop, lite, tmp_path):
    """The message says which, and what is there; SQLite does not make a file of a wrong path."""
    with pytest.raises(InputError, match=r"there is no table 'shop.nothing'"):
        safe_bound(shop.source(table="shop.nothing"), now())
    with pytest.raises(InputError, match="has no column 'c', it has id, item, at"):
        safe_bound(shop.source("c", "c int"), now())
    away = tmp_path / "away.db"
    with pytest.raises(InputError, match=f"there is no file {away}"):
        safe_bound(SqlSource(f"sqlite:///{away}", "orders", cursor="id", schema="id int"), now())
    assert not away.exists()


def test_text_in_no_encoding_is_named(shop):
    """Bytes that the driver cannot read are an error that says how to read them."""
    address = shop.engine.url.set(database="shop_ascii")
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            "CREATE DATABASE shop_ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
        try:
            other = Shop(create_engine(address))
            other.do(
                "CREATE TABLE orders (id int, item text)",
                "INSERT INTO orders VALUES (1, E'\\xc3\\xa9')",
            )
            other.engine.dispose()
            with pytest.raises(InputError, match=r"not in ascii, .* such as client_encoding=utf8"):
                list(source_tables.rows(other.source(table="orders"), ["item"], None, 1))
            other.url += "&client_encoding=utf8"
            read = source_tables.rows(other.source(table="orders"), ["item"], None, 1)
            assert list(read) == [[("é",)]]
        finally:
            connection.exec_driver_sql("DROP DATABASE shop_ascii WITH (FORCE)")


def test_names_are_quoted(shop):
    """A table or column of any name is read, and never taken for SQL."""
    shop.do(
        'CREATE TABLE shop."Order; DROP %%" ("from ""x %%s :y" bigserial, "select" text,'
        ' "up %%(z)s" date)',
        'INSERT INTO shop."Order; DROP %%" ("select", "up %%(z)s") VALUES (\'a\', \'2026-01-31\')',
    )
    source = shop.source('from "x %s :y', "id int", "shop.Order; DROP %")
    assert safe_bound(source, now(), BRIEF) == 1
    assert slices(source, None, 1, 2) == [(None, 1)]
    names = ["select", "up %(z)s"]
    assert list(source_tables.rows(source, names, None, 1, ["select"])) == [[("a", "2026-01-31")]]


def collected(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize("where", ["postgresql", "sqlite"])
def test_a_parallel_read_returns_every_row_once(spark, shop, lite, where, monkeypatch):
    """One task a range, over several fetches, in the schema's columns and order."""
    if where == "sqlite":
        source = lite(
            "CREATE TABLE orders (id integer primary key, extra int, item text)",
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 25000) "
            "INSERT INTO orders SELECT i, 0, 'item ' || i FROM n",
            schema="item string, id bigint",
        )
    else:
        source = shop.source(schema="item string, id bigint")
        shop.do(
            "INSERT INTO shop.orders (item) SELECT 'item ' || n FROM generate_series(1, 25000) n"
        )
    bound = safe_bound(source, now(), BRIEF)
    assert bound == 25000
    reader = TableReader(spark, source)
    frame = reader.rows(slices(source, 10, bound, 3))
    own = ["_ackledger_raw", "_ackledger_error"]
    assert frame.columns == ["item", "id", *own]
    rows = frame.withColumn("task", F.spark_partition_id()).toPandas()
    assert sorted(rows["id"]) == list(range(11, 25001))
    assert set(rows["item"]) == {f"item {n}" for n in range(11, 25001)}
    assert rows["task"].nunique() == 3
    assert rows[own].isna().all(axis=None)
    assert reader.rows([]).count() == 0


def test_a_value_that_does_not_fit_fails_its_row_alone(spark, shop):
    """Too large, out of Python's range, or missing: the row keeps all its values and a reason."""
    shop.do(
        "CREATE TABLE shop.odd (id int, n numeric, at timestamptz, data jsonb, need text)",
        """INSERT INTO shop.odd VALUES
           (1, 1.25, '2026-01-31 01:02:03.000004+00', '{"a":  1}', 'x'),
           (2, 1e30, '2026-01-31', NULL, 'x'), (3, 'NaN', '2026-01-31', NULL, 'x'),
           (4, 1, 'infinity', NULL, 'x'), (5, 1, '0044-03-15 BC', NULL, 'x'),
           (6, 1, '20000-01-01', NULL, 'x'), (7, 1, NULL, NULL, NULL),
           (8, NULL, NULL, NULL, 'x')""",
    )
    schema = "id int, n decimal(10,2), at timestamp, data string, need string NOT NULL"
    source = shop.source("id", schema, "shop.odd")
    frame = shown(TableReader(spark, source).rows([(None, 4), (4, 8)]))
    rows = {row["_ackledger_error"] or row["id"]: row for row in frame.collect()}
    assert sorted(map(str, rows)) == [
        "1",
        "8",
        "malformed row: at: expected timestamp, found 0044-03-15 00:00:00+00 BC",
        "malformed row: at: expected timestamp, found 20000-01-01 00:00:00+00",
        "malformed row: at: expected timestamp, found infinity",
        "malformed row: n: expected decimal(10,2), found 1000000000000000000000000000000",
        "malformed row: n: expected decimal(10,2), found NaN",
        "malformed row: need: expected string NOT NULL, found NULL",
    ]
    assert (rows[1]["n"], rows[1]["data"]) == (Decimal("1.25"), '{"a": 1}')
    text_of = frame.where("id = 1").select(F.col("at").cast("string")).first()[0]
    assert text_of == "2026-01-31 01:02:03.000004"
    spoilt = rows["malformed row: need: expected string NOT NULL, found NULL"]
    assert spoilt["id"] is None
    assert json.loads(bytes(spoilt["_ackledger_raw"])) == {
        "id": 7,
        "n": {"decimal": "1"},
        "at": None,
        "data": None,
        "need": None,
    }


# Columns declared STRING: the type, a value, and the text that PostgreSQL writes of it.
TEXTS = [
    ("interval", "'1 mon'", "1 mon"),
    ("interval", "'1 day 26 hours'", "1 day 26:00:00"),
    ("interval", "'170000000 years'", "170000000 years"),
    ("shop.span", "'-1 mon'", "-1 mons"),
    ("time", "'24:00:00'", "24:00:00"),
    ("timetz", "'12:00:00.5+05:30'", "12:00:00.5+05:30"),
    ("date", "'infinity'", "infinity"),
    ("timestamptz", "'20000-01-01 00:00+00'", "20000-01-01 00:00:00+00"),
    ("timestamp", "'0044-03-15 BC'", "0044-03-15 00:00:00 BC"),
    ("interval[]", "'{1 mon,24:00}'", '["1 mon","24:00:00"]'),
    ("time[]", "'{24:00}'", '["24:00:00"]'),
    ("timetz[]", "'{12:00:00.5+05:30}'", '["12:00:00.5+05:30"]'),
    ("date[]", "'{10000-01-05,infinity,0044-03-15 BC}'",
     '["10000-01-05","infinity","0044-03-15 BC"]'),
    ("shop.days", "'{-infinity}'", '["-infinity"]'),
    ("timestamptz[]", "'{20000-01-01 00:00+00,NULL}'", '["20000-01-01T00:00:00+00:00",null]'),
    ("json[]", """ARRAY['{"a":  1.10000000000000000000001, "a": 2}'::json]""",
     '[{"a":  1.10000000000000000000001, "a": 2}]'),
    ("jsonb[]", """ARRAY['{"a": 12345678901234567890.10}'::jsonb]""",
     '[{"a": 12345678901234567890.10}]'),
    ("numeric[]", "'{1.10,12345678901234567890.123456789012345678900,NaN}'",
     '[1.10,12345678901234567890.123456789012345678900,"NaN"]'),
    ("bytea[]", "ARRAY['\\xff01'::bytea]", '["\\\\xff01"]'),
    ("text[]", """ARRAY['a"b', 'é']""", '["a\\"b","é"]'),
    ("int[]", "'{{1,2},{3,4}}'", "[[1,2],[3,4]]"),
    ("json", """'{"a":  1.10}'""", '{"a":  1.10}'),
    ("numeric", "12345678901234567890.123456789012345678900",
     "12345678901234567890.123456789012345678900"),
    ("double precision", "1.0 / 3", "0.3333333333333333"),
    ("bytea", "'\\xff'", "\\xff"),
    ("bigint", "7", "7"),
    ("char(3)", "'a'", "a  "),
    ("inet", "'10.0.0.1'", "10.0.0.1"),
    ("int4range", "'[1,5)'", "[1,5)"),
    ("daterange", "'[10000-01-05,infinity)'", "[10000-01-05,infinity)"),
    ("point", "'(1.5,2)'", "(1.5,2)"),
    ("shop.pair", "ROW(NULL, NULL)", "(,)"),
]  # fmt: skip
# What a role, a database or an address may set.
FORMS = {
    "TimeZone": "America/New_York",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
}


@pytest.fixture
def odd_forms(shop):
    """A source of the shop whose sessions begin with other forms of values than the usual ones."""
    options = " ".join(f"-c {name}={value}" for name, value in FORMS.items())
    url = shop.engine.url.update_query_dict({"options": options})

    def source(schema, table):
        address = url.render_as_string(hide_password=False)
        return SqlSource(address, table, cursor="id", schema=schema)

    return source


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_a_column_of_text_has_what_postgresql_writes(spark, shop, odd_forms):
    """No value declared STRING goes through a class of the driver, alone or in a list, and NULL
    stays NULL, whatever forms the role or the database has set."""
    names = [f"c{number}" for number in range(len(TEXTS))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, TEXTS, strict=True))
    shop.do(
        "CREATE DOMAIN shop.span AS interval",
        "CREATE DOMAIN shop.days AS date[]",
        "CREATE TYPE shop.pair AS (a int, b int)",
        f"CREATE TABLE shop.odd (id int, {columns})",
        f"INSERT INTO shop.odd VALUES (1, {', '.join(value for _, value, _ in TEXTS)})",
        "INSERT INTO shop.odd (id) VALUES (2)",
    )
    schema = ", ".join(["id int", *(f"{name} string" for name in names)])
    frame = shown(TableReader(spark, odd_forms(schema, "shop.odd")).rows([(None, 2)]))
    first, second = (row.asDict() for row in frame.orderBy("id").collect())
    assert first["_ackledger_error"] is second["_ackledger_error"] is None
    assert [first[name] for name in names] == [text for _, _, text in TEXTS]
    assert {second[name] for name in names} == {None}


def test_times_are_read_in_any_form(spark, shop, odd_forms):
    """Dates and instants are the same whatever zone and forms the session begins with; a list or
    an interval in a column declared as something else fails its record alone."""
    shop.do(
        "CREATE TABLE shop.odd (id int, d date, at timestamptz, n timestamp, i interval, l date[])",
        "INSERT INTO shop.odd VALUES (1, '2026-01-31', '2026-01-31 01:02:03.000004+05',"
        " '2026-07-31 01:02:03', NULL, NULL), (2, NULL, NULL, NULL, '170000000 years', NULL),"
        " (3, NULL, NULL, NULL, NULL, '{10000-01-05}')",
    )
    schema = "id int, d date, at timestamp, n timestamp_ntz, i int, l date"
    frame = shown(TableReader(spark, odd_forms(schema, "shop.odd")).rows([(None, 3)]))
    rows = frame.withColumn("at", F.col("at").cast("string")).collect()
    (good,) = [row for row in rows if row["_ackledger_error"] is None]
    assert (good["d"], good["at"]) == (date(2026, 1, 31), "2026-01-30 20:02:03.000004")
    assert good["n"] == datetime(2026, 7, 31, 1, 2, 3)
    assert sorted(row["_ackledger_error"] for row in rows if row is not good) == [
        "malformed row: i: expected int, found 170000000 years",
        'malformed row: l: expected date, found ["10000-01-05"]',
    ]


def test_an_instant_is_no_local_time(spark, shop):
    """A timestamptz, whose local time depends on a zone, fails in a column without time zone."""
    shop.do("INSERT INTO shop.orders (at) VALUES ('2026-01-31 01:02:03+05')")
    source = shop.source(schema="id int, at timestamp_ntz")
    (row,) = shown(TableReader(spark, source).rows([(None, 1)])).collect()
    assert row["_ackledger_error"] == (
        "malformed row: at: expected timestamp_ntz, found 2026-01-30 20:02:03+00"
    )


def test_what_sqlite_holds_in_a_column_of_another_type(spark, lite):
    """A column of SQLite takes any value, even text that is no text."""
    source = lite(
        "CREATE TABLE orders (id integer primary key, at datetime, n int)",
        "INSERT INTO orders VALUES (1, '2026-01-31 12:00:00', 5), (2, 'noon', 5), (3, NULL,"
        " 'many')",
        "INSERT INTO orders VALUES (4, cast(x'ff' AS text), 1), (5, NULL, 1.5)",
        schema="id int, at timestamp_ntz, n int",
    )
    frame = shown(TableReader(spark, source).rows([(None, 5)]))
    rows = frame.orderBy("id", "_ackledger_error").collect()
    assert [row["_ackledger_error"] for row in rows] == [
        "malformed row: at: expected timestamp_ntz, found \\udcff",
        "malformed row: at: expected timestamp_ntz, found noon",
        "malformed row: n: expected int, found 1.5",
        "malformed row: n: expected int, found many",
        None,
    ]
    assert rows[-1]["at"] == datetime(2026, 1, 31, 12)


def test_times_of_sqlite_need_a_lag(lite):
    """A second may get more rows, and no writer is seen; the text's own form is compared."""
    create = "CREATE TABLE orders (at datetime)"
    with pytest.raises(InputError, match="running transactions of sqlite are not seen"):
        safe_bound(lite(create, cursor="at", schema="at timestamp"), now())
    ahead = "INSERT INTO orders VALUES ('2999-01-01 00:00:00'), ('infinity')"
    with pytest.raises(InputError, match=r"2 rows .* is infinity"):
        safe_bound(lite(ahead, cursor="at", schema="at timestamp", lag="5m"), now())
    lite("DELETE FROM orders")
    insert = "INSERT INTO orders VALUES ('2026-01-31{0}12:00:00'), ('2026-01-31{0}12:59:00')"
    instant = datetime(2026, 1, 31, 13, tzinfo=UTC)
    for between in "T ":
        source = lite(
            "DELETE FROM orders",
            insert.format(between),
            cursor="at",
            schema="at timestamp",
            lag="5m",
        )
        assert safe_bound(source, instant) == f"2026-01-31{between}12:00:00"


def test_a_reader_asks_for_what_is_declared(spark, shop):
    """A cursor outside a DDL schema, a name of the ledger and a missing column are said before
    reading.
    """
    with pytest.raises(DeclarationError, match=r"cursor 'id' of 'shop.orders'"):
        TableReader(spark, shop.source(schema="item string"))
    with pytest.raises(DeclarationError, match="'_ackledger_raw', a name of the ledger"):
        TableReader(spark, shop.source(schema="id int, _ackledger_raw string"))
    with pytest.raises(InputError, match="has no column 'price', it has id, item, at"):
        TableReader(spark, shop.source(schema="id int, price int")).rows([(None, 1)])


def test_a_source_that_goes_away_while_it_is_read_is_reported(spark, shop):
    """The failure of a task is found again as the ledger's own error."""
    shop.do(INSERT)
    frame = TableReader(spark, shop.source()).rows([(None, 1)])
    shop.do("ALTER TABLE shop.orders RENAME TO gone")
    with pytest.raises(Exception, match="there is no table") as caught:
        frame.collect()
    failure = raised_by_task(caught.value)
    assert isinstance(failure, InputError)
    assert "there is no table 'shop.orders'" in str(failure)
    assert raised_by_task(ValueError("else")) is None


def test_stored_records_are_fitted_to_todays_schema(spark, shop):
    """A replay gives good records in the new schema, and tries again those that did not fit."""
    shop.do(
        "CREATE TABLE shop.odd (id int, n numeric, note text)",
        "INSERT INTO shop.odd VALUES (1, 1, 'a'), (2, 12345, 'b'), (3, 1e30, 'c')",
    )
    source = shop.source("id", "id int, n decimal(4,2), note string", "shop.odd")
    stored = TableReader(spark, source).rows([(None, 3)])
    stored = stored.withColumn("_ackledger_message", F.monotonically_increasing_id() + 1)
    today = TableReader(
        spark, shop.source("id", "id bigint, n decimal(12,2), new string", "shop.odd")
    )
    frame = today.parse_again(stored)
    assert frame.columns == [
        "_ackledger_message",
        "id",
        "n",
        "new",
        "_ackledger_raw",
        "_ackledger_error",
    ]
    rows = shown(frame).orderBy("_ackledger_message").collect()
    assert [row["_ackledger_message"] for row in rows] == [1, 2, 3]
    assert [row["id"] for row in rows] == [1, 2, None]
    assert [row["n"] for row in rows] == [Decimal("1.00"), Decimal("12345.00"), None]
    assert rows[2]["_ackledger_error"].startswith(
        "malformed row: n: expected decimal(12,2), found 1"
    )
    assert b'"note": "c"' in bytes(rows[2]["_ackledger_raw"])
    assert rows[0]["_ackledger_raw"] is rows[1]["_ackledger_raw"] is None


@pytest.fixture
def preparing():
    """A server that takes prepared transactions, which the embedded one does not by default."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        engine = create_engine(embedded.start(home), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("ALTER SYSTEM SET max_prepared_transactions = 5"))
        engine.dispose()
        embedded.stop(home)
        engine = create_engine(embedded.start(home))
        yield engine
        engine.dispose()
        embedded.stop(home)


def test_a_transaction_prepared_meanwhile_is_not_passed(preparing):
    """It has no session any more, and may still bring its rows."""
    pipeline = Shop(preparing)
    pipeline.do("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id bigserial, item text)")
    raw = preparing.raw_connection()
    raw.cursor().execute(INSERT)
    pipeline.do(INSERT)
    timer = threading.Timer(0.3, raw.cursor().execute, ["PREPARE TRANSACTION 'sale'"])
    timer.start()
    with pytest.raises(NotReadyError, match="prepared transaction 'sale'"):
        safe_bound(pipeline.source(), now(), 1)
    timer.join()
    raw.close()
    with preparing.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("COMMIT PREPARED 'sale'")
    assert safe_bound(pipeline.source(), now(), BRIEF) == 2
