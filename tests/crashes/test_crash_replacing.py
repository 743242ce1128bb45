"""Crashes where rows replace others: a reprocess, and a sink at least once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from ledger.core.states import Outcome
from tests.support import orders
from tests.support.children import Children
from tests.support.crash_lab import ORIGINAL, REPROCESS, Lab
from tests.support.crashing import BATCH, STAGE, opened, run_whole
from tests.support.stop_lab import standing

FIRST, ALL = orders.expected(fixed=False), orders.expected(fixed=True)
NOTHING: orders.Rows = Counter()
ONCE_OR_MORE = orders.Variant(guarantee="at_least_once", dedup="exact")
FIXED = orders.Variant(fixed=True)
BEFORE = {"lake": "priced", "report": "lake", "table": "report"}


# One kill of these; ``make test-all`` has every one.
OFTEN = frozenset(("table-shown-stage-exactly",))


@pytest.fixture(scope="module")
def a_lab(request, spark, server_home) -> Iterator[Lab]:
    """The batch's life under one of the guarantees, kept at every stop."""
    with standing(partial(Lab, base=request.param), spark, server_home) as crash_lab:
        yield crash_lab


exactly_once = pytest.mark.parametrize(
    "a_lab", [orders.Variant()], indirect=True, ids=["exactly"], scope="module"
)
forms = pytest.mark.parametrize("form", [STAGE, BATCH])
at_least_once = pytest.mark.parametrize(
    "a_lab", [ONCE_OR_MORE], indirect=True, ids=["at-least"], scope="module"
)


@exactly_once
@forms
@pytest.mark.parametrize(
    ("place", "of"),
    [
        ("folder hidden", ""),
        ("folder renamed", ""),
        ("published", "lake"),
        ("recording replacement", "lake"),
        ("published", "report"),
        ("published", "table"),
    ],
    ids=[
        "old-hidden",
        "new-renamed",
        "lake-shown",
        "lake-being-noted",
        "report-shown",
        "table-shown",
    ],
)
def test_a_reprocess_that_dies_while_it_publishes(a_lab, children, place, of, form):
    """The new rows stand in the place of the old ones, or a reader of folders briefly sees neither;
    never both.
    """
    lab = a_lab
    lab.go_to(REPROCESS)
    _kill(lab, children, place, form=form, of=of, spark=False, reprocess=True, variant=FIXED)
    for sink in orders.SINKS:
        seen = (FIRST, ALL, NOTHING) if sink == "lake" else (FIRST, ALL)
        assert lab.shown(sink) in seen, sink
    batch = _retry(lab, form, FIXED, reprocess=True)
    assert all(lab.shown(sink) == ALL for sink in orders.SINKS)
    _retry(lab, form, FIXED, replay_of=batch)
    assert all(lab.shown(sink) == ALL for sink in orders.SINKS)
    assert lab.shown("daily") == orders.totals(ALL)
    assert lab.ledger.summary(batch).outcome is not Outcome.INCOMPLETE
    states = lab.ledger.rows("SELECT state FROM sink_publication WHERE batch_id = 1")
    assert [row.state for row in states] == ["replaced"] * 3


@at_least_once
@forms
@pytest.mark.parametrize("place", ["publishing", "published"], ids=["before", "after"])
@pytest.mark.parametrize("sink", orders.SINKS)
def test_at_least_once_a_sink_that_dies_while_it_publishes(a_lab, children, sink, place, form):
    """Run again, what the dead run published is replaced; with dedup="exact" the replay brings no
    row twice.
    """
    lab = a_lab
    lab.go_to(BEFORE[sink])
    _kill(lab, children, place, form=form, of=sink, variant=lab.base)
    _retry(lab, form, lab.base)
    _replay(lab, form)
    for name in orders.SINKS:
        assert lab.shown(name) == ALL, name


@at_least_once
@forms
@pytest.mark.parametrize("sink", orders.SINKS)
def test_at_least_once_a_sink_that_died_and_was_not_run_again(a_lab, children, sink, form):
    """Swept at its greatest age instead, the sinks that have not run fail every record, and all are
    replayed: each row is there at least once, and in the sink that had published once.
    """
    lab = a_lab
    lab.go_to(BEFORE[sink])
    _kill(lab, children, "published", form=form, of=sink, variant=lab.base)
    aged = "SELECT now() + max_batch_age AS later FROM pipeline"
    (settled,) = lab.ledger.sweep(now=lab.ledger.row(aged).later).settlements
    gone = orders.UNREADABLE | orders.HOMELESS | orders.BROKEN
    assert settled.failed == (len(gone) if sink == orders.SINKS[-1] else orders.COUNT)
    _retry(lab, form, lab.base)
    _replay(lab, form)
    for name in orders.SINKS:
        assert set(lab.shown(name)) == set(ALL), name
    assert lab.shown(sink) == ALL


def test_nothing_outlives_the_killed(children):
    """A JVM ends when its driver was killed; no test had to kill one."""
    assert children.left_by_abandoned == []


def _kill(lab: Lab, children: Children, place: str, *, spark: bool = True, **more: object) -> None:
    lab.leave()
    child = children.take(spark=spark)
    try:
        child.carry_out(lab.order(place, **more))
        lab.wait_for_rollback()
    finally:
        children.end(child)


def _retry(lab: Lab, form: str, variant: orders.Variant, **which: object) -> int:
    """The same run again, in this process; its batch."""
    lab.leave()
    job = lab.job(variant)
    batch = opened(job, **which)
    run_whole(job, batch, form)
    return batch.batch_id


def _replay(lab: Lab, form: str) -> None:
    """What failed again, fixed, until nothing is failed."""
    orders.write(lab.folder, fixed=True)
    _retry(lab, form, replace(lab.base, fixed=True), replay_of=ORIGINAL)
    summary = lab.ledger.summary(ORIGINAL)
    counts = (summary.roots.acked, summary.roots.quarantined)
    assert (counts, summary.outcome) == ((197, 3), Outcome.QUARANTINED)
