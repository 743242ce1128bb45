"""Measure against plain Spark: ``make bench``. Writes ``benchmarks/results.json``, and the figures
of README.md, docs/cost.md and docs/scaling.md.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg2
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import (
    audited,
    carried,
    data,
    driver,
    folding,
    guarantees,
    history_figures,
    losses,
    plain,
    published,
    scale,
    small,
)
from benchmarks.measure import Bench, PeakMemory, data_bytes, fold_rows_per_second, seconds
from benchmarks.pipelines import (
    acking,
    by_record,
    failing,
    flights,
    flights_clean,
    flights_delta,
    flights_few_lost,
    purchases,
    revenue,
    shuffled,
    wordcount,
)
from benchmarks.sizes import sizes
from ledger import Pipeline
from ledger.settings import Settings
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade

HOME = Path("var/bench").absolute()
console = Console()


def main() -> int:
    """All measurements, or those asked for; the results as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds, after one warm-up")
    parser.add_argument(
        "--only", nargs="+", choices=FIGURES, help="just these figures, beside the others' last"
    )
    arguments = parser.parse_args()
    wanted = arguments.only or list(FIGURES)
    embedded.stop(HOME)
    for name in ("postgres", "storage", "plain"):
        shutil.rmtree(HOME / name, ignore_errors=True)
    results: dict[str, Any] = json.loads(published.RESULTS.read_text())
    of = {"commit": commit(), "rounds": arguments.rounds}

    def keep(name: str, figures: dict[str, Any]) -> None:
        """Keep the results of one benchmark when the next fails."""
        results.update(figures, machine=machine())
        results["measured"] = results.get("measured", {}) | {name: of}
        published.RESULTS.write_text(json.dumps(results, indent=2) + "\n")

    for name in wanted:
        if name in _DRIVERS:
            keep(name, _DRIVERS[name](HOME / name, arguments.rounds, console))
    warm = [name for name in wanted if name not in _DRIVERS]
    if warm:
        with console.status("input"):
            data.write(HOME / "data")
        _in_one_session(warm, arguments.rounds, keep)
    published.main()
    console.print(table(results))
    return 0


def _in_one_session(
    names: list[str], rounds: int, keep: Callable[[str, dict[str, Any]], None]
) -> None:
    """Figures of a warm session, medians over ``rounds``; a round runs every variant once, in
    turn.
    """
    url = embedded.start(HOME)
    database = Database(url)
    upgrade(database)
    os.environ[plain.REPORTS] = embedded.ensure_database(url, "reports")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 6g {scale.SESSION}"
    session = build_session("benchmarks", "local[2]")
    settings = Settings(home=HOME, storage=str(HOME / "storage"), data=str(HOME / "data"))
    bench = Bench(lambda pipeline: Job(session, database, settings, pipeline), settings, database)
    try:
        for name in names:
            with PeakMemory() as memory:
                figures = _WARM[name](session, bench, rounds)
            keep(name, figures | {f"{name}.peak_rss_mb": memory.mb})
    finally:
        session.stop()
        database.dispose()
        embedded.stop(HOME)


def _guarantee(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
    figures = guarantees.guarantee(bench, rounds, console)
    return figures | guarantees.publish(session, bench, HOME / "data", rounds, console)


def _throughput(
    name: str,
    make: Callable[[bool], Pipeline],
    by_hand: Callable[..., None],
    write: Callable[[SparkSession, Path], None] = lambda session, folder: None,
) -> Callable[..., dict[str, Any]]:
    """Return the measurement of a pipeline. ``write``: write input that ``data.write`` lacks."""

    def measured(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
        write(session, HOME / "data")
        ways = {"one_plan": plain.OnePlan(session), "plain": plain.Batches(session)}
        if not make(False).combined():  # a stream has no end after which to combine
            ways["structured_streaming"] = plain.Streams(session)
        if any(step.sink.partition_by for step in make(False).sinks()):
            ways["one_plan_clustered"] = plain.OnePlanClustered(session)
            ways["plain_clustered"] = plain.Clustered(session)

        def run(io: plain.Batches) -> dict[str, float]:
            by_hand(io, HOME / "data", HOME / "plain")
            return io.step_seconds

        others = {variant: partial(run, io) for variant, io in ways.items()}
        return throughput(name, bench, make, others, rounds, partial(calm, session))

    return measured


def calm(session: SparkSession) -> None:
    """Leave nothing of what was run before to what runs next: its files are on the disk, no table
    has its rows, and there are Python workers, which Spark ends after a minute without work."""

    def import_reader(batches: Iterator[Any]) -> Iterator[Any]:
        import ledger.sources.files.writing  # noqa: F401

        yield from batches

    url = os.environ[plain.REPORTS].replace("+psycopg2", "")
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {plain.REVENUE}")
    os.sync()
    session.range(0, 2, 1, 2).mapInArrow(import_reader, "id LONG").collect()


def _fold(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
    return folding.kernel_rows_per_second(session, HOME / "data", rounds, console)


def _losses(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
    return losses.measure(session, bench, rounds, HOME / "data", console)


def _shuffled(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
    """The word count with a shuffled split: how fast a run folds it, and the seconds of its
    steps.
    """
    folds, steps = [], []
    for number in track(range(rounds + 1), "shuffled: rounds", console=console):
        bench.batch(shuffled(True))
        if number > 0:
            folds.append(bench.folds)
            steps.append(bench.step_seconds)
    return {
        "shuffled.fold_rows_per_second": fold_rows_per_second(folds),
        "shuffled.step_seconds": {"tracked": _medians(steps)},
    }


def _posting(session: SparkSession, bench: Bench, rounds: int) -> dict[str, Any]:
    """Into the partition of a batch that was measured before."""
    bench.batch(failing(False))
    figures = folding.deltas_per_second(bench.database, rounds, console)
    return {"ledger_rows_per_second": figures}


def throughput(
    name: str,
    bench: Bench,
    make: Callable[[bool], Pipeline],
    others: Mapping[str, Callable[[], dict[str, float]]],
    rounds: int,
    before: Callable[[], None],
) -> dict[str, Any]:
    """Tracked, untracked, what others do by hand and the bare aggregate, interleaved; ratios of
    their medians. ``others``: run one, and return the seconds of its steps; ``before``: what is
    done before each variant, and not measured.
    """
    variants = ["tracked", "untracked", *others]
    taken: dict[str, list[float]] = {variant: [] for variant in variants}
    steps: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    folds = []
    overhead = 0.0
    settled: list[float] = []
    bare: list[float] = []
    sizes_: dict[str, int] = {}
    tracked_bytes: dict[str, int] = {}
    for number in track(range(rounds + 1), f"{name}: rounds", console=console):
        by_step, round_ = {}, {}
        for variant in variants:
            before()
            if variant in others:
                started = time.perf_counter()
                by_step[variant] = dict(others[variant]())
                round_[variant] = time.perf_counter() - started
                if variant == "plain" and tracked_bytes:
                    overhead = _overhead(tracked_bytes)
                shutil.rmtree(HOME / "plain", ignore_errors=True)  # unless only a table was written
                continue
            _, times = bench.batch(make(variant == "tracked"))
            by_step[variant], round_[variant] = bench.step_seconds, times.total
            if variant == "tracked":
                tracked_bytes, tracked_folds = dict(bench.written), bench.folds
                sizes_ = {
                    "snapshot_bytes": bench.snapshot_bytes,
                    "ledger_rows": sum(bench.ledger_rows.values()),
                }
                settle = times.settle
        before()
        bare_seconds = bench.bare(make(True))
        if number > 0:
            settled.append(settle)
            bare.append(bare_seconds)
            folds.append(tracked_folds)
            for variant in variants:
                taken[variant].append(round_[variant])
                steps[variant].append(by_step[variant])
    median = {variant: statistics.median(values) for variant, values in taken.items()}
    return {
        **{
            f"{name}.tracked_over_{other}_throughput": median[other] / median["tracked"]
            for other in ("untracked", *others)
        },
        f"{name}.tracked_records_per_second": published.RECORDS[name] / median["tracked"],
        f"{name}.sweep_over_bare_group_by": statistics.median(settled) / statistics.median(bare),
        f"{name}.settle_seconds": statistics.median(settled),
        f"{name}.storage_overhead": overhead,
        f"{name}.batch": sizes_,
        f"{name}.seconds": taken,
        f"{name}.step_seconds": {variant: _medians(rounds_) for variant, rounds_ in steps.items()},
        f"{name}.fold_rows_per_second": fold_rows_per_second(folds),
    }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """By step."""
    return {step: statistics.median(measures[step] for measures in rounds) for step in rounds[0]}


def _overhead(tracked: dict[str, int]) -> float:
    """Bytes that the stages' outputs take with tracking, over those that they take by hand."""
    plain = {
        path.name: data_bytes(path) for path in (HOME / "plain").iterdir() if path.name in tracked
    }
    return sum(tracked[name] for name in plain) / sum(plain.values())


def record_stage(session: SparkSession, bench: Bench, rounds: int) -> dict[str, float]:
    """A record stage, with its deltas and commit, against the same function in mapInArrow by
    hand.
    """
    taken: dict[str, list[float]] = {"stage": [], "plain": []}
    for number in track(range(rounds + 1), "record stage: rounds", console=console):
        stage, snapshot = bench.step(by_record(), "counted")
        by_hand = seconds(partial(plain.counted, session, snapshot, HOME / "plain"))
        shutil.rmtree(HOME / "plain")
        if number > 0:
            taken["stage"].append(stage)
            taken["plain"].append(by_hand)
    median = {name: statistics.median(values) for name, values in taken.items()}
    return {"record_stage.over_map_in_arrow_throughput": median["plain"] / median["stage"]}


def on_emit(session: SparkSession, bench: Bench, rounds: int) -> dict[str, float]:
    """Acks by comparison with what was emitted, against acks by reading alone, of the same
    stage.
    """
    costs = {}
    for name, pipeline, stage in (
        ("split", wordcount(True), "split"),
        ("one_row", flights(True), "parse"),
    ):
        batch = bench.batch_before(pipeline, stage)
        taken: dict[Literal["on_emit", "on_read"], list[float]] = {"on_emit": [], "on_read": []}
        for number in track(range(rounds + 1), f"on_emit, {name}: rounds", console=console):
            for acks, values in taken.items():
                stage_seconds = bench.step_of(batch, acking(pipeline, stage, acks), stage)
                if number > 0:
                    values.append(stage_seconds)
        median = {acks: statistics.median(values) for acks, values in taken.items()}
        costs[f"on_emit_over_on_read_cost.{name}"] = median["on_emit"] / median["on_read"]
    return costs


def replay(session: SparkSession, bench: Bench, rounds: int) -> dict[str, float]:
    """Seconds to replay the 1 % of the flights that failed."""
    taken = []
    for number in track(range(rounds + 1), "replay: rounds", console=console):
        original, _ = bench.batch(failing(True))
        _, times = bench.replay(failing(False), original)
        if number > 0:
            taken.append(times.total)
    return {"replay_seconds": statistics.median(taken)}


# Where each measurement starts drivers of its own, or none, and those of one warm session.
_DRIVERS: dict[str, Callable[[Path, int, Console], dict[str, Any]]] = {
    "small_batch": small.measure,
    "driver": driver.parts,
    "history": history_figures.measure,
    "scale": scale.measure,
}
_WARM: dict[str, Callable[[SparkSession, Bench, int], dict[str, Any]]] = {
    "guarantee": _guarantee,
    "flights": _throughput("flights", flights, plain.flights),
    "flights_few_lost": _throughput("flights_few_lost", flights_few_lost, plain.flights_few_lost),
    "flights_clean": _throughput("flights_clean", flights_clean, plain.flights_clean),
    "flights_delta": _throughput(
        "flights_delta", flights_delta, plain.flights_delta, data.flights_table
    ),
    "wordcount": _throughput("wordcount", wordcount, plain.wordcount),
    "purchases": _throughput("purchases", purchases, plain.purchases, data.events),
    "revenue": _throughput("revenue", revenue, plain.revenue, data.orders),
    "record_stage": record_stage,
    "on_emit": on_emit,
    "replay": replay,
    "posting": _posting,
    "fold_kernel": _fold,
    "shuffled": _shuffled,
    "losses": _losses,
    "sizes": partial(sizes, home=HOME),
    "carried": partial(carried.measure, home=HOME),
    "audited": partial(audited.audited, home=HOME),
    "tpch": partial(audited.tpch, home=HOME),
}
FIGURES = (*_DRIVERS, *_WARM)


def commit() -> str:
    """Return the commit that was measured, and whether files differ from it."""
    described = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(described, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def table(results: dict[str, Any]) -> Table:
    """The figures, one a row."""
    figures = Table("figure", "value")
    for key, value in results.items():
        if not key.endswith((".seconds", ".step_seconds", "measured")):
            for name, figure in _leaves(key, value):
                text = f"{figure:,.2f}" if isinstance(figure, float) else str(figure)
                figures.add_row(name, text)
    return figures


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from _leaves(f"{name}: {part}", inner)
    elif not isinstance(value, list):
        yield name, value


if __name__ == "__main__":
    sys.exit(main())
