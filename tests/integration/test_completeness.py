"""Whether an interval of a pipeline is complete: what others may wait for."""

from datetime import timedelta

from ledger.batch.acceptance import accept
from ledger.batch.interventions import abandon
from ledger.batch.outcome.completeness import losses, waits_for
from ledger.batch.settlement import settle_once
from ledger.core.run_request import Interval
from tests.support.ledgers import (
    START,
    deliver,
    emit_replay,
    opened,
    pipeline,
    replayed,
    run_middle,
    run_sink,
    whole_batch,
)

DAY = timedelta(days=1)


def settled(database, made, count=4, day=0, **lost):
    """A decided batch over a day, with what is decided of it published."""
    batch, roots = whole_batch(database, made, count, f"day {day}", day, **lost)
    settle_once(database, batch.batch_id)
    deliver(database)
    return batch, roots


def lack(database, days=1, pipeline="chain"):
    """What the first days of a pipeline wait for."""
    return waits_for(database, pipeline, Interval(START, START + days * DAY))


def test_an_interval_is_complete_once_its_batch_is(database):
    """Not before it is opened, decided, and published; nor while its run has come to nothing."""
    assert lack(database) == "no batch reads 2013-01-01 00:00 to 2013-01-02 00:00"
    made = pipeline()
    abandoned = opened(database, made, "in vain")
    assert abandon(database, abandoned.batch_id, "in vain")
    assert lack(database).startswith("no batch reads")
    batch, _ = whole_batch(database, made, 4)
    assert lack(database).startswith(f"batch {batch.batch_id} is open. All its steps are done")
    settle_once(database, batch.batch_id)
    unpublished = "1 sink is yet to publish what is acked of it"
    assert lack(database) == f"batch {batch.batch_id}: {unpublished}"
    deliver(database)
    assert lack(database) is None
    assert lack(database, pipeline="another") is not None


def test_what_failed_is_waited_for_until_a_replay_has_it(database):
    """A replay completes the interval of its original."""
    made = pipeline()
    batch, _ = settled(database, made, lose_sink=[0])
    assert lack(database) == f"batch {batch.batch_id}: 1 of 4 records failed"
    found = losses(database, "chain", Interval(START, START + DAY))
    assert (found.undecided, found.records, found.lost_ratio) == (None, 4, 0.25)
    again = replayed(database, made, batch.batch_id)
    replayed_roots = emit_replay(database, again)
    run_middle(database, again, replayed_roots)
    run_sink(database, again, replayed_roots)
    settle_once(database, again.batch_id)
    unpublished = "1 sink is yet to publish what is acked of it"
    assert lack(database) == f"batch {again.batch_id}: {unpublished}"
    deliver(database)
    assert lack(database) is None


def test_what_is_quarantined_is_waited_for_until_it_is_accepted(database):
    """What a person has accepted keeps no downstream DAG waiting."""
    batch, _ = settled(database, pipeline(max_replays=0), lose_sink=[0, 1])
    quarantined = "2 of 4 records are quarantined and not accepted"
    assert lack(database) == f"batch {batch.batch_id}: {quarantined}"
    accept(database, batch.batch_id, by="somebody", reason="known")
    assert lack(database) is None


def test_many_batches_cover_an_interval(database):
    """Each of them has to be complete, and no part may be left out."""
    made = pipeline()
    for day in (0, 2):
        settled(database, made, day=day)
    assert lack(database, days=1) is None
    assert lack(database, days=3) == "no batch reads 2013-01-02 00:00 to 2013-01-03 00:00"
    between, _ = settled(database, made, day=1, lose_sink=[0])
    assert lack(database, days=3) == f"batch {between.batch_id}: 1 of 4 records failed"
    found = losses(database, "chain", Interval(START, START + 3 * DAY))
    assert (len(found.batch_ids), found.records, found.lost, found.undecided) == (3, 12, 1, None)


def test_a_part_of_an_interval_is_as_complete_as_its_batch(database):
    """Who waits for an hour of a daily batch waits for the day."""
    settled(database, pipeline())
    hour = START + timedelta(hours=3)
    assert waits_for(database, "chain", Interval(hour, hour + timedelta(hours=1))) is None


def test_what_a_pipeline_tolerates_is_not_waited_for(database):
    """As its own run is green then."""
    settled(database, pipeline(tolerate=0.5), lose_sink=[0])
    assert lack(database) is None


def test_losses_of_what_is_not_decided_say_so(database):
    """Nothing can be said of it yet, nor of what no batch reads."""
    batch, _ = whole_batch(database, pipeline(), 4)
    day = Interval(START, START + DAY)
    assert losses(database, "chain", day).undecided == f"batch {batch.batch_id} is open"
    nothing = losses(database, "another", day)
    assert nothing.undecided.startswith("no batch reads")
    assert nothing.lost_ratio == 0
