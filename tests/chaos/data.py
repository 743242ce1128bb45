"""The input of a run, and what must come of it: both follow from the seed alone."""

import csv
import os
import random
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from datetime import date, timedelta
from pathlib import Path

FIRST_DAY = date(2013, 1, 1)
POISON_SHARE = 0.01
REGIONS = tuple(f"region-{number:02d}" for number in range(50))
LATE_REGION = REGIONS[-1]  # unknown at first: its orders are lost by a join, and come by a replay
MOST_LINES = 4
MOST_CENTS = 90_000
# Of an order's line: no two of a run are equal, and a sum of their squares distinguishes
# sets of them.
CENTS_BASE, LINE_BASE, MODULUS = 100_000, 8, 1_000_000_007

Row = tuple[int, int, int]


@dataclass(frozen=True)
class Order:
    """One source record. It becomes ``lines`` rows; a poison one always fails, in its first line
    alone.
    """

    id: int
    day: str
    lines: int
    cents: int
    region: str
    poison: bool

    def rows(self) -> list[Row]:
        """What each sink is to hold of it: id, line, cents."""
        return [(self.id, line, self.cents + line) for line in range(1, self.lines + 1)]


def days(count: int) -> list[str]:
    """The first ``count`` days, one for each batch."""
    return [str(FIRST_DAY + timedelta(days=number)) for number in range(count)]


def make_orders(seed: int, records: int, day_count: int) -> list[Order]:
    """The orders of a seed, spread evenly over days. Every second day is clean: nothing of it
    fails.
    """
    draw = random.Random(f"orders {seed}")
    names = days(day_count)
    dirty = set(names[::2])
    poison_share = POISON_SHARE * day_count / len(dirty)
    orders = []
    for number in range(records):
        day = names[number * day_count // records]
        orders.append(
            Order(
                id=number,
                day=day,
                lines=draw.randint(1, MOST_LINES),
                cents=draw.randint(1, MOST_CENTS),
                region=draw.choice(REGIONS if day in dirty else REGIONS[:-1]),
                poison=draw.random() < poison_share and day in dirty,
            )
        )
    return orders


def write_orders(folder: Path, orders: Iterable[Order]) -> None:
    """``orders/<day>.csv`` for each day."""
    by_day: dict[str, list[Order]] = {}
    for order in orders:
        by_day.setdefault(order.day, []).append(order)
    (folder / "orders").mkdir(parents=True, exist_ok=True)
    for day, own in by_day.items():
        header = [field.name for field in fields(Order)]
        _write(folder / "orders" / f"{day}.csv", header, map(astuple, own))


def write_regions(folder: Path, *, complete: bool) -> None:
    """``regions.csv``, without the late region unless it is ``complete``; it appears whole."""
    regions = [region for region in REGIONS if complete or region != LATE_REGION]
    _write(folder / "regions.csv", ["region", "percent"], [(region, 7) for region in regions])


def checksum(row: Row) -> int:
    """Of one row; the pipeline, the reader's SQL and its arrays compute the same."""
    number, line, cents = row
    key = ((number * LINE_BASE + line) * CENTS_BASE + cents) % MODULUS
    return key * key % MODULUS


def checksum_sql(number: str = "id", line: str = "line", cents: str = "cents") -> str:
    """``checksum`` as an expression that Spark and PostgreSQL understand; the columns are
    BIGINT.
    """
    key = f"((({number}) * {LINE_BASE} + {line}) * {CENTS_BASE} + {cents}) % {MODULUS}"
    return f"(({key}) * ({key}) % {MODULUS})"


def _write(path: Path, header: list[str], rows: Iterable[tuple[object, ...]]) -> None:
    written = path.with_suffix(".new")
    with written.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    os.replace(written, path)
