"""What the command line prints: tables, ids, help, progress."""

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from threading import Event
from types import SimpleNamespace

import pytest
from rich.console import Console
from sqlalchemy.engine import make_url
from typer.main import get_command
from typer.testing import CliRunner

from ledger.batch.advice.actions import lines
from ledger.batch.advice.records import Case, by_cause
from ledger.batch.records.explain import Explanation
from ledger.batch.upkeep.checks import Finding, require
from ledger.cli import app, base, causes, database, progress, projects, records, tables
from ledger.cli.base import fail_with
from ledger.cli.help import PANELS
from ledger.cli.listing import listed
from ledger.core.text import quantity
from ledger.databases import addresses
from ledger.errors import ConfigurationError, InputError
from ledger.spark.progress import TaskCount, Tasks, counting, watching
from ledger.store.queries.failures import FailureSummary
from scripts import site

COUNTS = {"total": 336776, "acked": 336776, "failed": 12345, "quarantined": 0, "pending": 0}
BATCH = {
    "batch_id": 12345,
    "pipeline": "flights",
    "kind": "original",
    "status": "settled",
    "outcome": "complete",
    "accepted": 0,
    "sinks": [],
    "notes": [],
    **COUNTS,
}


def printed(renderable, width=80):
    """What a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable, crop=False)
    return console.file.getvalue()


def lines_of(renderable, width=80):
    """Its lines that are not blank."""
    return [line for line in printed(renderable, width).splitlines() if line.strip()]


def commands(command=None, path=()):
    """Every command with the words that call it."""
    command = command or get_command(app)
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path


@pytest.mark.parametrize("path", [(), ("db",), *commands()], ids=lambda path: " ".join(path) or "-")
def test_help_is_prose(path):
    """No marks of RST, no type of a flag, no formats of strptime, and no variable on every line."""
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    for mark in ("``", "<bool>", "%Y", "env var", "ACKLEDGER_"):
        assert mark not in shown


@pytest.mark.parametrize("path", [(), ("db",), *commands()], ids=lambda path: " ".join(path) or "-")
def test_help_fills_its_lines(path):
    """Above the options no line ends where the first word of the next still had room."""
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.rstrip() for line in shown.split("╭")[0].splitlines()]
    for line, after in pairwise(lines):
        if line and after and "Usage:" not in line:
            assert len(f"{line} {after.split()[0]}") > 79, line


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_argument_and_option_says_what_it_is(path):
    """None is shown by its name and type alone."""
    command = get_command(app)
    for word in path:
        command = command.commands[word]
    assert [param.name for param in command.params if not getattr(param, "help", None)] == []


def test_commands_stand_in_groups_in_the_order_in_which_one_needs_them():
    """Each command has a group, what it does fits a line, and ``audit`` comes first."""
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert {name for names in PANELS.values() for name in names} == {*get_command(app).commands}
    wanted = [word for panel, names in PANELS.items() for word in (f"╭─ {panel}", *names)]
    places = [shown.index(f"\n│ {title} " if title[0] != "╭" else title) for title in wanted]
    assert places == sorted(places)
    listed = shown[places[0] :].splitlines()
    assert sum(line.startswith("│") for line in listed) == sum(map(len, PANELS.values()))


def test_the_page_of_the_commands_has_the_variable_of_each_option():
    """ACKLEDGER_, the command, the option; --json has one for all commands."""
    page = site.commands()
    for path in commands():
        command = get_command(app)
        for word in path:
            command = command.commands[word]
        for option in command.params:
            if option.param_type_name == "option":
                automatic = "_".join(("ACKLEDGER", *path, option.name)).upper().replace("-", "_")
                assert f"`{option.opts[0]}`" in page
                assert f"| `{option.envvar or automatic}` |" in page
    assert "| `ACKLEDGER_STATUS_LIMIT` |" in page


def test_a_variable_that_does_not_exist_is_named(monkeypatch):
    """A slip in a name is not ignored in silence; settings and options are known names."""
    for name in ("STORGE", "STATUS_LIMIT", "BACKFILL_FROM", "JSON", "LOG_FORMAT", "VERBOSE"):
        monkeypatch.setenv(f"ACKLEDGER_{name}", "")
    for command in (["check"], ["db", "status"]):
        result = CliRunner().invoke(app, [*command, "--help"]).stderr.splitlines()
        assert result == [] or result == [STORGE]
    monkeypatch.setattr(database, "state_of", lambda settings: Ready())
    done = CliRunner().invoke(app, ["db", "status"], env={"ACKLEDGER_VERBOSE": "0"})
    assert done.stderr.splitlines() == [STORGE]


STORGE = (
    "ackledger: variable ACKLEDGER_STORGE is ignored: there is none of that name; did you mean"
    " 'ACKLEDGER_STORAGE'?"
)


@dataclass
class Ready:
    """What ``db status`` shows."""

    ready: bool = True


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("2026-01-31", datetime(2026, 1, 31)),
        ("2026-01-31T06:30", datetime(2026, 1, 31, 6, 30)),
        ("2026-01-31 06:30:15", datetime(2026, 1, 31, 6, 30, 15)),
        ("2026-01-31T06:30Z", datetime(2026, 1, 31, 6, 30, tzinfo=UTC)),
        ("2026-01-31T08:30:00+0200", datetime(2026, 1, 31, 6, 30, tzinfo=UTC)),
    ],
)
def test_a_time_is_typed_in_any_of_its_forms(typed, wanted, monkeypatch):
    """With minutes, with seconds, and with a zone."""
    records = []
    monkeypatch.setattr(projects, "load", lambda target: None)
    monkeypatch.setattr(projects, "examine_pipeline", lambda *all: records.append(all[1]) or [])
    day = ["--from", typed, "--to", "2026-02-01"]
    assert CliRunner().invoke(app, ["check", "m:p", *day]).exit_code == 0
    assert records[0].start == (wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC))


def test_a_hint_is_no_fault(monkeypatch):
    """A step that is not checked is a hint, null in JSON, and ``check`` ends with 0; with a fault
    beside it, with 1.
    """
    findings = [Finding("source a", "fine"), Finding("stage b", "not checked", hint=True)]
    monkeypatch.setattr(projects, "load", lambda target: None)
    monkeypatch.setattr(projects, "examine_pipeline", lambda *_: findings)
    done = CliRunner().invoke(app, ["check", "m:p"])
    assert (done.stdout, done.exit_code) == (
        "ok     source a: fine\nhint   stage b: not checked\n",
        0,
    )
    rows = json.loads(CliRunner().invoke(app, ["check", "m:p", "--json"]).stdout)
    assert [row["ok"] for row in rows] == [True, None]
    findings.append(Finding("sink c", "closed", InputError("closed")))
    assert CliRunner().invoke(app, ["check", "m:p"]).exit_code == 1


@pytest.mark.parametrize("typed", ["2026-02-30", "2026", "01/02/2026", "20260101", "2026-01-01T6"])
def test_what_is_no_time_is_refused_with_the_form_of_one(typed):
    """The form of a time, and an example, instead of formats of strptime."""
    day = ["--from", typed, "--to", "2026-02-01"]
    done = CliRunner().invoke(app, ["check", "m:p", *day], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"{typed!r}: expected YYYY-MM-DD[THH:MM], for example 2026-01-31" in done.stderr


def test_things_that_are_wrong_are_a_line_each(monkeypatch, capsys):
    """What ``run`` finds wrong before it begins reads as what ``check`` says."""
    wrong = [
        Finding(name, f"{name} is away", ConfigurationError(f"{name} is away"))
        for name in ("storage", "sink out")
    ]
    with pytest.raises(ConfigurationError) as raised:
        require(wrong)
    assert str(raised.value) == "2 things are wrong: (1) storage is away; (2) sink out is away"
    with pytest.raises(SystemExit):
        fail_with(raised.value)
    assert capsys.readouterr().err.splitlines() == [
        "ackledger: 2 things are wrong:",
        "  storage: storage is away",
        "  sink out: sink out is away",
    ]


def test_an_option_is_taken_from_its_variable():
    """As if it were typed; what is typed goes first."""
    env = {"ACKLEDGER_STATUS_LIMIT": "none"}
    result = CliRunner().invoke(app, ["status"], env=env)
    assert result.exit_code == 2
    assert "--limit" in result.stderr
    assert "valid integer" in result.stderr


def test_ids_can_be_pasted_back_and_counts_can_be_read():
    """Numbers of batches and records have no separators, counts have; headers are the
    columns' names.
    """
    shown = printed(tables.rows([{"batch_id": 12345, "record": 28677, "records": 15482}]))
    header, _, line = [line for line in shown.splitlines() if line.strip()]
    assert header.split() == ["batch_id", "record", "records"]
    assert line.split() == ["12345", "28677", "15,482"]
    failed = {
        "batch_id": 12345,
        "pipeline": "p",
        "step": "s",
        "reason": "lost",
        "status": "quarantined",
        "accepted_by": "ada",
    }
    shown = printed(tables.failures([{**failed, "records": 15482, "example_record": 28677}]))
    assert {"12345", "28677", "15,482"} <= set(shown.split())
    assert "accepted by ada" in shown


@pytest.mark.parametrize(
    ("more", "counts"),
    [
        ({}, {"12,345"}),
        ({"failed": 0}, {"0"}),
        ({"accepted": 9, "quarantined": 4479}, {"4,479", "9)"}),
        ({"quarantined": 4479, "accepted": 9, "pending": 1000}, {"4,479", "(accepted", "9),"}),
        ({"pipeline": "p" * 60}, {"12,345"}),
    ],
)
def test_batches_are_a_table_at_80_columns(more, counts):
    """No line is wider, no number is broken, and no row becomes a block of lines: not for a record
    that was accepted, nor for a pipeline with a long name.
    """
    row = {**BATCH, "interval_start": datetime(2013, 1, 1), **more}
    shown = printed(tables.batches([row, row]))
    assert max(map(len, shown.splitlines())) <= 80
    wanted = {"12345", "original", "settled", "2013-01-01", "336,776", *counts}
    assert wanted <= set(shown.split())
    assert "".join(line[7:19].strip() for line in shown.splitlines()).count(row["pipeline"]) or (
        row["pipeline"] in shown
    )
    assert shown.split().count("pipeline") == 1


REASON = " ".join(["the amount is negative, which the shop does not allow"] * 10)
FAILURE = {
    "batch_id": 12345,
    "pipeline": "orders",
    "step": "with_country_and_rates",
    "reason": "lost",
    "status": "quarantined",
    "accepted_by": None,
    "records": 15482,
    "example_record": 13510277,
}


@pytest.mark.parametrize("reason", ["lost", REASON, "x" * 500])
def test_failures_are_a_table_at_80_columns_however_long_a_reason_is(reason):
    """The reason is folded within its column, whole; numbers stand at the right."""
    shown = lines_of(tables.failures([{**FAILURE, "reason": reason}, {**FAILURE, "batch_id": 7}]))
    assert max(map(len, shown)) <= 80
    header = shown[0]
    assert header.split() == [
        "batch", "pipeline", "step", "reason", "status", "records", "example",
    ]  # fmt: skip
    first, last = header.index("reason"), header.index("status")
    folded = "".join(line[first:last] for line in shown[2:])
    wanted = reason if len(reason) <= 200 else f"{reason[:200]}…"
    assert "".join(wanted.split()) in "".join(folded.split())
    ends = [line.rstrip() for line in shown if "13510277" in line]
    assert [line[: header.index("records") + 7].endswith("15,482") for line in ends] == [True] * 2


def test_failures_of_one_batch_leave_its_pipeline_out():
    """It is the same in each row, and said above them."""
    shown = lines_of(tables.failures([FAILURE, FAILURE]))
    assert shown[0].split() == ["batch", "step", "reason", "status", "records", "example"]


def test_rows_that_are_no_table_at_40_columns_read_line_by_line():
    """A block of lines for each row, in which nothing is cut or wider than the terminal."""
    lines = printed(tables.rows([{**FAILURE, "reason": REASON}] * 2), 40).splitlines()
    lines = [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 40
    assert [line.split() for line in lines[:2]] == [["batch_id", "12345"], ["pipeline", "orders"]]
    values = "".join(line[16:] for line in lines)
    assert "".join(values.split()).count("".join(REASON.split())) == 2
    assert [lines.count(""), lines[-1]] == [2, ""]


def test_rows_too_wide_for_a_table_stand_below_each_other():
    """A row of a query with many columns is a line for each of them."""
    row = {f"a_column_of_some_length_{n}": f"value {n}" for n in range(9)}
    lines = printed(tables.rows([row, row])).splitlines()
    assert lines[0].split(None, 1) == ["a_column_of_some_length_0", "value 0"]
    assert lines[9] == ""


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_listed_record_keeps_its_number_and_a_part_of_its_content(width):
    """``explain`` needs the number: it is whole, beside the key and the content, at any width."""
    record = {
        "record": 1351027744,
        "key": {"id": "K" * 300},
        "source_file": None,
        "content": '{"id": "KKK", "amount": -3.25, "note": "' + "n" * 400,
        "step": "with_country_and_rates",
        "reason": REASON,
        "status": "failed",
        "accepted_by": None,
    }
    lines = lines_of(listed({"records": [record], "total": 1}), width)
    assert max(map(len, lines[:3])) <= width
    assert lines[0].split()[:4] == ["record", "key", "or", "line"] or width == 40
    assert lines[2].split()[0] == "1351027744"
    assert '{"' in lines[2]
    assert "…" in lines[2]
    assert ("failed" in lines[2]) == (width == 120)
    below = " ".join(line.strip() for line in lines[3:])
    elsewhere = {40: "step, reason and status", 80: "reason and status"}.get(width)
    hint = "" if elsewhere is None else f"{elsewhere}: in a wider terminal, or with --json "
    assert below == f"{hint}All about one: ackledger explain 1351027744"


@pytest.mark.parametrize(
    ("number", "message"), [(0, "0 records"), (1, "1 record"), (12345, "12,345 records")]
)
def test_one_thing_is_not_many(number, message):
    """As 1 record, and not as 1 records."""
    assert quantity(number, "record") == message
    assert quantity(1, "batch", "batches") == "1 batch"
    assert quantity(2, "batch", "batches") == "2 batches"


def test_addresses_are_not_encoded():
    """The folder of a socket and a name with a blank are shown as they are; a password never is."""
    url = make_url("postgresql+psycopg2://my%20name:se%40cret@/ledger?host=%2Fvar%2Frun%2Fpg")
    assert addresses.shown(url) == "postgresql+psycopg2://my name:***@/ledger?host=/var/run/pg"


def test_a_sweep_says_what_is_pending_and_what_it_could_not_settle():
    """Each in a line of its own, with the way out; nothing of it where there is nothing."""
    data = {"settlements": [], "replays": [{"batch_id": 4}], "overdue": []}
    quiet = printed(tables.sweep({**data, "errors": {}})).splitlines()
    assert quiet[1:] == ["batches that ask for a replay: 4"]
    overdue = [{"batch_id": number, "dag_id": "d", "target": "jobs.d:p"} for number in (7, 8)]
    data = {**data, "overdue": overdue, "errors": {9: "the ledger is away"}}
    pending, error = printed(tables.sweep(data)).splitlines()[2:]
    assert "something pending: 7, 8." in pending
    assert pending.endswith("ackledger publish jobs.d:p --batch 7")
    assert error == "batch 9 could not be settled: the ledger is away"


def test_a_batch_that_stays_on_hold_is_said_to_be():
    """What ``sweep`` and ``release`` print has a batch's status in words."""
    settlement = {"batch_id": 7, "status": "held", "records": 5, "failed": 0, "reason": "a check"}
    done = {"settlements": [settlement], "replays": [], "overdue": [], "errors": {}}
    for shown in (printed(tables.sweep(done)), printed(tables.released(settlement))):
        assert "on hold" in shown
        assert "held" not in shown


def test_facts_stay_one_line_each():
    """A fact, however long, is one line; what has no value is left out."""
    shown = printed(tables.fact_lines({"database": "x" * 100, "pid": None, "state": "running"}))
    assert shown.splitlines() == [f"database: {'x' * 100}", "state: running"]


def test_a_command_in_a_message_stays_one_line():
    """What a summary advises can be pasted: no line break is put into it."""
    command = "ackledger replay jobs.flights:pipeline --batch 12345 " + "x" * 60
    data = {**BATCH, "steps": [], "pending": [], "records": COUNTS, "advice": "2 records failed"}
    data["commands"] = [["Replay just these", command]]
    data["steps"] = [dict.fromkeys(
        ("name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"), 0
    )]  # fmt: skip
    assert f"  {command}" in printed(tables.summary(data)).splitlines()
    name = "a_name_of_a_step_that_is_rather_long_for_a_narrow_terminal"
    data["steps"][0] |= {"name": name, "kind": "stage", "state": "committed"}
    shown = printed(tables.summary(data)).splitlines()
    header = next(line for line in shown if line.split()[:1] == ["name"])
    assert name in "".join(line[: header.index("kind")].strip() for line in shown[3:-2])


def test_seconds_of_steps_stand_below_each_other():
    """Each has one decimal, so that the longest is seen at a glance."""
    data = {**BATCH, "steps": [], "pending": [], "records": COUNTS}
    names = ("name", "kind", "state", "input", "output", "failed", "duplicates", "seconds")
    for seconds in (7.62, 1.7, 1.0, 123):
        data["steps"].append({**dict.fromkeys(names, 0), "name": "step", "seconds": seconds})
    shown = [line for line in lines_of(tables.summary(data)) if line.split()[0] == "step"]
    assert [line.split()[-1] for line in shown] == ["7.6", "1.7", "1.0", "123.0"]
    assert len({len(line.rstrip()) for line in shown}) == 1


def test_a_summary_says_what_a_state_waits_for():
    """Each sentence about a state that stands still, or a column of nulls, is a line of its own,
    however long."""
    waits = [
        f"the state 'total' of batch {batch} waits for batch 1. " + "x" * 80 for batch in (2, 3)
    ]
    pending = [
        {"sentences": waits, "incomplete": False},
        {"sentences": ["said by the advice"], "incomplete": True},
    ]
    notes = ["source orders: no record has column amount: it is null in all of them"]
    data = {**BATCH, "steps": [], "pending": pending, "records": COUNTS, "notes": notes}
    data["steps"] = [dict.fromkeys(
        ("name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"), 0
    )]  # fmt: skip
    assert printed(tables.summary(data)).splitlines()[-3:] == waits + notes


def test_a_summary_has_a_line_for_each_sink():
    """Each says what it has published or waits for, with a command that can be pasted."""
    command = "ackledger replay jobs.flights:pipeline --batch 12345 " + "x" * 60
    sinks = [
        {"because": "sink out: published 3 rows", "state": "published", "commands": []},
        {
            "because": "sink days: published nothing. It waits for 2 failed records of batch 7",
            "state": "waiting",
            "commands": [["Replay them", command]],
        },
    ]
    data = {**BATCH, "steps": [], "pending": [], "records": COUNTS, "sinks": sinks}
    assert printed(tables.summary(data)).splitlines()[-2:] == [
        "sink out: published 3 rows",
        f"{sinks[1]['because']}. Replay them: {command}",
    ]


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
    "rereads": False,
    "reprocesses": True,
}


@pytest.mark.parametrize("cause", ["lost", "unparsed"])
def test_commands_of_failed_and_explain_stay_one_line_each(cause, monkeypatch):
    """What these two advise can be pasted from 80 columns and from a pipe: a line for each
    command.
    """
    case = Case.of(**{**LONG, "cause": cause, "state": "failed", "records": 3})
    failure = FailureSummary(12345, "p", case.step, "a reason", "failed", None, 3, 7)
    (actions,) = by_cause([case])
    wanted = lines(actions)
    assert max(map(len, wanted)) > 80
    nothing = dict.fromkeys(field.name for field in fields(Explanation))
    explanation = {
        **nothing,
        "record": 7,
        "root": 7,
        "attempts": [],
        "decisions": [],
        "next": wanted,
    }
    shown = printed(records._explained(explanation)).splitlines()
    assert [line.strip() for line in shown[-len(wanted) :]] == wanted
    # failed prints its advice by itself, after the table
    out = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(causes, "out", out)
    monkeypatch.setattr(tables, "failures", lambda rows: "")
    monkeypatch.setattr(records, "connect", lambda settings: None)
    monkeypatch.setattr(causes, "failures", lambda *_: [failure])
    monkeypatch.setattr(causes, "cases", lambda *_: [case])
    monkeypatch.setattr(causes, "holds_of", lambda *_: [])
    assert CliRunner().invoke(app, ["failed"]).exit_code == 0
    assert {line.strip() for line in out.file.getvalue().splitlines()} >= set(wanted[1:])


def test_what_is_explained_stays_below_its_name():
    """A long content, or reason of an attempt, is folded within its column, and not at the margin
    where the names are.
    """
    about = dict.fromkeys(field.name for field in fields(Explanation))
    tried = {
        "attempt": 1,
        "outcome": "failed",
        "step": "valid",
        "reason": REASON,
        "batch_id": 2,
        "decided_at": datetime(2013, 1, 1),
    }
    about |= {"record": 7, "root": 7, "verdict": "failed", "content": "x y " * 60}
    shown = lines_of(
        records._explained({**about, "attempts": [tried], "decisions": [], "next": []})
    )
    first = next(n for n, line in enumerate(shown) if line.startswith("  content    x y"))
    last = next(
        n for n, line in enumerate(shown) if line.startswith("  attempt 1  failed at valid")
    )
    assert last - first > 3
    assert all(line.startswith(f"{'':13}x") for line in shown[first + 1 : last])
    assert all(line.startswith("  ") for line in shown[1:-1])
    assert shown[-1].strip() == "next"


def test_a_user_without_a_name_has_a_number(monkeypatch):
    """In a container a user may have no name: commands that note who typed them note the number."""

    def nameless():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(base.getpass, "getuser", nameless)
    assert base.user() == f"uid {os.getuid()}"
    noted = []
    monkeypatch.setattr(records, "connect", lambda settings: None)
    monkeypatch.setattr(records, "quarantine", lambda database, reason, by, **_: noted.append(by))
    CliRunner().invoke(app, ["quarantine", "7", "--reason", "a test"])
    assert noted == [f"uid {os.getuid()}"]


def test_version_and_completion():
    """``--version`` prints the installed version; the shell gets what may follow."""
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


STEPS = {"parse": (), "shelf": ("parse",)}


def test_a_line_for_each_step_where_no_terminal_is(monkeypatch):
    """Piped, each finished step is one line with its rows and seconds on stderr, and one that takes
    long is one a minute, with tasks, rows and time.
    """
    err = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(progress, "err", err)
    result = SimpleNamespace(record=SimpleNamespace(output_rows=15482), seconds=1.25)
    with progress.progress_of(7, STEPS) as shown:
        shown.on_step("parse", None)
        shown.on_tasks(Tasks(), 60.2)
        shown.on_step("parse", result)
        shown.on_step("shelf", None)
        shown.on_tasks(Tasks(3, 40), 60.2)
        shown.settling()
    assert err.file.getvalue().splitlines() == [
        "batch 7: parse, 60 s",
        "batch 7: parse, 15,482 rows, 1.2 s",
        "batch 7: shelf, 3 of 40 tasks, 15,482 rows to read, 60 s",
        "batch 7: settling",
    ]


def test_a_bar_with_rows_and_step_on_a_terminal(monkeypatch):
    """On a terminal of 80 columns a bar names the step and counts steps, tasks and rows."""
    err = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(progress, "err", err)
    result = SimpleNamespace(record=SimpleNamespace(output_rows=15482), seconds=1.25)
    name = "a_step_with_a_name_of_some_length"
    with progress.progress_of(7, {"parse": (), name: ("parse",)}) as shown:
        shown.on_step("parse", result)
        shown.on_step(name, None)
        shown.on_tasks(Tasks(3, 40), 2.0)
    output = err.file.getvalue()
    assert "a_step_with_a" in output
    assert "1/3" in output
    assert "3 of 40 tasks, 15,482 rows to read" in output
    assert "0:00:00" in output


def test_the_tasks_of_a_step_are_those_of_its_stages():
    """A stage that Spark does not name any more is done; those before the step do not count."""
    count = TaskCount()
    count.note([(1, Tasks(2, 8))])
    assert count.now() == Tasks(2, 8)
    count.note([(2, Tasks(1, 4))])
    assert count.now() == Tasks(9, 12)
    count.restart()
    count.note([(2, Tasks(3, 4)), (3, Tasks(0, 2))])
    assert count.now() == Tasks(3, 6)
    count.note([])
    assert count.now() == Tasks(6, 6)


def test_progress_that_cannot_be_had_fails_no_step():
    """A session that cannot be asked, and a display that raises, keep nothing from being done."""

    class Broken:
        def registerProgressHandler(self, handler):  # noqa: N802  # Spark's name
            raise RuntimeError("no server")

    reports, raised = [], Event()

    def report(tasks, seconds):
        reports.append(tasks)
        raised.set()
        raise RuntimeError("no terminal")

    with watching(Broken(), report, every=0.001) as restart:
        restart()
        assert raised.wait(10)
    assert reports == [Tasks()]


def test_a_server_reports_the_tasks_of_a_step():
    """Of a Spark Connect server they are what it reports, until the step is done."""
    handlers = []

    session = SimpleNamespace(
        registerProgressHandler=handlers.append, removeProgressHandler=handlers.remove
    )
    stage = SimpleNamespace(stage_id=1, num_tasks=8, num_completed_tasks=2)
    with counting(session) as count:
        (hear,) = handlers
        hear(stages=[stage], inflight_tasks=2, operation_id="a", done=False)
        hear(stages=None, inflight_tasks=0, operation_id="b", done=True)
        assert count.now() == Tasks(8, 8)
    assert handlers == []


def test_only_the_noise_of_a_started_process_is_left_out():
    """Of what a process started meanwhile writes to stderr, the JVM's own warnings alone are
    left out.
    """
    program = (
        "import subprocess, sys\nfrom ledger.spark.session import quiet_start\n"
        "with quiet_start():\n"
        "    child = subprocess.Popen(['sh', '-c', 'echo WARNING: Using incubator modules: x >&2;"
        " echo an error >&2'])\nchild.wait()\nimport threading\n[one.join() for one in"
        " threading.enumerate() if one.name == 'stderr']\nprint('own', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "an error\nown\n"
