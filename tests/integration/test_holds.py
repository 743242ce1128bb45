"""A batch on hold shows what its settlement would record, and none of it counts."""

import json

import pytest
from typer.testing import CliRunner

from ledger.batch.opening import open_batch
from ledger.batch.outcome.alerts import failed_ratio
from ledger.batch.records.forgetting import forget, matching, named
from ledger.cli import app
from ledger.core import conditions
from ledger.core.probes import listening
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus
from ledger.errors import NotReadyError
from ledger.settings import Settings
from ledger.store.queries import batches, holds
from tests.support.dying import Died, dies_at
from tests.support.ledgers import END, START, pipeline

COUNTS = "SELECT total, acked, failed, quarantined, pending FROM batch_status WHERE batch_id = :id"


def on_hold(ledger, count=10, *, fail=None, **options):
    """A batch of which too much failed: explicitly in middle by index, and record 0 in the sink."""
    batch = ledger.open(pipeline(key=("n",), hold_above=0.1, **options))
    roots = ledger.emit(batch, count)
    reasons = {roots[number]: reason for number, reason in (fail or {1: "bad", 2: "bad"}).items()}
    ledger.run_middle(batch, roots, fail=reasons)
    ledger.run_sink(batch, [root for root in roots if root not in reasons], lose=roots[:1])
    return batch, roots


def shown(ledger, batch):
    """What a batch on hold shows: step, reason and number of records; the roots of its sample."""
    failures = ledger.transact(holds.failures, {"batch_id": batch.batch_id})
    sample = ledger.rows("SELECT root_id FROM hold_sample ORDER BY root_id")
    return (
        [(row.step, row.reason, row.records) for row in failures],
        [row.root_id for row in sample],
    )


def counts(ledger, batch):
    return tuple(ledger.row(COUNTS, id=batch.batch_id))


def test_a_hold_keeps_what_was_computed_and_decides_nothing(ledger):
    """Steps, reasons and first records of the failures are kept, and no record has another state:
    all are pending, and no replay can take one."""
    batch, roots = on_hold(ledger)
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    assert shown(ledger, batch) == ([("middle", "bad", 2), ("sink", "lost", 1)], list(roots[:3]))
    assert counts(ledger, batch) == (10, 0, 0, 0, 10)
    assert ledger.rows("SELECT FROM failed_message") == []
    assert ledger.rows("SELECT FROM failed_root") == []
    with pytest.raises(NotReadyError):
        ledger.replay(pipeline(), batch.batch_id)
    summary = ledger.summary(batch.batch_id)
    assert [dict(row) for row in summary.preview] == [
        {"source": "source", "step": "middle", "reason": "bad", "records": 2},
        {"source": "source", "step": "sink", "reason": "lost", "records": 1},
    ]


def test_a_preview_ends_with_its_hold(ledger):
    """A release, and a run that opens the batch again, remove it in their transaction; another hold
    has its own."""
    batch, roots = on_hold(ledger)
    ledger.settle(batch.batch_id)
    ledger.run_middle(batch, roots, fail=dict.fromkeys(roots[4:], "worse"))
    assert shown(ledger, batch) == ([], [])
    ledger.run_sink(batch, roots[:4])
    ledger.settle(batch.batch_id)
    assert shown(ledger, batch) == ([("middle", "worse", 6)], list(roots[4:]))
    assert ledger.release(batch.batch_id).failed == 6
    assert shown(ledger, batch) == ([], [])
    assert counts(ledger, batch) == (10, 4, 6, 0, 0)


def test_the_preview_is_asked_for_in_sql(ledger):
    """Who may only read sees what would fail, with an example each; nothing once it is decided."""
    batch, roots = on_hold(ledger)
    ledger.settle(batch.batch_id)
    statement = "SELECT * FROM hold_preview ORDER BY records DESC"
    with ledger.database.reader.connect() as connection:
        results = [tuple(row) for row in connection.exec_driver_sql(statement)]
    assert results == [
        (batch.batch_id, "chain", "source", "middle", "bad", 2, roots[1]),
        (batch.batch_id, "chain", "source", "sink", "lost", 1, roots[0]),
    ]
    ledger.release(batch.batch_id)
    assert ledger.rows(statement) == []


def test_a_crash_before_the_hold_is_settled_again(ledger):
    """A process that dies once it has judged leaves an open batch without a preview,
    which the next settlement puts on hold; one that dies within the hold leaves it open, too."""
    batch, _ = on_hold(ledger)
    for place in ("before hold", "holding"):
        with dies_at(place), pytest.raises(Died):
            ledger.settle(batch.batch_id)
        assert ledger.row("SELECT status FROM batch").status == "open"
        assert shown(ledger, batch) == ([], [])
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    assert len(shown(ledger, batch)[1]) == 3


def test_no_run_opens_between_a_judgement_and_its_hold(ledger):
    """The batch stays locked from the judgement to its hold, so that the reason and the preview are
    those of the runs that count."""
    batch, _ = on_hold(ledger)
    locked = []

    def watch(place, _):
        if place == "before hold":
            with ledger.database.plain.begin() as other:
                locked.append(batches.lock_batch(other, batch.batch_id, skip_locked=True) is None)

    with listening(watch):
        assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    assert locked == [True]


def test_a_hold_is_for_an_open_batch_alone(ledger):
    """Where another settlement was first, nothing is put on hold, and no preview is kept."""
    batch, _ = on_hold(ledger)
    ledger.settle(batch.batch_id)
    before = shown(ledger, batch)
    again = ledger.settle(batch.batch_id)
    assert (again.status, again.decided) == (BatchStatus.HELD, False)
    assert "Or publish the rest anyway: ackledger release" in again.reason
    assert shown(ledger, batch) == before


def test_a_preview_is_bounded(ledger, monkeypatch):
    """Of many reasons the most frequent are named and the others counted together, and of each so
    many records are kept as are allowed."""
    monkeypatch.setattr(holds, "REASONS", 2)
    monkeypatch.setattr(holds, "SAMPLE", 3)
    monkeypatch.setattr(holds, "LARGEST_SAMPLE", 6)
    fail = {
        **dict.fromkeys(range(1, 9), "often"),
        **dict.fromkeys(range(9, 12), "less"),
        12: "rare",
        13: "rarer",
    }
    batch, roots = on_hold(ledger, 20, fail=fail)
    ledger.settle(batch.batch_id)
    failures, sample = shown(ledger, batch)
    assert failures == [
        ("middle", "often", 8),
        ("middle", "less", 3),
        ("middle", "2 rarer reasons", 2),
        ("sink", "lost", 1),
    ]
    assert sorted(sample) == [roots[n] for n in (0, 1, 2, 9, 10, 12)]


def test_damage_has_no_preview(ledger):
    """What a settlement computes from damaged deltas is no evidence: there is no preview, and no
    release is offered."""
    batch, roots = on_hold(ledger)
    ledger.change(f"DELETE FROM ledger_delta WHERE root_id = {roots[9]}")
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert "release" not in settlement.reason
    assert ". To go on: in run run of DAG dag clear" in settlement.reason
    assert shown(ledger, batch) == ([], [])


def test_content_of_the_sample(ledger, tmp_path):
    """The records of the sample have key and content from the snapshot, and what is redacted stays
    masked; the batch's other records are not copied."""
    batch, _ = on_hold(ledger)
    ledger.change("UPDATE pipeline SET redact = '{email}'")
    record = [
        {"n": n, "email": f"{n}@x.org", "_ackledger_file": "file:///in.csv"} for n in range(10)
    ]
    ledger.write_snapshot(batch, tmp_path, record)
    ledger.settle(batch.batch_id)
    ledger.keep_payloads(batch.batch_id)
    rows = ledger.rows("SELECT key, content, source_row FROM hold_sample ORDER BY root_id")
    assert [(row.key["n"], json.loads(row.content), row.source_row) for row in rows] == [
        (n, {"n": n, "email": "***"}, n + 1) for n in range(3)
    ]
    assert ledger.rows("SELECT FROM failed_payload") == []


def test_a_record_on_hold_is_explained(ledger, tmp_path):
    """Its verdict says that nothing is decided, with the step, the reason, the content and the ways
    on; a record of the batch that would not fail is pending, with the same ways."""
    batch, roots = on_hold(ledger)
    ledger.write_snapshot(batch, tmp_path, [{"n": n, "_ackledger_file": None} for n in range(10)])
    ledger.settle(batch.batch_id)
    explanation = ledger.explain(roots[1])
    assert (explanation.verdict, explanation.last_seen) == ("on hold: not decided", None)
    assert explanation.missing == "it would fail at middle: bad"
    assert (explanation.key, explanation.content) == ({"n": 1}, '{"n": 1}')
    (way,) = explanation.next
    assert way.startswith(f"batch {batch.batch_id} is on hold. 3 of 10 records failed; ")
    other = ledger.explain(roots[9])
    assert (other.verdict, other.next) == ("pending", (way,))


def test_an_alert_has_the_preview(ledger):
    """The facts of a batch on hold say why in one line, and what would fail line by line."""
    batch, _ = on_hold(ledger, fail={1: "bad\nSubject: x"})
    ledger.settle(batch.batch_id)
    facts = failed_ratio(ledger.database, batch.batch_id, above=0.5)
    assert facts.because == (
        f"batch {batch.batch_id} of chain is on hold: 2 of 10 records failed; the limit is 10 %"
        " (hold_above). Most failed at middle"
    )
    assert facts.preview == ("1 at middle: bad Subject: x", "1 at sink: lost")


def test_a_sampled_record_is_not_forgotten_while_it_is_undecided(ledger, tmp_path):
    """By number or by a field: the refusal names the batch on hold, and what to do first."""
    batch, roots = on_hold(ledger)
    ledger.write_snapshot(batch, tmp_path, [{"n": n, "_ackledger_file": None} for n in range(10)])
    ledger.settle(batch.batch_id)
    message = f"record {roots[1]} is not decided: batch {batch.batch_id} is on hold"
    with pytest.raises(NotReadyError, match=message):
        named(ledger.database, roots[1])
    with pytest.raises(NotReadyError, match=message):
        matching(ledger.database, None, conditions.parse("n = 1"))


def test_a_forgotten_record_leaves_the_preview(ledger, tmp_path):
    """A decided record that a replay on hold takes along leaves the sample as it is forgotten, and
    nothing is left of reasons that may quote it."""
    flow = pipeline(key=("n",), hold_above=0.1, max_replays=0)
    batch, roots = ledger.whole_batch(flow, 10, lose_sink=[0])
    names = [{"n": n, "name": f"person-{n}", "_ackledger_file": None} for n in range(10)]
    ledger.write_snapshot(batch, tmp_path, names)
    ledger.settle(batch.batch_id)
    other = ledger.replay(flow, batch.batch_id, quarantined=True)
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE failed_message SET status = 'quarantined', replay_batch_id = NULL"
        )
        connection.exec_driver_sql(
            f"UPDATE batch SET status = 'held', held_reason = 'x' WHERE batch_id = {other.batch_id}"
        )
    sample = [{"number": 1, "root_id": 99_999, "message_id": roots[0]}]
    failures = [
        {
            "number": 1,
            "source": "source",
            "step": "middle",
            "reason": "no person-0 there",
            "records": 1,
        }
    ]
    ledger.transact(holds.insert, other.batch_id, failures, sample)
    forget(ledger.database, named(ledger.database, roots[0]))
    assert shown(ledger, other) == ([("middle", "***", 1)], [])


def test_a_replay_answers_for_its_own_new_failures(ledger):
    """53 records are replayed and 46 come through: what others of the family have failed, and what
    failed before, is not held against the replay."""
    batch, _ = ledger.whole_batch(pipeline(), 200, lose_sink=range(53))
    assert ledger.settle(batch.batch_id).failed == 53
    flow = pipeline(hold_above=0.01)  # by now: no user has answered for these
    replay = ledger.replay(flow, batch.batch_id)
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again)
    ledger.run_sink(replay, again, lose=again[:7])
    settlement = ledger.settle(replay.batch_id)
    assert (settlement.status, settlement.failed) == (BatchStatus.SETTLED, 7)
    assert counts(ledger, batch) == (200, 193, 7, 0, 0)


def replay_on_hold(ledger, lost):
    """A batch of ten records that expired in its sink, and its replay, which is on hold because the
    sink loses the first of them: batch, roots, replay, its roots, its settlement."""
    flow = pipeline(key=("n",), hold_above=0.1)
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 10)
    ledger.run_middle(batch, roots)
    ledger.start(batch.batch_id, "sink")
    ledger.age_all(2 * 3600, batch.batch_id)
    assert ledger.settle(batch.batch_id).failed == 10
    replay = ledger.replay(flow, batch.batch_id)
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again)
    ledger.run_sink(replay, again, lose=again[:lost])
    settlement = ledger.settle(replay.batch_id)
    assert settlement.status is BatchStatus.HELD
    return batch, roots, replay, again, settlement


def test_a_replay_that_breaks_what_was_whole_is_held(ledger):
    """Records that had failed through no fault of their own, and now do: they are new failures of
    the replay, measured by the original's records, and the message says both."""
    batch, roots, replay, again, settlement = replay_on_hold(ledger, lost=2)
    assert settlement.reason.startswith(
        f"2 records failed that had not failed before; batch {batch.batch_id}, which is replayed,"
        " has 10, and the limit is 10 % (hold_above). Most failed at sink."
    )
    assert ledger.rows("SELECT DISTINCT status FROM failed_message") == [("replaying",)]
    assert shown(ledger, replay) == ([("sink", "lost", 2)], list(again[:2]))
    explanation = ledger.explain(roots[0])
    assert (explanation.record, explanation.root, explanation.batch_id) == (
        roots[0],
        again[0],
        replay.batch_id,
    )
    assert [tried["step"] for tried in explanation.attempts] == ["sink"]


def test_a_record_of_a_replay_on_hold_is_counted_once(ledger, migrated, monkeypatch, tmp_path):
    """Though it failed before, and would fail again: ``explain CONDITION`` and ``failed --records``
    name and count it once, the latter as on hold, after those that are not."""
    batch, roots, *_ = replay_on_hold(ledger, lost=7)
    ledger.write_snapshot(batch, tmp_path, [{"n": 17, "_ackledger_file": None}] * 10)
    assert ledger.keep_payloads(batch.batch_id) == 10
    ledger.change("UPDATE hold_sample SET key = '{\"n\": 17}'")
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", migrated.url.render_as_string(hide_password=False))
    run = CliRunner()
    explained = run.invoke(app, ["explain", "n = 17"])
    assert explained.exit_code == 0, explained.output
    assert explained.stdout.splitlines()[-1].startswith("5 more match: ")
    for limit, on_hold_of_these in ((20, 7), (4, 1)):
        options = ["--records", "--where", "n = 17", "--limit", str(limit), "--json"]
        listed = json.loads(run.invoke(app, ["failed", *options]).stdout)
        assert listed["total"] == 10
        numbers = [record["record"] for record in listed["records"]]
        assert len(numbers) == len({*numbers} & {*roots}) == min(limit, 10)
        states = [record["status"] for record in listed["records"]]
        assert states.count("on hold") == on_hold_of_these
        assert set(states[-on_hold_of_these:]) == {"on hold"}


def test_acked_records_that_a_replay_breaks_are_new_failures(ledger):
    """A replay takes acked records of its batch along and loses them: they are counted, also
    where a person has released the original; the record that had failed before is not."""
    flow = pipeline(hold_above=0.1)
    batch, roots = ledger.whole_batch(flow, 10, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    ledger.release(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    ledger.declare(replay.batch_id, "middle", merges=True)  # so that it is replayed as a whole
    again = ledger.emit_replay(replay, along=roots[2:4])
    assert len(again) == 4
    ledger.run_middle(replay, again, fail=dict.fromkeys(again, "broken"))
    ledger.run_sink(replay, [])
    settlement = ledger.settle(replay.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert settlement.reason.startswith("2 records failed that had not failed before; ")
    assert shown(ledger, replay)[0] == [("middle", "broken", 4)]


@pytest.mark.parametrize(
    ("options", "otherwise"),
    [
        ({}, "Or publish the rest anyway"),
        ({"publish": "complete"}, "Or let these records fail"),
        ({"guarantee": "at_least_once"}, "Or let these records fail"),
    ],
)
def test_what_a_release_does_is_named(ledger, options, otherwise):
    """Both commands are whole, for the pipeline's target and its batch, and the second says what a
    release does: it publishes the rest where that waits for nothing else."""
    flow = pipeline(hold_above=0.1, **options)
    interval = Interval(START, END)
    batch = open_batch(ledger.database, Settings(data="/data"), flow, RunKey("", "mine"), interval)
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql("UPDATE pipeline SET target = 'jobs.x:p'")
    roots = ledger.emit(batch, 4)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots, lose=roots[:2])
    assert ledger.settle(batch.batch_id).reason == (
        "2 of 4 records failed; the limit is 10 % (hold_above). Most failed at sink. Fix it "
        "and rerun: ackledger run jobs.x:p --from 2013-01-01 --to 2013-01-02 "
        f"--run-id mine. {otherwise}: ackledger release {batch.batch_id}"
    )
