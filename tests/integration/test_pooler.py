"""The ledger behind poolers that give a client a server's session for a transaction: a strict one,
which gives the next transaction another, and the real PgBouncer, where it is installed.
"""

import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from pyspark.sql import functions as F
from sqlalchemy import text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.errors import LedgerError, UnavailableError, WaitedError
from ledger.spark.job import Job
from ledger.store import asking, connection, embedded
from ledger.store.connection import OWNER, READER, WRITER, Database
from ledger.store.upgrade import upgrade
from tests.support import bouncer, tls
from tests.support.line import line
from tests.support.pooler import pooler
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


@pytest.fixture
def strict(database):
    """The strict pooler before the server, with the ledger empty."""
    with pooler(database.url) as own:
        yield own


@pytest.fixture(scope="module")
def pgbouncer():
    """A PgBouncer before a server that takes TLS alone, whose ledger an administrator has made
    through it."""
    if bouncer.program() is None:
        pytest.skip(bouncer.MISSING)
    programs = tls.programs()
    if programs is None:
        pytest.skip("no PostgreSQL server with TLS is installed: apt-get install postgresql")
    with (
        tls.secure_server(programs, HBA, SETUP) as server,
        bouncer.bouncer(server, dict.fromkeys(LOGINS, tls.PASSWORD)) as own,
    ):
        administrator = Database(own.server.verified("ledger", "dba"))
        upgrade(administrator)
        with administrator.plain.begin() as running:
            for statement in (
                f"CREATE ROLE airflow LOGIN PASSWORD '{tls.PASSWORD}'",
                "GRANT ledger_owner, ledger_writer, ledger_reader, ledger_payload_reader"
                " TO airflow",
                f"ALTER ROLE ledger_sql PASSWORD '{tls.PASSWORD}'",
            ):
                running.exec_driver_sql(statement)
        administrator.dispose()
        yield own


def behind_strict(pooled, name=None):
    """The ledger, or another database, as clients of the strict pooler reach it."""
    url = pooled.url if name is None else pooled.url.set(database=name)
    return Database(url.render_as_string(hide_password=False))


def behind_pgbouncer(pooled):
    """The ledger as a driver has it behind PgBouncer: its login is no superuser."""
    server = pooled.server
    return Database(server.verified("ledger", "airflow"), server.verified("ledger", "ledger_sql"))


@pytest.fixture(params=["strict", "pgbouncer"])
def pooled(request):
    """The ledger behind each of the poolers. The strict one has nothing to refuse."""
    before = request.getfixturevalue(request.param)
    own = {"strict": behind_strict, "pgbouncer": behind_pgbouncer}[request.param](before)
    yield own
    own.dispose()
    if request.param == "strict":
        assert before.refused == []


def numbers(fixed):
    """A source of ten numbers, and a stage that loses 2 until it is fixed."""
    flow = Pipeline("numbers", max_replays=1, keep="1d")
    flow.source("numbers", FileSource("in.csv", schema="n INT"), key="n")

    @flow.stage(reads="numbers", filters="lost")
    def sifted(frame):
        return frame if fixed else frame.where(F.col("n") != 2)

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def test_a_batch_and_its_replay(pooled, spark, settings, sink_rows, tmp_path):
    """From its opening to the sweep that cleans up, and a question: every transaction may have
    another session."""
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(10)))
    run = Runner(Job(spark, pooled, settings, numbers(fixed=False)))
    batch = run.open()
    run.settled(batch)
    assert sink_rows("out") == [(n,) for n in range(10) if n != 2]
    again = Runner(Job(spark, pooled, settings, numbers(fixed=True)))
    replay = again.open_replay(batch.batch_id)
    again.settled(replay)
    assert sink_rows("out") == [(n,) for n in range(10)]
    swept = run.ledger.sweep(vacuum_after_seconds=0)
    assert swept.errors == {}
    assert run.ledger.rows("SELECT * FROM ledger_delta") == []
    rows = asking.answer(pooled, "SELECT status, failed FROM batch_status ORDER BY batch_id")
    assert [tuple(row.values()) for row in rows] == [("settled", 0), ("settled", 0)]
    pooled.check()


ROLES = {"writer": WRITER, "reader": READER, "owner": OWNER}


def test_each_transaction_has_its_own_settings(pooled):
    """Whatever a session was used for before: its role, how long it waits, what it may do."""
    query = text(
        "SELECT current_user, current_setting('transaction_read_only'),"
        " current_setting('lock_timeout'), current_setting('TimeZone'), pg_backend_pid(),"
        " pg_sleep(0.01)"  # so that several are at it at once
    )

    def ask(number):
        name = list(ROLES)[number % len(ROLES)]
        row = pooled.transact(lambda c: c.execute(query).one(), engine=getattr(pooled, name))
        read_only = "on" if name == "reader" else "off"
        assert tuple(row)[:4] == (ROLES[name], read_only, "3min", "UTC")
        return row[4]

    with ThreadPoolExecutor(8) as threads:
        sessions = set(threads.map(ask, range(120)))
    assert 1 < len(sessions) <= 3
    # The roles of a process share its connections.
    pool = pooled.plain.pool
    assert {pooled.writer.pool, pooled.reader.pool, pooled.owner.pool} == {pool}
    assert pool.size() == connection.KEPT_OPEN


def test_a_new_ledger(strict, server_home):
    """The schema is made through it, too."""
    embedded.ensure_database(embedded.start(server_home), "behind_a_pooler")
    database = behind_strict(strict, "behind_a_pooler")
    upgrade(database)
    database.check()
    database.dispose()
    assert strict.refused == []


def test_a_process_whose_connections_are_all_in_use(database, monkeypatch):
    """Waits for one, and then says so."""
    monkeypatch.setattr(connection, "KEPT_OPEN", 1)
    monkeypatch.setattr(connection, "OPENED_MORE", 0)
    monkeypatch.setattr(connection, "TURN_SECONDS", 0.1)
    busy = Database(database.url.render_as_string(hide_password=False))
    with busy.writer.begin() as using:
        using.exec_driver_sql("SELECT 1")
        with pytest.raises(WaitedError, match="all connections that this process may have"):
            busy.transact(lambda c: c.exec_driver_sql("SELECT 1"), engine=busy.reader)
    assert busy.transact(lambda c: c.exec_driver_sql("SELECT 1").scalar_one()) == 1
    busy.dispose()


def test_what_a_pooler_breaks_is_refused_here(strict):
    """The test's pooler is one: a setting or a lock of a session is an error."""
    database = behind_strict(strict)
    for statement in (
        "SET lock_timeout = 5",
        "SELECT pg_advisory_lock(1)",
        "SELECT set_config('lock_timeout', '5', false)",
        "LISTEN somebody",
    ):
        with pytest.raises(LedgerError, match="not in a transaction"):
            database.transact(lambda c, sql=statement: c.exec_driver_sql(sql))
    assert len(strict.refused) == 4
    database.dispose()


def test_a_pooler_that_is_killed_and_comes_back(pgbouncer):
    """A transaction that meets a dead pooler waits for it; what it did is done once."""
    database = behind_pgbouncer(pgbouncer)
    count = text("SELECT count(*) FROM batch")
    before = database.transact(lambda c: c.execute(count).scalar_one())
    with ThreadPoolExecutor(1) as threads:
        pgbouncer.end(signal.SIGKILL)
        asked = threads.submit(database.transact, lambda c: c.execute(count).scalar_one())
        pgbouncer.start()
        assert asked.result(30) == before
    database.dispose()


def test_a_line_that_is_cut(pgbouncer):
    """While the line is cut an error says that the ledger did not answer, and nothing is changed;
    once it is mended the same object goes on.
    """
    with line(pgbouncer.port) as wire:
        database = Database(pgbouncer.server.through(wire.port).verified("ledger", "airflow"))
        assert database.transact(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        wire.cut()
        with pytest.raises(UnavailableError, match=r"did not answer: .*Check that the server runs"):
            database.revision()
        wire.mend()
        assert database.transact(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        assert wire.cuts > 0
        database.dispose()


def test_without_tls_no_client_gets_in(pgbouncer):
    """The pooler takes no client without TLS, and the server behind it none either."""
    for port in (pgbouncer.port, pgbouncer.behind):
        with pytest.raises(psycopg2.OperationalError, match=r"SSL required|no encryption"):
            psycopg2.connect(
                host="127.0.0.1", port=port, dbname="ledger", user="airflow",
                password=tls.PASSWORD, sslmode="disable",
            )  # fmt: skip
