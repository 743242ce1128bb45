"""What the ledger has of a record once it is forgotten, on the real PostgreSQL."""

import pytest

from ledger.batch.records.forgetting import forget, holding, matching, named
from ledger.core import conditions
from ledger.core.states import Need
from ledger.errors import InputError, NotReadyError
from ledger.store.queries import payloads
from tests.support.posting import Delta
from tests.support.retention import OTHER, expiring


def test_a_forgotten_record_leaves_no_content(archive, forgettable):
    """Its key, content, raw text, and what its reason quotes are gone; counts and verdicts stay."""
    batch, roots = forgettable
    before = archive.rows("SELECT * FROM batch_status")
    assert "a@b.org" in archive.text()
    records = matching(archive.database, "chain", conditions.parse("email = 'a@b.org'"))
    assert [record.record for record in records] == [roots[0]]
    forgotten = forget(archive.database, records)
    assert "a@b.org" not in archive.text()
    assert archive.rows("SELECT * FROM batch_status") == before
    reason = archive.row("SELECT reason FROM failed_root WHERE root_id = :r", r=roots[0]).reason
    assert reason == "***"
    other = archive.row("SELECT content FROM failed_payload WHERE message_id = :r", r=roots[1])
    assert other.content == OTHER
    assert [batch.batch_id for batch in forgotten.holding] == [batch.batch_id]


def test_no_text_of_its_family_quotes_a_forgotten_record(archive, forgettable):
    """Failures of runs, why a batch was held, what a person gave as a reason or chose by, what was
    dropped, failures that it shares: of each nothing is left, and what was counted is."""
    batch, roots = forgettable
    replay = archive.replay(
        expiring(max_replays=0), batch.batch_id, quarantined=True, accepted=True
    )
    archive.abandon(replay.batch_id, "a test")
    message = "of a@b.org, "
    for table, column, row in (
        ("step_run", "failure", "step_run_id = 3"),
        ("batch", "held_reason", "batch_id = 1"),
        ("failed_root", "shared = true, reason", f"root_id = {roots[1]}"),
    ):
        archive.change(f"UPDATE {table} SET {column} = :t WHERE {row}", t=message + table)
    choice = '{"quarantined": true, "reason": "%a@b.org"}'
    archive.change("UPDATE batch SET selection = :s WHERE batch_id = 2", s=choice)
    for statement in (
        "INSERT INTO step_run_drop VALUES (2, :t || 'dropped', 5)",
        "INSERT INTO step_run_drop VALUES (2, '***', 7)",
        "INSERT INTO step_run_drop VALUES (2, :t || 'filter 1', 2, 'filter', 'a.py:1')",
        "INSERT INTO step_run_drop VALUES (2, :t || 'filter 2', 3, 'filter', 'a.py:1')",
        "INSERT INTO step_run_loss VALUES (2, 1, 'inner join', 'a.py:2', :t || 'join', 4)",
        "INSERT INTO root_fail VALUES (1, 2, :r + 1, :t || 'root', 'c@d.org', true)",
        "INSERT INTO acceptance (batch_id, accepted_by, reason) VALUES (1, 'me', :t || 'accepted')",
        "INSERT INTO manual_quarantine VALUES (:r, :t || 'quarantined', 'me')",
    ):
        archive.change(statement, t=message, r=roots[0])
    counted = (
        "SELECT to_jsonb(s) - 'failure' FROM step_progress s",
        "SELECT to_jsonb(b) - 'held_reason' FROM batch_status b",
        "SELECT status, count(*) FROM root_status GROUP BY 1 ORDER BY 1",
        "SELECT sum(records) FROM step_drops",
    )
    before = [archive.rows(query) for query in counted]
    archive.forget(roots[0])
    assert "a@b.org" not in archive.text()
    for query in (
        "SELECT failure FROM step_run WHERE failure IS NOT NULL",
        "SELECT held_reason FROM batch WHERE held_reason IS NOT NULL",
        "SELECT reason FROM failed_root WHERE shared OR root_id = 1",
        "SELECT reason FROM root_fail",
        "SELECT reason FROM acceptance",
        "SELECT reason FROM manual_quarantine",
    ):
        assert {row[0] for row in archive.rows(query)} == {"***"}, query
    assert archive.rows("SELECT reason, records FROM step_run_drop ORDER BY 1") == [
        ("***", 12), ("filter at a.py:1: ***", 5),
    ]  # fmt: skip
    assert archive.row("SELECT reason FROM step_run_loss").reason == "inner join at a.py:2: ***"
    assert [archive.rows(query) for query in counted] == before
    assert archive.row("SELECT detail FROM root_fail").detail == "c@d.org"
    selection = archive.row("SELECT selection FROM batch WHERE batch_id = 2").selection
    assert selection == {"quarantined": True, "reason": "***"}


def test_the_reasons_of_each_attempt_are_gone(archive):
    """A record that was corrected and read again is quoted by the reasons of both attempts: none of
    them is left, whether or not the storage that has its values can be reached."""
    pipeline = expiring(max_replays=1, key=("n",))
    batch, roots = archive.settled(pipeline, lose_sink=[0])
    again = archive.replay(pipeline, batch.batch_id, from_source=True)
    (second,) = archive.emit_replay(again)
    archive.run_middle(again, [second], fail={second: "no such customer: Second@b.org"})
    archive.run_sink(again, [])
    archive.settle(again.batch_id)
    archive.change(
        "UPDATE failed_root SET reason = 'not first@b.org' WHERE root_id = :r",
        r=roots[0],
    )
    archive.folder.rename(archive.folder.with_name("unmounted"))
    archive.forget(roots[0])
    assert "@b.org" not in archive.text()
    assert archive.rows("SELECT reason FROM failed_root") == [("***",), ("***",)]


def test_what_the_settlement_says_of_lost_rows_stays(archive):
    """It quotes nothing: why a forgotten record was lost is still explained."""
    _, roots = archive.settled(expiring(max_replays=0), lose_sink=[0, 1])
    query = "SELECT * FROM failed_root ORDER BY root_id"
    before = archive.rows(query)
    assert before[0].cause == "lost"
    archive.forget(roots[0])
    assert archive.rows(query) == before


def test_a_text_that_several_steps_gave_is_masked(archive, forgettable):
    """Two sinks refuse a record in the same words, one of them in a row of several records: the
    text is masked wherever it stands."""
    _, roots = forgettable
    archive.change(
        "INSERT INTO root_fail VALUES (1, 3, :r, 'no such customer: a@b.org', NULL, true)",
        r=roots[0],
    )
    archive.forget(roots[0])
    assert "a@b.org" not in archive.text()
    query = "SELECT reason FROM failed_root WHERE root_id = 1 UNION SELECT reason FROM root_fail"
    assert archive.rows(query) == [("***",)]


def test_no_copy_brings_forgotten_content_back(archive, forgettable):
    """Not one that began before, nor one of what a replay read again."""
    _, roots = forgettable
    archive.forget(roots[0])
    stale = (roots[0], 1, roots[0], None, '{"email": "a@b.org"}', "true", None, None)
    again = (roots[0], 1, roots[0] + 99, None, '{"email": "a@b.org"}', "true", None, None)
    assert archive.transact(payloads.insert, [stale]) == 0
    assert archive.transact(payloads.replace, [again]) == 0
    assert not archive.transact(payloads.missing, 1)
    assert "a@b.org" not in archive.text()


def test_a_forgotten_record_is_not_replayed(archive, forgettable):
    """Nothing takes it up again from the files that still hold it; the others are."""
    batch, roots = forgettable
    pipeline = expiring(max_replays=0)
    archive.forget(roots[0])
    again = archive.replay(pipeline, batch.batch_id, quarantined=True, accepted=True)
    taken = archive.claimed_messages(again.batch_id)
    assert taken == [roots[1]]


def test_a_forgotten_record_that_fails_again_is_not_quoted(archive):
    """One that had recovered comes along when its batch is replayed, and fails: that it failed is
    kept, and counted, but not why, for that may quote it. The others' reasons are."""
    replay, forgotten, failed, along = archive.replay_beside_a_forgotten_record(
        expiring(hold_above=1.0)
    )
    fails = {failed: "no such customer: e@f.org", along: "no such customer: a@b.org"}
    archive.run_middle(replay, [failed, along], fail=fails)
    archive.run_sink(replay, [])
    archive.settle(replay.batch_id)
    followed = "SELECT root_id, reason, detail FROM failed_root WHERE batch_id = :b ORDER BY 1"
    assert archive.rows(followed, b=replay.batch_id) == [
        (failed, "no such customer: e@f.org", None),
        (along, "***", None),
    ]
    row = archive.row("SELECT * FROM failed_message WHERE message_id = :m", m=forgotten)
    assert (row.status, row.root_id, row.attempts) == ("failed", along, 2)
    assert archive.row("SELECT failed_roots FROM batch WHERE batch_id = 3").failed_roots == 2
    assert archive.text().count("a@b.org") == 1  # what the other contains


def test_what_a_sink_says_of_a_forgotten_record_is_not_kept(archive):
    """At least once the rows that a sink has left out stay in the ledger after the settlement: of
    a forgotten record that came along in a replay without why, of the others with it."""
    replay, _, failed, along = archive.replay_beside_a_forgotten_record(
        expiring(hold_above=1.0, guarantee="at_least_once")
    )
    archive.run_middle(replay, [failed, along])
    refused = {failed: "too long: e@f.org", along: "too long: a@b.org"}
    deltas = [Delta(root, root + 2000, 0, 1, 0, why) for root, why in refused.items()]
    archive.finish(archive.start(replay.batch_id, "sink"), deltas)
    archive.settle(replay.batch_id)
    left_out = archive.rows("SELECT root_id, reason FROM root_fail ORDER BY 1")
    assert left_out == [(failed, "too long: e@f.org"), (along, "***")]


def test_a_record_that_is_needed_is_not_forgotten(archive):
    """A failed one is replayed or quarantined first, and then it is: nothing is forgotten with
    it."""
    _, roots = archive.settled(expiring(), lose_sink=[0, 1])
    archive.quarantine("a test", "somebody", record=roots[1])
    both = [*named(archive.database, roots[1]), *named(archive.database, roots[0])]
    with pytest.raises(NotReadyError, match=rf"record {roots[0]} .*ackledger quarantine"):
        forget(archive.database, both)
    assert archive.text().count("a@b.org") == 2
    archive.forget(roots[1])
    assert archive.text().count("a@b.org") == 1


def test_a_record_that_never_failed_is_not_in_the_ledger(archive):
    """There is nothing to forget of it, and the files may hold it."""
    _, roots = archive.settled(expiring())
    with pytest.raises(InputError, match="the ledger holds no content of it"):
        named(archive.database, roots[0])


def test_the_files_of_forgotten_records_go_at_once_if_they_may(archive, forgettable):
    """Asked for, they go as soon as a day has passed, whatever keep says; what is needed stays."""
    batch, roots = forgettable
    records = named(archive.database, roots[0])
    left = forget(archive.database, records, files=True, now=archive.later()).collected
    assert [family.need for family in left.needed] == [Need.RECORDS_QUARANTINED]  # of the other one
    archive.accept(batch.batch_id)
    done = forget(archive.database, records, files=True, now=archive.later())
    assert done.collected.expired == (batch.batch_id,)
    assert archive.runs() == set()
    assert not [root for root in holding(archive.database, [roots[0]]) if root.files]
