"""What is pending of a batch: of a follow-up of another kind, and in each of its sinks."""

from dataclasses import replace

from ledger.batch import follow_ups
from ledger.batch.follow_ups import FollowUp, Pending
from ledger.batch.outcome.readings import recent_batches, unpublished
from ledger.batch.outcome.report import advise, report, sink_advice
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


def lines_of(ledger, batch):
    """What each sink of a batch says, without its name."""
    return [str(advice).partition(": ")[2] for advice in sink_advice(ledger.summary(batch), "m:p")]


def test_each_sink_says_what_it_has_published(ledger):
    """Through the life of a batch that loses a record at its sink: before the settlement,
    before it is published, with rows withheld, and once another batch has replaced it.
    """
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, 5, lose_sink=[0])
    number = batch.batch_id
    assert lines_of(ledger, number) == ["published nothing. It waits until the batch is settled"]
    ledger.settle(number)
    publish = f"Publish it: ackledger publish m:p --batch {number}"
    due = f"not published yet; no failed record blocks it. {publish}"
    assert lines_of(ledger, number) == [due]
    ledger.deliver(number)
    ledger.change("UPDATE publication SET rows = 4")
    ledger.change("UPDATE step_run SET output_rows = 4 WHERE step = 'sink'")
    assert lines_of(ledger, number) == ["published 4 rows"]
    ledger.change("UPDATE step_run SET output_rows = 5 WHERE step = 'sink'")
    assert lines_of(ledger, number) == [
        "published 4 rows, withheld 1 row of failed records."
        f" Replay them: ackledger replay m:p --batch {number}"
    ]
    again = ledger.reprocess(flow)
    ledger.run_all(again)
    ledger.deliver(again.batch_id)
    assert lines_of(ledger, number) == ["its rows were replaced by those of a later batch or run"]


def test_the_sinks_of_a_batch_that_holds_wait(ledger):
    """With publish="complete" each names the failed records, until a person gives them up."""
    batch, _ = ledger.whole_batch(pipeline(publish="complete"), 5, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    (waits,) = lines_of(ledger, batch.batch_id)
    assert waits.endswith(
        f' It waits for 2 failed records of batch {batch.batch_id} (publish="complete").'
        f" Replay them: ackledger replay m:p --batch {batch.batch_id}"
    )
    assert [
        str(line) for line in unpublished(ledger.database, recent_batches(ledger.database, None, 9))
    ] == [
        f"batch {batch.batch_id}: sink sink has not published all rows."
        f" See why: ackledger status --batch {batch.batch_id}"
    ]
    ledger.quarantine("never", "me", batch_id=batch.batch_id)
    (due,) = lines_of(ledger, batch.batch_id)
    assert due.startswith("not published yet; no failed record blocks it. Publish it: ")
    ledger.deliver(batch.batch_id)
    assert not unpublished(ledger.database, recent_batches(ledger.database, None, 9))
