"""The variables ``ACKLEDGER_...``: settings, and options of commands."""

from collections.abc import Iterable, Iterator
from typing import Any

from ledger.errors import suggestion
from ledger.settings import VERBOSE, Settings

PREFIX = "ACKLEDGER_"
_OF_COMPOSE = {"ACKLEDGER_DB_PASSWORD", "ACKLEDGER_READER_PASSWORD"}  # see docker-compose.yml


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command of a group, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def of_option(words: Iterable[str], option: Any) -> str:
    """The variable of an option of the command that these words call."""
    automatic = "_".join((*words, option.name)).upper().replace("-", "_")
    return str(option.envvar or f"{PREFIX}{automatic}")


def unknown(names: Iterable[str], group: Any) -> list[str]:
    """A warning for each name that looks like a variable of ackledger and is none."""
    valid = {f"{PREFIX}{name}".upper() for name in Settings.model_fields} | {VERBOSE} | _OF_COMPOSE
    for words, command in commands(group):
        options = (param for param in command.params if param.param_type_name == "option")
        valid |= {of_option(words, option) for option in options}
    return [
        f"variable {name} is ignored: there is none of that name"
        + (hint if "did you mean" in (hint := suggestion(name, valid)) else "")
        for name in sorted(names)
        if name.startswith(PREFIX) and name not in valid
    ]
