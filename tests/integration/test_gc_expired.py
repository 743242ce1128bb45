"""What may still be done with a batch whose files have expired."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.records.payloads import failed_keys
from ledger.core.redaction import Redaction
from ledger.core.states import Need
from ledger.errors import InputError
from ledger.store.queries import replays
from tests.support.retention import expiring


def expired(archive, pipeline):
    """A batch whose only quarantined record is accepted, and whose files are gone."""
    batch, roots = archive.settled(pipeline, lose_sink=[0])
    archive.accept(batch.batch_id)
    assert archive.collect().expired == (batch.batch_id,)
    return batch, roots


def test_a_replay_of_what_is_gone_is_refused(archive):
    """It says since when, and both ways to process the records again; a selection of all leaves the
    batch out."""
    pipeline = expiring(max_replays=0, key=("n",))
    batch, _ = expired(archive, pipeline)
    message = r"batch 1 .* removed by retention on \d{4}-.*--from-source.*--reprocess"
    with pytest.raises(InputError, match=message):
        archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True)
    everything = (None, None, {"quarantined": True}, archive.later())
    assert not archive.transact(replays.count_due, *everything)
    again = archive.replay(
        pipeline, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    assert again.files_expired_at is None


def test_a_replay_from_the_source_expires_by_itself(archive):
    """Its files are kept like any other's, and go when it is old."""
    pipeline = expiring(max_replays=0, key=("n",))
    batch, _ = expired(archive, pipeline)
    again = archive.replay(
        pipeline, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    archive.settle_replay(again)
    assert archive.need() is Need.UNPUBLISHED
    archive.publish()
    assert archive.collect().expired == (batch.batch_id,)
    assert archive.runs() == set()


def test_totals_need_the_whole_family(archive):
    """Where a combine reads all batches of a family, even a replay from the source is refused."""
    pipeline = expiring(max_replays=0, key=("n",))
    batch, _ = expired(archive, pipeline)

    @pipeline.combine(reads="middle")
    def totals(rows):
        return rows

    pipeline.sink("shown", ParquetSink("totals"), reads="totals")
    with pytest.raises(InputError, match=r"'totals' would read them.*--reprocess"):
        archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True, from_source=True)


@pytest.mark.parametrize("now", ["n", ()])
def test_a_masked_key_finds_nothing_without_the_snapshot(archive, now):
    """A key that was kept as a pseudonym is refused before the replay opens, and one that was kept
    as it is finds its record, whatever the pipeline redacts by now."""
    batch, _ = expired(archive, expiring(max_replays=0, key=("n",)))
    redacting = expiring(max_replays=0, key=("n",), redact=now)
    kept_as = "UPDATE failed_payload SET parsed = true, key = jsonb_build_object('n', :k)"
    secret = Redaction.of(["n"], b"secret")
    archive.change(kept_as.replace(":k", "cast(:k AS text)"), k=secret.pseudonym("n", "7"))
    with pytest.raises(InputError, match=r"the ledger has pseudonyms of their keys.*--reprocess"):
        archive.replay(redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True)
    assert archive.rows("SELECT status, attempts FROM failed_message") == [("quarantined", 1)]
    assert len(archive.rows("SELECT FROM batch")) == 1
    archive.change(kept_as.replace(":k", "cast(:k AS text)"), k="7")
    again = archive.replay(
        redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    keys = failed_keys(archive.database, again.original_id, "source", ["n"])
    assert [key for _, key, _ in keys] == [["7"]]


def test_a_sink_that_compares_with_its_family_needs_it(archive):
    """At least once, dedup reads what earlier batches of a family delivered: so is that."""
    pipeline = Pipeline("chain", keep="1d", guarantee="at_least_once", max_replays=0)
    pipeline.source("source", FileSource("in.csv", schema="n INT"), key="n")

    @pipeline.stage(reads="source")
    def middle(rows):
        return rows

    pipeline.sink("sink", ParquetSink("out", dedup="exact"), reads="middle")
    batch, _ = expired(archive, pipeline)
    with pytest.raises(InputError, match=r"'sink' would read them.*--reprocess"):
        archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True, from_source=True)


def test_what_no_interval_brings_again_is_redelivered(archive):
    """Of an incremental source neither way out exists: the refusal names the third."""
    pipeline = Pipeline("chain", keep="1d", max_replays=0)
    pipeline.source("source", FileSource("in*.csv", schema="n INT", incremental=True))

    @pipeline.stage(reads="source")
    def middle(rows):
        return rows

    pipeline.sink("sink", ParquetSink("out"), reads="middle")
    batch, _ = expired(archive, pipeline)
    with pytest.raises(InputError, match="deliver the records again, corrected"):
        archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True)


def test_an_abandoned_replay_is_not_opened_again(archive):
    """Its run would read what is gone, and its own files go with the family's."""
    pipeline = expiring(max_replays=0, key=("n",))
    batch, _ = archive.settled(pipeline, lose_sink=[0])
    replay = archive.replay(
        pipeline, batch.batch_id, "late", quarantined=True, accepted=True, from_source=True
    )
    assert archive.abandon(replay.batch_id, "its source never came")
    archive.accept(batch.batch_id)
    assert archive.collect().expired == (batch.batch_id,)
    with pytest.raises(InputError, match="removed by retention"):
        archive.replay(
            pipeline,
            batch.batch_id,
            "late",
            quarantined=True,
            accepted=True,
            from_source=True,
        )
