"""The ledger behind the real PgBouncer, where it is installed: in transaction mode, over TLS."""

import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from sqlalchemy import text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.upkeep.sweeper import SweepOptions
from ledger.errors import UnavailableError
from ledger.spark.job import Job
from ledger.store import asking
from ledger.store.connection import READER, WRITER, Database
from ledger.store.upgrade import upgrade
from tests.support import bouncer as pgbouncer
from tests.support import tls
from tests.support.bouncer import bouncer
from tests.support.line import line
from tests.support.runner import Runner

# As a managed PostgreSQL has it: the administrator is no superuser.
HBA = """
hostssl all all 127.0.0.1/32 scram-sha-256
local all postgres trust
"""
SETUP = f"""
CREATE ROLE dba LOGIN CREATEROLE CREATEDB PASSWORD '{tls.PASSWORD}';
CREATE DATABASE ledger OWNER dba;
"""
LOGINS = ("dba", "airflow", "ledger_sql")


@pytest.fixture(scope="module")
def pooled():
    """A PgBouncer before a server whose ledger an administrator has made through it."""
    if pgbouncer.program() is None:
        pytest.skip(pgbouncer.MISSING)
    programs = tls.programs()
    if programs is None:
        pytest.skip("no PostgreSQL server with TLS is installed: apt-get install postgresql")
    with (
        tls.secure_server(programs, HBA, SETUP) as server,
        bouncer(server, dict.fromkeys(LOGINS, tls.PASSWORD)) as own,
    ):
        administrator = Database(own.server.verified("ledger", "dba"))
        upgrade(administrator)
        with administrator.plain.begin() as connection:
            for statement in (
                f"CREATE ROLE airflow LOGIN PASSWORD '{tls.PASSWORD}'",
                "GRANT ledger_owner, ledger_writer, ledger_reader, ledger_payload_reader"
                " TO airflow",
                f"ALTER ROLE ledger_sql PASSWORD '{tls.PASSWORD}'",
            ):
                connection.exec_driver_sql(statement)
        administrator.dispose()
        yield own


@pytest.fixture
def database(pooled):
    """The ledger as a driver has it."""
    own = Database(
        pooled.server.verified("ledger", "airflow"), pooled.server.verified("ledger", "ledger_sql")
    )
    yield own
    own.dispose()


def numbers(fixed):
    """Ten numbers, and a stage that loses 2 until it is fixed."""
    flow = Pipeline("numbers", keep="1d")
    flow.source("numbers", FileSource("in.csv", schema="n INT"), key="n")

    @flow.stage(reads="numbers")
    def sifted(frame):
        return frame if fixed else frame.where("n != 2")

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def test_a_batch_and_its_replay(database, spark, settings, sink_rows, tmp_path):
    """From the opening to the sweep that cleans up, and a question, as a login that is no
    superuser; no transaction leaves anything to the next one's session.
    """
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(10)))
    run = Runner(Job(spark, database, settings, numbers(fixed=False)))
    batch = run.open()
    run.settled(batch)
    again = Runner(Job(spark, database, settings, numbers(fixed=True)))
    replay = again.open_replay(batch.batch_id)
    again.settled(replay)
    assert sink_rows("out") == [(n,) for n in range(10)]
    swept = run.ledger.sweep(SweepOptions(vacuum_after_seconds=0))
    assert swept.errors == {}
    assert sorted(swept.dropped) == [batch.batch_id, replay.batch_id]
    rows = asking.answer(database, "SELECT status, failed FROM batch_status ORDER BY batch_id")
    assert [tuple(row.values()) for row in rows] == [("settled", 0), ("settled", 0)]
    database.check()


def test_each_transaction_has_its_own_settings(database):
    """Threads that share the few sessions of the server each have the role that they asked for, and
    its time-outs.
    """
    query = text(
        "SELECT current_user, current_setting('transaction_read_only'),"
        " current_setting('lock_timeout'), current_setting('TimeZone'), pg_backend_pid()"
    )

    def ask(number):
        name, role, read_only = (("writer", WRITER, "off"), ("reader", READER, "on"))[number % 2]
        row = database.transact(lambda c: c.execute(query).one(), engine=getattr(database, name))
        assert tuple(row)[:4] == (role, read_only, "3min", "UTC")
        return row[4]

    with ThreadPoolExecutor(8) as threads:
        sessions = set(threads.map(ask, range(80)))
    assert 1 <= len(sessions) <= 3


def test_a_pooler_that_is_killed_and_comes_back(pooled, database):
    """A transaction that meets a dead pooler waits for it; what it did is done once."""
    count = text("SELECT count(*) FROM batch")
    before = database.transact(lambda c: c.execute(count).scalar_one())
    with ThreadPoolExecutor(1) as threads:
        pooled.end(signal.SIGKILL)
        asked = threads.submit(database.transact, lambda c: c.execute(count).scalar_one())
        pooled.start()
        assert asked.result(30) == before


def test_a_line_that_is_cut(pooled):
    """While the line is cut an error says that the ledger did not answer, and nothing is changed;
    once it is mended the same object goes on.
    """
    with line(pooled.port) as wire:
        database = Database(pooled.server.through(wire.port).verified("ledger", "airflow"))
        assert database.transact(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        wire.cut()
        with pytest.raises(UnavailableError, match=r"did not answer: .*Check that the server runs"):
            database.revision()
        wire.mend()
        assert database.transact(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        assert wire.cuts > 0
        database.dispose()


def test_without_tls_nobody_gets_in(pooled):
    """The pooler takes no client without TLS, and the server behind it none either."""
    for port in (pooled.port, pooled.behind):
        with pytest.raises(psycopg2.OperationalError, match=r"SSL required|no encryption"):
            psycopg2.connect(
                host="127.0.0.1", port=port, dbname="ledger", user="airflow",
                password=tls.PASSWORD, sslmode="disable",
            )  # fmt: skip
