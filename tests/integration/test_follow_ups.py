"""A follow-up of another kind, in the tuple of all: sweeper, summary and advice have it."""

from dataclasses import replace
from datetime import timedelta

from ledger.batch import follow_ups
from ledger.batch.following.base import FollowUp, Pending
from ledger.batch.outcome.report import advise, report
from ledger.batch.outcome.summary import summarize
from ledger.batch.settlement import settle_once
from ledger.batch.upkeep.sweeper import OverdueFollowUp, sweep_once
from ledger.core.states import Outcome
from ledger.store.queries import batches
from tests.support.ledgers import pipeline, whole_batch


def test_what_is_pending_is_noticed(database, monkeypatch):
    """The sweeper asks for a run of the batch, which is incomplete, with the sentence and the
    command; what keeps no batch incomplete is a line of the report."""
    batch, _ = whole_batch(database, pipeline())
    settle_once(database, batch.batch_id)
    pending = Pending("audit", 1, ("an audit is yet to be made",))
    now = database.transact(batches.database_now)

    class Audit(FollowUp):
        name = "audit"
        does = "Audit the batch."

        def overdue(self, connection, before):
            return [batch.batch_id] * (before >= now)

        def pending(self, connection, batch_id):
            return pending

    monkeypatch.setattr(follow_ups, "FOLLOW_UPS", (Audit(),))
    assert sweep_once(database, now=now).overdue == ()
    later = now + timedelta(hours=1)
    overdue = OverdueFollowUp(batch.batch_id, batch.dag_id)
    assert sweep_once(database, now=later).overdue == (overdue,)
    found = summarize(database, batch.batch_id)
    assert (found.pending, found.outcome) == ((pending,), Outcome.INCOMPLETE)
    advice = advise(found, "m:p")
    assert advice.because == f"batch {batch.batch_id}: an audit is yet to be made"
    assert f"Publish it: ackledger publish m:p --batch {batch.batch_id}" in advice.lines
    pending = replace(pending, incomplete=False)
    found = summarize(database, batch.batch_id)
    assert (found.waits, found.outcome) == (pending.sentences, Outcome.COMPLETE)
    assert report(found, [])[-1] == "an audit is yet to be made"
