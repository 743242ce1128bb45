"""Legend of ``***`` in what a command has printed of failed records."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from ledger.batch.outcome.readings import redacted_columns
from ledger.cli.base import out
from ledger.errors import MASK
from ledger.store.connection import Database


def print_legend(database: Database, shown: Sequence[Mapping[str, Any]]) -> None:
    """Print which columns the pipelines of these rows redact, if a value of a row is masked."""
    masked = {row["pipeline"] for row in shown if any(MASK in str(value) for value in row.values())}
    for name in sorted(masked):
        columns = ", ".join(redacted_columns(database, name)) or "columns that it names no longer"
        legend = f"{MASK} stands for masked values: pipeline {name!r} redacts {columns}"
        out.print(Text(legend), soft_wrap=True)
