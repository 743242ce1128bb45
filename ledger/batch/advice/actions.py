"""Actions, each a sentence with a command, and how they are printed."""

from collections.abc import Iterable
from dataclasses import dataclass

IN_AIRFLOW = "In Airflow"


@dataclass(frozen=True)
class Action:
    """An action that a user can take.

    ``what``: the action in words.
    ``command``: the command as it is typed, or the click in Airflow; None: the words are all.
    """

    what: str
    command: str | None = None

    def __str__(self) -> str:
        return self.what if self.command is None else f"{self.what}: {self.command}"


Actions = tuple[Action, ...]


@dataclass(frozen=True)
class Advice:
    """A problem, and the actions against it. ``because``: the problem in words."""

    because: str
    actions: Actions = ()

    @property
    def lines(self) -> list[str]:
        """The problem, then one line for each action."""
        return [self.because, *map(str, self.actions)]

    def __str__(self) -> str:
        return ". ".join(self.lines)


def sentences(actions: Iterable[Action]) -> str:
    """Return actions as sentences within a message, without the last full stop."""
    return ". ".join(map(str, actions))


def lines(actions: Iterable[Action]) -> list[str]:
    """Return actions as lines, with a longer one's command on a line of its own."""
    texts: list[str] = []
    for action in actions:
        is_short = action.what == IN_AIRFLOW or action.what.startswith("if ")
        alone = action.command is None or is_short
        texts += [str(action)] if alone else [f"{action.what}:", str(action.command)]
    return texts
