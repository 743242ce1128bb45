"""What the ledger has of a record once it is forgotten, on the real PostgreSQL."""

import pytest

from ledger.batch.acceptance import accept
from ledger.batch.interventions import abandon
from ledger.batch.quarantine import quarantine
from ledger.batch.records.forgetting import forget, holding, matching, named
from ledger.batch.settlement import settle_once
from ledger.core import conditions
from ledger.core.states import Need
from ledger.errors import InputError, NotReadyError
from ledger.store.queries import payloads, replays
from tests.support.ledgers import (
    emit_replay,
    finish,
    one,
    replayed,
    rows,
    run_middle,
    run_sink,
    started,
)
from tests.support.posting import Delta
from tests.support.retention import (
    OTHER,
    changed,
    everything,
    kept,
    later,
    published,
    recorded,
    settled,
)


def test_a_forgotten_record_leaves_no_content(database, forgettable):
    """Its key, content, raw text, and what its reason quotes are gone; counts and verdicts stay."""
    batch, roots = forgettable
    before = rows(database, "SELECT * FROM batch_status")
    assert "a@b.org" in everything(database)
    found = matching(database, "chain", conditions.parse("email = 'a@b.org'"))
    assert [one.record for one in found] == [roots[0]]
    forgotten = forget(database, found)
    assert "a@b.org" not in everything(database)
    assert rows(database, "SELECT * FROM batch_status") == before
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "***"
    other = one(database, "SELECT content FROM failed_payload WHERE message_id = :r", r=roots[1])
    assert other.content == OTHER
    assert [one.batch_id for one in forgotten.holding] == [batch.batch_id]


def test_no_text_of_its_family_quotes_a_forgotten_record(database, forgettable):
    """Failures of runs, why a batch was held, what a person gave as a reason or chose by, what was
    dropped, failures that it shares: of each nothing is left, and what was counted is."""
    batch, roots = forgettable
    replay = replayed(
        database, kept(max_replays=0), batch.batch_id, quarantined=True, accepted=True
    )
    abandon(database, replay.batch_id, "a test")
    told = "of a@b.org, "
    for table, column, row in (
        ("step_run", "failure", "step_run_id = 3"),
        ("batch", "held_reason", "batch_id = 1"),
        ("failed_root", "shared = true, detail = NULL, reason", f"root_id = {roots[1]}"),
    ):
        changed(database, f"UPDATE {table} SET {column} = :t WHERE {row}", t=told + table)
    chosen = '{"quarantined": true, "reason": "%a@b.org"}'
    changed(database, "UPDATE batch SET selection = :s WHERE batch_id = 2", s=chosen)
    for statement in (
        "INSERT INTO step_run_drop VALUES (2, :t || 'dropped', 5)",
        "INSERT INTO step_run_drop VALUES (2, '***', 7)",
        "INSERT INTO root_fail VALUES (1, 2, :r + 1, :t || 'root', 'c@d.org', true)",
        "INSERT INTO acceptance (batch_id, accepted_by, reason) VALUES (1, 'me', :t || 'accepted')",
        "INSERT INTO manual_quarantine VALUES (:r, :t || 'quarantined', 'me')",
    ):
        changed(database, statement, t=told, r=roots[0])
    counted = (
        "SELECT to_jsonb(s) - 'failure' FROM step_progress s",
        "SELECT to_jsonb(b) - 'held_reason' FROM batch_status b",
        "SELECT status, count(*) FROM root_status GROUP BY 1 ORDER BY 1",
        "SELECT sum(records) FROM step_drops",
    )
    before = [rows(database, query) for query in counted]
    forget(database, named(database, roots[0]))
    assert "a@b.org" not in everything(database)
    for query in (
        "SELECT failure FROM step_run WHERE failure IS NOT NULL",
        "SELECT held_reason FROM batch WHERE held_reason IS NOT NULL",
        "SELECT reason FROM failed_root WHERE shared OR root_id = 1",
        "SELECT reason FROM root_fail",
        "SELECT reason FROM acceptance",
        "SELECT reason FROM manual_quarantine",
    ):
        assert {row[0] for row in rows(database, query)} == {"***"}, query
    assert rows(database, "SELECT reason, records FROM step_run_drop") == [("***", 12)]
    assert [rows(database, query) for query in counted] == before
    assert one(database, "SELECT detail FROM root_fail").detail == "c@d.org"
    selection = one(database, "SELECT selection FROM batch WHERE batch_id = 2").selection
    assert selection == {"quarantined": True, "reason": "***"}


def test_what_each_attempt_was_told_is_gone(database, storage):
    """A record that was corrected and read again is quoted by the reasons of both attempts: none of
    them is left, whether or not the storage that has its values can be reached."""
    made = kept(max_replays=1, key=("n",))
    batch, roots = settled(database, made, storage, lose_sink=[0])
    again = replayed(database, made, batch.batch_id, from_source=True)
    (second,) = emit_replay(database, again)
    run_middle(database, again, [second], fail={second: "no such customer: Second@b.org"})
    run_sink(database, again, [])
    settle_once(database, again.batch_id)
    changed(
        database,
        "UPDATE failed_root SET reason = 'not first@b.org', detail = NULL WHERE root_id = :r",
        r=roots[0],
    )
    storage.folder.rename(storage.folder.with_name("unmounted"))
    forget(database, named(database, roots[0]))
    assert "@b.org" not in everything(database)
    assert rows(database, "SELECT reason FROM failed_root") == [("***",), ("***",)]


def test_what_the_settlement_says_of_lost_edges_stays(database, storage):
    """It quotes nothing: why a forgotten record was lost is still explained."""
    _, roots = settled(database, kept(max_replays=0), storage, lose_sink=[0, 1])
    query = "SELECT reason, detail FROM failed_root ORDER BY root_id"
    before = rows(database, query)
    assert before[0].reason == "lost"
    forget(database, named(database, roots[0]))
    assert rows(database, query) == before


def test_a_text_that_several_steps_gave_is_masked(database, forgettable):
    """Two sinks refuse a record in the same words, one of them in a row of several records: the
    text is masked wherever it stands."""
    _, roots = forgettable
    changed(
        database,
        "INSERT INTO root_fail VALUES (1, 3, :r, 'no such customer: a@b.org', NULL, true)",
        r=roots[0],
    )
    forget(database, named(database, roots[0]))
    assert "a@b.org" not in everything(database)
    query = "SELECT reason FROM failed_root WHERE root_id = 1 UNION SELECT reason FROM root_fail"
    assert rows(database, query) == [("***",)]


def test_no_copy_brings_forgotten_content_back(database, forgettable):
    """Not one that began before, nor one of what a replay read again."""
    _, roots = forgettable
    forget(database, named(database, roots[0]))
    stale = (roots[0], 1, roots[0], None, '{"email": "a@b.org"}', "true", None, None)
    again = (roots[0], 1, roots[0] + 99, None, '{"email": "a@b.org"}', "true", None, None)
    assert database.transact(lambda c: payloads.insert(c, [stale])) == 0
    assert database.transact(lambda c: payloads.replace(c, [again])) == 0
    assert not database.transact(lambda c: payloads.missing(c, 1))
    assert "a@b.org" not in everything(database)


def test_a_forgotten_record_is_not_replayed(database, forgettable):
    """Nothing takes it up again from the files that still hold it; the others are."""
    batch, roots = forgettable
    made = kept(max_replays=0)
    forget(database, named(database, roots[0]))
    again = replayed(database, made, batch.batch_id, quarantined=True, accepted=True)
    taken = database.transact(lambda c: replays.claimed_messages(c, again.batch_id, "source"))
    assert taken == [roots[1]]


def test_a_forgotten_record_that_fails_again_is_not_quoted(database, storage):
    """One that had recovered comes along when its unit is replayed, and fails: that it failed is
    kept, and counted, but not why, for that may quote it. The others' reasons are."""
    made = kept(max_failed_ratio=1.0)
    batch, roots = settled(database, made, storage, lose_sink=[0, 1])
    first = replayed(database, made, batch.batch_id)
    one_of, other = emit_replay(database, first)
    run_middle(database, first, [one_of, other])
    run_sink(database, first, [one_of, other], lose=[other])
    settle_once(database, first.batch_id)
    storage(database)
    for run in rows(database, "SELECT emit_run_id AS id FROM batch_source ORDER BY 1"):
        recorded(database, run.id, [(4711, "a@b.org"), *((n, "e@f.org") for n in range(9))])
    published(database)
    forget(database, named(database, roots[0]))
    second = replayed(database, made, batch.batch_id, "unit")
    changed(  # as if the stage merged records, of which units come along
        database,
        "UPDATE batch_step SET declaration = declaration || '{\"merges\": true}'"
        " WHERE batch_id = 3 AND name = 'middle'",
    )
    again, along = emit_replay(database, second, companions=[roots[0]])
    fails = {again: "no such customer: e@f.org", along: "no such customer: a@b.org"}
    run_middle(database, second, [again, along], fail=fails)
    run_sink(database, second, [])
    settle_once(database, second.batch_id)
    followed = "SELECT root_id, reason, detail FROM failed_root WHERE batch_id = :b ORDER BY 1"
    assert rows(database, followed, b=second.batch_id) == [
        (again, "no such customer: e@f.org", None),
        (along, "***", None),
    ]
    found = one(database, "SELECT * FROM failed_message WHERE message_id = :m", m=roots[0])
    assert (found.status, found.root_id, found.attempts) == ("failed", along, 2)
    assert one(database, "SELECT failed_roots FROM batch WHERE batch_id = 3").failed_roots == 2
    assert everything(database).count("a@b.org") == 1  # what the other contains


def test_what_a_sink_says_of_a_forgotten_record_is_not_kept(database, storage):
    """At least once the rows that a sink has left out stay in the ledger after the settlement: of
    a forgotten record that its unit has taken along without why, of the others with it."""
    made = kept(max_failed_ratio=1.0, guarantee="at_least_once")
    batch, roots = settled(database, made, storage, lose_sink=[0, 1])
    first = replayed(database, made, batch.batch_id)
    one_of, other = emit_replay(database, first)
    run_middle(database, first, [one_of, other])
    run_sink(database, first, [one_of, other], lose=[other])
    settle_once(database, first.batch_id)
    storage(database)
    for run in rows(database, "SELECT emit_run_id AS id FROM batch_source ORDER BY 1"):
        recorded(database, run.id, [(4711, "a@b.org"), *((n, "e@f.org") for n in range(9))])
    published(database)
    forget(database, named(database, roots[0]))
    second = replayed(database, made, batch.batch_id, "unit")
    changed(  # as if the stage merged records, of which units come along
        database,
        "UPDATE batch_step SET declaration = declaration || '{\"merges\": true}'"
        " WHERE batch_id = 3 AND name = 'middle'",
    )
    again, along = emit_replay(database, second, companions=[roots[0]])
    run_middle(database, second, [again, along])
    refused = {again: "too long: e@f.org", along: "too long: a@b.org"}
    deltas = [Delta(root, root + 2000, 0, 1, 0, why) for root, why in refused.items()]
    finish(database, started(database, second.batch_id, "sink"), deltas)
    settle_once(database, second.batch_id)
    left_out = rows(database, "SELECT root_id, reason FROM root_fail ORDER BY 1")
    assert left_out == [(again, "too long: e@f.org"), (along, "***")]


def test_a_record_that_is_needed_is_not_forgotten(database, storage):
    """A failed one is replayed or quarantined first, and then it is: nothing is forgotten with
    it."""
    _, roots = settled(database, kept(), storage, lose_sink=[0, 1])
    quarantine(database, "a test", "somebody", record=roots[1])
    both = [*named(database, roots[1]), *named(database, roots[0])]
    with pytest.raises(NotReadyError, match=rf"record {roots[0]} .*ackledger quarantine"):
        forget(database, both)
    assert everything(database).count("a@b.org") == 2
    forget(database, named(database, roots[1]))
    assert everything(database).count("a@b.org") == 1


def test_a_record_that_never_failed_is_not_in_the_ledger(database, storage):
    """There is nothing to forget of it, and the files may hold it."""
    _, roots = settled(database, kept(), storage)
    with pytest.raises(InputError, match="the ledger holds no content of it"):
        named(database, roots[0])


def test_the_files_of_forgotten_records_go_at_once_if_they_may(database, forgettable, storage):
    """Asked for, they go as soon as a day has passed, whatever keep says; what is needed stays."""
    batch, roots = forgettable
    chosen = named(database, roots[0])
    left = forget(database, chosen, files=True, now=later(database)).collected
    assert [one.need for one in left.needed] == [Need.RECORDS_QUARANTINED]  # of the other one
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    done = forget(database, chosen, files=True, now=later(database))
    assert done.collected.expired == (batch.batch_id,)
    assert storage.there() == set()
    assert not [one for one in holding(database, [roots[0]]) if one.files]
