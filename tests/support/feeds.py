"""A system outside that a source knows its own way about in."""

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as F

from ledger import ParquetSink, Pipeline, StatefulSource
from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch

FEED = "feed"


class Feed(StatefulSource):
    """A log of numbers outside, which forgets what it was told to: reads on by its length, and
    takes out a ticket for each batch.
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
        return [int(one) for one in path.read_text().split()] if path.exists() else []

    @property
    def forgotten(self):
        path = self.folder / "forgotten"
        return int(path.read_text()) if path.exists() else 0

    @property
    def tickets(self):
        return sorted(
            int(path.name.removeprefix("ticket-")) for path in self.folder.glob("ticket-*")
        )

    def init_state(self, snapshot):
        self.calls.append(("init_state", snapshot))
        self.position = 0 if snapshot is None else snapshot["upto"]

    def read(self, spark):
        self._break("read")
        assert self.position >= self.forgotten, "what is to be read is gone"
        self.upto = len(self.log)
        found = [(one,) for one in self.log[self.position : self.upto]]
        return spark.createDataFrame(found, self.schema)

    def finish_batch(self, batch_id):
        self._break("finish_batch")
        return self.upto

    def commit(self, batch_id, state):
        (self.folder / f"ticket-{batch_id}").write_text(str(state))
        self._break("commit")
        return {"upto": state, "ticket": batch_id}

    def roll_back(self, snapshot):
        self.calls.append(("roll_back", snapshot))
        for ticket in self.tickets:
            if snapshot is None or int(self._ticket(ticket).read_text()) > snapshot["upto"]:
                self._ticket(ticket).unlink()

    def ack_commit(self, batch_id):
        self.calls.append(("ack_commit", batch_id))
        self._break("ack_commit")
        upto = int(self._ticket(batch_id).read_text())
        (self.folder / "forgotten").write_text(str(upto))
        for ticket in self.tickets:
            if int(self._ticket(ticket).read_text()) < upto:
                self._ticket(ticket).unlink()

    def _ticket(self, batch_id):
        return self.folder / f"ticket-{batch_id}"

    def _break(self, hook):
        if hook in self.broken:
            raise RuntimeError("no")


def fed(*feeds, lose=(), **options) -> Pipeline:
    """One feed or several, united -> numbers, of which some may be lost -> a folder."""
    made = Pipeline("fed", **{"guarantee": "exactly_once", "message_timeout": "10s", **options})
    for feed in feeds:
        made.source(feed.folder.name, feed)

    def numbers(*frames):
        united = frames[0]
        for frame in frames[1:]:
            united = united.unionByName(frame)
        return united.where(~F.col("n").isin([-1, *lose]))

    def of_one(one):
        return numbers(one)

    def of_two(one, other):
        return numbers(one, other)

    stage = of_one if len(feeds) == 1 else of_two
    stage.__name__ = "numbers"
    made.stage(reads=[feed.folder.name for feed in feeds])(stage)
    made.sink("out", ParquetSink("out"), reads="numbers")
    return made


def of_folder(folder: str) -> Pipeline:
    """The pipeline of one feed that lies there."""
    return fed(Feed(Path(folder)))


def opened(job: Job, day: int) -> Batch:
    """The batch of a day, opened or found again."""
    interval = Interval(datetime(2013, 1, day, tzinfo=UTC), datetime(2013, 1, day + 1, tzinfo=UTC))
    key = RunKey("dag", f"day{day}")
    return open_batch(job.database, job.settings, job.pipeline, key, interval)
