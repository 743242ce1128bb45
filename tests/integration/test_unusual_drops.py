"""Operations that drop a much greater share of their rows than in earlier batches."""

import pytest

from tests.support.ledgers import pipeline


def batches(ledger, shares, reason="filter at a.py:{line}: condition false: day = '{line}'"):
    """Settled batches of 100 rows, of which an operation dropped so many; return the last one."""
    for day, records in enumerate(shares):
        batch = ledger.open(pipeline(), f"run {day}", day)
        ledger.run_all(batch, 1)
        ledger.change("UPDATE step_run SET input_rows = 100 WHERE batch_id = :b", b=batch.batch_id)
        if records:
            ledger.change(
                "INSERT INTO step_run_drop SELECT step_run_id, :reason, :n, 'filter', 'a.py'"
                " FROM step_run WHERE batch_id = :b AND step = 'middle'",
                b=batch.batch_id, n=records, reason=reason.format(line=day + 10),
            )  # fmt: skip
    return batch.batch_id


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([2, 2, 3, 38], "dropped 38% of its rows, usually 2%"),
        ([0, 0, 0, 30], "dropped 30% of its rows, usually 0%"),
        ([2, 2, 38], None),  # too few batches before it
        ([2, 2, 2, 6], None),  # three times as many, but few
        ([2, 2, 2, 19], None),  # too few records
        ([20, 20, 20, 40], None),  # twice as many
        ([38, 38, 38, 2], None),  # fewer
    ],
)
def test_a_greater_share_is_named(ledger, shares, words):
    """The line and the literals of its condition may differ from batch to batch."""
    batch_id = batches(ledger, shares)
    notes = ledger.summary(batch_id).notes
    assert [note.partition(" dropped")[2] for note in notes] == (
        [] if words is None else [words.removeprefix("dropped")]
    )
    line = 10 + len(shares) - 1
    assert all(note.startswith(f"middle: filter at a.py:{line}: ") for note in notes)


def test_another_operation_is_no_measure(ledger):
    """Drops of another condition are no measure of this one."""
    batches(ledger, [40, 40, 40], "filter at a.py:1: condition false: other")
    ledger.run_all(batch := ledger.open(pipeline(), "last", 9), 1)
    ledger.change("UPDATE step_run SET input_rows = 100 WHERE batch_id = :b", b=batch.batch_id)
    ledger.change(
        "INSERT INTO step_run_drop SELECT step_run_id, 'filter at a.py:1: condition false: own',"
        " 40, 'filter', 'a.py' FROM step_run WHERE batch_id = :b AND step = 'middle'",
        b=batch.batch_id,
    )
    (note,) = ledger.summary(batch.batch_id).notes
    assert note.endswith("condition false: own dropped 40% of its rows, usually 0%")
