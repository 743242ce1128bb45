"""Random pipelines, run for real, agree with plain dictionaries: which records fail, where and why,
and what every sink shows, after the batch and after the replays of what failed in it.

``ACKLEDGER_EXAMPLES=100`` runs a hundred of them.
"""

import json
import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle

import pytest

from ledger.batch import one_plans
from ledger.deltas import spans
from ledger.deltas.spans import span_of
from ledger.execution import run_steps, settle_and_follow
from ledger.store.queries.one_plans import StageHistory
from tests.support.crashing import run_open_steps
from tests.support.dying import Died, dies_at
from tests.support.random_flow import REFUSED
from tests.support.random_folds import folds_compared
from tests.support.random_oracle import NEITHER, OWN, SHARED, Oracle, outcomes
from tests.support.random_pipelines import features, plan_of
from tests.support.random_stages import CONSTRAINT, World
from tests.support.spanning import MOST_SPANS

FOLDS = ("driver", "threads", "executors", "exchange")
# Plans that together have everything that one of twelve thousand has, in few steps. And how many
# are tried instead.
NUMBERS = (
    5481, 5065, 10770, 1399, 9928, 4773, 8517, 10757, 2188, 4074, 4170, 8454, 3366, 7054, 2549,
)  # fmt: skip
EXAMPLES = int(os.environ.get("ACKLEDGER_EXAMPLES", "0"))


def cases(numbers):
    """Ways to fold and numbers of spans take turns, so that all of their pairs are met."""
    return [
        (fold, MOST_SPANS[(place + place // len(FOLDS)) % len(MOST_SPANS)], number)
        for place, (fold, number) in enumerate(zip(cycle(FOLDS), numbers, strict=False))
    ]


CASES = cases(range(EXAMPLES) if EXAMPLES else NUMBERS)


def failures(run, batch):
    """Of each record that failed in a batch, by source and number: step, reason (without the
    operation that lost it), and whose failure it is."""
    records = run.ledger.rows(
        "SELECT m.source, p.content, f.step, failure_reason(f.cause, f.step,"
        " CASE WHEN f.cause <> 'lost' THEN f.reason END) AS reason,"
        " f.own_failure, f.shared FROM failed_root f"
        " JOIN failed_message m USING (message_id) JOIN failed_payload p USING (message_id)"
        " WHERE f.batch_id = :b",
        b=batch.batch_id,
    )
    return {
        (row.source, json.loads(row.content)["id"]): (
            row.step,
            REFUSED if CONSTRAINT in row.reason else row.reason,
            OWN if row.own_failure else SHARED if row.shared else NEITHER,
        )
        for row in records
    }


def drops(run, batch):
    """How many inputs each stage of a batch acked without an output, by reason."""
    query = "SELECT step, reason, records FROM step_drops WHERE batch_id = :b"
    records = run.ledger.rows(query, b=batch.batch_id)
    return Counter({(row.step, row.reason): row.records for row in records})


def death_of(plan, folded_by, most):
    """The death that is planned. A driver that posts deltas with the commit dies in the commit, and
    one that refines in the settlement's transaction dies before that."""
    instead = {} if folded_by else {"deltas posted": "committing run"}
    if most == max(MOST_SPANS):  # each root has a row
        instead["refined"] = "before settlement"
    death = plan.death
    return death and replace(death, place=instead.get(death.place, death.place))


def as_one_plan(job, batch):
    """The steps in order that have no committed run, stages in a row as one plan."""
    run_steps(job, batch.batch_id, lambda *_: None)


RUNS = {"one_plan": as_one_plan, "carried": run_open_steps, "by_hand": run_open_steps}


class Unknown(dict):
    """The history of steps of which nothing bad is known."""

    def __contains__(self, step):
        return True

    def __getitem__(self, step):
        return StageHistory(step, multiplies=False, rows_ended=0, input_rows=1)


def driven(run, batch, death, again, run_open_steps):
    """Run a batch to its end, by a second driver if the first one dies."""
    dying = dies_at(death.place, nth=death.nth, silent=death.silent) if death else nullcontext()
    try:
        with dying:
            run_open_steps(run.job, batch)
            if again:
                run.step(batch, again)
                run_open_steps(run.job, batch)
            settle_and_follow(run.job, batch.batch_id)
            assert death is None or run_open_steps is as_one_plan, f"no driver died: {death}"
            return
    except Died:
        pass
    run_open_steps(run.job, batch)
    settle_and_follow(run.job, batch.batch_id)


def everything_in(numbers):
    """What there is to these plans, and what becomes of their records."""
    plans = [plan_of(number) for number in numbers]
    return {word for plan in plans for word in (*features(plan), *outcomes(plan))}


def test_the_plans_have_everything():
    """The plans that always run have each feature that one of many has."""
    assert everything_in(range(200)) <= everything_in(NUMBERS)


def test_a_driver_dies_once_it_has_refined():
    """In one of the plans that always run, whose roots share spans."""
    deaths = [death_of(plan_of(number), fold, most) for fold, most, number in cases(NUMBERS)]
    assert "refined" in {death.place for death in deaths if death}


# Each plan runs in all three ways if everything is tested, and else in one of them.
WAYS = [
    pytest.param(way, *case, marks=() if place % len(RUNS) == nth else pytest.mark.exhaustive)
    for place, case in enumerate(CASES)
    for nth, way in enumerate(RUNS)
]


@pytest.mark.parametrize(("way", "folded_by", "most", "number"), WAYS, indirect=["folded_by"])
def test_a_random_pipeline_agrees_with_its_oracle(
    runner, tmp_path, warehouse, monkeypatch, folded_by, most, number, way
):
    """Just the records that the oracle names fail, where and for the reason that it says, and the
    sinks show its rows, after the batch and after each replay; in the end nothing is failed. A
    replay of a whole batch leaves what a run without its quarantined records would. So it is
    whether a root has rows of its own or shares them."""
    monkeypatch.setattr(spans, "MOST_SPANS", most)
    monkeypatch.setattr(one_plans, "history_of", lambda *_: Unknown())
    plan = plan_of(number)
    world = World(plan, tmp_path, warehouse, by_hand=way == "by_hand")
    order = [step.name for step in world.pipeline(0).steps()]
    assert sorted(order) == sorted(plan.reads)
    oracle, original = Oracle(plan, order), None
    while original is None or oracle.failed:
        round_ = oracle.round
        world.repair(round_)
        run = runner(world.pipeline(round_), on_read=world.on_read(round_))
        batch = run.open() if original is None else run.open_replay(original, f"r{round_}")
        first = original is None
        original = original or batch.batch_id
        death, again = (death_of(plan, folded_by, most), plan.again) if first else (None, None)
        if way == "one_plan":  # a stage of a plan does not run again by itself
            again = None
        with folds_compared():
            driven(run, batch, death, again, RUNS[way])
        verdict = oracle.batch()
        assert failures(run, batch) == verdict.failed
        assert drops(run, batch) == verdict.drops
        for sink in plan.sinks:
            assert world.shown(sink.name) == oracle.sink(sink.name), sink
        if plan.combined:
            assert world.folder_rows("combine", "key", "n") == oracle.combine()
        if plan.carried:
            assert world.folder_rows("state", "key", "n") == oracle.state()
    records = run.ledger.rows(
        "SELECT m.source, p.content, m.status FROM failed_message m"
        " JOIN failed_payload p USING (message_id)"
    )
    assert {row.status for row in records} <= {"recovered", "quarantined"}
    assert oracle.given_up == {
        (row.source, json.loads(row.content)["id"])
        for row in records
        if row.status == "quarantined"
    }
    for row in run.ledger.rows("SELECT roots, span FROM batch_source WHERE roots > 0"):
        assert row.span == span_of(row.roots)
    # A driver that died may still write: its files are gc's.
    ended = "root_files IS NOT NULL AND state IN ('committed', 'superseded')"
    assert not run.ledger.rows(f"SELECT FROM step_run WHERE {ended}")
