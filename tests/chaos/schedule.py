"""When what is killed: a deck of strikes that follows from the seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is killed."""

    EXECUTOR = "executor"
    DRIVER = "driver"
    SWEEPER = "sweeper"
    BACKEND = "backend"
    SCHEDULER = "scheduler"


@dataclass(frozen=True)
class Strike:
    """One kill. ``second``: after the start; ``draw``: from 0 to 1, which of the victims there
    are then.
    """

    second: float
    kind: Kind
    draw: float


def schedule(seed: int, counts: Mapping[Kind, int], seconds: float) -> list[Strike]:
    """So many strikes of each kind in shuffled order, one in each of as many equal spans of
    ``seconds``.
    """
    draw = random.Random(f"strikes {seed}")
    deck = [kind for kind in Kind for _ in range(counts.get(kind, 0))]
    draw.shuffle(deck)
    span = seconds / max(len(deck), 1)
    return [
        Strike(round((place + draw.random()) * span, 1), kind, draw.random())
        for place, kind in enumerate(deck)
    ]
