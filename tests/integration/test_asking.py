"""``ackledger sql``: one statement by construction, by a login that can read and nothing else."""

import json
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from ledger.cli import database as database_commands
from ledger.cli.base import app
from ledger.errors import ConfigurationError, InputError, LedgerError, UnavailableError
from ledger.store import asking
from ledger.store import connection as connections
from ledger.store.connection import Database
from tests.support.ledgers import Ledger, pipeline
from tests.support.schema import TABLES

# {file}: a file that must not appear.
SEVERAL = [
    "SELECT 1; DELETE FROM batch",
    r"SELECT E'\''; DELETE FROM batch; --'",
    "SELECT 1 AS a$b$; DELETE FROM batch; SELECT 1 AS c$b$",
    "SELECT 1; RESET ROLE; DELETE FROM batch",
    "SELECT $a$x$a$; COMMIT; DELETE FROM batch",
    "ROLLBACK; BEGIN READ WRITE; DELETE FROM batch; COMMIT",
    "SELECT 1 /* /* */ ; */ ; DELETE FROM batch",
    'SELECT 1 AS """"; DELETE FROM batch; --"',
    "SELECT U&'\\0027'; DROP TABLE batch",
    "SELECT '\\'; DELETE FROM batch; --'",
    "",
    ";",
    "-- nothing but a comment",
    "END $open$; DELETE FROM batch; DO $open$ BEGIN",
    "SELECT 1'); DELETE FROM batch; --",
]
NO_QUERIES = [
    "DO $$ BEGIN PERFORM set_config('role', 'none', false); DELETE FROM batch; END $$",
    "DO $$ BEGIN COPY (SELECT 1) TO PROGRAM 'touch {file}'; END $$",
    "COPY batch TO PROGRAM 'touch {file}'",
    "COPY (SELECT 1) TO '{file}'",
    "COPY batch FROM '/etc/passwd'",
    "COPY batch TO STDOUT",
    "SET ROLE NONE",
    "RESET ROLE",
    "SET SESSION AUTHORIZATION postgres",
    "SET TRANSACTION READ WRITE",
    "BEGIN READ WRITE",
    "COMMIT",
    "CREATE TABLE mine (n int)",
    "CREATE TEMP TABLE mine (n int)",
    "SELECT * INTO TEMP mine FROM batch",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE EXTENSION dblink",
    "ALTER ROLE ledger_sql SUPERUSER",
    "GRANT ledger_owner TO ledger_sql",
    "DROP TABLE batch",
    "TRUNCATE batch",
    "DELETE FROM batch",
    "VACUUM",
    "LOCK TABLE batch",
    "LISTEN batch",
    "PREPARE q AS DELETE FROM batch",
    "EXPLAIN ANALYZE DELETE FROM batch",
    "FETCH ALL FROM answer",
    "LOAD '/tmp/mine.so'",
    "CALL mine()",
]
REFUSED = [
    "DELETE FROM batch RETURNING batch_id",
    "UPDATE failed_root SET reason = 'none' RETURNING root_id",
    "INSERT INTO pipeline (name) VALUES ('mine') RETURNING name",
    "WITH gone AS (DELETE FROM batch RETURNING 1) SELECT * FROM gone",
    "SELECT * FROM batch FOR UPDATE",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT set_config('role', 'postgres', false)",
    "SELECT set_config('role', 'ledger_owner', false)",
    "SELECT set_config('role', 'ledger_writer', false)",
    "SELECT set_config('session_authorization', 'postgres', false)",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT pg_stat_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(1, '{file}')",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT nextval('batch_batch_id_seq')",
    "SELECT setval('batch_batch_id_seq', 1)",
    "SELECT pg_terminate_backend(:pid)",
    "SELECT pg_cancel_backend(:pid)",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT * FROM pg_authid",
    "SELECT query_to_xml('DELETE FROM batch RETURNING 1', true, true, '')",
    "SELECT query_to_xml('SELECT 1; DELETE FROM batch', true, true, '')",
    "SELECT * FROM ts_stat('DELETE FROM batch RETURNING to_tsvector(''a'')')",
    "SELECT reserve_roots(4096, 1)",
    "SELECT remove_deltas(1)",
    "SELECT forget_fails(1)",
    "SELECT release_files(1)",
    "SELECT remove_filters(1)",
    "SELECT detail FROM failed_root",
    "SELECT f FROM failed_root f",
    "SELECT detail FROM failed_root_detail",
    "SELECT detail FROM root_fail",
    "SELECT filter FROM dedup_filter",
    "SELECT dblink('dbname=ackledger user=postgres', 'DELETE FROM batch')",
    "SELECT pg_catalog.pg_file_write('{file}', 'x', false)",
]
# What is answered, and leads nowhere: the session is the reader's, and it ends.
HARMLESS = [
    "SELECT set_config('role', 'none', false)",
    "SELECT set_config('default_transaction_read_only', 'off', false)",
    "SELECT set_config('search_path', 'pg_temp', false)",
    "SELECT set_config('statement_timeout', '0', false)",
    "SELECT pg_notify('ledger', 'x')",
    "SELECT pg_advisory_lock(7225355)",
]
HONEST = [
    ("SELECT 1 AS n", [(1,)]),
    ("SELECT 1 AS n;", [(1,)]),
    ("SELECT 1 AS n ; ; -- and that is all", [(1,)]),
    ("/* first */ SELECT 1 AS n /* last; */", [(1,)]),
    ("SELECT 'a;b' AS \"c;d\"", [("a;b",)]),
    (r"SELECT E'\'; DELETE FROM batch; --' AS s", [("'; DELETE FROM batch; --",)]),
    ("SELECT $x$ ; $$ $x$ AS s", [(" ; $$ ",)]),
    ("SELECT 100 % 3 AS n, '%s %(x)s :x' AS s", [(1, "%s %(x)s :x")]),
    ("VALUES (1), (2)", [(1,), (2,)]),
    (
        "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) TABLE t",
        [(1,), (2,), (3,)],
    ),
    ("SELECT n, sum(n) OVER (ORDER BY n) FROM generate_series(1, 2) n", [(1, 1), (2, 3)]),
    ("(SELECT 1) UNION (SELECT 2) ORDER BY 1", [(1,), (2,)]),
    ("SHOW transaction_read_only", [("on",)]),
    ("SELECT session_user, current_user", [("ledger_sql", "ledger_sql")]),
    ("SELECT 'gr\u00fc\u00dfe \U0001f600' AS s", [("gr\u00fc\u00dfe \U0001f600",)]),
    ("SELECT 1 WHERE false", []),
    ("SELECT status, count(*) FROM failed_root_detail GROUP BY 1", [("failed", 1)]),
    ("SELECT status, reason FROM root_state(1)", [("failed", "lost")]),
    ("SELECT step, cause, reason, root_id FROM failed_root", [("sink", "lost", None, 1)]),
]


@pytest.fixture
def database(database):
    """A ledger with one failed record."""
    ledger = Ledger(database)
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[0])
    ledger.settle(batch.batch_id)
    return database


def content(database):
    """Everything that the ledger holds, and what else there is in its database."""
    counts = " UNION ALL ".join(
        f"SELECT '{name}', count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM {name} t"
        for name in TABLES
    )
    others = (
        "SELECT relname FROM pg_class WHERE relname !~ '^pg_toast'",
        "SELECT proname FROM pg_proc WHERE pronamespace = 'ackledger'::regnamespace",
        "SELECT oid FROM pg_largeobject_metadata",
        "SELECT rolname, rolsuper FROM pg_roles",
        "SELECT roleid, member FROM pg_auth_members",
        "SELECT last_value FROM batch_batch_id_seq",
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'",
    )
    with database.plain.connect() as connection:
        return [
            sorted(map(tuple, connection.execute(text(query)).all())) for query in (counts, *others)
        ]


def sessions_end(database):
    """Wait for the sessions of queries: the server ends one only after its client has left."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE usename = 'ledger_sql' AND datname = current_database()"
    )
    deadline = time.monotonic() + 30
    alive = 1
    while alive:
        assert time.monotonic() < deadline, f"{alive} sessions of queries have not ended"
        with database.plain.connect() as connection:
            alive = connection.execute(query).scalar_one()
        time.sleep(0.02)


@contextmanager
def nothing_changes(database, folder):
    """What is asked in here leaves no trace in the database, and no file."""
    before = content(database)
    yield folder / "made"
    sessions_end(database)
    assert content(database) == before
    assert list(folder.iterdir()) == []


def refused(database, query):
    """The one line with which a query is refused."""
    with pytest.raises(InputError) as caught:
        asking.answer(database, query)
    (line,) = str(caught.value).splitlines()
    return line


def test_hostile_statements_are_refused(database, tmp_path):
    """Each of 84 ways to write, to run a program or to become another ends in one line."""
    with database.writer.connect() as other, nothing_changes(database, tmp_path) as file:
        pid = str(other.connection.dbapi_connection.info.backend_pid)
        for query in (*SEVERAL, *NO_QUERIES, *REFUSED):
            line = refused(database, query.replace("{file}", str(file)).replace(":pid", pid))
            assert line.startswith(("PostgreSQL refused the query", "expected ")), query
        assert other.execute(text("SELECT 1")).scalar_one() == 1
    assert len({*SEVERAL, *NO_QUERIES, *REFUSED}) == 84


def test_settings_of_the_session_lead_nowhere(ledger, tmp_path):
    """What a query may set, lock or announce ends with it: the next one starts as the first did."""
    with nothing_changes(ledger.database, tmp_path):
        for query in HARMLESS:
            asking.answer(ledger.database, query)
            state = ledger.answer("SELECT session_user, current_setting('transaction_read_only')")
            assert state == [("ledger_sql", "on")]


@pytest.mark.parametrize(("query", "rows"), HONEST)
def test_honest_queries_are_answered(ledger, query, rows):
    """Semicolons in texts, comments, percent signs and every form of a query work."""
    assert ledger.answer(query) == rows


def test_headers_are_the_names_of_the_columns(database):
    """A row says what its columns are called, and a plan is a query's answer too."""
    (row,) = asking.answer(database, 'SELECT 1 AS n, 2 AS "two words"')
    assert row == {"n": 1, "two words": 2}
    assert "Scan" in str(asking.answer(database, "EXPLAIN ANALYZE SELECT * FROM batch"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT * FROM batches", 'relation "batches" does not exist'),
        ("SELECT 1 / 0", "division by zero"),
        ("SELECT $1", "there is no parameter"),
        ("SELECT 'x'::date", 'invalid input syntax for type date: "x"'),
        ("SELECT '0044-03-15 BC'::date", "year -44 is out of range. Cast its column to text"),
        ("SELECT 1\0", "invalid byte sequence"),
        ("SELECT '\udcff'", "not valid UTF-8 at character 9"),
        ("SELECT " + "(" * 100_000, "stack depth|memory exhausted"),
    ],
)
def test_a_wrong_query_is_one_line(database, query, message):
    """What PostgreSQL, the driver or the encoding has against a query is one line of ours."""
    with pytest.raises(InputError, match=message) as caught:
        asking.answer(database, query)
    assert len(str(caught.value).splitlines()) == 1


def test_columns_of_one_name(database, monkeypatch):
    """No column is dropped for its name: a repeated one is numbered, past those that are taken."""
    monkeypatch.setattr(database_commands, "connect", lambda _: database)
    query = "SELECT count(*), count(*) FILTER (WHERE false), 7 AS count_2, count(*) FROM batch"
    result = CliRunner().invoke(app, ["sql", query, "--json"])
    assert json.loads(result.stdout) == [{"count": 1, "count_2": 0, "count_2_2": 7, "count_3": 1}]


def test_a_query_has_an_end(database, monkeypatch):
    """A query past its time is stopped, even if it has set a longer one."""
    monkeypatch.setattr(connections, "QUERY_TIMEOUT", "2s")
    hasty = Database(database.url.render_as_string(hide_password=False))
    with pytest.raises(InputError, match="the query was stopped after"):
        asking.answer(hasty, "SELECT set_config('statement_timeout', '0', false), pg_sleep(60)")


def test_a_session_that_ends(database):
    """A reader may end its own session: one line says that it did."""
    with pytest.raises(UnavailableError, match="the session of the query ended"):
        asking.answer(database, "SELECT pg_terminate_backend(pg_backend_pid())")


GRANTS = {
    "is a superuser": "ALTER ROLE {name} SUPERUSER",
    "may create roles, databases": "ALTER ROLE {name} CREATEROLE",
    "has the role ledger_writer": "GRANT ledger_writer TO {name}",
    "has the role pg_read_server_files": "GRANT pg_read_server_files TO {name}",
    "may change batch": "GRANT UPDATE (status) ON batch TO {name}",
    "may change failed_root": "GRANT TRUNCATE ON failed_root TO {name}",
    "may call reserve_roots": "GRANT EXECUTE ON FUNCTION reserve_roots(bigint, bigint) TO {name}",
}


@pytest.fixture
def asker(database):
    """A login of a user's own for queries, and the ledger with it."""
    with database.plain.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE asker LOGIN IN ROLE ledger_reader")
    plain = database.url.render_as_string(hide_password=False)
    own = database.url.set(username="asker").render_as_string(hide_password=False)
    yield Database(plain, own)
    with database.plain.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY asker; DROP ROLE asker")


def test_a_login_of_ones_own(asker):
    """ACKLEDGER_READER_URL names another login than ledger_sql, which reads as the reader does."""
    assert Ledger(asker).answer("SELECT session_user, total FROM batch_status") == [("asker", 10)]


@pytest.mark.parametrize(("power", "grant"), GRANTS.items())
def test_a_login_that_can_do_more_is_refused(asker, power, grant):
    """Whatever a login may do beyond reading, no query runs as it."""
    with asker.plain.begin() as connection:
        connection.exec_driver_sql(grant.format(name="asker"))
    with pytest.raises(ConfigurationError, match=f"only read, and asker {power}.*READER_URL"):
        asking.answer(asker, "SELECT 1")


def test_a_login_that_is_not_there(database):
    """A server that refuses the login is one line that says how to make one."""
    plain = database.url.render_as_string(hide_password=False)
    for user, reason in (
        ("nobody", "does not exist"),
        ("ledger_reader", "not permitted to log in"),
    ):
        own = database.url.set(username=user).render_as_string(hide_password=False)
        expected = rf"log in as {user}, which the server refused: .*{reason}.*ALTER ROLE ledger_sql"
        with pytest.raises(ConfigurationError, match=expected):
            asking.answer(Database(plain, own), "SELECT 1")
    with pytest.raises(ConfigurationError, match="ACKLEDGER_READER_URL is not a URL such as"):
        Database(plain, "my reader")


def test_a_server_that_is_away(tmp_path):
    """A query to a server that does not answer fails as every other command does."""
    with pytest.raises(LedgerError, match="did not answer"):
        asking.answer(Database(f"postgresql+psycopg2://me@/ackledger?host={tmp_path}"), "SELECT 1")


def test_the_password_of_the_ledger_is_not_the_readers():
    """The reader's login does not try the password that the ledger's address has."""
    for address in ("me:secret@host:5433/ledger", "host:5433/ledger?user=me&password=secret"):
        reader_url = Database(f"postgresql+psycopg2://{address}").reader_url
        assert (
            reader_url.render_as_string(hide_password=False)
            == "postgresql+psycopg2://ledger_sql@host:5433/ledger"
        )
