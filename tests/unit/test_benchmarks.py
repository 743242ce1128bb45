"""The benchmarks' own pipelines can be made: what they measure takes an hour to find that out."""

import pytest

from benchmarks import pipelines
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
