"""Running an interval again on purpose: the new batch replaces the old one."""

from threading import Thread

import pytest

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.batch.step_runs import Attempt
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import InputError, NotReadyError
from ledger.store.queries import batches
from tests.support.ledgers import pipeline


def test_the_new_batch_supersedes_the_old_family(ledger):
    """Once it settles, the old batch and its replays are superseded, and so are their failed
    messages.
    """
    flow = pipeline(max_replays=1)
    old, _ = ledger.whole_batch(flow, 5, lose_sink=[0, 1])
    ledger.settle(old.batch_id)
    new = ledger.reprocess(flow)
    assert (
        ledger.row("SELECT status FROM batch WHERE batch_id = :b", b=old.batch_id).status
        == "settled"
    )
    assert ledger.run_all(new).status is BatchStatus.SETTLED
    status = ledger.row("SELECT * FROM batch_status WHERE batch_id = :b", b=old.batch_id)
    assert (status.status, status.total, status.acked, status.failed, status.superseded) == (
        "superseded",
        5,
        3,
        0,
        2,
    )
    assert ledger.summary(old.batch_id).outcome is Outcome.COMPLETE
    claims = ledger.rows("SELECT batch_id FROM batch_source WHERE claimed")
    assert [row.batch_id for row in claims] == [new.batch_id]
    with pytest.raises(
        NotReadyError, match="is superseded: only a settled batch has failed records"
    ):
        ledger.replay(flow, old.batch_id)
    with pytest.raises(InputError, match=f"belongs to batch {new.batch_id}"):
        ledger.open(flow, "third")
    ledger.sweep()
    assert ledger.rows("SELECT DISTINCT batch_id FROM ledger_delta") == []


def test_a_superseded_batch_is_left_alone(ledger):
    """A cleared task of a superseded batch changes nothing and succeeds."""
    flow = pipeline()
    old, _ = ledger.whole_batch(flow)
    ledger.settle(old.batch_id)
    ledger.run_all(ledger.reprocess(flow))
    assert ledger.open_run(old.batch_id, "middle", Attempt()) is None
    assert ledger.settle(old.batch_id).status is BatchStatus.SUPERSEDED


def test_only_what_is_decided_can_be_replaced(ledger):
    """An open batch, one with an open replay, and one that is being replaced already are
    refused.
    """
    flow = pipeline()
    old, _ = ledger.whole_batch(flow, 5, lose_sink=[0])
    with pytest.raises(NotReadyError, match="it is open"):
        ledger.reprocess(flow)
    ledger.settle(old.batch_id)
    replay = ledger.replay(flow, old.batch_id)
    with pytest.raises(NotReadyError, match=f"belongs to it: batch {replay.batch_id} is not"):
        ledger.reprocess(flow)
    run_replay(ledger, replay)
    new = ledger.reprocess(flow)
    with pytest.raises(NotReadyError, match=f"belongs to it: batch {new.batch_id} is not"):
        ledger.reprocess(flow, "another")


def run_replay(ledger, replay):
    roots = ledger.emit_replay(replay)
    ledger.run_middle(replay, roots)
    ledger.run_sink(replay, roots, lose=roots)
    ledger.settle(replay.batch_id)


def test_nothing_is_replayed_while_it_is_being_replaced(ledger):
    """A replay of the old batch would deliver what the new one is about to."""
    flow = pipeline()
    old, _ = ledger.whole_batch(flow, 5, lose_sink=[0])
    ledger.settle(old.batch_id)
    new = ledger.reprocess(flow)
    with pytest.raises(NotReadyError, match=f"is being replaced by batch {new.batch_id}"):
        ledger.replay(flow, old.batch_id)


def test_a_replay_that_opens_while_a_reprocess_settles(ledger, monkeypatch):
    """The settlement waits: what is replayed has not been replaced since it was looked at."""
    flow = pipeline(max_replays=3)
    batch, roots = ledger.whole_batch(flow, 3, lose_middle=[0])
    ledger.settle(batch.batch_id)
    ledger.quarantine(record=roots.start)
    new = ledger.reprocess(flow)
    emitted = ledger.emit(new, 3)
    ledger.run_middle(new, emitted)
    ledger.run_sink(new, emitted)
    asked, settling = batches.undecided_of, Thread(target=ledger.settle, args=[new.batch_id])

    def settled_meanwhile(*arguments):
        if settling.ident is None:
            settling.start()
            settling.join(1)
        return asked(*arguments)

    monkeypatch.setattr(batches, "undecided_of", settled_meanwhile)
    with pytest.raises(NotReadyError, match=f"is being replaced by batch {new.batch_id}"):
        ledger.replay(flow, batch.batch_id, quarantined=True)
    settling.join()
    statuses = ledger.rows("SELECT batch_id, status::text FROM batch ORDER BY 1")
    assert statuses == [(batch.batch_id, "superseded"), (new.batch_id, "settled")]


def test_a_reprocess_that_dies_replaces_nothing(ledger):
    """Abandoned before its source committed, it leaves the old batch as it was, and opens again."""
    flow = pipeline()
    old, _ = ledger.whole_batch(flow)
    ledger.settle(old.batch_id)
    new = ledger.reprocess(flow)
    ledger.abandon_dead(new)
    assert (
        ledger.row("SELECT status FROM batch WHERE batch_id = :b", b=old.batch_id).status
        == "settled"
    )
    assert [r.batch_id for r in ledger.rows("SELECT batch_id FROM batch_source WHERE claimed")] == [
        old.batch_id
    ]
    assert ledger.reprocess(flow).batch_id == new.batch_id
    assert ledger.run_all(new).status is BatchStatus.SETTLED
    assert (
        ledger.row("SELECT status FROM batch WHERE batch_id = :b", b=old.batch_id).status
        == "superseded"
    )


def test_a_reprocess_that_expires_replaces_nothing(ledger):
    """A new batch whose sink died is abandoned: the old one stays, and opened again it replaces
    it.
    """
    flow = pipeline()
    old, _ = ledger.whole_batch(flow)
    ledger.settle(old.batch_id)
    new = ledger.reprocess(flow)
    roots = ledger.emit(new, 5)
    ledger.run_middle(new, roots)
    ledger.abandon_dead(new, "sink")
    assert (
        ledger.row("SELECT status FROM batch WHERE batch_id = :b", b=old.batch_id).status
        == "settled"
    )
    assert ledger.reprocess(flow).batch_id == new.batch_id
    assert ledger.run_all(new).status is BatchStatus.SETTLED


def test_an_abandoned_replay_does_not_come_back_beside_it(ledger):
    """A replay that was abandoned is not opened again while its batch is being replaced, nor
    afterwards.
    """
    flow = pipeline()
    old, _ = ledger.whole_batch(flow, 5, lose_sink=[0])
    ledger.settle(old.batch_id)
    replay = ledger.replay(flow, old.batch_id)
    ledger.abandon_dead(replay)
    new = ledger.reprocess(flow)
    with pytest.raises(NotReadyError, match="is being replaced"):
        ledger.replay(flow, old.batch_id)
    ledger.run_all(new)
    with pytest.raises(NotReadyError, match="is superseded"):
        ledger.replay(flow, old.batch_id)


def test_a_reprocess_of_two_sources_abandoned_halfway(runner, tmp_path, sink_rows):
    """One flow of the new batch is staged, the other died: the old rows are there until it is
    opened again and settles, when its own replace them.
    """
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("id\n1\n2\n")
    flow = Pipeline("two", guarantee="at_least_once")
    for name in "ab":
        flow.source(name, FileSource(f"{name}.csv", schema="id INT"))
    flow.stage(reads="b")(poisoned)
    flow.sink("sa", ParquetSink("sa"), reads="a")
    flow.sink("sb", ParquetSink("sb"), reads="poisoned")
    run = runner(flow)
    first = run.open()
    assert run.settled(first).failed == 1
    again = run.open("again", reprocess=True)
    run.step(again, "a")
    run.step(again, "sa")
    run.ledger.abandon_dead(again, "b", seconds=10_000)
    assert sink_rows("sa", "id") == [(1,), (2,)]
    assert (tmp_path / "sa" / f"ackledger_batch={first.batch_id}").exists()
    reopened = run.open("again", reprocess=True)
    assert reopened.batch_id == again.batch_id
    run.settled(reopened)
    assert sink_rows("sa", "id") == [(1,), (2,)]
    assert not (tmp_path / "sa" / f"ackledger_batch={first.batch_id}").exists()


def poisoned(rows):
    return rows.selectExpr("*", "CASE WHEN id = 2 THEN 'poisoned' END AS _failed")


def test_a_sink_renamed_over_its_path(runner, tmp_path, sink_rows):
    """A replay through a sink of another name over the same path leaves what the batch
    delivered.
    """
    (tmp_path / "b.csv").write_text("id\n1\n2\n")

    def build(name, stage):
        pipeline = Pipeline("renamed", guarantee="at_least_once")
        pipeline.source("b", FileSource("b.csv", schema="id INT"))
        pipeline.stage(reads="b")(stage)
        pipeline.sink(name, ParquetSink("out"), reads=stage.__name__)
        return pipeline

    run = runner(build("out", poisoned))
    first = run.open()
    run.settled(first)

    def healed(rows):
        return rows

    healed.__name__ = "poisoned"
    fixed = runner(build("renamed", healed))
    fixed.settled(fixed.open_replay(first.batch_id))
    assert sink_rows("out", "id") == [(1,), (2,)]


def test_nothing_to_replace_is_an_ordinary_batch(ledger):
    """A reprocess claims an interval that no batch has."""
    flow = pipeline()
    new = ledger.reprocess(flow)
    assert new.replaces_batch_id is None
    assert [r.batch_id for r in ledger.rows("SELECT batch_id FROM batch_source WHERE claimed")] == [
        new.batch_id
    ]


@pytest.mark.parametrize("dedup", ["none", "exact", Bloom(key="id", capacity=100)])
def test_the_sink_holds_what_the_new_batch_published(runner, tmp_path, sink_rows, dedup):
    """The folders of the old batch and its replay go; rows equal to theirs are no duplicates."""
    source = tmp_path / "in.csv"
    source.write_text("id,word\n1,a\n2,b\n3,\n")
    flow = Pipeline("words")
    flow.source("words", FileSource("in.csv", schema="id INT, word STRING"))

    @flow.stage(reads="words")
    def checked(words):
        return words.selectExpr("*", "CASE WHEN word IS NULL THEN 'no word' END AS _failed")

    flow.sink("out", ParquetSink("out", dedup=dedup), reads="checked")
    run = runner(flow)
    first = run.open()
    run.settled(first)
    run.settled(run.open_replay(first.batch_id))
    assert sink_rows("out", "id", "word") == [(1, "a"), (2, "b")]

    source.write_text("id,word\n1,a\n3,c\n")
    again = run.open("again", reprocess=True)
    assert run.settled(again).failed == 0
    assert sink_rows("out", "id", "word") == [(1, "a"), (3, "c")]
    assert {path.name for path in (tmp_path / "out").glob("ackledger_batch=*")} == {
        f"ackledger_batch={again.batch_id}"
    }
