"""Life of a batch of ``tests.support.orders``, stop by stop, kept so that every crash begins at
its own.
"""

from collections import Counter
from dataclasses import replace

import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from ledger.batch.step_runs import Attempt
from ledger.execution import combine, notify, run_step, withhold
from ledger.spark.job import Job
from tests.support import orders
from tests.support.crashing import opened, run_open_steps
from tests.support.publishing import publish_settled
from tests.support.stop_lab import NOTHING, Site, StopLab

# Their numbers, where no crash has used up one; a batch in the original's place has the second,
# too.
ORIGINAL, REPLAY = 1, 2
STEPS = ("orders", "boxes", "priced", "lake", "report", "table")
_LIFE = ("opened", *STEPS, "settled", "withheld", "published")
# Where a crash can begin: what was done before it, of a batch and of its replay.
STOPS = (NOTHING, *_LIFE, "notified", *(f"replay {stop}" for stop in _LIFE), "replay combined")
# And of a batch that reprocesses the interval.
REPROCESS = "reprocess withheld"


class Lab(StopLab):
    """The life of a batch of orders, of its replay, and of one that reprocesses its interval."""

    def __init__(self, site: Site, base: orders.Variant | None = None):
        self.base = base or orders.Variant()
        super().__init__(site)
        self._target = create_engine(self.warehouse, poolclass=NullPool)

    def write(self) -> None:
        """Write the orders, and the shops without one."""
        orders.write(self.folder)

    def before(self, stop: str) -> str:
        """One stop earlier; a reprocess begins where the sources were notified."""
        return "notified" if stop == REPROCESS else STOPS[STOPS.index(stop) - 1]

    def job(self, variant: orders.Variant) -> Job:
        """The surroundings of the pipeline in this process."""
        return self.job_of(orders.pipeline(str(self.folder), self.warehouse, variant))

    def shown(self, sink: str) -> orders.Rows:
        """What a reader of the sink sees."""
        if sink == "report":
            return self._report()
        if sink == "table":
            try:
                table = DeltaTable(str(self.folder / "table")).to_pyarrow_table()
            except TableNotFoundError:
                return Counter()
        elif (self.folder / sink).exists():
            place = self.folder / sink
            table = ds.dataset(place, partitioning="hive", format="parquet").to_table()
        else:
            return Counter()
        if table.num_rows == 0:
            return Counter()
        columns = ("shop", "boxes", "cents") if sink == "daily" else ("id", "shop", "box", "cents")
        return Counter(tuple(row[name] for name in columns) for row in table.to_pylist())

    def notices(self) -> dict[tuple[int, str], list[list[int]]]:
        """What the source was notified of, by batch and kind, each time."""
        path = self.folder / "notices.txt"
        notices: dict[tuple[int, str], list[list[int]]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            batch, kind, *ids = line.split()
            notices.setdefault((int(batch), kind), []).append([int(number) for number in ids])
        return notices

    def advance(self, stop: str) -> None:
        """From the stop before to this one, warm and without a crash."""
        *of, done = stop.split(" ")
        if of:
            orders.write(self.folder, fixed=True)
        job = self.job(replace(self.base, fixed=bool(of)))
        batch_id = REPLAY if of else ORIGINAL
        if stop == REPROCESS:
            run_open_steps(job, opened(job, reprocess=True))
            self._do_stop(job, batch_id, "settled")
        if done == "opened":
            opened(job, replay_of=ORIGINAL if of else None)
        else:
            self._do_stop(job, batch_id, done)

    def _do_stop(self, job: Job, batch_id: int, done: str) -> None:
        if done in STEPS:
            run_step(job, batch_id, done, Attempt())
        elif done == "settled":
            self.ledger.settle(batch_id)
        elif done == "withheld":
            # What the replay quarantines did not parse, so no sink has a row of it.
            assert len(withhold(job, batch_id)) == (3 if batch_id == ORIGINAL else 0)
        elif done == "published":
            publish_settled(job, batch_id)
        elif done == "combined":
            combine(job, batch_id)
        else:
            notify(job, batch_id)

    def _report(self) -> orders.Rows:
        with self._target.connect() as connection:
            if not connection.execute(text("SELECT to_regclass('report') IS NOT NULL")).scalar():
                return Counter()
            result = connection.execute(text("SELECT id, shop, box, cents FROM report"))
            return Counter(tuple(row) for row in result)
