"""A small slice of the real flights, as the demo writes the whole."""

import csv
from pathlib import Path

from demo import data


def write_slice(folder: Path, months: tuple[int, ...] = (1, 2), flights: int = 300) -> None:
    """The first flights of each month, the weather, and every other plane."""
    data.write_months(folder, months)
    for month in months:
        path = folder / "flights" / f"2013-{month:02d}-01.csv"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: flights + 1]))
    data.write_planes(folder, every=2)


def without_plane(folder: Path, month: int) -> int:
    """Flights of a month whose plane is not in ``planes.csv``."""
    with (folder / "planes.csv").open() as planes:
        names = {row["tailnum"] for row in csv.DictReader(planes)}
    with (folder / "flights" / f"2013-{month:02d}-01.csv").open() as flights:
        return sum(row["tailnum"] not in names for row in csv.DictReader(flights))
