"""What the commands answer where little or nothing matches: never that nothing is wrong."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger.cli import runs
from ledger.cli.base import app, out, user
from tests.support.ledgers import pipeline

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture
def cli(monkeypatch):
    """A command's output in one wide terminal; of one that fails its error."""
    monkeypatch.setattr(out, "width", 1_000)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output if code != 1 else str(done.exception)

    return run


def settled(ledger, flow, count=5, lose=(0, 1)):
    """A settled batch whose sink lost some records, and its roots."""
    batch, roots = ledger.whole_batch(flow, count, lose_sink=lose)
    ledger.settle(batch.batch_id)
    return batch, roots


def failed_again(ledger, flow, original, run_id, **selection):
    """A replay that loses all of its records once more."""
    batch = ledger.replay(flow, original, run_id, **selection)
    roots = ledger.emit_replay(batch)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots, lose=roots)
    ledger.settle(batch.batch_id)
    return batch


def test_each_batch_lists_what_failed_in_it(ledger, cli):
    """Records that failed again, and again, are listed for each batch in which they failed, as
    ``status`` counts them; so are those that a replay has under way.
    """
    flow = pipeline(max_replays=1)
    batch, roots = settled(ledger, flow)
    failed_again(ledger, flow, batch.batch_id, "first")
    failed_again(ledger, flow, batch.batch_id, "second", quarantined=True)
    for number in (2, 3):
        shown = cli("status", "--batch", number)
        assert "2 quarantined" in shown
        assert f" {roots[0]} " in shown
    ledger.replay(flow, batch.batch_id, "third", quarantined=True)
    for number in range(1, 5):
        assert f" {roots[0]} " in cli("failed", "--batch", number)
        assert json.loads(cli("failed", "--records", "--batch", number, "--json"))["total"] == 2


def test_an_empty_filter_is_not_an_empty_ledger(ledger, cli, tmp_path):
    """Where nothing matches, ``failed`` says what was asked for, and which command lists the
    records that there are; an unknown name is an error, also where a file is asked for.
    """
    flow = pipeline(max_replays=1)
    batch, _ = settled(ledger, flow)
    settled_again, _ = ledger.whole_batch(flow, 2, run_id="next", day=1)
    ledger.settle(settled_again.batch_id)
    at_middle = "no record is failed or quarantined at middle; see 'ackledger failed'\n"
    assert cli("failed", "--step", "middle") == at_middle
    assert cli("failed", "--records", "--step", "middle") == at_middle
    of_batch = f"no record of batch {batch.batch_id} is failed or quarantined at middle"
    asked = ("failed", "--batch", batch.batch_id, "--step", "middle")
    assert cli(*asked) == f"{of_batch}; see 'ackledger failed --batch {batch.batch_id}'\n"
    other = cli("failed", "--batch", settled_again.batch_id)
    assert other.endswith("is failed or quarantined; see 'ackledger failed'\n")
    assert json.loads(cli("failed", "--step", "middle", "--json")) == []
    file = tmp_path / "records.csv"
    assert "batch 999 is not" in cli("failed", "--batch", 999, "--output", file, code=1)
    assert not file.exists()


def test_an_empty_ledger_recommends_nothing(ledger, cli):
    """Where no record is failed at all, no command is named that would list none."""
    flow = pipeline()
    batch, _ = settled(ledger, flow, lose=())
    assert cli("failed") == "no record is failed or quarantined\n"
    shown = cli("failed", "--batch", batch.batch_id)
    assert shown == f"no record of batch {batch.batch_id} is failed or quarantined\n"
    unknown = cli("explain", 99999, code=1)
    assert unknown.startswith("no record 99999: expected the number of a record; numbers go from")


def test_accept_says_what_there_was_to_accept(ledger, cli):
    """Where nothing is in quarantine, or all of it is accepted, it says so, and what is failed."""
    batch, _ = settled(ledger, pipeline(max_replays=1))
    number = batch.batch_id
    accept = ("accept", number, "--reason", "test orders")
    failed = f"2 records of it are still failed: ackledger failed --batch {number}"
    assert f"next: batch {number} has nothing in quarantine; {failed}\n" in cli(*accept)
    assert json.loads(cli(*accept, "--json"))["next"].endswith(failed)
    failed_again(ledger, pipeline(max_replays=1), number, "first")
    assert "next" not in cli(*accept)
    nothing_left = f"batch {number} has nothing left to accept: 2 of 2 quarantined are accepted\n"
    assert cli(*accept).endswith(nothing_left)


@pytest.mark.parametrize("command", [("quarantine", "--reason", "never"), ("forget", "--yes")])
def test_a_wrong_number_leads_nowhere_else(ledger, cli, command):
    """A record that there is not is named as ``explain`` names it; of one that never failed what it
    is, and the commands that are printed know it.
    """
    _, roots = settled(ledger, pipeline(max_replays=1))
    name, *options = command
    unknown = cli("explain", 99999, code=1)
    assert unknown.startswith("no record 99999: expected the number of a record")
    assert cli(name, 99999, *options, code=1) == unknown
    acked = cli(name, roots[-1], *options, code=1)
    assert acked.startswith(f"record {roots[-1]} has not failed, it is acked: ")
    assert "acked" in cli("explain", roots[-1])


def test_forget_names_who_gave_a_record_up(ledger, cli):
    """A record that a person quarantined is listed as accepted by name, also as data."""
    _, roots = settled(ledger, pipeline(max_replays=1))
    cli("quarantine", roots[0], "--reason", "a test order")
    shown = cli("forget", roots[0], "--dry-run")
    assert f"accepted by {user()}" in shown
    assert "batch_id" not in shown
    (record,) = json.loads(cli("forget", roots[0], "--dry-run", "--json"))["records"]
    assert (record["status"], record["accepted_by"]) == ("quarantined", user())
    done = cli("forget", roots[0], "--yes")
    assert "1 record forgotten: the ledger has no content of it\n" in done


def test_advice_speaks_of_what_a_step_joins_if_it_does(ledger, cli):
    """A step with one input and no reference is to be fixed by itself; one that joins may lack a
    row of what it joins. ``explain`` and ``failed`` say the same.
    """
    _, roots = settled(ledger, pipeline(max_replays=1))
    for command in (("explain", roots[0]), ("failed",)):
        assert "fix sink, then replay the record" in cli(*command)
    ledger.declare(1, "sink", joins=True)
    for command in (("explain", roots[0]), ("failed",)):
        assert "fix sink, or what it joins, then replay the record" in cli(*command)


@pytest.fixture
def replay(database, cli, monkeypatch):
    """``replay`` of what a batch of the pipeline of flights has, by options; of a run that finds
    nothing, and of a dry one, which say the same.
    """
    for name in ("before_replay", "keep_all"):
        monkeypatch.setattr(runs, name, lambda *arguments: None)
    monkeypatch.chdir(ROOT)

    def run(*options):
        asked = ("replay", "jobs.flights:pipeline", *options)
        answer = cli(*asked)
        assert cli(*asked, "--dry-run") == answer
        return answer.splitlines()[-1]

    return run


def test_a_replay_of_one_record_says_what_it_is(ledger, cli, replay):
    """Of a record that it does not take, a replay says what it is by now, and which option takes
    it.
    """
    flow = pipeline("flights", max_replays=1)
    batch, roots = settled(ledger, flow, lose=(0, 1, 2))
    number = batch.batch_id

    def state(root, *options):
        output = replay("--batch", number, "--record", root, *options)
        assert output.startswith(f"nothing to replay: record {root} is ")
        return output.split(" is ", 1)[1]

    assert state(roots[4]) == "acked, and has not failed: a replay takes failed records"
    assert state(roots[0], "--step", "middle") == "failed, which other options leave out"
    cli("quarantine", roots[0], "--reason", "a test order")
    given_up = f"accepted by {user()}, which --accepted takes"
    assert [state(roots[0]), state(roots[0], "--quarantined")] == [given_up] * 2
    failed_again(ledger, flow, number, "first", record=roots[1])
    assert state(roots[1]) == "quarantined, which --quarantined takes"
    again = ledger.replay(flow, number, "second", record=roots[2])
    assert state(roots[2]) == f"being replayed by batch {again.batch_id}"
    ledger.run_replay(again)
    ledger.settle(again.batch_id)
    assert state(roots[2]) == "recovered: a replay has processed it to every sink"
    nothing = "nothing to replay: no failed record matches, or is due"
    left = f"1 quarantined, which --quarantined takes, 1 {given_up}"
    assert replay("--batch", number) == f"{nothing} ({left})"
    assert replay() == f"{nothing}; see 'ackledger failed'"
    cli("forget", roots[1], "--yes")
    gone = "forgotten: its content was removed on request, and it is never replayed"
    assert state(roots[1], "--quarantined") == gone


def test_a_dry_replay_has_the_headers_of_other_tables(ledger, cli, monkeypatch):
    """What a replay would take is listed by batch, as ``failed`` lists it."""
    settled(ledger, pipeline("flights"))
    monkeypatch.chdir(ROOT)
    header = cli("replay", "jobs.flights:pipeline", "--dry-run").split("\n")[1]
    assert header.split() == ["batch", "pipeline", "step", "reason", "records"]


@pytest.mark.parametrize("reason", ["...", " .", "…"])
def test_a_reason_is_more_than_dots(ledger, cli, reason):
    """A command that is pasted as it is printed is refused: no reader would know why."""
    batch, roots = settled(ledger, pipeline(max_replays=1))
    for command in (("quarantine", roots[0]), ("accept", batch.batch_id)):
        output = cli(*command, "--reason", reason, code=1)
        assert output.startswith(f"the reason is {reason!r}: say why these records may stay out")
    assert json.loads(cli("failed", "--json"))[0]["records"] == 2
