"""What a run reports of its batch: outcome, exit code and advice, from counts and policy alone."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from ledger import Pipeline
from ledger.batch.advice.actions import Advice
from ledger.batch.advice.records import Case, RecordState
from ledger.batch.follow_ups import Pending
from ledger.batch.outcome.report import advise, exit_code, report
from ledger.batch.outcome.summary import Policy, RootCounts, Summary
from ledger.core.commands import ANY_TARGET
from ledger.core.states import BatchStatus, FailureCause, Outcome
from ledger.errors import DeclarationError

SINKS = Pending("publish", 2, ("2 sinks are yet to publish what is acked of it",))
COMBINES = Pending("combine", 1, ("combines are yet to publish what is acked of it",))
STATES = Pending("state", 1, ("it waits",), incomplete=False)


def summary(failed=0, quarantined=0, accepted=0, allow_failed=0.0, **fields):
    """Of a settled batch of 1,000 records: batch 7, a replay of batch 3 that took them all."""
    policy = Policy(allow_failed, failed + quarantined, 1000)
    counts = RootCounts(1000, 1000 - failed - quarantined, failed, quarantined, 0)
    values = {"status": BatchStatus.SETTLED, "held_reason": None, **fields}
    return Summary(
        batch_id=7, pipeline="p", kind="replay", roots=counts, steps=[], original_id=3,
        accepted=accepted, policy=policy, **values,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "outcome", "code"),
    [
        ({}, Outcome.COMPLETE, 0),
        ({"failed": 1}, Outcome.INCOMPLETE, 3),
        ({"failed": 1, "quarantined": 1}, Outcome.INCOMPLETE, 3),
        ({"quarantined": 2}, Outcome.QUARANTINED, 4),
        ({"quarantined": 2, "accepted": 1}, Outcome.QUARANTINED, 4),
        ({"quarantined": 2, "accepted": 2}, Outcome.COMPLETE, 0),
        ({"failed": 290, "allow_failed": 0.29}, Outcome.COMPLETE, 0),
        ({"failed": 5, "quarantined": 5, "allow_failed": 0.01}, Outcome.COMPLETE, 0),
        ({"failed": 6, "quarantined": 5, "allow_failed": 0.01}, Outcome.INCOMPLETE, 3),
        ({"quarantined": 11, "allow_failed": 0.01}, Outcome.QUARANTINED, 4),
        ({"failed": 5, "allow_failed": 0.01, "pending": (SINKS,)}, Outcome.INCOMPLETE, 3),
        ({"pending": (COMBINES,)}, Outcome.INCOMPLETE, 3),
        ({"pending": (STATES,)}, Outcome.COMPLETE, 0),
        ({"status": BatchStatus.HELD}, Outcome.INCOMPLETE, 1),
        ({"status": BatchStatus.SUPERSEDED, "quarantined": 2}, Outcome.COMPLETE, 0),
    ],
)
def test_outcomes(options, outcome, code):
    """Failed before quarantined, a person's word before the policy, a tolerated share before
    both.
    """
    result = summary(**options)
    assert (result.outcome, exit_code(result)) == (outcome, code)


def case(step, cause=FailureCause.LOST, state=RecordState.FAILED, dag_id="", records=2):
    """Records of batch 3 that failed at a step, as the ledger's own target has them."""
    interval = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    arguments = (*interval, {}, dag_id, step, cause, state, False, True)
    return Case("jobs.p:made", 3, *arguments, others=True, records=records)


def test_advice_names_the_original_and_the_pipeline():
    """Commands can be pasted: the pipeline's own target, and the original's number, also of a
    replay; each cause has its own.
    """
    cases = (case("join"), case("parse", FailureCause.LOST, RecordState.QUARANTINED, "dag"))
    batch = summary(
        failed=2, quarantined=3, accepted=1, accepted_by={"ada": 1}, target="m:p", cases=cases
    )
    advice = advise(batch, "jobs.p:made")
    assert (
        advice.because
        == "batch 7: 2 of 1,000 records failed; 2 of 1,000 records are quarantined and not"
        " accepted; "
        "1 of 1,000 records accepted by ada"
    )
    assert [action.command for action in advice.actions] == [
        "ackledger failed --records --batch 3",
        "ackledger replay jobs.p:made --batch 3 --step join",
        'ackledger quarantine --batch 3 --step join --reason "..."',
        "ackledger replay jobs.p:made --batch 3 --step parse --quarantined",
        "airflow dags trigger dag --conf"
        """ '{"replay_of": 3, "step": "parse", "quarantined": true}'""",
        'ackledger accept 3 --reason "..."',
        """airflow dags trigger ledger_accept --conf '{"batch": 3, "reason": "..."}'""",
    ]
    assert "ackledger replay m:p --batch 3 --step join" in str(advise(batch))
    unknown = str(advise(replace(batch, target=None)))
    assert f"ackledger replay {ANY_TARGET} --batch 3 --step join" in unknown
    assert advise(summary()) is None


@pytest.mark.parametrize("pending", [SINKS, COMBINES], ids=lambda work: work.follow_up)
def test_advice_for_what_is_not_published(pending):
    """The command, and the task of either form of the DAG."""
    advice = advise(summary(pending=(pending,)), "jobs.p:made")
    assert advice.because == f"batch 7: {pending.sentences[0]}"
    assert [str(action) for action in advice.actions] == [
        "Publish it: ackledger publish jobs.p:made --batch 7",
        "In Airflow: clear `settle` (or `run`, if the DAG has one task a batch) and what is"
        " downstream",
    ]


def test_what_is_tolerated_is_named():
    """A run that is green with failures says how many of how many, and how to replay them."""
    advice = advise(
        summary(failed=5, quarantined=2, allow_failed=0.01, cases=(case("join", records=5),))
    )
    assert "7 of 1,000 records of batch 3 are tolerated (allow_failed=0.01)" in advice.because
    assert ANY_TARGET in str(advice)


def test_an_undecided_batch_says_where_it_stands():
    """Of a batch that is not decided the step is named, and how to go on, not that it has to run
    again.
    """
    stands = Advice("Its step 'join' is running")
    result = summary(status=BatchStatus.OPEN, stands=stands)
    assert str(advise(result)) == f"batch 7 is open. {stands}"


def test_report():
    """Counts, where records broke and why in columns, what a state waits for, columns of nulls,
    what to type."""
    lost = SimpleNamespace(
        step="join", reason="lost", status="failed", records=1200, accepted_by=None
    )
    bad = SimpleNamespace(
        step="parse", reason="no date", status="quarantined", records=3, accepted_by="ada"
    )
    state = {"pending": (STATES,), "notes": ("no record has column n",)}
    lines = report(summary(failed=2, cases=(case("join"),), **state), [lost, bad], "m:p")
    assert lines[:7] == [
        "batch 7 of p (replay): incomplete",
        "1,000 records: 998 acked, 2 failed, 0 quarantined, 0 accepted, 0 pending",
        "step   reason   status           records",
        "join   lost     failed           1,200",
        "parse  no date  accepted by ada  3",
        "it waits",
        "no record has column n",
    ]
    assert "ackledger replay m:p --batch 3" in lines[-2]
    assert lines[-2].startswith("batch 3, 2 records at join: fix join, then replay the records: ")


@pytest.mark.parametrize("share", [-0.1, 1, 1.5])
def test_tolerate_is_a_share(share):
    """A share of failures that is none, or all of the records, is refused at the declaration."""
    with pytest.raises(DeclarationError, match="from 0 to less than 1"):
        Pipeline("p", allow_failed=share)
