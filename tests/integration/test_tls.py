"""Connections over TLS: the ledger's, a table's and a sink's."""

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from ledger import Pipeline, PostgresSink, SqlSource
from ledger.databases import addresses
from ledger.errors import ConfigurationError, InputError
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.store import asking
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.support import tls
from tests.support.runner import Runner

HINT = "Check sslmode, sslrootcert, sslcert and sslkey of the address"


@pytest.fixture(scope="module")
def server():
    """A server that takes connections over TLS alone."""
    programs = tls.programs()
    if programs is None:
        pytest.skip("no PostgreSQL server with TLS is installed: the embedded one has none")
    with tls.secure_server(programs) as running:
        yield running


@pytest.fixture(scope="module")
def secure(server):
    """Its ledger, migrated, at an address that verifies the server."""
    database = Database(server.verified("ledger"))
    upgrade(database)
    yield database
    database.dispose()


def pipeline(name, address):
    """Numbers of a table into another one; an odd one fails."""
    flow = Pipeline(name)
    options = {"schema": "n BIGINT", "cursor": "n"}
    flow.source("numbers", SqlSource(address, "numbers", partitions=2, **options))

    @flow.record_stage(reads="numbers", schema="n BIGINT")
    def even(row):
        if row["n"] % 2:
            raise ValueError("odd")
        yield row

    flow.sink("evens", PostgresSink(address, "evens"), reads="even")
    return flow


def test_a_batch_over_verified_tls(spark, server, secure, tmp_path, folded_by):
    """Where a server takes nothing but TLS, a whole batch works with verify-full: its ledger, the
    driver or the executors that fold, its source and its sink; so does the login of queries."""
    address = server.verified("warehouse")
    engine = sa.create_engine(addresses.parsed(address, "the warehouse"), poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS numbers, evens, ackledger_commit")
        connection.exec_driver_sql(
            "CREATE TABLE numbers AS SELECT generate_series(1, 10)::bigint AS n"
        )
    settings = Settings(storage=str(tmp_path / "storage"), data=str(tmp_path))
    name = f"numbers_{len(folded_by)}"  # each claims what the other has claimed
    run = Runner(Job(spark, secure, settings, pipeline(name, address), **folded_by))
    batch = run.open()
    run.settled(batch)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT n FROM evens ORDER BY n").scalars().all()
    assert rows == [2, 4, 6, 8, 10]
    counts = run.ledger.row(
        "SELECT acked, failed FROM batch_status WHERE batch_id = :id", id=batch.batch_id
    )
    assert tuple(counts) == (5, 5)
    (row,) = asking.answer(secure, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert row["ssl"] is True


def test_a_client_certificate(server):
    """A login by certificate needs both files; without them the error says which options."""
    files = {name: str(server.folder / f"client.{kind}") for name, kind in
             (("sslcert", "pem"), ("sslkey", "key"))}  # fmt: skip
    root = {"sslmode": "verify-full", "sslrootcert": str(server.folder / "ca.pem")}
    assert Database(server.url("ledger", "certified", **root, **files)).revision is not None
    Database(server.url("ledger", "certified", **root, **files)).revision()
    with pytest.raises(ConfigurationError, match=HINT):
        Database(server.url("ledger", "certified", **root)).revision()
    lost = {**files, "sslkey": str(server.folder / "no.key")}
    with pytest.raises(ConfigurationError, match=HINT):
        Database(server.url("ledger", "certified", **root, **lost)).revision()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sslmode": "verify-full", "sslrootcert": "other.pem"}, "certificate verify failed"),
        ({"sslmode": "verify-full", "sslrootcert": "none.pem"}, "root certificate file"),
        ({"sslmode": "disable"}, "no encryption"),
        ({"sslmode": "sometimes"}, "invalid sslmode value"),
    ],
)
def test_what_is_wrong_with_tls_is_said_at_once(server, options, message):
    """A wrong authority, a missing file, no TLS or an unknown mode is a permanent error with the
    options to look at: of the ledger, of a source and of a sink; no password is in it."""
    parameters = {
        name: str(server.folder / value) if name == "sslrootcert" else value
        for name, value in options.items()
    }
    address = server.url("warehouse", **parameters)
    source = SqlSource(address, "numbers", schema="n BIGINT", cursor="n")
    sink = PostgresSink(address, "evens")
    publisher = sink.publisher(Settings(), "numbers", "evens")
    import pyarrow as pa

    from ledger.sources.sql.queries import require_columns

    for kind, work in (
        (ConfigurationError, Database(server.url("ledger", **parameters)).revision),
        (InputError, lambda: require_columns(source, ["n"])),
        (ConfigurationError, lambda: publisher.plan(pa.schema([("n", pa.int64())]), None)),
    ):
        with pytest.raises(kind, match=message) as caught:
            work()
        assert HINT in str(caught.value)
        assert tls.PASSWORD not in str(caught.value)
        assert caught.value.permanent


def test_an_address_is_not_shown_with_its_password():
    """The representation of a sink, a source or the settings, which messages and debuggers show,
    has no password."""
    address = f"postgresql://app:{tls.PASSWORD}@127.0.0.1/shop"
    for end in (
        PostgresSink(address, "evens"),
        SqlSource(address, "numbers", schema="n BIGINT", cursor="n"),
        Settings(database_url=address, reader_url=address),
    ):
        assert tls.PASSWORD not in repr(end)
