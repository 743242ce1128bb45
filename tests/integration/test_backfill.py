"""``ackledger backfill``: one batch an interval, none twice."""

from datetime import datetime
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline
from ledger.cli import runs
from ledger.cli.backfill import Every, intervals
from ledger.cli.base import app
from ledger.errors import InputError

BATCHES = "SELECT run_id, status, total, failed FROM batch_status ORDER BY batch_id"


@pytest.fixture
def backfill(environment, database, spark, monkeypatch, tmp_path):
    """Runs the command over a pipeline of a file a day, of which the third fails one record."""
    for day, text in enumerate(("1", "2\n3", "4\nfive"), 1):
        (tmp_path / f"2026-01-0{day}.csv").write_text(f"n\n{text}\n")
    flow = Pipeline("days")
    flow.source("days", FileSource("{{ interval_start | ds }}.csv", schema="n INT"))
    flow.sink("out", ParquetSink("out"), reads="days")
    monkeypatch.setattr(runs, "load", lambda target: flow)
    monkeypatch.setattr(runs, "spark_session", lambda pipeline, at: spark)

    def run(start, end, *more, code=0):
        arguments = ["days:made", "--from", start, "--to", end, *more]
        result = CliRunner().invoke(app, ["backfill", *arguments], standalone_mode=False)
        assert (result.return_value or 0) == code, result.output
        return result

    return run


def test_each_interval_is_a_batch_and_none_is_run_twice(backfill, ledger):
    """The command goes on where it was; what failed in one keeps none waiting, and its code."""
    backfill("2026-01-01", "2026-01-03")
    ran = [tuple(row) for row in ledger.rows(BATCHES)]
    assert ran == [
        ("backfill-2026-01-01T00:00-day", "settled", 1, 0),
        ("backfill-2026-01-02T00:00-day", "settled", 2, 0),
    ]
    output = backfill("2026-01-01", "2026-01-04", code=3)
    assert "2026-01-01 00:00 is decided: batch 1 is left as it is" in output.stderr
    assert [tuple(row) for row in ledger.rows(BATCHES)] == [
        *ran,
        ("backfill-2026-01-03T00:00-day", "settled", 2, 1),
    ]


def test_what_another_run_has_read_is_left_to_it(backfill, ledger):
    """It is named, and the others are run."""
    run = ["--from", "2026-01-01", "--to", "2026-01-02", "--run-id", "mine"]
    CliRunner().invoke(app, ["run", "days:made", *run], standalone_mode=False)
    output = backfill("2026-01-01", "2026-01-03")
    assert "2026-01-01 00:00 was read by run 'mine': batch 1 is left as it is" in output.stderr
    assert [row.run_id for row in ledger.rows(BATCHES)] == [
        "mine",
        "backfill-2026-01-02T00:00-day",
    ]


def test_an_overlap_is_refused(backfill, ledger):
    """What another run has read of a day is no day; nothing more is run."""
    run = ["--from", "2026-01-01T06:00:00", "--to", "2026-01-02"]
    CliRunner().invoke(app, ["run", "days:made", *run], standalone_mode=False)
    refused = backfill("2026-01-01", "2026-01-02").exception
    assert "expected intervals that do not overlap" in str(refused)
    assert len(ledger.rows(BATCHES)) == 1


def test_a_pipeline_without_intervals_has_none_to_fill(backfill, tmp_path, monkeypatch):
    """What reads what is new reads it whatever the interval."""
    pipeline = Pipeline("new")
    pipeline.source("days", FileSource(f"{tmp_path}/*.csv", schema="n INT", incremental=True))
    pipeline.sink("out", ParquetSink("out"), reads="days")
    monkeypatch.setattr(runs, "load", lambda target: pipeline)
    refused = backfill("2026-01-01", "2026-01-02").exception
    assert "reads what is new, whatever the interval" in str(refused)


@pytest.mark.parametrize(
    ("every", "start", "end", "count"),
    [
        (Every.HOUR, "2026-01-01", "2026-01-02", 24),
        (Every.WEEK, "2026-01-05", "2026-01-19", 2),
        (Every.MONTH, "2026-01-01", "2027-01-01", 12),
    ],
)
def test_intervals_fill_the_whole(every, start, end, count):
    """Without a gap, each as long as asked."""
    start, end = map(datetime.fromisoformat, (start, end))
    parts = intervals(start, end, every, {})
    assert len(parts) == count
    assert all(interval.end == other.start for interval, other in pairwise(parts))


@pytest.mark.parametrize(
    ("every", "start", "end", "message"),
    [
        (Every.WEEK, "2026-01-05", "2026-01-20", "with --every week is 2026-01-19 00:00 or"),
        (Every.DAY, "2026-01-05", "2026-01-05", "not after its start"),
        (Every.DAY, "2026-01-05T00:00:00", "2026-01-01T00:00:00+00:00", "not after its start"),
        (Every.MONTH, "2026-01-05", "2026-02-05", "expected the first day of a month"),
    ],
)
def test_what_is_no_whole_interval_is_refused(every, start, end, message):
    """Nothing is run."""
    with pytest.raises(InputError, match=message):
        intervals(datetime.fromisoformat(start), datetime.fromisoformat(end), every, {})
