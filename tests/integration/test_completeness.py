"""Whether an interval of a pipeline is complete: what others may wait for."""

from datetime import timedelta

from ledger.batch.outcome.completeness import losses, waits_for
from ledger.core.run_request import Interval
from tests.support.ledgers import START, pipeline

DAY = timedelta(days=1)


def settled(ledger, flow, count=4, day=0, **lost):
    """A decided batch over a day, with what is decided of it published."""
    batch, roots = ledger.whole_batch(flow, count, f"day {day}", day, **lost)
    ledger.settle(batch.batch_id)
    ledger.deliver()
    return batch, roots


def lack(ledger, days=1, pipeline="chain"):
    """What the first days of a pipeline wait for."""
    return waits_for(ledger.database, pipeline, Interval(START, START + days * DAY))


def test_an_interval_is_complete_once_its_batch_is(ledger):
    """Not before it is opened, decided, and published; nor while its run has come to nothing."""
    assert lack(ledger) == "no batch reads 2013-01-01 00:00 to 2013-01-02 00:00"
    flow = pipeline()
    abandoned = ledger.open(flow, "in vain")
    assert ledger.abandon(abandoned.batch_id, "in vain")
    assert lack(ledger).startswith("no batch reads")
    batch, _ = ledger.whole_batch(flow, 4)
    assert lack(ledger).startswith(f"batch {batch.batch_id} is open. All its steps are done")
    ledger.settle(batch.batch_id)
    unpublished = "1 sink is yet to publish what is acked of it"
    assert lack(ledger) == f"batch {batch.batch_id}: {unpublished}"
    ledger.deliver()
    assert lack(ledger) is None
    assert lack(ledger, pipeline="another") is not None


def test_what_failed_is_waited_for_until_a_replay_has_it(ledger):
    """A replay completes the interval of its original."""
    flow = pipeline()
    batch, _ = settled(ledger, flow, lose_sink=[0])
    assert lack(ledger) == f"batch {batch.batch_id}: 1 of 4 records failed"
    loss = losses(ledger.database, "chain", Interval(START, START + DAY))
    assert (loss.undecided, loss.records, loss.lost_ratio) == (None, 4, 0.25)
    again = ledger.replay(flow, batch.batch_id)
    ledger.run_replay(again)
    ledger.settle(again.batch_id)
    unpublished = "1 sink is yet to publish what is acked of it"
    assert lack(ledger) == f"batch {again.batch_id}: {unpublished}"
    ledger.deliver()
    assert lack(ledger) is None


def test_what_is_quarantined_is_waited_for_until_it_is_accepted(ledger):
    """What a person has accepted keeps no downstream DAG waiting."""
    batch, _ = settled(ledger, pipeline(max_replays=0), lose_sink=[0, 1])
    quarantined = "2 of 4 records are quarantined and not accepted"
    assert lack(ledger) == f"batch {batch.batch_id}: {quarantined}"
    ledger.accept(batch.batch_id, by="somebody", reason="known")
    assert lack(ledger) is None


def test_many_batches_cover_an_interval(ledger):
    """Each of them has to be complete, and no part may be left out."""
    flow = pipeline()
    for day in (0, 2):
        settled(ledger, flow, day=day)
    assert lack(ledger, days=1) is None
    assert lack(ledger, days=3) == "no batch reads 2013-01-02 00:00 to 2013-01-03 00:00"
    between, _ = settled(ledger, flow, day=1, lose_sink=[0])
    assert lack(ledger, days=3) == f"batch {between.batch_id}: 1 of 4 records failed"
    loss = losses(ledger.database, "chain", Interval(START, START + 3 * DAY))
    assert (len(loss.batch_ids), loss.records, loss.lost, loss.undecided) == (3, 12, 1, None)


def test_a_part_of_an_interval_is_as_complete_as_its_batch(ledger):
    """Who waits for an hour of a daily batch waits for the day."""
    settled(ledger, pipeline())
    hour = START + timedelta(hours=3)
    assert waits_for(ledger.database, "chain", Interval(hour, hour + timedelta(hours=1))) is None


def test_what_a_pipeline_tolerates_is_not_waited_for(ledger):
    """As its own run is green then."""
    settled(ledger, pipeline(allow_failed=0.5), lose_sink=[0])
    assert lack(ledger) is None


def test_losses_of_what_is_not_decided_say_so(ledger):
    """Nothing can be said of it yet, nor of what no batch reads."""
    batch, _ = ledger.whole_batch(pipeline(), 4)
    day = Interval(START, START + DAY)
    assert losses(ledger.database, "chain", day).undecided == f"batch {batch.batch_id} is open"
    nothing = losses(ledger.database, "another", day)
    assert nothing.undecided.startswith("no batch reads")
    assert nothing.lost_ratio == 0
