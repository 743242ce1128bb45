"""The benchmarks' own pipelines can be made: what they measure takes an hour to find that out. And
the pages have the figures that were measured.
"""

import json
import re

import pytest

from benchmarks import pipelines, published
from benchmarks.history_figures import NEWEST
from ledger import Pipeline

MADE = {
    "flights": lambda: pipelines.flights(2),
    "clean flights": lambda: pipelines.flights_clean(0),
    "word count": lambda: pipelines.wordcount(2),
    "failing": lambda: pipelines.failing(True),
    "with a filter": lambda: pipelines.guaranteed("bloom"),
    "a table": lambda: pipelines.sized("small", "delta"),
    "by record": pipelines.by_record,
    "acking": lambda: pipelines.acking(pipelines.wordcount(2), "split", "on_read"),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_each_pipeline_has_a_topology(make):
    """From its sources to a sink, as it would be opened."""
    made = make()
    assert isinstance(made, Pipeline)
    kinds = [step["kind"] for step in made.topology()]
    assert (kinds[0], kinds[-1]) == ("source", "sink")


@pytest.mark.parametrize("page", published.PAGES, ids=lambda path: path.name)
def test_the_pages_have_the_figures_that_were_measured(page):
    """Their tables are those of results.json; a figure that changes there changes here, and a
    ratio of throughputs is told as how many times as long it takes.
    """
    text, results = page.read_text(), json.loads(published.RESULTS.read_text())
    assert published.filled(text, results) == text, "run python -m benchmarks.published"
    results["flights.tracked_over_plain_throughput"] = 0.125
    results["sizes.batch"]["snapshot_bytes"] = published.FLIGHTS * 321
    expected = {"README.md": "8.0 times as long", "cost.md": "8.0", "sizing.md": "321 MB"}
    assert f"| {expected[page.name]} |" in published.filled(text, results)


def test_the_picture_has_the_figures_that_were_measured():
    """It is made of results.json, too."""
    results = json.loads(published.RESULTS.read_text())
    picture = lambda: published.cost(results, published.LARGE, published.VARIANTS)  # noqa: E731
    assert picture() == published.PICTURE.read_text(), "run python -m benchmarks.published"
    results["flights.seconds"]["tracked"] = [98.7]
    assert "98.7 s" in picture()


def test_each_table_is_on_a_page():
    """Once, all of them."""
    found = [
        name for page in published.PAGES for name in re.findall(r"figures: (\w+)", page.read_text())
    ]
    assert sorted(found) == sorted(published.BLOCKS)


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
