"""How ``make polluted`` compares what became of a file's records with the clean file."""

from collections import Counter

import pytest

from tests.polluted.comparison import Failed, compare

ROWS = [("1", "a"), ("2", "b"), ("3", "c")]
FAILED = Failed("malformed csv: a quote is never closed")


@pytest.mark.parametrize(
    ("records", "counted"),
    [
        (ROWS, {"exact": 3}),
        ([ROWS[0], FAILED, ROWS[2]], {"exact": 2, "failed": 1}),
        ([ROWS[0], ("2", "B"), ROWS[2]], {"exact": 2, "wrong": 1}),
        ([ROWS[0], ROWS[2], ROWS[1]], {"exact": 1, "wrong": 2}),
        ([ROWS[0], None, ROWS[2]], {"exact": 2, "lost": 1}),
        (ROWS[:1] + ROWS[2:], {"exact": 2, "lost": 1}),
        ([*ROWS, ROWS[2]], {"exact": 3, "wrong": 1}),
        ([*ROWS, ("4", "below")], {"exact": 3, "beyond": 1}),
        ([FAILED, *ROWS], {"exact": 3, "beyond": 1}),
        ([("1", " a"), *ROWS[1:]], {"exact": 2, "wrong": 1}),
        ([("1", "a "), *ROWS[1:]], {"exact": 2, "rewritten": 1}),
    ],
    ids=str,
)
def test_each_record_has_one_verdict(records, counted):
    """A row that the clean file has otherwise is right only where the file itself has it so, and
    no row is excused that is acked more often than the file has it.
    """
    contents = Counter([*ROWS, ("4", "below"), ("1", "a ")])
    verdict = compare(records, ROWS, contents)
    names = ("exact", "failed", "wrong", "lost", "rewritten", "beyond")
    assert {name: n for name in names if (n := getattr(verdict, name))} == counted
    assert len(verdict.shown) == verdict.wrong + verdict.lost


def test_a_mistake_of_the_clean_file_excuses_what_the_file_has():
    """And nothing else."""
    found = ("3", "0.0")
    rows = [*ROWS[:2], ("3", "0.\\")]
    for contents, excused in ((Counter([*ROWS, found]), 1), (Counter(ROWS), 0)):
        verdict = compare([*ROWS[:2], found], rows, contents, rows[2:])
        assert (verdict.rewritten, verdict.wrong) == (excused, 1 - excused)
