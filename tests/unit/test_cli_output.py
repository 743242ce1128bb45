"""What the command line prints: tables, ids, help, progress."""

import io
import os
import subprocess
import sys
from dataclasses import fields
from datetime import datetime
from importlib import metadata
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from ledger.batch.explain import Explanation
from ledger.batch.remedies import Case, remedies
from ledger.cli import app, base, progress, records, tables

COUNTS = {"total": 336776, "acked": 336776, "failed": 12345, "quarantined": 0, "pending": 0}
BATCH = {
    "batch_id": 12345,
    "pipeline": "flights",
    "kind": "original",
    "status": "settled",
    "outcome": "complete",
    "accepted": 0,
    **COUNTS,
}


def printed(renderable, width=80):
    """What a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable, crop=False)
    return console.file.getvalue()


def commands(command=None, path=()):
    """Every command with the words that call it."""
    command = command or get_command(app)
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))
    if not hasattr(command, "commands"):
        yield path


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_each_option_has_its_variable_and_help_names_it(path):
    """ACKLEDGER_, the command, the option; --json has one for all commands."""
    said = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "300"}).stdout
    command = get_command(app)
    for word in path:
        command = command.commands[word]
    options = [one for one in command.params if one.param_type_name == "option"]
    for option in options:
        automatic = "_".join(("ACKLEDGER", *path, option.name)).upper().replace("-", "_")
        expected = option.envvar or automatic
        assert f"env var: {expected}]" in said, option.name


def test_an_option_is_taken_from_its_variable():
    """As if it were typed; what is typed goes first."""
    env = {"ACKLEDGER_STATUS_LIMIT": "none"}
    said = CliRunner().invoke(app, ["status"], env=env)
    assert said.exit_code == 2
    assert "--limit" in said.stderr
    assert "valid integer" in said.stderr


def test_ids_can_be_pasted_back_and_counts_can_be_read():
    """Numbers of batches, roots and messages have no separators, counts have; headers are the
    columns' names.
    """
    shown = printed(tables.rows([{"batch_id": 12345, "message_id": 28677, "messages": 15482}]))
    header, _, line = [one for one in shown.splitlines() if one.strip()]
    assert header.split() == ["batch_id", "message_id", "messages"]
    assert line.split() == ["12345", "28677", "15,482"]
    failed = {
        "batch_id": 12345,
        "pipeline": "p",
        "step": "s",
        "reason": "lost",
        "status": "failed",
    }
    shown = printed(tables.failures([{**failed, "messages": 15482, "example_root": 28677}]))
    assert {"12345", "28677", "15,482"} <= set(shown.split())


@pytest.mark.parametrize(
    "more",
    [{}, {"quarantined": 4479, "accepted": 9, "pending": 1000}, {"pipeline": "p" * 60}],
)
def test_tables_fit_a_narrow_terminal(more):
    """No line of a table is wider than 80 columns, and no value is cut, broken or left out."""
    row = {**BATCH, "interval_start": datetime(2013, 1, 1), **more}
    shown = printed(tables.batches([row]))
    assert max(map(len, shown.splitlines())) <= 80
    wanted = {"12345", "original", "settled", "2013-01-01", "336,776", "12,345"}
    wanted |= {f"{value:,}" for value in more.values() if isinstance(value, int)}
    assert wanted <= set(shown.split())
    assert ("row 1" in shown) == (len(more.get("pipeline", "")) > 20 or "pending" in more)


def test_rows_too_wide_for_a_table_stand_below_each_other():
    """A wide row of a query is a line for each column."""
    row = {f"a_column_of_some_length_{n}": f"value {n}" for n in range(6)}
    lines = printed(tables.rows([row, row])).splitlines()
    assert lines[0] == "row 1"
    assert lines[1].split(None, 1) == ["a_column_of_some_length_0", "value 0"]


def test_a_sweep_says_what_is_left_and_what_it_could_not_settle():
    """Each in a line of its own, with the way out; nothing of it where there is nothing."""
    data = {"settlements": [], "dropped": [], "replays": [{"batch_id": 4}], "overdue": []}
    quiet = printed(tables.sweep({**data, "errors": {}})).splitlines()
    assert quiet[1:] == ["partitions dropped: 0; batches that ask for a replay: 4"]
    overdue = [{"batch_id": 7, "dag_id": "d"}, {"batch_id": 8, "dag_id": "d"}]
    data = {**data, "overdue": overdue, "errors": {9: "the ledger is away"}}
    left, error = printed(tables.sweep(data)).splitlines()[2:]
    assert "left to do: 7, 8." in left
    assert left.endswith("ackledger publish MODULE:PIPELINE --batch N")
    assert error == "batch 9 could not be settled: the ledger is away"


def test_facts_stay_one_line_each():
    """A fact, however long, is one line; what has no value is left out."""
    shown = printed(tables.facts({"database": "x" * 100, "pid": None, "state": "running"}))
    assert shown.splitlines() == [f"database: {'x' * 100}", "state: running"]


def test_a_command_in_a_message_stays_one_line():
    """What a summary advises can be pasted: no line break is put into it."""
    advice = "replay just these: ackledger replay jobs.flights:pipeline --batch 12345 " + "x" * 60
    data = {**BATCH, "steps": [], "undone": [], "roots": COUNTS, "advice": advice}
    data["steps"] = [dict.fromkeys(
        ("name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"), 0
    )]  # fmt: skip
    assert advice in printed(tables.summary(data)).splitlines()
    data["steps"][0]["name"] = "a_name_of_a_step_that_is_rather_long_for_a_narrow_terminal"
    assert data["steps"][0]["name"] in printed(tables.summary(data)).split()


def test_a_summary_says_what_a_state_waits_for():
    """Each sentence about a state that stands still is a line of its own, however long."""
    waits = [
        f"the state 'total' of batch {batch} waits for batch 1. " + "x" * 80 for batch in (2, 3)
    ]
    undone = [
        {"sentences": waits, "incomplete": False},
        {"sentences": ["said by the advice"], "incomplete": True},
    ]
    data = {**BATCH, "steps": [], "undone": undone, "roots": COUNTS}
    data["steps"] = [dict.fromkeys(
        ("name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"), 0
    )]  # fmt: skip
    assert printed(tables.summary(data)).splitlines()[-2:] == waits


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_an_example(path):
    """``--help`` of each command shows how one types it."""
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
    lines = [line.strip() for line in shown.split("Examples:")[1].splitlines() if line.strip()]
    assert lines
    for line in lines:  # each is whole, also on a narrow terminal
        assert line.startswith(f"ackledger {' '.join(path)}"), line


LONG = {
    "target": "a_package.with_a_module:and_its_pipeline",
    "batch_id": 12345,
    "interval_start": datetime(2013, 1, 1),
    "interval_end": datetime(2013, 2, 1),
    "params": {"region": "a region with a rather long name"},
    "dag_id": "a_dag_of_some_length",
    "step": "with_the_plane_and_the_weather",
    "at_source": False,
    "rereads": False,
    "reprocesses": True,
}


@pytest.mark.parametrize("at_source", [False, True])
def test_commands_of_failed_and_explain_stay_one_line_each(at_source, monkeypatch):
    """What these two advise can be pasted from 80 columns and from a pipe: a line for each
    command.
    """
    row = SimpleNamespace(records=3, _mapping={**LONG, "at_source": at_source, "records": 3})
    vars(row).update(row._mapping)
    wanted = remedies(Case.of(row))
    assert max(map(len, wanted)) > 80
    nothing = dict.fromkeys(field.name for field in fields(Explanation))
    told = {
        **nothing,
        "record": 7,
        "root": 7,
        "attempts": [],
        "quarantined_by_hand": [],
        "next": wanted,
    }
    shown = printed(records._explained(told)).splitlines()
    assert [line.strip() for line in shown[-len(wanted) :]] == wanted
    # failed prints its advice by itself, after the table
    out = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(records, "out", out)
    database = SimpleNamespace(
        reader=None, payload_reader=None, transact=lambda work, engine=None: [row]
    )
    monkeypatch.setattr(records, "connect", lambda settings: database)
    monkeypatch.setattr(records, "show", lambda *_: None)
    monkeypatch.setattr(records.held, "failures", lambda *_: [])  # no batch is on hold
    assert CliRunner().invoke(app, ["failed"]).exit_code == 0
    assert {line.strip() for line in out.file.getvalue().splitlines()} >= set(wanted[1:])


def test_a_user_without_a_name_has_a_number(monkeypatch):
    """In a container a user may have no name: commands that note who typed them note the number."""

    def nobody():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(base.getpass, "getuser", nobody)
    assert base.user() == f"uid {os.getuid()}"
    noted = []
    monkeypatch.setattr(records, "connect", lambda settings: None)
    monkeypatch.setattr(records, "quarantine", lambda database, reason, by, **_: noted.append(by))
    CliRunner().invoke(app, ["quarantine", "7", "--reason", "a test"])
    assert noted == [f"uid {os.getuid()}"]


def test_version_and_completion():
    """``--version`` prints the installed version; the shell is told what may follow."""
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"ackledger {metadata.version('ackledger')}\n")
    asked = {
        "_ACKLEDGER_COMPLETE": "complete_bash",
        "COMP_WORDS": "ackledger re",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        ["ackledger"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert {"replay", "release"} <= set(done.stdout.split())


def test_a_line_for_each_step_where_nobody_watches(monkeypatch):
    """Piped, each finished step is one line with its rows and seconds on stderr."""
    err = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(progress, "err", err)
    result = SimpleNamespace(record=SimpleNamespace(output_rows=15482), seconds=1.25)
    with progress.progress_of(7, 1) as shown:
        shown.on_step("parse", None)
        shown.on_step("parse", result)
        shown.settling()
    assert err.file.getvalue() == "batch 7: parse, 15,482 rows, 1.2 s\nbatch 7: settling\n"


def test_a_bar_with_rows_and_step_on_a_terminal(monkeypatch):
    """On a terminal a bar names the step and counts steps and rows."""
    err = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr(progress, "err", err)
    result = SimpleNamespace(record=SimpleNamespace(output_rows=15482), seconds=1.25)
    with progress.progress_of(7, 1) as shown:
        shown.on_step("parse", result)
        shown.on_step("shelf", None)
    said = err.file.getvalue()
    assert "batch 7: shelf" in said
    assert "1/2" in said
    assert "15,482 rows" in said


def test_only_the_noise_of_a_started_process_is_left_out():
    """Of what a process started meanwhile writes to stderr, the JVM's own warnings alone are
    left out.
    """
    program = (
        "import subprocess, sys\nfrom ledger.spark.quiet import quiet_start\nwith quiet_start():\n "
        "   child = subprocess.Popen(['sh', '-c', 'echo WARNING: Using incubator modules: x >&2;"
        " echo an error >&2'])\nchild.wait()\nimport threading\n[one.join() for one in"
        " threading.enumerate() if one.name == 'stderr']\nprint('own', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "an error\nown\n"
