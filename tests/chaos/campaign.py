"""One run: the world, the killer, the reader, and somebody who triggers runs and replays and
looks on.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ledger.errors import LedgerError
from tests.chaos import data
from tests.chaos.killer import Killed, Killer
from tests.chaos.pipeline import NAME
from tests.chaos.reader import Reader, Sinks
from tests.chaos.schedule import Kind, Strike, schedule
from tests.chaos.verdict import Evidence, judge
from tests.chaos.world import Elsewhere, World

TICK_SECONDS = 0.5
LOOK_SECONDS = 3.0
STATUS = """
    SELECT batch_id, kind, status, acked, failed, quarantined, pending,
           (SELECT count(*) FROM sink_publication p
            WHERE p.batch_id = b.batch_id AND p.state IN ('decided', 'ready')) AS unpublished,
           (SELECT count(*) FROM state_progress s
            WHERE s.batch_id = b.batch_id AND s.state <> 'committed') AS waiting
    FROM batch_status b ORDER BY batch_id
"""
ENDED = ("success", "failed")


@dataclass(frozen=True)
class Plan:
    """What is run, and how it is hurt. ``finish_minutes``: after the last kill, before it is
    abandoned. ``submit``: whether a driver runs a step or a batch.
    """

    seed: int
    records: int
    batches: int
    minutes: float
    kills: Mapping[Kind, int]
    finish_minutes: float
    submit: str = "stage"

    def deck(self) -> list[Strike]:
        """Its kills, in order."""
        return schedule(self.seed, self.kills, self.minutes * 60)

    def instants(self) -> list[float]:
        """When each batch is begun, in seconds: two at once, the last one when the last kill is
        due. On a fast machine kills that found nothing to hurt wait for it.
        """
        last = max((strike.second for strike in self.deck()), default=0.0)
        rest = max(self.batches - 2, 1)
        return [max(0, number - 1) / rest * last for number in range(self.batches)]


LONG = Plan(
    seed=0,
    records=100_000,
    batches=5,
    minutes=20,
    kills={Kind.EXECUTOR: 14, Kind.DRIVER: 12, Kind.SWEEPER: 8, Kind.BACKEND: 8, Kind.SCHEDULER: 4},
    finish_minutes=30,
)
SHORT = Plan(
    seed=0,
    records=3_000,
    batches=3,
    minutes=2.5,
    kills={Kind.EXECUTOR: 2, Kind.DRIVER: 2, Kind.SWEEPER: 2, Kind.BACKEND: 2, Kind.SCHEDULER: 1},
    finish_minutes=40,
)


@dataclass(frozen=True)
class Outcome:
    """``wrong``: by assertion. ``unfinished``: why the run was abandoned, if it was; it proves
    nothing then.
    """

    seed: int
    seconds: float
    kills: list[Killed]
    wrong: Mapping[str, list[str]]
    records: int
    rows: int
    quarantined: int
    replays: int
    looks: int
    missed: Mapping[Kind, int] = field(default_factory=dict)
    unfinished: str | None = None

    @property
    def counts(self) -> Counter[Kind]:
        """Kills by kind."""
        return Counter(killed.kind for killed in self.kills)

    @property
    def good(self) -> bool:
        """Nothing is wrong, and every planned kill was carried out."""
        return not (self.unfinished or any(self.wrong.values()) or any(self.missed.values()))


class Campaign:
    """A plan on its way, on this machine alone unless it is ``elsewhere``."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        print_line: Callable[[str], None],
        elsewhere: Elsewhere | None = None,
    ):
        self._plan = plan
        self._print_line = print_line
        self._world = World(folder, plan.submit, elsewhere)
        self._orders = data.make_orders(plan.seed, plan.records, plan.batches)
        self._killer = Killer(plan.deck(), self._world.victims)
        self._intervals = [*zip(plan.instants(), data.days(plan.batches), strict=True)]
        self._fixed = False
        self._lines: dict[int, str] = {}
        self._began = time.monotonic()

    def run(self) -> Outcome:
        """All of it; whatever happens, nothing that was started is left."""
        data.write_orders(self._world.data, self._orders)
        data.write_regions(self._world.data, complete=False)
        try:
            self._world.start()
            sinks = Sinks(self._world.data, self._world.target_url)
            reader = Reader(sinks)
            self._began = time.monotonic()
            reader.start()
            try:
                unfinished = self._until_done()
            finally:
                reader.stop()
            return self._outcome(sinks, reader, unfinished)
        finally:
            self._world.stop()

    def _until_done(self) -> str | None:
        """Kill and look on until all is done, or why it is not."""
        limit = (self._plan.minutes + self._plan.finish_minutes) * 60
        looked = 0.0
        while self._second < limit:
            self._world.tend()
            self._ask(self._trigger_due)
            killed = self._killer.tick(self._second)
            if killed is not None:
                self._print_line(f"{killed.second:7.1f} s  killed {killed.kind} {killed.pid}")
            if self._second >= looked + LOOK_SECONDS:
                looked = self._second
                if self._look():
                    return None
            time.sleep(TICK_SECONDS)
        return f"not done after {limit / 60:.0f} minutes: {'; '.join(self._lines.values())}"

    def _trigger_due(self) -> None:
        """Start the runs of the intervals whose time has come."""
        while self._intervals and self._second >= self._intervals[0][0]:
            day = self._intervals[0][1]
            after = date.fromisoformat(day) + timedelta(days=1)
            self._world.airflow.trigger(NAME, interval_start=day, interval_end=str(after))
            self._intervals.pop(0)

    def _ask(self, something: Callable[[], None]) -> None:
        """Ask Airflow's API, later again if it is too busy to answer: a run that comes twice
        finds its batch taken.
        """
        try:
            something()
        except OSError as exc:
            self._print_line(f"{self._second:7.1f} s  Airflow's API does not answer: {exc}")

    @property
    def _second(self) -> float:
        return time.monotonic() - self._began

    def _look(self) -> bool:
        """Print what is new, and do what an operator does: fix, replay. True once nothing is
        pending.
        """
        try:
            batches = self._rows(STATUS)
        except LedgerError:
            return False  # the server restarts just now
        for row in batches:
            line = (
                f"batch {row.batch_id} ({row.kind}) {row.status}: {row.acked} acked, {row.failed}"
                f" failed, {row.quarantined} quarantined, {row.pending} pending, {row.unpublished}"
                " sinks to be published" + (", waits with its state" if row.waiting else "")
            )
            if self._lines.get(row.batch_id) != line:
                self._lines[row.batch_id] = line
                self._print_line(f"{self._second:7.1f} s  {line}")
        originals = [row for row in batches if row.kind == "original"]
        settled = [row for row in originals if row.status == "settled"]
        if not self._fixed and 2 * len(settled) > self._plan.batches:
            data.write_regions(self._world.data, complete=True)
            self._fixed = True
        if any(row.failed for row in settled) and self._fixed:
            self._ask(self._replay)
        decided = all(row.status == "settled" for row in batches if row.status != "abandoned")
        pending = sum(row.failed + row.pending + row.unpublished + row.waiting for row in batches)
        return len(settled) == self._plan.batches and decided and pending == 0

    def _replay(self) -> None:
        """Start the library's replay DAG, unless a replay is on its way already."""
        runs = [
            run for run in self._world.airflow.runs(NAME) if run["dag_run_id"].startswith("replay_")
        ]
        asked = self._world.airflow.runs("ledger_replay")
        if all(run["state"] in ENDED for run in (*runs, *asked)):
            self._world.airflow.trigger("ledger_replay", pipeline=NAME)
            self._print_line(f"{self._second:7.1f} s  asked for a replay of what failed")

    def _outcome(self, sinks: Sinks, reader: Reader, unfinished: str | None) -> Outcome:
        batches = self._rows(STATUS)
        reasons = self._rows("SELECT reason FROM quarantine ORDER BY message_id")
        shown = sinks.rows()
        evidence = Evidence(
            shown=shown,
            quarantined=[int(row.reason.split()[-1]) for row in reasons],
            batches=sinks.batches(),
            settled=[row.batch_id for row in batches if row.status == "settled"],
            looks=reader.looks,
            histories=reader.histories,
            history=sinks.history(),
        )
        done = self._killer.counts()
        return Outcome(
            seed=self._plan.seed,
            seconds=self._second,
            kills=self._killer.done,
            wrong=judge(self._orders, evidence),
            records=len(self._orders),
            rows=min(map(len, shown.values())),
            quarantined=len(evidence.quarantined),
            replays=sum(row.kind == "replay" for row in batches),
            looks=reader.count,
            missed={kind: count - done[kind] for kind, count in self._plan.kills.items()},
            unfinished=unfinished,
        )

    def _rows(self, query: str) -> list[Any]:
        ledger = self._world.ledger
        return ledger.transact(lambda c: list(c.execute(text(query)).all()), engine=ledger.reader)
