"""How the rows of each stage of a pipeline are rooted."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.column_names import NUMBERS
from ledger.spark.frames.anchors import (
    NumberedRoots,
    OneRoot,
    OptionalRoot,
    Rooting,
    Roots,
    rooting,
)


def declared(track=None):
    """numbers -> alone -> total -> after -> sums (behind the last tracked stage) -> out."""
    pipeline = Pipeline("rooted", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"), track=track)
    reads = "numbers"
    for name, options in [
        ("alone", {}),
        ("total", {}),
        ("after", {}),
        ("sums", {"acks": "untracked"}),
    ]:

        def stage(frame):
            return frame

        stage.__name__ = name
        pipeline.stage(reads=reads, **options)(stage)
        reads = name
    pipeline.sink("out", ParquetSink("out"), reads=reads)
    return pipeline


@pytest.mark.parametrize(
    ("track", "kinds"),
    [
        (None, {"alone": OneRoot, "total": Roots, "after": Roots, "sums": Rooting}),
        ("n > 0", {"alone": OptionalRoot, "after": OptionalRoot, "sums": Rooting}),
    ],
)
def test_how_rows_are_rooted(track, kinds):
    """One root a row, or several if its anchors are lists; none behind the last tracked stage;
    where a source has untracked records a row may be without.
    """
    pipeline = declared(track)
    lists = [] if track else ["_ackledger_anchors"]
    columns = {"total": lists, "after": lists}
    kinds_of = {
        name: type(rooting(pipeline, pipeline.step(name), columns.get(name, []))) for name in kinds
    }
    assert kinds_of == kinds


def test_rows_within_a_plan_may_have_numbers():
    """They have neither a root nor a list of them."""
    pipeline = declared()
    assert isinstance(rooting(pipeline, pipeline.step("total"), NUMBERS), NumberedRoots)
