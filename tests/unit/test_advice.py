"""What to do next: for each state and cause the sentence and the command that fit it."""

import ast
import re
from datetime import UTC, datetime
from itertools import product
from types import SimpleNamespace

import pytest

from ledger.batch.advice import batches as advice
from ledger.batch.advice.actions import lines
from ledger.batch.advice.records import (
    NOTHING_LEFT,
    Case,
    RecordState,
    by_cause,
    of_records,
    status_in_words,
)
from ledger.batch.advice.sinks import SinkState, of_sink, of_sinks, state_of
from ledger.batch.records.explain import _last_seen
from ledger.core.run_request import REPROCESS, Interval
from ledger.core.states import BatchKind, FailureCause, HoldCause, Need, Obstacle, PublishPolicy
from ledger.store.queries.sinks import SinkRows
from tests.support.places import ROOT
from tests.support.typing_commands import batch, require_typed

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)
REPLAY = "ackledger replay jobs.a:pipeline --batch 7"
REPROCESSED = (
    "ackledger run jobs.a:pipeline --from 2013-01-01 --to 2013-02-01 "
    "--param 'region=north west' --reprocess"
)


def case(cause=FailureCause.UNPARSED, step="src", **values):
    """A case of batch 7, whose run had a parameter."""
    fields = {
        "state": RecordState.FAILED,
        "rereads": False,
        "reprocesses": True,
        "dag_id": "",
        **values,
    }
    params = {"region": "north west"}
    return Case("jobs.a:pipeline", 7, START, END, params, cause=cause, step=step, **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            case(FailureCause.LOST, "pages"),
            ["fix pages, then replay the records", REPLAY, "quarantine --batch 7 --step pages"],
        ),
        (
            case(FailureCause.LOST, "join", joins=True),
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
        (case(), ["the whole interval again:", REPROCESSED]),
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
            case(FailureCause.LOST, "join", state=RecordState.GIVEN_UP, whole=True, dag_id="a"),
            [
                "no replay is left of the records: to go on without them, replay the batch, with",
                REPLAY,
                """--conf '{"replay_of": 7}'""",
            ],
        ),
        (
            case(FailureCause.LOST, "join", whole=True),
            ["fix join, then replay the records, with the whole batch", REPLAY],
        ),
        (
            case(dag_id="a"),
            ["interval again:", "ackledger run", '"region": "north west", "reprocess": true}'],
        ),
        (
            case(
                FailureCause.REJECTED,
                "valid",
                reason="quantity\nnot positive",
                rereads=True,
                record=9,
            ),
            [
                "valid rejected it (quantity not positive): change its rule, then replay",
                f"{REPLAY} --record 9",
                "or fix the record in the source",
                f"{REPLAY} --record 9 --from-source",
                "if it can never be right: ackledger quarantine 9",
            ],
        ),
        (
            case(FailureCause.REJECTED, "valid"),
            ["valid rejected them: change its rule", REPLAY, "or fix", REPROCESSED],
        ),
        (
            case(FailureCause.REFUSED, "table", reason="out of range", others=True),
            ["table refused them (out of range): change what it takes", f"{REPLAY} --step table"],
        ),
        (case(FailureCause.LATE, "join"), ["no fault of the records", REPLAY]),
        (
            case(FailureCause.LOST, "join", state=RecordState.QUARANTINED, others=True),
            ["fix join", f"{REPLAY} --step join --quarantined", "ackledger accept 7 --reason"],
        ),
        (
            case(FailureCause.LOST, "join", state=RecordState.ACCEPTED, record=9),
            ["nothing, a person gave it up", f"{REPLAY} --record 9 --accepted"],
        ),
        (
            case(FailureCause.LOST, "join", state=RecordState.REPLAYING, replay_batch_id=8),
            ["wait for the replay of the records:", "ackledger status --batch 8"],
        ),
        (
            case(FailureCause.LOST, "join", state=RecordState.WAITING, due_at=START),
            ["from 2013-01-01 00:00 UTC on (replay_backoff)", "ackledger quarantine --batch 7"],
        ),
    ],
)
def test_each_cause_has_its_command(fields, expected):
    """By cause and state there is a sentence that fits, and the commands that do what it says."""
    result = lines(of_records(fields))
    for line, part in zip(result, expected, strict=False):
        assert part in line
    assert len(result) >= len(expected)


RECORDS = {
    "dag_id": ["", "a"],
    "rereads": [False, True],
    "reprocesses": [False, True],
    "record": [None, 9],
    "expired_at": [None, END],
    "others": [False, True],
}


@pytest.mark.parametrize("state", RecordState)
@pytest.mark.parametrize("cause", FailureCause)
def test_each_state_and_cause_of_records_has_a_sentence_and_a_command(cause, state):
    """Each has a sentence, whatever its source and its batch are like, and each command can be
    typed; records without pending work have no command.
    """
    for values in product(*RECORDS.values()):
        fields = dict(zip(RECORDS, values, strict=True))
        records = case(cause, "a step", state=state, due_at=START, replay_batch_id=8, **fields)
        actions = of_records(records)
        assert all(action.what for action in actions)
        commands = [action.command for action in actions if action.command is not None]
        assert (commands == []) is (state in NOTHING_LEFT or is_given_up(records))
        for command in commands:
            require_typed(command)


def is_given_up(records):
    """Whether a person accepted records whose source is read once, and whose files are gone."""
    is_gone = records.expired_at is not None and not (records.rereads or records.reprocesses)
    return records.state is RecordState.ACCEPTED and is_gone


@pytest.mark.parametrize("standing", advice.Standing)
@pytest.mark.parametrize("kind", BatchKind)
@pytest.mark.parametrize("dag_id", ["", "a"])
def test_each_standing_of_a_batch_has_a_sentence_and_a_command(standing, kind, dag_id):
    """However far a batch is: nothing is to be typed only while its step runs. A source that never
    comes is no reason to wait forever.
    """
    owner = batch(kind=kind, dag_id=dag_id)
    for step in ("src", "join", "total"):
        result = advice.of_standing(owner, "jobs.a:pipeline", standing, step, "no such\ncolumn.")
        assert "\n" not in result.because
        commands = [action.command for action in result.actions if action.command is not None]
        assert (commands == []) is (standing is advice.Standing.STEP_RUNS)
        for command in commands:
            require_typed(command)
        waits = (
            standing in (advice.Standing.STEP_FAILED, advice.Standing.INTERRUPTED) and step == "src"
        )
        assert ("message_timeout" in str(result)) is waits


@pytest.mark.parametrize("publish", PublishPolicy)
@pytest.mark.parametrize("dag_id", ["", "a"])
@pytest.mark.parametrize("cause", HoldCause)
def test_each_hold_has_a_sentence_and_a_command(publish, dag_id, cause):
    """A batch on hold runs again; only one with too many failures is released."""
    owner = batch(publish=publish, dag_id=dag_id, held_for=cause, held_reason="3 of 10 failed")
    result = advice.of_hold(owner, "jobs.a:pipeline")
    assert result.because == "3 of 10 failed"
    is_over_limit = cause is HoldCause.FAILURES
    released = [action.command for action in result.actions[1:]]
    assert released == ["ackledger release 7"] * is_over_limit
    for action in result.actions:
        assert action.command is not None
        require_typed(action.command)


def sink(**values):
    """A sink of batch 7, which is settled, and of which nothing failed."""
    fields = dict.fromkeys(SinkRows.__dataclass_fields__)
    flags = dict.fromkeys(("after", "stateful", "whole", "holds", "early", "due"), False)
    flags["replayable"] = True
    own = {"sink": "out", "batch_id": 7, "original_id": 7, "status": "settled", "failed": 0}
    return SinkRows(**{**fields, **flags, **own, "staged_rows": 1200, **values})


PUBLISHED = {"state": "published", "published_rows": 1200}
COMBINED = {"after": True, "staged_rows": None}
PUBLISH_IT = ". Publish it: ackledger publish jobs.a:pipeline --batch 7"


@pytest.mark.parametrize(
    ("row", "state", "words"),
    [
        (sink(**PUBLISHED), SinkState.PUBLISHED, "published 1,200 rows"),
        (
            sink(**COMBINED, other_batch_id=8, other_rows=1),
            SinkState.PUBLISHED,
            "published 1 row with batch 8",
        ),
        (
            sink(**PUBLISHED, withheld_rows=2),
            SinkState.PUBLISHED,
            "published 1,200 rows, without 2 rows of failed records",
        ),
        (
            sink(**PUBLISHED, withheld_rows=2, failed=1),
            SinkState.PARTIAL,
            f"published 1,200 rows, withheld 2 rows of failed records. Replay them: {REPLAY}",
        ),
        (
            sink(state="published", published_rows=3, withheld_rows=9, whole=True, failed=1),
            SinkState.PARTIAL,
            "published 3 rows, withheld 9 rows of failed records. They lack 1 failed record of"
            f" batch 7, until a replay replaces them. Replay them: {REPLAY}",
        ),
        (
            sink(**PUBLISHED, after=True, early=True, failed=1),
            SinkState.PARTIAL,
            "published 1,200 rows, a partial result. The complete one waits for 1 failed record of"
            f" batch 7. Replay them: {REPLAY}",
        ),
        (
            sink(**COMBINED, failed=3, batch_id=8),
            SinkState.WAITING,
            f"published nothing. It waits for 3 failed records of batch 7. Replay them: {REPLAY}",
        ),
        (
            sink(**COMBINED, failed=3, replayable=False),
            SinkState.WAITING,
            "published nothing. It waits for 3 failed records of batch 7."
            " List the failed records: ackledger failed --batch 7",
        ),
        (
            sink(holds=True, failed=3),
            SinkState.WAITING,
            "published nothing, withheld 1,200 rows. It waits for 3 failed records of batch 7"
            f' (publish="complete"). Replay them: {REPLAY}',
        ),
        (
            sink(state="decided"),
            SinkState.DUE,
            f"not published yet; no failed record blocks it{PUBLISH_IT}",
        ),
        (
            sink(**COMBINED, due=True, other_batch_id=6),
            SinkState.DUE,
            f"not published yet; no failed record blocks it{PUBLISH_IT}",
        ),
        (
            sink(**COMBINED, stateful=True),
            SinkState.IN_ORDER,
            "published nothing. It waits for the state of this batch",
        ),
        (
            sink(status="open"),
            SinkState.UNDECIDED,
            "published nothing. It waits until the batch is settled",
        ),
        (
            sink(status="superseded"),
            SinkState.REPLACED,
            "its rows were replaced by those of a later batch or run",
        ),
        (
            sink(state="replaced"),
            SinkState.REPLACED,
            "its rows were replaced by those of a later batch or run",
        ),
        (
            sink(staged_rows=None, failed=3),
            SinkState.NOTHING,
            "published nothing, and has nothing to publish",
        ),
        (
            sink(status="abandoned"),
            SinkState.NOTHING,
            "published nothing, and has nothing to publish",
        ),
    ],
)
def test_each_state_of_a_sink_has_a_sentence_and_a_command(row, state, words):
    """What it has published, what is withheld and why, and the command that releases that."""
    advice = of_sink(row, "jobs.a:pipeline")
    assert state_of(row) is state
    assert str(advice) == f"sink out: {words}"
    for action in advice.actions:
        require_typed(action.command)


def test_sinks_that_lack_something_are_named_once():
    """One sentence has the names of the sinks that have not published all, and where to look."""
    lack = [
        sink(**COMBINED, failed=3),
        sink(sink="days", status="open"),
        sink(sink="all", **PUBLISHED),
    ]
    lack.insert(2, sink(sink="sums", **COMBINED, stateful=True))
    words = "batch 7: sinks out, days have not published all rows"
    assert str(of_sinks(lack)) == f"{words}. See why: ackledger status --batch 7"
    assert str(of_sinks(lack[:1])).startswith("batch 7: sink out has not published all rows.")
    assert of_sinks(lack[2:]) is None


@pytest.mark.parametrize("obstacle", Obstacle)
def test_each_obstacle_of_a_state_has_a_sentence(obstacle):
    """What a settled batch lacks for which a state waits, and the commands that end it."""
    result = advice.of_obstacle(obstacle, "jobs.a:pipeline", 7)
    assert result.because
    assert result.actions
    for action in result.actions:
        require_typed(action.command)


@pytest.mark.parametrize("need", Need)
def test_each_need_of_files_has_a_sentence(need):
    """Why the files of a batch are kept, with the pipeline's target, or without one."""
    for target in (None, "jobs.a:pipeline"):
        action = advice.of_need(need, target, 7)
        assert action.what
        require_typed(action.command)


def test_other_commands_can_be_typed():
    """Those that go on with what follows a settlement, and those for an interval that a batch
    has.
    """
    interval = Interval(START, END, {"region": "north west"})
    result = list(advice.publish("jobs.a:pipeline", 7))
    for dag_id, run_id in (("", "my run"), ("a", "manual__1"), ("a", f"manual__1{REPROCESS}")):
        owner = batch(dag_id=dag_id, run_id=run_id)
        result += advice.instead_of_a_second_run("jobs.a:pipeline", interval, owner)
        result += advice.instead_of_a_lost_file(batch(dag_id=dag_id), "jobs.a:pipeline")
    result.append(advice.still_failed(7, 2))
    for action in result:
        assert action.command is not None
        require_typed(action.command)


def test_commands_are_spelt_in_one_module():
    """A command with a number or a name in it is put together by ``commands`` alone."""
    for path in sorted((ROOT / "ledger").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                spelt = "".join(getattr(part, "value", "") if isinstance(part, ast.Constant)
                                else "{}" for part in node.values)  # fmt: skip
                assert not re.search(r"ackledger [a-z]+(?: --[a-z-]+)* \{\}", spelt), (path, spelt)


def test_many_causes_are_named_once():
    """The first three have their commands, the others the command that lists them."""
    cases = [case(FailureCause.LOST, f"step {number}", records=9 - number) for number in range(5)]
    *result, (rest,) = by_cause(cases)
    assert [actions[0].what.split(":")[0] for actions in result] == [
        "batch 7, 9 records at step 0",
        "batch 7, 8 records at step 1",
        "batch 7, 7 records at step 2",
    ]
    assert str(rest) == (
        "2 more causes, first batch 7 at step 3: ackledger failed --batch 7 --step 'step 3'"
    )
    require_typed(rest.command)


def test_a_decision_has_a_name():
    """What a person has accepted is called by that, and by whom."""
    assert status_in_words("quarantined", "ada") == "accepted by ada"
    assert status_in_words("quarantined", None) == "quarantined"


def test_a_record_that_was_looked_for_is_not_said_not_to_parse():
    """What broke at its source did not parse, or was not found there again: the reason says
    which."""
    gone = "no record of its source that parses has its key"
    sought = SimpleNamespace(step="src", source="src", reason=gone, producers=None)
    assert _last_seen(sought) == ("src", f"it could not be read: {gone}")
