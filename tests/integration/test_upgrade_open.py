"""An upgrade of the schema while batches are open, and an older process beside it."""

import shutil
from contextlib import closing

import psycopg2
import pytest
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline
from ledger.cli import app
from ledger.errors import ConfigurationError, InputError
from ledger.spark.job import Job
from ledger.store import embedded, revisions
from ledger.store import upgrade as upgrading
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.upgrade import upgrade
from tests.support.runner import Runner
from tests.support.schema import schema

LATER = """
revision = "0002"
down_revision = "0001"

from alembic import op


def upgrade():
    op.execute("ALTER TABLE batch ADD COLUMN cost bigint NOT NULL DEFAULT 0")
    {more}


def downgrade():
    op.execute("ALTER TABLE batch DROP COLUMN cost")
"""
RENAMED = 'op.execute("ALTER TABLE step_run RENAME COLUMN folder TO place")'


@pytest.fixture
def scratch(server_home, migrated):
    """A ledger of its own in the tests' server."""
    database = Database(embedded.ensure_database(embedded.start(server_home), "upgraded"))
    upgrade(database)
    yield database
    database.dispose()
    with migrated.autocommit.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE upgraded WITH (FORCE)")


@pytest.fixture
def newer(tmp_path, monkeypatch):
    """A function after which this process is of a later release, whose schema has a revision
    more."""
    own = revisions.folder()

    def install(more=""):
        folder = tmp_path / "migrations"
        shutil.copytree(own, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "0002_later.py").write_text(LATER.format(more=more))
        for module in (revisions, upgrading):
            monkeypatch.setattr(module, "folder", lambda: folder)
        revisions._revisions.cache_clear()

    yield install
    monkeypatch.undo()
    revisions._revisions.cache_clear()


@pytest.fixture
def older(monkeypatch):
    """A function after which this process is of this release again."""

    def install():
        monkeypatch.undo()
        revisions._revisions.cache_clear()

    return install


def numbers():
    flow = Pipeline("numbers")
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def same(numbers):
        return numbers

    flow.sink("out", ParquetSink("out"), reads="same")
    return flow


@pytest.fixture
def run(spark, scratch, settings, tmp_path):
    """Runs the pipeline above in the scratch ledger."""
    (tmp_path / "in.csv").write_text("n\n1\n2\n3\n")
    return Runner(Job(spark, scratch, settings, numbers()))


def test_a_batch_that_is_open(run, scratch, newer, sink_rows):
    """Goes on after the upgrade at the step where it was: its steps, settlement and publication
    are those of any batch, beside one that had all steps committed."""
    ready, begun = run.open_day(0), run.open_day(1)
    run.steps(ready)
    run.step(begun, "numbers")
    newer()
    with pytest.raises(ConfigurationError, match=r"at revision 0001, expected 0002.*db upgrade"):
        scratch.check()
    upgrade(scratch)
    scratch.check()
    run.settled(ready)
    run.step(begun, "same")
    run.step(begun, "out")
    run.settled(begun)
    assert sink_rows("out") == sorted([(n,) for n in (1, 2, 3)] * 2)


def test_an_upgrade_without_a_new_revision(run, scratch, sink_rows, monkeypatch):
    """Changes nothing, whatever is open."""
    batch = run.open_day(0)
    run.step(batch, "numbers")
    before = schema(scratch)
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", scratch.url.render_as_string(hide_password=False))
    assert CliRunner().invoke(app, ["db", "upgrade"]).exit_code == 0
    assert schema(scratch) == before
    run.settled(batch)
    assert sink_rows("out") == [(1,), (2,), (3,)]


def test_an_administrator_migrates(scratch, newer):
    """By a script that is printed from the ledger's revision on: it adds what the later revision
    has, changes nothing else, and refuses a ledger that is at another revision."""
    before = schema(scratch)
    newer()
    printed = migration("0001")
    address = scratch.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(printed.stdout)
        with pytest.raises(psycopg2.Error, match="expected a ledger at revision 0001, found 0002"):
            cursor.execute(printed.stdout)
    scratch.check()
    after = schema(scratch)
    assert after["batch.cost"] == (None, "bigint t 0")
    # A newer PostgreSQL has a constraint for NOT NULL, too.
    assert {name: what for name, what in after.items() if "cost" not in name} == before


def test_a_migration_from_the_newest_revision(newer):
    """Says that there is nothing to do, as SQL that does nothing."""
    newer()
    printed = migration("0002")
    assert printed.exit_code == 0
    assert printed.stdout == "-- Revision 0002 is the newest: there is nothing to migrate.\n"


def test_a_migration_from_an_unknown_revision():
    """Is refused, and nothing is printed."""
    refused = migration("1")
    assert refused.exit_code == 1
    with pytest.raises(InputError, match=r"its newest is 0001\), found '1': .*ackledger db status"):
        raise refused.exception


def migration(revision):
    """What ``db upgrade`` prints for a ledger at this revision."""
    return CliRunner().invoke(app, ["db", "upgrade", "--print-sql-from", revision])


def test_an_older_process(run, scratch, newer, older):
    """Is refused at its next command; one that runs on, and needs what is gone, says that it is
    older."""
    batch = run.open_day(0)
    newer(RENAMED)
    upgrade(scratch)
    older()
    expected = r"revision 0002, which this ackledger does not know.*install the newer ackledger"
    with pytest.raises(ConfigurationError, match=expected):
        scratch.check()
    with pytest.raises(ConfigurationError, match=f"lacks something: .*folder.*{expected}"):
        scratch.transact(lambda c: runs.set_folder(c, batch.batch_id, "/somewhere"))
