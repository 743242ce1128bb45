"""An action, which is a sentence and a command, and how several are read."""

from collections.abc import Iterable
from dataclasses import dataclass

IN_AIRFLOW = "In Airflow"


@dataclass(frozen=True)
class Action:
    """What to do, and the command as it is typed, or the click; None: the sentence is all."""

    what: str
    command: str | None = None

    def __str__(self) -> str:
        return self.what if self.command is None else f"{self.what}: {self.command}"


Actions = tuple[Action, ...]


@dataclass(frozen=True)
class Advice:
    """``because``: what is the matter."""

    because: str
    actions: Actions = ()

    @property
    def lines(self) -> list[str]:
        """What is the matter, then a line for each action."""
        return [self.because, *map(str, self.actions)]

    def __str__(self) -> str:
        return ". ".join(self.lines)


def sentences(actions: Iterable[Action]) -> str:
    """Actions within a message, without the last stop."""
    return ". ".join(map(str, actions))


def lines(actions: Iterable[Action]) -> list[str]:
    """Actions below each other, a command in a line of its own."""
    texts: list[str] = []
    for action in actions:
        is_short = action.what == IN_AIRFLOW or action.what.startswith("if ")
        alone = action.command is None or is_short
        texts += [str(action)] if alone else [f"{action.what}:", str(action.command)]
    return texts
