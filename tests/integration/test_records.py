"""Single records: kept, listed, explained and quarantined by hand; without Spark."""

import csv
import json
import logging
import resource
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.advice.records import Case
from ledger.batch.opening import open_replay
from ledger.batch.records.payloads import keep_all, try_to_keep
from ledger.batch.records.snapshots import MOST_CHARACTERS
from ledger.cli import runs
from ledger.cli.base import app
from ledger.core.run_request import RunKey, Selection
from ledger.core.states import Outcome
from ledger.errors import InputError, LedgerError, NotReadyError
from ledger.settings import Settings
from ledger.store.queries import failures, following, replays
from ledger.store.queries import payloads as queries
from tests.support import ledgers
from tests.support.ledgers import keyed
from tests.support.places import ROOT
from tests.support.without_java import commands

LONG = "x" * (MOST_CHARACTERS + 5)
MISSING = "FROM pending_follow_up WHERE follow_up = 'keep'"


@pytest.fixture
def batch(ledger, tmp_path):
    """A settled batch of 9 records: 1 does not parse, 1 is lost at middle, 2 at the sink, 1 fails
    at middle."""
    pipeline = keyed(max_replays=2)
    original = ledger.open(pipeline)
    roots = ledger.emit(original, 9)
    ledger.run_middle(original, roots, lose=[roots[0], roots[1]], fail={roots[5]: "bad city"})
    ledger.run_sink(original, [r for r in roots[2:] if r != roots[5]], [roots[3], roots[8]])
    ledger.settle(original.batch_id)
    snapshot = [
        {
            "_ackledger_file": "file:///in/a%20b.csv",
            "n": n,
            "city": city,
            "_ackledger_raw": None,
            "_ackledger_error": None,
        }
        for n, city in enumerate(["Bern", "U\0lm", "Ulm", LONG, "a", 'b"\t\\', "c", "d", "e"])
    ]
    snapshot[0] |= {
        "n": None,
        "city": None,
        "_ackledger_raw": b"0,\xff",
        "_ackledger_error": "not UTF-8",
    }
    paths = ledger.write_snapshot(original, tmp_path, snapshot)
    return original, roots, paths


def content(ledger):
    return {
        row.message_id: row
        for row in ledger.database.transact(
            lambda c: c.exec_driver_sql("SELECT * FROM failed_payload").all()
        )
    }


def test_content_of_each_failed_record_is_kept(ledger, batch):
    """Whatever the failure, content, key, file and place of a failed record are kept: once, and of
    failed ones alone."""
    original, roots, _ = batch
    missing = f"SELECT batch_id, pipeline {MISSING}"
    assert ledger.row(missing) == (original.batch_id, "chain")
    assert (ledger.keep_payloads(original.batch_id), ledger.keep_payloads(original.batch_id)) == (
        5,
        0,
    )
    assert ledger.rows(missing) == []
    contents = content(ledger)
    assert sorted(contents) == [roots[0], roots[1], roots[3], roots[5], roots[8]]
    raw, nul, long, quoted, last = contents.values()
    assert (raw.content, raw.parsed, raw.key) == ("base64:MCz/", False, {"n": "0"})
    assert (nul.content, nul.parsed) == ('{"n": 1, "city": "U\\u0000lm"}', False)
    assert long.content.startswith('{"n": 3, "city": "xxx')
    assert not long.parsed
    assert long.content.endswith("(cut: it has 10,025 characters)")
    assert json.loads(quoted.content) == {"n": 5, "city": 'b"\t\\'}
    assert (last.key, last.source_file, last.source_row) == ({"n": 8}, "/in/a b.csv", 9)


@pytest.mark.parametrize("last", [None, "gone"])
def test_a_place_that_is_not_certain_is_not_kept(ledger, tmp_path, last):
    """Beside a record without a file, as a repeated header is put back, no record's number in its
    file is kept."""
    original, _ = ledger.whole_batch(ledgers.pipeline(), 4, lose_sink=[0, 2])
    ledger.settle(original.batch_id)
    snapshot = [
        {
            "_ackledger_file": "file:///in/a.csv",
            "n": n,
            "_ackledger_raw": None,
            "_ackledger_error": None,
        }
        for n in range(4)
    ]
    snapshot[3]["_ackledger_file"] = last and "file:///in/b.csv"
    ledger.write_snapshot(original, tmp_path, snapshot)
    ledger.keep_payloads(original.batch_id)
    places = [(row.source_file, row.source_row) for row in content(ledger).values()]
    numbers = [None, None] if last is None else [1, 3]
    assert places == [("/in/a.csv", number) for number in numbers]


def test_content_is_not_for_everybody(ledger, batch):
    """The reader role sees which batches lack content, and never the content itself."""
    original, _, _ = batch
    ledger.keep_payloads(original.batch_id)
    with pytest.raises(LedgerError, match="permission denied for table failed_payload"):
        ledger.database.transact(
            lambda c: c.exec_driver_sql("SELECT * FROM failed_payload"),
            engine=ledger.database.reader,
        )
    assert ledger.rows(f"SELECT * {MISSING}") == []


def test_content_that_cannot_be_read_keeps_no_batch_waiting(ledger, batch, caplog):
    """With the snapshot out of reach the verdict stands, a line says so, and the view names the
    batch until it is copied."""
    original, roots, (first, _) = batch
    first.rename(first.with_suffix(".away"))
    with caplog.at_level(logging.WARNING):
        try_to_keep(ledger.database, original.batch_id)
    assert (
        f"batch {original.batch_id}: the content of its failed records is not kept yet"
        in caplog.text
    )
    assert f"file {first}: expected " in caplog.text
    assert "it is gone. The batch's records were read from it: restore it" in caplog.text
    assert ledger.explain(roots[0]).content is None
    assert ledger.row(f"SELECT batch_id {MISSING}").batch_id == original.batch_id
    first.with_suffix(".away").rename(first)
    assert ledger.explain(roots[0]).content == "base64:MCz/"
    assert ledger.rows(f"SELECT * {MISSING}") == []


def test_explain_names_what_is_missing(ledger, batch):
    """A record is explained by any of its roots: where it was last seen, what is missing, its
    attempts, the command."""
    original, roots, _ = batch
    pipeline = keyed(max_replays=2)
    lost = ledger.explain(roots[1])
    assert (lost.verdict, lost.last_seen) == ("failed", "source")
    assert lost.missing == "middle read one row of this record from source and wrote none: lost"
    assert (
        lost.next[1]
        == f"ackledger replay MODULE:PIPELINE --batch {original.batch_id} --record {roots[1]}"
    )
    assert json.dumps({"replay_of": original.batch_id, "record": roots[1]}) in lost.next[2]
    failed = ledger.explain(roots[5])
    assert (failed.last_seen, failed.missing) == ("middle", "it failed there: bad city")
    replay = ledger.replay(pipeline, original.batch_id, step="sink")
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again)
    ledger.run_sink(replay, again, [again[0]])
    assert "wait for the replay" in ledger.explain(roots[3]).next[0]
    ledger.settle(replay.batch_id)
    twice, recovered = ledger.explain(again[0]), ledger.explain(roots[8])
    assert (twice.record, twice.root, recovered.verdict) == (roots[3], again[0], "recovered")
    assert [(row["outcome"], row["step"]) for row in recovered.attempts] == [
        ("failed", "sink"),
        ("acked", None),
    ]
    assert [row["root_id"] for row in twice.attempts] == [roots[3], again[0]]
    assert ledger.explain(roots[2]).next == ("nothing: it is acked by every step",)
    with pytest.raises(
        InputError, match=f"no record 99999: .* numbers go from 1 to {again[-1]} so far"
    ):
        ledger.explain(99999)


def test_giving_up_is_final_and_audited(ledger, batch):
    """Records that will never be right go to quarantine by hand, one or by step, with who and why;
    nothing else moves."""
    original, roots, _ = batch
    number = original.batch_id
    assert ledger.quarantine("no such city", "me", record=roots[5], batch_id=number).records == 1
    assert (
        ledger.quarantine("broken sink", "me", batch_id=original.batch_id, step="sink").records == 2
    )
    rows = ledger.rows(
        "SELECT message_id, reason, quarantined_by FROM manual_quarantine ORDER BY 1"
    )
    assert rows == [
        (roots[3], "broken sink", "me"),
        (roots[5], "no such city", "me"),
        (roots[8], "broken sink", "me"),
    ]
    assert ledger.summary(original.batch_id).roots.failed == 2
    explanation = ledger.explain(roots[5])
    assert (explanation.verdict, explanation.accepted_by) == ("quarantined", "me")
    assert [(decision["reason"], decision["by_hand"]) for decision in explanation.decisions] == [
        ("no such city", True)
    ]
    assert explanation.next[-2].endswith(f"--record {roots[5]} --accepted")
    with pytest.raises(NotReadyError, match=f"record {roots[5]} is quarantined: only a failed one"):
        ledger.quarantine("again", "me", record=roots[5])
    with pytest.raises(NotReadyError, match="has no failed record at sink"):
        ledger.quarantine("again", "me", batch_id=original.batch_id, step="sink")
    with pytest.raises(InputError, match="has not failed, it is acked: "):
        ledger.quarantine("why", "me", record=roots[2])
    with pytest.raises(InputError, match="the reason is empty"):
        ledger.quarantine(" ", "me", record=roots[0])
    with pytest.raises(InputError, match="expected a record, or --batch"):
        ledger.quarantine("why", "me")
    other, *_ = ledger.whole_batch(keyed(), 1, run_id="other", day=1)
    with pytest.raises(InputError, match=f"is of batch {number} .* not of"):
        ledger.quarantine("why", "me", record=roots[0], batch_id=other.batch_id)


def test_what_is_quarantined_by_hand_needs_no_second_word(ledger):
    """A record quarantined by hand is accepted by the user who does it: its batch is complete. One
    that is quarantined for its retries is not, and its explanation names both ways out.
    """
    pipeline = ledgers.pipeline(max_replays=5)
    original, roots = ledger.whole_batch(pipeline, 5, lose_sink=[0, 1])
    ledger.settle(original.batch_id)
    ledger.quarantine("a test order", "ada", record=roots[0])
    assert ledger.summary(original.batch_id).outcome is Outcome.INCOMPLETE
    ledger.quarantine("a test order", "ada", record=roots[1])
    ledger.deliver()
    assert ledger.summary(original.batch_id).outcome is Outcome.COMPLETE
    rows = ledger.rows("SELECT accepted_by, accepted_because FROM accepted_record")
    assert rows == [("ada", "a test order")] * 2
    assert ledger.explain(roots[0]).next[0].startswith("nothing, a person gave it up")

    original, roots = ledger.whole_batch(
        ledgers.pipeline(max_replays=0), 5, day=1, run_id="b", lose_sink=[0]
    )
    ledger.settle(original.batch_id)
    _, replay, _, accept, _ = ledger.explain(roots[0]).next
    assert replay.endswith(f"--record {roots[0]} --quarantined")
    assert accept.endswith(f'ackledger accept {original.batch_id} --reason "..."')


def test_what_was_held_back_is_published_once_the_last_failure_is_quarantined(ledger):
    """With publish="complete" giving up the last failed record decides that the sinks publish the
    rest.
    """
    pipeline = ledgers.pipeline(publish="complete")
    original, _ = ledger.whole_batch(pipeline, 3, lose_sink=[0])
    ledger.settle(original.batch_id)
    assert ledger.transact(following.waiting, "chain", ["publish"]) == []
    ledger.quarantine("never", "me", batch_id=original.batch_id)
    assert ledger.transact(following.waiting, "chain", ["publish"]) == [original.batch_id]


def test_a_reprocessed_batch_counts_no_record_twice(ledger, batch):
    """What failed, or was quarantined, in a batch that another one replaced is listed only where it
    is asked for."""
    original, roots, _ = batch
    ledger.quarantine("never", "me", record=roots[5])
    ledger.run_all(ledger.reprocess(keyed(max_replays=2)))
    selection = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))
    assert ledger.transact(failures.summaries, selection) == []
    asked = ledger.transact(failures.summaries, {**selection, "batch_id": original.batch_id})
    assert sum(row.records for row in asked) == 5
    for number in (0, 5):  # one failed, the other was quarantined
        (only,) = ledger.explain(roots[number]).next
        assert only.startswith("nothing: another batch replaced")


@pytest.fixture
def cli(migrated, monkeypatch):
    """The command in this process, on the tests' ledger; what it printed."""
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", migrated.url.render_as_string(hide_password=False))

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if isinstance(done.exception, Exception) and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_a_batch_ends_with_what_failed_says(batch, cli):
    """``run``, ``replay`` and ``status --batch`` say of each cause what ``failed`` says, each
    command in a line of its own, and nothing of it in one long line.
    """
    original, _, _ = batch
    output = cli("status", "--batch", original.batch_id)
    failed = cli("failed", "--batch", original.batch_id)
    assert set(map(str.strip, failed.splitlines())) <= set(map(str.strip, output.splitlines()))
    assert "By cause" not in output
    commands = [line.partition("ackledger ")[1] for line in output.splitlines()]
    assert max(line.count("ackledger ") for line in output.splitlines()) == 1
    assert commands.count("ackledger ") >= 4


def test_one_number_names_a_record_everywhere(batch, cli, ledger):
    """The number that ``failed`` gives as an example and ``failed --records`` lists stays the same
    when the record has failed again, and ``explain``, ``trace`` and ``replay`` take it.
    """
    original, roots, _ = batch
    (shown,) = json.loads(cli("failed", "--reason", "bad city", "--json"))
    assert shown["example_record"] == roots[5]
    replay = ledger.replay(keyed(max_replays=2), original.batch_id, record=roots[5])
    (number,) = ledger.emit_replay(replay)
    ledger.run_middle(replay, [number], fail={number: "bad town"})
    ledger.run_sink(replay, [])
    ledger.settle(replay.batch_id)
    assert number != roots[5]
    (shown,) = json.loads(cli("failed", "--reason", "bad town", "--json"))
    assert (shown["example_record"], shown["records"]) == (roots[5], 1)
    assert str(number) not in cli("failed", "--records", "--reason", "bad town").split()
    assert json.loads(cli("explain", roots[5], "--json"))["record"] == roots[5]
    for name in (roots[5], number):
        selection = Selection(record=name).as_json()
        (due,) = ledger.transact(
            replays.count_due,
            None,
            original.batch_id,
            selection,
            datetime(2100, 1, 1, tzinfo=UTC),
        )
        assert due.records == 1


def test_records_on_the_command_line(batch, cli, tmp_path):
    """Failed records are listed with key and content, chosen by step, reason and their own fields,
    and exported."""
    _, roots, _ = batch
    listed = json.loads(cli("failed", "--records", "--json"))
    assert (listed["total"], [row["record"] for row in listed["records"]]) == (
        5,
        [roots[n] for n in (0, 1, 3, 5, 8)],
    )
    assert listed["records"][3]["key"] == {"n": 5}

    def listed_by(*arguments):
        return [
            row["record"] - roots[0]
            for row in json.loads(cli("failed", "--records", "--json", *arguments))["records"]
        ]

    assert listed_by("--step", "sink") == [3, 8]
    assert listed_by("--reason", "bad %") == [5]
    assert listed_by("--where", "n > 4 AND city != 'x'") == [5, 8]
    assert listed_by("--where", "city LIKE '%\t%'") == [5]
    assert listed_by("--where", "n = 0 AND city IS NULL") == [0]
    assert listed_by("--limit", "2") == [0, 1]
    shown = cli("failed", "--records", "--limit", 2)
    assert "2 of 5 records" in shown
    assert "n=1" in shown
    with pytest.raises(InputError, match=r"'town', a field of no .*: source has city, n$"):
        cli("failed", "--records", "--where", "town = 'x'")
    cli("failed", "--output", tmp_path / "all.csv")
    cli("failed", "--output", tmp_path / "all.parquet", "--step", "middle")
    with (tmp_path / "all.csv").open(newline="") as stream:
        assert [row["record"] for row in csv.DictReader(stream)] == [
            str(roots[n]) for n in (0, 1, 3, 5, 8)
        ]
    assert pq.read_table(tmp_path / "all.parquet")["record"].to_pylist() == [
        roots[n] for n in (0, 1, 5)
    ]
    with pytest.raises(InputError, match=r"expected a name that ends in \.csv or \.parquet"):
        cli("failed", "--output", tmp_path / "all.xlsx")
    with pytest.raises(InputError, match="it cannot be written: No such file or directory"):
        cli("failed", "--output", tmp_path / "no" / "all.csv")


def test_explain_and_quarantine_on_the_command_line(batch, cli):
    """One record is explained by number or by its fields, and quarantined with a reason; a summary
    says what to do."""
    original, roots, _ = batch
    output = cli("explain", roots[8])
    assert "last seen  middle" in output
    assert "read from  /in/a b.csv, record 9" in output
    (explained,) = json.loads(cli("explain", "n = 8", "--json"))
    assert "layout" not in json.loads(cli("failed", "--records", "--json"))["records"][0]
    assert (explained["record"], explained["key"], explained["verdict"]) == (
        roots[8],
        {"n": 8},
        "failed",
    )
    with pytest.raises(
        InputError,
        match=r"no record that failed has n = 4\. Of what is acked at once the ledger keeps counts",
    ):
        cli("explain", "n = 4")
    assert f"quarantine --batch {original.batch_id} --step sink" in cli("failed")
    answer = cli("quarantine", roots[8], "--reason", "never right")
    assert (
        f"4 records of it are still failed: ackledger failed --batch {original.batch_id}" in answer
    )
    assert "accepted by" in cli("failed")
    output = cli("explain", roots[8])
    assert "verdict    accepted by" in output
    assert "quarantined by" in output


def test_a_whole_batch_is_not_read_again_from_its_source(ledger):
    """Where a replay takes the whole batch its source is not read again for some records: one line
    says what to do."""
    pipeline = Pipeline("chain", message_timeout="10s")
    pipeline.source("source", FileSource("in.csv", schema="n INT"), key="n")

    @pipeline.stage(reads="source", anchors="merged_by_hand")
    def middle(rows):
        return rows

    pipeline.sink("sink", ParquetSink("out"), reads="middle")
    original, roots = ledger.whole_batch(pipeline, 3, lose_sink=[0])
    ledger.settle(original.batch_id)
    with pytest.raises(
        InputError, match=r"replays its whole batch\. .*ackledger run .* --reprocess"
    ):
        ledger.replay(pipeline, original.batch_id, from_source=True)
    assert ledger.row("SELECT count(*) FROM failed_message WHERE status = 'failed'")[0] == 3 - 2
    assert "--from-source" not in " ".join(ledger.explain(roots[0]).next)


def test_content_that_the_database_refuses_is_only_logged(ledger, batch, monkeypatch, caplog):
    """What a COPY ends with is an error of the ledger, and no failure at all, known or not,
    stops what follows.
    """
    original, _, _ = batch
    monkeypatch.setattr(queries, "copied_field", lambda value: "a\\tb")
    with pytest.raises(LedgerError, match="refused a statement: invalid input syntax"):
        ledger.keep_payloads(original.batch_id)
    monkeypatch.setattr(queries, "copied_field", lambda value: {}[0])
    with caplog.at_level(logging.WARNING):
        try_to_keep(ledger.database, original.batch_id)
    assert "is not kept yet: 0." in caplog.text


def test_a_record_that_recovered_is_found_by_its_fields(ledger, batch, cli):
    """explain by a condition knows every record that ever failed: also what a replay has brought
    through, and what belongs to a batch that another one replaced.
    """
    original, roots, _ = batch
    replay = ledger.replay(keyed(max_replays=2), original.batch_id, step="sink")
    ledger.run_replay(replay)
    ledger.settle(replay.batch_id)
    (data,) = json.loads(cli("explain", "n = 8", "--json"))
    assert (data["record"], data["verdict"]) == (roots[8], "recovered")
    ledger.run_all(ledger.reprocess(keyed(max_replays=2)))
    (data,) = json.loads(cli("explain", "n = 1", "--json"))
    assert data["next"][0].startswith("nothing: another batch replaced")
    assert json.loads(cli("failed", "--records", "--json"))["total"] == 0


def test_recovered_records_are_listed(ledger, batch, cli):
    """``failed --recovered`` lists what replays have brought through, by cause or one by one, and
    nothing of what is failed; it asks for no command."""
    original, roots, _ = batch
    assert cli("failed", "--recovered") == "no record was recovered\n"
    replay = ledger.replay(keyed(max_replays=2), original.batch_id, step="sink")
    ledger.run_replay(replay)
    ledger.settle(replay.batch_id)
    (cause,) = json.loads(cli("failed", "--recovered", "--json"))
    assert (cause["step"], cause["status"], cause["records"]) == ("sink", "recovered", 2)
    assert "ackledger replay" not in cli("failed", "--recovered")
    listed = json.loads(cli("failed", "--records", "--recovered", "--json"))["records"]
    assert [(row["record"], row["status"]) for row in listed] == [
        (roots[3], "recovered"), (roots[8], "recovered"),
    ]  # fmt: skip
    assert json.loads(cli("failed", "--records", "--json"))["total"] == 3


def test_records_that_failed_since_a_time_are_listed(ledger, batch, cli):
    """``failed --since`` leaves out what failed last before that time, which is in UTC; where
    nothing is left it says so."""
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE failed_root SET failed_at = CASE WHEN step = 'sink'"
            " THEN timestamptz '2026-03-02 06:30Z' ELSE timestamptz '2026-03-01 00:00Z' END"
        )
    for since, count in (("2026-03-02T06:30", 2), ("2026-03-02T06:30+02:00", 2), ("2026-03-01", 5)):
        rows = json.loads(cli("failed", "--since", since, "--json"))
        assert sum(row["records"] for row in rows) == count
        assert json.loads(cli("failed", "--records", "--since", since, "--json"))["total"] == count
    assert cli("failed", "--since", "2026-03-02T06:31") == (
        "no record is failed or quarantined since 2026-03-02T06:31; see 'ackledger failed'\n"
    )


def test_advice_names_commands_that_work(ledger, batch, cli):
    """Records without a key that was read are not read again by key, those given up are left out
    of the next replay, and advice is about what was asked for.
    """
    original, roots, _ = batch
    none = dict.fromkeys(("pipeline", "batch_id", "step", "reason"))

    def cases(**selection):
        cases_ = ledger.transact(failures.cases, {**none, **selection}, Case.of)
        return {row.step: row for row in cases_}

    ledger.keep_payloads(original.batch_id)
    ledger.change(  # as if it had not parsed
        "UPDATE failed_root SET step = 'source', cause = 'unparsed', reason = 'no JSON'"
        f" WHERE root_id = {roots[0]}"
    )
    assert cases()["source"].rereads
    assert "--from-source" in ledger.explain(roots[0]).next[1]
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            f"""UPDATE failed_payload SET key = '{{"n": null}}' WHERE message_id = {roots[0]}"""
        )
        connection.exec_driver_sql(
            f"UPDATE failed_message SET given_up = true WHERE message_id = {roots[3]}"
        )
    assert not cases()["source"].rereads
    assert "--from-source" not in " ".join(ledger.explain(roots[0]).next)
    assert sorted(cases(reason="bad %")) == ["middle"]
    output = cli("failed", "--step", "sink")
    assert "no replay is left of the records" in output
    assert "middle" not in output
    assert "2 more causes, first" in cli("failed")


def test_what_a_record_says_does_not_command_the_terminal(ledger, cli):
    """Reasons, and words of who gave a record up, are shown without escape sequences."""
    original = ledger.open(ledgers.pipeline())
    roots = ledger.emit(original, 3)
    ledger.run_middle(original, roots, fail={roots[0]: "bad \x1b[2J"})
    ledger.run_sink(original, roots[1:])
    ledger.settle(original.batch_id)
    ledger.quarantine("never \x1b[2J", "me", record=roots[0])
    shown = cli("explain", roots[0]) + cli("failed") + cli("failed", "--records")
    assert "bad \ufffd[2J" in shown
    assert "never \ufffd[2J" in shown
    assert "\x1b" not in shown


def test_a_replay_that_was_refused_is_not_done(ledger, cli, monkeypatch):
    """What another replay holds is named, and the command says that records are failed; it does
    not say that there is nothing to do.
    """

    def refuse(*arguments):
        raise NotReadyError("another replay of it is open")

    original, _ = ledger.whole_batch(ledgers.pipeline("flights"), 3, lose_sink=[0])
    ledger.settle(original.batch_id)
    for name in ("before_replay", "spark_session", "keep_all"):
        monkeypatch.setattr(runs, name, lambda *arguments: None)
    monkeypatch.setattr(runs, "open_replay", refuse)
    monkeypatch.chdir(ROOT)
    output = cli("replay", "jobs.flights:pipeline", code=3)
    assert "another replay of it is open" in output
    assert "nothing to replay" not in output
    monkeypatch.setattr(runs, "originals_of", lambda *arguments: [])
    assert "nothing to replay" in cli("replay", "jobs.flights:pipeline")


def test_an_interrupted_replay_is_asked_for_by_its_run_id(ledger, cli, monkeypatch):
    """Records that an interrupted replay has claimed are no other's; its own run id opens it
    again.
    """
    result, asked = ledgers.pipeline("flights"), []
    first_batch, _ = ledger.whole_batch(result, 3, lose_sink=[0])
    ledger.settle(first_batch.batch_id)
    key = RunKey("", f"mine-{first_batch.batch_id}")
    open_replay(
        ledger.database, Settings(data="/data"), result, key, first_batch.batch_id, Selection()
    )

    def opening(database, settings, pipeline, key, original, selection):
        asked.append((key, original))
        raise NotReadyError("enough is seen")

    for name in ("before_replay", "spark_session", "keep_all"):
        monkeypatch.setattr(runs, name, lambda *arguments: None)
    monkeypatch.setattr(runs, "open_replay", opening)
    monkeypatch.chdir(ROOT)
    assert "nothing to replay" in cli("replay", "jobs.flights:pipeline")
    cli("replay", "jobs.flights:pipeline", "--run-id", "mine", code=3)
    assert asked == [(key, first_batch.batch_id)]


def test_a_record_is_explained_without_java(ledger, batch, tmp_path):
    """explain and failed --records need no Java, load nothing of Spark, and take a few times
    what the command takes to say its version.
    """
    original, roots, _ = batch
    ledger.keep_payloads(original.batch_id)
    run = commands(ledger.database, tmp_path)

    def seconds(*arguments):
        """Of processors, which does not depend on what else runs."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = run(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, text

    start, _ = seconds("--version")
    for arguments in (["explain", roots[8]], ["failed", "--records"]):
        took, output = seconds(*arguments)
        assert "n=8" in output
        assert took < 4 * start


def test_content_that_was_read_again_is_kept_wherever_it_settles(ledger, batch, tmp_path):
    """A replay that read its source again and was settled far from the storage is named by the
    view, and its content takes the place of the old one with whatever copies content next; once.
    A replay after it reads that content, copied or not, and leaves it.
    """
    original, roots, _ = batch
    ledger.keep_payloads(original.batch_id)
    replay = ledger.replay(keyed(max_replays=2), original.batch_id, step="sink", from_source=True)
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again)
    ledger.run_sink(replay, again, again)
    ledger.settle(replay.batch_id)
    fixed = [
        {
            "_ackledger_file": None,
            "n": n,
            "city": "new",
            "_ackledger_raw": None,
            "_ackledger_error": None,
        }
        for n in (3, 8)
    ]
    (tmp_path / "again").mkdir()
    ledger.write_snapshot(replay, tmp_path / "again", fixed)
    later = ledger.replay(keyed(max_replays=2), original.batch_id, "later", step="sink")
    (emit,) = ledger.transact(queries.claimed, later.batch_id, original.batch_id, "source")
    assert (emit.batch_id, emit.roots) == (replay.batch_id, [*again])
    ledger.run_middle(later, last := ledger.emit_replay(later))
    ledger.run_sink(later, last, last)
    ledger.settle(later.batch_id)
    missing = f"SELECT batch_id {MISSING}"
    assert ledger.row(missing).batch_id == original.batch_id
    keep_all(ledger.database, "chain")
    contents = content(ledger)
    assert json.loads(contents[roots[8]].content) == {"n": 8, "city": "new"}
    assert (contents[roots[8]].root_id, contents[roots[1]].root_id) == (again[1], roots[1])
    assert ledger.rows(missing) == []
    assert ledger.transact(queries.read_again, original.batch_id) == []
