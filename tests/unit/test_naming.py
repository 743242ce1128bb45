"""Where a record broke, and why, by what the steps did with it."""

import pytest

from ledger.core.declared_steps import DeclaredStep
from ledger.core.naming import Break, Naming, StepEdges
from ledger.core.states import FailureCause
from ledger.core.verdict import hops

CHAIN = [("source", ()), ("stage", ("source",)), ("sink", ("stage",))]
FORK = [("source", ()), ("left", ("source",)), ("right", ("source",)), ("sink", ("left", "right"))]


def naming(steps, **others):
    """How records of a batch of these steps, each with what it reads, are named."""
    return Naming(hops([DeclaredStep(name, "stage", reads) for name, reads in steps]), **others)


def edges(names, emitted, acked, xor=()):
    """What each step did; broken are the components whose counts differ, and those in ``xor``."""
    uneven = {
        number
        for number, of in names.components.items()
        if sum(emitted.get(name, 0) for name in {hop.producer for hop in of})
        != sum(acked.get(name, 0) for name in {hop.consumer for hop in of})
    }
    return StepEdges(emitted, acked, uneven | set(xor))


def named(steps, emitted, acked, xor=(), **others):
    """Step and cause of the break, the producers, and how many edges were emitted and acked."""
    names = naming(steps, **others)
    result = names.name(edges(names, emitted, acked, xor))
    return (result.step, result.cause, result.producers, result.emitted, result.acked)


def test_an_even_record_broke_nowhere():
    """It has no name, and no sink missed a row of it."""
    names = naming(CHAIN, unproved={"sink"})
    even = edges(names, {"source": 1, "stage": 2}, {"stage": 1, "sink": 2})
    assert names.name(even) is None
    assert names.missed_by(even) == []


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
    names = naming(CHAIN)
    (last,) = [hop.component for hop in names.hops if hop.consumer == "sink"]
    result = named(CHAIN, {"source": 1, "stage": 2}, {"stage": 1, "sink": 2}, xor=[last])
    assert result[:2] == ("sink", "swapped")


def test_of_several_breaks_the_first_is_named():
    """In the pipeline's order."""
    result = named(CHAIN, {"source": 1}, {"sink": 1})
    assert result == ("stage", "lost", "source", 1, 0)


def test_a_step_that_never_committed_is_no_fault_of_the_record():
    """What it lost by itself comes first, wherever that is."""
    late = {"uncommitted": {"stage"}}
    names = naming(CHAIN, **late)
    result = names.name(edges(names, {"source": 1}, {}))
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
    names = naming(FORK, uncommitted={"left"})
    result = names.name(edges(names, {"source": 2}, {}))
    assert (result.step, result.cause, result.wrong_at) == ("right", "lost", "left, right")
    assert named(FORK, {"source": 2}, {})[0] == "left"


def test_readers_that_acked_the_right_number_of_other_edges():
    """Which of them is wrong is not known."""
    names = naming(FORK)
    component = next(hop.component for hop in names.hops if hop.producer == "source")
    result = named(FORK, {"source": 2}, {"left": 1, "right": 1}, xor=[component])
    assert result[0] == "left, right"


def test_several_producers_are_balanced_together():
    """Of what both emitted a row is missing."""
    ready = {"source": 2, "left": 1, "right": 1}
    result = named(FORK, ready, {"left": 1, "right": 1, "sink": 1})
    assert result == ("sink", "lost", "left, right", 2, 1)


WHOLE = [("source", ()), ("total", ("source",)), ("sink", ("total",))]


def test_what_a_whole_stage_lost_is_a_failure_of_the_unit():
    """It may be for want of another record."""
    names = naming(WHOLE, merging={"total", "sink"})
    result = names.name(edges(names, {"source": 1}, {}))
    assert (result.step, result.own_failure, result.shared) == ("total", False, True)
    assert not result.incomplete


def test_a_record_that_lost_something_before_a_whole_stage_is_incomplete():
    """That is its own failure, and comes first."""
    steps = [("source", ()), ("total", ("source",)), ("stage", ("source",))]
    names = naming(steps, merging={"total"})
    result = names.name(edges(names, {"source": 2}, {"total": 1}))
    assert (result.step, result.own_failure, result.shared) == ("stage", True, False)
    result = names.name(edges(names, {"source": 2}, {}))
    assert (result.step, result.own_failure, result.incomplete) == ("stage", True, True)


def test_sinks_that_may_have_missed_a_row():
    """Those that proved nothing, where the record broke; in the order of their names."""
    steps = [("source", ()), ("b", ("source",)), ("a", ("source",)), ("c", ("a",))]
    names = naming(steps, unproved={"a", "b", "c"})
    assert names.missed_by(edges(names, {"source": 2, "a": 1}, {"a": 1, "c": 1})) == ["a", "b"]
    assert naming(steps, unproved={"c"}).missed_by(edges(names, {"source": 2}, {})) == []
