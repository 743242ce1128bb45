"""Which batches raise an alert, by the real ledger; what metrics say of them."""

from dataclasses import asdict
from datetime import timedelta

import pytest

from ledger.batch.outcome import alerts
from ledger.batch.outcome.readings import measure
from tests.support.ledgers import END, START, pipeline

DAY = timedelta(days=1)


def settled(ledger, flow, count=10, **options):
    """A batch that is decided."""
    batch, _ = ledger.whole_batch(flow, count, **options)
    ledger.settle(batch.batch_id)
    return batch


def recovered(ledger, flow, original):
    """A replay that recovers all that failed in a batch."""
    batch = ledger.replay(flow, original.batch_id)
    ledger.run_replay(batch)
    ledger.settle(batch.batch_id)
    return batch


@pytest.mark.parametrize(("above", "message"), [(0.19, True), (0.2, False)])
def test_too_much_of_an_interval_has_failed(ledger, above, message):
    """More than a share of its records are failed or quarantined: it says how many, of which
    batch, run and interval.
    """
    batch = settled(ledger, pipeline(), lose_sink=[0, 1])
    facts = alerts.failed_ratio(ledger.database, batch.batch_id, above)
    assert (facts is not None) == message
    if facts is not None:
        assert facts.because == (
            "2 of 10 records of chain are failed or quarantined (20.00%): more than 19.00%"
        )
        assert (facts.batch_id, facts.dag_id, facts.run_id) == (batch.batch_id, "dag", "run")
        assert (facts.interval_start, facts.interval_end) == (START, END)
        assert (facts.records, facts.acked, facts.failed, facts.quarantined) == (10, 8, 2, 0)
        assert facts.lost_ratio == 0.2


def test_a_replay_is_reported_by_what_still_fails_of_its_original(ledger):
    """One that recovers all is not reported, however little it has read itself."""
    flow = pipeline()
    original = settled(ledger, flow, lose_sink=[0, 1])
    replay = recovered(ledger, flow, original)
    assert alerts.failed_ratio(ledger.database, replay.batch_id, 0) is None
    other = settled(ledger, flow, run_id="next", day=1, lose_sink=[0])
    empty_handed = ledger.replay(flow, other.batch_id, "again")
    roots = ledger.emit_replay(empty_handed)
    ledger.run_middle(empty_handed, roots)
    ledger.run_sink(empty_handed, roots, lose=roots)
    ledger.settle(empty_handed.batch_id)
    facts = alerts.failed_ratio(ledger.database, empty_handed.batch_id, 0)
    assert (facts.records, facts.failed, facts.lost_ratio) == (10, 1, 0.1)


def test_a_held_batch_is_reported_whatever_the_ratio(ledger):
    """The number of its failed records is not known yet; the reason says what holds it."""
    batch = settled(ledger, pipeline(hold_above=0.1), lose_sink=[0, 1])
    facts = alerts.failed_ratio(ledger.database, batch.batch_id, 0.9)
    assert facts.status == "held"
    assert facts.because.startswith(f"batch {batch.batch_id} of chain is on hold: ")


def test_the_reason_is_one_line(ledger):
    """A stage's reason may be any text, and a mail with a line break in its subject is not sent."""
    batch = settled(ledger, pipeline(hold_above=0.1), lose_sink=[0, 1])
    ledger.change("UPDATE batch SET held_reason = :r", r="bad\nBcc: x\x1b[31m")
    facts = alerts.failed_ratio(ledger.database, batch.batch_id, 0.9)
    assert facts.because == f"batch {batch.batch_id} of chain is on hold: bad Bcc: x\ufffd[31m"


def test_an_undecided_batch_is_no_failure(ledger):
    """Its records are pending."""
    batch = ledger.open(pipeline())
    assert alerts.failed_ratio(ledger.database, batch.batch_id, 0) is None
    assert alerts.quarantine_growth(ledger.database, batch.batch_id, 0, DAY) is None


def test_only_the_batch_that_crosses_the_limit_is_reported(ledger):
    """Of those that fill the quarantine within a time: neither the ones before it nor the ones
    after it, whenever one asks; once the earlier ones lie farther back it is another one.
    """
    flow = pipeline(max_replays=0)
    batches = [
        settled(ledger, flow, run_id=f"run {day}", day=day, lose_sink=[0, 1]) for day in range(3)
    ]

    def growth(within=DAY):
        return [
            bool(alerts.quarantine_growth(ledger.database, batch.batch_id, 3, within))
            for batch in batches
        ]

    assert growth() == [False, True, False]
    facts = alerts.quarantine_growth(ledger.database, batches[1].batch_id, 3, DAY)
    assert facts.because == "4 records of chain were quarantined within 1 day: more than 3"
    ledger.age_all(2 * 86_400, batches[0].batch_id)
    assert growth() == [False, False, True]


def test_what_is_accepted_is_no_growth(ledger):
    """A person has said that it may stay out."""
    flow = pipeline(max_replays=0)
    batch = settled(ledger, flow, lose_sink=[0, 1])
    assert alerts.quarantine_growth(ledger.database, batch.batch_id, 1, DAY) is not None
    ledger.accept(batch.batch_id, by="somebody", reason="it may stay out")
    assert alerts.quarantine_growth(ledger.database, batch.batch_id, 1, DAY) is None


def test_a_batch_that_is_open_is_reported_with_its_deadline(ledger):
    """And with what it waits for; a decided one is not."""
    flow = pipeline(max_batch_age="2d")
    batch = ledger.open(flow)
    facts = alerts.still_open(ledger.database, batch.batch_id)
    assert facts.deadline == batch.opened_at + 2 * DAY
    assert facts.because.startswith(
        f"batch {batch.batch_id} of chain is still open, and decided at"
        f" {facts.deadline:%Y-%m-%d %H:%M} UTC whatever runs or waits. "
    )
    assert "source" in facts.because
    assert (
        alerts.still_open(ledger.database, settled(ledger, flow, run_id="b", day=1).batch_id)
        is None
    )


def test_the_batch_of_a_run(ledger):
    """A run's newest batch, also if it reprocesses its interval; another run's is not it."""
    flow = pipeline()
    first = settled(ledger, flow, run_id="one")
    settled(ledger, flow, run_id="one#reprocess", day=1)
    assert alerts.batch_of_run(ledger.database, "dag", "one") == first.batch_id + 1
    assert alerts.batch_of_run(ledger.database, "dag", "two") is None
    assert alerts.batch_of_run(ledger.database, "other", "one") is None


def measured(ledger, *overdue):
    """What each pipeline has, by its name."""
    return {
        follow_up.pipeline: asdict(follow_up) for follow_up in measure(ledger.database, overdue)
    }


def test_the_backlog_of_each_pipeline(ledger):
    """Open and held batches with their records, the age of the oldest, and how much of its greatest
    age an open one has used up; a pipeline without any has zeros.
    """
    settled(ledger, pipeline("idle"))
    settled(ledger, pipeline("stuck", hold_above=0.1), lose_sink=[0, 1])
    flow = pipeline("busy", max_batch_age="10d")
    batch = ledger.open(flow)
    ledger.emit(batch, 7)
    ledger.open(flow, "next", 1)
    ledger.age_all(2 * 86_400, batch.batch_id)
    measures = measured(ledger)
    zeros = dict.fromkeys(("open_batches", "held_batches", "pending_records"), 0)
    zeros |= {"oldest_pending_seconds": 0, "age_ratio": 0, "failed_records": 0}
    zeros |= {"quarantined_records": 0, "overdue_batches": 0}
    assert measures["idle"] == {"pipeline": "idle", **zeros}
    stuck = measures["stuck"]
    assert (stuck["open_batches"], stuck["held_batches"], stuck["age_ratio"]) == (0, 1, 0)
    assert stuck["pending_records"] == 10
    busy = measures["busy"]
    assert (busy["open_batches"], busy["held_batches"], busy["pending_records"]) == (2, 0, 7)
    assert busy["oldest_pending_seconds"] == pytest.approx(2 * 86400, abs=60)
    assert busy["age_ratio"] == pytest.approx(0.2, abs=0.01)


def test_what_each_pipeline_has_lost(ledger):
    """Failed records, and those that are quarantined and not accepted; of which batches something
    is overdue.
    """
    settled(ledger, pipeline("failing"), lose_sink=[0, 1, 2])
    flow = pipeline("full", max_replays=0)
    ledger.accept(
        settled(ledger, flow, lose_sink=[0]).batch_id,
        by="somebody",
        reason="it may stay out",
    )
    late = settled(ledger, flow, run_id="next", day=1, lose_sink=[0, 1])
    settled(ledger, pipeline("whole"))
    measures = measured(ledger, late.batch_id)
    names = ("failed_records", "quarantined_records", "overdue_batches")
    assert {
        pipeline: tuple(measure[name] for name in names) for pipeline, measure in measures.items()
    } == {
        "failing": (3, 0, 0),
        "full": (0, 2, 1),
        "whole": (0, 0, 0),
    }
