"""What a SqlSource accepts, what it shows of itself, and how values fit declared types."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sqlalchemy import create_engine

from ledger import SqlSource
from ledger.errors import ConfigurationError, DeclarationError, IntegrityError, shown
from ledger.sources.sql.cursor import TimestampForm, from_text, to_text
from ledger.sources.sql.writers import POLL_SECONDS, RunningTransaction, outwait
from ledger.types.fitting import of_table
from ledger.types.raw_rows import from_raw, raw

URL = "postgresql+psycopg2://reader:secret@host:5433/shop?options=-csecret"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def source(**changed):
    options = {"url": URL, "table": "orders", "cursor": "id", "schema": "id bigint", **changed}
    return SqlSource(**options)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"url": " "}, "url of a SqlSource: expected an SQLAlchemy URL or env:NAME"),
        ({"url": "env:"}, "a name after env:"),
        ({"url": "host:secret"}, "the url of table 'orders' is not a URL"),
        ({"url": "postgresql://reader:secret@host:port/shop"}, "is not a URL"),
        ({"table": ""}, "table of a SqlSource"),
        ({"table": "a.b.c"}, "table 'a.b.c': expected a name or schema.table"),
        ({"table": ".orders"}, "table '.orders': expected a name or schema.table"),
        ({"cursor": ""}, "cursor of a SqlSource"),
        ({"schema": ""}, "schema of a SqlSource"),
        (
            {"schema": StructType([StructField("item", StringType())])},
            r"cursor 'id' of 'orders': expected a column of the schema \(item\)",
        ),
        ({"lag": 0}, "lag 0 of 'orders': expected more than 0"),
        ({"lag": timedelta(seconds=-1)}, "expected more than 0"),
        ({"lag": "soon"}, "duration 'soon'"),
        ({"partitions": 0}, "partitions 0 of 'orders': expected 1 or more"),
        ({"partitions": True}, "partitions True"),
    ],
)
def test_what_cannot_work_is_refused_at_declaration(changed, says):
    """An empty or impossible argument is a DeclarationError that never shows a password."""
    with pytest.raises(DeclarationError, match=says) as caught:
        source(**changed)
    assert "secret" not in str(caught.value)


def test_a_lag_is_a_duration():
    """Seconds, text and a timedelta mean the same."""
    lags = [source(lag=lag).lag_seconds for lag in (None, 600, "10m", timedelta(minutes=10))]
    assert lags == [None, 600, 600, 600]


def test_what_is_shown_has_neither_password_nor_options():
    """Neither the name for messages nor the repr gives the password away."""
    assert source().shown == "postgresql+psycopg2://reader@host:5433/shop#orders"
    assert "secret" not in repr(source())
    assert source().address.password == "secret"


def test_a_url_in_the_environment_is_resolved_when_it_is_used(monkeypatch):
    """env:NAME needs the variable only when the address is asked for."""
    declared = source(url="env:SHOP_URL", table="eu.orders")
    assert declared.shown == "env:SHOP_URL#eu.orders"
    with pytest.raises(ConfigurationError, match="SHOP_URL is not set"):
        _ = declared.address
    monkeypatch.setenv("SHOP_URL", URL)
    assert declared.address.host == "host"
    assert declared.shown == "postgresql+psycopg2://reader@host:5433/shop#eu.orders"
    assert (declared.schema_name, declared.table_name) == ("eu", "orders")
    monkeypatch.setenv("SHOP_URL", "secret")
    with pytest.raises(ConfigurationError, match="SHOP_URL is not a URL") as caught:
        _ = declared.address
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63 + 1, "int:9223372036854775809"),
        (Decimal("1.50"), "decimal:1.50"),
        (date(2026, 1, 31), "date:2026-01-31"),
        (datetime(2026, 1, 31, 1, 2, 3, 4), "datetime:2026-01-31T01:02:03.000004"),
        (NOON + timedelta(microseconds=1), "datetime:2026-01-31T12:00:00.000001+00:00"),
        ("a:b", "str:a:b"),
    ],
)
def test_cursor_values_travel_as_text(value, text):
    """Every value comes back equal and of its type, to the microsecond and the last digit."""
    assert to_text(value) == text
    assert from_text(text) == value
    assert type(from_text(text)) is type(value)
    assert str(from_text(text)) == str(value)


def test_a_time_of_another_zone_is_kept_in_utc():
    """The same instant has one text."""
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    assert to_text(east) == to_text(NOON)


@pytest.mark.parametrize("text", ["42", "int:x", "float:1.0", "decimal:x", "date:x", ""])
def test_a_text_that_is_no_cursor_value_is_refused(text):
    """What the ledger holds is never guessed at."""
    with pytest.raises(IntegrityError, match="expected one such as int:42"):
        from_text(text)


@pytest.mark.parametrize(
    ("form", "at", "before", "last"),
    [
        (
            TimestampForm("aware", timedelta(microseconds=1)),
            NOON,
            NOON - timedelta(microseconds=1),
            NOON + timedelta(days=2),
        ),
        (
            TimestampForm("naive", timedelta(seconds=1), timedelta(hours=12)),
            datetime(2026, 1, 31),
            datetime(2026, 1, 30, 23, 59, 59),
            datetime(2026, 2, 2, 12),
        ),
        (
            TimestampForm("date", timedelta(days=1), timedelta(hours=13)),
            *[date(2026, 1, 29)] * 2,
            date(2026, 2, 2),
        ),
    ],
)
def test_times_in_a_column_err_to_the_safe_side(form, at, before, last):
    """Zones, precision and dates never put a bound above what a transaction may still bring."""
    assert (form.at(NOON), form.before(NOON), form.last(NOON)) == (at, before, last)


def test_a_wait_is_for_those_of_the_beginning_and_all_prepared_ones():
    """Later transactions do not prolong it; one that was prepared may go by another name."""
    looks = iter(
        [
            [RunningTransaction("3/1", 5, NOON, None)],
            [
                RunningTransaction("-1/77", None, None, "sale"),
                RunningTransaction("3/2", 6, NOON, None),
            ],
            [RunningTransaction("3/2", 6, NOON, None)],
        ]
    )
    with create_engine("sqlite://").connect() as connection:
        waited = outwait(connection, lambda: next(looks), POLL_SECONDS / 2)
        assert [str(wait) for wait in waited] == ["prepared transaction 'sale'"]
        assert outwait(connection, lambda: next(looks), 0) != []


def fitted(kind, value, nullable=True):
    columns, errors = of_table(StructType([StructField("c", kind, nullable)])).fit([(value,)])
    return columns[0].to_pylist()[0], errors[0] and shown(errors[0])


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        (LongType(), Decimal("5"), 5),
        (DoubleType(), Decimal("1.5"), 1.5),
        (DoubleType(), Decimal("-Infinity"), float("-inf")),
        (DecimalType(10, 2), 1.5, Decimal("1.50")),
        (DecimalType(10, 2), "1.25", Decimal("1.25")),
        (StringType(), {"a": [1]}, '{"a": [1]}'),
        (BooleanType(), 1, True),
        (BinaryType(), memoryview(b"ab"), b"ab"),
        (TimestampType(), "2026-01-31 12:00:00", NOON),
        (TimestampType(), "2026-01-31 12:00:00.000000000+00", NOON),
        (TimestampType(), "2026-01-31T14:00+02:00", NOON),
        (TimestampType(), "20260131T120000Z", NOON),
        (TimestampType(), "2026-01-31", NOON - timedelta(hours=12)),
        (TimestampType(), NOON.astimezone(timezone(timedelta(hours=5))), NOON),
        (TimestampNTZType(), "2026-01-31T12:00:00.000001", datetime(2026, 1, 31, 12, 0, 0, 1)),
        (DateType(), "2026-01-31", date(2026, 1, 31)),
        (FloatType(), 0.5, 0.5),
    ],
)
def test_a_drivers_value_becomes_one_of_the_declared_type(kind, value, becomes):
    """Nothing is lost where drivers hold a value in another class."""
    assert fitted(kind, value) == (becomes, None)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (LongType(), 1.5, "c: expected bigint, found 1.5"),
        (LongType(), 2**63, "c: expected bigint, found 9223372036854775808"),
        (LongType(), True, "c: expected bigint, found True"),
        (LongType(), "5", "c: expected bigint, found 5"),
        (DoubleType(), "5", "c: expected double, found 5"),
        (FloatType(), 1e300, "c: expected float, found 1e+300"),
        (DecimalType(4, 2), Decimal("1.234"), "c: expected decimal(4,2), found 1.234"),
        (DecimalType(4, 2), Decimal("NaN"), "c: expected decimal(4,2), found NaN"),
        (DecimalType(4, 2), "1_5", "c: expected decimal(4,2), found 1_5"),
        (StringType(), 5, "c: expected string, found 5"),
        (StringType(), "a\udcff", "c: expected string, found a\\udcff"),
        (BooleanType(), 2, "c: expected boolean, found 2"),
        (DateType(), NOON, "c: expected date, found 2026-01-31 12:00:00+00:00"),
        (TimestampType(), 5, "c: expected timestamp, found 5"),
        (TimestampType(), "infinity", "c: expected timestamp, found infinity"),
        (DoubleType(), Decimal("1E+400"), "c: expected double, found 1E+400"),
        (FloatType(), Decimal("1E+400"), "c: expected float, found 1E+400"),
        (TimestampType(), "2026-01-31-05:00", "c: expected timestamp, found 2026-01-31-05:00"),
        (TimestampType(), "20260131112:00", "c: expected timestamp, found 20260131112:00"),
        (
            TimestampType(),
            "2026-01-31 12:00:00.1234567",
            "c: expected timestamp, found 2026-01-31 12:00:00.1234567",
        ),
        (
            TimestampNTZType(),
            "2026-01-31 12:00:00.123456001",
            "c: expected timestamp_ntz, found 2026-01-31 12:00:00.123456001",
        ),
        (
            TimestampNTZType(),
            "2026-01-31 12:00:00+02:00",
            "c: expected timestamp_ntz, found 2026-01-31 12:00:00+02:00",
        ),
        (TimestampNTZType(), NOON, "c: expected timestamp_ntz, found 2026-01-31 12:00:00+00:00"),
        (StringType(), timedelta(days=30), "c: expected string, found 30 days, 0:00:00"),
        (StringType(), [Decimal("1.10")], "c: expected string, found [Decimal('1.10')]"),
        (StringType(), [float("nan")], "c: expected string, found [nan]"),
        (
            DateType(),
            "2026-01-31 00:30:00+02:00",
            "c: expected date, found 2026-01-31 00:30:00+02:00",
        ),
        (DateType(), "202\u0666-01-31", "c: expected date, found 202\u0666-01-31"),
        (DecimalType(4, 2), "\u0661.5", "c: expected decimal(4,2), found \u0661.5"),
    ],
)
def test_a_value_that_does_not_fit_is_named(kind, value, says):
    """No value is cut, rounded or reinterpreted; the message says column, type and value."""
    assert fitted(kind, value) == (None, f"malformed row: {says}")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DateType(), "2026-01-31"),
        (TimestampType(), "2026-01-31 12:00:00"),
        (TimestampNTZType(), "2026-01-31 12:00:00"),
        (DecimalType(4, 2), "1.5"),
        (DoubleType(), "NaN"),
    ],
)
def test_a_line_break_is_part_of_no_value(kind, text, end):
    """A text with a line terminator at an end of it is a value of no other type."""
    assert fitted(kind, text)[1] is None
    for padded in (text + end, end + text):
        assert fitted(kind, padded)[1] is not None


def test_null_in_a_required_column_does_not_fit():
    """NOT NULL in the schema is held."""
    assert fitted(LongType(), None) == (None, None)
    assert fitted(LongType(), None, nullable=False) == (
        None,
        "malformed row: c: expected bigint NOT NULL, found NULL",
    )


def test_a_misfit_fails_its_record_alone():
    """The other rows keep their values, the failed one has none; no rows are no columns' error."""
    schema = StructType([StructField("a", LongType()), StructField("b", StringType())])
    columns, errors = of_table(schema).fit([(1, "x"), ("?", "y"), (3, 4), (5, None)])
    assert [column.to_pylist() for column in columns] == [
        [1, None, None, 5],
        ["x", None, None, None],
    ]
    assert [bool(error) for error in errors] == [False, True, True, False]
    assert [len(column) for column in of_table(schema).fit([])[0]] == [0, 0]


def test_a_raw_row_can_be_fitted_again():
    """What a failed record keeps of a row is enough for every declared type."""
    kinds = [
        LongType(),
        DecimalType(10, 2),
        TimestampType(),
        DateType(),
        BinaryType(),
        StringType(),
    ]
    row = (1, Decimal("1.25"), NOON, date(2026, 1, 31), memoryview(b"\xff"), "é")
    names = [f"c{number}" for number in range(len(kinds))]
    schema = StructType([StructField(n, k) for n, k in zip(names, kinds, strict=True)])
    columns, errors = of_table(schema).fit([from_raw(names, raw(names, row))])
    assert errors == [None]
    assert [column.to_pylist()[0] for column in columns] == [*row[:4], b"\xff", "é"]


def test_a_column_of_columns_is_refused():
    """A table has no nested types: the schema says string, a stage parses it."""
    with pytest.raises(DeclarationError, match="column 'c' is of type array<bigint>"):
        fitted(ArrayType(LongType()), [1])


@pytest.mark.parametrize("kind", [DoubleType(), LongType(), DecimalType(9, 2)])
def test_numbers_of_a_spoilt_row_fit_when_it_is_tried_again(kind):
    """A numeric value is in the kept row what it was from the database, whatever column spoilt
    it.
    """
    names = ["amount", "other"]
    row = raw(names, [Decimal("3"), "spoilt"])
    fitting = of_table(
        StructType([StructField("amount", kind), StructField("other", StringType())])
    )
    (amounts, _), errors = fitting.fit([from_raw(names, row)])
    assert errors == [None]
    assert amounts.to_pylist() == [3]


@pytest.mark.parametrize("value", [{"decimal": "abc"}, {"base64": "?"}, {}, {"a": 1, "b": 2}, [1]])
def test_json_of_a_spoilt_row_is_what_it_was(value):
    """A value that looks like the form of another kind comes back as itself."""
    assert from_raw(["data"], raw(["data"], [value])) == [value]
