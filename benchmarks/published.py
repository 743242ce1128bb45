"""Writes the figures into README.md, docs/cost.md and docs/scaling.md, and the picture:
``python -m benchmarks.published``.

A page has each table between a line ``<!-- figures: NAME -->`` and one that ends it; what is
between them is rewritten from ``benchmarks/results.json``.
"""

import json
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.data import CUSTOMERS, EVENTS, ORDERS, SENTENCES
from benchmarks.picture import cost
from benchmarks.volumes import volume_lines

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")
PAGES = tuple(ROOT / name for name in ("README.md", "docs/cost.md", "docs/scaling.md"))
PICTURE = ROOT / "docs" / "images" / "cost.svg"

Results = dict[str, Any]
Line = tuple[str, str, str]  # of a table
VARIANTS = (
    "one_plan",
    "one_plan_clustered",
    "plain",
    "plain_clustered",
    "structured_streaming",
    "untracked",
    "tracked",
)
BY_HAND = ("plain", "plain_clustered")  # with a step for each of the pipeline's
LARGE = {
    "flights": ("flights", "1,010,328 records, 5 steps, 15.6 % lost"),
    "flights_few_lost": ("flights with few planes missing", "the same, 0.1 % lost"),
    "flights_clean": ("flights with a left join", "the same, nothing lost"),
    "flights_delta": ("flights of a Delta table", "the same, nothing lost"),
    "wordcount": ("word count", "2 M sentences, 16 M words"),
    "purchases": ("a filter that Spark pushes down", "8 M events, three quarters dropped"),
    "revenue": ("a join, a combine and PostgreSQL", "4 M orders, 400,000 customers"),
}
FLIGHTS = 1_010_328  # records
_FLIGHTS = ("flights", "flights_few_lost", "flights_clean", "flights_delta")
RECORDS = {
    **dict.fromkeys(_FLIGHTS, FLIGHTS),
    "wordcount": SENTENCES,
    "purchases": EVENTS,
    "revenue": ORDERS + CUSTOMERS,
}
# How tracked should compare with each variant in throughput, where there is an aim.
AIMS: dict[str, dict[str, float]] = {
    "one_plan": {"wordcount": 1 / 1.9},
    "one_plan_clustered": {
        "flights": 1 / 1.8,
        "flights_few_lost": 1 / 1.7,
        "flights_clean": 1 / 1.45,
        "flights_delta": 1 / 1.10,
    },
    "plain_clustered": {"flights_clean": 1 / 0.75},
    "plain": {"flights": 0.70, "flights_few_lost": 0.80, "flights_clean": 0.85, "wordcount": 0.60},
    "structured_streaming": {**dict.fromkeys(_FLIGHTS, 0.80), "wordcount": 0.60},
    "untracked": dict.fromkeys((*_FLIGHTS, "wordcount"), 0.85),
}
# How long functions that carry records may take, compared with themselves alone.
CARRIED = {
    "row-wise": 1.15,
    "join": 1.35,
    "group by": 1.5,
    "distinct": 1.5,
    "window": 1.1,
    "chain": 1.5,
}
NAMES = {
    "one_plan": "one plan",
    "one_plan_clustered": "one plan with a clustered sink",
    "plain": "plain Spark",
    "plain_clustered": "plain Spark with clustered sinks",
    "structured_streaming": "Structured Streaming",
    "untracked": "the same pipeline untracked",
}

SHUFFLED = {"shuffled": "word count, shuffled by word"}
# Whose fold of the split is which of the aims.
FOLDED = (("in order", "wordcount", 40), ("shuffled", "shuffled", 8))
NOT_MEASURED = "-"


@dataclass(frozen=True)
class _Shown:
    """Figures as the pages have them."""

    results: Results

    def number(self, key: str, digits: str = ".2f", scale: float = 1) -> str:
        return format(self.results[key] * scale, digits)

    def inverse(self, key: str, digits: str = ".1f") -> str:
        """Return how many times as long it takes, from a ratio of throughputs."""
        return format(1 / self.results[key], digits)

    def times(self, name: str, other: str) -> str:
        """Return how many times as long tracked takes as another variant."""
        key = f"{name}.tracked_over_{other}_throughput"
        return self.inverse(key) if key in self.results else NOT_MEASURED

    def seconds(self, name: str, variant: str) -> str:
        """The median of a variant's rounds."""
        rounds = self.results[f"{name}.seconds"].get(variant)
        return f"{statistics.median(rounds):.1f}" if rounds else NOT_MEASURED

    def measured(self, name: str) -> str:
        """Commit, whether other changes than those of it were there, and rounds."""
        of = self.results["measured"][name]
        commit, _, dirty = of["commit"].partition("-")
        commit = f"{commit[:7]}-{dirty}" if dirty else commit[:7]
        return f"{commit}, {of['rounds']} round{'s' if of['rounds'] > 1 else ''}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("|" + "|".join(f" {cell} " for cell in line) + "|" for line in lines)


def summary(results: Results) -> str:
    """Figures of the README: time compared with one plan, storage, and rows that stay."""
    show, batch = _Shown(results), results["sizes.batch"]
    clean, words = (show.times(name, "one_plan") for name in ("flights_clean", "wordcount"))
    clustered = show.times("flights_clean", "one_plan_clustered")
    copied, source = (
        f"{sum(batch[f'{part}_bytes'] for part in parts) / FLIGHTS:.0f} MB"
        for parts in (("snapshot", "stage"), ("source",))
    )
    decided = results["losses"]["0"]["bytes_decided"] / 1e3
    failed = batch["failed_bytes"] / batch["failed"] / 1e3
    time = textwrap.fill(
        f"- **Time:** on 2 cores, a million flights without a loss take {clean} times as long as "
        f"in one Spark plan ({clustered} if it repartitions by output folder). A word count, whose "
        f"stages write their rows, takes {words} times as long.",
        width=122,
        subsequent_indent="  ",
    )
    return f"""\
{time}
- **Storage:** {copied} for a million flights ({source} of CSV): the source and the stages' outputs.
- **Ledger:** {decided:.1f} kB for ten million records, and {failed:.1f} kB for each failed record.
- [More figures, and how to pay less](docs/cost.md)"""


def large(results: Results) -> str:
    """Large batches: seconds of each variant, and throughput of tracked over the others."""
    show = _Shown(results)
    works = measured_works(results)
    seconds = [
        [f"seconds, {_words(variant)}", *(show.seconds(name, variant) for name in works)]
        for variant in VARIANTS
    ]
    times = [
        [f"tracked, compared with {words}", *(_long(show.times(name, other)) for name in works)]
        for other, words in NAMES.items()
    ]
    rows = [
        *(row for row in (*seconds, *times) if any(cell != NOT_MEASURED for cell in row[1:])),
        [
            "seconds, settlement alone (part of tracked)",
            *(show.number(f"{name}.settle_seconds", ".1f") for name in works),
        ],
        ["measured at", *map(show.measured, works)],
    ]
    return table(["", *(": ".join(title) for title in works.values())], rows)


def million(results: Results) -> str:
    """Return the cost of a million records beside the work itself."""
    works = measured_works(results)
    columns = [_million(results, name) for name in works]
    rows = zip(
        (
            "seconds of the work by hand, in plain Spark",
            "seconds more with ackledger",
            "of these, the settlement, which names each lost record",
            "MB of the storage, for a copy of the source",
            "rows of the ledger for the whole batch, until it is decided",
        ),
        *columns,
        strict=True,
    )
    head = ("for a million records", *(": ".join(title) for title in works.values()))
    return table(head, rows)


def _million(results: Results, name: str) -> list[str]:
    millions = RECORDS[name] / 1e6
    plain, tracked = (
        statistics.median(results[f"{name}.seconds"][variant]) for variant in ("plain", "tracked")
    )
    batch = results.get(f"{name}.batch")
    sizes_ = [NOT_MEASURED] * 2
    if batch is not None:
        sizes_ = [
            f"{batch['snapshot_bytes'] / millions / 1e6:.0f}",
            f"{batch['ledger_rows']:,}",
        ]
    return [
        f"{plain / millions:.1f}",
        f"{(tracked - plain) / millions:.1f}",
        f"{results[f'{name}.settle_seconds'] / millions:.1f}",
        *sizes_,
    ]


def measured_works(results: Results) -> dict[str, tuple[str, str]]:
    """Those of LARGE that have figures."""
    return {name: title for name, title in LARGE.items() if f"{name}.seconds" in results}


def small(results: Results) -> str:
    """Small batches, and parts of what tracking does."""
    show = _Shown(results)
    rows = [*_small_batch(show), *_guarantees(show), *_fold(show)]
    return table(("", "", "measured at"), ((*row, show.measured(of)) for *row, of in rows))


def _small_batch(show: _Shown) -> list[Line]:
    batch = (
        "Small batch in Airflow (1,000 records, five steps), compared with one bare spark-submit"
    )
    return [
        (
            f'{batch}: one driver for all steps (`submit="batch"`)',
            _long(show.number("small_batch.over_bare_spark_submit", ".1f")),
            "small_batch",
        ),
        (
            f"{batch}: one driver for each step",
            _long(show.number("small_batch.by_stage_over_bare_spark_submit", ".1f")),
            "small_batch",
        ),
        (
            "A `record_stage`, compared with the same function in `mapInArrow`",
            _long(show.inverse("record_stage.over_map_in_arrow_throughput")),
            "record_stage",
        ),
        *(
            (
                f'Noticing lost rows (`acks="on_emit"`), compared with `on_read`: {stage}',
                _long(show.number(f"on_emit_over_on_read_cost.{key}")),
                "on_emit",
            )
            for stage, key in (("an exploding stage", "split"), ("one row a record", "one_row"))
        ),
    ]


def _guarantees(show: _Shown) -> list[Line]:
    exactly = "exactly_once_over_at_least_once"
    publish = "Publishing a batch without failures, of 1 and of 10 million rows"
    return [
        (
            "Exactly once, compared with at least once",
            _long(show.inverse(f"{exactly}_throughput", ".2f")),
            "guarantee",
        ),
        (
            "Exactly once, compared with at least once and a Bloom filter",
            _long(show.inverse(f"{exactly}_with_bloom_throughput", ".2f")),
            "guarantee",
        ),
        ("Replaying 1 % of the flights", f"{show.number('replay_seconds', '.1f')} s", "replay"),
        *(
            (
                f"{publish}: {kind.capitalize()}",
                " and ".join(
                    f"{show.number(f'publish_seconds.{kind}.{rows}', '.0f', 1e3)} ms"
                    for rows in ("1m", "10m")
                ),
                "guarantee",
            )
            for kind in ("parquet", "delta")
        ),
    ]


def _fold(show: _Shown) -> list[Line]:
    return [
        *(
            (
                f"Rows that the kernel of tracking computes from written files: {words}",
                f"{show.number(f'fold_kernel_rows_per_second.{key}', digits, 1e-6)} million a "
                "second",
                "fold_kernel",
            )
            for words, key, digits in (
                ("in order", "in_order", ".0f"),
                ("shuffled", "shuffled", ".1f"),
            )
        ),
        (
            "Rows that are written to the ledger",
            f"{show.number('ledger_rows_per_second', '.1f', 1e-6)} million a second",
            "posting",
        ),
    ]


def aims(results: Results) -> str:
    """Each aim, what is reached of it, and whether that misses it, however it is rounded."""
    show = _Shown(results)
    kinds = (
        _batch_aims,
        _carried_aims,
        _settlement_aims,
        _scale_aims,
        _fold_aims,
        _history_aims,
    )
    rows = [aim.line() for kind in kinds for aim in kind(show)]
    return table(("times as long, if no unit is named", "aim", "measured", ""), rows)


@dataclass(frozen=True)
class _Aim:
    """Bound of a figure: at most this, or, of a ``rate``, at least. ``digits``: of the figure."""

    what: str
    aim: float
    figure: float
    digits: str = ".2f"
    rate: bool = False

    def line(self) -> tuple[str, str, str, str]:
        is_missed = self.figure < self.aim if self.rate else self.figure > self.aim
        whole = f"{self.aim:,.2f}".rstrip("0").rstrip(".")
        return (self.what, whole, format(self.figure, self.digits), "missed" if is_missed else "")


def _batch_aims(show: _Shown) -> Iterable[_Aim]:
    results = show.results
    small_batch = results["small_batch.over_bare_spark_submit"]
    yield _Aim("small batch, one driver, compared with a bare spark-submit", 1.25, small_batch)
    for name, (title, _) in measured_works(results).items():
        for other, values in AIMS.items():
            key = f"{name}.tracked_over_{other}_throughput"
            if key in results and name in values:
                what = f"{title}, tracked compared with {NAMES[other]}"
                yield _Aim(what, 1 / values[name], 1 / results[key])


def _carried_aims(show: _Shown) -> Iterable[_Aim]:
    results = show.results
    for work, aim in CARRIED.items():
        what = f"records carried through a function ({work}), compared with the function alone"
        yield _Aim(what, aim, results[f"carried.{work}.numbers_over_bare"])
    queries = f"{results['tpch.queries']} queries of TPC-H, orders and their lines carried through"
    yield _Aim(
        f"{queries}, compared with the queries alone", 1.15, results["tpch.numbers_over_bare"]
    )
    yield _Aim("an audit in a warm session, compared with the job", 2, results["audited_over_bare"])


def _settlement_aims(show: _Shown) -> Iterable[_Aim]:
    results = show.results
    works = measured_works(results)
    settle = {
        "flights": ("157,818 failures", 4),
        "flights_few_lost": ("a thousand failures", 1),
        "wordcount": ("2 M records without failures", 0.3),
    }
    for name, (what, aim) in settle.items():
        if name in works:
            yield _Aim(f"settlement of {what}, seconds", aim, results[f"{name}.settle_seconds"])
    if "losses" in results:
        clean, what = results["losses"]["0"], "10 M records without failures"
        yield _Aim(f"settlement of {what}, seconds", 0.5, clean["settle_seconds"])
        stays = f"{what}, bytes that stay in the ledger"
        yield _Aim(stays, 1024, clean["bytes_decided"], ",.0f")
    for what, key, aim in (
        (
            "settlement, compared with the bare `bit_xor ... GROUP BY`",
            "sweep_over_bare_group_by",
            2,
        ),
        ("bytes of the stages' files, compared with plain Spark", "storage_overhead", 1.05),
    ):
        for name, (title, _) in works.items():
            yield _Aim(f"{title}, {what}", aim, results[f"{name}.{key}"])


def _scale_aims(show: _Shown) -> Iterable[_Aim]:
    """Return how seconds and memory grow with size. The smallest size needs no Python workers."""
    by_size: dict[str, dict[str, Any]] = show.results.get("scale", {}).get("tracked", {})
    if not by_size:
        return
    first, (before, last) = next(iter(by_size)), [*by_size][-2:]
    figures: tuple[tuple[str, float, str, Callable[[dict[str, Any]], float]], ...] = (
        ("seconds per million records", 1.1, before, lambda of: of["seconds_per_million"]),
        ("peak memory of the driver", 1.15, first, lambda of: of["peak_rss_mb"]["driver"]),
        (
            "peak memory of Python workers",
            1.15,
            before,
            lambda of: of["peak_rss_mb"]["executors"],
        ),
    )
    for what, aim, since, figure in figures:
        growth = figure(by_size[last]) / figure(by_size[since])
        yield _Aim(f"{what}, {_size(last)} compared with {_size(since)}", aim, growth)
    most = max(of["ledger_rows_a_run"] for of in by_size.values())
    yield _Aim("rows of the ledger of a run and source, at most", 65_536, most, ",.0f")


def _size(name: str) -> str:
    return name.upper().replace("M", " M")


def _fold_aims(show: _Shown) -> Iterable[_Aim]:
    results = show.results
    for words, order, aim in (("in order", "in_order", 60), ("shuffled", "shuffled", 8)):
        what = f"the fold's kernel alone, million rows a second: {words}"
        rate = results[f"fold_kernel_rows_per_second.{order}"] / 1e6
        yield _Aim(what, aim, rate, ".1f", rate=True)
    for words, name, aim in FOLDED:
        ways = results.get(f"{name}.fold_rows_per_second", {}).get("split", {})
        for way, rate in ways.items():
            what = f"the fold in a batch, million rows a second: {words}, {way}"
            yield _Aim(what, aim, rate / 1e6, ".1f", rate=True)
    record_stage = 1 / results["record_stage.over_map_in_arrow_throughput"]
    yield _Aim("`record_stage`, compared with `mapInArrow`", 1 / 0.75, record_stage)


def _history_aims(show: _Shown) -> Iterable[_Aim]:
    results = show.results
    beside = "in a ledger with years of history, compared with an empty one"
    yield _Aim(f"a sweep {beside}", 1.2, results["history.sweep_over_empty"])
    yield _Aim(f"opening a batch {beside}", 1.2, results["history.open_over_empty"])
    status, first = (
        results["history.seconds"][name]["history"] * 1e3
        for name in ("status", "the first view of the pages")
    )
    slowest = results["history.slowest_page_seconds"] * 1e3
    yield _Aim("`status` there, ms", 100, status, ".0f")
    yield _Aim("the first view of the pages there, ms", 300, first, ".0f")
    yield _Aim("the slowest first page of a view there, ms", 100, slowest, ".0f")
    dead = results["history.dead_rows"] * 100
    yield _Aim("dead rows after 1,000 batches, per cent", 1, dead)


def large_batch(results: Results) -> str:
    """Milliseconds for the page of a batch with a million failures."""
    rows = [
        (name, f"{spent * 1e3:.0f}")
        for name, spent in results["history.large_batch_seconds"].items()
    ]
    measured = _Shown(results).measured("history")
    return table((f"a batch with a million failed records (at {measured})", "ms"), rows)


def history(results: Results) -> str:
    """Milliseconds in an empty ledger and in one with years of history."""
    rows = [
        (name, *(f"{of[ledger] * 1e3:.1f}" for ledger in ("empty", "history")))
        for name, of in results["history.seconds"].items()
    ]
    measured = _Shown(results).measured("history")
    return table((f"milliseconds (at {measured})", "empty", "with history"), rows)


def driver(results: Results) -> str:
    """A driver's CPU seconds, part by part."""
    parts, measured = results["driver_cpu_seconds"], _Shown(results).measured("driver")
    kinds = ("jvm", "python", "workers")
    rows = [
        [re.sub(r"^step (\w+)$", r"step `\1`", part), *(f"{spent[kind]:.2f}" for kind in kinds)]
        for part, spent in parts.items()
    ]
    whole = [f"{sum(spent[kind] for spent in parts.values()):.2f}" for kind in kinds]
    head = (f"part (at {measured})", "JVM", "Python", "workers")
    return table(head, [*rows, ["**all**", *whole]])


def steps(results: Results) -> str:
    """Seconds of each step by hand, without tracking, and what tracking adds. Steps that ran as one
    plan, each of which has the plan's seconds, are one row.
    """
    tables = []
    for name, (title, _) in measured_works(results).items():
        spent = results[f"{name}.step_seconds"]
        variants = [*(variant for variant in BY_HAND if variant in spent), "untracked"]
        rows = []
        for tracked, together in groupby(spent["untracked"], spent["tracked"].get):
            names = list(together)
            by_variant = [[spent[v][step] for step in names if step in spent[v]] for v in variants]
            rows.append(
                (
                    f"{names[0]} to {names[-1]}, one plan" if len(names) > 1 else names[0],
                    *(f"{sum(seconds):.1f}" if seconds else "" for seconds in by_variant),
                    f"{tracked - sum(by_variant[-1]):z.1f}",
                )
            )
        settle = f"{results[f'{name}.settle_seconds']:.1f}"
        rows.append(("settlement", *("" for _ in variants[:-1]), "0", settle))
        head = f"{title} (at {_Shown(results).measured(name)})"
        tables.append(table((head, *map(_words, variants), "added"), rows))
    return "\n\n".join(tables)


def folds(results: Results) -> str:
    """Million rows a second, of each fold of a batch by the way that it went."""
    rows = [
        (f"{title}, `{step}`", way, f"{rate / 1e6:.1f}", _Shown(results).measured(name))
        for name, title in {**{n: t for n, (t, _) in LARGE.items()}, **SHUFFLED}.items()
        for step, ways in results.get(f"{name}.fold_rows_per_second", {}).items()
        for way, rate in ways.items()
    ]
    head = ("fold of a step's rows in a batch", "way", "million rows a second", "measured at")
    return table(head, rows) if rows else "Not measured yet."


def scale(results: Results) -> str:
    """Seconds per million records and peak memory, by size."""
    if "scale" not in results:
        return "Not measured yet."
    sizes_ = next(iter(results["scale"].values()))
    rows = []
    for variant, by_size in results["scale"].items():
        rows += [
            [
                f"{_words(variant)}: seconds per million records",
                *(f"{by_size[size]['seconds_per_million']:.2f}" for size in sizes_),
            ],
            *(
                [
                    f"{_words(variant)}: peak memory of the {words}, MB",
                    *(f"{by_size[size]['peak_rss_mb'][kind]:,}" for size in sizes_),
                ]
                for words, kind in (("driver", "driver"), ("Python workers", "executors"))
            ),
        ]
    if all("ledger_rows_a_run" in of for of in results["scale"]["tracked"].values()):
        most = (of["ledger_rows_a_run"] for of in results["scale"]["tracked"].values())
        rows.append(["tracked: rows of the ledger, of a run at most", *(f"{n:,}" for n in most)])
    head = f"records (at {_Shown(results).measured('scale')})"
    return table((head, *map(_size, sizes_)), rows)


def losses(results: Results) -> str:
    """Return the cost of some lost records of ten million."""
    if "losses" not in results:
        return "Not measured yet."
    rows = (
        (
            f"{int(lost):,}",
            f"{of['steps_seconds']:.1f}",
            f"{of['settle_seconds']:.2f}",
            f"{of['publish_seconds']:.2f}",
            *(f"{of[key]:,.0f}" for key in ("rows_open", "rows_decided", "bytes_decided")),
        )
        for lost, of in results["losses"].items()
    )
    head = (
        f"lost of 10 M records (at {_Shown(results).measured('losses')})",
        "seconds of the steps",
        "seconds of the settlement",
        "seconds until it is published, with content",
        "rows of the ledger, open",
        "rows, decided",
        "bytes, decided",
    )
    return table(head, rows)


def sizes(results: Results) -> str:
    """Rows and bytes of a batch, for a million records, or a million failed ones."""
    of = results["sizes.batch"]
    records, failed = FLIGHTS / 1e6, of["failed"] / 1e6

    def megabytes(key: str, over: float) -> str:
        return f"{of[key] / over / 1e6:,.0f} MB"

    rows = [
        ("storage, the snapshot", "", megabytes("snapshot_bytes", records)),
        ("storage, the outputs of three stages", "", megabytes("stage_bytes", records)),
        (
            "ledger, while the batch is open",
            f"{of['deltas'] / records:,.0f}",
            megabytes("delta_bytes", records),
        ),
        (
            "ledger, permanently, per million failed records",
            "3,000,000",
            megabytes("failed_bytes", failed),
        ),
        ("for comparison: the source, as CSV", "", megabytes("source_bytes", records)),
        *(
            (f"peak memory of {words}", "", f"{results['sizes.peak_rss_mb'][kind]:,} MB")
            for words, kind in (("the driver", "driver"), ("the Python workers", "executors"))
        ),
    ]
    head = f"per million records (at {_Shown(results).measured('sizes')})"
    return table((head, "rows", "bytes"), rows)


def volumes(results: Results) -> str:
    """Return what larger batches take, by arithmetic."""
    rows = [(what, *cells, how) for what, cells, how in volume_lines(results, FLIGHTS)]
    return table(("", "1 million", "100 million", "1 billion", ""), rows)


def _long(ratio: str) -> str:
    return ratio if ratio == NOT_MEASURED else f"{ratio} times as long"


def _words(variant: str) -> str:
    return variant.replace("_", " ")


BLOCKS: dict[str, Callable[[Results], str]] = {
    part.__name__: part
    for part in (
        summary,
        million,
        large,
        small,
        aims,
        driver,
        steps,
        folds,
        scale,
        losses,
        history,
        large_batch,
        sizes,
        volumes,
    )
}
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def filled(page: str, results: Results) -> str:
    """A page with its tables rewritten."""
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]](results)}\n{match[3]}", page)


def main() -> None:
    """Write the tables of all pages, and the picture."""
    results = json.loads(RESULTS.read_text())
    for path in PAGES:
        path.write_text(filled(path.read_text(), results))
    PICTURE.write_text(cost(results, measured_works(results), VARIANTS))


if __name__ == "__main__":
    main()
