"""The command that forgets."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ledger.cli import app, removal
from tests.support.ledgers import pipeline
from tests.support.retention import command, expiring


@pytest.mark.usefixtures("environment")
def test_the_command_forgets(archive, forgettable):
    """forget lists the records and what may still hold them; what it forgot, others show so."""
    _, roots = forgettable
    where = ("email = 'a@b.org'",)
    listed = command("forget", *where, "--dry-run")
    assert "1 record would be forgotten" in listed.stdout
    assert "a@b.org" in archive.text()
    unasked = command("forget", *where)
    assert "add --yes" in str(unasked.exception)
    assert "a@b.org" in archive.text()
    result = command("forget", *where, "--yes")
    assert result.exit_code == 0, result.output
    assert "1 record forgotten: the ledger has no content of it" in result.stdout
    assert "batch 1 of chain may hold them:" in result.stdout
    assert "rows in its sinks, which are yours to delete" in result.stdout
    assert "(forgotten)" in command("failed", "--records").stdout
    explained = command("explain", str(roots[0])).stdout
    assert "its content was removed on request, and it is never replayed" in explained
    assert "no record that failed matches" in command("forget", *where).stdout
    assert command("forget").exit_code == 2
    misspelt = command("forget", "emial = 'a@b.org'")
    message = "the condition names 'emial', a field of no failed record: source has email"
    assert message in str(misspelt.exception)


@pytest.mark.usefixtures("environment")
def test_forget_lists_every_file_that_has_the_values(archive):
    """Of acked records, too, whatever the column is called there: those that a search of the whole
    storage finds, and when they go; a script gets the same list."""
    archive.settled(expiring(max_replays=0), lose_sink=[0])
    archive.settled(pipeline(), run_id="second", day=1)
    folders = [row.folder for row in archive.rows("SELECT folder FROM step_run WHERE folder <> ''")]
    everywhere = [path for folder in folders for path in Path(folder).rglob("*.parquet")]
    assert len(everywhere) == 6
    for number, path in enumerate(everywhere):
        mail = "EVE@Straße.org" if number % 2 else "eva@x.org"
        pq.write_table(pa.table({"n": [1, 2], f"mail{number}": [mail, "b"]}), path)
    where = ("n = 'eve@strasse.org'", "--dry-run")
    data = json.loads(command("forget", *where, "--json").stdout)
    searched = [str(path) for path in everywhere if "EVE" in str(pq.read_table(path).to_pylist())]
    assert len(searched) == 3
    assert sorted(file["path"] for file in data["files"]) == sorted(searched)
    shown = command("forget", *where).stdout.replace("\n", "")
    assert all(path in shown for path in searched)
    assert "files that have n = 'eve@strasse.org', in any column: 3" in shown


@pytest.mark.usefixtures("environment")
def test_forget_finds_a_value_in_the_raw_text_of_a_record(archive):
    """A record of CSV that did not parse has its text as it was written: with quotes doubled."""
    archive.settled(expiring(max_replays=0), lose_sink=[0])
    folders = [row.folder for row in archive.rows("SELECT folder FROM step_run WHERE folder <> ''")]
    first, *others = (path for folder in folders for path in Path(folder).rglob("*.parquet"))
    for path, text in [(first, b'7,"Eve ""Evi"" Ohm",x'), *((other, b"7,Evi") for other in others)]:
        pq.write_table(pa.table({"_ackledger_raw": [text]}), path)
    where = ("n = 'Eve \"Evi\" Ohm'", "--dry-run")
    files = json.loads(command("forget", *where, "--json").stdout)["files"]
    assert [file["path"] for file in files] == [str(first)]


@pytest.mark.usefixtures("environment")
def test_forget_separates_what_it_searched_from_what_may_be(archive, forgettable):
    """Of a record's batches it says in how many files the search found the values, if in none, too;
    of batches of acked records, that their sinks may have rows; of a record's number, that the
    search was for its key.
    """
    _, roots = forgettable
    archive.settled(expiring(), run_id="second", day=1)
    archive.publish()
    folders = archive.rows("SELECT batch_id, folder FROM step_run WHERE folder <> '' ORDER BY 1")
    for number, row in enumerate(folders):
        mail = "a@b.org" if row.batch_id == 2 and number == len(folders) - 1 else "x@y.org"
        for path in Path(row.folder).rglob("*.parquet"):
            pq.write_table(pa.table({"mail": [mail]}), path)
    shown = command("forget", "email = 'a@b.org'", "--dry-run").stdout
    first, second = [text for text in shown.splitlines() if text.startswith("batch ")]
    assert "searched for email = 'a@b.org': none has it; rows in its sinks" in first
    assert second == "batch 2 of chain may have rows in its sinks, which are yours to delete"
    assert "until you remove them" not in shown
    archive.change(
        "UPDATE failed_payload SET key = cast(:k AS jsonb) WHERE message_id = :r",
        k=json.dumps({"id": 4711}),
        r=roots[0],
    )
    by_number = command("forget", str(roots[0]), "--dry-run").stdout
    assert "files that have id = '4711', in any column: 0" in by_number
    assert "a file without the key is not among them" in by_number


@pytest.mark.usefixtures("environment")
def test_forget_asks_a_person(archive, forgettable, monkeypatch):
    """In a terminal it shows what it will do and asks: no leaves everything, yes goes on."""
    _, roots = forgettable
    monkeypatch.setattr(removal, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    refused = CliRunner().invoke(app, ["forget", str(roots[0])], input="n\n")
    assert refused.exit_code == 1
    assert "1 record would be forgotten" in refused.output
    assert "a@b.org" in archive.text()
    agreed = CliRunner().invoke(app, ["forget", str(roots[0])], input="y\n")
    assert agreed.exit_code == 0, agreed.output
    assert "a@b.org" not in archive.text()
