"""The benchmarks' own pipelines can be made: what they measure takes an hour to find that out. And
the pages have the figures that were measured.
"""

import json
import logging
import re
import statistics

import pytest

from benchmarks import data, pipelines, published
from benchmarks.history_figures import NEWEST
from benchmarks.measure import Fold, FoldLog, fold_rows_per_second
from ledger import Pipeline

RESULT = {
    "flights": lambda: pipelines.flights(True),
    "clean flights": lambda: pipelines.flights_clean(0),
    "flights, few lost": lambda: pipelines.flights_few_lost(2),
    "shuffled word count": lambda: pipelines.shuffled(True),
    "measurements": lambda: pipelines.measurements("records", True),
    "measurements, some lost": lambda: pipelines.measurements("records", True, lose_every=10),
    "word count": lambda: pipelines.wordcount(True),
    "purchases": lambda: pipelines.purchases(True),
    "revenue": lambda: pipelines.revenue(True),
    "failing": lambda: pipelines.failing(True),
    "with a filter": lambda: pipelines.guaranteed("bloom"),
    "a table": lambda: pipelines.sized("small", "delta"),
    "by record": pipelines.by_record,
    "acking": lambda: pipelines.acking(pipelines.wordcount(True), "split", "on_read"),
}


@pytest.mark.parametrize("make", RESULT.values(), ids=RESULT)
def test_each_pipeline_has_a_topology(make):
    """From its sources to a sink, as it would be opened."""
    result = make()
    assert isinstance(result, Pipeline)
    kinds = [step.kind for step in result.topology()]
    assert (kinds[0], kinds[-1]) == ("source", "sink")


@pytest.mark.parametrize("page", published.PAGES, ids=lambda path: path.name)
def test_the_pages_have_the_figures_that_were_measured(page):
    """Their tables are those of results.json; a figure that changes there changes here, and a ratio
    of throughputs is given as how many times as long it takes.
    """
    text, results = page.read_text(), json.loads(published.RESULTS.read_text())
    assert published.filled(text, results) == text, "run python -m benchmarks.published"
    results["flights.tracked_over_plain_throughput"] = 0.125
    results["wordcount.tracked_over_one_plan_throughput"] = 0.125
    results["sizes.batch"]["snapshot_bytes"] = published.FLIGHTS * 321
    expected = {
        "README.md": "takes 8.0 times as",
        "cost.md": "| 8.0 times as long |",
        "scaling.md": "| 321 MB |",
    }
    assert expected[page.name] in published.filled(text, results)


def test_the_picture_has_the_figures_that_were_measured():
    """It is made of results.json, too."""
    results = json.loads(published.RESULTS.read_text())
    works = published.measured_works(results)
    picture = lambda: published.cost(results, works, published.VARIANTS)  # noqa: E731
    assert picture() == published.PICTURE.read_text(), "run python -m benchmarks.published"
    results["flights.seconds"]["tracked"] = [98.7]
    assert "98.7 s" in picture()


def test_each_table_is_on_a_page():
    """Once, all of them."""
    matches = [
        name for page in published.PAGES for name in re.findall(r"figures: (\w+)", page.read_text())
    ]
    assert sorted(matches) == sorted(published.BLOCKS)


def test_a_history_costs_what_it_may():
    """With 10,000 batches: a sweep and the opening of a batch by at most a fifth more than in an
    empty ledger, status and the first page of each view at most 100 ms, the first view of the
    pages at most 300; few rows are dead.
    """
    results = json.loads(published.RESULTS.read_text())
    assert results["history.sweep_over_empty"] <= 1.2
    assert results["history.open_over_empty"] <= 1.2
    took = {name: of["history"] for name, of in results["history.seconds"].items()}
    pages = {"status", *(f"view {view}" for view in NEWEST)}
    assert {name: took[name] for name in pages if took[name] > 0.1} == {}
    assert took["the first view of the pages"] <= 0.3
    assert results["history.dead_rows"] < 0.01


def fold_record(rows, seconds, way):
    """As a run logs it."""
    return {"fold_rows": rows, "fold_seconds": seconds, "fold_way": way}


def test_folds_are_collected_from_the_log():
    """Those of a run, once; other lines of the same logger are not taken for one."""
    collector = FoldLog("ledger.spark.made_for_a_test")
    log = logging.getLogger("ledger.spark.made_for_a_test")
    log.info("folded %d rows", 10, extra=fold_record(10, 0.5, "in windows"))
    log.info("something else")
    assert collector.take() == [Fold(10, 0.5, "in windows")]
    assert collector.take() == []


def test_the_collector_hears_what_the_library_logs():
    """Without a level that anybody else has set."""
    collector = FoldLog()
    log = logging.getLogger("ledger.spark.folding.fold")
    log.info("folded %d rows", 7, extra=fold_record(7, 1.0, "exchanged"))
    assert collector.take() == [Fold(7, 1.0, "exchanged")]
    log.removeHandler(collector)


def test_rows_folded_a_second():
    """The rows of a step over its seconds, by way, as the median of rounds; a fold of nothing says
    nothing.
    """
    rounds = [
        {"split": [Fold(100, 1, "a"), Fold(300, 1, "a"), Fold(50, 1, "b")], "words": []},
        {"split": [Fold(400, 1, "a"), Fold(0, 0, "b")]},
        {"split": [Fold(900, 1, "a")], "words": [Fold(10, 0.5, "b")]},
    ]
    assert fold_rows_per_second(rounds) == {"split": {"a": 400, "b": 50}, "words": {"b": 20}}


def measured_everywhere():
    """The results, with figures made up for some, and for whatever was not measured yet."""
    results = json.loads(published.RESULTS.read_text())
    results["flights_clean.seconds"].pop("plain_clustered", None)
    results.pop("flights_clean.tracked_over_plain_clustered_throughput", None)
    results = {key: value for key, value in results.items() if "few_lost" not in key}
    few = {key: value for key, value in results.items() if key.startswith("flights_clean.")}
    results |= {key.replace("clean", "few_lost"): value for key, value in few.items()}
    for name in ("flights_few_lost", "shuffled", "scale"):
        results["measured"][name] = {"commit": "0123456789", "rounds": 2}
    results["flights.seconds"]["plain_clustered"] = [77.7]
    results["flights.tracked_over_plain_clustered_throughput"] = 0.125
    results["flights.step_seconds"]["plain"] = {"parse": 66.6}
    results["wordcount.fold_rows_per_second"] = {"split": {"in windows": 41.5e6}}
    results["shuffled.fold_rows_per_second"] = {"split": {"exchanged": 5.5e6}}
    results["wordcount.batch"] = {
        "snapshot_bytes": 150_000_000, "ledger_rows": 46_000
    }  # fmt: skip
    results["wordcount.settle_seconds"] = 0.25
    results["wordcount.seconds"] |= {"plain": [5.0, 7.0, 6.0], "tracked": [10.0, 9.0]}
    results |= {"carried.join.numbers_over_bare": 1.36, "audited_over_bare": 1.99}
    size = {"seconds_per_million": 3.25, "peak_rss_mb": {"driver": 4321, "executors": 987}}
    size["ledger_rows_a_run"] = 65_432
    results["scale"] = {variant: {"1m": size, "30m": size} for variant in ("tracked", "plain")}
    return results


NEW = {
    "large": ("77.7 | - | - | - |", "8.0 times as long | - |", "0.1 % lost"),
    "steps": ("| parse | 66.6 |", "| departures |  |"),
    "folds": ("word count, `split` | in windows | 41.5 |", "| exchanged | 5.5 | 0123456, 2 rounds"),
    "million": (" | 3.0 |\n", " | 1.8 |\n", " | 0.1 |\n", " | 75 |\n", " | 46,000 |"),
    "scale": (
        "| records (at 0123456, 2 rounds) | 1 M | 30 M |",
        "| 3.25 | 3.25 |",
        "| 4,321 |",
        "of a run at most | 65,432 | 65,432 |",
    ),
    "aims": (
        "in order, in windows | 40 | 41.5 |  |",
        "shuffled, exchanged | 8 | 5.5 | missed |",
        "kernel alone",
        "30 M compared with 1 M | 1.15 | 1.00 |  |",
        "| 65,536 | 65,432 |",
        "(join), compared with the function alone | 1.35 | 1.36 | missed |",
        "compared with the job | 2 | 1.99 |  |",
    ),
}


@pytest.mark.parametrize("block", NEW)
def test_figures_are_shown_once_they_are_measured(block):
    """Each in its table; until then the table is as complete as what was measured."""
    result = published.BLOCKS[block](measured_everywhere())
    assert [text for text in NEW[block] if text not in result] == []
    without = json.loads(published.RESULTS.read_text())
    for key in [key for key in without if "few_lost" in key or "fold_rows" in key]:
        del without[key]
    without.pop("scale", None)
    assert "few planes missing" not in published.BLOCKS[block](without)


@pytest.mark.parametrize("name", ["purchases", "revenue"])
def test_a_work_without_aims_is_shown_once_it_is_measured(name):
    """In each table of all works, and with no aim compared with another variant."""
    results = measured_everywhere()
    clean = {key: value for key, value in results.items() if key.startswith("flights_clean.")}
    results |= {key.replace("flights_clean", name): value for key, value in clean.items()}
    results["measured"][name] = {"commit": "0123456789", "rounds": 2}
    title, size = published.LARGE[name]
    for block in ("large", "million"):
        assert f" {title}: {size} |" in published.BLOCKS[block](results)
    assert f"| {title} (at 0123456, 2 rounds) |" in published.steps(results)
    assert f"{title}, tracked compared with" not in published.aims(results)
    tracked = statistics.median(results[f"{name}.seconds"]["tracked"])
    plain = statistics.median(results[f"{name}.seconds"]["plain"])
    more = (tracked - plain) / (published.RECORDS[name] / 1e6)
    assert f" | {more:.1f} |\n" in published.million(results)


def test_the_picture_has_a_bar_for_each_variant_that_was_measured():
    """And none for what was not."""
    results = measured_everywhere()
    works = published.measured_works(results)
    result = published.cost(results, works, published.VARIANTS)
    assert result.count("77.7 s") == 1
    bars = sum(len(results[f"{name}.seconds"]) for name in works)
    assert result.count("<rect") == bars + 1


def test_few_flights_are_lost(tmp_path):
    """The list of planes has every one that flew but a few, and a plane for flights without one."""
    (tmp_path / "flights").mkdir()
    flown = ["N1"] * 800 + ["N2"] * 900 + ["N3"] * 150 + ["NA"] * 60 + ["N4"] * 200
    lines = "\n".join(f"{number},{plane}" for number, plane in enumerate(flown))
    (tmp_path / "flights" / "2013-01-01.csv").write_text(f"id,tailnum\n{lines}\n")
    (tmp_path / "planes.csv").write_text("tailnum,year,seats\nN2,1999,20\nN9,2000,30\n")
    data.few_missing(tmp_path)
    listed = (tmp_path / data.FEW_MISSING).read_text().splitlines()
    assert listed == ["tailnum,year,seats", "N2,1999,20", "N4,NA,NA", "none,NA,NA"]


@pytest.mark.parametrize("variant", ["once", "least", "bloom"])
def test_flights_under_each_guarantee_are_tracked(variant):
    """By the option that a batch is opened with, on or off."""
    assert pipelines.guaranteed(variant).tracking is True
