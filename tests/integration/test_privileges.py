"""Every act of every role on everything in the ledger's schema, tried by a login that is a member
of the role and nothing else: what is not needed is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.support.schema import columns
from tests.support.statements import inserted, read, updated

ROLES = ("ledger_writer", "ledger_reader", "ledger_payload_reader", "ledger_sql")
WRITER, READER, PAYLOAD_READER, SQL = ROLES
REFUSED = {
    "42501",  # insufficient_privilege
    "55000",  # a view of which no row can be changed
    "25006",  # a session that only reads
    "428C9",  # a column of a view that takes no value
}
# What the reader does not see: whole tables and views, or columns of them.
RAW = {
    "root_fail": {"detail"},
    "failed_root": {"detail"},
    "dedup_filter": {"filter"},
    "failed_payload": None,
    "hold_sample": {"key", "content", "parsed", "source_file", "source_row"},
    "failed_root_detail": {"detail"},
    "redaction_key": None,
}
_RELATIONS = """
    SELECT c.relname, c.relkind::text FROM pg_class c
    WHERE c.relnamespace = 'ackledger'::regnamespace AND c.relkind IN ('r', 'p', 'v') ORDER BY 1
"""
_DEFINERS = """
    SELECT p.oid::regprocedure::text, array_to_string(p.proconfig, ' ')
    FROM pg_proc p WHERE p.pronamespace = 'ackledger'::regnamespace AND p.prosecdef
"""
_SEQUENCES = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'ackledger'::regnamespace AND c.relkind = 'S'
"""


@contextmanager
def login(database, role: str) -> Iterator[Engine]:
    """A login that is a member of a role, and takes it on by nothing."""
    name = f"ledger_test_{role}"
    with database.plain.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
    try:
        url, path = database.url.set(username=name), {"options": "-c search_path=ackledger"}
        yield create_engine(url, poolclass=NullPool, connect_args=path)
    finally:
        with database.plain.begin() as connection:
            connection.exec_driver_sql(f"DROP ROLE {name}")


def may(connection: Connection, statement: str) -> bool:
    """Whether a statement is let through; whatever it does is rolled back."""
    savepoint = connection.begin_nested()
    try:
        connection.execute(text(statement.replace(":", r"\:")))
    except DBAPIError as exc:
        return exc.orig.pgcode not in REFUSED
    finally:
        savepoint.rollback()
    return True


def let_through(engine: Engine, statement: str) -> bool:
    """As ``may``, of what no transaction may be around."""
    with engine.connect() as connection:
        try:
            connection.execute(text(statement))
        except DBAPIError as exc:
            return exc.orig.pgcode not in REFUSED
    return True


def asked(database, statement: str) -> list[tuple[str, ...]]:
    with database.plain.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def relations(database) -> dict[str, str]:
    """Tables and views, with their kind."""
    return dict(asked(database, _RELATIONS))


def expected(role: str, name: str, all_columns: list[str]) -> dict[str, set[str]]:
    """The columns that a role may read and update of a relation, and ``*`` for whole acts."""
    everything = set(all_columns)
    if role == WRITER:
        needed = {*read(), "alembic_version"} - {"failed_root_detail"}  # which a reader reads
        reads = everything if name in needed else set()
        whole = {"INSERT"} if name in inserted() else set()
        return {"SELECT": reads, "UPDATE": updated().get(name, set()), "whole": whole}
    shown = role == PAYLOAD_READER and name != "redaction_key"
    hidden = set() if shown else RAW.get(name, set())
    reads = set() if hidden is None else everything - hidden
    return {"SELECT": reads, "UPDATE": set(), "whole": set()}


def tried(connection: Connection, name: str, kind: str, all_columns: list[str]):
    """What a login may do with a relation."""
    what = "VIEW" if kind == "v" else "TABLE"
    first = all_columns[0]
    acts = {
        "INSERT": f"INSERT INTO {name} DEFAULT VALUES",
        "DELETE": f"DELETE FROM {name} WHERE false",
        "TRUNCATE": f"TRUNCATE {name}",
        "LOCK": f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE",
        "ALTER": f"ALTER {what} {name} RENAME TO stolen",
        "OWN": f"ALTER {what} {name} OWNER TO current_user",
        "COMMENT": f"COMMENT ON {what} {name} IS 'mine'",
        "TRIGGER": f"CREATE TRIGGER mine BEFORE INSERT ON {name} EXECUTE FUNCTION"
        " refuse_rewriting()",
        "RULE": f"CREATE RULE mine AS ON INSERT TO {name} DO INSTEAD NOTHING",
        "POLICY": f"CREATE POLICY mine ON {name}",
        "INDEX": f"CREATE INDEX mine ON {name} ({first})",
        "DROP": f"DROP {what} {name} CASCADE",
    }
    if kind == "v":  # of a view these are refused for another reason
        for act in ("INDEX", "POLICY", "TRUNCATE", "TRIGGER"):
            del acts[act]
    reads = {
        column
        for column in all_columns
        if may(connection, f'SELECT "{column}" FROM {name} LIMIT 0')
    }
    updates = {
        column
        for column in all_columns
        if may(connection, f'UPDATE {name} SET "{column}" = DEFAULT WHERE false')
    }
    whole = {act for act, statement in acts.items() if may(connection, statement)}
    return {"SELECT": reads, "UPDATE": updates, "whole": whole}


@pytest.mark.parametrize("role", ROLES)
def test_each_act_on_each_table_and_view(database, role):
    """Of every table and view a role may read, insert and update, column by column, just
    what statements need, and it may delete, empty, lock, change, drop or extend none. A new table
    is among them by itself."""
    result, wanted = {}, {}
    with login(database, role) as engine, engine.connect() as connection:
        for name, kind in relations(database).items():
            names = columns(database, name)
            result[name] = tried(connection, name, kind, names)
            wanted[name] = expected(role, name, names)
    assert result == wanted


@pytest.mark.parametrize("role", ROLES)
def test_no_grant_can_be_handed_on(database, role):
    """No role has a grant option on anything: it can hand on none of its rights. None may bind a
    table of its own to one of the ledger's."""
    kinds = [f"{kind} WITH GRANT OPTION" for kind in ("SELECT", "INSERT", "UPDATE")]
    asked_of = ", ".join(
        f"has_any_column_privilege('{role}', c.oid, '{kind}')" for kind in (*kinds, "REFERENCES")
    )
    statement = f"""
        SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'ackledger'::regnamespace
        AND c.relkind IN ('r', 'p', 'v') AND true IN ({asked_of})
    """
    assert asked(database, statement) == []


ACTS = (
    "CREATE TABLE ackledger.mine (a int)",
    "CREATE VIEW ackledger.mine AS SELECT 1",
    "CREATE FUNCTION ackledger.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "CREATE DATABASE mine",
    "ALTER ROLE ledger_sql SUPERUSER",
    "ALTER ROLE ledger_sql PASSWORD 'mine'",
    "ALTER SYSTEM SET work_mem = '1GB'",
    "ALTER DEFAULT PRIVILEGES FOR ROLE ledger_owner GRANT ALL ON TABLES TO PUBLIC",
    "ALTER TYPE batch_state ADD VALUE 'mine'",
    "ALTER SCHEMA ackledger RENAME TO mine",
    "GRANT ledger_owner TO current_user",
    "SET ROLE ledger_owner",
    "SET SESSION AUTHORIZATION postgres",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/mine'",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT pg_ls_dir('.')",
    "SELECT rolpassword FROM pg_authid",
    "SELECT lo_import('/etc/hostname')",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'",
    "DROP OWNED BY ledger_owner",
    "REASSIGN OWNED BY ledger_owner TO current_user",
)


@pytest.mark.parametrize("role", ROLES)
def test_acts_beyond_the_tables(database, role):
    """No role makes anything lasting, takes on another one, changes the server or reads its
    files."""
    others = {f"SET ROLE {other}" for other in ROLES if other != role}
    if role in (PAYLOAD_READER, SQL):  # it is a member of the reader's
        others.remove("SET ROLE ledger_reader")
    if role == SQL:
        others |= {f"SET ROLE {PAYLOAD_READER}"}
    with database.plain.connect() as owners, login(database, role) as engine:
        owners.exec_driver_sql("SELECT 1")  # a session that no role may end
        at_once = engine.execution_options(isolation_level="AUTOCOMMIT")
        assert [act for act in (*ACTS, *sorted(others)) if let_through(at_once, act)] == []


def test_functions_of_the_owner(database):
    """A function that runs as the owner is for the writer alone, and looks names up where no other
    role can put any."""
    result = asked(database, _DEFINERS)
    assert len(result) >= 6
    for function, options in result:
        assert options.startswith("search_path=ackledger, pg_temp"), function
        for role in (*ROLES, "public"):
            statement = f"SELECT has_function_privilege('{role}', '{function}', 'EXECUTE')"
            assert asked(database, statement) == [(role == WRITER,)], (function, role)


@pytest.mark.parametrize("role", ROLES)
def test_sequences(database, role):
    """The writer draws numbers of attempts; no role sets a sequence, or draws from another's."""
    with login(database, role) as engine, engine.connect() as connection:
        for (name,) in asked(database, _SEQUENCES):
            draws = role == WRITER and name == "attempt_number"
            assert may(connection, f"SELECT nextval('{name}')") == draws, name
            assert not may(connection, f"SELECT setval('{name}', 1)"), name
            assert not may(connection, f"ALTER SEQUENCE {name} RESTART"), name


def test_roles_are_no_more_than_roles(database):
    """No role of the ledger is a superuser, makes roles or databases, replicates or passes by row
    security, and only that of queries logs in."""
    statement = """
        SELECT rolname, rolcanlogin FROM pg_roles WHERE rolname LIKE 'ledger\\_%'
        AND NOT (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
        ORDER BY rolname
    """
    assert asked(database, statement) == [
        ("ledger_owner", False), ("ledger_payload_reader", False), ("ledger_reader", False),
        ("ledger_sql", True), ("ledger_writer", False),
    ]  # fmt: skip
