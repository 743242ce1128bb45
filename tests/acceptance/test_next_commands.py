"""Every command that is printed is typed: in each state of a batch, each works, and fits."""

import json
import re
import shlex
import shutil
import sqlite3
import sys
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

from ledger.airflow.pipelines import SELECTING
from ledger.batch.opening import open_replay
from ledger.cli.base import app, out
from ledger.core.run_request import RunKey, Selection
from ledger.errors import ConfigurationError, LedgerError
from ledger.pipeline.load import load_pipeline
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.embedded import ensure_database
from ledger.store.queries import upkeep
from ledger.store.upgrade import downgrade, upgrade
from tests.support.dying import dies_at

NAME, TARGET = "next_commands", "fruit_shop:pipeline"
DAY = "--from 2026-01-01 --to 2026-01-02"
RUN = f"ackledger run {TARGET} {DAY} --run-id first"
OUTCOMES = {0, 3, 4}
# A command ends with the line, or where a sentence goes on after it.
COMMAND = re.compile(r"ackledger [a-z]+(?: (?:\"[^\"]*\"|'[^']*'|[^\s\"';,)]+))*")
TRIGGER = re.compile(r"airflow dags trigger (\S+) --conf '([^']*)'")
NOTHING = re.compile(
    r"no rows|nothing to replay|no publication is pending|no record .*is failed"
    r"|nothing in quarantine"
)
ORDERS = ["1,apple,2", "2,pear,0", "3,plum,1", "4,apple,500", "5,pear,3", "6,apple,many"]

MODULE = """
from ledger import FileSource, ParquetSink, Pipeline, failed
from tests.support.sqlite_sink import SqliteSink

pipeline = Pipeline("fruit", max_replays=1, {options})
orders = FileSource("orders.csv", schema="id INT, item STRING, qty INT")
pipeline.source("orders", orders, key=("id",))
pipeline.reference("prices", FileSource("prices.csv", schema="item STRING, cents INT"))

@pipeline.stage(reads="orders")
def valid(orders):
    return orders.where("qty > 0"), failed(orders.where("qty <= 0"), "quantity not positive")

@pipeline.stage(reads="valid")
def priced(valid, *, prices):
    return valid.join(prices, "item").select("id", "item", "qty", "cents")

pipeline.sink("table", SqliteSink("table.db", "sold"), reads="priced")

@pipeline.combine(reads="priced")
def totals(priced):
    return priced.groupBy("item").count()

pipeline.sink("report", ParquetSink("report"), reads="totals")
"""


class Lab:
    """A ledger and a folder that can be put back to a state, and the commands that are typed."""

    def __init__(self, url: str, folder: Path):
        self.folder, self._server = folder, url
        self._copies = folder.parent / f"{folder.name}-kept"
        self.url = make_url(url).set(database=NAME).render_as_string(hide_password=False)
        self._do(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        ensure_database(url, NAME)
        upgrade(Database(self.url))
        folder.mkdir()
        (folder / "prices.csv").write_text("item,cents\napple,10\npear,20\n")
        self.write(ORDERS)
        with sqlite3.connect(folder / "table.db") as table:
            columns = "id INTEGER, item TEXT, qty INTEGER CHECK (qty < 100), cents INTEGER"
            table.execute(f"CREATE TABLE sold ({columns}, ackledger_batch INTEGER)")
        table.close()
        self.declare()

    def write(self, orders: list[str]) -> None:
        """These orders of the day."""
        (self.folder / "orders.csv").write_text("\n".join(["id,item,qty", *orders]))

    def declare(self, **options: object) -> None:
        """The pipeline, with these options."""
        text = ", ".join(f"{name}={value!r}" for name, value in options.items())
        (self.folder / "fruit_shop.py").write_text(MODULE.replace("{options}", text))

    def type(self, command: str) -> tuple[int, str]:
        """Type a command; its exit code, and all that it says."""
        sys.modules.pop("fruit_shop", None)
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        output = f"{done.output}\n"
        if isinstance(done.exception, LedgerError):
            output += "\n".join([str(done.exception), *getattr(done.exception, "__notes__", [])])
        elif done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, output

    def keep(self) -> None:
        """Keep the state as it is."""
        shutil.copytree(self.folder, self._copies)
        self._copy(NAME, f"{NAME}_kept")

    def put_back(self) -> None:
        """Go back to the state that was kept."""
        for path in self.folder.iterdir():  # it is where commands are typed, and stays
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._copies, self.folder, dirs_exist_ok=True)
        self._copy(f"{NAME}_kept", NAME)

    def empty(self) -> None:
        """A database without a schema in the place of the ledger's."""
        self._do(f"DROP DATABASE {NAME} WITH (FORCE)", f"CREATE DATABASE {NAME}")

    def change(self, statement: str) -> None:
        """Change something of the ledger, as its owner."""
        database = Database(self.url)
        with database.owner.begin() as connection:
            connection.execute(text(statement))
        database.dispose()

    def dispose(self) -> None:
        """Remove the databases."""
        for name in (NAME, f"{NAME}_kept"):
            self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _copy(self, template: str, name: str) -> None:
        self._do(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{template}' AND pid <> pg_backend_pid()",
            f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {template}",
        )

    def _do(self, *statements: str) -> None:
        plain = make_url(self._server).set(drivername="postgresql", database="postgres")
        connection = psycopg2.connect(plain.render_as_string(hide_password=False))
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()


@pytest.fixture
def lab(spark, migrated, server_home, tmp_path, monkeypatch):
    """A lab in a folder of its own, where commands are typed."""
    state = Lab(migrated.url.render_as_string(hide_password=False), tmp_path / "shop")
    for name, value in {
        "ACKLEDGER_HOME": str(server_home),
        "ACKLEDGER_DATABASE_URL": state.url,
        "ACKLEDGER_STORAGE": str(state.folder / "storage"),
        "ACKLEDGER_DATA": str(state.folder),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(state.folder)
    monkeypatch.syspath_prepend(str(state.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(out, "width", 10_000)
    yield state
    state.dispose()


def failed(lab):
    """Records failed for each cause: not parsed, rejected, lost, refused."""
    return lab.type(RUN)


def given_up(lab):
    """The last failed records are quarantined by hand, and what waited for that is a combine."""
    lab.type(RUN)
    (lab.folder / "prices.csv").write_text("item,cents\napple,10\npear,20\nplum,30\n")
    lab.type(f"ackledger replay {TARGET} --batch 1 --step priced")
    return lab.type("ackledger quarantine --batch 1 --reason 'test orders'")


def quarantined(lab):
    """The replays of what failed are used up."""
    lab.type(RUN)
    return lab.type(f"ackledger replay {TARGET} --batch 1")


def failed_twice(lab):
    """What was quarantined has failed again in a replay of its own."""
    quarantined(lab)
    return lab.type(f"ackledger replay {TARGET} --batch 1 --quarantined")


def accepted(lab):
    """A person has accepted that."""
    quarantined(lab)
    return lab.type("ackledger accept 1 --reason 'test orders'")


def waiting(lab):
    """What failed waits for its next replay."""
    lab.declare(replay_backoff="1h")
    return lab.type(RUN)


def replaying(lab):
    """A replay has the failed records, and does not run."""
    failed(lab)
    sys.modules.pop("fruit_shop", None)
    result, key = load_pipeline(TARGET), RunKey("", "again-1")
    open_replay(Database(lab.url), Settings(), result, key, 1, Selection())
    return 0, ""


def held(lab):
    """Too many records failed for a person not to look."""
    lab.declare(hold_above=0.1)
    return lab.type(RUN)


def replaced(lab):
    """Another batch has read the interval again."""
    failed(lab)
    return lab.type(f"ackledger run {TARGET} {DAY} --reprocess")


def unpublished(lab):
    """The run died before a sink published."""
    with dies_at("publishing", "table", raises=LedgerError("the disk is full")):
        return lab.type(RUN)


def interrupted(lab):
    """A stage raised an error that is fixed since."""
    with dies_at("run opened", "priced", raises=LedgerError("no such column")):
        return lab.type(RUN)


def claimed(lab):
    """The interval is asked for again, under another run id."""
    failed(lab)
    return lab.type(f"ackledger run {TARGET} {DAY}")


def abandoned(lab):
    """The first run died in its source, whose file is right since."""
    lab.write([])
    (lab.folder / "orders.csv").write_text("id;item;qty\n1;apple;2\n")
    result = lab.type(RUN)
    lab.write(ORDERS)
    return result


def held_back(lab):
    """The pipeline publishes nothing before all records are acked."""
    lab.declare(publish="complete")
    return lab.type(RUN)


STATES = [
    failed, given_up, quarantined, failed_twice, accepted, waiting, replaying, held, replaced,
    unpublished, interrupted, claimed, abandoned, held_back,
]  # fmt: skip


def surfaces(lab):
    """All that says what to do next, about each batch and record."""
    yield from (f"status --batch {number}" for number in range(1, 4))
    yield from (f"failed --batch {number}" for number in range(1, 4))
    yield from ("failed", "failed --records", "gc --dry-run --keep 1d", "sweep")
    yield from ("check", f"check {TARGET} {DAY}")
    yield from (f"explain {number}" for number in range(1, len(ORDERS) + 1))
    yield from (f"{wrong} 99999 --reason none" for wrong in ("quarantine", "accept"))
    yield from ("explain 99999", "forget 99999", "accept 1 --reason none")


def form(command):
    """What of a command is not the number or name of a case: these share what they run."""
    words = shlex.split(command)
    return tuple(
        word for word, before in zip(words[1:], words, strict=False)
        if before not in ("--record", "--step") and not word.isdigit()
    )  # fmt: skip


def printed_in(message):
    """The commands that are printed, one of each form."""
    sentences = re.sub(r"[.:] (?=[A-Z0-9])", "\n", message)
    return {form(sentence): sentence.rstrip(".:") for sentence in COMMAND.findall(sentences)}


@pytest.mark.parametrize("state", STATES, ids=lambda shop: shop.__name__)
def test_every_printed_command_works(lab, state):
    """In each state of a batch every command that is printed names its pipeline, ends as it is
    documented, and finds something to do; what is for Airflow has a conf that a run reads.
    """
    _, output = state(lab)
    lab.keep()
    if state is not claimed:  # which says no more than failed
        output = "\n".join(
            [output, *(lab.type(f"ackledger {surface}")[1] for surface in surfaces(lab))]
        )
    for dag_id, conf in TRIGGER.findall(output):
        keys = set(json.loads(conf))
        assert keys <= {*SELECTING, "replay_of", "batch", "reprocess", "interval_start",
                        "interval_end"}, (dag_id, conf)  # fmt: skip
    printed = printed_in(output)
    assert "MODULE:PIPELINE" not in output
    assert printed
    for command in printed.values():
        lab.put_back()
        if state is held:  # what is printed says to fix it first
            lab.write([line for line in ORDERS if line[0] in "15"])
        code, answer = lab.type(command.replace('"..."', "'a test'"))  # as a person fills it in
        assert code in OUTCOMES, (command, answer)
        assert not NOTHING.search(answer), (command, answer)


def not_migrated(lab):
    """The database is new."""
    lab.empty()


def downgraded(lab):
    """The schema was removed after a run."""
    assert lab.type(RUN)[0] in OUTCOMES
    downgrade(Database(lab.url), "base")


def unswept(lab):
    """The run of a batch died hours ago, and nothing sweeps."""
    interrupted(lab)
    lab.change("UPDATE batch SET opened_at = now() - interval '2 hours'")


def swept_long_ago(lab):
    """The same, with a sweeper that has stopped."""
    lab.type("ackledger sweep")
    unswept(lab)
    lab.change("UPDATE last_sweep SET swept_at = now() - interval '3 hours'")


CHECKS = ["ackledger check", f"ackledger check {TARGET} {DAY}"]
# What is wrong in a state, by whether a pipeline is named, and the command that is printed of it.
CHECKED = [
    (not_migrated, 0, "database", "ackledger db upgrade"),
    (not_migrated, 1, "database", "ackledger db upgrade"),
    (downgraded, 0, "database", "ackledger db upgrade"),
    (downgraded, 1, "database", "ackledger db upgrade"),
    (unswept, 0, "sweeper", "ackledger sweep"),
    (swept_long_ago, 0, "sweeper", "ackledger sweep"),
]


@pytest.mark.parametrize(("state", "asked", "subject", "expected"), CHECKED)
def test_what_check_prints_repairs_what_it_finds(lab, state, asked, subject, expected):
    """Each command that ``check`` prints as a remedy works, and ``check`` finds nothing wrong
    after it."""
    state(lab)
    code, output = lab.type(CHECKS[asked])
    wrong = [line for line in output.splitlines() if line.startswith("wrong")]
    assert (code, [line.split()[1] for line in wrong]) == (1, [f"{subject}:"]), output
    assert list(printed_in("\n".join(wrong)).values()) == [expected]
    code, answer = lab.type(expected)
    assert code == 0, answer
    code, output = lab.type(CHECKS[asked])
    assert code == 0, output


def test_what_check_finds_without_remedy_prints_no_command(lab):
    """A table that somebody dropped is not made by migrating what is migrated: no command is
    printed that would do nothing."""
    lab.change("DROP TABLE last_sweep CASCADE")
    code, output = lab.type(CHECKS[0])
    assert code == 1
    assert "restore the ledger from a backup" in output
    assert printed_in(output) == {}


def test_a_schema_that_goes_while_it_is_used(lab):
    """Where a statement finds no schema any more, the command that is printed makes one."""
    database = Database(lab.url)
    lab.empty()
    with pytest.raises(ConfigurationError) as raised:
        database.transact(upkeep.last_sweep, engine=database.reader)
    database.dispose()
    (command,) = printed_in(str(raised.value)).values()
    assert lab.type(command)[0] == 0
    assert lab.type(CHECKS[0])[0] == 0
