"""What a sink of a table in PostgreSQL may declare."""

from typing import Literal

LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest

Mode = Literal["append", "upsert", "replace_interval"]
