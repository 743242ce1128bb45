"""What to do about failed records: for each cause the command that fits it."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from ledger.batch.explain import _last_seen
from ledger.batch.remedies import Case, Cause, State, next_steps, remedies, said_status

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)
REPLAY = "ackledger replay jobs.a:pipeline --batch 7"
REPROCESS = (
    "ackledger run jobs.a:pipeline --interval-start 2013-01-01 --interval-end 2013-02-01 "
    "--param 'region=north west' --reprocess"
)


def case(cause=Cause.UNPARSED, step="src", **given):
    """A case of batch 7, whose run had a parameter."""
    fields = {"state": State.FAILED, "rereads": False, "reprocesses": True, "dag_id": "", **given}
    params = {"region": "north west"}
    return Case("jobs.a:pipeline", 7, START, END, params, cause=cause, step=step, **fields)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            case(Cause.LOST, "pages"),
            ["fix pages, then replay the records", REPLAY, "quarantine --batch 7 --step pages"],
        ),
        (
            case(Cause.LOST, "join", joins=True),
            ["fix join, or what it joins", REPLAY, "quarantine --batch 7 --step join"],
        ),
        (
            case(rereads=True),
            ["by key:", f"{REPLAY} --from-source", f"and replay: {REPLAY}", "quarantine --batch 7"],
        ),
        (
            case(rereads=True, record=9),
            [
                "the record again",
                f"{REPLAY} --record 9 --from-source",
                REPLAY,
                "quarantine 9 --reas",
            ],
        ),
        (case(), ["the whole interval again:", REPROCESS]),
        (
            case(reprocesses=False),
            ["deliver the records again, corrected", REPLAY, "ackledger quarantine --batch 7"],
        ),
        (
            case(rereads=True, dag_id="a"),
            [
                "by key:",
                REPLAY,
                """airflow dags trigger a --conf '{"replay_of": 7, "from_source": true}'""",
            ],
        ),
        (
            case(Cause.LOST, "join", state=State.KEPT_BACK, dag_id="a"),
            [
                "fix join",
                f"{REPLAY} --kept-back",
                """--conf '{"replay_of": 7, "kept_back": true}'""",
            ],
        ),
        (
            case(dag_id="a"),
            ["interval again:", "ackledger run", '"region": "north west", "reprocess": true}'],
        ),
        (
            case(Cause.REJECTED, "valid", reason="quantity not positive", rereads=True, record=9),
            [
                "valid rejected it (quantity not positive): change its rule, then replay",
                f"{REPLAY} --record 9",
                "or fix the record in the source",
                f"{REPLAY} --record 9 --from-source",
                "if it can never be right: ackledger quarantine 9",
            ],
        ),
        (
            case(Cause.REJECTED, "valid"),
            ["valid rejected them: change its rule", REPLAY, "or fix", REPROCESS],
        ),
        (
            case(Cause.REFUSED, "table", reason="out of range", others=True),
            ["table refused them (out of range): change what it takes", f"{REPLAY} --step table"],
        ),
        (case(Cause.LATE, "join"), ["no fault of the records", REPLAY]),
        (case(Cause.UNIT, "fold"), ["whose unit lacks a record since", REPLAY]),
        (
            case(Cause.LOST, "join", state=State.QUARANTINED, others=True),
            ["fix join", f"{REPLAY} --step join --quarantined", "ackledger accept 7 --reason"],
        ),
        (
            case(Cause.LOST, "join", state=State.ACCEPTED, record=9),
            ["nothing, a person gave it up", f"{REPLAY} --record 9 --accepted"],
        ),
        (
            case(Cause.LOST, "join", state=State.REPLAYING, replay_batch_id=8),
            ["wait for the replay of the records:", "ackledger status --batch 8"],
        ),
        (
            case(Cause.LOST, "join", state=State.WAITING, due_at=START),
            ["from 2013-01-01 00:00 UTC on (replay_backoff)", "ackledger quarantine --batch 7"],
        ),
    ],
)
def test_each_cause_has_its_command(given, expected):
    """By cause and state there is a sentence that fits, and the commands that do what it says."""
    found = remedies(given)
    for line, part in zip(found, expected, strict=False):
        assert part in line
    assert len(found) >= len(expected)


def test_each_cause_and_state_has_a_next_step():
    """None is left without a sentence; the first that has a command names it."""
    for cause in Cause:
        for state in State:
            steps = next_steps(case(cause, state=state, due_at=START, replay_batch_id=8))
            assert any(command is not None for _, command in steps), (cause, state)


def test_a_decision_has_a_name():
    """What a person has given up is called by that, and by whom."""
    assert said_status("quarantined", "ada") == "accepted by ada"
    assert said_status("quarantined", None) == "quarantined"


def test_a_record_that_was_looked_for_is_not_said_not_to_parse():
    """What broke at its source did not parse, or was not found there again: the reason says
    which."""
    gone = "no record of its source that parses has its key"
    sought = SimpleNamespace(step="src", source="src", reason=gone, detail=None)
    assert _last_seen(sought) == ("src", f"it could not be read: {gone}")
