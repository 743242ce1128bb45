"""Every command on the pages runs: in a project that ``ackledger init`` writes, or over flights."""

import json
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ledger.cli import app, runs
from ledger.cli.base import out
from tests.support.audited_shop import working_in, write_shop
from tests.support.flights import write_slice
from tests.support.pages import PAGES, blocks, shows, typed
from tests.support.places import ROOT
from tests.support.reasons import bare

ORDERS = "ackledger run orders:pipeline --from 2026-01-01 --to 2026-01-02"
FLIGHTS = "ackledger run jobs.flights:pipeline --from 2013-01-01 --to 2013-02-01"
# What has to have happened before the commands of a page. The tutorial is run by
# tests/acceptance/test_tutorial.py.
BEFORE = {
    "README.md": [],
    "docs/how-to/ask.md": [ORDERS],
    "docs/how-to/audit.md": [],
    "docs/how-to/backup.md": ["ackledger sweep"],
    "docs/how-to/backfill.md": ["cp -r data/orders/2026-01-01 data/orders/2026-01-02"],
    "docs/how-to/cluster.md": [ORDERS],
    "docs/how-to/install.md": ["ackledger sweep"],
    "docs/how-to/publish.md": [ORDERS],
    "docs/how-to/quarantine.md": [ORDERS],
    "docs/how-to/replay.md": [ORDERS],
    "docs/how-to/retention.md": [ORDERS, "ackledger quarantine --batch 1 --reason 'no list'"],
    "docs/how-to/schedule.md": [],
    "docs/how-to/stop.md": [ORDERS],
    "docs/operating.md": [FLIGHTS],
    "docs/pipelines.md": [],
    "docs/polluted.md": [],
    "docs/when-red.md": [ORDERS],
    "docs/replay.md": [FLIGHTS, "ackledger quarantine --batch 1 --reason 'no list'"],
}
# Each with the reason why no test types it.
NOT_RUN = {
    "make demo": "it takes four minutes; its pieces are those of tests/acceptance",
    "make test": "it runs this test",
    "make test-system": "CI runs it",
    "make test-all": "it runs this test",
    "make polluted FOLDER=../Pollock": "integration/test_polluted.py runs it over its own files",
    "make chaos": "make test-all runs its short form",
    "ackledger db stop": "other tests need the server; test_first_run.py stops one of its own",
    "pip uninstall ackledger": "the tests would end",
}
OUTCOMES = {0, 3, 4}  # complete, records failed, quarantined: whatever a command is to say
AUDITED = {0, 1}  # of an audit: nothing is lost, records are lost


def test_each_page_with_commands_is_typed():
    """No page has commands that nothing runs."""
    pages = {block.place for page in PAGES for block in blocks(page, "console")}
    assert pages == {*BEFORE, "docs/tutorial.md"}


@pytest.fixture
def project(environment, spark, monkeypatch, tmp_path):
    """A new project, with flights and planes and a script beside its orders; commands run in this
    process.
    """
    result = CliRunner().invoke(app, ["init", "."]) if monkeypatch.chdir(tmp_path) is None else None
    assert result.exit_code == 0, result.output
    for module in ("orders", "jobs.flights", "jobs.trades"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(runs, "spark_session", lambda pipeline, at: spark)
    write_slice(tmp_path / "data")
    write_shop(tmp_path)
    with working_in(tmp_path, spark):
        yield tmp_path


@pytest.mark.parametrize("place", BEFORE)
def test_its_commands_run(place, project, monkeypatch):
    """From top to bottom, each ends as it should and prints what the page shows."""
    if place == "README.md":
        monkeypatch.setattr(out, "width", 120)  # of its lines
    for command in BEFORE[place]:
        type_in(project, command)
    for block in blocks(ROOT / place, "console"):
        for line in typed(block):
            printed = type_in(project, line.command)
            page = tuple(map(bare, line.output))  # whose code is on other lines than init's
            printed = "\n".join(map(bare, printed.splitlines()))
            assert shows(printed, page), f"{line.command} printed:\n{printed}"


def type_in(project, command):
    """Run one command of a page; what it prints."""
    command = command.partition("  #")[0].strip()
    program, *arguments = shlex.split(command)
    if command in NOT_RUN:
        if program == "make":
            assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
        return ""
    if program == "airflow":
        return airflow(arguments)
    if program == "ackledger":
        done = CliRunner().invoke(app, arguments, standalone_mode=False)
        code = done.return_value or 0
        assert done.exception is None, done.output
        assert code in (AUDITED if arguments[0] == "audit" else OUTCOMES), done.output
        return done.output
    done = subprocess.run(["bash", "-c", command], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def airflow(arguments):
    """What a running Airflow would do is proven by tests/acceptance; here its own parser takes the
    command, and the conf is one.
    """
    from airflow.cli.cli_parser import get_parser

    options = vars(get_parser().parse_args(arguments))
    for name in ("conf", "dag_run_conf"):
        if options.get(name):
            assert isinstance(json.loads(options[name]), dict)
    return ""
