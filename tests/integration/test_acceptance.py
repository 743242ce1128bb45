"""Quarantined records that a person accepts: who, when, why, and what is quarantined afterwards."""

import pytest

from ledger.batch.outcome.report import advise
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import InputError
from ledger.store.queries import batches, claims
from ledger.store.queries import settlement as settlements
from tests.support.ledgers import pipeline


def quarantined(ledger, flow, count=10, lose=(0, 1)):
    """A settled batch; with ``max_replays=0`` what is lost is quarantined at once."""
    batch, _ = ledger.whole_batch(flow, count, lose_sink=lose)
    ledger.settle(batch.batch_id)
    ledger.deliver()
    return batch


def replay_again(ledger, flow, original, lose=True, **selection):
    """A whole replay, settled, that loses what it took."""
    batch = ledger.replay(flow, original, **selection)
    roots = ledger.emit_replay(batch)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots, lose=roots if lose else ())
    ledger.settle(batch.batch_id)
    ledger.deliver()
    return batch


def outcome(ledger, batch):
    return ledger.summary(batch.batch_id).outcome


def test_quarantined_records_are_complete_once_accepted(ledger):
    """A batch with quarantined records is not complete until a person accepts them; the ledger
    keeps who, why and which, and a second acceptance finds nothing.
    """
    batch = quarantined(ledger, pipeline(max_replays=0))
    assert outcome(ledger, batch) is Outcome.QUARANTINED
    done = ledger.accept(batch.batch_id, by="ada", reason="unregistered")
    assert (done.records, done.accepted, done.quarantined, done.failed) == (2, 2, 2, 0)
    assert outcome(ledger, batch) is Outcome.COMPLETE
    assert ledger.row("SELECT accepted FROM batch_status").accepted == 2
    rows = ledger.rows("SELECT DISTINCT accepted_by, accepted_because, step FROM accepted_record")
    assert rows == [("ada", "unregistered", "sink")]
    again = ledger.accept(batch.batch_id, by="bob", reason="no planes")
    assert (again.records, again.accepted) == (0, 2)
    assert ledger.row("SELECT count(*) FROM acceptance")[0] == 1


def test_what_is_quarantined_later_is_not_accepted(ledger):
    """An acceptance is of the attempt that failed: a record that was failed then, or is replayed
    and quarantined again, asks a person again. An abandoned replay restores what was accepted.
    """
    flow = pipeline(max_replays=1)
    batch = quarantined(ledger, flow)
    assert ledger.accept(batch.batch_id, by="ada", reason="no planes").failed == 2
    first = replay_again(ledger, flow, batch.batch_id)
    assert outcome(ledger, batch) is Outcome.QUARANTINED
    assert outcome(ledger, first) is Outcome.QUARANTINED
    assert ledger.accept(first.batch_id, by="ada", reason="no planes").batch_id == batch.batch_id
    assert [outcome(ledger, batch_) for batch_ in (batch, first)] == [Outcome.COMPLETE] * 2

    dropped = ledger.replay(flow, batch.batch_id, "accepted", accepted=True)
    assert outcome(ledger, batch) is Outcome.INCOMPLETE
    with ledger.database.plain.begin() as connection:
        batches.move_batch(connection, dropped.batch_id, BatchStatus.OPEN, BatchStatus.ABANDONED)
        claims.release(connection, dropped.batch_id)
        settlements.release_messages(connection, dropped.batch_id)
    assert outcome(ledger, batch) is Outcome.COMPLETE

    replay_again(ledger, flow, batch.batch_id, run_id="by hand", accepted=True)
    assert outcome(ledger, batch) is Outcome.QUARANTINED
    assert ledger.row("SELECT accepted FROM batch_status WHERE batch_id = 1").accepted == 0


def test_the_policy_is_kept_with_the_pipeline(ledger):
    """The ledger knows what the last batch was opened with, so every process that asks gets the
    same answer; a replay is measured against its whole family.
    """
    flow = pipeline(max_replays=1, allow_failed=0.2)
    batch = quarantined(ledger, flow)
    summary = ledger.summary(batch.batch_id)
    assert (summary.policy.allow_failed, summary.outcome) == (0.2, Outcome.COMPLETE)
    assert "2 of 10 records of batch 1 are tolerated" in str(advise(summary))
    replay = replay_again(ledger, flow, batch.batch_id)
    summary = ledger.summary(replay.batch_id)
    assert (summary.roots.total, summary.roots.quarantined, summary.outcome) == (
        2,
        2,
        Outcome.COMPLETE,
    )
    ledger.open(pipeline(max_replays=1, allow_failed=0.1), "next", day=1)
    assert outcome(ledger, replay) is Outcome.QUARANTINED


def test_no_such_batch(ledger):
    """A number that no batch has is refused, with the latest that one has."""
    with pytest.raises(InputError, match="batch 7 is not in the ledger, which has none yet"):
        ledger.accept(7, by="ada", reason="no planes")
    batch = quarantined(ledger, pipeline(max_replays=0))
    with pytest.raises(InputError, match="batch 7 is not in the ledger, whose latest is 1"):
        ledger.accept(7, by="ada", reason="no planes")
    with pytest.raises(InputError, match="the reason is empty"):
        ledger.accept(batch.batch_id, by="ada", reason=" ")


def test_a_settlement_that_comes_late_has_the_counts(ledger):
    """A process that finds the batch settled, by the sweeper for instance, learns what was decided
    and when.
    """
    batch = quarantined(ledger, pipeline())
    late = ledger.settle(batch.batch_id)
    assert (late.decided, late.roots, late.failed) == (False, 10, 2)
    assert late.reason.startswith("already settled, 20")
