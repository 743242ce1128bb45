"""Where a test may change the ledger by an UPDATE of its own.

A state is reached as users reach it: by the library. What is left to a statement is listed here.
"""

import re

import pytest

from tests.support.places import ROOT

UPDATE = re.compile(r"\bUPDATE (?:\{?\w+\}? SET|\{change\})")
# For every file what its statements are for.
ALLOWED = {
    "acceptance/test_airflow.py": "a settlement that lies back, whose notice is pending",
    "acceptance/test_lineage.py": "counts that no hand-driven run has",
    "acceptance/test_many_records.py": "100,000 records, which no run is waited for",
    "acceptance/test_next_commands.py": "times of a ledger that is driven by commands",
    "acceptance/test_page_data.py": "when a replay is due, and a reason of a source",
    "acceptance/test_page_parts.py": "texts, and times that the pages show",
    "integration/test_alerts.py": "a reason with line breaks",
    "integration/test_asking.py": "a statement that is refused",
    "integration/test_database.py": "a statement that is refused",
    "integration/test_embedded.py": "a version of the schema that is not there",
    "integration/test_follow_ups.py": "counts of rows that no hand-driven run has",
    "integration/test_fold_spans.py": "counts that are wrong",
    "integration/test_folding.py": "sizes of files, and counts that are wrong",
    "integration/test_forget.py": "contents and texts that quote a person",
    "integration/test_forget_command.py": "a key with a person in it",
    "integration/test_gc_command.py": "a folder of another name",
    "integration/test_gc_expired.py": "a key without values",
    "integration/test_gc_removal.py": "where a run writes, which is noted once",
    "integration/test_gc_windows.py": "publications that lie back",
    "integration/test_history.py": "what is noted of batches, so that all is looked at again",
    "integration/test_holds.py": "a replay on hold with a decided record, and declarations",
    "integration/test_installation.py": "a version of the schema that is not there",
    "integration/test_protocol.py": "deltas that are damaged",
    "integration/test_publishing_whole.py": "a clock of PostgreSQL that differs",
    "integration/test_records.py": "records of another kind of source, and when they failed",
    "integration/test_recovery.py": "where a pipeline is declared",
    "integration/test_replay_control.py": "a statement that is rolled back",
    "integration/test_roles.py": "what each role may change",
    "integration/test_settlement.py": "a delta that is corrupt",
    "integration/test_spans.py": "rows and ranges that are damaged, and runs without files",
    "integration/test_unusual_drops.py": "counts of drops by operation",
    "integration/test_upkeep.py": "dead rows, and what is noted of batches",
    "integration/test_whole_batch.py": "a text that was forgotten",
    "integration/test_worked_examples.py": "the numbers that the page has",
    "support/ledgers.py": "times, manifests, declarations, and the counter of an empty ledger",
    "support/retention.py": "folders and sizes that no hand-driven run has",
}
FILES = sorted((ROOT / "tests").rglob("*.py"))


def changing() -> set[str]:
    """The files with such a statement."""
    return {
        path.relative_to(ROOT / "tests").as_posix()
        for path in FILES
        if path.name not in ("test_updates.py", "test_privileges.py")
        and UPDATE.search(path.read_text())
    }


def test_no_other_file_changes_the_ledger_by_itself():
    """A new one has its states made by the library, and old ones leave the list."""
    assert changing() == set(ALLOWED)


@pytest.mark.parametrize("table", ["publication SET published_at", "batch SET status"])
def test_a_statement_is_recognised(table):
    """Also one whose table stands in braces."""
    assert UPDATE.search(f"UPDATE {table} = now()")
    assert UPDATE.search("UPDATE {table} SET x = 1")
    assert not UPDATE.search("FOR UPDATE OF m")
