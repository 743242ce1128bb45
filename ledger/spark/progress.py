"""Number of tasks done in a step: from Spark's status tracker, or as a Connect server reports it.

Nothing here fails a step.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from ledger.core.text import quantity

MINUTE = 60.0  # seconds between two lines of a log
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tasks:
    """Tasks of the stages that Spark has planned since a step began."""

    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.done:,} of {quantity(self.total, 'task')}"


class TaskCount:
    """The tasks of a session since ``restart``."""

    def __init__(self) -> None:
        self._stages: dict[int, Tasks] = {}
        self._before: frozenset[int] = frozenset()
        self._restarts = False

    def restart(self) -> None:
        """Start counting for a new step, without the stages of earlier steps."""
        self._restarts = True

    def now(self) -> Tasks:
        """Return the tasks since ``restart`` as they are now."""
        stages = [tasks for number, tasks in self._stages.items() if number not in self._before]
        return Tasks(sum(stage.done for stage in stages), sum(stage.total for stage in stages))

    def note(self, running: Iterable[tuple[int, Tasks]]) -> None:
        """Record the running stages. Stages that are no longer among them are done."""
        now = dict(running)
        ended = {
            number: Tasks(tasks.total, tasks.total)
            for number, tasks in self._stages.items()
            if number not in now
        }
        if self._restarts:
            self._restarts, self._before = False, frozenset(ended)
        self._stages = {**ended, **now}


class _Tracked(TaskCount):
    """The tasks of a Spark in this process."""

    def __init__(self) -> None:
        from pyspark import SparkContext

        super().__init__()
        self._tracker = SparkContext.getOrCreate().statusTracker()

    def now(self) -> Tasks:
        running = {}
        for number in self._tracker.getActiveJobsIds():
            job = self._tracker.getJobInfo(number)
            for stage_id in () if job is None else job.stageIds:
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    running[stage_id] = Tasks(stage.numCompletedTasks, stage.numTasks)
        self.note(running.items())
        return super().now()


@contextmanager
def counting(session: Any) -> Iterator[TaskCount]:
    """Yield the count of a session's tasks, in this process or on a Connect server."""
    if isinstance(session, SparkSession):
        yield _Tracked()
        return
    count = TaskCount()

    def hear(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        with suppress(Exception):
            count.note(
                (stage.stage_id, Tasks(stage.num_completed_tasks, stage.num_tasks))
                for stage in stages or ()
            )

    session.registerProgressHandler(hear)
    try:
        yield count
    finally:
        session.removeProgressHandler(hear)


@contextmanager
def watching(
    session: Any, report: Callable[[Tasks, float], None], every: float = MINUTE
) -> Iterator[Callable[[], None]]:
    """Call ``report`` every ``every`` seconds while the block runs, with the tasks done and the
    seconds passed. Yields a function that restarts both.
    """
    stopped, started = threading.Event(), time.monotonic()
    watch = counting(session)
    count = TaskCount()

    def restart() -> None:
        nonlocal started
        started = time.monotonic()
        count.restart()

    def look() -> None:
        try:
            while not stopped.wait(every):
                report(count.now(), time.monotonic() - started)
        except Exception as exc:  # the step goes on without it
            _log.debug("progress is not shown any more: %s", exc)

    with suppress(Exception):
        count = watch.__enter__()
    logged_as = copy_context()
    thread = threading.Thread(target=logged_as.run, args=(look,), name="progress", daemon=True)
    thread.start()
    try:
        yield restart
    finally:
        stopped.set()
        with suppress(Exception):
            watch.__exit__(None, None, None)
