"""When a batch is decided: pure, with time as an argument."""

from datetime import UTC, datetime, timedelta

import pytest

from ledger.core.states import RunState
from ledger.core.verdict import Decision, Limits, StepFacts, decide

NOW = datetime(2013, 1, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(minutes=10)
SECOND = timedelta(seconds=1)
LIMITS = Limits(TIMEOUT, NOW + TIMEOUT * 9999)


def committed(name="source", kind="source"):
    return StepFacts(name, kind, True, RunState.COMMITTED, NOW - TIMEOUT * 9, NOW - TIMEOUT * 9)


def running(lease, name="stage", kind="stage"):
    return StepFacts(name, kind, False, RunState.RUNNING, lease)


def failed(at, name="stage", kind="stage"):
    return StepFacts(name, kind, False, RunState.FAILED, at, at)


def test_all_committed_settles_at_once():
    """Once every step is committed nothing can change any more: no timeout is waited for."""
    assert decide([committed(), committed("sink", "sink")], NOW, LIMITS).action is Decision.SETTLE


def test_a_batch_that_queues_never_expires():
    """Waiting for a task that has not started is not silence, however long it takes."""
    verdict = decide([committed(), StepFacts("stage", "stage", False)], NOW + TIMEOUT * 999, LIMITS)
    assert (verdict.action, verdict.missing) == (Decision.WAIT, ("stage",))


@pytest.mark.parametrize(
    ("age", "action"),
    [
        (TIMEOUT - SECOND, Decision.WAIT),
        (TIMEOUT, Decision.EXPIRE),
        (TIMEOUT * 99, Decision.EXPIRE),
    ],
)
def test_timeout_counts_from_the_failure(age, action):
    """Never early, never never: a failed run expires its batch after just the message timeout."""
    assert decide([committed(), failed(NOW - age)], NOW, LIMITS).action is action


@pytest.mark.parametrize(
    ("age", "action"),
    [(-SECOND, Decision.WAIT), (TIMEOUT - SECOND, Decision.WAIT), (TIMEOUT, Decision.EXPIRE)],
)
def test_timeout_counts_from_the_lapsed_lease(age, action):
    """A driver that fell silent counts as dead from the end of its lease."""
    assert decide([committed(), running(NOW - age)], NOW, LIMITS).action is action


def test_a_long_stage_does_not_expire_while_its_driver_lives():
    """A renewed lease keeps the batch, although another of its steps failed long ago."""
    facts = [committed(), failed(NOW - TIMEOUT * 9), running(NOW + SECOND, "other")]
    assert decide(facts, NOW, LIMITS).action is Decision.WAIT


def test_without_an_emit_there_is_no_verdict():
    """A batch whose source never committed has no roots to judge: it is abandoned."""
    facts = [failed(NOW - TIMEOUT, "source", "source"), StepFacts("sink", "sink", False)]
    assert decide(facts, NOW, LIMITS).action is Decision.ABANDON


def test_the_latest_death_counts():
    """A step that was tried again and failed later restarts the clock."""
    facts = [committed(), failed(NOW - TIMEOUT * 9), failed(NOW - SECOND, "other")]
    assert decide(facts, NOW, LIMITS).action is Decision.WAIT


def test_a_step_that_runs_again_holds_the_verdict():
    """While a committed step runs again, nothing is decided: its new run is about to replace the
    old one.
    """
    again = StepFacts("stage", "stage", True, RunState.RUNNING, NOW + SECOND)
    assert decide([committed(), again], NOW, LIMITS).action is Decision.WAIT
    assert decide([committed(), again], NOW + TIMEOUT, LIMITS).action is Decision.SETTLE


def test_a_superseded_run_has_not_died():
    """A run superseded because its input ran again waits for its turn; its old age is no death."""
    old = StepFacts(
        "stage", "stage", False, RunState.SUPERSEDED, NOW - TIMEOUT * 9, NOW - TIMEOUT * 9
    )
    assert decide([committed(), old], NOW, LIMITS).action is Decision.WAIT


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        ([committed(), StepFacts("stage", "stage", False)], Decision.EXPIRE),
        (
            [StepFacts("source", "source", False), StepFacts("stage", "stage", False)],
            Decision.ABANDON,
        ),
        ([committed(), running(NOW + SECOND)], Decision.EXPIRE),
        ([committed(), committed("sink", "sink")], Decision.SETTLE),
    ],
    ids=["waits for a task", "never emitted", "runs still", "all committed"],
)
def test_greatest_age_is_a_hard_cap(facts, action):
    """A batch older than max_batch_age is decided, whatever waits or lives; a second earlier it
    is not.
    """
    assert decide(facts, NOW, Limits(TIMEOUT, NOW)).action is action
    if action is not Decision.SETTLE:
        assert decide(facts, NOW, Limits(TIMEOUT, NOW + SECOND)).action is Decision.WAIT
