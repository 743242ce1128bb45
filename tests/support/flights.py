"""A small slice of the real flights, as the demo writes the whole."""

import csv
import tempfile
from functools import cache
from pathlib import Path

from demo import data


def write_slice(folder: Path, months: tuple[int, ...] = (1, 2), flights: int = 300) -> None:
    """The first flights of each month, the weather, and every other plane."""
    for name, content in _slice(months, flights).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@cache  # the flights of a year are read for it
def _slice(months: tuple[int, ...], flights: int) -> dict[Path, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data.write_months(folder, months)
        data.write_planes(folder, every=2)
        files = (path for path in folder.rglob("*") if path.is_file())
        contents = {path.relative_to(folder): path.read_bytes() for path in files}
    for month in months:
        path = Path("flights") / f"2013-{month:02d}-01.csv"
        contents[path] = b"".join(contents[path].splitlines(keepends=True)[: flights + 1])
    return contents


def without_plane(folder: Path, month: int) -> int:
    """Flights of a month whose plane is not in ``planes.csv``."""
    with (folder / "planes.csv").open() as planes:
        names = {row["tailnum"] for row in csv.DictReader(planes)}
    with (folder / "flights" / f"2013-{month:02d}-01.csv").open() as flights:
        return sum(row["tailnum"] not in names for row in csv.DictReader(flights))
