"""Who reads rows that have a root: a row of ``ledger_delta`` may be a span's, whose first root has
the same number. Each reader is listed, with the test that fails if it takes one for the other.
"""

import ast
import re
from functools import cache

import pytest

from tests.support.places import ROOT

TESTS = ("test_spans.py", "test_random_pipelines.py", "test_fold_spans.py")
# Reader -> the test that shows how it takes spans.
OF_DELTAS = {
    "refining.py: _UNEVEN": "test_a_fail_in_an_even_span",
    "refining.py: posted": "test_files_that_disagree_hold_the_batch",
    "runs.py: posted_deltas": "test_the_ledger_has_by_span_what_files_have_by_root",
    "settlement.py: uneven_runs": "test_damaged_spans_hold_the_batch",
    "upkeep.py: decided_with_deltas": "test_a_clean_batch_leaves_nothing_of_its_roots",
    "functions.sql: remove_deltas": "test_a_clean_batch_leaves_nothing_of_its_roots",
    "views.sql: pending_root": "test_what_is_pending_is_shown_by_span",
}
# What comes of these, and is of single roots: nothing else reads it.
OF_SETTLING = {
    "refining.py: failed_without_rows": "test_a_failed_root_has_rows",
    "refining.py: unnamed_roots": "test_spans_decide_as_roots_do",
    "settlement.py: add_explicit_fails": "test_a_fail_in_an_even_span",
    "settlement.py: name_losses": "test_a_lost_record_of_a_span_has_its_operation",
    "settlement.py: record_failures_of_original": "test_each_source_has_its_own_span",
    "settlement.py: record_failures_of_replay": "test_a_replay_has_spans_of_its_own",
    "settlement.py: record_attempts": "test_the_hop_is_named",
    "replays.py: delay_replays": "test_the_records_that_failed_wait",
}
# Fails and messages have a row a root, whatever the span.
BY_NUMBER = {"root_fail", "replay_root"}


@cache
def segments(path):
    """What a module, or a file of SQL, defines: name and text."""
    return tuple(_segments(path))


def _segments(path):
    source = path.read_text()
    if path.suffix == ".sql":
        for part in re.split(r"(?m)^(?=CREATE )", source):
            head = re.match(r"CREATE (?:VIEW|FUNCTION|TABLE) (\w+)", part)
            if head is not None:
                yield head[1], part
        return
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, ast.get_source_segment(source, node)
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, ast.get_source_segment(source, node)


def readers(pattern):
    """What the code has that reads these tables: file and name."""
    places = [
        *(ROOT / "ledger").rglob("*.py"),
        *(ROOT / "migrations" / "baseline").glob("*.sql"),
    ]
    return {
        f"{path.name}: {name}"
        for path in places
        for name, text in segments(path)
        if re.search(pattern, text)
    }


def test_every_reader_of_deltas_is_listed():
    """A row there may be a span's."""
    assert readers(r"(FROM|JOIN)\s+ledger_delta\b") == OF_DELTAS.keys()


def test_every_reader_of_a_settlement_is_listed():
    """What the settlement hands from one statement to the next has a row a root."""
    assert readers(r"(FROM|JOIN|UPDATE)\s+settling(_\w+)?\b") == OF_SETTLING.keys()


@pytest.mark.parametrize("table", sorted(BY_NUMBER))
def test_what_fails_and_what_is_replayed_has_a_row_a_root(table):
    """Nothing joins their rows with those of the ledger, but where that has rows of single
    roots."""
    both = readers(rf"(FROM|JOIN)\s+{table}\b") & OF_DELTAS.keys()
    assert both <= {"refining.py: _UNEVEN"}  # it asks for the span of each


def test_each_has_its_test():
    """The test that is named exists."""
    folder = ROOT / "tests" / "integration"
    tests = {name for file in TESTS for name, _ in segments(folder / file)}
    named = {*OF_DELTAS.values(), *OF_SETTLING.values()}
    assert named <= tests
