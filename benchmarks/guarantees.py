"""Cost of exactly once, and a check that publishing a clean batch takes time by its files, not by
its rows.
"""

import statistics
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track

from benchmarks.measure import Bench
from benchmarks.pipelines import guaranteed, sized

SIZES = {"1m": 1_000_000, "10m": 10_000_000}
FILES = 4


def guarantee(bench: Bench, rounds: int, console: Console) -> dict[str, float]:
    """The flights up to where they are published, exactly once against at least once without and
    with a filter.
    """
    taken: dict[str, list[float]] = {"once": [], "least": [], "bloom": []}
    for number in track(range(rounds + 1), "guarantee: rounds", console=console):
        for variant, values in taken.items():
            _, times = bench.batch(guaranteed(variant))
            if number > 0:
                values.append(times.total)
    median = {variant: statistics.median(values) for variant, values in taken.items()}
    return {
        "exactly_once_over_at_least_once_throughput": median["least"] / median["once"],
        "exactly_once_over_at_least_once_with_bloom_throughput": median["bloom"] / median["once"],
    }


def publish(
    session: SparkSession, bench: Bench, data: Path, rounds: int, console: Console
) -> dict[str, float]:
    """Seconds to publish a clean batch of few and of many rows in as many files, by sink."""
    for name, rows in SIZES.items():
        folder = str(data / f"rows-{name}")
        if not Path(folder).exists():
            session.range(rows).repartition(FILES).write.parquet(folder)
    figures: dict[str, list[float]] = {}
    for number in track(range(rounds + 1), "publish: rounds", console=console):
        for name in SIZES:
            for kind in ("parquet", "delta"):
                _, times = bench.batch(sized(name, kind))
                if number > 0:
                    figures.setdefault(f"publish_seconds.{kind}.{name}", []).append(times.publish)
    return {name: statistics.median(values) for name, values in figures.items()}
