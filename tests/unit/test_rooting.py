"""How the rows of each stage of a pipeline are rooted."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.column_names import NUMBERS
from ledger.deltas.stored import Checksum
from ledger.errors import StageError
from ledger.spark.frames import anchors
from ledger.spark.frames.anchors import Rooting, rooting

FLAT = ("_ackledger_root", "_ackledger_parent")


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


NOTHING, BARE, EDGES = ((), []), (FLAT, ["bare"]), (FLAT, ["edges"])
LISTS = (("_ackledger_anchors",), ["bare", "edges", "most"])


def witnessed(*identity, counting=(), mixing=None):
    return identity, sorted(counting)


@pytest.mark.parametrize(
    ("track", "kinds"),
    [
        (None, {"alone": BARE, "total": LISTS, "after": LISTS, "sums": NOTHING}),
        ("n > 0", {"alone": EDGES, "after": EDGES, "sums": NOTHING}),
    ],
)
def test_how_rows_are_rooted(monkeypatch, track, kinds):
    """One root a row, or several if its anchors are lists; none behind the last tracked stage;
    where a source has untracked records a row may be without.
    """
    monkeypatch.setattr(anchors, "Witness", witnessed)
    pipeline = declared(track)
    lists = [] if track else ["_ackledger_anchors"]
    columns = {"total": lists, "after": lists}
    assert {
        name: rooting(pipeline, pipeline.step(name), columns.get(name, [])).wrote for name in kinds
    } == kinds


def test_rows_within_a_plan_may_have_numbers(monkeypatch):
    """They have neither a root nor a list of them."""
    monkeypatch.setattr(anchors, "Witness", witnessed)
    pipeline = declared()
    watched = rooting(pipeline, pipeline.step("total"), NUMBERS)
    assert watched.wrote == ((), ["bare", "most", "records"])


@pytest.mark.parametrize(
    ("limit", "counted", "anchors_", "edges", "message"),
    [
        (0, {}, 0, 0, None),
        (1, {"bare": 0}, 10, 7, None),
        (0, {"bare": 0, "most": 9, "records": 30}, 0, 0, None),
        (0, {"bare": 1, "most": 9, "records": 30}, 0, 0, "1 rows .* or the total of no rows:"),
        (1, {"bare": 2}, 10, 7, "2 rows that come from no record .* an outer join keeps: drop"),
        (1, {"edges": 6}, 10, 6, None),
        (5, {"bare": 0, "edges": 20, "most": 5}, 30, 20, None),
        (5, {"bare": 1, "edges": 20, "most": 5}, 30, 20, "1 rows .* or the total of no rows:"),
        (5, {"bare": 0, "edges": 20, "most": 6}, 30, 20, "a row of 6 records, max_anchors is 5"),
    ],
)
def test_what_was_counted(limit, counted, anchors_, edges, message):
    """Rows that failed or were dropped have no edge; a row needs a root where all records are
    tracked, and may have so many.
    """
    wrote = SimpleNamespace(rows=10, failed=2, dropped=1, counted=counted)
    watched = Rooting(declared().step("alone"), wrote, limit)
    assert watched.most == counted.get("most", 0)
    assert (watched.anchors, watched.edges) == (anchors_, edges)
    with nullcontext() if message is None else pytest.raises(StageError, match=message):
        watched.check()


@pytest.mark.parametrize(("counted", "rows"), [({"bare": 0}, 10), ({"bare": 0, "records": 30}, 30)])
def test_records_of_rows(counted, rows):
    """Each row has one record, unless its records are counted."""
    wrote = SimpleNamespace(checksum=Checksum(10, 7, 8), counted=counted)
    assert Rooting(declared().step("alone"), wrote, 1).records == Checksum(rows, 7, 8)
