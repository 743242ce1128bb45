"""Crashes of a source that is read by offsets: killed at each arrow, the next batch reads on."""

from collections import Counter
from collections.abc import Iterator

import pyarrow.dataset as ds
import pytest

from ledger.core.states import Outcome
from ledger.spark.job import Job
from tests.support import feeds
from tests.support.children import Children
from tests.support.crashing import BATCH, STAGE, run_whole
from tests.support.stop_lab import NOTHING, StopLab, standing

FIRST, BOTH, ALL = (Counter(range(1, end)) for end in (4, 6, 7))


class FeedLab(StopLab):
    """Two batches of a feed; the first is done."""

    def write(self) -> None:
        """Write what the first batch finds."""
        feeds.Feed(self.folder).add(1, 2, 3)

    def before(self, stop: str) -> str:
        """There is one stop."""
        return NOTHING

    def advance(self, stop: str) -> None:
        """The first batch; what the second finds."""
        self.run(1)
        feeds.Feed(self.folder).add(4, 5)

    def job(self) -> Job:
        """The surroundings of the pipeline in this process."""
        return self.job_of(feeds.of_folder(str(self.folder)))

    def run(self, day: int, form: str = STAGE) -> None:
        """The pending steps of a day's batch, in that form."""
        job = self.job()
        run_whole(job, feeds.opened(job, day), form)

    def shown(self) -> Counter[int]:
        """What a reader of the sink sees."""
        table = ds.dataset(self.folder / "out", partitioning="hive", format="parquet").to_table()
        return Counter(table["n"].to_pylist())


# One kill of these; ``make test-all`` has every one.
OFTEN = frozenset(("posted-retry-batch",))


@pytest.fixture(scope="module")
def lab(spark, server_home) -> Iterator[FeedLab]:
    """The feed after its first batch."""
    with standing(FeedLab, spark, server_home) as crash_lab:
        yield crash_lab


@pytest.mark.parametrize("form", [STAGE, BATCH])
@pytest.mark.parametrize("other_first", [False, True], ids=["retry", "another-batch-first"])
@pytest.mark.parametrize(
    "place",
    [
        "sources asked",
        "opening batch",
        "before run",
        "files written",
        "deltas posted",
        "committing run",
        "run committed",
    ],
    ids=["asked", "claimed", "opened", "read", "posted", "in-its-commit", "committed"],
)
def test_a_killed_reader_is_gone_on_from(lab, children, place, other_first, form):
    """Run again, or overtaken by the next batch, every record is published once, and committed."""
    lab.go_to("first done")
    _kill(lab, children, place, form)
    assert lab.shown() == FIRST
    claimed = place not in ("sources asked", "opening batch")
    feed = feeds.Feed(lab.folder)
    feed.add(6)
    for row in lab.ledger.rows("SELECT batch_id FROM batch"):
        lab.ledger.age(row.batch_id, 120)
    if other_first:
        lab.run(3, form)
        # What the killed batch has claimed stays its own, and it is not finished.
        assert lab.shown() == (Counter([1, 2, 3, 6]) if claimed else ALL)
        assert feed.forgotten == (3 if claimed else 6)
    lab.run(2, form)
    lab.run(3, form)
    _check_end(lab)


@pytest.mark.parametrize("form", [STAGE, BATCH])
@pytest.mark.parametrize(
    "place",
    ["before acks", "ack returned", "recording ack"],
    ids=["before-commit", "after-commit", "being-noted"],
)
def test_a_killed_ack_comes_again(lab, children, place, form):
    """What the source forgets it forgets late or twice; nothing that is still to be read."""
    lab.go_to("first done")
    _kill(lab, children, place, form)
    assert lab.shown() == BOTH
    feeds.Feed(lab.folder).add(6)
    lab.run(2, form)
    lab.run(3, form)
    _check_end(lab)


def test_nothing_outlives_the_killed(children):
    """A JVM ends when its driver was killed; no test had to kill one."""
    assert children.left_by_abandoned == []


def _kill(lab: FeedLab, children: Children, place: str, form: str) -> None:
    lab.leave()
    child = children.take(spark=True)
    try:
        child.carry_out(lab.order(place, state=feeds.FEED, form=form))
        lab.wait_for_rollback()
    finally:
        children.end(child)


def _check_end(lab: FeedLab) -> None:
    assert lab.shown() == ALL
    assert feeds.Feed(lab.folder).forgotten == 6
    ranges = lab.ledger.rows(
        "SELECT committed_at, claim_end FROM batch_source WHERE claim_number IS NOT NULL"
        " ORDER BY claim_number"
    )
    assert all(row.committed_at is not None for row in ranges)
    assert ranges[-1].claim_end == 6
    for row in lab.ledger.rows("SELECT batch_id FROM batch"):
        assert lab.ledger.summary(row.batch_id).outcome is Outcome.COMPLETE
    assert not lab.ledger.rows("SELECT * FROM step_run WHERE state = 'running'")
