"""How ``make polluted`` compares what became of a file's records with the clean file."""

import re
from collections import Counter

import pytest

from tests.polluted.__main__ import COLUMNS
from tests.polluted.comparison import Failed, compare
from tests.support.places import ROOT

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
    row = ("3", "0.0")
    rows = [*ROWS[:2], ("3", "0.\\")]
    for contents, excused in ((Counter([*ROWS, row]), 1), (Counter(ROWS), 0)):
        verdict = compare([*ROWS[:2], row], rows, contents, rows[2:])
        assert (verdict.rewritten, verdict.wrong) == (excused, 1 - excused)


def test_the_page_leaves_no_row_out():
    """In each line of its table the outcomes add up to the rows, and all lines to the last,
    whose rows and files the page names.
    """
    page = (ROOT / "docs" / "polluted.md").read_text()
    lines = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert lines[0] == ["what is broken", *COLUMNS]
    figures = [
        dict(zip(COLUMNS, (int(figure_.replace(",", "")) for figure_ in line[1:]), strict=True))
        for line in lines
        if len(line) == len(COLUMNS) + 1 and line[1][0].isdigit()
    ]
    beside = {"files", "refused by name", "rows", "beyond the clean file"}
    for figure in figures:
        assert figure["rows"] == sum(figure[name] for name in COLUMNS if name not in beside)
    total = figures.pop()
    assert total == {name: sum(figure_[name] for figure_ in figures) for name in COLUMNS}
    sentence = re.search(r"^Of ([\d,]+) rows in ([\d,]+) files none", page, re.MULTILINE)
    named = [int(number.replace(",", "")) for number in sentence.groups()]
    assert named == [total["rows"], total["files"]]
    match, of_the_web = re.search(
        r"([\d,]+) that were made .* and (\d+) that were found", page
    ).groups()
    of_all = int(match.replace(",", "")) + int(of_the_web)
    assert total["files"] <= of_all
    assert total["wrong"] == total["without a trace"] == 0
