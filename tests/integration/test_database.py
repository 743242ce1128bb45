"""Migrations, roles, documentation in the schema, and what users see when the database is not
right.
"""

import os
import signal
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from jobs.trades import pipeline as trades
from ledger.cli import app
from ledger.core import states
from ledger.errors import ConfigurationError, LedgerError, UnavailableError
from ledger.settings import Settings
from ledger.storage.manifest import DataFile
from ledger.store import asking, embedded
from ledger.store import connection as connections
from ledger.store.connection import Database
from ledger.store.queries import batches, runs, settlement
from ledger.store.revisions import head
from ledger.store.upgrade import downgrade, upgrade
from scripts import databases
from tests.support.ledgers import Ledger, pipeline
from tests.support.schema import TABLES, schema


@pytest.fixture
def scratch(server_home):
    """An empty database in the server of the tests."""
    postgres = embedded.ensure_database(embedded.start(server_home), "postgres")
    database = Database(embedded.ensure_database(postgres, "scratch"))
    yield database
    database.dispose()
    admin = Database(postgres)
    with admin.plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("DROP DATABASE scratch WITH (FORCE)")
    admin.dispose()


def test_the_schema_goes_up_and_down(scratch):
    """A downgrade leaves nothing of the schema, an upgrade makes the same again, and a second
    one changes nothing.
    """
    upgrade(scratch)
    full = schema(scratch)
    assert {f"r {name}" for name in TABLES} <= set(full)
    downgrade(scratch, "base")
    assert {name for name in schema(scratch) if "alembic_version" not in name} == set()
    for _ in range(2):
        upgrade(scratch)
        assert schema(scratch) == full
    scratch.check()


def test_an_administrator_makes_the_schema(scratch):
    """By a script that is printed, where the ledger's own user may create no roles."""
    upgrade(scratch)
    full = schema(scratch)
    downgrade(scratch, "base")
    printed = CliRunner().invoke(app, ["db", "upgrade", "--print-sql"])
    assert printed.exit_code == 0, printed.output
    with scratch.plain.begin() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
    address = scratch.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(printed.stdout)
    assert schema(scratch) == full
    scratch.check()


def test_the_owner_owns_the_schema(ledger):
    """All that a migration makes belongs to one role, whichever user migrates."""
    others = ledger.rows(
        """
        SELECT relname, relowner::regrole FROM pg_class
        WHERE relnamespace = 'ackledger'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
          AND relowner <> 'ledger_owner'::regrole
        UNION ALL
        SELECT typname, typowner::regrole FROM pg_type
        WHERE typnamespace = 'ackledger'::regnamespace AND typtype = 'e'
          AND typowner <> 'ledger_owner'::regrole
        UNION ALL
        SELECT proname, proowner::regrole FROM pg_proc
        WHERE pronamespace = 'ackledger'::regnamespace AND proowner <> 'ledger_owner'::regrole
        """,
    )
    assert [row.relname for row in others] == ["alembic_version"]


def test_a_replay_is_of_its_originals_family(ledger):
    """An original and its replays have one ``family_id``: the original's number."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, lose_sink=[0])
    ledger.settle(batch.batch_id)
    ledger.replay(flow, batch.batch_id)
    families = ledger.rows("SELECT kind, family_id FROM batch ORDER BY batch_id")
    assert families == [("original", batch.batch_id), ("replay", batch.batch_id)]


ENGINES = ("plain", "owner", "writer", "reader", "payload_reader", "guest")


def test_each_statement_sees_what_was_committed_before_it(scratch):
    """Whatever the isolation is that a database gives by default."""
    upgrade(scratch)
    with scratch.plain.begin() as connection:
        connection.exec_driver_sql(
            "ALTER DATABASE scratch SET default_transaction_isolation = 'repeatable read'"
        )
    scratch.dispose()
    for name in ENGINES:
        with getattr(scratch, name).begin() as connection:
            isolation = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            assert (name, isolation) == (name, "read committed")


def test_a_settlement_gives_the_servers_plans_back(scratch):
    """After what it joins as large sets, nested loops are allowed or not as before."""
    with scratch.plain.begin() as connection:
        connection.exec_driver_sql("ALTER DATABASE scratch SET enable_nestloop = off")
    scratch.dispose()
    with scratch.plain.begin() as connection:
        settlement.tune(connection)
        settlement.plan_as_usual(connection)
        assert connection.exec_driver_sql("SHOW enable_nestloop").scalar_one() == "off"


FLAGS = ("after", "stateful", "partial", "merges", "notice", "incremental", "rereads")


def test_a_batch_keeps_its_steps(ledger):
    """The steps of a batch are those of its pipeline when it was opened, in order, with what
    applies of each.
    """
    batch = ledger.open(trades)
    declared = trades.topology()
    assert batch.topology == declared
    steps = ledger.rows("SELECT * FROM batch_step ORDER BY number")
    assert [(step.number, step.name, step.kind) for step in steps] == [
        (number, each.name, each.kind) for number, each in enumerate(declared, 1)
    ]
    flags = [{flag for flag in FLAGS if getattr(step, flag)} for step in steps]
    assert flags == [{flag for flag in FLAGS if getattr(each, flag)} for each in declared]
    assert {"after", "stateful"} <= set().union(*flags)


def test_steps_are_kept_once_for_all_batches_that_have_them(ledger):
    """A batch whose pipeline is declared as for one before it, be it the last or not, has the rows
    of that one; those of another declaration leave it with its own."""
    one_sink, two_sinks = pipeline(), pipeline(fan_out=True)
    flows = [one_sink, one_sink, two_sinks, one_sink]
    opened = [ledger.open(flow, f"run{n}", day=n) for n, flow in enumerate(flows)]
    versions = ledger.rows("SELECT steps_version FROM batch ORDER BY batch_id")
    assert [row.steps_version for row in versions] == [1, 1, 2, 1]
    for batch, flow in zip(opened, flows, strict=True):
        assert ledger.transact(batches.get_batch, batch.batch_id).topology == flow.topology()
    rows = len(one_sink.topology()) + len(two_sinks.topology())
    assert ledger.row("SELECT count(*) AS n FROM declared_step").n == rows


def test_a_manifest_names_files_below_the_folder_of_their_run(ledger):
    """Each file at its position, in their order; one that lies elsewhere by its whole path."""
    run = ledger.start(ledger.open(pipeline()).batch_id, "source")
    ledger.transact(runs.set_folder, run.run_id, "/s/run=1")
    files = [
        DataFile("/s/run=1/p=a b/part-0.parquet", 10, 4, 0),
        DataFile("/s/run=1/part-1.parquet", 20, 1, 4),
        DataFile("/s/run=10/part-2.parquet", 30, 2, 5),
        DataFile("s3a://b/part-3.parquet", 40, 1, 7),
    ]
    ledger.commit(run, [], files=files[::-1])
    assert ledger.transact(runs.files, run.run_id) == tuple(files)
    (names,) = ledger.row(
        "SELECT jsonb_path_query_array(files, '$[*].name') FROM step_run WHERE step_run_id = :r",
        r=run.run_id,
    )
    assert names == ["p=a b/part-0.parquet", "part-1.parquet"]


def test_enums_are_those_of_the_code(ledger):
    """PostgreSQL's enums have the members that the code's have, in order."""
    expected = {
        "batch_state": states.BatchStatus,
        "batch_kind": states.BatchKind,
        "run_state": states.RunState,
        "guarantee": states.Guarantee,
        "publish_policy": states.PublishPolicy,
    }
    for name, members in expected.items():
        labels = ledger.row(f"SELECT enum_range(NULL::{name})::text[] AS members").members
        assert labels == [member.value for member in members]


def test_everything_is_commented(ledger):
    """Every table, view, function and column says what it is."""
    undocumented = ledger.rows(
        """
        SELECT c.relname, a.attname FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'ackledger'
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relkind IN ('r', 'p', 'v') AND c.relname <> 'alembic_version'
          AND NOT c.relispartition
          AND (obj_description(c.oid) IS NULL OR col_description(c.oid, a.attnum) IS NULL)
        UNION ALL
        SELECT p.proname, NULL FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'ackledger'
        WHERE obj_description(p.oid, 'pg_proc') IS NULL
        """,
    )
    assert undocumented == []


VIEWS = (
    "root_status",
    "batch_status",
    "step_progress",
    "pending_root",
    "failed_root_detail",
    "quarantine",
    "replay_history",
)


def test_nothing_else_is_made(scratch):
    """All is in a schema of its own, beside whatever else the database holds."""
    with scratch.plain.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE public.batch (mine int)")
    upgrade(scratch)
    with scratch.plain.connect() as connection:
        others = connection.exec_driver_sql(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        )
        assert others.scalars().all() == ["batch"]
        assert connection.exec_driver_sql("SELECT count(*) FROM batch").scalar_one() == 0
        paths = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
            " WHERE datname = 'scratch' AND 'search_path=ackledger, public' = ANY (setconfig)"
        )
        assert paths.scalar_one() == 5


def test_a_session_need_not_set_a_search_path(ledger):
    """Every view and function for readers finds what it reads by itself."""
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
    ledger.settle(batch.batch_id)
    views = [
        row.viewname for row in ledger.rows("SELECT * FROM pg_views WHERE schemaname = 'ackledger'")
    ]
    assert len(views) > len(VIEWS)
    with ledger.database.payload_reader.connect() as connection:
        connection.exec_driver_sql("SET LOCAL search_path = ''")
        for view in (*views, "root_state(1)"):
            connection.exec_driver_sql(f"SELECT * FROM ackledger.{view}").all()


def test_reader_reads_and_changes_nothing(ledger):
    """The reader sees every view and the root function, and can write nothing, not even by
    choice.
    """
    ledger.whole_batch(pipeline(), lose_sink=[0])
    with ledger.database.reader.connect() as connection:
        for view in VIEWS:
            connection.execute(text(f"SELECT count(*) FROM {view}"))
        assert connection.execute(text("SELECT count(*) FROM root_state(1)")).scalar_one() == 1
    for statement in (
        "DELETE FROM batch",
        "UPDATE batch SET status = 'open'",
        "SELECT remove_deltas(99)",
        "CREATE TABLE mine (n int)",
    ):
        with ledger.database.reader.connect() as connection:
            connection.execute(text("SET TRANSACTION READ WRITE"))
            with pytest.raises(DBAPIError, match="permission denied"):
                connection.execute(text(statement))


def test_reader_is_read_only_by_default(database):
    """Every transaction of the reader is read-only."""
    with database.reader.connect() as connection:
        assert connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on"


def test_writer_owns_nothing(ledger):
    """The role of the jobs cannot change the schema."""
    for statement in (
        "DROP TABLE batch",
        "DROP TABLE ledger_delta",
        "ALTER TABLE batch ADD COLUMN mine int",
        "CREATE TABLE mine (n int)",
    ):
        with (
            ledger.database.writer.connect() as connection,
            pytest.raises(DBAPIError, match=r"must be owner|permission denied"),
        ):
            connection.execute(text(statement))


def test_unmigrated_database(scratch):
    """A database without the schema is refused with the command that makes it."""
    with pytest.raises(
        ConfigurationError, match=f"revision none, expected {head()}: run 'ackledger db upgrade'"
    ):
        scratch.check()


def test_server_that_is_down(tmp_path):
    """A server that does not answer is a transient error that names its address, without the
    password.
    """
    database = Database(f"postgresql+psycopg2://me:secret@/ackledger?host={tmp_path}")
    with pytest.raises(
        UnavailableError, match=r"did not answer.*Check that the server runs"
    ) as caught:
        database.check()
    assert "secret" not in str(caught.value)


def test_a_lost_host_is_noticed(database):
    """Both ends of a connection ask whether the other still lives: else a dead host's locks
    would stay for hours.
    """
    seen = []

    def listen(*details):
        seen.append(details[2])

    event.listen(database.plain, "before_cursor_execute", listen)
    with database.writer.begin() as connection:
        asked = connection.connection.dbapi_connection.info.dsn_parameters
    event.remove(database.plain, "before_cursor_execute", listen)
    assert (asked["keepalives"], asked["keepalives_idle"]) == ("1", "10")
    assert "SET LOCAL tcp_keepalives_idle = '30'" in seen[0]
    url = database.url.update_query_dict({"keepalives_idle": "77"})
    own = Database(url.render_as_string(hide_password=False))
    with own.writer.connect() as connection:
        asked = connection.connection.dbapi_connection.info.dsn_parameters
    assert asked["keepalives_idle"] == "77"
    own.dispose()


def test_a_lock_that_is_waited_for_in_vain(ledger, monkeypatch):
    """The error says what was waited for, not that the server is down."""
    batch = ledger.open(pipeline())
    monkeypatch.setattr(connections, "LOCK_TIMEOUT", "100ms")
    hasty = Database(ledger.database.url.render_as_string(hide_password=False))
    with ledger.database.writer.begin() as holding:
        batches.lock_batch(holding, batch.batch_id)
        with pytest.raises(
            UnavailableError,
            match=(
                r'another process holds, while locking tuple .* in relation "batch"\. .* takes long'
            ),
        ):
            hasty.transact(lambda c: batches.lock_batch(c, batch.batch_id))
    assert hasty.transact(lambda c: batches.lock_batch(c, batch.batch_id)) is not None
    hasty.dispose()


@pytest.mark.parametrize("held", ["original", "replay"])
def test_a_replay_is_locked_after_its_original(ledger, held):
    """A process that does not wait gets neither while another one has the row of one of them."""
    flow = pipeline()
    original, _ = ledger.whole_batch(flow, lose_sink=[0])
    ledger.settle(original.batch_id)
    replay = ledger.replay(flow, original.batch_id)
    rows = {"original": original.batch_id, "replay": replay.batch_id}

    def locked():
        locking = partial(batches.lock_family, batch_id=replay.batch_id, skip_locked=True)
        return ledger.database.transact(locking)

    with ledger.database.writer.begin() as holding:
        batches.lock_batch(holding, rows[held])
        assert locked() is None
    assert locked().batch_id == replay.batch_id


def test_url_that_is_none():
    """An address that is no URL is refused with an example of one."""
    with pytest.raises(ConfigurationError, match="ACKLEDGER_DATABASE_URL is not a URL such as"):
        Database("my database")


@pytest.fixture
def scram(server_home, migrated):
    """The tests' server, asking everybody but its superuser for a SCRAM password; user and
    password.
    """
    hba = server_home / "postgres" / "pg_hba.conf"
    before = hba.read_text()
    with migrated.plain.begin() as connection:
        connection.exec_driver_sql("SET LOCAL password_encryption = 'scram-sha-256'")
        connection.exec_driver_sql(
            "CREATE ROLE app LOGIN PASSWORD 'right' IN ROLE ledger_owner, ledger_writer,"
            " ledger_reader"
        )
    hba.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    _reload(migrated)
    try:
        yield migrated.url.set(username="app", password=None)
    finally:
        hba.write_text(before)
        _reload(migrated)
        with migrated.plain.begin() as connection:
            connection.exec_driver_sql("DROP ROLE app")


def _reload(database):
    with database.plain.begin() as connection:
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    database.dispose()


def test_passwords(scram, tmp_path, monkeypatch, database):
    """A wrong or missing password is one permanent error; the right one may come from a
    passfile.
    """
    with pytest.raises(
        ConfigurationError, match=r"refused the connection.*password authentication failed"
    ) as caught:
        Database(scram.set(password="wrong").render_as_string(hide_password=False)).check()
    assert "wrong" not in str(caught.value)
    url = scram.render_as_string(hide_password=False)
    with pytest.raises(ConfigurationError, match="no password supplied"):
        Database(url).check()
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:app:right\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    reached = Database(url)
    reached.check()
    batch, _ = Ledger(reached).whole_batch(pipeline())
    assert (
        reached.transact(lambda c: batches.get_batch(c, batch.batch_id)).batch_id == batch.batch_id
    )
    reached.dispose()


def test_queries_log_in_by_themselves(scram, tmp_path, monkeypatch, migrated):
    """Where a server asks for passwords a query needs the reader's own, never the ledger's."""
    monkeypatch.setenv("PGPASSWORD", "right")
    url = scram.render_as_string(hide_password=False)
    with pytest.raises(
        ConfigurationError, match=r"log in as ledger_sql, which .*authentication failed.*READER_URL"
    ):
        asking.answer(Database(url), "SELECT 1")
    monkeypatch.delenv("PGPASSWORD")
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:ledger_sql:reads\n*:*:*:app:right\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    with migrated.plain.begin() as connection:
        connection.exec_driver_sql("ALTER ROLE ledger_sql PASSWORD 'reads'")
    try:
        assert Ledger(Database(url)).answer("SELECT session_user") == [("ledger_sql",)]
    finally:
        with migrated.plain.begin() as connection:
            connection.exec_driver_sql("ALTER ROLE ledger_sql PASSWORD NULL")


def test_the_stack_has_a_login_for_queries(scram, monkeypatch, migrated):
    """What the container stack starts with gives the login of its ACKLEDGER_READER_URL a
    password.
    """
    admin = migrated.url.render_as_string(hide_password=False)
    reader = scram.set(username="ledger_sql", password="it's long").render_as_string(
        hide_password=False
    )
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", admin)
    monkeypatch.setenv("ACKLEDGER_READER_URL", reader)
    try:
        for _ in range(2):
            databases.main()
            stack = Database.from_settings(Settings())
            assert Ledger(stack).answer("SELECT session_user") == [("ledger_sql",)]
    finally:
        with migrated.plain.begin() as connection:
            connection.exec_driver_sql("ALTER ROLE ledger_sql PASSWORD NULL")
        with migrated.plain.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("DROP DATABASE airflow")


def test_upgrade_by_a_user_who_may_create_roles():
    """No superuser is needed: who owns the database and may create roles has them afterwards."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        admin = Database(embedded.start(home))
        with admin.plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("CREATE ROLE app LOGIN CREATEROLE")
            connection.exec_driver_sql("CREATE DATABASE mine OWNER app")
        url = admin.url.set(username="app", database="mine")
        own = Database(url.render_as_string(hide_password=False))
        try:
            upgrade(own)
            ledger = Ledger(own)
            batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
            ledger.settle(batch.batch_id)
            assert ledger.answer("SELECT failed FROM batch_status") == [(1,)]
            assert ledger.row("SELECT producers FROM failed_root").producers == "middle"
        finally:
            own.dispose()
            admin.dispose()
            embedded.stop(home)


def test_statement_that_is_refused(database):
    """An error of the database is one line of the ledger's own, with the cause."""
    with pytest.raises(LedgerError, match="refused a statement: division by zero"):
        database.transact(lambda c: c.exec_driver_sql("SELECT 1 / 0"))


def test_embedded_server_keeps_to_its_folder(server_home):
    """The embedded server's lock and socket are in its own folder, and its data are its owner's
    alone.
    """
    folder = server_home / "postgres"
    assert (folder / "postmaster.pid").exists()
    assert (os.stat(folder).st_mode & 0o077) == 0
    assert not list(Path("/tmp").glob(".s.PGSQL.*"))


def test_embedded_server_that_recovers_is_waited_for():
    """While the server restarts because a process of it was killed, `start` waits and then has
    its address.
    """
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        url = embedded.start(home)
        try:
            with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection:
                os.kill(connection.info.backend_pid, signal.SIGKILL)
                assert embedded.start(home) == url
        finally:
            embedded.stop(home)


def test_a_user_who_may_create_no_database_learns_what_to_grant(scratch):
    """The error names server, database and user, and what an administrator may do."""
    with scratch.plain.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE small_user LOGIN")
    url = scratch.url.set(username="small_user").render_as_string(hide_password=False)
    try:
        assert embedded.ensure_database(url, "scratch") == url
        with pytest.raises(ConfigurationError) as raised:
            embedded.ensure_database(url, "airflow")
    finally:
        with scratch.plain.begin() as connection:
            connection.exec_driver_sql("DROP ROLE small_user")
    place, _, says = str(raised.value).partition(": ")
    assert place.startswith("the server postgresql+psycopg2://small_user:***@/scratch")
    assert says == (
        "expected a database 'airflow', or a user who may create it, found none, and permission"
        " denied to create database: ALTER ROLE small_user CREATEDB, or CREATE DATABASE airflow"
        " OWNER small_user as an administrator, then run this again"
    )


def test_a_transaction_outlasts_a_recovery():
    """A transaction that is asked for while the server restarts after a crash is carried out
    behind it.
    """
    with tempfile.TemporaryDirectory(prefix="ackledger-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        database = Database(embedded.start(home))
        try:
            upgrade(database)
            address = database.url.set(drivername="postgresql").render_as_string(False)
            with closing(psycopg2.connect(address)) as doomed, doomed.cursor() as cursor:
                cursor.execute("CREATE TABLE much AS SELECT generate_series(1, 300000)")
                os.kill(doomed.info.backend_pid, signal.SIGKILL)
                assert database.transact(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        finally:
            database.dispose()
            embedded.stop(home)


def test_server_that_is_not_there(monkeypatch):
    """A server that does not answer is one line of the ledger's own, without the password."""
    monkeypatch.setattr(embedded, "RECOVERY_SECONDS", 0.2)
    with pytest.raises(UnavailableError, match="did not answer") as raised:
        embedded.ensure_database("postgresql+psycopg2://me:secret@127.0.0.1:9/one", "two")
    assert "secret" not in str(raised.value)
