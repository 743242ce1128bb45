"""Pipelines whose sources are others than when a batch was opened, or claimed a range."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.errors import InputError, NotReadyError
from tests.support.feeds import Feed, fed


@pytest.fixture
def feed(tmp_path):
    """A log with three numbers."""
    log = Feed(tmp_path)
    log.add(1, 2, 3)
    return log


def claimed(run, source):
    """How many batches claim a range of a source."""
    query = "SELECT count(*) FROM batch_source WHERE source = :source AND claim_number IS NOT NULL"
    return run.ledger.row(query, source=source)[0]


def test_a_batch_that_opens_again_claims_nothing_of_a_new_source(runner, feed, tmp_path):
    """It has no step that would read it: its range would pass for read, and be lost."""
    run = runner(fed(feed))
    batch = run.open_day(1)
    assert run.ledger.abandon(batch.batch_id, "its source failed")
    other = Feed(tmp_path, "other")
    other.add(7)
    changed = runner(fed(feed, other))
    with pytest.raises(NotReadyError, match=r"opened without a step 'other'.* open a new run"):
        changed.open_day(1)
    assert claimed(changed, "other") == 0
    changed.settled(changed.open_day(2))
    assert (claimed(changed, "feed"), claimed(changed, "other")) == (1, 1)
    assert (feed.forgotten, other.forgotten) == (3, 1)


@pytest.mark.parametrize("incremental", [True, False])
def test_a_source_that_was_read_by_offsets_stays_so(runner, feed, tmp_path, incremental):
    """Nothing would read a range that an abandoned batch has given back."""
    run = runner(fed(feed))
    batch = run.open_day(1)
    assert run.ledger.abandon(batch.batch_id, "its source failed")
    (tmp_path / "numbers.csv").write_text("n\n1\n")
    files = Pipeline("fed")
    files.source(
        "feed",
        FileSource(str(tmp_path / "numbers.csv"), schema="n INT", incremental=incremental),
    )
    files.sink("out", ParquetSink("out"), reads="feed")
    with pytest.raises(InputError, match=r"was read by offsets.* under a new name"):
        runner(files).open_day(2)
    assert claimed(run, "feed") == 1


def test_an_offset_that_is_missing_is_an_error(runner, feed, monkeypatch):
    """``None`` after the first offset would claim nothing for ever, and every run be green."""
    run = runner(fed(feed))
    run.settled(run.open_day(1))
    monkeypatch.setattr(Feed, "latest", lambda feed, start, room: None)
    with pytest.raises(InputError, match="latest returned None after offset 3: expected"):
        run.open_day(2)
