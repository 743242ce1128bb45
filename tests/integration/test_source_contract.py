"""What every kind of source keeps to: all records once, none dropped, nothing claimed twice."""

import pytest

from ledger import ParquetSink, Pipeline
from ledger.batch.opening import open_batch
from ledger.batch.upkeep.checks import before_run
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus
from ledger.errors import DeclarationError, InputError
from ledger.sources.base import Source, SourceReader
from ledger.sources.registry import register, source_of
from tests.support.places import ROOT
from tests.support.runner import END, START
from tests.support.source_kinds import KINDS, SCHEMA

INTERVAL = Interval(START, END)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request, tmp_path):
    """A source of each kind, empty."""
    return request.param(tmp_path)


def numbers_of(source, lose=()):
    """source -> checked, which fails the numbers that are in ``lose`` when it runs -> a folder."""
    pipeline = Pipeline("numbers", message_timeout="10s")
    pipeline.source("numbers", source)

    @pipeline.stage(reads="numbers")
    def checked(numbers):
        bad = " OR ".join(f"n = {number}" for number in lose) or "false"
        return numbers.selectExpr("*", f"CASE WHEN {bad} THEN 'bad' END AS _failed")

    pipeline.sink("out", ParquetSink("out"), reads="checked")
    return pipeline


def delivered(tmp_path, sink_rows):
    return sink_rows("out", "id", "n") if (tmp_path / "out").exists() else []


def test_all_records_are_read_once(kind, runner, tmp_path, sink_rows):
    """Whatever files or rows they came in, each record is one root and one row."""
    records = [(number, 10 * number) for number in range(7)]
    kind.add(*records[:4])
    kind.add(*records[4:])
    run = runner(numbers_of(kind.declared()))
    settlement = run.settled(run.open())
    assert (settlement.status, settlement.roots, settlement.failed) == (BatchStatus.SETTLED, 7, 0)
    assert delivered(tmp_path, sink_rows) == records


def test_an_empty_source_is_a_batch_without_records(kind, runner, tmp_path, sink_rows):
    """Where nothing is, nothing is read, and that is no failure."""
    kind.add()
    run = runner(numbers_of(kind.declared()))
    settlement = run.settled(run.open())
    assert (settlement.status, settlement.roots) == (BatchStatus.SETTLED, 0)
    assert delivered(tmp_path, sink_rows) == []


def test_a_malformed_record_fails_by_name(kind, runner, ledger, tmp_path, sink_rows):
    """A record that does not fit fails with column, expected and found; the others go on."""
    kind.add((1, 10), (2, kind.spoilt), (3, 30))
    run = runner(numbers_of(kind.declared()))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (3, 1)
    failed = ledger.row("SELECT step, reason FROM failed_root")
    assert failed.step == "numbers"
    assert kind.reason in failed.reason
    assert delivered(tmp_path, sink_rows) == [(1, 10), (3, 30)]


def test_a_replay_reads_the_same(kind, runner, ledger, tmp_path, sink_rows):
    """A replay takes records as they were read, though the source has forgotten them; a malformed
    one is malformed again."""
    lose = [20]
    kind.add((1, 10), (2, 20), (3, kind.spoilt))
    run = runner(numbers_of(kind.declared(), lose))
    original = run.open()
    assert run.settled(original).failed == 2
    kind.clear()
    lose.clear()
    replayed = run.settled(run.open_replay(original.batch_id))
    assert (replayed.roots, replayed.failed) == (2, 1)
    reasons = ledger.rows("SELECT reason FROM failed_root WHERE step = 'numbers'")
    assert len(reasons) == 2
    assert all(kind.reason in row.reason for row in reasons)
    assert delivered(tmp_path, sink_rows) == [(1, 10), (2, 20)]


def test_two_batches_read_nothing_twice(kind, runner, tmp_path, sink_rows):
    """The next batch reads what came since; of an interval there is no next batch."""
    records = [(number, number) for number in range(6)]
    kind.add(*records[:3])
    run = runner(numbers_of(kind.declared()))
    first = run.open("one")
    if not kind.incremental:
        with pytest.raises(InputError, match="belongs to batch 1"):
            run.open("two")
        return
    assert run.settled(first).roots == 3
    kind.add(*records[3:])
    second, third = run.open("two"), run.open("three")
    assert [run.settled(batch).roots for batch in (second, third)] == [3, 0]
    assert delivered(tmp_path, sink_rows) == records


def test_two_batches_claim_nothing_twice(kind, ledger, settings):
    """What a batch claims when it opens no other batch claims, whether it has run yet or not."""
    kind.add((1, 10), (2, 20))
    pipeline = numbers_of(kind.declared())
    first = open_batch(ledger.database, settings, pipeline, RunKey("", "one"), INTERVAL)
    if not kind.incremental:
        with pytest.raises(InputError, match="belongs to batch 1"):
            open_batch(ledger.database, settings, pipeline, RunKey("", "two"), INTERVAL)
        return
    second = open_batch(ledger.database, settings, pipeline, RunKey("", "two"), INTERVAL)
    kind.add((3, 30))
    third = open_batch(ledger.database, settings, pipeline, RunKey("", "three"), INTERVAL)
    claimed = {batch.batch_id: _claimed(ledger, batch) for batch in (first, second, third)}
    assert [len(claims) for claims in claimed.values()] == [1, 0, 1]
    assert len(set().union(*claimed.values())) == 2


def _claimed(ledger, batch):
    """The files and the range of offsets that a batch has claimed."""
    values = {"id": batch.batch_id}
    files = ledger.rows("SELECT path FROM claimed_file WHERE batch_id = :id", **values)
    ranges = ledger.rows(
        "SELECT claim_start::text, claim_end::text FROM batch_source "
        "WHERE batch_id = :id AND claim_end IS NOT NULL",
        **values,
    )
    return {tuple(row) for row in (*files, *ranges)}


def test_what_does_not_fit_is_refused_before_a_batch_opens(kind, ledger, settings):
    """The declaration, or the look before a run, says what is wrong; no batch is there then."""
    kind.add((1, 10))
    with pytest.raises((DeclarationError, InputError), match=kind.refused):
        before_run(
            ledger.database,
            settings,
            numbers_of(kind.misfit()),
            RunKey("", "run"),
            INTERVAL,
            java=False,
        )
    assert ledger.row("SELECT count(*) AS batches FROM batch").batches == 0


def test_what_fits_is_reported(kind, settings):
    """The look before a run says what it found, also where the interval is not known."""
    kind.add((1, 10))
    source = source_of("source 'numbers'", kind.declared())
    for interval in (INTERVAL, None):
        assert source.check(settings, "numbers", interval)


def test_a_class_that_is_not_registered_is_no_source():
    """A pipeline takes objects of registered classes alone, and says how one is registered."""

    class Stranger(Source):
        schema = SCHEMA

    with pytest.raises(DeclarationError, match=r"found .*Stranger.*registry\.register"):
        numbers_of(Stranger())


def test_a_kind_inherits_what_most_kinds_do_not_need(settings):
    """A kind by interval is five members; the rest has values that mean nothing special."""

    class Plain(Source):
        schema, place = SCHEMA, "somewhere"

    class PlainReader(SourceReader):
        pass

    register(Plain, lambda source: source)
    pipeline = numbers_of(Plain())
    (step,) = pipeline.sources()
    assert step.source.path(settings, INTERVAL) == "somewhere"
    source = step.source
    assert (source.incremental, source.commits, source.layout) == (False, False, {})
    assert source.not_reread is None
    reader = PlainReader()
    assert reader.formats == {}
    assert str(reader.failure(ValueError("ledger.errors.InputError: gone"))) == "gone"
    assert reader.failure(ValueError("other")) is None


@pytest.mark.parametrize("name", ["arrow_source", "topic_source"])
def test_the_documented_kind_is_the_one_that_is_tested(name):
    """docs/extending.md shows these modules of tests/support as they are."""
    page = (ROOT / "docs" / "extending.md").read_text()
    module = (ROOT / "tests" / "support" / f"{name}.py").read_text()
    assert module.partition('"""\n\n')[2] in page
