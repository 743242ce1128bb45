"""Crashes of a state over batches: a process is killed at every arrow of its commit, and the next
one goes on.

Two batches and a replay, for a function whose state the ledger keeps and for an object that
keeps files of its own. A state names the batches that it includes, so that one that is missing,
comes twice or out of order shows in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from ledger.batch import state_runs
from ledger.core.states import Outcome
from ledger.execution import advance_states, states
from ledger.storage.manifest import check_files
from tests.support import accounts
from tests.support.accounts import FILES, FUNCTION
from tests.support.children import Children
from tests.support.state_lab import StateLab
from tests.support.stop_lab import standing

FIRST = accounts.expected((1, False))
BOTH = accounts.expected((1, False), (2, False))
ALL = accounts.expected((1, False), (2, False), (2, True))


@dataclass(frozen=True)
class Case:
    """A crash. ``form``: of the state; the others as in the crash matrix, see ``Order``."""

    form: str
    name: str
    stop: str
    place: str
    nth: int = 1
    spark: bool = True
    swept: bool = False

    @property
    def of_replay(self) -> bool:
        return self.stop.startswith("replay ")


def dry(*arguments, **options):
    """A case whose process needs no Spark: what is committed is published, and removed, without."""
    return Case(*arguments, spark=False, **options)


def in_both_forms(form):
    """The arrows at which the forms may differ."""
    return [
        Case(form, "rows written", "settled", "files written"),
        Case(form, "sink staged", "settled", "files written", nth=2),
        Case(form, "before its commit", "settled", "before state's commit", swept=True),
        Case(form, "in its commit", "settled", "inserting checkpoint"),
        Case(form, "committed", "settled", "run committed"),
        dry(form, "published", "committed", "published"),
        dry(form, "being noted as published", "committed", "recording publication"),
        dry(form, "being noted as acked", "replay published", "recording ack"),
        Case(form, "replay written", "replay settled", "files written", swept=True),
        Case(form, "replay committed", "replay settled", "run committed"),
    ]


CASES = [
    Case(FUNCTION, "opened", "settled", "run opened"),
    Case(FUNCTION, "rows taken", "settled", "batch read", swept=True),
    Case(FUNCTION, "before its rows are written", "settled", "before state's rows"),
    *in_both_forms(FUNCTION),
    Case(FUNCTION, "sink decided in its commit", "settled", "deciding publication"),
    Case(FUNCTION, "committed, swept", "settled", "run committed", swept=True),
    dry(FUNCTION, "before it is published", "committed", "publishing"),
    dry(FUNCTION, "published, swept", "committed", "published", swept=True),
    dry(FUNCTION, "before its ack", "published", "before acks"),
    dry(FUNCTION, "before old files go", "published", "before state's removal"),
    dry(FUNCTION, "old files gone and not noted", "published", "state removed"),
    *in_both_forms(FILES),
    Case(FILES, "batch finished", "settled", "batch finished"),
    Case(FILES, "before its page is written", "settled", "before snapshot"),
    Case(FILES, "page written", "settled", "snapshot taken", swept=True),
    dry(FILES, "before old pages go", "replay published", "before acks"),
    dry(FILES, "old pages gone", "replay published", "ack returned"),
    dry(FILES, "old pages gone and not noted", "replay published", "ack returned", nth=2),
]


# The state's own commit and what follows it; ``make test-all`` has every kill.
OFTEN = frozenset(("function-in-its-commit", "function-being-noted-as-acked"))


@pytest.fixture(scope="module")
def lab(request, spark, server_home) -> Iterator[StateLab]:
    """The life of a state in one of its forms, kept at every stop."""
    with standing(partial(StateLab, form=request.param), spark, server_home) as crash_lab:
        yield crash_lab


@pytest.mark.parametrize(
    ("lab", "case"),
    [
        pytest.param(case.form, case, id=f"{case.form}-{case.name.replace(' ', '-')}")
        for case in CASES
    ],
    indirect=["lab"],
    scope="module",
)
def test_a_killed_process_is_gone_on_from(lab, children, case):
    """Killed there, readers see one whole state and it can be gone on from; gone on, every batch
    is in it once.
    """
    lab.go_to(case.stop)
    before = lab.shown()
    _kill(lab, children, case)
    assert lab.shown() in (before, ALL if case.of_replay else BOTH)
    _check_kept(lab)
    if case.swept:
        _sweep(lab)
    _retry(lab)
    if not case.of_replay:
        assert lab.shown() == BOTH
        _check_done(lab, [1, 2])
        assert lab.replay() == 3
    assert lab.shown() == ALL
    _check_done(lab, [1, 2, 3])
    assert lab.entered() == [6, 5, 1]
    assert {lab.ledger.summary(number).outcome for number in (2, 3)} == {Outcome.COMPLETE}


@pytest.mark.parametrize("lab", [FUNCTION, FILES], indirect=True, scope="module")
def test_a_retry_that_comes_before_the_lease_has_lapsed_waits(lab, children, monkeypatch):
    """A killed driver looks like a slow one, so it is left alone as long as it may
    live.
    """
    lab.go_to("settled")
    _kill(lab, children, Case(lab.form, "", "settled", "files written"))
    with monkeypatch.context() as patched:
        patched.setattr(states, "STATE_WAIT_SECONDS", 0.0)
        assert advance_states(lab.job(), 2) == []
    assert lab.shown() == FIRST
    _retry(lab)
    assert lab.shown() == BOTH
    _check_done(lab, [1, 2])


def test_nothing_outlives_the_killed(children):
    """A JVM ends when its driver was killed; no test had to kill one."""
    assert children.left_by_abandoned == []


def _kill(lab: StateLab, children: Children, case: Case) -> None:
    lab.leave()
    child = children.take(spark=case.spark)
    try:
        child.carry_out(lab.order(case.place, nth=case.nth, state=case.form))
        lab.wait_for_rollback()
    finally:
        children.end(child)


def _sweep(lab: StateLab) -> None:
    """The sweeper asks for a run that brings the state on, or shows it."""
    newest = lab.ledger.row("SELECT max(batch_id) AS id FROM batch").id
    swept = lab.ledger.sweep(now=_later(lab))
    assert swept.errors == {}
    assert [batch.batch_id for batch in swept.overdue] == [newest]


def _retry(lab: StateLab) -> None:
    """The state task again, once the killed one is known to be dead."""
    for row in lab.ledger.rows("SELECT batch_id FROM batch"):
        lab.ledger.age(row.batch_id, 120)
    advance_states(lab.job())


def _check_kept(lab: StateLab) -> None:
    """What the next attempt begins with is there."""
    current = _checkpoints(lab)[-1]
    if lab.form == FUNCTION:
        manifest = lab.job().manifest(current.step_run_id)
        assert manifest.rows > 0
        check_files(manifest)
    else:
        assert (lab.folder / "book" / current.snapshot["page"]).exists()


def _check_done(lab: StateLab, batches: list[int]) -> None:
    """Each batch is in the state once and in order; those of which nothing is failed are acked,
    and what may go is gone: a function's older states once a later one is published, an object's
    own by its acks.
    """
    checkpoints = _checkpoints(lab)
    assert [row.batch_id for row in checkpoints] == batches
    acked = (
        batches if 3 in batches else [1]
    )  # of the second a record is failed until its replay, the third
    assert [row.batch_id for row in checkpoints if row.acked_at is not None] == acked
    if lab.form == FUNCTION:
        folders = lab.folder.glob("storage/accounts/balance/batch=*/run=*")
        runs = {int(path.name.removeprefix("run=")) for path in folders}
        assert runs & {row.step_run_id for row in checkpoints} == {checkpoints[-1].step_run_id}
        there = [row.files_removed_at is None for row in checkpoints]
        assert there == [False] * (len(checkpoints) - 1) + [True]
    else:
        runs = [number for number in batches if number >= acked[-1]]
        assert accounts.Book(lab.folder / "book").numbers == runs
    _check_kept(lab)
    assert not state_runs.is_due(lab.ledger.database, lab.job().pipeline)
    assert not lab.ledger.rows("SELECT * FROM step_run WHERE state = 'running'")
    states = lab.ledger.rows(
        "SELECT state FROM sink_publication WHERE sink = 'balances' ORDER BY 1"
    )
    assert [row.state for row in states] == ["published"] + ["replaced"] * (len(batches) - 1)
    swept = lab.ledger.sweep(now=_later(lab))
    assert (swept.settlements, swept.overdue, swept.errors) == ((), (), {})


def _checkpoints(lab: StateLab) -> list:
    return lab.ledger.rows(
        "SELECT c.*, r.files_removed_at FROM checkpoint c JOIN step_run r USING (step_run_id)"
        " ORDER BY step_run_id",
    )


def _later(lab: StateLab):
    return lab.ledger.row("SELECT now() + interval '1 hour' AS later").later
