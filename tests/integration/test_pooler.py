"""The ledger behind a pooler that gives each transaction another session of the server."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import functions as F
from sqlalchemy import text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.upkeep.sweeper import SweepOptions
from ledger.errors import LedgerError, WaitedError
from ledger.spark.job import Job
from ledger.store import asking, connection, embedded
from ledger.store.connection import OWNER, READER, WRITER, Database
from ledger.store.upgrade import upgrade
from tests.support.pooler import pooler
from tests.support.runner import Runner


@pytest.fixture
def pooled(database):
    """A pooler before the server, with the ledger empty."""
    with pooler(database.url) as own:
        yield own


def behind(pooled, name=None):
    """The ledger, or another database, as clients of the pooler reach it."""
    url = pooled.url if name is None else pooled.url.set(database=name)
    return Database(url.render_as_string(hide_password=False))


def numbers(fixed):
    """A source of ten numbers, and a stage that loses 2 until it is fixed."""
    flow = Pipeline("numbers", max_replays=1, keep="1d")
    flow.source("numbers", FileSource("in.csv", schema="n INT"), key="n")

    @flow.stage(reads="numbers")
    def sifted(frame):
        return frame if fixed else frame.where(F.col("n") != 2)

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def test_a_batch_and_its_replay(pooled, spark, settings, sink_rows, tmp_path):
    """From its opening to the sweep that cleans up, and a question: every transaction may have
    another session."""
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(10)))
    database = behind(pooled)
    run = Runner(Job(spark, database, settings, numbers(fixed=False)))
    batch = run.open()
    run.settled(batch)
    assert sink_rows("out") == [(n,) for n in range(10) if n != 2]
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
    database.dispose()
    assert pooled.refused == []
    assert pooled.transactions > 50


def test_a_new_ledger(pooled, server_home):
    """The schema is made through it, too."""
    embedded.ensure_database(embedded.start(server_home), "behind_a_pooler")
    database = behind(pooled, "behind_a_pooler")
    upgrade(database)
    database.check()
    database.dispose()
    assert pooled.refused == []


ROLES = {"writer": WRITER, "reader": READER, "owner": OWNER}


def test_each_transaction_has_its_own_settings(pooled):
    """Whatever a session was used for before: its role, how long it waits, what it may do."""
    database = behind(pooled)
    query = text(
        "SELECT current_user, current_setting('transaction_read_only'),"
        " current_setting('lock_timeout'), current_setting('TimeZone'), pg_backend_pid()"
    )

    def ask(number):
        name = list(ROLES)[number % len(ROLES)]
        row = database.transact(lambda c: c.execute(query).one(), engine=getattr(database, name))
        read_only = "on" if name == "reader" else "off"
        assert tuple(row)[:4] == (ROLES[name], read_only, "3min", "UTC")
        return row[4]

    with ThreadPoolExecutor(4) as threads:
        sessions = set(threads.map(ask, range(60)))
    assert 1 < len(sessions) <= 3
    # The roles of a process share its connections.
    pool = database.plain.pool
    assert {database.writer.pool, database.reader.pool, database.owner.pool} == {pool}
    assert pool.size() == connection.KEPT_OPEN
    database.dispose()


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


def test_what_a_pooler_breaks_is_refused_here(pooled):
    """The test's pooler is one: a setting or a lock of a session is an error."""
    database = behind(pooled)
    for statement in (
        "SET lock_timeout = 5",
        "SELECT pg_advisory_lock(1)",
        "SELECT set_config('lock_timeout', '5', false)",
        "LISTEN somebody",
    ):
        with pytest.raises(LedgerError, match="not in a transaction"):
            database.transact(lambda c, sql=statement: c.exec_driver_sql(sql))
    assert len(pooled.refused) == 4
    database.dispose()
