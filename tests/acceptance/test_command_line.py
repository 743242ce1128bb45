"""The ``ackledger`` command as a user types it: its own embedded database, real Spark, exit
codes.
"""

import getpass
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from demo import data, oracle
from jobs.wordcount import pipeline as wordcount
from ledger.batch.opening import open_replay
from ledger.core.run_request import RunKey, Selection
from ledger.core.states import BatchStatus
from ledger.errors import EXIT_PERMANENT
from ledger.settings import Settings
from ledger.store import embedded
from scripts.airflow_env import ROOT
from tests.support import jvm
from tests.support.flights import without_plane, write_slice
from tests.support.forked import Commands
from tests.support.ledgers import pipeline
from tests.support.reasons import bare

JANUARY = ("--from", "2013-01-01", "--to", "2013-02-01")
FLIGHTS = "jobs.flights:pipeline"
PROGRESS = re.compile(r"batch \d+: ")


class CommandLine:
    """Runs ``ackledger`` in a folder of its own."""

    def __init__(self, commands: Commands, folder: Path, **settings: str):
        self._commands, self.folder = commands, folder
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ACKLEDGER_", "PYSPARK_", "SPARK_"))
            },
            **jvm.environment(),
            "PYTHONPATH": str(ROOT),
            "ACKLEDGER_HOME": str(folder / "home"),
            "ACKLEDGER_DATA": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **settings,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return self._commands.run(arguments, self.folder, self.environment)

    def json(self, *arguments: str, code: int = 0):
        """Run the command with --json; what it printed, if it ended with ``code``."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str) -> str:
        """Run a command that ends with 1 and one line; the line."""
        done = self.run(*arguments)
        lines = [line for line in done.stderr.splitlines() if line and not PROGRESS.match(line)]
        assert (done.returncode, len(lines)) == (1, 1), done.stdout + done.stderr
        assert lines[0].startswith("ackledger: ")
        return lines[0]


@pytest.fixture(scope="session")
def commands():
    """What runs commands."""
    process = Commands()
    yield process
    process.end()


@pytest.fixture
def folder():
    """A folder whose path is short enough for a socket; its server is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        path = Path(name)
        path.chmod(0o755)
        try:
            yield path
        finally:
            embedded.stop(path / "home")


@pytest.fixture
def cli(commands, folder, migrated, database):
    """The command on the tests' migrated ledger, empty."""
    return CommandLine(
        commands, folder, ACKLEDGER_DATABASE_URL=migrated.url.render_as_string(hide_password=False)
    )


def test_from_nothing_to_a_settled_ledger(commands, folder):
    """With no database and no settings but a folder: run, see what was lost, replay, ask in SQL."""
    cli = CommandLine(commands, folder)
    write_slice(folder, (1,))
    lost = without_plane(folder, 1)
    assert "the ledger holds no batch yet" in cli.run("status").stdout

    report = cli.json("run", FLIGHTS, *JANUARY, "--run-id", "first", code=3)
    assert {"batch_id", "status", "records", "steps", "seconds"} <= set(report)
    assert (report["batch_id"], report["status"]) == (1, "settled")
    assert report["records"] == {
        "total": 300,
        "acked": 300 - lost,
        "failed": lost,
        "quarantined": 0,
        "pending": 0,
    }
    names = [step["name"] for step in report["steps"]]
    assert names[:5] == ["departures", "parse", "with_plane", "with_weather", "warehouse"]
    assert set(names[5:]) >= {"on_time", "punctuality"}
    assert [step["output"] for step in report["steps"][:5]] == [300, 300, *[300 - lost] * 3]
    assert all(
        {"name", "input", "output", "seconds"} <= set(step) and step["seconds"] > 0
        for step in report["steps"][:5]
    )
    assert report["seconds"] > 0

    failed = cli.json("failed")
    assert [
        (row["step"], bare(row["reason"]), row["status"], row["records"]) for row in failed
    ] == [("with_plane", "inner join: no partner for tailnum", "failed", lost)]
    again = cli.json("run", FLIGHTS, *JANUARY, "--run-id", "first", code=3)
    assert (again["batch_id"], again["records"]) == (1, report["records"])
    taken = cli.refused("run", FLIGHTS, *JANUARY)
    assert "belongs to batch 1 (settled; run 'first')" in taken
    assert f"Run it again: ackledger run {FLIGHTS} {' '.join(JANUARY)} --run-id first. " in taken

    data.write_planes(folder)
    unknown = without_plane(folder, 1)
    (replayed,) = cli.json("replay", FLIGHTS, code=4)
    assert replayed["records"] == {
        "total": lost,
        "acked": lost - unknown,
        "failed": 0,
        "quarantined": unknown,
        "pending": 0,
    }
    assert "nothing to replay" in cli.run("replay", FLIGHTS).stdout
    named = (
        "SELECT count(*) AS n FROM failed_root_detail WHERE step LIKE '%plane' AND reason <> ';'"
    )
    assert cli.json("sql", named) == [{"n": lost + unknown}]
    rows = oracle.sink_rows(folder / "warehouse" / "departures")
    assert rows == oracle.expected_rows(folder, ["2013-01-01"])

    status = cli.json("status", "--pipeline", "flights")
    assert [(row["kind"], row["acked"], row["quarantined"]) for row in status] == [
        ("replay", lost - unknown, unknown), ("original", 300 - unknown, unknown),
    ]  # fmt: skip
    quarantined = cli.json("status", "--batch", "1")
    assert quarantined["outcome"] == "complete with quarantined records"
    assert 'ackledger accept 1 --reason "..."' in cli.run("failed", "--batch", "1").stdout
    assert cli.json("accept", "2", "--reason", "unregistered")["accepted"] == unknown
    done = cli.json("status", "--batch", "1")
    assert (done["outcome"], done["accepted"]) == ("complete", unknown)
    table = cli.run("status").stdout
    assert "quarantined" in table
    assert "replay" in table
    assert cli.json("sql", "SELECT count(*) AS n FROM quarantine") == [{"n": unknown}]
    assert cli.json("sweep")["settlements"] == []


def test_interrupted_replay_goes_on(cli, folder, database):
    """A replay interrupted after it claimed its records is found again by its run id."""
    sentences = folder / "sentences" / "2013-01-01" / "part.jsonl"
    sentences.parent.mkdir(parents=True)
    sentences.write_text(json.dumps({"sentence": "..."}) + "\n")
    day = ("--from", "2013-01-01", "--to", "2013-01-02")
    cli.json("run", "jobs.wordcount:pipeline", *day, code=3)
    open_replay(database, Settings(), wordcount, RunKey("", "mine-1"), 1, Selection())
    assert cli.json("replay", "jobs.wordcount:pipeline") == []
    (replayed,) = cli.json("replay", "jobs.wordcount:pipeline", "--run-id", "mine", code=3)
    assert (replayed["batch_id"], replayed["status"], replayed["records"]["total"]) == (
        2,
        "settled",
        1,
    )


def test_word_count(cli, folder):
    """Sentences become words and running totals; a sentence without words fails by name."""
    sentences = ["good idea", "a good word is a word", "...", "idea"]
    lines = folder / "sentences" / "2013-01-01" / "part.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in sentences))
    data = cli.json(
        "run",
        "jobs.wordcount:pipeline",
        "--from",
        "2013-01-01",
        "--to",
        "2013-01-02",
        code=3,
    )
    assert data["records"] == {"total": 4, "acked": 3, "failed": 1, "quarantined": 0, "pending": 0}
    words = (
        ds.dataset(folder / "warehouse" / "words", format="parquet", partitioning="hive")
        .to_table()["word"]
        .to_pylist()
    )
    assert Counter(words) == Counter(
        ["good", "idea", "a", "good", "word", "is", "a", "word", "idea"]
    )
    counts = DeltaTable(folder / "warehouse" / "counts").to_pyarrow_table().to_pylist()
    assert Counter({row["word"]: row["n"] for row in counts}) == Counter(words)
    (lost,) = cli.json("sql", "SELECT step, reason, message_id FROM failed_root_detail")
    assert (lost["step"], lost["message_id"]) == ("split", 3)
    assert bare(lost["reason"]).startswith("explode: ")
    assert lost["reason"].endswith(" is empty")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_split_and_merge(cli, folder, guarantee):
    """Without any input trades are made up, split and merged; their sum is the one in the
    source's offset.
    """
    day = ("--from", "2013-01-01", "--to", "2013-01-02")
    data = cli.json("run", "jobs.trades:pipeline", *day, "--guarantee", guarantee)
    assert (data["records"]["acked"], data["records"]["failed"]) == (1000, 0)
    (source,) = cli.json("sql", "SELECT position FROM source_position WHERE source = 'trades'")
    totals = DeltaTable(folder / "warehouse" / "positions").to_pyarrow_table()
    rows = {name: sum(totals[name].to_pylist()) for name in ("trades", "cents")}
    assert rows == json.loads(source["position"])
    (compared,) = DeltaTable(folder / "warehouse" / "comparison").to_pyarrow_table().to_pylist()
    assert compared == {**rows, "booked": 1000, "booked_cents": rows["cents"]}


def test_a_run_that_fails_before_its_first_commit_leaves_no_claim(cli, folder):
    """A missing file opens no batch; what only the source's own run finds abandons it in the
    same call, and the command in its message runs it again.
    """
    write_slice(folder, (1,), 20)
    flights = folder / "flights" / "2013-01-01.csv"
    good = flights.read_text()
    flights.unlink()
    line = cli.refused("run", FLIGHTS, *JANUARY)
    assert f"source 'departures': no file matches {flights}" in line
    assert cli.json("status") == []

    flights.write_text("wrong\n1\n")
    line = cli.refused("run", FLIGHTS, *JANUARY)
    assert str(flights) in line
    _, command = line.split("Batch 1 is abandoned and claims nothing. To go on: ackledger ")
    assert "--run-id run-" in command
    (abandoned,) = cli.json("status")
    assert abandoned["status"] == "abandoned"

    flights.write_text(good)
    data = cli.json(*shlex.split(command), code=3)
    assert (data["batch_id"], data["records"]["total"]) == (1, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "jobs.flight:pipeline", *JANUARY), "no module 'jobs.flight'"),
        (("run", "jobs.flights:pipelines", *JANUARY), "did you mean 'pipeline'?"),
        (
            ("run", FLIGHTS, "--from", "2013-02-01", "--to", "2013-02-01"),
            "not after its start",
        ),
        (("run", FLIGHTS, *JANUARY, "--param", "region"), "expected NAME=VALUE"),
        (("status", "--batch", "7"), "batch 7 is not in the ledger"),
        (("sql", "SELECT * FROM batches"), 'relation "batches" does not exist. docs/sql.md lists'),
        (("sql", "SELECT * FROM alembic_version; SELECT 1"), "expected one query, found several"),
        (("sql", "DELETE FROM batch"), "expected a query that returns rows, for example SELECT"),
        (("sql", "DELETE FROM batch RETURNING 1"), "read-only transaction"),
        (("sql", "SELECT set_config('transaction_read_only', 'off', true)"), "must be set before"),
        (("sql", "COMMIT; DELETE FROM batch"), "expected one query, found several"),
        (("sql", "SET work_mem = '1MB'"), "cannot open SET query as cursor"),
    ],
)
def test_clear_refusals(cli, arguments, message):
    """What cannot be done is refused in one line that says why."""
    assert message in cli.refused(*arguments)


def test_a_held_batch_is_released_and_its_replay_foreseen(cli, folder, ledger):
    """``release`` settles what too many failures hold, and no other batch; ``replay --dry-run``
    says what is due by step and reason, the selection's options included, and claims nothing.
    """
    (folder / "chain.py").write_text(
        "from tests.support.ledgers import pipeline\npipeline = pipeline(hold_above=0.2)\n"
    )
    cli.environment["PYTHONPATH"] += f":{folder}"
    flow = pipeline(hold_above=0.2)
    batch, roots = ledger.whole_batch(flow, 4, lose_sink=[0, 1])
    number = str(batch.batch_id)
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    released = cli.json("release", number)
    assert (released["status"], released["failed"]) == ("settled", 2)
    assert "only a batch on hold" in cli.refused("release", number)
    due = {"batch_id": batch.batch_id, "step": "sink", "reason": "lost", "records": 2}
    wanted = [
        ((), [due]),
        (("--batch", number, "--step", "sink", "--reason", "lo%", "--source", "source"), [due]),
        (("--record", str(roots[1]), "--since", "2013-01-01"), [{**due, "records": 1}]),
        (("--step", "middle"), []),
        (("--until", "2013-01-01"), []),
        (("--since", "2100-01-01"), []),
        (("--quarantined",), []),
    ]
    for options, count in wanted:
        data = cli.json("replay", "chain:pipeline", "--dry-run", *options)
        assert data == [{**row, "pipeline": "chain"} for row in count], options
    typos = [
        (("replay", "chain:pipeline", "--batch", "999"), "batch 999 is not in the ledger"),
        (("replay", "chain:pipeline", "--step", "midle"), "did you mean 'middle'?"),
        (("failed", "--batch", "999"), "batch 999 is not in the ledger"),
        (("failed", "--records", "--reason", "lots"), "did you mean 'lost'?"),
        (("status", "--pipeline", "chian"), "did you mean 'chain'?"),
        (("gc", "--pipeline", "chian"), "did you mean 'chain'?"),
        (("publish", "chain:pipeline", "--batch", "999"), "batch 999 is not in the ledger"),
        (("quarantine", "--batch", number, "--step", "snik", "--reason", "x"), "mean 'sink'?"),
    ]
    for command, meant in typos:
        assert meant in cli.refused(*command), command
    assert ledger.row("SELECT count(*) FROM batch")[0] == 1


STRICT = """
from ledger import FailedRecord, FileSource, ParquetSink, Pipeline

pipeline = Pipeline("strict", hold_above=0.1)
pipeline.source("orders", FileSource("orders.csv", schema="id INT, qty INT"), key=("id",))


@pipeline.record_stage(reads="orders", schema="id INT, qty INT")
def valid(order):
    if order["qty"] <= 0:
        raise FailedRecord("quantity not positive")
    yield order


pipeline.sink("out", ParquetSink("out"), reads="valid")
"""


def test_a_batch_on_hold_shows_what_to_decide_by(cli, folder):
    """``run``, ``status``, ``failed``, ``failed --records`` and ``explain`` have the steps, the
    reasons and the records that would fail, marked as not decided; both commands that they print
    do what they say.
    """
    (folder / "strict.py").write_text(STRICT)
    rows = "".join(f"{n},{n - 3}\n" for n in range(1, 11))
    (folder / "orders.csv").write_text(f"id,qty\n{rows}")
    cli.environment["PYTHONPATH"] += f":{folder}"
    ran = cli.run("run", "strict:pipeline", *JANUARY)
    assert ran.returncode == 1
    why = "3 of 10 records failed; the limit is 10 % (hold_above). Most failed at valid"
    rerun = re.search(r"Fix it and rerun:\s+(ackledger run .+)\n", ran.stdout)
    release = re.search(r"Or publish the rest anyway:\s+(ackledger release \d+)", ran.stdout)
    assert rerun is not None, ran.stdout
    assert release is not None, ran.stdout
    for command in (("status", "--batch", "1"), ("status",), ("failed",)):
        asked = cli.run(*command)
        shown = asked.stdout + asked.stderr
        assert why in shown, command
        assert release[1] in shown
        if command[1:]:
            assert "On hold: not decided. These records would fail:" in shown
            assert re.search(r"valid +quantity not positive +3 *\n", shown), shown
    assert re.search(r"valid +quantity not positive +3 *\n", ran.stdout), ran.stdout
    failure = {"step": "valid", "reason": "quantity not positive", "status": "on hold"}
    (row,) = cli.json("failed", "--batch", "1")
    assert row.items() >= {**failure, "records": 3}.items()
    listed = cli.json("failed", "--batch", "1", "--records", "--where", "id > 1")
    records = listed["records"]
    assert [(record["key"], record["status"]) for record in records] == [
        ({"id": 2}, "on hold"),
        ({"id": 3}, "on hold"),
    ]
    assert "Of 3 records that would fail" in cli.run("failed", "--records").stdout
    data = cli.json("explain", str(records[0]["record"]))
    assert (data["verdict"], data["content"]) == ("on hold: not decided", '{"id": 2, "qty": -1}')
    again = cli.run(*shlex.split(rerun[1])[1:])
    assert (again.returncode, why in again.stdout) == (1, True), again.stdout + again.stderr
    assert cli.json(*shlex.split(release[1])[1:])["status"] == "settled"
    (row,) = cli.json("failed", "--batch", "1")
    assert row.items() >= {**failure, "status": "failed", "records": 3}.items()


def test_quarantined_records_are_accepted(cli, ledger):
    """``accept`` says how many, for a batch that is there, and may be repeated; ``status`` has
    the outcome before and after, and the command in between.
    """
    batch, _ = ledger.whole_batch(pipeline(max_replays=0), 4, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    ledger.deliver()
    number = str(batch.batch_id)
    before = cli.json("status", "--batch", number)
    assert (before["outcome"], before["exit_code"]) == ("complete with quarantined records", 4)
    ways = [command for _, command in before["commands"]]
    assert f"ackledger failed --records --batch {number}" in ways
    assert f'ackledger accept {number} --reason "..."' in ways
    done = cli.json("accept", number, "--reason", "test rows")
    counts = {"records": 2, "accepted": 2, "quarantined": 2, "failed": 0, "next": None}
    assert done == {"batch_id": batch.batch_id, **counts}
    again = cli.json("accept", number, "--reason", "again")
    nothing_left = f"batch {number} has nothing left to accept: 2 of 2 quarantined are accepted"
    assert again == {**done, "records": 0, "next": nothing_left}
    assert "Missing option '--reason'" in cli.run("accept", number).stderr
    assert "the reason is empty" in cli.refused("accept", number, "--reason", " ")
    assert [row["accepted_by"] for row in cli.json("failed")] == [getpass.getuser()]
    assert f"accepted by {getpass.getuser()}" in cli.run("failed").stdout
    assert "2 of 4 records accepted by" in cli.run("status", "--batch", number).stdout
    assert "complete" in cli.run("status", "--batch", number).stdout.splitlines()[0]
    after = cli.json("status", "--batch", number)
    assert (after["outcome"], after["exit_code"], after["accepted"]) == ("complete", 0, 2)
    assert [row["accepted"] for row in cli.json("status")] == [2]
    assert "batch 77 is not in the ledger" in cli.refused("accept", "77", "--reason", "none")


def test_storage_that_cannot_be_written(cli, folder):
    """An unwritable storage is refused before a batch is opened."""
    write_slice(folder, (1,), 5)
    (folder / "file").write_text("")
    cli.environment["ACKLEDGER_STORAGE"] = str(folder / "file" / "storage")
    assert "cannot be written to" in cli.refused("run", FLIGHTS, *JANUARY)
    assert cli.json("status") == []


def test_database_that_is_down(commands, folder):
    """A database that does not answer is one line with its address and without its password."""
    cli = CommandLine(
        commands,
        folder,
        ACKLEDGER_DATABASE_URL="postgresql+psycopg2://me:secret@127.0.0.1:9/ledger",
    )
    line = cli.refused("status")
    assert "postgresql+psycopg2://me:***@127.0.0.1:9/ledger did not answer" in line
    assert "secret" not in line


def test_without_java(cli, folder, tmp_path):
    """Without Java a run ends with the package to install, and its batch can be run again."""
    for name in ("ackledger", "python"):
        (tmp_path / name).symlink_to(shutil.which(name))
    cli.environment |= {"PATH": str(tmp_path)}
    cli.environment.pop("JAVA_HOME", None)
    write_slice(folder, (1,), 5)
    assert "openjdk-17-jre-headless" in cli.refused("run", FLIGHTS, *JANUARY)


ORDERS = """
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType
from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("orders")
schema = "id INT, price STRING"
pipeline.source("orders", FileSource("{{ interval_start | ds }}.csv*", schema=schema))


@F.udf(DoubleType())
def price(text):
    return float(text)


@pipeline.stage(reads="orders")
def priced(orders):
    return orders.withColumn("price", price("price"))


pipeline.sink("out", ParquetSink("out"), reads="priced")
"""


def test_what_fails_is_one_line_with_the_way_on(cli, folder):
    """A function that raises and a damaged file are one line each, whose command goes on once it is
    fixed."""
    (folder / "orders.py").write_text(ORDERS)
    (folder / "2013-01-01.csv").write_text("id,price\n1,2.50\n2,dear\n")
    refusals = cli.refused("run", "orders:pipeline", *JANUARY, "--run-id", "jan")
    number = ORDERS.splitlines().index("    return float(text)") + 1
    on = "ackledger run orders:pipeline --from 2013-01-01 --to 2013-02-01 --run-id jan"
    assert (
        refusals
        == "ackledger: batch 1 (run id jan) failed at step 'priced': ValueError: could not convert "
        "string to float: 'dear' "
        f"({folder}/orders.py:{number}, in price). To go on: {on}. If you fixed an earlier step or"
        " the files of a source, first: ackledger restart 1"
    )
    waiting = cli.run("--verbose", "run", "orders:pipeline", *JANUARY, "--run-id", "jan")
    assert waiting.returncode == 1
    assert "Traceback (most recent call last)" in waiting.stderr
    assert waiting.stderr.splitlines()[-1] == refusals

    (folder / "orders.py").write_text(
        ORDERS.replace("float(text)", "float(text.replace('dear', '9'))")
    )
    assert cli.run(*on.split()[1:]).returncode == 0
    whole = gzip.compress(
        b"id,price\n" + b"".join(b"%d,%d\n" % (n, n * 7919 % 997) for n in range(50_000))
    )
    (folder / "2013-02-01.csv.gz").write_bytes(whole[: len(whole) // 2])
    february = ("--from", "2013-02-01", "--to", "2013-03-01", "--run-id", "feb")
    refusals = cli.refused("run", "orders:pipeline", *february)
    assert refusals.startswith(
        "ackledger: batch 2 (run id feb) failed at step 'orders': source file "
        f"{folder}/2013-02-01.csv.gz cannot be read: Compressed file ended before the end-of-stream"
        " marker was reached"
    )
    assert refusals.endswith("--from 2013-02-01 --to 2013-03-01 --run-id feb")


def test_spark_submit_hands_on_what_is_permanent(cli):
    """The driver's exit code for what another try would only meet again is spark-submit's own."""
    driver = str(ROOT / "jobs" / "run_step.py")
    attempt = "00000000-0000-7000-8000-000000000000"
    arguments = [
        "--pipeline",
        "nowhere:pipeline",
        "--batch",
        "1",
        "--step",
        "s",
        "--attempt",
        attempt,
    ]
    done = subprocess.run(
        [
            "spark-submit",
            "--master",
            "local[1]",
            "--conf",
            "spark.log.level=WARN",
            driver,
            *arguments,
        ],
        env=cli.environment,
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_PERMANENT, done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert "ackledger ERROR s of batch 1: pipeline 'nowhere:pipeline': no module 'nowhere'" in last
