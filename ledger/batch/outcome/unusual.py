"""Drops on purpose that are much more frequent in a batch than in those before it."""

import re
from collections.abc import Sequence
from statistics import median

from sqlalchemy import Connection

from ledger.store.queries import reports
from ledger.store.queries.reports import OperationDrops

FEWEST_BATCHES = 3  # before a batch, in which its stage has run
MOST_BATCHES = 10
FEWEST_RECORDS = 20
TIMES, MORE = 3.0, 0.05  # as great a share as usual, and so much more of all rows
# Parts of a reason that differ between batches: the line, texts and numbers of a condition.
_VARIABLE = re.compile(r"(?<=\.py):\d+|'(?:[^'\\]|\\.)*'|\*\*\*|\b\d+(?:\.\d+)?\w*")


def unusual_drops(connection: Connection, batch_id: int, step: str | None = None) -> list[str]:
    """Return a sentence for each operation of an original batch that dropped a much greater share
    of its stage's rows than in the batches before. Operations that differ by line and literals
    alone count as one. ``step``: the only stage to look at; None: all.
    """
    rows = reports.operation_drops(connection, batch_id, MOST_BATCHES)
    own = [row for row in rows if row.batch_id == batch_id and row.step == (step or row.step)]
    sentences = []
    for drop in {(row.step, _kind(row)): row for row in own if row.reason}.values():
        if _records(rows, batch_id, drop) < FEWEST_RECORDS:
            continue
        batches = {
            row.batch_id: row.input_rows
            for row in rows
            if row.step == drop.step and row.batch_id != batch_id and row.input_rows
        }
        if len(batches) < FEWEST_BATCHES:
            continue
        usual = median(
            _records(rows, number, drop) / input_rows for number, input_rows in batches.items()
        )
        share = _records(rows, batch_id, drop) / drop.input_rows
        if share >= TIMES * usual and share - usual >= MORE:
            sentences.append(
                f"{drop.step}: {drop.reason} dropped {share:.0%} of its rows, usually {usual:.0%}"
            )
    return sentences


def _records(rows: Sequence[OperationDrops], batch_id: int, drop: OperationDrops) -> int:
    """The records of a batch that an operation dropped, whatever its line and literals are."""
    return sum(
        row.records
        for row in rows
        if row.batch_id == batch_id and row.step == drop.step and _kind(row) == _kind(drop)
    )


def _kind(drop: OperationDrops) -> str:
    return _VARIABLE.sub("?", drop.reason or "")
