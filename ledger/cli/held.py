"""What the commands about records print of batches on hold, of which nothing is decided."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from ledger.batch.recovery import stands_at
from ledger.cli.base import out
from ledger.core.states import BatchStatus
from ledger.store.connection import Database
from ledger.store.queries import batches, holds

_STATUS = "on hold"


def failures(database: Database, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What batches on hold would record, as ``reports.failures`` has failures."""
    found = database.transact(lambda c: holds.failures(c, chosen), engine=database.reader)
    return [
        {
            "batch_id": row.batch_id,
            "pipeline": row.pipeline,
            "step": row.step,
            "reason": row.reason,
            "status": _STATUS,
            "messages": row.records,
            "example_root": row.example_root,
        }
        for row in found
    ]


def sentences(database: Database, batch_ids: Sequence[int]) -> list[str]:
    """Of each of these batches that is on hold: why, and what to do."""

    def look(connection: Connection) -> list[str]:
        return [
            f"batch {one} is {BatchStatus.HELD.words}, so nothing of it is decided. "
            + stands_at(connection, batches.get_batch(connection, one))
            for one in holds.batches_on_hold(connection, batch_ids)
        ]

    return database.transact(look, engine=database.reader)


def print_ways(database: Database, on_hold: Sequence[Mapping[str, Any]]) -> None:
    """Print what to do about the batches whose failures these would be."""
    for sentence in sentences(database, [one["batch_id"] for one in on_hold]):
        out.print(sentence, style="yellow", highlight=False, soft_wrap=True)


def print_sampled(
    database: Database, chosen: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]
) -> None:
    """Print of how many records those of batches on hold are a sample, and what to do."""
    mine = [one for one in listed if one["status"] == _STATUS]
    if not mine:
        return
    would_fail = sum(one["messages"] for one in failures(database, chosen))
    each = f"the first {holds.SAMPLE} of each step and reason"
    out.print(f"on hold: not decided. Of {would_fail:,} records that would fail, {each} are kept")
    print_ways(database, mine)
