"""Every contradiction of a graph of steps is refused in its own words."""

import pytest

from ledger import Bloom, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger.core.states import Guarantee
from ledger.errors import DeclarationError
from ledger.pipeline.contradictions import OF_EXACTLY_ONCE, OF_GRAPH, OF_STEP

FILES = FileSource("in.csv", schema="n INT")


class Declared:
    """A pipeline in a line a step: each names itself, and what it reads."""

    def __init__(self, **options):
        self.pipeline = Pipeline("p", **options)

    def source(self, name, source=FILES, **options):
        self.pipeline.source(name, source, **options)
        return self

    def _function(self, name, inputs):
        if inputs == 1:

            def rows(first):
                return first
        else:

            def rows(first, other):
                return first

        rows.__name__ = name
        return rows

    def stage(self, name, *reads, **options):
        self.pipeline.stage(reads=reads, **options)(self._function(name, len(reads)))
        return self

    def records(self, name, reads):
        def each(record):
            yield record

        each.__name__ = name
        self.pipeline.record_stage(reads=reads, schema="n INT")(each)
        return self

    def combine(self, name, reads, **options):
        self.pipeline.combine(reads=reads, **options)(self._function(name, 1))
        return self

    def stateful(self, name, reads):
        self.pipeline.stateful_stage(reads=reads)(self._function(name, 2))
        return self

    def sink(self, name, reads, sink=None, **options):
        self.pipeline.sink(name, sink or ParquetSink(name, **options), reads=reads)
        return self


def numbers(**options):
    """source a"""
    return Declared(**options).source("a")


def summed(**options):
    """source a -> untracked u"""
    return numbers(**options).stage("u", "a", acks="untracked")


def joined(**options):
    """source a -> whole w"""
    return numbers(**options).stage("w", "a", anchors="merged_by_hand")


INCREMENTAL = FileSource("in/*.csv", schema="n INT", incremental=True)
INTERVALS = PostgresSink("postgresql://", "t", mode="replace_interval")

REFUSED = {
    "nothing reads": numbers().stage("b", "a").sink("out", "a"),
    "all that it reads has to be": summed().combine("c", "u").sink("out", "c"),
    "and replaces what it had": numbers().combine("c", "a").sink("out", "c", dedup="exact"),
    "recognizes duplicates": summed().sink("out", "u", dedup="exact"),
    "each batch has one place": numbers()
    .sink("x", "a", ParquetSink("o"))
    .sink("y", "a", ParquetSink("o/")),
    "compares rows with records": joined().stage("b", "w", emits="one").sink("out", "b"),
    "no interval of their own to": Declared().source("a", INCREMENTAL).sink("out", "a", INTERVALS),
    "could not read again: leave out track=": Declared()
    .source("a", track="n > 0")
    .stage("w", "a", anchors="merged_by_hand")
    .sink("out", "w"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_contradiction_is_refused(words):
    """A pipeline that has it is no pipeline, by a message in these words."""
    with pytest.raises(DeclarationError, match=words):
        REFUSED[words].pipeline.steps()


@pytest.mark.parametrize(
    "declared",
    [
        summed().stage("b", "a", "u").sink("out", "b"),
        summed().records("b", "u").sink("out", "b"),
        summed().stateful("b", "u").sink("out", "b"),
    ],
    ids=["beside tracked rows", "by record", "a state"],
)
def test_what_needs_tracked_rows(declared):
    """It is refused where they are not tracked any more."""
    with pytest.raises(DeclarationError, match="reads 'u', which is not tracked any more, and"):
        declared.pipeline.steps()


@pytest.mark.parametrize("reads", ["w", "b"])
def test_a_replay_of_a_whole_batch_replaces_rows(reads):
    """A sink after a whole stage, or beside one, compares none."""
    declared = joined().stage("b", "a").sink("x", "w").sink("y", "b")
    declared.sink("out", reads, dedup="exact")
    with pytest.raises(DeclarationError, match="'out' of pipeline 'p' gets all rows of a combine"):
        declared.pipeline.steps()


def test_a_state_includes_a_whole_batch_once():
    """Where a replay takes the whole batch, a state goes with publish="complete" alone."""
    for publish in ("settled", "complete"):
        declared = joined(publish=publish).stateful("s", "w").sink("out", "s")
        if publish == "complete":
            assert declared.pipeline.steps()
            continue
        with pytest.raises(DeclarationError, match=r"state 's' .* declare .* publish='complete'"):
            declared.pipeline.steps()


STEPS = {
    "fails a record by its rows": lambda: numbers().stage("b", "a", acks="untracked", emits="one"),
}


@pytest.mark.parametrize("words", STEPS)
def test_a_step_that_contradicts_itself(words):
    """It is refused in the line that declares it."""
    with pytest.raises(DeclarationError, match=words):
        STEPS[words]()


def test_every_contradiction_is_tested():
    """Each row of the tables has its words here."""
    for table, tested in ((OF_GRAPH, REFUSED), (OF_STEP, STEPS)):
        for contradiction, words in zip(table, tested, strict=True):
            assert words in contradiction.message


@pytest.mark.parametrize(
    ("guarantee", "declared", "contradictions", "words"),
    [
        ("exactly_once", summed().sink("out", "u"), OF_EXACTLY_ONCE, "could not be withheld"),
    ],
)
def test_a_guarantee_that_cannot_be_given(guarantee, declared, contradictions, words):
    """What contradicts one guarantee is refused, and goes with the other."""
    assert [words in each.message for each in contradictions] == [True]
    for each in Guarantee:
        if each == guarantee:
            with pytest.raises(DeclarationError, match=words):
                declared.pipeline.check_guarantee(each)
        else:
            declared.pipeline.check_guarantee(each)


def test_what_looks_alike_is_taken():
    """A key recognizes duplicates where no record is known; two places are two."""
    declared = summed().sink("out", "u", dedup=Bloom(key=("n",), capacity=9)).sink("more", "u")
    assert [step.name for step in declared.pipeline.steps()] == ["a", "u", "out", "more"]
