"""Tables read incrementally: bounds that no row can come below, limits, slices, and every row
once.
"""

import json
import sqlite3
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text

from ledger import TableSource
from ledger.errors import DeclarationError, InputError, NotReadyError, UnavailableError
from ledger.sources.base import raised_by_task
from ledger.sources.cursor import from_text, to_text
from ledger.sources.parsing.typed import with_quotes
from ledger.sources.table import queries as source_tables
from ledger.sources.table import writers as source_writers
from ledger.sources.table.queries import reach, safe_bound, slices
from ledger.sources.table.reader import TableReader
from ledger.store import embedded

BRIEF = 0.5  # seconds to wait for a transaction that does not end


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
        return TableSource(self.url, table, cursor=cursor, schema=schema, **more)


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
        return TableSource(f"sqlite:///{path}", "orders", cursor=cursor, schema=schema, **more)

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
    """A row dated 2999, or infinity, waits; the bound is not put there."""
    shop.do(INSERT, "INSERT INTO shop.orders (at) VALUES ('2999-01-01'), ('infinity')")
    bound = safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    assert bound < now()
    assert limit_bound(shop.source("at", "at timestamp"), None, bound, None)[1] == 1


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
    with pytest.raises(InputError, match=r"2 row\(s\) have no value in the cursor 'at'"):
        safe_bound(shop.source("at", "at timestamp"), now(), BRIEF)
    source = lite(
        "CREATE TABLE orders (id int, item text)", "INSERT INTO orders VALUES (NULL, 'x')"
    )
    with pytest.raises(InputError, match=r"1 row\(s\) have no value in the cursor 'id'"):
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
    source = TableSource(url, "shop.orders", cursor="at", schema="at timestamp")
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
    assert raised.value.quotes == ("3", "1")


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
        source = TableSource(url, "shop.orders", cursor="id", schema="id bigint")
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
    assert safe_bound(TableSource(with_password("right"), **options), now()) == 1
    with pytest.raises(InputError, match="password authentication failed") as caught:
        safe_bound(TableSource(with_password("wr0ng"), **options), now())
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
        safe_bound(TableSource(url, "orders", cursor="id", schema="id int"), now())
    assert "secret" not in str(caught.value)


def test_a_missing_table_or_column_is_named(shop, lite, tmp_path):
    """The message says which, and what is there; SQLite does not make a file of a wrong path."""
    with pytest.raises(InputError, match=r"there is no table 'shop.nothing'"):
        safe_bound(shop.source(table="shop.nothing"), now())
    with pytest.raises(InputError, match="has no column 'c', it has id, item, at"):
        safe_bound(shop.source("c", "c int"), now())
    away = tmp_path / "away.db"
    with pytest.raises(InputError, match=f"there is no file {away}"):
        safe_bound(TableSource(f"sqlite:///{away}", "orders", cursor="id", schema="id int"), now())
    assert not away.exists()


def test_names_are_quoted(shop):
    """A table or column of any name is read, and never taken for SQL."""
    shop.do(
        'CREATE TABLE shop."Order; DROP" ("from ""x" bigserial, "select" text)',
        'INSERT INTO shop."Order; DROP" ("select") VALUES (\'a\')',
    )
    source = shop.source('from "x', "id int", "shop.Order; DROP")
    assert safe_bound(source, now(), BRIEF) == 1
    assert slices(source, None, 1, 2) == [(None, 1)]
    assert list(source_tables.rows(source, ["select"], None, 1)) == [[("a",)]]


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
    own = ["_ackledger_raw", "_ackledger_error", "_ackledger_quoted"]
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
    frame = with_quotes(TableReader(spark, source).rows([(None, 4), (4, 8)]))
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


def test_what_sqlite_holds_in_a_column_of_another_type(spark, lite):
    """A column of SQLite takes any value, even text that is no text."""
    source = lite(
        "CREATE TABLE orders (id integer primary key, at datetime, n int)",
        "INSERT INTO orders VALUES (1, '2026-01-31 12:00:00', 5), (2, 'noon', 5), (3, NULL,"
        " 'many')",
        "INSERT INTO orders VALUES (4, cast(x'ff' AS text), 1), (5, NULL, 1.5)",
        schema="id int, at timestamp_ntz, n int",
    )
    frame = with_quotes(TableReader(spark, source).rows([(None, 5)]))
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
        "_ackledger_quoted",
    ]
    rows = with_quotes(frame).orderBy("_ackledger_message").collect()
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
