"""What is handed to COPY, without a database."""

import csv
import struct
from io import StringIO

import numpy as np
import psycopg2
import pytest

from ledger.deltas import posting
from ledger.deltas.binary_copy import HEADER, TRAILER
from ledger.deltas.kernel import Deltas, Fails, Messages
from ledger.errors import LostFileError


class Cursor:
    """Remembers what it was given to copy."""

    def __init__(self):
        self.pieces = []

    def copy_expert(self, statement, stream, size):
        """As psycopg2's."""
        self.pieces = list(iter(lambda: stream.read(size), b""))


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
    assert posting.post_fails(cursor, 8, 9, [fails], masks=False) == 7
    assert len(cursor.pieces) == 3
    lines = list(csv.reader(StringIO(b"".join(cursor.pieces).decode())))
    reasons = ["a", posting.NO_REASON]
    details = ["", *(f"r\n{n}" for n in range(6))]
    assert lines == [["8", "9", str(n), reasons[n % 2], details[n], str(n == 5)] for n in range(7)]


def test_without_fails_nothing_is_copied():
    """Nor is the server asked."""
    cursor = Cursor()
    nothing = np.empty(0, np.int64)
    posting.post_fails(
        cursor, 8, 9, [Fails(nothing, nothing.astype(np.int32), nothing > 0, ())], masks=True
    )
    assert cursor.pieces == []


class Reading(Cursor):
    """Raises what a driver raises whose stream cannot be read."""

    def copy_expert(self, statement, stream, size):
        """As psycopg2's."""
        try:
            super().copy_expert(statement, stream, size)
        except Exception as exc:
            raise psycopg2.errors.QueryCanceled("COPY from stdin failed") from exc


def test_a_file_that_cannot_be_read_is_no_error_of_the_database():
    """While rows go from a file to the ledger."""

    def messages():
        yield Messages(np.arange(2), np.arange(2))
        raise LostFileError("file a is gone")

    with pytest.raises(LostFileError, match="file a is gone"):
        posting.post_messages(Reading(), 8, 9, messages())


def test_edges_are_counted_in_64_bits():
    """The greatest count arrives as it is."""
    most, ones = np.array([(1 << 63) - 1]), np.ones(1, np.int64)
    cursor = Cursor()
    posting.post(cursor, 8, 9, Deltas(ones, ones, ones, most, most), masks=True)
    row = b"".join(cursor.pieces).removeprefix(HEADER).removesuffix(TRAILER)
    assert struct.unpack(">h" + "iq" * 7, row)[2::2][-2:] == ((1 << 63) - 1,) * 2
