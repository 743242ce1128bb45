"""Where a record broke, and why, by what the steps did with it."""

import pytest

from ledger.core.breaks import Break, BreakFinder, Hop, StepEdges, hops
from ledger.core.declared_steps import DeclaredStep
from ledger.core.states import FailureCause

CHAIN = [("source", ()), ("stage", ("source",)), ("sink", ("stage",))]
FORK = [("source", ()), ("left", ("source",)), ("right", ("source",)), ("sink", ("left", "right"))]


def finder_of(steps, **others):
    """Return the finder of a batch of these steps, each with what it reads."""
    return BreakFinder(
        hops([DeclaredStep(name, "stage", reads) for name, reads in steps]), **others
    )


def edges(finder, emitted, acked, xor=()):
    """What each step did; broken are the components whose counts differ, and those in ``xor``."""
    uneven = {
        number
        for number, of in finder.components.items()
        if sum(emitted.get(name, 0) for name in {hop.producer for hop in of})
        != sum(acked.get(name, 0) for name in {hop.consumer for hop in of})
    }
    return StepEdges(emitted, acked, uneven | set(xor))


def named(steps, emitted, acked, xor=(), **others):
    """Step and cause of the break, the producers, and how many edges were emitted and acked."""
    finder = finder_of(steps, **others)
    result = finder.first_break(edges(finder, emitted, acked, xor))
    return (result.step, result.cause, result.producers, result.emitted, result.acked)


def test_an_even_record_broke_nowhere():
    """It has no name, and no sink missed a row of it."""
    finder = finder_of(CHAIN, unproved={"sink"})
    even = edges(finder, {"source": 1, "stage": 2}, {"stage": 1, "sink": 2})
    assert finder.first_break(even) is None
    assert finder.missed_by(even) == []


@pytest.mark.parametrize(
    ("acked", "expected"),
    [
        (1, ("sink", "lost", "stage", 2, 1)),
        (3, ("sink", "doubled", "stage", 2, 3)),
    ],
)
def test_the_step_that_acked_another_number_is_named(acked, expected):
    """With how many were emitted, and how many acked."""
    result = named(CHAIN, {"source": 1, "stage": 2}, {"stage": 1, "sink": acked})
    assert result == expected


def test_equal_counts_of_other_edges():
    """Two of a record's rows are not one of them twice."""
    finder = finder_of(CHAIN)
    (last,) = [hop.component for hop in finder.hops if hop.consumer == "sink"]
    result = named(CHAIN, {"source": 1, "stage": 2}, {"stage": 1, "sink": 2}, xor=[last])
    assert result[:2] == ("sink", "swapped")


def test_of_several_breaks_the_first_is_named():
    """In the pipeline's order."""
    result = named(CHAIN, {"source": 1}, {"sink": 1})
    assert result == ("stage", "lost", "source", 1, 0)


def test_a_step_that_never_committed_is_no_fault_of_the_record():
    """What it lost by itself comes first, wherever that is."""
    late = {"uncommitted": {"stage"}}
    finder = finder_of(CHAIN, **late)
    result = finder.first_break(edges(finder, {"source": 1}, {}))
    assert result == Break("stage", FailureCause.LATE, "source", 1, 0, None, False, False, True)
    both = named(CHAIN, {"source": 1, "stage": 1}, {}, **late)
    assert both[:2] == ("sink", "lost")


def test_a_stage_that_acks_by_itself_did_not_ack():
    """What is missing there was not lost; acked too often it was, as anywhere."""
    others = {"explicit": {"stage"}}
    assert named(CHAIN, {"source": 2}, {"stage": 1}, **others)[1] == "unacked"
    assert named(CHAIN, {"source": 2}, {"stage": 3}, **others)[1] == "doubled"


def test_of_several_readers_the_wrong_one_is_named():
    """Each has to ack as many edges as were emitted for it."""
    result = named(FORK, {"source": 2}, {"left": 1})
    assert result == ("right", "lost", "source", 2, 1)
    assert named(FORK, {"source": 2}, {"right": 1}) == ("left", "lost", "source", 2, 1)


def test_of_several_wrong_readers_one_that_committed_is_named():
    """The others never had their turn; all of them are listed."""
    finder = finder_of(FORK, uncommitted={"left"})
    result = finder.first_break(edges(finder, {"source": 2}, {}))
    assert (result.step, result.cause, result.wrong_at) == ("right", "lost", "left, right")
    assert named(FORK, {"source": 2}, {})[0] == "left"


def test_readers_that_acked_the_right_number_of_other_edges():
    """Which of them is wrong is not known."""
    finder = finder_of(FORK)
    component = next(hop.component for hop in finder.hops if hop.producer == "source")
    result = named(FORK, {"source": 2}, {"left": 1, "right": 1}, xor=[component])
    assert result[0] == "left, right"


def test_several_producers_are_balanced_together():
    """Of what both emitted a row is missing."""
    ready = {"source": 2, "left": 1, "right": 1}
    result = named(FORK, ready, {"left": 1, "right": 1, "sink": 1})
    assert result == ("sink", "lost", "left, right", 2, 1)


WHOLE = [("source", ()), ("total", ("source",)), ("sink", ("total",))]


def test_a_loss_at_a_whole_stage_is_shared():
    """It may be for want of another record."""
    finder = finder_of(WHOLE, merging={"total", "sink"})
    result = finder.first_break(edges(finder, {"source": 1}, {}))
    assert (result.step, result.own_failure, result.shared) == ("total", False, True)
    assert not result.incomplete


def test_a_record_that_lost_something_before_a_whole_stage_is_incomplete():
    """That is its own failure, and comes first."""
    steps = [("source", ()), ("total", ("source",)), ("stage", ("source",))]
    finder = finder_of(steps, merging={"total"})
    result = finder.first_break(edges(finder, {"source": 2}, {"total": 1}))
    assert (result.step, result.own_failure, result.shared) == ("stage", True, False)
    result = finder.first_break(edges(finder, {"source": 2}, {}))
    assert (result.step, result.own_failure, result.incomplete) == ("stage", True, True)


def test_sinks_that_may_have_missed_a_row():
    """Those that proved nothing, where the record broke; in the order of their finder."""
    steps = [("source", ()), ("b", ("source",)), ("a", ("source",)), ("c", ("a",))]
    finder = finder_of(steps, unproved={"a", "b", "c"})
    assert finder.missed_by(edges(finder, {"source": 2, "a": 1}, {"a": 1, "c": 1})) == ["a", "b"]
    assert finder_of(steps, unproved={"c"}).missed_by(edges(finder, {"source": 2}, {})) == []


def test_hops_count_the_readers_of_each_producer():
    """A step that is read by two has two hops, each knowing of both."""
    topology = [
        DeclaredStep("source", "stage", ()),
        DeclaredStep("stage", "stage", ("source",)),
        DeclaredStep("one", "stage", ("stage",)),
        DeclaredStep("two", "stage", ("stage",)),
    ]
    assert hops(topology) == [
        Hop(1, "source", "stage", 1, 0),
        Hop(2, "stage", "one", 2, 1),
        Hop(3, "stage", "two", 2, 1),
    ]


def test_hops_that_share_a_step_are_balanced_together():
    """What several producers send to a consumer, and a producer to several, is one component."""
    topology = [
        DeclaredStep("source", "stage", ()),
        DeclaredStep("left", "stage", ("source",)),
        DeclaredStep("right", "stage", ("source",)),
        DeclaredStep("united", "stage", ("left", "right")),
        DeclaredStep("out", "stage", ("united",)),
    ]
    results = [(hop.producer, hop.consumer, hop.component) for hop in hops(topology)]
    assert results == [
        ("source", "left", 0),
        ("source", "right", 0),
        ("left", "united", 2),
        ("right", "united", 2),
        ("united", "out", 4),
    ]
