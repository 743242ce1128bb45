"""Quarantined records that a person accepts: who, when, why, and what is quarantined afterwards."""

import pytest

from ledger.batch.acceptance import accept
from ledger.batch.outcome.report import advise
from ledger.batch.outcome.summary import summarize
from ledger.batch.settlement import settle_once
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import InputError
from ledger.store.queries import batches, claims
from ledger.store.queries import settlement as settlements
from tests.support.ledgers import (
    deliver,
    emit_replay,
    one,
    opened,
    pipeline,
    replayed,
    rows,
    run_middle,
    run_sink,
    whole_batch,
)


def quarantined(database, made, count=10, lose=(0, 1)):
    """A settled batch; with ``max_replays=0`` what is lost is quarantined at once."""
    batch, _ = whole_batch(database, made, count, lose_sink=lose)
    settle_once(database, batch.batch_id)
    deliver(database)
    return batch


def replay_again(database, made, original, lose=True, **selection):
    """A whole replay, settled, that loses what it took."""
    batch = replayed(database, made, original, **selection)
    roots = emit_replay(database, batch)
    run_middle(database, batch, roots)
    run_sink(database, batch, roots, lose=roots if lose else ())
    settle_once(database, batch.batch_id)
    deliver(database)
    return batch


def outcome(database, batch):
    return summarize(database, batch.batch_id).outcome


def test_quarantined_records_are_complete_once_accepted(database):
    """A batch with quarantined records is not complete until a person accepts them; the ledger
    keeps who, why and which, and a second acceptance finds nothing.
    """
    batch = quarantined(database, pipeline(max_replays=0))
    assert outcome(database, batch) is Outcome.QUARANTINED
    done = accept(database, batch.batch_id, by="ada", reason="unregistered")
    assert (done.records, done.accepted, done.quarantined, done.failed) == (2, 2, 2, 0)
    assert outcome(database, batch) is Outcome.COMPLETE
    assert one(database, "SELECT accepted FROM batch_status").accepted == 2
    kept = rows(
        database, "SELECT DISTINCT accepted_by, accepted_because, step FROM accepted_record"
    )
    assert kept == [("ada", "unregistered", "sink")]
    again = accept(database, batch.batch_id, by="bob", reason="no planes")
    assert (again.records, again.accepted) == (0, 2)
    assert one(database, "SELECT count(*) FROM acceptance")[0] == 1


def test_what_is_quarantined_later_is_not_accepted(database):
    """An acceptance is of the attempt that failed: a record that was failed then, or is replayed
    and quarantined again, asks a person again. An abandoned replay restores what was accepted.
    """
    made = pipeline(max_replays=1)
    batch = quarantined(database, made)
    assert accept(database, batch.batch_id, by="ada", reason="no planes").failed == 2
    first = replay_again(database, made, batch.batch_id)
    assert outcome(database, batch) is Outcome.QUARANTINED
    assert outcome(database, first) is Outcome.QUARANTINED
    assert accept(database, first.batch_id, by="ada", reason="no planes").batch_id == batch.batch_id
    assert [outcome(database, one) for one in (batch, first)] == [Outcome.COMPLETE] * 2

    dropped = replayed(database, made, batch.batch_id, "accepted", accepted=True)
    assert outcome(database, batch) is Outcome.INCOMPLETE
    with database.plain.begin() as connection:
        batches.move_batch(connection, dropped.batch_id, BatchStatus.OPEN, BatchStatus.ABANDONED)
        claims.release(connection, dropped.batch_id)
        settlements.release_messages(connection, dropped.batch_id)
    assert outcome(database, batch) is Outcome.COMPLETE

    replay_again(database, made, batch.batch_id, run_id="by hand", accepted=True)
    assert outcome(database, batch) is Outcome.QUARANTINED
    assert one(database, "SELECT accepted FROM batch_status WHERE batch_id = 1").accepted == 0


def test_the_policy_is_kept_with_the_pipeline(database):
    """The ledger knows what the last batch was opened with, so whoever asks says the same; a
    replay is measured against its whole family.
    """
    made = pipeline(max_replays=1, tolerate=0.2)
    batch = quarantined(database, made)
    found = summarize(database, batch.batch_id)
    assert (found.policy.tolerate, found.outcome) == (0.2, Outcome.COMPLETE)
    assert "2 of 10 records of batch 1 are tolerated" in str(advise(found))
    replay = replay_again(database, made, batch.batch_id)
    found = summarize(database, replay.batch_id)
    assert (found.roots.total, found.roots.quarantined, found.outcome) == (2, 2, Outcome.COMPLETE)
    opened(database, pipeline(max_replays=1, tolerate=0.1), "next", day=1)
    assert outcome(database, replay) is Outcome.QUARANTINED


def test_no_such_batch(database):
    """A number that no batch has is refused, with the latest that one has."""
    with pytest.raises(InputError, match="batch 7 is not in the ledger, which has none yet"):
        accept(database, 7, by="ada", reason="no planes")
    batch = quarantined(database, pipeline(max_replays=0))
    with pytest.raises(InputError, match="batch 7 is not in the ledger, whose latest is 1"):
        accept(database, 7, by="ada", reason="no planes")
    with pytest.raises(InputError, match="the reason is empty"):
        accept(database, batch.batch_id, by="ada", reason=" ")


def test_a_settlement_that_comes_late_has_the_counts(database):
    """Whoever finds the batch settled, by the sweeper for instance, hears what was decided and
    when.
    """
    batch = quarantined(database, pipeline())
    late = settle_once(database, batch.batch_id)
    assert (late.decided, late.roots, late.failed) == (False, 10, 2)
    assert late.reason.startswith("already settled, 20")
