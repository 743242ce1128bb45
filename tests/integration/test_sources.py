"""What batches claim of their sources: intervals, files, rows of a table, within max_pending."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, SqlSource
from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import BackPressureError, InputError, NotReadyError, StageError
from ledger.execution import notify, settle_and_follow
from ledger.sources.sql import queries as source_tables
from tests.support.arrow_source import ArrowSource
from tests.support.runner import END, START

LATER = START + timedelta(days=90), END + timedelta(days=90)


def words_of(source, lose=(), name="words", *, whole=False, **options):
    """source -> checked, which fails the words in ``lose`` -> sink."""
    pipeline = Pipeline(name, **options)
    pipeline.source("words", source)

    @pipeline.stage(reads="words", anchors="merged_by_hand" if whole else "carried")
    def checked(words):
        bad = " OR ".join(f"word = '{word}'" for word in lose) or "false"
        return words.selectExpr("*", f"CASE WHEN {bad} THEN 'bad word' END AS _failed")

    pipeline.sink("out", ParquetSink("out"), reads="checked")
    return pipeline


def by_interval(**options):
    return words_of(FileSource("in.csv", schema="word STRING", header=False), **options)


def incremental(**options):
    source = FileSource("in/*.csv", schema="word STRING", header=False, incremental=True)
    return words_of(source, **options)


def write(path, *words, modified=None):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{word}\n" for word in words))
    if modified is not None:
        os.utime(path, (modified, modified))


def delivered(sink_rows):
    return [word for (word,) in sink_rows("out", "word")]


def open_at_once(ledger, settings, pipeline, count=4):
    """Open batches at the same time; those that found room."""
    gate, interval = threading.Barrier(count), Interval(START, END)

    def open_one(number):
        gate.wait()
        with suppress(BackPressureError):
            return open_batch(
                ledger.database, settings, pipeline, RunKey("", f"run-{number}"), interval
            )

    with ThreadPoolExecutor(count) as pool:
        return [batch for batch in pool.map(open_one, range(count)) if batch is not None]


# Intervals


def test_an_interval_larger_than_max_pending_is_read_whole(runner, tmp_path, sink_rows):
    """While nothing else is pending one batch reads all of it, or it would wait for ever."""
    everything = [f"w{n:02d}" for n in range(10)]
    write(tmp_path / "in.csv", *everything)
    run = runner(by_interval(max_pending=4))
    batch = run.open("one")
    assert run.settled(batch).roots == 10
    assert run.ledger.summary(batch.batch_id).outcome is Outcome.COMPLETE
    assert delivered(sink_rows) == everything
    with pytest.raises(InputError, match="belongs to batch 1"):
        run.open("one more")


def test_no_room_while_as_many_are_pending(runner, tmp_path):
    """With max_pending records undecided no batch opens, be they read or claimed; once they settle
    one does.
    """
    write(tmp_path / "in.csv", "a", "b", "c")
    run = runner(by_interval(max_pending=2))
    first = run.open("one")
    with pytest.raises(BackPressureError, match=r"3 records are pending in batches 1, .* is 2"):
        run.open("two", *LATER)
    run.steps(first)
    with pytest.raises(
        BackPressureError, match="3 records are pending in batches 1, max_pending is 2: wait until"
    ):
        run.open("two", *LATER)
    run.ledger.settle(first.batch_id)
    assert run.open("two", *LATER).batch_id > first.batch_id


def test_an_interval_waits_for_room_or_is_read_beside(runner, tmp_path):
    """An interval of more records than there is room for beside others waits until they settle;
    one of fewer is read beside them. It is never cut.
    """
    write(tmp_path / "in.csv", "a")
    run = runner(by_interval(max_pending=3))
    first = run.open("one")
    run.step(first, "words")
    write(tmp_path / "in.csv", "d", "e", "f")
    with pytest.raises(
        BackPressureError,
        match="1 record is pending in batches 1, and more than 2 are to be read, max_pending is 3",
    ):
        run.open("two", *LATER)
    write(tmp_path / "in.csv", "d", "e")
    second = run.open("two", *LATER)
    assert run.settled(second).roots == 2


def test_an_interval_of_unknown_size(runner, tmp_path):
    """It is read whole as soon as there is room for one record; others wait until it is read."""
    pipeline, schema = Pipeline("numbers", max_pending=2), pa.schema([("n", pa.int32())])
    pipeline.source("numbers", ArrowSource("in.arrow", "n INT"))
    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(pipeline)
    for name, interval, count in (("one", (START, END), 1), ("two", LATER, 3)):
        with pa.ipc.new_file(str(tmp_path / "in.arrow"), schema) as file:
            file.write_table(pa.table({"n": range(count)}, schema=schema))
        batch = run.open(name, *interval)
        with pytest.raises(BackPressureError, match=rf"batch {batch.batch_id} has yet to read it"):
            run.open("other", END, LATER[0])
        run.step(batch, "numbers")
    assert run.ledger.row("SELECT sum(roots)::int AS n FROM batch_source").n == 4
    with pytest.raises(BackPressureError, match="4 records are pending in batches 1, 2"):
        run.open("three", END, LATER[0])


def test_a_replay_is_bounded_by_the_room_too(runner, tmp_path):
    """A replay claims no more messages than may be pending, and none while there is no room."""
    write(tmp_path / "in.csv", "a", "b", "c")
    run = runner(by_interval(lose=["a", "b", "c"]))
    first = run.open("one")
    run.settled(first)
    tight = runner(by_interval(max_pending=2))
    replay = tight.open_replay(first.batch_id, "replay")
    with pytest.raises(BackPressureError, match="2 records are pending"):
        tight.open_replay(first.batch_id, "second")
    assert tight.settled(replay).roots == 2


def test_a_held_batch_is_named_to_a_run_that_waits_for_it(runner, tmp_path):
    """Only a person lets a held batch go on, so waiting for it is an error that says which it
    is.
    """
    write(tmp_path / "in.csv", "a", "b")
    run = runner(by_interval(max_pending=2, lose=["a"], hold_above=0.1))
    first = run.open("one")
    assert run.settled(first).status is BatchStatus.HELD
    with pytest.raises(InputError, match=r"batch 1 is on hold: fix what holds it, or release it"):
        run.open("two", *LATER)


def test_a_held_batch_that_leaves_room_only_waits_with_the_others(runner, tmp_path):
    """A batch on hold is an error only where its records leave no room by themselves: else there is
    room once the others have settled.
    """
    write(tmp_path / "in.csv", "a")
    run = runner(by_interval(max_pending=10, lose=["a"], hold_above=0.1))
    assert run.settled(run.open("one")).status is BatchStatus.HELD
    write(tmp_path / "in.csv", *"bcdefghi")
    second = run.open("two", *LATER)
    run.steps(second)
    write(tmp_path / "in.csv", *"jklmn")
    third = LATER[1], LATER[1] + (LATER[1] - LATER[0])
    with pytest.raises(
        BackPressureError, match=r"9 records .* and more than 1 are to be read"
    ) as waits:
        run.open("three", *third)
    assert "Batch 2: All its steps are done. Settle it: ackledger sweep" in str(waits.value)
    run.ledger.settle(second.batch_id)
    assert run.open("three", *third).batch_id > second.batch_id


def test_an_interval_with_other_parameters_is_refused(runner, tmp_path):
    """An interval belongs to its batch, whatever the parameters of another run."""
    write(tmp_path / "in.csv", "a", "b", "c")
    run = runner(by_interval())
    run.settled(run.open("one"))
    job, key = run.job, RunKey("", "two")
    with pytest.raises(InputError, match="belongs to batch 1"):
        open_batch(
            job.database, job.settings, job.pipeline, key, Interval(START, END, {"region": "eu"})
        )


def test_the_position_of_intervals_stops_at_a_gap(runner, tmp_path):
    """An interval that is missing between two finished ones holds the position before it."""
    write(tmp_path / "in.csv", "a")
    run = runner(by_interval())
    months = [datetime(2013, month, 1, tzinfo=UTC) for month in range(1, 6)]
    for place in (0, 2):
        run.settled(run.open(f"month {place}", months[place], months[place + 1]))
    assert position(run.ledger) == ["2013-02-01T00:00:00+00:00"]
    run.settled(run.open("month 1", months[1], months[2]))
    assert position(run.ledger) == ["2013-04-01T00:00:00+00:00"]


# Files


def test_names_with_brackets_are_names(runner, tmp_path, sink_rows):
    """A file's name is no pattern: each of two that would match each other is read once."""
    write(tmp_path / "in" / "a1.csv", "a")
    write(tmp_path / "in" / "a[1].csv", "b")
    write(tmp_path / "in" / "{x}.csv", "c")
    run = runner(incremental())
    run.settled(run.open("one"))
    assert delivered(sink_rows) == ["a", "b", "c"]


def test_each_file_is_read_once(runner, tmp_path, sink_rows):
    """A batch takes the files that no batch has taken, whatever its interval; one without any has
    no records.
    """
    write(tmp_path / "in" / "1.csv", "a", "b")
    run = runner(incremental())
    run.settled(run.open("one"))
    write(tmp_path / "in" / "2.csv", "c")
    run.settled(run.open("two"))
    empty = run.open("three")
    run.settled(empty)
    assert delivered(sink_rows) == ["a", "b", "c"]
    assert run.ledger.summary(empty.batch_id).roots.total == 0
    assert run.ledger.summary(empty.batch_id).outcome is Outcome.COMPLETE
    files = run.ledger.rows("SELECT path, batch_id, finished FROM source_file ORDER BY path")
    assert [(row.path.rsplit("/", 1)[1], row.batch_id, row.finished) for row in files] == [
        ("1.csv", 1, True),
        ("2.csv", 2, True),
    ]


def test_a_touched_file_is_the_same_and_a_changed_one_is_new(runner, tmp_path, sink_rows):
    """A small file with another time but the same content is not read again; one with other
    content is.
    """
    file = tmp_path / "in" / "1.csv"
    write(file, "a", modified=1_000_000)
    run = runner(incremental())
    run.settled(run.open("one"))
    write(file, "a", modified=2_000_000)
    run.settled(run.open("two"))
    assert delivered(sink_rows) == ["a"]
    write(file, "b", modified=2_000_000)
    run.settled(run.open("three"))
    assert delivered(sink_rows) == ["a", "b"]
    write(file, "b", "c", modified=2_000_000)
    run.settled(run.open("four"))
    assert delivered(sink_rows) == ["a", "b", "b", "c"]
    write(
        file, "a", modified=3_000_000
    )  # content that was there before, and was not what came last
    run.settled(run.open("five"))
    assert delivered(sink_rows) == ["a", "a", "b", "b", "c"]


def test_two_batches_at_once_take_different_files(runner, tmp_path, sink_rows):
    """What one batch has claimed the next one leaves, though nothing of it was read yet."""
    write(tmp_path / "in" / "1.csv", "a")
    run = runner(incremental())
    first = run.open("one")
    write(tmp_path / "in" / "2.csv", "b")
    second = run.open("two")
    run.settled(second)
    assert delivered(sink_rows) == ["b"]
    run.settled(first)
    assert delivered(sink_rows) == ["a", "b"]


def test_batches_that_open_at_once_take_each_file_once(ledger, settings, tmp_path):
    """Of batches that are opened at the same time each file is claimed by one."""
    for number in range(6):
        write(tmp_path / "in" / f"{number}.csv", "a")
    open_at_once(ledger, settings, incremental())
    taken = ledger.rows("SELECT path, count(*) FROM claimed_file GROUP BY 1")
    assert [row.count for row in taken] == [1] * 6


def test_an_abandoned_batch_gives_its_files_back(runner, tmp_path, sink_rows):
    """Files of a batch whose source died go to the next; opened again it takes what is new then."""
    write(tmp_path / "in" / "1.csv", "a")
    run = runner(incremental())
    dead = run.open("one")
    run.ledger.start(dead.batch_id, "words")
    run.ledger.age(dead.batch_id, 10_000)
    run.ledger.sweep()
    run.settled(run.open("two"))
    write(tmp_path / "in" / "2.csv", "b")
    again = run.open("one")
    assert again.batch_id == dead.batch_id
    run.settled(again)
    assert delivered(sink_rows) == ["a", "b"]


def test_what_a_batch_claims_when_it_is_opened_again_is_the_newest(runner, tmp_path, sink_rows):
    """The content that came last is that of the last claim, though the batch that made it has an
    older number.
    """
    file = tmp_path / "in" / "1.csv"
    write(file, "a", modified=1_000_000)
    run = runner(incremental())
    dead = run.open("one")
    run.ledger.start(dead.batch_id, "words")
    run.ledger.age(dead.batch_id, 10_000)
    run.ledger.sweep()
    run.settled(run.open("two"))
    write(file, "b", modified=2_000_000)
    run.settled(run.open("one"))
    write(file, "b", modified=3_000_000)
    run.settled(run.open("three"))
    assert delivered(sink_rows) == ["a", "b"]
    write(file, "a", modified=4_000_000)
    run.settled(run.open("four"))
    assert delivered(sink_rows) == ["a", "a", "b"]


def test_a_file_that_changes_after_its_claim(runner, tmp_path):
    """A file that is not as it was claimed fails the batch, naming it: half of it might be read."""
    write(tmp_path / "in" / "1.csv", "a")
    run = runner(incremental())
    batch = run.open("one")
    write(tmp_path / "in" / "1.csv", "a", "b")
    with pytest.raises(InputError, match=r"1\.csv had 2 bytes .* Files must appear whole"):
        run.step(batch, "words")


def test_a_backlog_of_files_within_max_pending(runner, tmp_path, sink_rows):
    """A slow sink and a backlog: never more than max_pending are undecided, and nothing is left
    out.
    """
    backlog = [f"{file}{n}" for file in "abc" for n in range(3)]
    for place, file in enumerate("abc"):
        write(
            tmp_path / "in" / f"{file}.csv",
            *(w for w in backlog if w[0] == file),
            modified=1_000 + place,
        )
    run = runner(incremental(max_pending=4))
    pending = "SELECT sum(pending) AS n FROM batch_status"
    number = 0
    while number == 0 or delivered(sink_rows) != backlog:
        under_way = []
        while (
            True
        ):  # until there is no room, or no file; the sinks have it all, and nothing is settled
            number += 1
            assert number < 20
            try:
                under_way.append(run.open(f"run {number}"))
            except BackPressureError:
                break
            run.steps(under_way[-1])
            assert run.ledger.row(pending).n <= 4
            if not run.ledger.summary(under_way[-1].batch_id).roots.total:
                break
        for batch in under_way:
            settle_and_follow(run.job, batch.batch_id)


def test_a_file_larger_than_max_pending(runner, tmp_path, sink_rows):
    """A file is never cut: it waits while others are pending, and then one batch takes it alone."""
    write(tmp_path / "in" / "1.csv", "z", modified=1_000)
    write(tmp_path / "in" / "2.csv", "a", "b", "c", "d", "e", modified=1_001)
    write(tmp_path / "in" / "3.csv", "y", modified=1_002)
    run = runner(incremental(max_pending=2))
    first = run.open("one")
    run.step(first, "words")
    with pytest.raises(BackPressureError, match="batches 1, and more than 1 are to be read"):
        run.open("two")
    assert [run.settled(run.open(name)).roots for name in ("one", "two", "three")] == [1, 5, 1]
    assert delivered(sink_rows) == ["a", "b", "c", "d", "e", "y", "z"]


def is_never_cut(run, add_more, sink_rows):
    """With ``max_pending`` of one record a batch takes all three that are new for a whole stage,
    and no other opens until it has read them and they are settled.
    """
    first = run.open("one")
    with pytest.raises(BackPressureError, match="batch 1 has yet to read it"):
        run.open("two")
    assert run.settled(first).roots == 3
    assert run.settled(run.open("two")).roots == 0
    add_more()
    assert run.settled(run.open("three")).roots == 2
    assert delivered(sink_rows) == ["a", "b", "c", "d", "e"]


def test_files_for_a_whole_stage_are_read_together(runner, tmp_path, sink_rows):
    """However little room there is, for a unit may lie in several."""
    write(tmp_path / "in" / "1.csv", "a", "b", modified=1_000)
    write(tmp_path / "in" / "2.csv", "c", modified=1_001)

    def add_more():
        write(tmp_path / "in" / "3.csv", "d", modified=1_002)
        write(tmp_path / "in" / "4.csv", "e", modified=1_003)

    is_never_cut(runner(incremental(whole=True, max_pending=1)), add_more, sink_rows)


# Tables


@pytest.fixture
def table(ledger):
    """A table of words on the real PostgreSQL, and its source."""
    ledger.change("DROP TABLE IF EXISTS public.word_source")
    ledger.change("CREATE TABLE public.word_source (id bigserial PRIMARY KEY, word text)")
    yield SqlSource(
        ledger.database.plain.url.render_as_string(hide_password=False),
        "public.word_source",
        cursor="id",
        schema="id BIGINT, word STRING",
    )
    ledger.change("DROP TABLE public.word_source")


def add(ledger, *words):
    for word in words:
        ledger.change("INSERT INTO public.word_source (word) VALUES (:w)", w=word)


def position(ledger):
    return [row.position for row in ledger.rows("SELECT position FROM source_position")]


def test_rows_are_read_once_and_the_position_follows(runner, ledger, table, sink_rows):
    """Each batch takes the rows that came since the last claim; the position is where all is
    acked.
    """
    run = runner(words_of(table))
    add(ledger, "a", "b")
    run.settled(run.open("one"))
    add(ledger, "c")
    run.settled(run.open("two"))
    run.settled(run.open("three"))
    assert delivered(sink_rows) == ["a", "b", "c"]
    assert position(ledger) == ["3"]


def test_batches_that_open_at_once_take_each_row_once(runner, settings, ledger, table, sink_rows):
    """Of batches that are opened at the same time each claims a range of its own, and nothing is
    left out.
    """
    add(ledger, *(f"w{n}" for n in range(9)))
    run = runner(words_of(table, max_pending=9))
    batches = open_at_once(ledger, settings, run.job.pipeline)
    for batch in batches:
        run.settled(batch)
    while len(delivered(sink_rows)) < 9:
        run.settled(run.open(f"more {len(delivered(sink_rows))}"))
    assert delivered(sink_rows) == [f"w{n}" for n in range(9)]


def test_the_position_waits_for_the_first_unfinished_batch(runner, ledger, table):
    """A failed record in one batch holds the position before it, though later ones are done;
    quarantine lets it pass; reading never starts there.
    """
    run = runner(words_of(table, lose=["b"], max_replays=1))
    for name, words in (("one", ["a"]), ("two", ["b"]), ("three", ["c"])):
        add(ledger, *words)
        run.settled(run.open(name))
    assert position(ledger) == ["1"]
    run.settled(run.open_replay(2))
    assert position(ledger) == ["3"]
    assert ledger.row("SELECT count(*) AS n FROM quarantine").n == 1


def test_without_ackers_the_position_commits_at_once(runner, ledger, table):
    """With tracking off a settled batch is done."""
    run = runner(words_of(table, tracking=False))
    add(ledger, "a")
    run.settled(run.open("one"))
    assert position(ledger) == ["1"]


def test_an_abandoned_range_goes_to_the_next(runner, ledger, table, sink_rows):
    """The gap that an abandoned batch leaves is read first, then what came later."""
    run = runner(words_of(table))
    add(ledger, "a")
    dead = run.open("one")
    ledger.start(dead.batch_id, "words")
    ledger.age(dead.batch_id, 10_000)
    add(ledger, "b")
    second = run.open("two")
    assert ledger.settle(dead.batch_id).status is BatchStatus.ABANDONED
    run.settled(second)
    assert delivered(sink_rows) == ["b"]
    run.settled(run.open("three"))
    assert delivered(sink_rows) == ["a", "b"]
    assert position(ledger) == ["2"]


def test_a_batch_of_a_table_claims_what_has_room(runner, ledger, table, sink_rows):
    """max_pending bounds the range itself; the rest is unclaimed."""
    run = runner(words_of(table, max_pending=2))
    add(ledger, "a", "b", "c")
    run.settled(run.open("one"))
    assert ledger.row("SELECT claim_end FROM batch_source").claim_end == "int:2"
    run.settled(run.open("two"))
    assert delivered(sink_rows) == ["a", "b", "c"]


def test_rows_for_a_whole_stage_are_read_together(runner, ledger, table, sink_rows):
    """As files are."""
    add(ledger, "a", "b", "c")
    run = runner(words_of(table, whole=True, max_pending=1))
    is_never_cut(run, lambda: add(ledger, "d", "e"), sink_rows)


def test_a_row_of_a_running_transaction_is_not_passed_by(runner, ledger, table, sink_rows):
    """A row drawn first and committed last is read by the next batch."""
    run = runner(words_of(table))
    slow = ledger.database.plain.connect()
    try:
        slow.execute(sa.text("INSERT INTO public.word_source (word) VALUES ('slow')"))
        add(ledger, "fast")
        quick = partial(source_tables.safe_bound, wait_seconds=0.2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source_tables, "safe_bound", quick)
            with pytest.raises(NotReadyError, match="may still bring rows"):
                run.open("one")
        slow.commit()
        run.settled(run.open("one"))
    finally:
        slow.close()
    assert delivered(sink_rows) == ["fast", "slow"]


def test_a_failed_row_is_replayed_from_the_snapshot(runner, ledger, table, sink_rows):
    """A row that failed is replayed though the table has forgotten it."""
    run = runner(words_of(table, lose=["a"]))
    add(ledger, "a", "b")
    first = run.open("one")
    run.settled(first)
    ledger.change("DELETE FROM public.word_source")
    fixed = runner(words_of(table))
    fixed.settled(fixed.open_replay(first.batch_id))
    assert delivered(sink_rows) == ["a", "b"]


def test_a_password_is_nowhere_in_the_ledger(runner, ledger, table):
    """The ledger keeps a table's address without its password, also when a step fails."""
    secret = (
        sa.make_url(table.url).set(password="pass-phrase").render_as_string(hide_password=False)
    )
    run = runner(words_of(dataclasses.replace(table, url=secret)))
    add(ledger, "a")
    batch = run.open("one")
    ledger.change("ALTER TABLE public.word_source RENAME COLUMN word TO other")
    with pytest.raises(InputError) as failure:
        run.step(batch, "words")
    rows = ledger.rows(
        "SELECT s::text AS row FROM batch_source s UNION ALL SELECT r::text FROM step_run r",
    )
    assert len(rows) == 2
    for text in [str(failure.value), *(row.row for row in rows)]:
        assert "public.word_source" in text
        assert "pass-phrase" not in text


def test_more_equal_values_than_there_is_room_for(runner, ledger, tmp_path, sink_rows):
    """Rows of one cursor value are read together, be there room for fewer."""
    ledger.change("CREATE TABLE public.tie_source (id bigint, word text)")
    ledger.change("INSERT INTO public.tie_source VALUES (7, 'a'), (7, 'b'), (7, 'c')")
    url = ledger.database.plain.url.render_as_string(hide_password=False)
    source = SqlSource(url, "public.tie_source", cursor="id", schema="id BIGINT, word STRING")
    try:
        run = runner(words_of(source, max_pending=2))
        assert run.settled(run.open("one")).roots == 3
        assert delivered(sink_rows) == ["a", "b", "c"]
        assert position(ledger) == ["7"]
    finally:
        ledger.change("DROP TABLE public.tie_source")


# Untracked records


def test_untracked_records_pass_and_none_is_missed(runner, tmp_path, sink_rows):
    """A record that a source's predicate leaves out reaches the sink, is no root, and fails
    nothing.
    """
    write(tmp_path / "in.csv", "a", "click", "b", "click")
    pipeline = Pipeline("clicks")
    source = FileSource("in.csv", schema="word STRING", header=False)
    acked = []
    pipeline.source(
        "words",
        source,
        track="word <> 'click'",
        on_ack=lambda batch, frame: acked.extend(r.record.word for r in frame.collect()),
    )

    @pipeline.stage(reads="words", filters="lost")
    def checked(words):
        return words.where("word <> 'b'")

    pipeline.sink("out", ParquetSink("out"), reads="checked")
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == 1
    assert delivered(sink_rows) == ["a", "click", "click"]
    counts = run.ledger.summary(batch.batch_id).roots
    assert (counts.total, counts.acked, counts.failed) == (2, 1, 1)
    notify(run.job, batch.batch_id)
    assert acked == ["a"]


def test_untracked_records_are_never_pending(runner, tmp_path):
    """They take no room of ``max_pending``."""
    write(tmp_path / "in.csv", "a", "click", "click")
    pipeline = Pipeline("clicks", max_pending=2)
    source = FileSource("in.csv", schema="word STRING", header=False)
    pipeline.source("words", source, track="word <> 'click'")
    pipeline.sink("out", ParquetSink("out"), reads="words")
    run = runner(pipeline)
    run.step(run.open("one"), "words")
    write(tmp_path / "in.csv", "b")
    assert run.settled(run.open("two", *LATER)).roots == 1


def test_untracked_records_and_replays(runner, tmp_path, sink_rows):
    """A replay brings the failed records alone; a record for which the predicate is null is
    tracked; and a batch without records is one of none.
    """
    schema = "word STRING, n INT"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("word,n\na,1\nclick,0\nb,\nc,x\n")

    def clicks(lose):
        pipeline = Pipeline("clicks")
        source = FileSource("in/*.csv", schema=schema, incremental=True)
        pipeline.source("words", source, track="n > 0")

        @pipeline.stage(reads="words", filters="lost")
        def checked(words):
            return words.where(~F.col("word").isin(lose))

        pipeline.sink("out", ParquetSink("out"), reads="checked")
        return pipeline

    run = runner(clicks(["b"]))
    first = run.open("one")
    assert run.settled(first).failed == 2  # b is lost, c does not parse
    assert run.ledger.summary(first.batch_id).roots.total == 3
    assert delivered(sink_rows) == ["a", "click"]
    fixed = runner(clicks(["z"]))
    replay = fixed.open_replay(first.batch_id)
    assert fixed.settled(replay).failed == 1
    assert run.ledger.summary(replay.batch_id).roots.total == 2
    assert delivered(sink_rows) == ["a", "b", "click"]
    nothing = fixed.open("two")
    fixed.settled(nothing)
    assert run.ledger.summary(nothing.batch_id).outcome is Outcome.COMPLETE


@pytest.mark.parametrize("folded_by", ["driver", "threads", "executors", "exchange"], indirect=True)
def test_losing_untracked_records_fails_no_record(runner, tmp_path, sink_rows, folded_by):
    """Untracked records that a stage drops, fails or doubles leave the tracked ones as they are."""
    write(tmp_path / "in.csv", "a", "click", "b", "click")
    pipeline = Pipeline("clicks")
    pipeline.source(
        "words", FileSource("in.csv", schema="word STRING", header=False), track="word <> 'click'"
    )

    @pipeline.stage(reads="words", emits="one")
    def checked(words):
        clicks = words.where("word = 'click'")
        failing = clicks.selectExpr("*", "'no clicks' AS _failed")
        return (
            words.unionByName(clicks)
            .selectExpr("*", "CAST(NULL AS STRING) AS _failed")
            .unionByName(failing)
        )

    pipeline.record_stage(reads="checked", schema="word STRING")(as_it_is)
    pipeline.sink("out", ParquetSink("out"), reads="as_it_is")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 0
    assert delivered(sink_rows) == ["a", "b", *["click"] * 4]


def as_it_is(record):
    yield {"word": record["word"]}


def test_a_null_anchor_is_an_error_where_all_is_tracked(runner, tmp_path):
    """Rows that an outer join adds come from no record: the stage fails and says so."""
    write(tmp_path / "in.csv", "a")
    write(tmp_path / "vocabulary.csv", "b")
    pipeline = Pipeline("outer")
    pipeline.source("words", FileSource("in.csv", schema="word STRING", header=False))
    pipeline.reference(
        "vocabulary", FileSource("vocabulary.csv", schema="word STRING", header=False)
    )

    @pipeline.stage(reads="words")
    def joined(words, *, vocabulary):
        return words.join(vocabulary, "word", "full_outer")

    pipeline.sink("out", ParquetSink("out"), reads="joined")
    run = runner(pipeline)
    with pytest.raises(StageError, match="1 rows that come from no record"):
        run.steps(run.open())
