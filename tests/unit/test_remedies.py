"""What to do about failed records: for each cause the command that fits it."""

from datetime import UTC, datetime

import pytest

from ledger.batch.remedies import Case, remedies, remedy

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)
REPLAY = "ackledger replay jobs.a:pipeline --batch 7"


def case(
    step="src",
    *,
    at_source=True,
    rereads=False,
    reprocesses=True,
    dag_id="",
    record=None,
    held=False,
):
    """A case of batch 7, whose run had a parameter."""
    params = {"region": "north west"}
    return Case(
        "jobs.a:pipeline",
        7,
        START,
        END,
        params,
        dag_id,
        step,
        at_source,
        rereads,
        reprocesses,
        record,
        held,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            case("join", at_source=False),
            ["fix join, or what it joins", REPLAY, "quarantine --batch 7 --step join"],
        ),
        (
            case(rereads=True),
            ["by key:", f"{REPLAY} --from-source", "quarantine --batch 7", f"and replay: {REPLAY}"],
        ),
        (
            case(rereads=True, record=9),
            ["the record again", f"{REPLAY} --record 9 --from-source", "quarantine 9 --reason"],
        ),
        (
            case(),
            [
                "the whole interval again:",
                "ackledger run jobs.a:pipeline --interval-start 2013-01-01 "
                "--interval-end 2013-02-01 --param 'region=north west' --reprocess",
            ],
        ),
        (
            case(reprocesses=False),
            ["deliver the records, corrected, anew", "ackledger quarantine --batch 7"],
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
            case("join", at_source=False, held=True, dag_id="a"),
            [
                "fix join",
                f"{REPLAY} --held",
                """--conf '{"replay_of": 7, "held": true}'""",
            ],
        ),
        (
            case(dag_id="a"),
            ["interval again:", "ackledger run", '"region": "north west", "reprocess": true}'],
        ),
    ],
)
def test_each_cause_has_its_command(given, expected):
    """A record that did not parse is read again from its source, any other is replayed; all can be
    quarantined."""
    found = remedies(given)
    for line, part in zip(found, expected, strict=False):
        assert part in line
    assert remedy(3, given).startswith(f"3 at {given.step}: {found[0]} ackledger ")
