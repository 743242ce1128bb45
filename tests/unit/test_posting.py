"""What is handed to COPY, without a database."""

import csv
from io import StringIO

import numpy as np

from ledger.deltas import posting
from ledger.deltas.kernel import Fails


class Cursor:
    """Remembers what it was given to copy."""

    def __init__(self):
        self.pieces = []

    def copy_expert(self, statement, stream):
        """As psycopg2's."""
        self.pieces = list(iter(stream.read, b""))


def test_fails_are_copied_a_few_at_a_time(monkeypatch):
    """Each with its reason and its text; the texts of all are never in one buffer."""
    monkeypatch.setattr(posting, "FAIL_ROWS", 3)
    roots = np.arange(7)
    fails = Fails(
        roots,
        (roots % 2).astype(np.int32),
        roots == 5,
        ("a", ""),
        [None, *(f"r\n{n}" for n in range(6))],
    )
    cursor = Cursor()
    posting.post_fails(cursor, 8, 9, [fails])
    assert len(cursor.pieces) == 3
    lines = list(csv.reader(StringIO(b"".join(cursor.pieces).decode())))
    reasons = ["a", posting.NO_REASON]
    details = ["", *(f"r\n{n}" for n in range(6))]
    assert lines == [["8", "9", str(n), reasons[n % 2], details[n], str(n == 5)] for n in range(7)]


def test_without_fails_nothing_is_copied():
    """Nor is the server asked."""
    cursor = Cursor()
    nothing = np.empty(0, np.int64)
    posting.post_fails(cursor, 8, 9, [Fails(nothing, nothing.astype(np.int32), nothing > 0, ())])
    assert cursor.pieces == []
