"""``ackledger audit`` as a user types it: a script of a shop, with Spark's own options."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import jvm
from tests.support.places import ROOT

START = """\
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
"""
JOB = """\
import os
print("arguments", sys.argv[1:])
os.system("echo from a shell")
orders = spark.read.csv("orders.csv", header=True)
shops = spark.read.csv("shops.csv", header=True)
paid = orders.where("state = 'paid'")
cents = paid.withColumn("cents", F.expr("try_cast(cents AS INT)")).where("cents >= 0")
placed = cents.join(shops, "shop")
placed.write.mode("overwrite").parquet("out/placed")
back = spark.read.parquet("out/placed")
print(back.count(), "placed")
back.groupBy("shop").agg(F.sum("cents")).write.csv("out/totals", header=True)
spark.stop()
"""
SHOPS = 30
PAID, CENTS, SHOP = "filter job.py:9", "filter job.py:10", "inner join job.py:11"
SECONDS = 150


class Terminal:
    """A job's folder, the copies' folder, and the command."""

    def __init__(self, folder: Path):
        self.job, self.copies = folder / "job", folder / "copies"
        self.job.mkdir()
        self.copies.mkdir()
        names = ("ACKLEDGER_", "PYSPARK_", "SPARK_", "PYTHON", "COLUMNS")
        rest = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        self._environment = {
            **rest,
            **jvm.brief(),
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.copies),
            "COLUMNS": "80",
        }
        self.files: set[Path] = set()

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start ``ackledger audit``."""
        self.files = set(self.job.rglob("*"))
        return subprocess.Popen(
            [sys.executable, "-c", "from ledger.cli import main; main()", "audit", *arguments],
            env=self._environment | environment,
            cwd=self.job,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path, code: int, is_quiet: bool = True) -> tuple[str, str]:
        """Run ``ackledger audit`` until it ends with a code; what it printed."""
        return self.ended(self.start(*arguments), code, is_quiet)

    def ended(
        self, process: subprocess.Popen[str], code: int, is_quiet: bool = True
    ) -> tuple[str, str]:
        """Wait for the end. No copy is left, and the job's folder is as it was.

        ``is_quiet``: Spark has no failure to log.
        """
        try:
            out, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == code, out + errors
        assert not list(self.copies.glob("ackledger-*"))
        assert set(self.job.rglob("*")) == self.files
        text = out + errors if is_quiet else out
        assert not [word for word in ("Traceback", "py4j", "Py4J") if word in text], text
        return out, errors

    def give_all_objects_one_hash(self) -> None:
        """Have the JVM return one identity hash for all its objects."""
        self._environment["JDK_JAVA_OPTIONS"] = "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2"

    def write(self, name: str, text: str) -> None:
        """Write a script that has a session."""
        (self.job / name).write_text(START + dedent(text))


def orders(more: int = 0) -> list[dict[str, str]]:
    """Orders of which some have no shop, one that is unknown, or cents that do not parse.

    ``more``: orders of an unknown shop at the end.
    """
    rows = [
        {
            "order_id": f"o{n}",
            "shop": "" if n % 32 == 11 else f"s{n % 37}",
            "state": ("paid", "open", "paid", "", "paid")[n % 5],
            "cents": "n/a" if n % 41 == 2 else str(n % 500),
        }
        for n in range(600)
    ]
    extra = {"shop": "unknown", "state": "paid", "cents": "1"}
    return rows + [{"order_id": f"x{n}", **extra} for n in range(more)]


def write_orders(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write the two files that the job reads."""
    with (folder / "orders.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    shops = "".join(f"s{n},AT\n" for n in range(SHOPS))
    (folder / "shops.csv").write_text(f"shop,country\n{shops}")


def expected_losses(rows: list[dict[str, str]]) -> dict[tuple[str, str], int]:
    """The lost orders by operation and reason, in plain Python."""
    losses: dict[tuple[str, str], int] = {}
    for row in rows:
        key = None
        if row["state"] != "paid":
            key = PAID, f"condition {'false' if row['state'] else 'NULL'}: state = 'paid'"
        elif row["cents"] == "n/a":
            key = CENTS, "condition NULL: cents >= 0"
        elif not row["shop"]:
            key = SHOP, "key NULL: shop"
        elif int(row["shop"][1:]) >= SHOPS:
            key = SHOP, "no partner for shop"
        if key is not None:
            losses[key] = losses.get(key, 0) + 1
    return losses


@pytest.fixture
def terminal(tmp_path):
    """A terminal in the folder of the job with its files."""
    result = Terminal(tmp_path)
    write_orders(result.job, orders())
    result.write("job.py", JOB)
    return result


def test_a_job_from_its_first_report_to_expected_losses(terminal, tmp_path):
    """Numbers are those of plain Python; stdout has only JSON; options behind the script are the
    script's; losses in the file that was written are expected, and one more is not.
    """
    page, allowed = tmp_path / "report.html", tmp_path / "expected.json"
    options = ("--json", "--html", page, "--write-expected", allowed)
    out, errors = terminal.run(*options, "job.py", "--output", "x", "--json", code=1)
    report = json.loads(out)
    counted = {
        (f"{loss['operation']} {loss['place']}", loss["text"]): loss["records"]
        for loss in report["losses"]
    }
    wanted = expected_losses(orders())
    assert counted == wanted
    intended = wanted[PAID, "condition false: state = 'paid'"]
    sources = {source["name"]: source for source in report["sources"]}
    assert set(sources) == {"orders.csv", "shops.csv"}
    lost = sum(wanted.values()) - intended
    numbers = [sources["orders.csv"][name] for name in ("records", "arrived", "lost", "intended")]
    assert numbers == [600, 600 - lost - intended, lost, intended]
    assert report["lost"] == lost
    (note,) = report["notes"]  # none on Spark's JVM, which the script starts
    assert note.startswith("`echo from a shell` at job.py:6 is executed: the audit does not see")
    assert note in page.read_text()
    lines = [line.split("\r")[-1].strip() for line in errors.splitlines()]
    for line in (
        "arguments ['--output', 'x', '--json']",
        "from a shell",
        f"{600 - lost - intended} placed",
        "job.py:12 writes out/placed, to a copy",
        "job.py:15 writes out/totals, to a copy",
        "looking for lost records of 2 outputs",
    ):
        assert line in lines, errors
    assert "no partner for shop" in page.read_text()
    terminal.write("job.py", f"{JOB}sys.exit(0)\n")
    out, _ = terminal.run("--expected", allowed, "job.py", code=0)
    assert "EXPECTED: lost, and in the list of expected losses" in out
    assert max(map(len, out.splitlines())) <= 120
    write_orders(terminal.job, orders(more=1))
    out, _ = terminal.run("--expected", allowed, "job.py", code=1)
    assert "no partner for shop" in out.partition("LOST")[2].partition("EXPECTED")[0]


def test_objects_of_one_hash(terminal):
    """Nodes of a plan are told apart by themselves, not by the identity hash of their object."""
    terminal.give_all_objects_one_hash()
    terminal.write(
        "job.py",
        """
        orders = spark.read.csv("orders.csv", header=True)
        paid = orders.where("order_id <> 'o0'").where("state = 'paid'")
        paid.join(spark.read.csv("shops.csv", header=True), "shop").write.csv("out")
        """,
    )
    out, _ = terminal.run("--json", "--source", "orders.csv", "job.py", code=1)
    wanted: dict[str, int] = {}
    for row in orders()[1:]:
        reason = "no partner for shop"
        if row["state"] != "paid":
            reason = f"condition {'false' if row['state'] else 'NULL'}: state = 'paid'"
        elif not row["shop"]:
            reason = "key NULL: shop"
        elif int(row["shop"][1:]) < SHOPS:
            continue
        wanted[reason] = wanted.get(reason, 0) + 1
    losses = {loss["text"]: loss["records"] for loss in json.loads(out)["losses"]}
    assert losses == {"condition false: NOT (order_id = 'o0')": 1} | wanted


def test_a_script_that_fails(terminal):
    """The report has what it wrote until then, the line and the worker's own error; a write that
    failed is no output; a UDF directly over Parquet files does not wait for ever.
    """
    pq.write_table(pa.table({"n": range(6)}), terminal.job / "numbers.parquet")
    (terminal.job / "rules.py").write_text("LEAST = 2\n")
    terminal.write(
        "fails.py",
        """
        import rules, subprocess
        subprocess.run(["true", "&"], check=True)
        numbers = spark.read.parquet("numbers.parquet")
        large = F.udf(lambda n: n >= rules.LEAST, "boolean")
        try:
            numbers.select(F.raise_error(F.lit("no day")).alias("n")).write.csv("none")
        except Exception as error:
            print("caught", type(error).__name__)
        numbers.where(large("n")).write.csv("large")
        numbers.select(F.udf(lambda n: 1 // (n - 5), "int")("n")).collect()
        numbers.write.csv("never")
        """,
    )
    out, errors = terminal.run("fails.py", code=2, is_quiet=False)
    assert "numbers.parquet   6        4     0         2" in out
    failure = "fails.py failed at fails.py:14: PythonException: ZeroDivisionError: "
    assert failure in " ".join(out.split())
    assert "NOTES `true &` at fails.py:6 is executed: the audit does not see" in " ".join(
        out.split()
    )
    assert "fails.py:13 writes large, to a copy" in errors
    assert "writes never" not in errors


def test_an_interrupt(terminal):
    """Ctrl-C ends the command with a line, and the copies are removed."""
    terminal.write(
        "waits.py",
        """
        slow = F.udf(lambda n: __import__("time").sleep(1) or n, "long")
        spark.range(3).write.parquet("first")
        spark.range(900).select(slow("id")).write.parquet("second")
        """,
    )
    process = terminal.start("waits.py")
    deadline = time.monotonic() + SECONDS
    while not list(terminal.copies.glob("ackledger-audit-*/output-1/_temporary/**/*.parquet")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = terminal.ended(process, code=130)
    assert out == ""
    assert errors.splitlines()[-1] == "ackledger: interrupted, so there is no report"


REFUSED = {
    "nothing.py": "nothing.py: expected a Python script, found no file",
    "folder": "folder: expected a Python script, found a folder",
    "--nope job.py": "No such option: --nope",
    "--folder nowhere job.py": "--folder nowhere: expected a folder, found none",
    "--html nowhere/a.html job.py": "nowhere/a.html: expected a file to write, found no folder",
    "--write-expected folder job.py": "folder: expected a file to write, found a folder",
    "--expected nothing.json job.py": "nothing.json: the expected losses cannot be read",
}


def test_requests_that_make_no_sense(terminal):
    """Each is refused in one line before the script runs; so is a script with a syntax error."""
    (terminal.job / "folder").mkdir()
    for arguments, message in REFUSED.items():
        out, errors = terminal.run(*arguments.split(), code=2)
        assert out == ""
        lines = [line for line in errors.splitlines() if line]
        assert message in lines[-1]
        assert len(lines) == (3 if "option" in message else 1)  # with the usage
    terminal.write("wrong.py", "print(1)\nfor:\n")
    out, errors = terminal.run("wrong.py", code=2)
    assert errors == ""
    assert out.splitlines()[0] == "the script wrote no output"
    assert "wrong.py failed at wrong.py:5: SyntaxError: invalid syntax: " in out


def test_names_that_the_script_does_not_have(terminal, tmp_path):
    """The report is printed and saved as without them; the last line says which names there are."""
    page = tmp_path / "report.html"
    names = ("--output", "gold", "--source", "x.csv", "--html", page)
    out, errors = terminal.run(*names, "job.py", code=2)
    assert "LOST: these records reach no output" in out
    assert "no partner for shop" in page.read_text()
    assert errors.splitlines()[-1] == (
        "ackledger: --output gold: the script has no such output, expected one of out/placed, "
        "out/totals. --source x.csv: the script has no such source, expected one of orders.csv, "
        "shops.csv"
    )


def test_without_java(terminal):
    """What is missing, and what to install, is said before the script runs."""
    process = terminal.start("job.py", JAVA_HOME="/nonexistent")
    out, errors = terminal.ended(process, code=2)
    assert (out, len(errors.splitlines())) == ("", 1)
    assert errors.startswith("ackledger: Spark needs Java 17 or 21, and JAVA_HOME=/nonexistent has")
    assert "Set it to a folder that has bin/java, or unset it" in errors


def test_another_java(terminal, tmp_path):
    """Its version is named, and which ones Spark runs on, before the script runs."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    out, errors = terminal.ended(terminal.start("job.py", JAVA_HOME=str(tmp_path)), code=2)
    assert (out, len(errors.splitlines())) == ("", 1)
    assert errors.startswith(f"ackledger: Spark needs Java 17 or 21, found 11 ({java}): ")


def test_a_script_that_leaves_its_folder(terminal, tmp_path):
    """Its own file has an absolute path, and files of the command are where they were named."""
    terminal.write("away.py", "import os\nos.chdir(os.path.dirname(__file__))\nos.chdir('/')\n")
    files = ("--html", "../page.html", "--write-expected", "../losses.json")
    out, _ = terminal.run(*files, "away.py", code=2)
    assert "failed" not in out
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "losses.json").exists()
