"""Cost of batches larger than any that was run: arithmetic from what was measured."""

from collections.abc import Iterable, Iterator
from typing import Any

from ledger.deltas.spans import span_of

RECORDS = (1_000_000, 100_000_000, 1_000_000_000)
STEPS = 5  # a source, three stages, a sink
ROOT_BYTES = 2 * 8 + 3 * 16  # of a record, in root files
COLUMN_BYTES = STEPS * 32  # of a record, in the temporary file of a settlement
Line = tuple[str, Iterable[str], str]  # what, of each number of records, and how it is known


def volume_lines(results: dict[str, Any], flights: int) -> Iterator[Line]:
    """The lines of a table; ``flights``: records of the batch whose sizes were measured."""
    of, rows = results["sizes.batch"], [STEPS * -(-count // span_of(count)) for count in RECORDS]
    row_bytes, failed_bytes = of["delta_bytes"] / of["deltas"], of["failed_bytes"] / of["failed"]
    files = (of["snapshot_bytes"] + of["stage_bytes"]) / flights
    spans = "the least power of two by which 65,536 rows do"
    yield "records that share a row of the ledger", (f"{span_of(n):,}" for n in RECORDS), spans
    yield "rows of the ledger while it is open", (f"{count:,}" for count in rows), "arithmetic"
    yield (
        "their bytes",
        (_bytes(row_bytes * count) for count in rows),
        f"arithmetic, {row_bytes:.0f} bytes a row measured",
    )
    for what, bytes_, how in (
        ("snapshot and outputs of stages", files, "measured for a million, and in proportion"),
        ("root files until it is settled", ROOT_BYTES, "arithmetic: 8 or 16 bytes for each step"),
        (
            "what a settlement has of single records, if every span has a loss",
            COLUMN_BYTES,
            "arithmetic: 32 bytes for each step; up to 256 MB in memory, more in `TMPDIR`",
        ),
        (
            "kept of failures, if a tenth of a per cent fails",
            failed_bytes / 1000,
            f"arithmetic, {failed_bytes:.0f} bytes a failed record measured",
        ),
    ):
        yield what, (_bytes(bytes_ * count) for count in RECORDS), how
    yield from _times(results, rows)


def _times(results: dict[str, Any], rows: list[int]) -> Iterator[Line]:
    """``rows``: those of the ledger."""
    batch = "flights_clean"
    row_seconds = results[f"{batch}.settle_seconds"] / results[f"{batch}.batch"]["ledger_rows"]
    clean, lost = (results["losses"][lost]["settle_seconds"] for lost in ("0", "10000"))
    yield (
        "settlement",
        (_duration(row_seconds * count) for count in rows),
        "measured for a million flights, and in proportion to the rows of the ledger",
    )
    yield (
        "the same, if a tenth of a per cent fails",
        (
            _duration(row_seconds * count + (lost - clean) * records / 1e7)
            for count, records in zip(rows, RECORDS, strict=True)
        ),
        "at least: measured for ten million records, a quarter of their spans not 0, and in"
        " proportion",
    )
    scale = results["scale"]
    small, large = (
        scale["tracked"][size]["seconds_per_million"] - scale["plain"][size]["seconds_per_million"]
        for size in ("1m", "30m")
    )
    added = [small, *(large * records / 1e6 for records in RECORDS[1:])]
    yield (
        "what ackledger adds, on 2 cores",
        map(_duration, added),
        "of the dearest pipeline: measured for one and thirty million records, and in proportion",
    )
    yield (
        "the same on 100 cores",
        ("", *(_duration(seconds / 50) for seconds in added[1:])),
        "reasoned: the work of executors divides, commits and settlement do not",
    )


def _bytes(size: float) -> str:
    value, unit = (size / 1e6, "MB") if size < 1e9 else (size / 1e9, "GB")
    return f"{value:.{int(value < 10)}f} {unit}"


def _duration(seconds: float) -> str:
    if seconds >= 300:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.{int(seconds < 10)}f} s"
