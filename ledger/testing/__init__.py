"""Show in a test that a pipeline loses nothing: see ``ledger.testing.lab``."""

from ledger.store.queries.records import Failure
from ledger.testing.faults import (
    POINTS,
    Crash,
    Fault,
    crash_at,
    duplicate_rows,
    lose_file,
    lose_rows,
)
from ledger.testing.lab import START, BatchResult, replay, resume, run_batch, sweep

__all__ = [
    "POINTS",
    "START",
    "BatchResult",
    "Crash",
    "Failure",
    "Fault",
    "crash_at",
    "duplicate_rows",
    "lose_file",
    "lose_rows",
    "replay",
    "resume",
    "run_batch",
    "sweep",
]
