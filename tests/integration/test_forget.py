"""What the ledger has of a record once it is forgotten, on the real PostgreSQL."""

from pathlib import Path

import pytest

from ledger.batch.acceptance import accept
from ledger.batch.forgetting import forget, holding, matching, named
from ledger.batch.interventions import abandon
from ledger.batch.quarantine import quarantine
from ledger.batch.settlement import settle_once
from ledger.core import conditions
from ledger.core.states import Need
from ledger.errors import InputError, LedgerError, NotReadyError, UnavailableError
from ledger.store.queries import forgetting, payloads, replays
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
    collect,
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
    assert reason == "no such customer: ***"
    other = one(database, "SELECT content FROM failed_payload WHERE message_id = :r", r=roots[1])
    assert other.content == OTHER
    assert [one.batch_id for one in forgotten.holding] == [batch.batch_id]


def test_what_is_masked_is_read_where_no_copy_was_made(database, forgettable):
    """By its number, too, a record is forgotten with what its reason quotes, though the ledger
    never had its content."""
    _, roots = forgettable
    changed(database, "DELETE FROM failed_payload WHERE message_id = :r", r=roots[0])
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "no such customer: ***"


def test_what_each_attempt_has_read_is_masked(database, storage):
    """A record that was corrected and read again is quoted by the reasons of both attempts, each
    with what it contained then; the ledger has the later content alone."""
    made = kept(max_replays=1, key=("n",))
    batch, roots = settled(database, made, storage, lose_sink=[0])
    recorded(database, 1, [(n, "first@b.org") for n in range(10)])
    again = replayed(database, made, batch.batch_id, from_source=True)
    (second,) = emit_replay(database, again)
    run_middle(database, again, [second], fail={second: "no such customer: Second@b.org"})
    run_sink(database, again, [])
    settle_once(database, again.batch_id)
    storage(database)
    emitted = one(database, "SELECT max(emit_run_id) AS id FROM batch_source").id
    recorded(database, emitted, [(4711, "second@b.org")])
    quoting = "UPDATE failed_root SET reason = 'not first@b.org' WHERE root_id = :r"
    changed(database, quoting, r=roots[0])
    changed(
        database,
        "UPDATE failed_payload SET root_id = :s, content = :c WHERE message_id = :r",
        s=second,
        r=roots[0],
        c='{"n": 4711, "email": "second@b.org"}',
    )
    forget(database, named(database, roots[0]))
    assert "@b.org" not in everything(database)
    reasons = [row.reason for row in rows(database, "SELECT reason FROM failed_root ORDER BY 1")]
    assert reasons == ["no such customer: ***", "not ***"]


def test_no_text_of_its_family_quotes_a_forgotten_record(database, forgettable):
    """Failures of runs, why a batch was held, what a person gave as a reason or chose by, what was
    dropped, failures that it shares: all are masked, and what was counted is."""
    batch, roots = forgettable
    replay = replayed(
        database, kept(max_replays=0), batch.batch_id, quarantined=True, accepted=True
    )
    abandon(database, replay.batch_id, "a test")
    told = "of a@b.org, "
    for table, column, row in (
        ("step_run", "failure", "step_run_id = 3"),
        ("batch", "held_reason", "batch_id = 1"),
        ("failed_root", "shared = true, reason", f"root_id = {roots[1]}"),
    ):
        changed(database, f"UPDATE {table} SET {column} = :t WHERE {row}", t=told + table)
    chosen = '{"quarantined": true, "reason": "%a@b.org"}'
    changed(database, "UPDATE batch SET selection = :s WHERE batch_id = 2", s=chosen)
    for statement in (
        "INSERT INTO step_run_drop VALUES (2, :t || 'dropped', 5)",
        "INSERT INTO step_run_drop VALUES (2, 'of ***, dropped', 7)",
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
    found = everything(database)
    assert "a@b.org" not in found
    for end in ("step_run", "batch", "failed_root", "root", "accepted", "quarantined"):
        assert f"of ***, {end}" in found
    assert rows(database, "SELECT reason, records FROM step_run_drop") == [("of ***, dropped", 12)]
    assert [rows(database, query) for query in counted] == before
    assert one(database, "SELECT detail FROM root_fail").detail == "c@d.org"
    selection = one(database, "SELECT selection FROM batch WHERE batch_id = 2").selection
    assert selection == {"quarantined": True, "reason": "%***"}


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
    assert rows(database, query) == [("no such customer: ***",)]


@pytest.mark.parametrize(
    ("told", "masked"),
    [
        ("no customer *a@b.org*", "no customer *****"),
        ("of **a@b.org", "of *****"),
        ("a@b.orga@b.org", "******"),
        ("100% of a_b\\ is a@b.org", "100% of a_b\\ is ***"),
    ],
)
def test_stars_beside_a_value_keep_no_text_from_being_masked(database, forgettable, told, masked):
    """What a text emphasizes runs together with its mask, and is masked all the same."""
    _, roots = forgettable
    changed(database, "UPDATE failed_root SET reason = :t WHERE root_id = :r", t=told, r=roots[0])
    forget(database, named(database, roots[0]))
    found = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0])
    assert found.reason == masked


def test_short_values_are_masked_as_whole_words(database, forgettable):
    """A number of two digits does not mask half of every text, as with redacted columns."""
    _, roots = forgettable
    told = "customer 12 of 2012 at C@D.ORG"
    changed(database, "UPDATE failed_root SET reason = :t WHERE root_id = :r", t=told, r=roots[1])
    forget(database, named(database, roots[1]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[1]).reason
    assert reason == "customer *** of 2012 at ***"


def test_where_the_values_are_lost_the_whole_text_is_masked(database, forgettable):
    """Without the snapshot, and without a copy, nobody can tell what a reason quotes."""
    _, roots = forgettable
    changed(database, "DELETE FROM failed_payload WHERE message_id = :r", r=roots[0])
    Path(one(database, "SELECT path FROM step_run_file WHERE step_run_id = 1").path).unlink()
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "***"


def test_the_copy_says_what_to_mask_once_the_files_are_gone(database, forgettable):
    """Retention has removed the snapshot: the ledger's own copy names the values."""
    batch, roots = forgettable
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    assert collect(database).expired == (batch.batch_id,)
    forget(database, named(database, roots[0]))
    reason = one(database, "SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "no such customer: ***"


def test_nothing_is_forgotten_where_the_storage_is_out_of_reach(database, forgettable, storage):
    """What texts quote is not known there: it is done where it is."""
    _, roots = forgettable
    away = storage.folder.rename(storage.folder.with_name("unmounted"))
    with pytest.raises(UnavailableError, match="expected the folder below which runs write"):
        forget(database, named(database, roots[0]))
    assert "a@b.org" in everything(database)
    away.rename(storage.folder)
    forget(database, named(database, roots[0]))
    assert "a@b.org" not in everything(database)


def test_a_text_of_a_record_changes_by_being_masked_alone(database, forgettable):
    """The writer may have parts of history masked, and does not rewrite it so."""
    _, roots = forgettable
    given = {"family_id": 1, "root_id": roots[0], "told": "no such customer: a@b.org"}
    for masked in ("all was well", "no such customer: ***, who paid", None):
        with pytest.raises(LedgerError, match="they may not change otherwise"):
            database.transact(
                lambda c, to=masked: forgetting.forget(c, [roots[0]], [{**given, "masked": to}])
            )
    assert "a@b.org" in everything(database)


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
    assert [one.need for one in left.kept] == [Need.RECORDS_QUARANTINED]  # of the other one
    accept(database, batch.batch_id, by="a person", reason="it may stay out")
    done = forget(database, chosen, files=True, now=later(database))
    assert done.collected.expired == (batch.batch_id,)
    assert storage.there() == set()
    assert not [one for one in holding(database, [roots[0]]) if one.files]
