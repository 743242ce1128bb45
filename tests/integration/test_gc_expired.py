"""What may still be done with a batch whose files have expired."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.acceptance import accept
from ledger.batch.interventions import abandon
from ledger.batch.records.payloads import claimed_keys
from ledger.batch.settlement import settle_once
from ledger.core.redaction import Redaction
from ledger.core.states import Need
from ledger.errors import InputError
from ledger.store.queries import replays
from tests.support.ledgers import (
    emit_replay,
    replayed,
    rows,
    run_middle,
    run_sink,
)
from tests.support.retention import (
    changed,
    collect,
    kept,
    later,
    need,
    published,
    settled,
)


def expired(database, storage, made):
    """A batch whose only quarantined record is accepted, and whose files are gone."""
    batch, roots = settled(database, made, storage, lose_sink=[0])
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    return batch, roots


def test_a_replay_of_what_is_gone_is_refused(database, storage):
    """It says since when, and both ways to process the records again; a selection of all leaves the
    batch out."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)
    told = r"batch 1 .* removed by retention on \d{4}-.*--from-source.*--reprocess"
    with pytest.raises(InputError, match=told):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True)
    everything = (None, None, {"quarantined": True}, later(database))
    assert not database.transact(lambda c: replays.batches_to_replay(c, *everything))
    again = replayed(
        database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    assert again.files_expired_at is None


def test_a_replay_from_the_source_expires_by_itself(database, storage):
    """Its files are kept like any other's, and go when it is old."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)
    again = replayed(
        database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    roots = emit_replay(database, again)
    run_middle(database, again, roots)
    run_sink(database, again, roots)
    settle_once(database, again.batch_id)
    storage(database)
    assert need(database) is Need.UNPUBLISHED
    published(database)
    assert collect(database).expired == (batch.batch_id,)
    assert storage.there() == set()


def test_totals_need_the_whole_family(database, storage):
    """Where a combine reads all batches of a family, even a replay from the source is refused."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = expired(database, storage, made)

    @made.combine(reads="middle")
    def totals(rows):
        return rows

    made.sink("shown", ParquetSink("totals"), reads="totals")
    with pytest.raises(InputError, match=r"'totals' would read them.*--reprocess"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True)


@pytest.mark.parametrize("now", ["n", ()])
def test_a_masked_key_finds_nothing_without_the_snapshot(database, storage, now):
    """A key that was kept as a pseudonym is refused before the replay opens, and one that was kept
    as it is finds its record, whatever the pipeline redacts by now."""
    batch, _ = expired(database, storage, kept(max_replays=0, key=("n",)))
    redacting = kept(max_replays=0, key=("n",), redact=now)
    kept_as = "UPDATE failed_payload SET parsed = true, key = jsonb_build_object('n', :k)"
    secret = Redaction.of(["n"], b"secret")
    changed(database, kept_as.replace(":k", "cast(:k AS text)"), k=secret.pseudonym("n", "7"))
    with pytest.raises(InputError, match=r"the ledger has pseudonyms of their keys.*--reprocess"):
        replayed(
            database, redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True
        )
    assert rows(database, "SELECT status, attempts FROM failed_message") == [("quarantined", 1)]
    assert len(rows(database, "SELECT FROM batch")) == 1
    changed(database, kept_as.replace(":k", "cast(:k AS text)"), k="7")
    again = replayed(
        database, redacting, batch.batch_id, quarantined=True, accepted=True, from_source=True
    )
    assert [key for _, key, _ in claimed_keys(database, again, "source", ["n"])] == [["7"]]


def test_a_sink_that_compares_with_its_family_needs_it(database, storage):
    """At least once, dedup reads what earlier batches of a family delivered: so is that."""
    made = Pipeline("chain", keep="1d", guarantee="at_least_once", max_replays=0)
    made.source("source", FileSource("in.csv", schema="n INT"), key="n")

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out", dedup="exact"), reads="middle")
    batch, _ = expired(database, storage, made)
    with pytest.raises(InputError, match=r"'sink' would read them.*--reprocess"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True, from_source=True)


def test_what_no_interval_brings_again_is_delivered_anew(database, storage):
    """Of an incremental source neither way out exists: the refusal names the third."""
    made = Pipeline("chain", keep="1d", max_replays=0)
    made.source("source", FileSource("in*.csv", schema="n INT", incremental=True))

    @made.stage(reads="source")
    def middle(rows):
        return rows

    made.sink("sink", ParquetSink("out"), reads="middle")
    batch, _ = expired(database, storage, made)
    with pytest.raises(InputError, match="deliver the records again, corrected"):
        replayed(database, made, batch.batch_id, quarantined=True, accepted=True)


def test_an_abandoned_replay_is_not_opened_again(database, storage):
    """Its run would read what is gone, and its own files go with the family's."""
    made = kept(max_replays=0, key=("n",))
    batch, _ = settled(database, made, storage, lose_sink=[0])
    replay = replayed(
        database, made, batch.batch_id, "late", quarantined=True, accepted=True, from_source=True
    )
    assert abandon(database, replay.batch_id, "its source never came")
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    with pytest.raises(InputError, match="removed by retention"):
        replayed(
            database,
            made,
            batch.batch_id,
            "late",
            quarantined=True,
            accepted=True,
            from_source=True,
        )
