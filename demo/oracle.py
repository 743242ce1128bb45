"""Expected content of the sink, computed by pandas alone from the same files."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from deltalake import DeltaTable

COLUMNS = [
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour",
    "minute", "time_hour", "date", "cancelled", "built", "manufacturer", "model", "seats", "temp",
    "wind_speed", "precip", "visib",
]  # fmt: skip

Rows = Counter[tuple[Any, ...]]


def expected_rows(data: Path, months: Iterable[str]) -> Rows:
    """The flights of ``months`` (``2013-01-01`` and the like) whose plane is known, as a
    multiset.
    """
    flights = pd.concat([_read(data / "flights" / f"{month}.csv") for month in months])
    planes = _read(data / "planes.csv").rename(columns={"year": "built"})
    weather = _read(data / "weather.csv")
    flights["date"] = pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    flights["cancelled"] = flights["dep_time"].isna()
    departures = flights[flights["tailnum"].notna()]
    joined = departures.merge(
        planes[["tailnum", "built", "manufacturer", "model", "seats"]], on="tailnum"
    )
    measured = weather[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    return _rows(joined.merge(measured, on=["origin", "time_hour"], how="left"))


def sink_rows(sink: Path) -> Rows:
    """Return the rows of the sink's table as a multiset; none if it is not there yet."""
    if not DeltaTable.is_deltatable(str(sink)):
        return Counter()
    table = DeltaTable(sink).to_pyarrow_table().to_pandas()
    table["time_hour"] = table["time_hour"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    table["date"] = table["date"].astype(str)
    return _rows(table)


def expected_days(rows: Rows) -> Rows:
    """Flights, cancellations and delay by carrier and day, of what ``expected_rows`` gives."""
    carrier, date, cancelled, delay = map(
        COLUMNS.index, ("carrier", "date", "cancelled", "dep_delay")
    )
    totals: dict[tuple[Any, ...], list[float]] = {}
    for row, count in rows.items():
        total = totals.setdefault((row[carrier], row[date]), [0, 0, 0])
        total[0] += count
        total[1] += count * row[cancelled]
        total[2] += count * (row[delay] or 0)
    return Counter((*key, *map(int, total)) for key, total in totals.items())


def day_rows(sink: Path) -> Rows:
    """Return the rows of the table of daily totals; none if it is not there yet."""
    if not DeltaTable.is_deltatable(str(sink)):
        return Counter()
    names = ("carrier", "date", "flights", "cancelled", "dep_delay")
    rows = DeltaTable(sink).to_pyarrow_table().to_pylist()
    return Counter(
        (row["carrier"], str(row["date"]), row["flights"], row["cancelled"], row["dep_delay"] or 0)
        for row in rows
        if len(row) == len(names)
    )


def expected_causes(data: Path, month: str) -> dict[str, int]:
    """Return how many flights of a month the pipeline ``late`` keeps out, by cause."""
    flights = _read(data / "flights" / f"{month}.csv")
    delay, tailnum = flights["dep_delay"], flights["tailnum"]
    late = delay > 60
    planes = _read(data / "planes.csv")["tailnum"]
    return {
        "condition false": int((delay <= 60).sum()),
        "condition NULL": int(delay.isna().sum()),
        "no partner for tailnum": int((late & tailnum.notna() & ~tailnum.isin(planes)).sum()),
    }


def _read(path: Path) -> pd.DataFrame:
    # pandas' default parser rounds the last digit of some numbers; Spark's does not.
    return pd.read_csv(path, na_values=["NA"], keep_default_na=False, float_precision="round_trip")


def _rows(frame: pd.DataFrame) -> Rows:
    plain = frame[COLUMNS].astype(object)
    return Counter(
        tuple(None if pd.isna(value) else value for value in row)
        for row in plain.itertuples(index=False)
    )
