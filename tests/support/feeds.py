"""A system outside that a source reads by offsets."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as F

from ledger import OffsetSource, ParquetSink, Pipeline
from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch

FEED = "feed"


class Feed(OffsetSource):
    """A log of numbers outside, which forgets what is committed; an offset is how many of them
    come before it.
    """

    schema = "n INT"

    def __init__(self, folder: Path, name="feed", broken=()):
        self.folder, self.broken, self.calls = folder / name, set(broken), []
        self.folder.mkdir(exist_ok=True)

    def add(self, *numbers):
        (self.folder / "log").write_text(" ".join(map(str, [*self.log, *numbers])))

    @property
    def log(self):
        path = self.folder / "log"
        return [int(number) for number in path.read_text().split()] if path.exists() else []

    @property
    def forgotten(self):
        path = self.folder / "forgotten"
        return int(path.read_text()) if path.exists() else 0

    def latest(self, start, room):
        self.calls.append(("latest", start, room))
        self._break("latest")
        first, end = start or 0, len(self.log)
        return min(end, end if room is None else first + room) or None

    def read(self, spark, start, end):
        self._break("read")
        assert (start or 0) >= self.forgotten, "what is to be read is gone"
        numbers = self.log[start or 0 : end]
        return spark.createDataFrame([(number,) for number in numbers], self.schema)

    def commit(self, batch_id, end):
        self.calls.append(("commit", batch_id, end))
        self._break("commit")
        (self.folder / "forgotten").write_text(str(end))

    @property
    def commits(self):
        """The calls of ``commit``: the batch, and the offset."""
        return [call[1:] for call in self.calls if call[0] == "commit"]

    def _break(self, method):
        if method in self.broken:
            raise RuntimeError("no")


def fed(*feeds, lose=(), **options) -> Pipeline:
    """One feed or several, united -> numbers, of which some may be lost -> a folder."""
    pipeline = Pipeline("fed", **{"guarantee": "exactly_once", "message_timeout": "10s", **options})
    for feed in feeds:
        pipeline.source(feed.folder.name, feed)

    def numbers(*frames):
        united = frames[0]
        for frame in frames[1:]:
            united = united.unionByName(frame)
        return united.where(~F.col("n").isin([-1, *lose]))

    def of_one(frame):
        return numbers(frame)

    def of_two(left, right):
        return numbers(left, right)

    stage = of_one if len(feeds) == 1 else of_two
    stage.__name__ = "numbers"
    pipeline.stage(reads=[feed.folder.name for feed in feeds], filters="lost")(stage)
    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    return pipeline


def of_folder(folder: str) -> Pipeline:
    """The pipeline of one feed that lies there."""
    return fed(Feed(Path(folder)))


def opened(job: Job, day: int) -> Batch:
    """The batch of a day, opened or found again."""
    interval = Interval(datetime(2013, 1, day, tzinfo=UTC), datetime(2013, 1, day + 1, tzinfo=UTC))
    key = RunKey("dag", f"day{day}")
    return open_batch(job.database, job.settings, job.pipeline, key, interval)
