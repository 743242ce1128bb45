"""Carries out a schedule: SIGKILL, to processes that live, one after the other."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from tests.chaos.schedule import Kind, Strike

GAP_SECONDS = 4.0
GONE_SECONDS = 5.0


@dataclass(frozen=True)
class Killed:
    """One process that was alive and is dead."""

    second: float
    kind: Kind
    pid: int


class Killer:
    """A strike whose victim does not exist waits for one, and the later ones wait behind it."""

    def __init__(self, deck: Sequence[Strike], victims: Callable[[Kind], list[psutil.Process]]):
        self._left = list(deck)
        self._victims = victims
        self.done: list[Killed] = []

    @property
    def finished(self) -> bool:
        """Whether every strike is carried out."""
        return not self._left

    def counts(self) -> Counter[Kind]:
        """Kills by kind."""
        return Counter(killed.kind for killed in self.done)

    def tick(self, second: float) -> Killed | None:
        """Strike if it is time, and there is somebody to strike."""
        if not self._left or second < self._left[0].second:
            return None
        if self.done and second < self.done[-1].second + GAP_SECONDS:
            return None
        strike = self._left[0]
        victims = self._victims(strike.kind)
        if not victims:
            return None
        victim = victims[int(strike.draw * len(victims))]
        if not _kill(victim):
            return None  # it ended by itself: another one, later
        self._left.pop(0)
        self.done.append(Killed(round(second, 1), strike.kind, victim.pid))
        return self.done[-1]


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that is dead and not yet buried does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _kill(victim: psutil.Process) -> bool:
    """Whether the signal reached a live process, and it is gone by it."""
    try:
        if not lives(victim):
            return False
        victim.kill()
    except psutil.NoSuchProcess:
        return False
    deadline = time.monotonic() + GONE_SECONDS
    while lives(victim) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(victim)
