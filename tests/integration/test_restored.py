"""A ledger that is restored from an older backup: beside a storage and sinks that went on, or with
these.
"""

import json
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink, Upsert
from ledger.batch.upkeep.restored import BATCHES, RECORDS, RUNS, restored
from ledger.cli import app
from ledger.errors import ConfigurationError
from ledger.execution import settle_and_follow
from ledger.spark.job import Job
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.support.ledgers import Ledger, pipeline
from tests.support.runner import Runner
from tests.support.standby import PROGRAMS
from tests.support.warehouse import Warehouse

DAYS = range(6)


class Backup:
    """A database of its own that is dumped and restored with PostgreSQL's own programs."""

    def __init__(self, server, folder, name):
        self.server = make_url(server).set(drivername="postgresql")
        self.name, self.file = name, str(folder / f"{name}.dump")
        self.database = Database(embedded.ensure_database(server, name))

    def take(self):
        self._run("pg_dump", "--format=custom", f"--file={self.file}", self._named(self.name))

    def restore(self):
        self.drop()
        self._run("createdb", f"--maintenance-db={self._named('postgres')}", self.name)
        self._run("pg_restore", "--exit-on-error", f"--dbname={self._named(self.name)}", self.file)

    def drop(self):
        self.database.dispose()
        self._run("dropdb", "--force", f"--maintenance-db={self._named('postgres')}", self.name)

    def _named(self, name):
        return self.server.set(database=name).render_as_string(hide_password=False)

    def _run(self, program, *arguments):
        subprocess.run([PROGRAMS / program, *arguments], check=True)


@contextmanager
def dropped(backup):
    """Drop the database afterwards."""
    yield backup
    backup.drop()


@pytest.fixture
def backup(server_home, migrated, tmp_path):
    """A ledger, see above."""
    with dropped(Backup(embedded.start(server_home), tmp_path, "restored_ledger")) as own:
        upgrade(own.database)
        yield own


@pytest.fixture
def target(server_home, tmp_path):
    """What a PostgresSink writes to, see above."""
    with dropped(Backup(embedded.start(server_home), tmp_path, "restored_target")) as own:
        yield own


def days(sinks):
    """A file a day, and a stage."""
    flow = Pipeline("days")
    flow.source("numbers", FileSource("in/{{ interval_start | ds }}.csv", schema="day INT, n INT"))

    @flow.stage(reads="numbers")
    def same(numbers):
        return numbers

    for name, sink in sinks.items():
        flow.sink(name, sink, reads="same")
    return flow


def write_days(folder):
    (folder / "in").mkdir()
    for day in DAYS:
        rows = "".join(f"{day},{n}\n" for n in range(3))
        (folder / "in" / f"2013-01-{day + 1:02}.csv").write_text("day,n\n" + rows)


def run_days(runner, *numbers):
    """The batches of these days, settled and published."""
    return [runner.settled(runner.open_day(day)).batch_id for day in numbers]


def tree(folder):
    """All files below a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def test_a_restored_ledger(backup, spark, settings, warehouse, sink_rows, tmp_path, monkeypatch):
    """Gives no number twice: its first step says what it found and writes nothing. After the
    how-to's steps each sink has each record once: of the batch that was open, and of the one
    that was replaced meanwhile, too."""
    write_days(tmp_path)
    tables = {
        "report": PostgresSink(warehouse.url, "report"),
        "latest": PostgresSink(warehouse.url, "latest", mode=Upsert(("day", "n"))),
        "window_": PostgresSink(warehouse.url, "window_", mode="replace_interval"),
    }
    flow = days({"lake": ParquetSink("lake"), **tables, "delta": DeltaSink("delta")})
    runner = Runner(Job(spark, backup.database, settings, flow))
    assert run_days(runner, 0, 1) == [1, 2]
    interrupted = runner.open_day(2)
    runner.step(interrupted, "numbers")
    backup.take()
    runner.settled(interrupted)
    assert run_days(runner, 3, 4) == [4, 5]
    assert runner.settled(runner.open_day(0, "again", reprocess=True)).batch_id == 6

    backup.restore()
    batch = runner.open_day(5)  # another day gets the number of the third
    assert batch.batch_id == 4
    before = tree(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"batch=4/run=\d+.* Nothing was written.*db restored"
    ):
        runner.step(batch, "numbers")
    assert tree(tmp_path) == before

    url = backup.database.url.render_as_string(hide_password=False)
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", url)
    answer = CliRunner().invoke(app, ["db", "restored", "--json"])
    report = json.loads(answer.stdout)
    assert report["newest_batch"] == 4
    assert report["open_batches"] == [3, 4]

    # The how-to's steps: what the ledger does not know leaves the sinks.
    for number in (5, 6):
        shutil.rmtree(tmp_path / "lake" / f"ackledger_batch={number}")
    warehouse.do(
        "DELETE FROM report WHERE ackledger_batch > 4",
        "DELETE FROM ackledger_commit WHERE batch_id > 4 AND sink = 'days.report'",
        # Of the batch that was opened too early, which has another one's number.
        "DELETE FROM ackledger_commit WHERE batch_id = 4",
        *(f"DELETE FROM {name} WHERE ackledger_batch = 4" for name in tables),
    )
    commits = [commit["userMetadata"] for commit in DeltaTable(tmp_path / "delta").history()[:2]]
    assert all(commit.startswith("ackledger days.delta: batch ") for commit in commits)
    DeltaTable(tmp_path / "delta").delete("day IN (0, 4)")

    for undecided in (runner.open_day(2), batch):
        with pytest.raises(ConfigurationError, match="Move the folder away"):
            runner.settled(undecided)
        shown = tmp_path / "lake" / f"ackledger_batch={undecided.batch_id}"
        shown.rename(tmp_path / f"aside-{undecided.batch_id}")
        settle_and_follow(runner.job, undecided.batch_id)
    assert run_days(runner, 3, 4) == [report["next_batch"], report["next_batch"] + 1]
    runner.settled(runner.open_day(0, "once more", reprocess=True))
    expected = [(day, n) for day in DAYS for n in range(3)]
    assert sink_rows("lake", "day", "n") == expected
    for name in ("report", "latest", "window_"):
        assert warehouse.rows(f"SELECT day, n FROM {name} ORDER BY 1, 2") == expected
    delta = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert sorted((row["day"], row["n"]) for row in delta) == expected


@pytest.mark.parametrize("moved_on", [True, False])
def test_all_restored_to_one_time(
    backup, target, spark, settings, sink_rows, tmp_path, monkeypatch, moved_on
):
    """Goes on as if nothing had been after the backup: the batch that was open, the one that was
    settled and not yet published, the lost day. With ``db restored`` or without it each sink has
    each record once, and nothing is to be removed."""
    write_days(tmp_path)
    url = target.database.url.render_as_string(hide_password=False)
    report = PostgresSink(url, "report")
    flow = days({"lake": ParquetSink("lake"), "report": report, "delta": DeltaSink("delta")})
    runner = Runner(Job(spark, backup.database, settings, flow))
    folders = ("storage", "lake", "delta")
    run_days(runner, 0)
    decided, interrupted = runner.open_day(1), runner.open_day(2)
    runner.steps(decided)
    runner.ledger.settle(decided.batch_id)
    runner.step(interrupted, "numbers")
    backup.take()
    target.take()
    for folder in folders:
        shutil.copytree(tmp_path / folder, tmp_path / "copy" / folder, copy_function=shutil.copy)
    settle_and_follow(runner.job, decided.batch_id)
    runner.settled(interrupted)
    run_days(runner, 3, 4)
    runner.settled(runner.open_day(0, "again", reprocess=True))

    backup.restore()
    target.restore()
    for folder in folders:
        shutil.rmtree(tmp_path / folder)
        (tmp_path / "copy" / folder).rename(tmp_path / folder)
    runner = Runner(Job(spark, backup.database, settings, flow))
    number = interrupted.batch_id + 1
    if moved_on:
        own = backup.database.url.render_as_string(hide_password=False)
        monkeypatch.setenv("ACKLEDGER_DATABASE_URL", own)
        lines = CliRunner().invoke(app, ["db", "restored"]).stdout.replace("\n", " ")
        assert (
            "Sinks that are newer than the ledger may have rows of a batch above 3: remove them"
            in lines
        )
        number = interrupted.batch_id + BATCHES
    settle_and_follow(runner.job, decided.batch_id)
    runner.settled(runner.open_day(2))
    assert run_days(runner, 3, 4, 5) == [number, number + 1, number + 2]
    runner.settled(runner.open_day(0, "once more", reprocess=True))
    expected = [(day, n) for day in DAYS for n in range(3)]
    rows = Warehouse(url, tmp_path).rows("SELECT day, n FROM report ORDER BY 1, 2")
    delta = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert rows == sink_rows("lake", "day", "n") == expected
    assert sorted((row["day"], row["n"]) for row in delta) == expected


def test_a_folder_that_the_ledger_has_not_published(backup, spark, settings, sink_rows, tmp_path):
    """Is not replaced: the storage is gone as well, so the sink alone shows that its number was
    given before."""
    write_days(tmp_path)
    runner = Runner(Job(spark, backup.database, settings, days({"lake": ParquetSink("lake")})))
    backup.take()
    assert run_days(runner, 0) == [1]
    backup.restore()
    shutil.rmtree(tmp_path / "storage")
    batch = runner.open_day(1)
    runner.steps(batch)
    before = tree(tmp_path / "lake")
    with pytest.raises(
        ConfigurationError, match=r"ackledger_batch=1: expected no folder, found part"
    ):
        settle_and_follow(runner.job, batch.batch_id)
    assert tree(tmp_path / "lake") == before
    (tmp_path / "lake" / "ackledger_batch=1").rename(tmp_path / "aside")
    runner.settled(batch)
    assert sink_rows("lake", "day", "n") == [(1, n) for n in range(3)]


def test_numbers_go_on_far_above(backup):
    """Of batches, runs, attempts and records, each time that the command runs."""
    database, ledger = backup.database, Ledger(backup.database)
    batch, roots = ledger.whole_batch(pipeline())
    report = restored(database)
    assert (report.newest_batch, report.open_batches) == (batch.batch_id, [batch.batch_id])
    later, more = ledger.whole_batch(pipeline(), run_id="next", day=1)
    assert later.batch_id == report.next_batch == batch.batch_id + BATCHES
    assert more.start >= report.next_record >= roots.stop + RECORDS
    runs = ledger.rows("SELECT step_run_id, attempt_number FROM step_run ORDER BY 1 DESC LIMIT 3")
    assert all(run > RUNS and attempt > RUNS for run, attempt in runs)
    assert restored(database).next_batch == later.batch_id + BATCHES
