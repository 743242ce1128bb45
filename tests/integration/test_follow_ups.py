"""A follow-up of another kind, in the tuple of all: summary and advice have it."""

from dataclasses import replace

from ledger.batch import follow_ups
from ledger.batch.following.base import FollowUp, Pending
from ledger.batch.outcome.report import advise, report
from ledger.core.states import Outcome
from tests.support.ledgers import pipeline


def test_what_is_pending_is_noticed(ledger, monkeypatch):
    """The batch is incomplete, with the sentence and the command; what keeps no batch incomplete is
    a line of the report."""
    batch, _ = ledger.whole_batch(pipeline())
    ledger.settle(batch.batch_id)
    pending = Pending("audit", 1, ("an audit is yet to be made",))

    class Audit(FollowUp):
        name = "audit"
        does = "Audit the batch."

        def pending(self, connection, batch_id, steps):
            return pending

    monkeypatch.setattr(follow_ups, "FOLLOW_UPS", (Audit(),))
    summary = ledger.summary(batch.batch_id)
    assert (summary.pending, summary.outcome) == ((pending,), Outcome.INCOMPLETE)
    advice = advise(summary, "m:p")
    assert advice.because == f"batch {batch.batch_id}: an audit is yet to be made"
    assert f"Publish it: ackledger publish m:p --batch {batch.batch_id}" in advice.lines
    pending = replace(pending, incomplete=False)
    summary = ledger.summary(batch.batch_id)
    assert (summary.waits, summary.outcome) == (pending.sentences, Outcome.COMPLETE)
    assert report(summary, [])[-1] == "an audit is yet to be made"
